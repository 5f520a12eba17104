//! Tests which MSRs exist and which values they accept (SDM vol. 4 ch. 2, APM vol. 2 appendix A). It tests some of each
//! kind. The isolation guest tests all numbers.

use bare::cpu::{cpuid, read_msr, write_msr};

use crate::apic::msr;
use crate::report::{Outcome, ensure, equal};

const REFUSED: u8 = 13;
const EFER: u32 = 0xc000_0080;
const PAT: u32 = 0x277;

pub fn read_only_registers_refuse_a_write() -> Outcome {
    const MTRR_CAP: u32 = 0xfe;
    let apic = [msr::ID, msr::VERSION, msr::PPR, msr::LDR, msr::ISR, msr::TMR, msr::IRR + 7, msr::CURRENT_COUNT];
    for number in apic.into_iter().chain([MTRR_CAP]) {
        let read = read_msr(number);
        ensure!(read.is_ok(), "RDMSR {number:#x}: {read:?}");
        let written = write_msr(number, 0);
        ensure!(written == Err(REFUSED), "WRMSR {number:#x}: {written:?}");
    }
    Ok(())
}

pub fn write_only_registers_refuse_a_read() -> Outcome {
    // Not EOI: a guest that owns its APIC asks the CPU itself, and QEMU's answers.
    for number in [msr::SELF_IPI, 0x4b56_4d00, 0x4b56_4d01] {
        let read = read_msr(number);
        ensure!(read == Err(REFUSED), "RDMSR {number:#x}: {read:x?}");
    }
    Ok(())
}

pub fn unknown_registers_are_absent() -> Outcome {
    // FLUSH_CMD, a performance counter, VMX_BASIC, IA32_XSS, the APIC's holes, VM_CR, VM_HSAVE_PA, and
    // numbers that nobody has.
    for number in
        [0x10b, 0xc1, 0x186, 0x480, 0xda0, 0x80c, 0x82f, 0x840, 0x8ff, 0xc001_0114, 0xc001_0117, 0x1234_5678, u32::MAX]
    {
        let (read, written) = (read_msr(number), write_msr(number, 0));
        ensure!(read == Err(REFUSED) && written == Err(REFUSED), "{number:#x}: {read:x?}, {written:?}");
    }
    Ok(())
}

pub fn registers_of_speculation_control_follow_cpuid() -> Outcome {
    let (seven, eight) = (cpuid(7).edx, if cpuid(0x8000_0000).eax < 0x8000_0008 { 0 } else { cpuid(0x8000_0008).ebx });
    // SPEC_CTRL: IBRS, STIBP or SSBD. PRED_CMD: IBPB, only written. ARCH_CAPABILITIES: only read.
    let spec_ctrl = seven & (1 << 26 | 1 << 27 | 1 << 31) != 0 || eight & (1 << 14 | 1 << 15 | 1 << 24 | 1 << 28) != 0;
    let pred_cmd = seven & 1 << 26 != 0 || eight & 1 << 12 != 0;
    let arch_capabilities = seven & 1 << 29 != 0;
    for (number, readable, writable) in
        [(0x48, spec_ctrl, spec_ctrl), (0x49, false, pred_cmd), (0x10a, arch_capabilities, false)]
    {
        let (read, written) = (read_msr(number), write_msr(number, 0));
        ensure!(read.is_ok() == readable && written.is_ok() == writable, "{number:#x}: {read:x?}, {written:?}");
    }
    let written = write_msr(0x48, 1 << 63);
    ensure!(written == Err(REFUSED), "a reserved bit of SPEC_CTRL: {written:?}");
    Ok(())
}

pub fn reserved_bits_are_refused() -> Outcome {
    let efer = read_msr(EFER).unwrap_or(0);
    // SVME and a reserved bit; long mode off while paging; a memory type that does not exist; APIC registers.
    for (number, value) in [
        (EFER, efer | 1 << 12),
        (EFER, efer | 1 << 9),
        (EFER, efer & !(1 << 8)),
        (PAT, 0x0007_0406_0007_0402),
        (msr::SVR, 1 << 16),
        (msr::ICR, 1 << 13 | 0x41),
        (msr::LVT_TIMER, 1 << 20),
        (msr::SELF_IPI, 0x100),
        (msr::BASE, 0xfee0_0900),
    ] {
        let written = write_msr(number, value);
        ensure!(written == Err(REFUSED), "WRMSR {number:#x} of {value:#x}: {written:?}");
    }
    equal!(read_msr(EFER), Ok(efer), "EFER afterwards");
    Ok(())
}

pub fn registers_of_the_guests_own_hold_what_is_written() -> Outcome {
    // SYSENTER_EIP, STAR, LSTAR, FMASK, FS_BASE, KERNEL_GS_BASE, PAT.
    for (number, value) in [
        (0x176, 0xffff_8000_1234_5678),
        (0xc000_0081, 0x0010_0008_0000_0000),
        (0xc000_0082, 0xffff_8000_8765_4321),
        (0xc000_0084, 0x4_7700),
        (0xc000_0100, 0x1234_5678),
        (0xc000_0102, 0xffff_8000_0000_1000),
        (PAT, 0x0007_0406_0007_0106),
    ] {
        let before = read_msr(number);
        let written = write_msr(number, value);
        let read = read_msr(number);
        // What it held before is what it takes.
        let _ = write_msr(number, before.unwrap_or(0));
        ensure!(written.is_ok() && read == Ok(value), "{number:#x}: {written:?}, then {read:x?}, expected {value:#x}");
    }
    equal!(read_msr(EFER).map(|efer| efer & 0x500), Ok(0x500), "long mode in EFER");
    Ok(())
}
