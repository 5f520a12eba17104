//! The tables of a guest's MSRs: three lists (read-write, read-only, write-only), with the kind of each entry. Any
//! other MSR is #GP, as on a CPU that lacks the register.
//!
//! Follows SDM vol. 4 ch. 2 and APM vol. 2 appendix A. Some registers Linux reads with `rdmsr` and not with
//! `rdmsr_safe`, so it does not survive their absence. For these, the tables follow arch/x86/kernel/cpu of Linux 6.1
//! and 6.12, and each such entry says so.

use crate::{cpuid::Vendor, vcpu::Interrupts};
use core::ops::RangeInclusive;

/// How an MSR is implemented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The guest accesses the physical register without an exit, because the back-ends open their bitmaps for it. On
    /// the read-only list this holds only for reads.
    PassThrough,
    /// The back-end keeps it. See [`Vcpu::msr`](crate::vcpu::Vcpu::msr) and `set_msr`.
    BackEnd,
    /// It belongs to the virtual local APIC.
    LocalApic,
    /// It always reads as this value. On the read-write list, a write is accepted if it does not change the value.
    Fixed(u64),
    /// It always reads as this value. Any write is accepted and has no effect.
    Ignored(u64),
    /// IA32_MTRR_DEF_TYPE. It is kept per vCPU and has no effect: memory is always write-back, because of nested
    /// paging, and the guest has no device of the host.
    MtrrDefaultType,
    /// IA32_MISC_ENABLE. It is kept per vCPU and has no effect ([`misc_enable_after`]).
    MiscEnable,
    /// IA32_TIME_STAMP_COUNTER. A write changes the offset of the guest's TSC, if the guest's completion mode can follow.
    Tsc,
    /// IA32_TSC_ADJUST. A guest that owns its local APIC does not have it.
    TscAdjust,
    /// IA32_SPEC_CTRL. The back-end keeps it. [`Cpuid::spec_ctrl`](crate::cpuid::Cpuid::spec_ctrl) says what may be written.
    SpecCtrl,
    /// IA32_PRED_CMD. The guest writes the physical register, if its CPUID has it.
    PredCmd,
    /// IA32_ARCH_CAPABILITIES, if the guest's CPUID has it.
    ArchCapabilities,
    /// MSR_KVM_WALL_CLOCK_NEW.
    WallClock,
    /// MSR_KVM_SYSTEM_TIME_NEW.
    SystemTime,
}

/// Which guests have a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Only {
    /// All guests.
    Any,
    /// Guests whose CPUID says Intel.
    Intel,
    /// Guests whose CPUID says AMD.
    Amd,
}

/// A line of one of the lists.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// First register.
    pub first: u32,
    /// Last register, the same for most.
    pub last: u32,
    /// Which guests have it.
    pub only: Only,
    /// How it is implemented.
    pub kind: Kind,
}

/// IA32_SYSENTER_CS.
pub const SYSENTER_CS: u32 = 0x174;
/// IA32_SYSENTER_ESP.
pub const SYSENTER_ESP: u32 = 0x175;
/// IA32_SYSENTER_EIP.
pub const SYSENTER_EIP: u32 = 0x176;
/// IA32_PAT.
pub const PAT: u32 = 0x277;
/// IA32_EFER.
pub const EFER: u32 = 0xc000_0080;
/// IA32_STAR.
pub const STAR: u32 = 0xc000_0081;
/// IA32_LSTAR.
pub const LSTAR: u32 = 0xc000_0082;
/// CSTAR.
pub const CSTAR: u32 = 0xc000_0083;
/// IA32_FMASK, the APM's SFMASK.
pub const SFMASK: u32 = 0xc000_0084;
/// IA32_FS_BASE.
pub const FS_BASE: u32 = 0xc000_0100;
/// IA32_GS_BASE.
pub const GS_BASE: u32 = 0xc000_0101;
/// IA32_KERNEL_GS_BASE.
pub const KERNEL_GS_BASE: u32 = 0xc000_0102;

