// Multiboot2 header, and the switch from GRUB's 32-bit protected mode to 64-bit Rust. Follows the multiboot2
// specification 3.1 (header) and 3.3 (machine state), and SDM vol. 3A 10.8.5 (entering IA-32e mode).

.section .multiboot, "a"
.balign 8
multiboot_header:
    .long 0xe85250d6                                            // magic
    .long 0                                                     // i386 protected mode, also on UEFI
    .long multiboot_header_end - multiboot_header
    .long -(0xe85250d6 + (multiboot_header_end - multiboot_header))
    .short 6, 0                                                 // modules on page boundaries
    .long 8
    .short 5, 1                                                 // a framebuffer of any size, or none
    .long 20
    .long 0, 0, 0
    .balign 8
    .short 0, 0                                                 // end
    .long 8
multiboot_header_end:

.section .boot.text, "ax"
.code32
.global _start
_start:
    cli
    cld
    mov esp, offset boot_stack_top
    mov edi, eax                                                // magic, kept for start_rust
    mov esi, ebx                                                // boot information
    mov al, 0xa0                                                // POST code (step.rs)
    out 0x80, al

    mov eax, 0x80000000                                         // does the CPU have long mode?
    cpuid
    cmp eax, 0x80000001
    jb no_long_mode
    mov eax, 0x80000001
    cpuid
    test edx, 1 << 29
    jz no_long_mode

    // Identity map of the first 4 GiB in 2 MiB pages. start_rust replaces it by its own tables with W^X.
    mov eax, offset boot_pdpt
    or eax, 3
    mov [boot_pml4], eax
    mov ecx, 0
1:  mov eax, ecx
    shl eax, 12
    add eax, offset boot_pd
    or eax, 3
    mov [boot_pdpt + ecx * 8], eax
    inc ecx
    cmp ecx, 4
    jb 1b
    mov ecx, 0
2:  mov eax, ecx
    shl eax, 21
    or eax, 0x83                                                // present, writable, 2 MiB
    mov [boot_pd + ecx * 8], eax
    inc ecx
    cmp ecx, 2048
    jb 2b

    mov eax, cr4
    or eax, 0x20                                                // PAE
    mov cr4, eax
    mov eax, offset boot_pml4
    mov cr3, eax
    mov ecx, 0xc0000080                                         // IA32_EFER.LME
    rdmsr
    or eax, 0x100
    wrmsr
    mov eax, cr0
    or eax, 0x80000001                                          // PG, PE
    mov cr0, eax
    lgdt [boot_gdt_pointer]
    // A far return to 64-bit code. It is not a far jump, because its Intel syntax differs between assembler versions.
    push 8
    mov eax, offset start_64
    push eax
    retf

no_long_mode:
    mov al, 0xa1                                                // POST code
    out 0x80, al
    mov esi, offset no_long_mode_text
    mov edi, 0xb8000                                            // VGA's text, at the top
3:  lodsb
    test al, al
    jz 5f
    cmp al, 0x20                                                // the end of the line is none for the screen
    jb 8f
    mov ah, 0x07
    mov [edi], ax
    add edi, 2
8:  mov ah, al
    mov dx, 0x3fd
4:  in al, dx                                                   // wait for COM1's holding register
    test al, 0x20
    jz 4b
    mov dx, 0x3f8
    mov al, ah
    out dx, al
    jmp 3b
5:  hlt
    jmp 5b

.code64
start_64:
    mov ax, 16
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov fs, ax
    mov gs, ax
    mov rsp, offset boot_stack_top
    xor ebp, ebp                                                // ends the backtrace
    mov edi, edi                                                // magic: zero-extended
    mov esi, esi                                                // boot information
    mov al, 0xa2                                                // POST code
    out 0x80, al
    call start_rust
6:  hlt
    jmp 6b

.section .boot.rodata, "a"
.balign 8
boot_gdt:
    .quad 0
    .quad 0x00af9b000000ffff                                    // 64-bit code
    .quad 0x00cf93000000ffff                                    // data
boot_gdt_pointer:
    .short 23
    .long boot_gdt
no_long_mode_text:
    .asciz "sidecore: this CPU has no 64-bit mode; an x86_64 server is needed.\r\n"

.section .boot.bss, "aw", @nobits
.balign 4096
boot_pml4:
    .skip 4096
boot_pdpt:
    .skip 4096
boot_pd:
    .skip 4 * 4096
boot_stack:
    .skip 64 * 1024
boot_stack_top:
