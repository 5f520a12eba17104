//! The guest's local APIC in x2APIC mode, in software.
//!
//! One [`LocalApic`] belongs to one virtual CPU, and only that CPU's core touches it. Other cores reach it through the
//! [`mailbox`](crate::mailbox). Every access to its registers exits and ends in [`LocalApic::read`] or
//! [`LocalApic::write`]. It touches no hardware: the caller passes the time, and [`LocalApic::deadline`] says when the
//! caller must call [`LocalApic::expire`].
//!
//! Follows SDM vol. 3A ch. 11 (ch. 10 in editions before 2022). The machine starts in x2APIC mode and cannot leave it,
//! as on a CPU that reports the legacy mode disabled. A change of IA32_APIC_BASE is #GP.
//!
//! A spurious interrupt (11.9) never occurs: the entry chooses and acknowledges the vector in one step, and TPR cannot
//! rise in between. The register keeps its vector anyway.

mod message;
mod page;
mod timer;
mod vectors;

use bitfield_struct::bitfield;

pub use message::{Command, Delivery, Destination, Icr, Message, logical_id};
pub use timer::Clock;
use timer::{Mode, Timer};
use vectors::Vectors;

/// The numbers of the MSRs that this module implements.
#[allow(missing_docs, reason = "the names are the registers")]
pub mod msr {
    pub const APIC_BASE: u32 = 0x1b;
    pub const TSC_DEADLINE: u32 = 0x6e0;
    pub const ID: u32 = 0x802;
    pub const VERSION: u32 = 0x803;
    pub const TPR: u32 = 0x808;
    pub const PPR: u32 = 0x80a;
    pub const EOI: u32 = 0x80b;
    pub const LDR: u32 = 0x80d;
    pub const SVR: u32 = 0x80f;
    pub const ISR: u32 = 0x810;
    pub const TMR: u32 = 0x818;
    pub const IRR: u32 = 0x820;
    pub const ESR: u32 = 0x828;
    pub const ICR: u32 = 0x830;
    pub const LVT_TIMER: u32 = 0x832;
    pub const LVT_THERMAL: u32 = 0x833;
    pub const LVT_PERFORMANCE: u32 = 0x834;
    pub const LVT_LINT0: u32 = 0x835;
    pub const LVT_LINT1: u32 = 0x836;
    pub const LVT_ERROR: u32 = 0x837;
    pub const INITIAL_COUNT: u32 = 0x838;
    pub const CURRENT_COUNT: u32 = 0x839;
    pub const DIVIDE: u32 = 0x83e;
    pub const SELF_IPI: u32 = 0x83f;
}

/// The first legal vector of an interrupt message (11.5.2, 11.8).
pub const FIRST_VECTOR: u8 = 16;

/// The version register: version 0x15, six LVT entries (the seventh would be CMCI), no EOI-broadcast suppression.
const VERSION: u32 = 0x0005_0015;

/// ESR bits (11.5.3). The other bits belong to the old bus or to xAPIC mode.
const SEND_ILLEGAL_VECTOR: u8 = 1 << 5;
const RECEIVE_ILLEGAL_VECTOR: u8 = 1 << 6;

/// Entries of `LocalApic::lvt`, in the order of their MSRs.
const TIMER: usize = 0;
const ERROR: usize = 5;

/// The index in `LocalApic::lvt` of the entry with this MSR, from `LVT_TIMER` to `LVT_ERROR`.
fn lvt_index(number: u32) -> usize {
    number.wrapping_sub(msr::LVT_TIMER) as usize
}

/// An access that hardware answers with #GP(0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneralProtection;

/// What the caller must do after a write of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing. A changed deadline is read at the next entry.
    None,
    /// Deliver this message to the mailboxes of the CPUs that it names. The sender may be one of them.
    Ipi(Message),
    /// Tell the IOAPIC that the level-triggered interrupt with this vector has ended.
    EndOfInterrupt(u8),
}

/// A receiver of interrupts.
pub trait Accepts {
    /// Takes an interrupt. Returns false if it was not accepted.
    fn accept(&mut self, vector: u8, level: bool) -> bool;
}