const fn one(number: u32, only: Only, kind: Kind) -> Entry {
    Entry { first: number, last: number, only, kind }
}

use Kind::{
    ArchCapabilities, BackEnd, Fixed, Ignored, LocalApic, MiscEnable, MtrrDefaultType, PassThrough, PredCmd, SpecCtrl,
    SystemTime, Tsc, TscAdjust, WallClock,
};
use Only::{Amd, Any, Intel};

/// IA32_MTRR_DEF_TYPE at the start of a guest: E and write-back. Without E, Linux does not use PAT.
pub const MTRR_DEFAULT_TYPE_RESET: u64 = 0x806;

/// IA32_MISC_ENABLE at the start of a guest: fast strings (without them Linux drops ERMS), no BTS, no PEBS.
pub const MISC_ENABLE_RESET: u64 = 0x1801;
/// The bits of IA32_MISC_ENABLE that a guest may change: fast strings (0), thermal control (3), SpeedStep (16), xTPR
/// messages off (23). They change nothing that the guest could see, so they are kept and have no effect.
const MISC_ENABLE_KEPT: u64 = 1 | 1 << 3 | 1 << 16 | 1 << 23;
/// Its read-only bits: performance monitoring (7), no BTS (11), no PEBS (12). Writes of them are ignored (SDM vol. 4
/// table 2-2).
const MISC_ENABLE_READ_ONLY: u64 = 1 << 7 | 1 << 11 | 1 << 12;

/// Returns IA32_MISC_ENABLE after a write of `new`. Returns `None` if the write is #GP: a reserved bit, or a bit that
/// would have to change CPUID, which stays as it is here (MONITOR (18), the limit of CPUID (22), XD off (34)).
#[must_use]
pub const fn misc_enable_after(old: u64, new: u64) -> Option<u64> {
    if (old ^ new) & !(MISC_ENABLE_KEPT | MISC_ENABLE_READ_ONLY) != 0 {
        return None;
    }
    Some(old & !MISC_ENABLE_KEPT | new & MISC_ENABLE_KEPT)
}

/// MSRs that a guest may read and write.
pub const READ_WRITE: &[Entry] = &[
    // Entry points and bases. The host never runs SYSCALL, SYSENTER or SWAPGS. So the guest's values in the physical
    // registers do no harm until the vCPU is reset. FS, GS and the SYSENTER registers are in the VMCB or VMCS anyway.
    Entry { first: 0x174, last: 0x176, only: Any, kind: PassThrough }, // IA32_SYSENTER_CS, _ESP, _EIP
    Entry { first: 0xc000_0081, last: 0xc000_0084, only: Any, kind: PassThrough }, // STAR LSTAR CSTAR FMASK
    Entry { first: 0xc000_0100, last: 0xc000_0102, only: Any, kind: PassThrough }, // FS_BASE GS_BASE KERNEL_GS_BASE
    // Only RDTSCP and RDPID read it, and the host does not use them.
    one(0xc000_0103, Any, PassThrough), // TSC_AUX
    // The host's values differ. So the back-end checks a value and switches it at the entry.
    one(0xc000_0080, Any, BackEnd), // EFER
    one(0x277, Any, BackEnd),       // IA32_PAT
    // The virtual local APIC: the whole range, even where no register exists.
    one(0x1b, Any, LocalApic),  // IA32_APIC_BASE
    one(0x6e0, Any, LocalApic), // IA32_TSC_DEADLINE
    Entry { first: 0x800, last: 0x8ff, only: Any, kind: LocalApic },
    // RDTSC does not exit. Few read these registers, so both exit.
    one(0x10, Any, Tsc),              // IA32_TIME_STAMP_COUNTER
    one(0x3b, Any, TscAdjust),        // IA32_TSC_ADJUST
    one(0x2ff, Any, MtrrDefaultType), // IA32_MTRR_DEF_TYPE; Linux clears and restores it around each PAT set-up
    // Microcode: Linux on Intel writes 0 before it reads the revision.
    one(0x8b, Intel, Ignored(0x1_0000_0000)), // IA32_BIOS_SIGN_ID
    // NB_CFG: Linux on AMD sets the bit for extended configuration space through 0xCF8, with `wrmsr` and not with
    // `wrmsr_safe`. Here ECAM reaches the space beyond 256 bytes, so the bit does not stay set.
    one(0xc001_001f, Amd, Ignored(0)),
    one(0x1a0, Intel, MiscEnable), // IA32_MISC_ENABLE; Linux on Intel reads it with `rdmsr`
    // AMD's four legacy performance counters and their selects have no CPUID bit: every AMD CPU has them. Here they
    // do not count. They read as 0, so that Linux, which writes a counter and reads it back, finds that it has none.
    Entry { first: 0xc001_0000, last: 0xc001_0007, only: Amd, kind: Ignored(0) }, // PERF_CTL0-3, PERF_CTR0-3
    // The back-end passes it through where an exit writes the host's value anyway.
    one(0x48, Any, SpecCtrl), // IA32_SPEC_CTRL
    // Branch and last-branch tracing: absent, so always off.
    one(0x1d9, Any, Fixed(0)), // IA32_DEBUGCTL
];

