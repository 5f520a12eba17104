// Leaves 64-bit mode (SDM vol. 3A 10.8.5.4) and starts a multiboot2 kernel in GRUB's state: 32-bit protected mode, no paging,
// interrupts off. Everything is below 4 GiB and mapped at its physical address.
//
// EDI: the entry. ESI: the information. EDX: the magic number.

.text
.code64
.global hand_over
hand_over:
    cli
    mov ebp, edx                                                // RDMSR writes EDX
    lea rax, [rip + hand_over_gdt]
    mov [rip + hand_over_gdt_pointer + 2], rax
    lgdt [rip + hand_over_gdt_pointer]
    lea rax, [rip + hand_over_32]
    push 8
    push rax
    retfq                                                       // compatibility mode

.code32
hand_over_32:
    mov eax, cr0
    and eax, 0x7fffffff                                         // PG
    mov cr0, eax
    mov ecx, 0xc0000080                                         // IA32_EFER.LME
    rdmsr
    and eax, 0xfffffeff
    wrmsr
    mov eax, cr4
    and eax, 0xffffffdf                                         // PAE
    mov cr4, eax
    mov ax, 16
    mov ds, ax
    mov es, ax
    mov fs, ax
    mov gs, ax
    mov ss, ax
    mov eax, ebp
    mov ebx, esi
    jmp edi
.code64

.data
.balign 8
hand_over_gdt:
    .quad 0
    .quad 0x00cf9b000000ffff                                    // 32-bit code
    .quad 0x00cf93000000ffff                                    // data
hand_over_gdt_pointer:
    .short 23
    .quad 0
.text
