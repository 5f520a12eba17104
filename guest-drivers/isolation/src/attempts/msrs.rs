//! Reads and writes every MSR. A read and a write of an MSR that is not on this guest's lists must raise #GP. A write
//! of a read-only MSR must raise #GP.
//!
//! The lists are repeated here on purpose. So this test finds an MSR that the hypervisor passes by mistake. The numbers
//! are those of SDM vol. 4 and APM vol. 2 appendix A.

use crate::report::Report;
use bare::cpu;

const GENERAL_PROTECTION: u8 = 13;

/// The CPU's vendor, by CPUID.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Vendor {
    Intel,
    Amd,
}

fn vendor() -> Vendor {
    if cpu::is_intel() { Vendor::Intel } else { Vendor::Amd }
}

fn has_tsc_deadline() -> bool {
    cpu::cpuid(1).ecx & 1 << 24 != 0
}

fn has_tsc_adjust() -> bool {
    cpu::cpuid(7).ebx & 1 << 1 != 0
}

/// The accesses to a register that a guest may make.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    None,
    Read,
    Write,
    ReadWrite,
}

fn access(number: u32, vendor: Vendor, lenient: bool) -> Access {
    use Access::{None, Read, ReadWrite, Write};
    match number {
        // IA32_TSC_DEADLINE, and the EOI register.
        0x6e0 | 0x80b if lenient => ReadWrite,
        // IA32_APIC_BASE, SYSENTER, DEBUGCTL, PAT, MTRR_DEF_TYPE
        0x1b | 0x174..=0x176 | 0x1d9 | 0x277 | 0x2ff => ReadWrite,
        0x6e0 if has_tsc_deadline() => ReadWrite,
        // EFER, STAR to FMASK, FS_BASE, GS_BASE, KERNEL_GS_BASE, TSC_AUX
        0xc000_0080..=0xc000_0084 | 0xc000_0100..=0xc000_0103 => ReadWrite,
        // The x2APIC's: TPR, SVR, ESR, ICR, LVTs and initial count, divide; read-only ones; EOI and SELF IPI
        0x808 | 0x80f | 0x828 | 0x830 | 0x832..=0x838 | 0x83e => ReadWrite,
        0x802 | 0x803 | 0x80a | 0x80d | 0x810..=0x827 | 0x839 => Read,
        0x80b | 0x83f => Write,
        // TSC and TSC_ADJUST. A guest with the physical timer may not write the TSC, and lacks TSC_ADJUST.
        0x10 | 0x3b if has_tsc_adjust() => ReadWrite,
        // TSC, MTRRCAP
        0x10 | 0xfe => Read,
        // Microcode level. On Intel a write prepares its read.
        0x8b if vendor == Vendor::Intel => ReadWrite,
        0x8b => Read,
        // PLATFORM_ID, EBL_CR_POWERON, FEATURE_CONTROL; MISC_ENABLE
        0x17 | 0x2a | 0x3a if vendor == Vendor::Intel => Read,
        0x1a0 if vendor == Vendor::Intel => ReadWrite,
        // Legacy performance counters. A write has no effect.
        0xc001_0000..=0xc001_0007 if vendor == Vendor::Amd => ReadWrite,
        // NB_CFG. A write has no effect.
        0xc001_001f if vendor == Vendor::Amd => ReadWrite,
        // SYSCFG, HWCR, INT_PENDING, DE_CFG
        0xc001_0010 | 0xc001_0015 | 0xc001_0055 | 0xc001_1029 if vendor == Vendor::Amd => Read,
        // KVM's clock pages
        0x4b56_4d00 | 0x4b56_4d01 => Write,
        _ => None,
    }
}

/// Tries the ranges that a CPU's MSR bitmap covers, and the ranges of hypervisors. `lenient`: leaves out what an
/// emulator's local APIC accepts.
pub fn sweep(lenient: bool, report: &mut Report) {
    let vendor = vendor();
    let ranges = [
        0..0x2000,
        0x4000_0000..0x4000_0200,
        0x4b56_4d00..0x4b56_4d20,
        0xc000_0000..0xc000_2000,
        0xc001_0000..0xc001_2000,
        0xffff_ff00..0xffff_ffff,
    ];
    for number in ranges.into_iter().flatten() {
        let access = access(number, vendor, lenient);
        if matches!(access, Access::None | Access::Write) {
            let result = cpu::read_msr(number);
            report.attempt(result == Err(GENERAL_PROTECTION), format_args!("RDMSR {number:#x}: {result:x?}"));
        }
        if matches!(access, Access::None | Access::Read) {
            let result = cpu::write_msr(number, 0);
            report.attempt(result == Err(GENERAL_PROTECTION), format_args!("WRMSR {number:#x}: {result:x?}"));
        }
    }
}

/// Writes values that registers on the lists must not accept. `lenient`: as for `sweep`. `lenient_divide`: leaves out
/// the divide configuration.
pub fn values(lenient: bool, lenient_divide: bool, report: &mut Report) {
    const EFER: u32 = 0xc000_0080;
    let efer = cpu::read_msr(EFER).unwrap_or_else(|vector| {
        report.broken(format_args!("RDMSR EFER: exception {vector}"));
        0x500
    });
    let base = cpu::read_msr(0x1b).unwrap_or_else(|vector| {
        report.broken(format_args!("RDMSR APIC_BASE: exception {vector}"));
        0
    });
    let forbidden = [
        // SVM on; reserved bits; long mode off while paging is on.
        (EFER, efer | 1 << 12),
        (EFER, efer | 1 << 9),
        (EFER, efer | 1 << 63),
        (EFER, efer & !(1 << 8)),
        // Out of x2APIC mode, off, elsewhere, reserved bits.
        (0x1b, base & !(1 << 10)),
        (0x1b, base & !(3 << 10)),
        (0x1b, base ^ 0x1000),
        (0x1b, base | 1),
        // Memory types 2 and 3 do not exist.
        (0x277, 0x0007_0406_0007_0402),
        (0x277, 0x0307_0406_0007_0406),
        (0x2ff, 0x802),
        (0x2ff, 1 << 20),
        // Last branch records and branch trace.
        (0x1d9, 1),
        (0x1d9, 1 << 6),
        // The APIC's: reserved bits, read-only registers.
        (0x80f, 0x1_0000),
        (0x832, 1 << 20),
        (0x802, 1),
        (0x83f, 0x100),
    ];
    // The same for registers that a guest with the CPU's own APIC writes without an exit. Two of them accept only 0.
    let own = [(0x808, 0x100), (0x80b, 1), (0x828, 1)];
    let own = if lenient { &[][..] } else { &own };
    let divide = if lenient_divide { &[][..] } else { &[(0x83e, 0x10)] };
    for &(number, value) in forbidden.iter().chain(own).chain(divide) {
        let result = cpu::write_msr(number, value);
        report.attempt(result == Err(GENERAL_PROTECTION), format_args!("WRMSR {number:#x} of {value:#x}: {result:?}"));
    }
}