/// MSRs that a guest may only read.
pub const READ_ONLY: &[Entry] = &[
    one(0xfe, Any, Fixed(0)), // IA32_MTRRCAP: no variable ranges, no fixed ones, no write-combining
    one(0x8b, Amd, Fixed(0x0100_0065)), // PATCH_LEVEL
    one(0x10a, Any, ArchCapabilities), // IA32_ARCH_CAPABILITIES
    // Linux on Intel reads these with `rdmsr`:
    one(0x17, Intel, Fixed(0)), // IA32_PLATFORM_ID, for the microcode's revision
    one(0x3a, Intel, Fixed(1)), // IA32_FEATURE_CONTROL: locked, all off
    one(0x2a, Intel, Fixed(0)), // IA32_EBL_CR_POWERON
    // Linux on AMD reads these with `rdmsr`:
    one(0xc001_0015, Amd, Fixed(1 << 24)), // HWCR: TscFreqSel, "the TSC counts at the P0 frequency"
    one(0xc001_0055, Amd, Fixed(0)),       // interrupt pending and CMP-halt (erratum 400, families 0xF to 0x11)
    one(0xc001_0010, Amd, Fixed(0)),       // SYSCFG: no second top of memory, no memory encryption
    // Linux reads this with `rdmsr_safe`, but reports a bug without it: LFENCE serializes.
    one(0xc001_1029, Amd, Fixed(0b10)), // DE_CFG
];

/// MSRs that a guest may only write.
pub const WRITE_ONLY: &[Entry] = &[
    one(0x49, Any, PredCmd), // IA32_PRED_CMD: it has no state, so the back-end passes it through
    one(crate::clock::WALL_CLOCK_NEW, Any, WallClock),
    one(crate::clock::SYSTEM_TIME_NEW, Any, SystemTime),
];

fn find(list: &[Entry], number: u32, vendor: Vendor) -> Option<Kind> {
    list.iter().find(|e| e.first <= number && number <= e.last && e.only.includes(vendor)).map(|e| e.kind)
}

impl Only {
    fn includes(self, vendor: Vendor) -> bool {
        match self {
            Any => true,
            Intel => vendor == Vendor::Intel,
            Amd => vendor == Vendor::Amd,
        }
    }
}

/// Returns how a register is read, or `None` for #GP.
#[must_use]
pub fn readable(number: u32, vendor: Vendor) -> Option<Kind> {
    find(READ_WRITE, number, vendor).or_else(|| find(READ_ONLY, number, vendor))
}

