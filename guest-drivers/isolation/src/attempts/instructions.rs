//! Executes instructions that a guest does not have. Those of VT-x, SVM, SMX and SMM raise #UD while their enable bit
//! is clear. A guest cannot set that bit.

#![allow(unsafe_code, reason = "the instructions tried are assembly")]

use crate::report::Report;
use bare::memory::ARENA;
use bare::{cpu, instruction};

const INVALID_OPCODE: u8 = 6;
const GENERAL_PROTECTION: u8 = 13;

/// Makes all attempts of this file. `lenient`: leaves out what an emulator's local APIC accepts.
pub fn all(lenient: bool, report: &mut Report) {
    let scratch = ARENA;
    let undefined = [
        ("VMXON", instruction!("vmxon [rdi]", 0, scratch)),
        ("VMCLEAR", instruction!("vmclear [rdi]", 0, scratch)),
        ("VMPTRLD", instruction!("vmptrld [rdi]", 0, scratch)),
        ("VMLAUNCH", instruction!("vmlaunch", 0, scratch)),
        ("VMRESUME", instruction!("vmresume", 0, scratch)),
        ("VMREAD", instruction!("vmread rdx, rax", 0, scratch)),
        ("VMWRITE", instruction!("vmwrite rax, rdx", 0, scratch)),
        ("VMXOFF", instruction!("vmxoff", 0, scratch)),
        ("INVEPT", instruction!("invept rax, [rdi]", 1, scratch)),
        ("INVVPID", instruction!("invvpid rax, [rdi]", 1, scratch)),
        ("VMFUNC", instruction!("vmfunc", 0, scratch)),
        ("VMRUN", instruction!("vmrun rax", scratch, scratch)),
        ("VMLOAD", instruction!("vmload rax", scratch, scratch)),
        ("VMSAVE", instruction!("vmsave rax", scratch, scratch)),
        ("STGI", instruction!("stgi", 0, scratch)),
        ("CLGI", instruction!("clgi", 0, scratch)),
        ("INVLPGA", instruction!("invlpga rax, ecx", 0, scratch)),
        ("SKINIT", instruction!("skinit eax", 0, scratch)),
        ("GETSEC", instruction!(".byte 0x0f, 0x37", 0, scratch)),
        ("RSM", instruction!("rsm", 0, scratch)),
        ("MONITOR", instruction!("monitor", scratch, scratch)),
        // As bytes, because assemblers know few of these.
        ("MONITORX", instruction!(".byte 0x0f, 0x01, 0xfa", scratch, scratch)),
        ("RDPRU", instruction!(".byte 0x0f, 0x01, 0xfd", 0, scratch)),
        ("MCOMMIT", instruction!(".byte 0xf3, 0x0f, 0x01, 0xfa", 0, scratch)),
        ("INVLPGB", instruction!(".byte 0x0f, 0x01, 0xfe", 0, scratch)),
        ("TLBSYNC", instruction!(".byte 0x0f, 0x01, 0xff", 0, scratch)),
        ("PSMASH", instruction!(".byte 0xf3, 0x0f, 0x01, 0xff", scratch, scratch)),
        ("RMPADJUST", instruction!(".byte 0xf3, 0x0f, 0x01, 0xfe", scratch, scratch)),
        ("PVALIDATE", instruction!(".byte 0xf2, 0x0f, 0x01, 0xff", scratch, scratch)),
        ("ENCLS", instruction!(".byte 0x0f, 0x01, 0xcf", 0, scratch)),
        ("ENCLU", instruction!(".byte 0x0f, 0x01, 0xd7", 0, scratch)),
        ("ENCLV", instruction!(".byte 0x0f, 0x01, 0xc0", 0, scratch)),
        ("PCONFIG", instruction!(".byte 0x0f, 0x01, 0xc5", 0, scratch)),
        ("PBNDKB", instruction!(".byte 0x0f, 0x01, 0xc7", 0, scratch)),
        ("WRMSRNS", instruction!(".byte 0x0f, 0x01, 0xc6", 0, scratch)),
        ("RDMSRLIST", instruction!(".byte 0xf2, 0x0f, 0x01, 0xc6", 0, scratch)),
        ("WRMSRLIST", instruction!(".byte 0xf3, 0x0f, 0x01, 0xc6", 0, scratch)),
        ("SEAMCALL", instruction!(".byte 0x66, 0x0f, 0x01, 0xcf", 0, scratch)),
        ("TDCALL", instruction!(".byte 0x66, 0x0f, 0x01, 0xcc", 0, scratch)),
        ("UMONITOR", instruction!(".byte 0xf3, 0x0f, 0xae, 0xf0", scratch, scratch)),
        ("TPAUSE", instruction!(".byte 0x66, 0x0f, 0xae, 0xf0", 0, scratch)),
        ("HRESET", instruction!(".byte 0xf3, 0x0f, 0x3a, 0xf0, 0xc0, 0x00", 0, scratch)),
        ("LOADIWKEY", instruction!(".byte 0xf3, 0x0f, 0x38, 0xdc, 0xc0", 0, scratch)),
        ("SENDUIPI", instruction!(".byte 0xf3, 0x0f, 0xc7, 0xf0", 0, scratch)),
    ];
    for (name, result) in undefined {
        report.attempt(result == Err(INVALID_OPCODE), format_args!("{name}: {result:x?}"));
    }
    // Supervisor states are not switched, so a guest has neither of these, unless CPUID says so.
    if cpu::cpuid_of(0xd, 1).eax & 1 << 3 == 0 {
        for (name, result) in [
            ("XSAVES", instruction!("xsaves64 [rdi]", 1, scratch)),
            ("XRSTORS", instruction!("xrstors64 [rdi]", 1, scratch)),
        ] {
            report.attempt(result == Err(INVALID_OPCODE), format_args!("{name}: {result:x?}"));
        }
    }
    // WBINVD, with a prefix that older CPUs ignore. A guest may ask for it, and no cache is written back for it.
    let result = instruction!(".byte 0xf3, 0x0f, 0x09", 0, scratch);
    if result.is_err() {
        report.broken(format_args!("WBNOINVD: {result:x?}"));
    }
    // If MONITOR works, MWAIT may wait for ever.
    if instruction!("monitor", scratch, scratch).is_err() {
        let result = instruction!("mwait", 0, scratch);
        report.attempt(result == Err(INVALID_OPCODE), format_args!("MWAIT: {result:x?}"));
    }
    // The counter does not exist. Hardware raises #GP; a machine without any counters raises #UD.
    let result = instruction!("rdpmc", 0, scratch);
    let refused = matches!(result, Err(GENERAL_PROTECTION | INVALID_OPCODE));
    report.attempt(refused, format_args!("RDPMC: {result:x?}"));
    // No hypervisor has a call with this number. The answer is "no such call".
    const NO_SUCH_CALL: u64 = 0x7fff_ffff;
    for (name, result) in [
        ("VMCALL", instruction!("vmcall", NO_SUCH_CALL, scratch)),
        ("VMMCALL", instruction!("vmmcall", NO_SUCH_CALL, scratch)),
    ] {
        const NOT_THERE: u64 = -1000_i64 as u64;
        report.attempt(result == Ok(NOT_THERE), format_args!("{name}: {result:x?}"));
    }
    // VMXE, SMXE, and bits that no CPU has. Only on Intel: AMD has no such enable bits. With a reserved bit, QEMU's SVM
    // does not raise #GP. It makes an exit with code -1, which ends the guest.
    if cpu::is_intel() {
        let cr4 = cpu::cr4();
        for bit in [13, 14, 31, 40] {
            let result = instruction!("mov cr4, rax", cr4 | 1 << bit, scratch);
            report.attempt(result == Err(GENERAL_PROTECTION), format_args!("CR4 bit {bit}: {result:x?}"));
        }
    }
    if !lenient {
        let result = instruction!("mov cr8, rax", 0x10, scratch);
        report.attempt(result == Err(GENERAL_PROTECTION), format_args!("CR8 of 0x10: {result:x?}"));
    }
    // XCR0 without x87 state: #GP, and #UD while CR4.OSXSAVE is clear.
    let result = instruction!("xsetbv", 0, scratch);
    let refused = matches!(result, Err(GENERAL_PROTECTION | INVALID_OPCODE));
    report.attempt(refused, format_args!("XSETBV of 0: {result:x?}"));
}