/// What does not change in an APIC's life.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// x2APIC ID.
    pub id: u32,
    /// The processor that boots.
    pub bootstrap: bool,
    /// Frequency of the timer before its divider, in Hz. CPUID 0x15 calls it the crystal clock.
    pub timer_hz: u64,
    /// Frequency of the time-stamp counter, Hz.
    pub tsc_hz: u64,
    /// Whether TSC-deadline mode is offered (CPUID.1:ECX bit 24).
    pub tsc_deadline: bool,
}

/// An entry of the local vector table (11.5.1). Not every entry has all of these fields.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
struct Lvt {
    vector: u8,
    #[bits(3)]
    delivery_mode: u8,
    __: bool,
    /// Read-only.
    delivery_status: bool,
    active_low: bool,
    /// Read-only.
    remote_irr: bool,
    level: bool,
    mask: bool,
    #[bits(2)]
    timer_mode: u8,
    #[bits(13)]
    __: u16,
}

impl Lvt {
    const MASKED: Self = Self::new().with_mask(true);
    /// Bits that software may write, by entry. Bits 12 and 14 are read-only in every entry, and writes of them are
    /// ignored.
    const WRITABLE: [u32; 6] = [0x7_00ff, 0x1_07ff, 0x1_07ff, 0x1_a7ff, 0x1_a7ff, 0x1_00ff];
    const READ_ONLY: u32 = 0x5000;
}

/// Spurious-interrupt vector register (11.9).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
struct Svr {
    vector: u8,
    enabled: bool,
    /// Focus processor checking disabled. It has had no meaning since the P6, but Linux sets it.
    focus_disabled: bool,
    #[bits(22)]
    __: u32,
}

impl Svr {
    const RESET: Self = Self::new().with_vector(0xff);
    const RESERVED: u32 = !0x3ff;
}

/// A local APIC in x2APIC mode.
#[derive(Clone, Debug)]
pub struct LocalApic {
    settings: Settings,
    tpr: u8,
    svr: Svr,
    isr: Vectors,
    tmr: Vectors,
    irr: Vectors,
    /// ESR as it reads, and the errors since it was last written.
    esr: u8,
    errors: u8,
    icr: Icr,
    lvt: [Lvt; 6],
    timer: Timer,
}