/// Returns how a register is written, or `None` for #GP.
#[must_use]
pub fn writable(number: u32, vendor: Vendor) -> Option<Kind> {
    find(READ_WRITE, number, vendor).or_else(|| find(WRITE_ONLY, number, vendor))
}

/// Registers of a local APIC that a guest which owns it may read and write, or write, without an exit. None of these
/// lets the guest affect another core, stop the host's NMIs, or receive what is for others. The ICR, the SVR, the LVTs,
/// the ID registers, self IPI (it could name an exception's vector) and IA32_APIC_BASE exit and are checked.
pub const OWNED_APIC_READ_WRITE: &[RangeInclusive<u32>] = &[
    0x808..=0x808, // TPR
    0x80b..=0x80b, // EOI
    0x828..=0x828, // ESR
    0x838..=0x838, // initial count
    0x83e..=0x83e, // divide configuration
    0x6e0..=0x6e0, // IA32_TSC_DEADLINE
];

/// Registers of such a local APIC that the guest may only read without an exit.
pub const OWNED_APIC_READ_ONLY: &[RangeInclusive<u32>] = &[
    0x80a..=0x80a, // PPR
    0x810..=0x827, // ISR, TMR, IRR
    0x839..=0x839, // current count
];

/// Returns the registers that a guest accesses without an exit, for the back-ends' bitmaps: the number, and whether
/// writes pass too.
pub fn passed_through(vendor: Vendor, interrupts: Interrupts) -> impl Iterator<Item = (u32, bool)> {
    let pass = move |e: &&Entry| e.kind == PassThrough && e.only.includes(vendor);
    let of = move |list: &'static [RangeInclusive<u32>]| {
        list.iter().cloned().flatten().filter(move |_| interrupts == Interrupts::Owned)
    };
    let written = READ_WRITE.iter().filter(pass).flat_map(|e| e.first..=e.last).chain(of(OWNED_APIC_READ_WRITE));
    let read = READ_ONLY.iter().filter(pass).flat_map(|e| e.first..=e.last).chain(of(OWNED_APIC_READ_ONLY));
    written.map(|n| (n, true)).chain(read.map(|n| (n, false)))
}

