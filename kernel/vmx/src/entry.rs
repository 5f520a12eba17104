//! The Rust side of the world switch in entry.s, and the part of an NMI handler that concerns it.

#![allow(unsafe_code, reason = "declares the assembly of the world switch and unblocks NMIs by IRET")]

use core::{arch::asm, sync::atomic::AtomicBool};
use machine::vcpu::Gprs;

core::arch::global_asm!(include_str!("entry.s"));

// entry.s addresses the registers by these offsets.
const _: () = {
    assert!(core::mem::offset_of!(Gprs, rax) == 0x00);
    assert!(core::mem::offset_of!(Gprs, rcx) == 0x08);
    assert!(core::mem::offset_of!(Gprs, rdx) == 0x10);
    assert!(core::mem::offset_of!(Gprs, rbx) == 0x18);
    assert!(core::mem::offset_of!(Gprs, rbp) == 0x28);
    assert!(core::mem::offset_of!(Gprs, rsi) == 0x30);
    assert!(core::mem::offset_of!(Gprs, rdi) == 0x38);
    assert!(core::mem::offset_of!(Gprs, r8) == 0x40);
    assert!(core::mem::offset_of!(Gprs, r15) == 0x78);
    assert!(crate::fields::HOST_RSP.encoding() == 0x6c14);
};

unsafe extern "C" {
    fn vmx_enter(gprs: *mut Gprs, launched: bool, kick: *const AtomicBool) -> u32;
    static vmx_exit: u8;
    static vmx_entry_window_start: u8;
    static vmx_entry_window_end: u8;
    static vmx_entry_abort: u8;
}

/// The result of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The guest has exited, or its state was refused. The exit reason says which.
    Exited,
    /// VMLAUNCH or VMRESUME failed. The VM-instruction error says why.
    Failed,
    /// The entry was given up because of a kick. Nothing has changed.
    Aborted,
}

/// Enters the guest of the current VMCS.
///
/// # Safety
/// The core is in VMX root operation with interrupts off. The current VMCS has a complete host state for this core
/// (HOST_RIP = [`exit_address`]). `launched` is true exactly if the VMCS has been entered since it was cleared.
pub unsafe fn enter(gprs: &mut Gprs, launched: bool, kick: &AtomicBool) -> Outcome {
    // SAFETY: the caller's promise. The assembly follows the ABI: it preserves the registers that it must, and writes
    // only to `gprs`.
    match unsafe { vmx_enter(gprs, launched, kick) } {
        0 => Outcome::Exited,
        2 => Outcome::Aborted,
        _ => Outcome::Failed,
    }
}

/// The address at which the host continues after an exit: the value of HOST_RIP.
pub fn exit_address() -> u64 {
    (&raw const vmx_exit).expose_provenance() as u64
}

/// For the NMI handler. An NMI may come between the read of the kick flag and VM entry. Then this changes the
/// interrupted RIP: the entry is given up, and `run` returns.
pub fn leave_entry_window(rip: &mut u64) {
    let start = (&raw const vmx_entry_window_start).addr() as u64;
    let end = (&raw const vmx_entry_window_end).addr() as u64;
    if (start..end).contains(rip) {
        *rip = (&raw const vmx_entry_abort).addr() as u64;
    }
}

/// Executes an IRET. After an exit by NMI, NMIs are blocked until an IRET (SDM vol. 3C 28.5.5). A pending NMI comes
/// right after it.
pub fn unblock_nmis() {
    // SAFETY: IRETQ to the next instruction, with the present CS, SS, RSP and flags, changes only the blocking. The
    // five words that it pops are pushed here, on a stack without a red zone.
    unsafe {
        asm!(
            "mov {rsp}, rsp",
            "mov {selector:e}, ss",
            "push {selector}",
            "push {rsp}",
            "pushfq",
            "mov {selector:e}, cs",
            "push {selector}",
            "lea {rsp}, [rip + 2f]",
            "push {rsp}",
            "iretq",
            "2:",
            rsp = out(reg) _,
            selector = out(reg) _,
        );
    }
}
