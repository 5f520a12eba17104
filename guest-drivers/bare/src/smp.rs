//! Starts the guest's second vCPU (SDM vol. 3A 9.4: INIT, then a start-up IPI).
//!
//! It begins in real mode at [`TRAMPOLINE`], and gets the first vCPU's page tables and GDT. Its IDT has a limit of 0 until it loads
//! one. It starts again at each start-up IPI that follows an INIT, on the same stack.

#![allow(unsafe_code, reason = "the start of a vCPU is assembly")]

use core::arch::global_asm;
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::boot::Stack;
use crate::cpu::{cr3, wrmsr};
use crate::memory;

/// Address of the code in real mode. The start-up IPI's vector is its page.
const TRAMPOLINE: u64 = 0x9000;
/// Where the GDT's limit and base are in the code.
const POINTER: u64 = 0x60;
/// The interrupt command register in x2APIC mode (SDM vol. 3A 11.12.9).
const ICR: u32 = 0x830;
/// A command to all vCPUs but this one, asserted.
const OTHERS: u64 = 3 << 18 | 1 << 14;
const INIT: u64 = 5 << 8;
const STARTUP: u64 = 6 << 8;

global_asm!(
    r#"
    .section .rodata.trampoline, "a"
    .code16
    .globl trampoline
    .globl trampoline_end
trampoline:
    cli
    cld
    xor ax, ax
    mov ds, ax
    lgdtd [{pointer}]
    mov eax, cr4
    or eax, 0x20                // PAE
    mov cr4, eax
    mov eax, {tables}
    mov cr3, eax
    mov ecx, 0xc0000080         // EFER
    rdmsr
    or eax, 0x100               // LME
    wrmsr
    mov eax, cr0
    or eax, 0x80000001          // PG, PE
    mov cr0, eax
    .byte 0x66, 0xea            // a far jump with an offset of 32 bits
    .long second_vcpu
    .word 8
    .org trampoline + {pointer_at}
    .word 23
    .long gdt
trampoline_end:

    .text
    .code64
second_vcpu:
    mov eax, 0x10
    mov ds, eax
    mov es, eax
    mov ss, eax
    xor eax, eax
    mov fs, eax
    mov gs, eax
    lea rsp, [rip + {stack} + {stack_size}]
    call {main}
    ud2
    "#,
    pointer = const TRAMPOLINE + POINTER,
    pointer_at = const POINTER,
    tables = const memory::TABLES,
    stack = sym STACK,
    stack_size = const size_of::<Stack>(),
    main = sym second_main,
);

unsafe extern "C" {
    static trampoline: u8;
    static trampoline_end: u8;
}

static STACK: Stack = Stack::new();
/// The function that the second vCPU runs. 0: none.
static MAIN: AtomicUsize = AtomicUsize::new(0);

extern "C" fn second_main() -> ! {
    // SAFETY: only `prepare` stores an address, and that was a `fn() -> !`. The second vCPU is started after it.
    let run = unsafe { core::mem::transmute::<usize, fn() -> !>(MAIN.load(SeqCst)) };
    run()
}

/// Has the second vCPU run `run` at its next start.
///
/// `run` may be left at any instruction, and begin anew, whenever [`restart`] is called. It shares the exception handlers of
/// [`trap`](crate::trap) if it loads that table, but must not make attempts ([`attempt`](crate::attempt)).
pub fn prepare(run: fn() -> !) {
    // Both symbols are the ends of the same piece of the image.
    let (start, end) = (&raw const trampoline, &raw const trampoline_end);
    for offset in 0..end as usize - start as usize {
        // SAFETY: it lies between the two symbols.
        memory::write8(TRAMPOLINE + offset as u64, unsafe { start.add(offset).read() });
    }
    debug_assert_eq!(cr3(), memory::TABLES);
    MAIN.store(run as usize, SeqCst);
}

/// Resets the second vCPU and starts it. [`prepare`] comes first.
pub fn restart() {
    stop();
    wrmsr(ICR, OTHERS | STARTUP | TRAMPOLINE >> 12);
}

/// Resets the second vCPU. It then waits for a start-up IPI.
pub fn stop() {
    wrmsr(ICR, OTHERS | INIT);
}
