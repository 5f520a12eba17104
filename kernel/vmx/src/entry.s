// The world switch (SDM vol. 3C ch. 27, 28.5).
//
//   extern "C" fn vmx_enter(gprs: *mut Gprs, launched: bool, kick: *const bool, switch: *mut Switch) -> u32
//
// Enters the guest with the general registers in `gprs`. RSP, RIP and RFLAGS are in the VMCS. Returns at the next exit
// with the guest's registers in `gprs`. The result:
//   0  The guest has exited, or its state was refused. The exit reason says which.
//   1  VMLAUNCH or VMRESUME failed.
//   2  The entry was given up because of a kick. `gprs` is unchanged.
//
// The kick. Another core sets *kick, then sends an NMI. The code reads the flag at the start of the window below. There
// are three cases for the NMI:
//   - It arrives before the window. The flag was set before the NMI was sent, so the code finds it set and does not
//     enter.
//   - It arrives in the window, up to and including the boundary before VMLAUNCH or VMRESUME. The flag may have been
//     read too early. But the NMI's handler finds RIP in the window, and returns to vmx_entry_abort instead.
//   - It arrives later. Then the guest runs, and "NMI exiting" makes the guest exit. If the NMI is pending when the
//     entry completes, the guest exits before its first instruction.
// So after one kick run() always returns. The window includes the instruction after a failed VMRESUME. That does no
// harm: the next entry fails in the same way.
//
// Speculation. `switch` says what is done before the entry and after the exit (kernel/speculation). HOST_RIP chooses what
// happens after an exit: vmx_exit does nothing, vmx_exit_guarded does what `switch` says before the first return. So no
// conditional branch decides it, which a guest could train. The steps before the entry come before the window, because
// an NMI finds its window by RIP. An entry that was given up does the steps of an exit: the host's IA32_SPEC_CTRL.
//
// An exit clears the registers that the ABI does not preserve. The others get the host's values from the stack.
//
// The abort path works with any mixture of host and guest values in the general registers. It uses only RSP, which is
// the host's until the entry itself. All registers that the ABI preserves are on the stack. The guest's registers are
// still in *gprs, because nothing in the window writes there.

.section .text
.balign 16
.global vmx_enter
.global vmx_exit
.global vmx_exit_guarded
.global vmx_entry_window_start
.global vmx_entry_window_end
.global vmx_entry_abort
vmx_enter:
    push rbp
    push rbx
    push r12
    push r13
    push r14
    push r15
    push rcx
    push rdi
    cmp dword ptr [rcx], 0
    jne 5f
3:
    mov eax, 0x6c14                 // HOST_RSP
    vmwrite rax, rsp
    jbe vmx_entry_failed            // CF or ZF: no current VMCS. An entry now would exit to a stale RSP.
vmx_entry_window_start:
    cmp byte ptr [rdx], 0
    jne vmx_entry_abort
    test sil, sil                   // launched? MOV does not change the flags.
    mov rax, [rdi + 0x00]
    mov rcx, [rdi + 0x08]
    mov rdx, [rdi + 0x10]
    mov rbx, [rdi + 0x18]
    mov rbp, [rdi + 0x28]
    mov rsi, [rdi + 0x30]
    mov r8, [rdi + 0x40]
    mov r9, [rdi + 0x48]
    mov r10, [rdi + 0x50]
    mov r11, [rdi + 0x58]
    mov r12, [rdi + 0x60]
    mov r13, [rdi + 0x68]
    mov r14, [rdi + 0x70]
    mov r15, [rdi + 0x78]
    mov rdi, [rdi + 0x38]
    jz 2f
    vmresume
    jmp vmx_entry_failed
2:
    vmlaunch
vmx_entry_window_end:
vmx_entry_failed:
    mov eax, 1
    jmp 6f
vmx_entry_abort:
    mov eax, 2
6:
    mov rdi, [rsp + 8]
    cmp dword ptr [rdi], 0
    je 4f
    mov r12d, eax
    call speculation_after_exit
    mov eax, r12d
    jmp 4f
5:
    mov rbx, rdi
    mov ebp, esi
    mov r12, rdx
    mov rdi, rcx
    call speculation_before_entry
    mov rdi, rbx
    mov esi, ebp
    mov rdx, r12
    jmp 3b

// The host continues here after an exit. RSP is as at the VMWRITE above, interrupts are off, the direction flag is
// clear. All other general registers hold the guest's values.
.macro save_guest
    push rdi
    mov rdi, [rsp + 8]
    mov [rdi + 0x00], rax
    mov [rdi + 0x08], rcx
    mov [rdi + 0x10], rdx
    mov [rdi + 0x18], rbx
    mov [rdi + 0x28], rbp
    mov [rdi + 0x30], rsi
    mov [rdi + 0x40], r8
    mov [rdi + 0x48], r9
    mov [rdi + 0x50], r10
    mov [rdi + 0x58], r11
    mov [rdi + 0x60], r12
    mov [rdi + 0x68], r13
    mov [rdi + 0x70], r14
    mov [rdi + 0x78], r15
    pop rax
    mov [rdi + 0x38], rax
    xor eax, eax
    xor ecx, ecx
    xor edx, edx
    xor esi, esi
    xor edi, edi
    xor r8d, r8d
    xor r9d, r9d
    xor r10d, r10d
    xor r11d, r11d
.endm

.balign 16
vmx_exit_guarded:
    save_guest
    mov rdi, [rsp + 8]
    call speculation_after_exit
    xor eax, eax
    jmp 4f

.balign 16
vmx_exit:
    save_guest
4:
    add rsp, 16
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbx
    pop rbp
    ret
