//! The page on which application processors start: a copy of `ap.s` below 1 MiB, with its parameters. They start there all
//! at once. Each finds its [`Seat`] by its APIC ID.

use core::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Acquire},
};

#[cfg(target_os = "none")]
#[allow(unsafe_code, reason = "the trampoline is assembly; its bytes and offsets are linker symbols")]
mod image {
    unsafe extern "C" {
        static ap_start: u8;
        static ap_parameters: u8;
        static ap_end: u8;
        static ap_offsets: [u32; 2];
    }

    /// The trampoline as assembled, and the offsets in it.
    pub fn template() -> (&'static [u8], super::Offsets) {
        let start = &raw const ap_start as usize;
        let len = &raw const ap_end as usize - start;
        // SAFETY: two words of .rodata, never written.
        let [gdt, long_mode] = unsafe { ap_offsets };
        let offsets = super::Offsets { parameters: &raw const ap_parameters as usize - start, gdt, long_mode };
        // SAFETY: the symbols delimit bytes of .rodata, never written.
        (unsafe { core::slice::from_raw_parts(&raw const ap_start, len) }, offsets)
    }
}
#[cfg(target_os = "none")]
pub use image::template;

/// Offsets in the trampoline, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Offsets {
    /// The parameter block.
    pub parameters: usize,
    /// Its GDT.
    pub gdt: u32,
    /// Its first 64-bit instruction.
    pub long_mode: u32,
}

/// The parameters of all application processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Physical address of the page with the trampoline: 4 KiB aligned, below 1 MiB.
    pub page: u32,
    /// The page tables, below 4 GiB (CR3 is loaded in 32-bit mode).
    pub cr3: u32,
    /// Address of the first [`Seat`] in these page tables.
    pub seats: u64,
    /// Number of seats.
    pub count: u64,
    /// `extern "C" fn(u64) -> !`. Its argument is the one of the seat.
    pub entry: u64,
}

/// The place of one application processor. `ap.s` reads and writes it, so the layout is fixed: 32 bytes; APIC ID, state, stack,
/// argument at the offsets 0, 4, 8 and 16.
///
/// ```text
///  free ──ap.s──▶ taken ──Seat::started──▶ started
///    └──────────────┴────Seat::withdraw──▶ withdrawn: a processor that comes now halts
/// ```
#[derive(Debug)]
#[repr(C)]
pub struct Seat {
    apic_id: u32,
    state: AtomicU32,
    stack: u64,
    argument: u64,
    unused: u64,
}

const _: () = assert!(size_of::<Seat>() == 32, "ap.s goes from seat to seat by 32 bytes");

/// States of a seat. `ap.s` knows the first two.
const FREE: u32 = 0;
const TAKEN: u32 = 1;
const STARTED: u32 = 2;
/// Withdrawn when it was free.
const SILENT: u32 = 3;
/// Withdrawn when it was taken.
const STUCK: u32 = 4;

/// What has become of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nothing yet: nobody has withdrawn the seat.
    Open,
    /// It runs.
    Started,
    /// It has not come.
    Silent,
    /// It has come, and has not reached [`Seat::started`].
    Stuck,
}

impl Seat {
    /// A free seat. `stack`: top of the processor's stack. `argument`: what its entry gets.
    #[must_use]
    pub const fn new(apic_id: u32, stack: u64, argument: u64) -> Self {
        Self { apic_id, state: AtomicU32::new(FREE), stack, argument, unused: 0 }
    }

    /// The APIC ID of its processor.
    #[must_use]
    pub const fn apic_id(&self) -> u32 {
        self.apic_id
    }

    /// Whether the processor has come.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.state.load(Acquire) != FREE
    }

    /// What has become of the processor.
    #[must_use]
    pub fn fate(&self) -> Fate {
        match self.state.load(Acquire) {
            STARTED => Fate::Started,
            SILENT => Fate::Silent,
            STUCK => Fate::Stuck,
            _ => Fate::Open,
        }
    }

    /// The processor says that it runs. Returns false if the seat was withdrawn meanwhile: then it has to halt for ever.
    #[must_use]
    pub fn started(&self) -> bool {
        self.state.compare_exchange(TAKEN, STARTED, AcqRel, Acquire).is_ok()
    }

    /// Takes the seat away from a processor that does not run. Returns its fate.
    pub fn withdraw(&self) -> Fate {
        for (from, to) in [(FREE, SILENT), (TAKEN, STUCK)] {
            // A seat goes from free to taken only, so one of the two exchanges succeeds unless the processor runs.
            let _ = self.state.compare_exchange(from, to, AcqRel, Acquire);
        }
        self.fate()
    }

    /// What `ap.s` does: takes a free seat.
    #[cfg(test)]
    pub(crate) fn take(&self) -> bool {
        self.state.compare_exchange(FREE, TAKEN, AcqRel, Acquire).is_ok()
    }
}

/// Length of the parameter block in bytes.
const BLOCK: usize = 4 + 6 + 6 + 24;

impl Parameters {
    /// The parameter block in the layout of `ap.s`: GDT base, far pointer to 64-bit code, CR3, then (8-byte aligned in
    /// the page) address and number of the seats, entry. `at` is the block's own offset in the page.
    #[must_use]
    pub fn block(&self, offsets: &Offsets) -> ([u8; BLOCK + 8], usize) {
        let mut b = [0; BLOCK + 8];
        b[0..4].copy_from_slice(&(self.page + offsets.gdt).to_le_bytes());
        b[4..8].copy_from_slice(&(self.page + offsets.long_mode).to_le_bytes());
        b[8..10].copy_from_slice(&8u16.to_le_bytes());
        b[10..14].copy_from_slice(&self.cr3.to_le_bytes());
        let quads = (offsets.parameters + 16).next_multiple_of(8) - offsets.parameters;
        b[quads..quads + 8].copy_from_slice(&self.seats.to_le_bytes());
        b[quads + 8..quads + 16].copy_from_slice(&self.count.to_le_bytes());
        b[quads + 16..quads + 24].copy_from_slice(&self.entry.to_le_bytes());
        (b, quads + 24)
    }
}

#[cfg(test)]
mod tests {
    use super::{Offsets, Parameters};

    #[test]
    fn the_quads_are_aligned_in_the_page_wherever_the_block_starts() {
        for parameters in 0x70..0x90 {
            let offsets = Offsets { parameters, gdt: 0x58, long_mode: 0x40 };
            let p = Parameters { page: 0x8000, cr3: 0x30_0000, seats: 1, count: 2, entry: 3 };
            let (block, len) = p.block(&offsets);
            assert_eq!((parameters + len) % 8, 0, "the block ends with an aligned quad");
            assert_eq!(block[len - 8], 3);
            assert_eq!(block[len - 16], 2);
            assert_eq!(block[len - 24], 1);
            assert_eq!(block[0..4], 0x8058u32.to_le_bytes());
        }
    }
}
