// What a world switch does about speculation. Both back-ends call these two routines, with RDI = *mut Switch
// (switch.rs). They use RAX, RCX, RDX and R8, and no other register.
//
// The CPU may run past a conditional branch before it knows the steps, and so past a step. That does no harm:
//   - before an entry, because an entry waits until all earlier instructions are done,
//   - after an exit, because LFENCE comes before the first return and before any indirect branch.

.set STEP_VERW, 1
.set STEP_L1D_FLUSH, 2
.set STEP_SPEC_CTRL, 4
.set STEP_IBPB, 8
.set STEP_RSB_ALL, 16
.set STEP_RSB_ONE, 32
.set STEP_BHB, 64

.section .text
.balign 16
.global speculation_before_entry
.global speculation_after_exit

// Call it as late as possible. The rest of the entry reads the guest's registers and nothing secret.
speculation_before_entry:
    mov r8d, [rdi]
    test r8d, STEP_SPEC_CTRL
    jz 2f
    mov ecx, 0x48                   // IA32_SPEC_CTRL: the guest's
    mov eax, [rdi + 8]
    mov edx, [rdi + 12]
    wrmsr
2:
    test r8d, STEP_L1D_FLUSH
    jz 3f
    mov ecx, 0x10b                  // IA32_FLUSH_CMD
    mov eax, 1
    xor edx, edx
    wrmsr
3:
    test r8d, STEP_VERW
    jz 4f
    verw word ptr [rdi + 4]         // Only the form with a memory operand clears buffers.
4:
    ret

// Call it before the first return after an exit, with the guest's registers saved and cleared.
.balign 16
speculation_after_exit:
    mov r8d, [rdi]
    test r8d, STEP_SPEC_CTRL
    jz 2f
    mov ecx, 0x48                   // IA32_SPEC_CTRL: the guest has written it without an exit.
    rdmsr
    mov [rdi + 8], eax
    mov [rdi + 12], edx
    mov eax, [rdi + 16]             // The host's. IBRS takes effect only when it is written.
    mov edx, [rdi + 20]
    wrmsr
2:
    test r8d, STEP_IBPB
    jz 3f
    mov ecx, 0x49                   // IA32_PRED_CMD
    mov eax, 1
    xor edx, edx
    wrmsr
3:
    test r8d, STEP_RSB_ALL
    jz 7f
    mov eax, 16                     // 32 calls: no CPU predicts more returns.
4:
    call 5f
    int3                            // where a return is predicted to go
5:
    call 6f
    int3
6:
    dec eax
    jnz 4b
    add rsp, 256
7:
    test r8d, STEP_RSB_ONE
    jz 9f
    call 8f
    int3
8:
    add rsp, 8
9:
    test r8d, STEP_BHB
    jz 4f
    mov eax, 100                    // 200 taken branches: more than the history of any CPU that is affected
2:
    jmp 3f
    int3
3:
    dec eax
    jnz 2b
4:
    lfence
    ret
