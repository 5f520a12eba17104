//! A local APIC that the CPU virtualizes, with posted interrupts (SDM vol. 3C ch. 30).
//!
//! The guest's local APIC is in three places, each with one owner at a time:
//!
//! ```text
//!  any core ──▶ descriptor.rs: PIR, ON        other cores post; taken by the CPU when the guest runs (notification),
//!                    │                        and by the vCPU's own core before each entry
//!                    ▼
//!  this file: ApicPage, the virtual-APIC page: VTPR, VPPR, VISR, VIRR and copies of the registers that the guest reads
//!                    ▲                        the CPU's while the guest runs, its core's while it does not
//!                    │
//!  lapic.rs: LocalApic                        timer, ICR, LVTs, SVR, ESR: what exits when it is written. Interrupts that
//!                                             it raises wait in its IRR until the next entry hands them over
//! ```
//!
//! RVI and SVI are the highest bits of VIRR and VISR (30.1.1, "guest interrupt status"). The CPU keeps them in the
//! VMCS. A hand-over changes VIRR, so the host then sets RVI ([`HandOver::rvi`]). SVI changes only in the guest.

use core::{
    ops::RangeInclusive,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use crate::bitmap;
pub use crate::descriptor::Descriptor;
use crate::lapic::msr;

/// Registers whose reads the CPU answers from the page (30.5, APIC-register virtualization). The CPU would answer for
/// all of 0x800 to 0x8ff. So a register that does not exist, or cannot be read, exits and gets its #GP. The current
/// count exits too, because each read computes it.
pub const READ_FROM_PAGE: &[RangeInclusive<u32>] = &[
    msr::ID..=msr::VERSION,
    msr::TPR..=msr::TPR,
    msr::PPR..=msr::PPR,
    msr::LDR..=msr::LDR,
    msr::SVR..=msr::ESR, // ISR, TMR and IRR between them
    msr::ICR..=msr::ICR,
    msr::LVT_TIMER..=msr::INITIAL_COUNT,
    msr::DIVIDE..=msr::DIVIDE,
];

/// Registers whose writes the CPU carries out without an exit (30.1.2 to 30.1.5): TPR, EOI and self IPI.
pub const WRITTEN_BY_CPU: &[u32] = &[msr::TPR, msr::EOI, msr::SELF_IPI];

/// Vectors that an APIC hands over, one bit each.
pub type Bits = [u64; 4];

/// What the back-end must know after interrupts were put into the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandOver {
    /// RVI: the highest vector in VIRR.
    pub rvi: u8,
    /// The vectors whose EOI must exit. `None` if they have not changed.
    pub eoi_exits: Option<Bits>,
}

/// The virtual-APIC page (30.1). Register `n` of the x2APIC (MSR 0x800 + n) is at byte 16 * n.
///
/// It consists of atomics, because the CPU writes to it while the guest runs. The vCPU's own core writes only while the
/// guest does not run, so it needs no locked instructions. Other cores may call only [`ApicPage::is_requesting`].
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct ApicPage([AtomicU32; 1024]);

/// Returns the index in the page of the first of a register's four words, by its MSR.
fn first_word(number: u32) -> usize {
    (number as usize & 0xff) << 2
}

impl Default for ApicPage {
    fn default() -> Self {
        Self::new()
    }
}

impl ApicPage {
    /// All zero.
    #[must_use]
    pub fn new() -> Self {
        Self([const { AtomicU32::new(0) }; 1024])
    }

    /// Resets the page: nothing is requested or in service, and TPR is 0.
    pub fn reset(&self) {
        for word in &self.0 {
            word.store(0, Relaxed);
        }
    }

    fn word(&self, number: u32) -> &AtomicU32 {
        self.at(first_word(number))
    }

    /// Returns a word of the page, by its index.
    fn at(&self, index: usize) -> &AtomicU32 {
        let [.., last] = &self.0;
        self.0.get(index).unwrap_or(last)
    }

    /// Returns the low 32 bits of a register, by its MSR.
    #[must_use]
    pub fn register(&self, number: u32) -> u32 {
        self.word(number).load(Relaxed)
    }

