//! The Rust side of the world switch in entry.s, and the part of an NMI handler that concerns it.

#![allow(unsafe_code, reason = "declares the assembly of the world switch and unblocks NMIs by IRET")]

use core::{arch::asm, sync::atomic::AtomicBool};
use machine::vcpu::Gprs;
use speculation::Switch;

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
    fn vmx_enter(gprs: *mut Gprs, launched: bool, kick: *const AtomicBool, switch: *mut Switch) -> u32;
    static vmx_exit: u8;
    static vmx_exit_guarded: u8;
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
/// (HOST_RIP = [`exit_address`] of this `switch`). `launched` is true exactly if the VMCS has been entered since it was cleared.
pub unsafe fn enter(gprs: &mut Gprs, launched: bool, kick: &AtomicBool, switch: &mut Switch) -> Outcome {
    // SAFETY: the caller's promise. The assembly follows the ABI: it preserves the registers that it must, and writes
    // only to `gprs` and `switch`.
    match unsafe { vmx_enter(gprs, launched, kick, switch) } {
        0 => Outcome::Exited,
        2 => Outcome::Aborted,
        _ => Outcome::Failed,
    }
}

/// The address at which the host continues after an exit: the value of HOST_RIP. It depends on whether there is anything
/// to do about speculation.
pub fn exit_address(switch: &Switch) -> u64 {
    let address = if switch.any() { &raw const vmx_exit_guarded } else { &raw const vmx_exit };
    address.expose_provenance() as u64
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

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions, Mnemonic, Register};

    /// Returns the registers that the code at `start` clears, and those that it takes from the stack, up to its return.
    /// `calls` are the calls between.
    fn taken_from_the_guest(start: usize) -> (Vec<Register>, Vec<Register>, usize) {
        // SAFETY: the routine is code of this program, and more code follows it.
        let code = unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance::<u8>(start), 400) };
        let (mut cleared, mut popped, mut calls) = (Vec::new(), Vec::new(), 0);
        let mut decoder = Decoder::with_ip(64, code, start as u64, DecoderOptions::NONE);
        loop {
            let i = decoder.decode();
            match i.mnemonic() {
                Mnemonic::Xor if i.op0_register() == i.op1_register() && calls == 0 => cleared.push(i.op0_register()),
                Mnemonic::Pop => popped.push(i.op0_register()),
                Mnemonic::Call => calls += 1,
                Mnemonic::Ret => return (cleared, popped, calls),
                // A direct jump is followed.
                Mnemonic::Jmp => {
                    decoder.set_position(i.near_branch64() as usize - start).unwrap_or_else(|e| panic!("{e}"))
                }
                _ => {}
            }
            decoder.set_ip((start + decoder.position()) as u64);
        }
    }

    #[test]
    fn no_register_of_the_guest_survives_the_exit() {
        use Register::{EAX, ECX, EDI, EDX, ESI, R8D, R9D, R10D, R11D, R12, R13, R14, R15, RAX, RBP, RBX};
        for (exit, expected_calls) in [(&raw const vmx_exit, 0), (&raw const vmx_exit_guarded, 1)] {
            let (cleared, popped, calls) = taken_from_the_guest(exit.expose_provenance());
            assert_eq!(cleared, [EAX, ECX, EDX, ESI, EDI, R8D, R9D, R10D, R11D]);
            // The first is the guest's RDI on its way to `gprs`.
            assert_eq!(popped, [RAX, R15, R14, R13, R12, RBX, RBP]);
            assert_eq!(calls, expected_calls);
        }
    }
}
