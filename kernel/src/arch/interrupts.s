// Entry points of all 256 vectors, 16 bytes each, to one common path that saves the registers and calls
// interrupt_rust(&mut Frame), which returns whether to go back without IRET. SDM vol. 3A 6.14: the CPU has pushed SS, RSP,
// RFLAGS, CS, RIP and, for some vectors, an error code.

.section .text
.balign 16
.global interrupt_entries
interrupt_entries:
.set vector, 0
.rept 256
    .balign 16
    .if (vector == 8) || ((vector >= 10) && (vector <= 14)) || (vector == 17) || (vector == 21) || (vector == 29) || (vector == 30)
    .else
    push 0
    .endif
    push vector
    jmp interrupt_common
    .set vector, vector + 1
.endr

// Takes the general registers from the frame that RSP points to.
.macro pop_registers
    pop r15
    pop r14
    pop r13
    pop r12
    pop r11
    pop r10
    pop r9
    pop r8
    pop rdi
    pop rsi
    pop rbp
    pop rbx
    pop rdx
    pop rcx
    pop rax
.endm

.balign 16
interrupt_common:
    push rax
    push rcx
    push rdx
    push rbx
    push rbp
    push rsi
    push rdi
    push r8
    push r9
    push r10
    push r11
    push r12
    push r13
    push r14
    push r15
    cld
    mov rdi, rsp
    call interrupt_rust
    test al, al
    jnz 2f
    pop_registers
    add rsp, 16
    iretq

// Back into a handler of an NMI. IRET would let the next NMI in (SDM vol. 3A 6.7.1), on the stack that is in use. So RIP and
// RFLAGS go to the interrupted stack, and POPFQ and RET take them from there.
2:
    mov rax, [rsp + 20 * 8]
    mov rcx, [rsp + 17 * 8]
    mov [rax - 8], rcx
    mov rcx, [rsp + 19 * 8]
    mov [rax - 16], rcx
    sub rax, 16
    mov [rsp + 20 * 8], rax
    pop_registers
    mov rsp, [rsp + 5 * 8]
    popfq
    ret

// park(kick: *const bool): halts until an interrupt or an NMI, unless *kick is set.
// park_deep(kick: *const bool, hint: u32): the same by MWAIT with this hint. A write to *kick's cache line ends it too.
// A core would sleep through an NMI between the check and HLT or MWAIT. So the handlers move RIP from the window, which is that of
// both, to its end. An interrupt cannot come there, because "sti; hlt" takes it only after HLT has begun (SDM vol. 2B STI), and
// "sti; mwait" after MWAIT has. On Bochs 3.0 it can come between the two. Without the handlers, a core there slept until another core
// signalled it.
.balign 16
.global park
.global park_deep
.global park_window_start
.global park_window_end
park_deep:
    mov rax, rdi
    xor ecx, ecx
    xor edx, edx
    monitor
park_window_start:
    cmp byte ptr [rdi], 0
    jne park_window_end
    mov eax, esi
    sti
    mwait
    jmp park_window_end
park:
    cmp byte ptr [rdi], 0
    jne park_window_end
    sti
    hlt
park_window_end:
    cli
    ret