    /// Makes a register read as `value` in the guest. Not for the registers that the CPU keeps (TPR, PPR, ISR, TMR,
    /// IRR).
    pub fn show(&self, number: u32, value: u64) {
        self.word(number).store(value as u32, Relaxed);
        // Only the ICR has 64 bits. The upper half of the other registers is 0 and stays 0.
        self.at(first_word(number) | 1).store((value >> 32) as u32, Relaxed);
    }

    /// Returns the highest vector of one of the three groups of eight registers.
    fn highest(&self, group: u32) -> Option<u8> {
        let bit = |i: u32| Some((i, self.register(group.wrapping_add(i)).checked_ilog2()?));
        let (index, bit) = (0..8).rev().find_map(bit)?;
        Some((index << 5 | bit) as u8)
    }

    /// Returns the processor priority as the CPU computes it from VTPR and VISR (30.1.3).
    #[must_use]
    pub fn ppr(&self) -> u8 {
        let (tpr, in_service) = (self.register(msr::TPR) as u8, self.highest(msr::ISR).unwrap_or(0));
        if tpr >> 4 >= in_service >> 4 { tpr } else { in_service & 0xf0 }
    }

    /// Returns the vector that the CPU delivers as soon as the guest can take interrupts (30.2.1). It ends HLT if IF is
    /// set.
    #[must_use]
    pub fn deliverable(&self) -> Option<u8> {
        self.highest(msr::IRR).filter(|vector| vector >> 4 > self.ppr() >> 4)
    }

    /// Requests `vectors`. Those that are also in `level` are level-triggered, and their EOI will exit. Only the vCPU's
    /// core may call it, while its guest does not run.
    #[must_use = "the CPU has to be told"]
    pub fn request(&self, vectors: &Bits, level: &Bits) -> HandOver {
        let half = |bits: &Bits, i: u32| (bitmap::word(bits, (i << 5) as u8) >> ((i & 1) << 5)) as u32;
        let mut changed = false;
        for i in 0..8 {
            let new = half(vectors, i);
            if new != 0 {
                let (irr, tmr) = (self.word(msr::IRR.wrapping_add(i)), self.word(msr::TMR.wrapping_add(i)));
                irr.store(irr.load(Relaxed) | new, Relaxed);
                let old = tmr.load(Relaxed);
                let mode = old & !new | half(level, i) & new;
                tmr.store(mode, Relaxed);
                changed |= mode != old;
            }
        }
        HandOver { rvi: self.highest(msr::IRR).unwrap_or(0), eoi_exits: changed.then(|| self.level_triggered()) }
    }

    /// Returns TMR, which is also the EOI-exit bitmap: the vectors for whose EOI the IOAPIC waits.
    pub(crate) fn level_triggered(&self) -> Bits {
        core::array::from_fn(|i| {
            let register = |n| u64::from(self.register(msr::TMR.wrapping_add(n)));
            let first = (i as u32) << 1;
            register(first) | register(first | 1) << 32
        })
    }

    /// Whether the last interrupt of this vector was level-triggered.
    #[must_use]
    pub fn is_level_triggered(&self, vector: u8) -> bool {
        bitmap::word(&self.level_triggered(), vector) >> (vector & 63) & 1 != 0
    }

    /// Whether an interrupt waits in VIRR. Any core may call it. Only a workaround needs it ([`crate::quirk`]).
    #[must_use]
    pub fn is_requesting(&self) -> bool {
        self.highest(msr::IRR).is_some()
    }
}

/// A value that begins a page. It is for a mailbox, which begins with the descriptor. The manual asks only for an
/// alignment of 64 bytes, but Bochs 3.0 needs a page.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct OnPage<T>(pub T);

/// Addresses of a vCPU's descriptor and page in the host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The [`Descriptor`].
    pub descriptor: usize,
    /// The [`ApicPage`].
    pub page: usize,
}

/// What a sender must do after a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Nothing. The vCPU's core will drain by itself, or another sender has signalled it.
    Nobody,
    /// Send the notification vector to the vCPU's core, because its guest runs.
    Notify,
    /// Send an NMI, because the core waits in the host.
    Kick,
}

// The CPU reads both, so their layout must be the manual's.
const _: () = {
    assert!(size_of::<Descriptor>() == 64 && align_of::<Descriptor>() == 64);
    assert!(size_of::<ApicPage>() == 4096 && align_of::<ApicPage>() == 4096);
};

#[cfg(test)]
mod tests;
