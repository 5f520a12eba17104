//! The world switch (APM vol. 2 15.5, 15.17): from the host into the guest and back.

#![allow(unsafe_code, reason = "enters the guest in assembly")]

use crate::vmcb::Vmcb;
use core::mem::offset_of;
use core::sync::atomic::AtomicBool;
use machine::vcpu::Gprs;
use speculation::Switch;

/// Makes a world switch with instructions before the entry and after the exit.
macro_rules! world_switch {
    ($(#[$doc:meta])* $name:ident, before: [$($before:literal),*], after: [$($after:literal),*]) => {
        $(#[$doc])*
        #[unsafe(naked)]
        pub unsafe extern "sysv64" fn $name(
            vmcb: *mut Vmcb,
            gprs: *mut Gprs,
            host: *const Vmcb,
            kick: *const AtomicBool,
            switch: *mut Switch,
        ) -> bool {
            core::arch::naked_asm!(
                "push rbp",
                "push rbx",
                "push r12",
                "push r13",
                "push r14",
                "push r15",
                "clgi",
                "cmp byte ptr [rcx], 0",
                "jne 2f",
                "push rdx",
                "push rsi",
                "push r8",
                $($before,)*
                "mov rax, rdi",
                "mov rcx, [rsi + {rcx}]",
                "mov rdx, [rsi + {rdx}]",
                "mov rbx, [rsi + {rbx}]",
                "mov rbp, [rsi + {rbp}]",
                "mov rdi, [rsi + {rdi}]",
                "mov r8, [rsi + {r8}]",
                "mov r9, [rsi + {r9}]",
                "mov r10, [rsi + {r10}]",
                "mov r11, [rsi + {r11}]",
                "mov r12, [rsi + {r12}]",
                "mov r13, [rsi + {r13}]",
                "mov r14, [rsi + {r14}]",
                "mov r15, [rsi + {r15}]",
                "mov rsi, [rsi + {rsi}]",
                "sti",
                "vmload rax",
                "vmrun rax",
                // The exit has restored the host's RAX (the VMCB), RSP and RFLAGS, and cleared the global interrupt flag.
                "cli",
                "vmsave rax",
                "mov rax, [rsp + 16]",
                "vmload rax",
                "mov rax, [rsp + 8]",
                "mov [rax + {rcx}], rcx",
                "mov [rax + {rdx}], rdx",
                "mov [rax + {rbx}], rbx",
                "mov [rax + {rbp}], rbp",
                "mov [rax + {rsi}], rsi",
                "mov [rax + {rdi}], rdi",
                "mov [rax + {r8}], r8",
                "mov [rax + {r9}], r9",
                "mov [rax + {r10}], r10",
                "mov [rax + {r11}], r11",
                "mov [rax + {r12}], r12",
                "mov [rax + {r13}], r13",
                "mov [rax + {r14}], r14",
                "mov [rax + {r15}], r15",
                "pop rdi",
                "xor eax, eax",
                "xor ecx, ecx",
                "xor edx, edx",
                "xor esi, esi",
                "xor r8d, r8d",
                "xor r9d, r9d",
                "xor r10d, r10d",
                "xor r11d, r11d",
                $($after,)*
                "add rsp, 16",
                "mov eax, 1",
                "jmp 3f",
                "2:",
                "xor eax, eax",
                "3:",
                "pop r15",
                "pop r14",
                "pop r13",
                "pop r12",
                "pop rbx",
                "pop rbp",
                // The exit has restored RFLAGS, so the direction flag is as the ABI requires.
                "stgi",
                "ret",
                rcx = const offset_of!(Gprs, rcx),
                rdx = const offset_of!(Gprs, rdx),
                rbx = const offset_of!(Gprs, rbx),
                rbp = const offset_of!(Gprs, rbp),
                rsi = const offset_of!(Gprs, rsi),
                rdi = const offset_of!(Gprs, rdi),
                r8 = const offset_of!(Gprs, r8),
                r9 = const offset_of!(Gprs, r9),
                r10 = const offset_of!(Gprs, r10),
                r11 = const offset_of!(Gprs, r11),
                r12 = const offset_of!(Gprs, r12),
                r13 = const offset_of!(Gprs, r13),
                r14 = const offset_of!(Gprs, r14),
                r15 = const offset_of!(Gprs, r15),
            )
        }
    };
}

world_switch! {
    /// Enters the guest. Returns:
    /// - true: the guest was entered and has exited.
    /// - false: `kick` is set, and the guest was not entered.
    ///
    /// Another core sets `kick` and then sends an NMI. `kick` is read after CLGI. From CLGI to VMRUN an NMI is held
    /// pending. So no kick is lost: either the flag is seen here, or the NMI makes the guest exit at once. The host's IDT
    /// takes the NMI after STGI.
    ///
    /// With V_INTR_MASKING, the host's RFLAGS.IF decides whether a physical interrupt makes the guest exit. So STI sets it
    /// before VMRUN. The global interrupt flag is clear then, so nothing can interrupt the host itself.
    ///
    /// An exit clears the registers that the ABI does not preserve. The others get the host's values from the stack.
    ///
    /// RAX and RSP are passed in the VMCB, the other general registers in `gprs`.
    ///
    /// # Safety
    /// SVM is enabled on this core and interrupts are off (RFLAGS.IF clear). The intercepts, permission maps and nested
    /// tables of `vmcb` keep the guest from what is not its own. `host` holds what VMSAVE wrote on this core. Both are
    /// mapped at their physical address. `switch` has nothing to do. No reference to any of the pointees is live, except to `kick`'s.
    enter, before: [], after: []
}

world_switch! {
    /// As [`enter`], and does what `switch` says about speculation (kernel/speculation). It is a routine of its own because
    /// a conditional branch after the exit could be trained by the guest.
    ///
    /// # Safety
    /// As for [`enter`], but `switch` may have something to do. It was made for this CPU.
    enter_guarded,
    before: [
        "mov rbx, rdi",
        "mov rbp, rsi",
        "mov rdi, r8",
        "call speculation_before_entry",
        "mov rdi, rbx",
        "mov rsi, rbp"
    ],
    after: ["call speculation_after_exit"]
}

/// Saves the host's registers that VMLOAD restores: FS, GS, TR, LDTR with their hidden parts, and the system call MSRs.
///
/// # Safety
/// SVM is enabled on this core, and `host` is mapped at its physical address.
pub unsafe fn save_host(host: *mut Vmcb) {
    // SAFETY: by the contract above. VMSAVE writes only to that page.
    unsafe { core::arch::asm!("vmsave rax", in("rax") host, options(nostack, preserves_flags)) };
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
        use Register::{EAX, ECX, EDX, ESI, R8D, R9D, R10D, R11D, R12, R13, R14, R15, RBP, RBX, RDI};
        for (routine, expected_calls) in [(enter as *const () as usize, 0), (enter_guarded as *const () as usize, 1)] {
            // SAFETY: as below.
            let code = unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance::<u8>(routine), 400) };
            let vmrun = Decoder::with_ip(64, code, 0, DecoderOptions::NONE)
                .into_iter()
                .find(|i| i.mnemonic() == Mnemonic::Vmrun)
                .map(|i| i.next_ip() as usize)
                .unwrap_or_default();
            let (cleared, popped, calls) = taken_from_the_guest(routine + vmrun);
            assert_eq!(cleared, [EAX, ECX, EDX, ESI, R8D, R9D, R10D, R11D]);
            // RDI is the pointer to the switch.
            assert_eq!(popped, [RDI, R15, R14, R13, R12, RBX, RBP]);
            assert_eq!(calls, expected_calls);
        }
    }
}