/// Whether IA32_MTRR_DEF_TYPE takes a value: its memory type exists, and no reserved bit is set.
#[must_use]
pub fn mtrr_default_type_allowed(value: u64) -> bool {
    value & !0xcff == 0 && matches!(value & 0xff, 0 | 1 | 4 | 5 | 6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_passes_through_is_only_the_guests_own() {
        let passed: Vec<_> = passed_through(Vendor::Amd, Interrupts::Emulated).collect();
        assert_eq!(passed, passed_through(Vendor::Intel, Interrupts::Emulated).collect::<Vec<_>>());
        let written: Vec<_> = passed.iter().filter(|p| p.1).map(|p| p.0).collect();
        assert_eq!(
            written,
            [
                0x174,
                0x175,
                0x176,
                0xc000_0081,
                0xc000_0082,
                0xc000_0083,
                0xc000_0084,
                0xc000_0100,
                0xc000_0101,
                0xc000_0102,
                0xc000_0103
            ]
        );
        assert!(passed.iter().all(|p| p.1));
    }

    #[test]
    fn what_edk2_reads_is_there() {
        // IA32_APIC_BASE, EFER, IA32_MTRRCAP, IA32_MTRR_DEF_TYPE, and on Intel IA32_PLATFORM_ID.
        for (vendor, more) in [(Vendor::Amd, None), (Vendor::Intel, Some(0x17))] {
            for number in [0x1b, 0xc000_0080, 0xfe, 0x2ff, 0x8b].into_iter().chain(more) {
                assert!(readable(number, vendor).is_some(), "{number:#x} for {vendor:?}");
            }
        }
        // No fixed and no variable ranges, which EDK2 would read too.
        assert_eq!(readable(0xfe, Vendor::Intel), Some(Fixed(0)));
        assert_eq!(writable(0x2ff, Vendor::Intel), Some(MtrrDefaultType));
    }

    #[test]
    fn the_lists_do_not_contradict_each_other() {
        let vendors = [Vendor::Intel, Vendor::Amd];
        let all = || READ_WRITE.iter().chain(READ_ONLY).chain(WRITE_ONLY);
        for vendor in vendors {
            for (i, a) in all().enumerate() {
                for b in all().skip(i + 1) {
                    let overlap = a.first <= b.last && b.first <= a.last;
                    assert!(!overlap || !a.only.includes(vendor) || !b.only.includes(vendor), "{a:x?} {b:x?}");
                }
            }
        }
    }

    #[test]
    fn registers_that_the_guest_must_not_have_are_on_no_list() {
        // TEST_CTRL and IA32_CORE_CAPABILITIES, whose bit for split locks is the host's. FLUSH_CMD, TSX_CTRL, MCG_CAP,
        // PERFEVTSEL0, IA32_XSS, VM_CR, VM_HSAVE_PA, VMX capability, SMI count, MTRR bases, GHCB.
        for number in [
            0x33,
            0xcf,
            0x10b,
            0x122,
            0x179,
            0x186,
            0xda0,
            0xc001_0114,
            0xc001_0117,
            0x480,
            0x34,
            0x200,
            0x250,
            0xc001_0130,
        ] {
            for vendor in [Vendor::Intel, Vendor::Amd] {
                assert_eq!(readable(number, vendor), None, "{number:#x}");
                assert_eq!(writable(number, vendor), None, "{number:#x}");
            }
        }
        assert_eq!(readable(crate::clock::SYSTEM_TIME_NEW, Vendor::Amd), None);
    }

    #[test]
    fn vendors_registers_are_their_own() {
        assert_eq!(readable(0xc001_0015, Vendor::Intel), None);
        assert_eq!(readable(0x1a0, Vendor::Amd), None);
        assert_eq!(writable(0x8b, Vendor::Intel), Some(Kind::Ignored(0x1_0000_0000)));
        assert_eq!(writable(0x8b, Vendor::Amd), None);
    }

    proptest! {
        #[test]
        fn the_whole_apic_range_is_the_apics(number in 0x800_u32..0x900) {
            prop_assert_eq!(readable(number, Vendor::Amd), Some(Kind::LocalApic));
            prop_assert_eq!(writable(number, Vendor::Intel), Some(Kind::LocalApic));
        }
    }

    #[test]
    fn misc_enable_takes_what_changes_nothing_and_nothing_else() {
        let old = MISC_ENABLE_RESET;
        assert_eq!(misc_enable_after(old, old), Some(old));
        assert_eq!(misc_enable_after(old, 0x81_1889), Some(0x81_1809), "bit 7 is read-only");
        assert_eq!(misc_enable_after(old, 0), Some(0x1800), "so are 11 and 12");
        for bit in [1, 2, 18, 22, 34, 38, 63] {
            assert_eq!(misc_enable_after(old, old | 1 << bit), None, "bit {bit}");
        }
    }

    #[test]
    fn the_legacy_counters_of_amd_are_there_and_do_not_count() {
        for number in 0xc001_0000..=0xc001_0007 {
            assert_eq!(readable(number, Vendor::Amd), Some(Kind::Ignored(0)), "{number:#x}");
            assert_eq!(writable(number, Vendor::Amd), Some(Kind::Ignored(0)), "{number:#x}");
            assert_eq!(readable(number, Vendor::Intel), None, "{number:#x}");
        }
        assert_eq!(readable(0xc001_0008, Vendor::Amd), None);
    }

    #[test]
    fn only_memory_types_that_exist_are_taken() {
        for good in [0x806, 0x6, 0, 0xc00, 0x801] {
            assert!(mtrr_default_type_allowed(good), "{good:#x}");
        }
        for bad in [0x802, 0x7, 0x100, 0x1000, 1 << 40] {
            assert!(!mtrr_default_type_allowed(bad), "{bad:#x}");
        }
    }
}