impl LocalApic {
    /// Makes an APIC in its state after power-on, but in x2APIC mode, as if firmware had switched it on.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            tpr: 0,
            svr: Svr::RESET,
            isr: Vectors::default(),
            tmr: Vectors::default(),
            irr: Vectors::default(),
            esr: 0,
            errors: 0,
            icr: Icr::new(),
            lvt: [Lvt::MASKED; 6],
            timer: Timer::new(settings.timer_hz, settings.tsc_hz),
        }
    }

    /// Handles INIT: resets everything except the ID and the mode (11.12.5.1).
    pub fn init(&mut self) {
        *self = Self::new(self.settings);
    }

    /// x2APIC ID.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.settings.id
    }

    /// Whether an MSR belongs to this module. The whole range from 0x800 to 0x8ff does, even where no register exists.
    #[must_use]
    pub const fn owns(number: u32) -> bool {
        matches!(number, msr::APIC_BASE | msr::TSC_DEADLINE | 0x800..=0x8ff)
    }

    /// RDMSR.
    ///
    /// # Errors
    /// No such register, or a write-only one.
    pub fn read(&self, number: u32, clock: Clock) -> Result<u64, GeneralProtection> {
        Ok(u64::from(match number {
            msr::APIC_BASE => return Ok(self.apic_base()),
            msr::TSC_DEADLINE if self.settings.tsc_deadline => return Ok(self.timer.tsc_deadline()),
            msr::ICR => return Ok(self.icr.into_bits()),
            msr::ID => self.settings.id,
            msr::VERSION => VERSION,
            msr::TPR => u32::from(self.tpr),
            msr::PPR => u32::from(self.ppr()),
            msr::LDR => logical_id(self.settings.id),
            msr::SVR => self.svr.into_bits(),
            0x810..=0x817 => self.isr.register(number.wrapping_sub(msr::ISR)),
            0x818..=0x81f => self.tmr.register(number.wrapping_sub(msr::TMR)),
            0x820..=0x827 => self.irr.register(number.wrapping_sub(msr::IRR)),
            msr::ESR => u32::from(self.esr),
            msr::LVT_TIMER..=msr::LVT_ERROR => self.lvt.get(lvt_index(number)).ok_or(GeneralProtection)?.into_bits(),
            msr::INITIAL_COUNT => self.timer.initial_count(),
            msr::CURRENT_COUNT => self.timer.current_count(clock.tsc),
            msr::DIVIDE => u32::from(self.timer.divide()),
            _ => return Err(GeneralProtection),
        }))
    }

    /// WRMSR.
    ///
    /// # Errors
    /// No such register, a read-only one, or a reserved bit set.
    pub fn write(&mut self, number: u32, value: u64, clock: Clock) -> Result<Effect, GeneralProtection> {
        match number {
            msr::APIC_BASE if value == self.apic_base() => return Ok(Effect::None),
            msr::TSC_DEADLINE if self.settings.tsc_deadline => {
                self.expire(clock);
                self.timer.set_tsc_deadline(value, clock);
                return Ok(Effect::None);
            }
            msr::ICR => return self.command(Icr::from_bits(value)),
            _ => {}
        }
        let value = u32::try_from(value).map_err(|_| GeneralProtection)?;
        let byte = || u8::try_from(value).map_err(|_| GeneralProtection);
        match number {
            msr::TPR => self.tpr = byte()?,
            msr::EOI if value == 0 => return Ok(self.end_of_interrupt()),
            msr::SVR if value & Svr::RESERVED == 0 => self.set_svr(Svr::from_bits(value), clock),
            msr::ESR if value == 0 => self.esr = core::mem::take(&mut self.errors),
            msr::LVT_TIMER..=msr::LVT_ERROR => self.set_lvt(lvt_index(number), value, clock)?,
            msr::INITIAL_COUNT => {
                self.expire(clock);
                self.timer.set_initial_count(value, clock.tsc);
            }
            msr::DIVIDE if value & !0b1011 == 0 => {
                self.expire(clock);
                self.timer.set_divide(value as u8, clock.tsc);
            }
            msr::SELF_IPI => self.interrupt_self(byte()?),
            _ => return Err(GeneralProtection),
        }
        Ok(Effect::None)
    }

    fn apic_base(&self) -> u64 {
        const ENABLED: u64 = 1 << 11;
        const X2APIC: u64 = 1 << 10;
        const BOOTSTRAP: u64 = 1 << 8;
        crate::layout::LOCAL_APIC | ENABLED | X2APIC | if self.settings.bootstrap { BOOTSTRAP } else { 0 }
    }

    fn command(&mut self, icr: Icr) -> Result<Effect, GeneralProtection> {
        if icr.has_reserved_bits() {
            return Err(GeneralProtection);
        }
        self.remember(icr);
        match icr.command(self.settings.id) {
            Command::Send(message) => return Ok(Effect::Ipi(message)),
            Command::SelfInterrupt(vector) => self.interrupt_self(vector),
            Command::IllegalVector => self.error(SEND_ILLEGAL_VECTOR),
            Command::Nothing => {}
        }
        Ok(Effect::None)
    }

    /// Makes the ICR read as this command. The caller carries the command out.
    pub fn remember(&mut self, icr: Icr) {
        self.icr = icr.with_delivery_status(false);
    }

    fn interrupt_self(&mut self, vector: u8) {
        if vector < FIRST_VECTOR {
            self.error(SEND_ILLEGAL_VECTOR);
        } else {
            self.accept(vector, false);
        }
    }

    fn set_svr(&mut self, svr: Svr, clock: Clock) {
        if !svr.enabled() {
            self.expire(clock);
            for entry in &mut self.lvt {
                entry.set_mask(true);
            }
        }
        self.svr = svr;
    }

    fn set_lvt(&mut self, index: usize, value: u32, clock: Clock) -> Result<(), GeneralProtection> {
        let writable = *Lvt::WRITABLE.get(index).ok_or(GeneralProtection)?;
        let mut entry = Lvt::from_bits(value & writable);
        if value & !(writable | Lvt::READ_ONLY) != 0 {
            return Err(GeneralProtection);
        }
        if index == TIMER {
            let mode = match entry.timer_mode() {
                0 => Mode::OneShot,
                1 => Mode::Periodic,
                2 if self.settings.tsc_deadline => Mode::TscDeadline,
                _ => return Err(GeneralProtection),
            };
            // If the timer is due already, its interrupt is delivered, or lost, by the old entry.
            self.expire(clock);
            self.timer.set_mode(mode);
        }
        if !self.svr.enabled() {
            entry.set_mask(true);
        }
        *self.lvt.get_mut(index).ok_or(GeneralProtection)? = entry;
        Ok(())
    }

    /// Records an error and raises the error interrupt. An illegal vector in that entry is an error too, but it raises
    /// no further interrupt.
    fn error(&mut self, bit: u8) {
        self.errors |= bit;
        let entry = self.lvt[ERROR];
        if entry.mask() {
            return;
        }
        if entry.vector() < FIRST_VECTOR {
            self.errors |= RECEIVE_ILLEGAL_VECTOR;
        } else {
            self.accept(entry.vector(), false);
        }
    }

    /// Takes an edge-triggered interrupt. Returns false if the APIC is software-disabled or the vector is illegal.
    pub fn deliver(&mut self, vector: u8) -> bool {
        self.accept(vector, false)
    }

    /// Returns the processor priority (11.8.3.1): the higher of TPR and the class of the highest interrupt in service.
    #[must_use]
    pub fn ppr(&self) -> u8 {
        let in_service = self.isr.highest().unwrap_or(0);
        if self.tpr >> 4 >= in_service >> 4 { self.tpr } else { in_service & 0xf0 }
    }

    /// Returns the interrupt to inject next: the highest requested one, if its class is above the processor's priority.
    /// Such an interrupt also ends HLT if IF is set.
    #[must_use]
    pub fn next_interrupt(&self) -> Option<u8> {
        self.irr.highest().filter(|vector| vector >> 4 > self.ppr() >> 4)
    }

    /// Moves `vector` from IRR to ISR, because it is injected. Does nothing if it is not requested.
    pub fn acknowledge(&mut self, vector: u8) {
        if self.irr.get(vector) {
            self.irr.set(vector, false);
            self.isr.set(vector, true);
        }
    }

    fn end_of_interrupt(&mut self) -> Effect {
        let Some(vector) = self.isr.highest() else { return Effect::None };
        self.isr.set(vector, false);
        if self.tmr.get(vector) { Effect::EndOfInterrupt(vector) } else { Effect::None }
    }

    /// Returns CR8: the upper half of TPR (11.8.6).
    #[must_use]
    pub fn cr8(&self) -> u64 {
        u64::from(self.tpr >> 4)
    }

    /// Handles MOV to CR8. It also clears the lower half of TPR.
    ///
    /// # Errors
    /// A bit above 3 is set.
    pub fn set_cr8(&mut self, value: u64) -> Result<(), GeneralProtection> {
        if value > 0xf {
            return Err(GeneralProtection);
        }
        self.tpr = (value as u8) << 4;
        Ok(())
    }

    /// Returns the host's TSC at which [`LocalApic::expire`] must be called next. Returns `None` while the timer is
    /// stopped or masked.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        if self.lvt[TIMER].mask() { None } else { self.timer.deadline() }
    }

    /// Returns deadline and vector of the timer if another core can watch it. That is so if the timer's end is only an
    /// interrupt.
    #[must_use]
    pub fn postable_timer(&self) -> Option<(u64, u8)> {
        let vector = self.lvt[TIMER].vector();
        let postable = self.svr.enabled() && vector >= FIRST_VECTOR && !self.timer.is_periodic();
        self.deadline().filter(|_| postable).map(|deadline| (deadline, vector))
    }

    /// Notes that the guest's TSC has changed against the host's. The timer's deadline is in the guest's.
    pub fn tsc_moved(&mut self, clock: Clock) {
        self.timer.set_tsc_deadline(self.timer.tsc_deadline(), clock);
    }

    /// Notes that another core has posted the timer's interrupt.
    pub fn timer_has_rung(&mut self) {
        self.timer.stop();
    }

    /// Delivers the timer's interrupt if it is due. Call it before each entry.
    pub fn expire(&mut self, clock: Clock) {
        let entry = self.lvt[TIMER];
        if self.timer.expire(clock.tsc) && !entry.mask() {
            self.accept(entry.vector(), false);
        }
    }
}

impl Accepts for LocalApic {
    fn accept(&mut self, vector: u8, level: bool) -> bool {
        if !self.svr.enabled() {
            return false;
        }
        if vector < FIRST_VECTOR {
            self.error(RECEIVE_ILLEGAL_VECTOR);
            return false;
        }
        self.irr.set(vector, true);
        self.tmr.set(vector, level);
        true
    }
}

#[cfg(test)]
mod tests;
