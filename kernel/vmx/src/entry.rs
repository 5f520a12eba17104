//! The Rust side of the world switch in entry.s, and what an NMI handler has to know of it.

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

/// How an entry went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The exit reason tells.
    Exited,
    /// VMLAUNCH or VMRESUME failed; the VM-instruction error tells.
    Failed,
    /// Given up because of a kick; nothing has changed.
    Aborted,
}

/// Enters the guest of the current VMCS.
///
/// # Safety
/// VMX root operation, interrupts off, a current VMCS with a complete host state for this core (HOST_RIP =
/// [`exit_address`]) and `launched` true exactly if it has been entered since it was cleared.
pub unsafe fn enter(gprs: &mut Gprs, launched: bool, kick: &AtomicBool) -> Outcome {
    // SAFETY: the caller's promise. The assembly keeps the ABI: it restores what the caller may count on, and writes
    // to `gprs` only.
    match unsafe { vmx_enter(gprs, launched, kick) } {
        0 => Outcome::Exited,
        2 => Outcome::Aborted,
        _ => Outcome::Failed,
    }
}

/// Where the host continues after an exit: the value of HOST_RIP.
pub fn exit_address() -> u64 {
    (&raw const vmx_exit).expose_provenance() as u64
}

/// For the NMI handler: if the NMI came in the last steps before VM entry, where the kick flag has perhaps been looked
/// at already, changes the interrupted RIP so that the entry is given up and `run` returns.
pub fn leave_entry_window(rip: &mut u64) {
    let start = (&raw const vmx_entry_window_start).addr() as u64;
    let end = (&raw const vmx_entry_window_end).addr() as u64;
    if (start..end).contains(rip) {
        *rip = (&raw const vmx_entry_abort).addr() as u64;
    }
}

/// After an exit by NMI, NMIs are blocked until IRET (SDM vol. 3C 28.5.5). Executes one; an NMI that is pending comes
/// right after it.
pub fn unblock_nmis() {
    // SAFETY: IRETQ to the next instruction with the present CS, SS, RSP and flags changes nothing but the blocking. The
    // five words it pops are pushed here, on a stack that has no red zone below it.
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
