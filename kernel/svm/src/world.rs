//! The world switch (APM vol. 2 15.5, 15.17): from the host into the guest and back.

#![allow(unsafe_code, reason = "enters the guest in assembly")]

use crate::vmcb::Vmcb;
use core::mem::offset_of;
use core::sync::atomic::AtomicBool;
use machine::vcpu::Gprs;

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
/// RAX and RSP are passed in the VMCB, the other general registers in `gprs`.
///
/// # Safety
/// SVM is enabled on this core and interrupts are off (RFLAGS.IF clear). The intercepts, permission maps and nested
/// tables of `vmcb` keep the guest from what is not its own. `host` holds what VMSAVE wrote on this core. Both are
/// mapped at their physical address. No reference to any of the pointees is live, except to `kick`'s.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn enter(
    vmcb: *mut Vmcb,
    gprs: *mut Gprs,
    host: *const Vmcb,
    kick: *const AtomicBool,
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
        "mov rax, [rsp + 8]",
        "vmload rax",
        "pop rax",
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
        "pop rdx",
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

/// Saves the host's registers that VMLOAD restores: FS, GS, TR, LDTR with their hidden parts, and the system call MSRs.
///
/// # Safety
/// SVM is enabled on this core, and `host` is mapped at its physical address.
pub unsafe fn save_host(host: *mut Vmcb) {
    // SAFETY: by the contract above. VMSAVE writes only to that page.
    unsafe { core::arch::asm!("vmsave rax", in("rax") host, options(nostack, preserves_flags)) };
}
