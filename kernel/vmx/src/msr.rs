//! MSRs: the bitmap that says which ones exit (SDM vol. 3C 25.6.9), where the others are kept, and which values EFER,
//! PAT and the bases accept.

use machine::msr::{CSTAR, KERNEL_GS_BASE, SFMASK, STAR};
pub use machine::msr::{EFER, FS_BASE, GS_BASE, LSTAR, PAT, SYSENTER_CS, SYSENTER_EIP, SYSENTER_ESP};
use machine::posted::{READ_FROM_PAGE, WRITTEN_BY_CPU};

/// Where an MSR is kept that the guest writes without an exit. A reset clears it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// In the VMCS: entry and exit switch it.
    Vmcs,
    /// In the physical register, for as long as the guest has the core.
    Register,
    /// In `speculation::Switch`, which the world switch loads and stores.
    Switch,
    /// Nowhere: it is a command.
    Nowhere,
}

/// IA32_SPEC_CTRL.
pub const SPEC_CTRL: u32 = 0x48;
/// IA32_PRED_CMD.
pub const PRED_CMD: u32 = 0x49;
/// IA32_TSC_AUX. It exists only with RDTSCP or RDPID.
pub const TSC_AUX: u32 = 0xc000_0103;
/// IA32_XSS. It exists only with XSAVES.
pub const XSS: u32 = 0xda0;
/// STAR, LSTAR, CSTAR, FMASK and KERNEL_GS_BASE. Every CPU in 64-bit mode has them. The host never uses them.
pub const REGISTERS: [u32; 5] = [STAR, LSTAR, CSTAR, SFMASK, KERNEL_GS_BASE];
/// PAT after reset (SDM vol. 3A table 12-12).
pub const PAT_RESET: u64 = 0x0007_0406_0007_0406;

/// Returns where an MSR is kept. Returns `None` if the back-end doesn't clear it at a reset. Then writes to it must
/// exit.
pub fn kept(number: u32) -> Option<Kept> {
    match number {
        SYSENTER_CS..=SYSENTER_EIP | FS_BASE | GS_BASE => Some(Kept::Vmcs),
        TSC_AUX => Some(Kept::Register),
        SPEC_CTRL => Some(Kept::Switch),
        PRED_CMD => Some(Kept::Nowhere),
        n if REGISTERS.contains(&n) => Some(Kept::Register),
        _ => None,
    }
}

/// The MSR bitmap: first reads of 0 to 0x1fff and of 0xc000_0000 to 0xc000_1fff, then writes of the same. A set bit
/// makes the access exit. An MSR without a bit always exits.
#[repr(C, align(4096))]
pub struct Bitmap(pub [u8; 4096]);

/// Offset of the bits for writes, in bytes.
const WRITES: usize = 2048;

impl Bitmap {
    /// Makes a bitmap with which the given MSRs don't exit. Each is given by its number, and whether writes don't exit
    /// either.
    pub fn new(passed: impl Iterator<Item = (u32, bool)>) -> Self {
        let mut bits = [0xff; 4096];
        for (number, writes) in passed {
            let Some((byte, mask)) = position(number) else { continue };
            clear(&mut bits, byte, mask);
            if writes && (kept(number).is_some() || is_apic(number)) {
                clear(&mut bits, byte.saturating_add(WRITES), mask);
            } else if writes {
                log::warn!("MSR {number:#x} is to be written by guests, but nothing clears it between two: it exits.");
            }
        }
        Self(bits)
    }

    /// Returns the bitmap for a guest whose local APIC the CPU virtualizes: accesses that the CPU handles don't exit
    /// either.
    #[must_use]
    pub fn with_virtual_apic(mut self) -> Self {
        let bits = &mut self.0;
        for (byte, mask) in READ_FROM_PAGE.iter().cloned().flatten().filter_map(position) {
            clear(bits, byte, mask);
        }
        for (byte, mask) in WRITTEN_BY_CPU.iter().copied().filter_map(position) {
            clear(bits, byte.saturating_add(WRITES), mask);
        }
        self
    }
}

/// Whether an MSR belongs to the local APIC. The kernel resets the APIC before and after a guest that owns it.
fn is_apic(number: u32) -> bool {
    matches!(number, 0x6e0 | 0x800..=0x8ff)
}

fn clear(bits: &mut [u8; 4096], byte: usize, mask: u8) {
    if let Some(byte) = bits.get_mut(byte) {
        *byte &= !mask;
    }
}

fn position(number: u32) -> Option<(usize, u8)> {
    let (start, index) = match number {
        0..=0x1fff => (0, number),
        0xc000_0000..=0xc000_1fff => (1024, number.wrapping_sub(0xc000_0000)),
        _ => return None,
    };
    Some(((index as usize / 8).saturating_add(start), 1 << (index % 8)))
}

/// Whether every byte of a value for PAT is a memory type that exists (SDM vol. 3A 12.12.2).
pub fn pat_allowed(value: u64) -> bool {
    value.to_le_bytes().iter().all(|t| matches!(t, 0 | 1 | 4 | 5 | 6 | 7))
}

/// Whether an address is canonical with 48 bits. The next entry fails with a base that is not.
pub fn canonical(address: u64) -> bool {
    (address as i64) << 16 >> 16 == address as i64
}

/// Returns EFER after the guest writes `new` to it. Returns `None` if the write raises #GP. `offered`: the bits that
/// the guest may set. LMA follows LME and paging, and can't be written. LME can't change while paging is on (SDM vol.
/// 3A 2.2.1, 11.8.5).
pub fn new_efer(old: u64, new: u64, offered: u64, paging: bool) -> Option<u64> {
    use crate::control_registers::{LMA, LME};
    let reserved = new & !(offered | LMA) != 0;
    let switches = paging && (old ^ new) & LME != 0;
    (!reserved && !switches).then_some(new & !LMA | old & LMA)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exits(bitmap: &Bitmap, number: u32, write: bool) -> bool {
        let (byte, mask) = position(number).unwrap();
        bitmap.0[byte + if write { WRITES } else { 0 }] & mask != 0
    }

    #[test]
    fn of_a_virtual_apic_only_what_the_cpu_carries_out_passes() {
        let bitmap = Bitmap::new([].into_iter()).with_virtual_apic();
        for (number, read, write) in [
            (0x802, true, false),  // ID
            (0x808, true, true),   // TPR
            (0x80a, true, false),  // PPR
            (0x80b, false, true),  // EOI
            (0x801, false, false), // not there
            (0x828, true, false),  // ESR
            (0x830, true, false),  // ICR
            (0x839, false, false), // current count
            (0x83f, false, true),  // self IPI
            (0x6e0, false, false), // TSC deadline
        ] {
            assert_eq!((exits(&bitmap, number, false), exits(&bitmap, number, true)), (!read, !write), "{number:#x}");
        }
    }

    #[test]
    fn only_what_is_listed_passes() {
        let bitmap = Bitmap::new([(0x10, false), (0xc000_0102, true), (0x4000_0000, true)].into_iter());
        assert!(!exits(&bitmap, 0x10, false));
        assert!(exits(&bitmap, 0x10, true));
        assert!(!exits(&bitmap, 0xc000_0102, false));
        assert!(!exits(&bitmap, 0xc000_0102, true));
        let open: u32 = bitmap.0.iter().map(|b| b.count_zeros()).sum();
        assert_eq!(open, 3, "and nothing else");
        assert_eq!(bitmap.0[2048 + 1024 + 0x102 / 8] & 1 << (0x102 % 8), 0, "the manual's place for it");
    }

    #[test]
    fn an_msr_that_no_reset_clears_is_not_opened_for_writing() {
        let bitmap = Bitmap::new([(0x1d9, true)].into_iter());
        assert!(!exits(&bitmap, 0x1d9, false));
        assert!(exits(&bitmap, 0x1d9, true));
    }

    #[test]
    fn everything_on_the_machines_list_is_kept_somewhere() {
        for (number, writes) in
            machine::msr::passed_through(machine::cpuid::Vendor::Intel, machine::vcpu::Interrupts::Emulated)
        {
            assert!(!writes || kept(number).is_some(), "{number:#x}");
        }
    }

    #[test]
    fn efer_follows_the_rules_of_long_mode() {
        let offered = 0x901;
        assert_eq!(new_efer(0, 0x100, offered, false), Some(0x100));
        assert_eq!(new_efer(0x500, 0xd01, offered, true), Some(0xd01));
        assert_eq!(new_efer(0x500, 0x901, offered, true), Some(0xd01), "LMA is not the guest's to clear");
        assert_eq!(new_efer(0, 0x400, offered, false), Some(0), "nor to set");
        assert_eq!(new_efer(0x500, 0x1, offered, true), None, "LME under paging");
        assert_eq!(new_efer(0, 0x1000, offered, false), None, "SVME");
    }

    #[test]
    fn memory_types_that_do_not_exist_are_refused() {
        assert!(pat_allowed(PAT_RESET));
        assert!(!pat_allowed(0x0007_0406_0007_0402));
        assert!(!pat_allowed(0xff00_0000_0000_0000));
    }

    #[test]
    fn bases_beyond_48_bits_are_not_canonical() {
        assert!(canonical(0x7fff_ffff_ffff) && canonical(0xffff_8000_0000_0000));
        assert!(!canonical(0x8000_0000_0000) && !canonical(1 << 63));
    }
}
