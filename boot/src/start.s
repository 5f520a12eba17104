// Multiboot2 header, and the switch from GRUB's 32-bit protected mode to 64-bit Rust. Follows the multiboot2
// specification 3.1 (header), 3.3 (machine state) and 3.6 (boot information), and SDM vol. 3A 10.8.5 (entering IA-32e
// mode).
//
// The image may be anywhere below 4 GiB. So this code uses no address of the linker before it has applied the image's
// relocations: 32-bit code adds EBP, the load address, to offsets in the image, and 64-bit code is relative to RIP.

// All symbols in this section are at constant distances from its start, which is the start of the image.
.section .boot, "awx"
.balign 8
boot_start:
    .long 0xe85250d6                                            // magic
    .long 0                                                     // i386 protected mode, also on UEFI
    .long multiboot_header_end - boot_start
    .long -(0xe85250d6 + (multiboot_header_end - boot_start))
    .short 6, 0                                                 // modules on page boundaries
    .long 8
    // Relocatable (tag 10). Optional: a loader that does not know it uses the addresses of the ELF file.
    .short 10, 1
    .long 24
    .long link_address                                          // lowest address
    .long 0xffffffff                                            // highest address
    .long 0x200000                                              // alignment
    .long 1                                                     // the lowest address that is free
    .short 5, 1                                                 // a framebuffer of any size, or none
    .long 20
    .long 0, 0, 0
    .balign 8
    .short 0, 0                                                 // end
    .long 8
multiboot_header_end:

.code32
.global _start
_start:
    cli
    cld
    mov edi, eax                                                // magic, kept for start_rust
    mov esi, ebx                                                // boot information
    mov al, 0xa0                                                // POST code (step.rs)
    out 0x80, al

    // EBP: where the image is. The tag 21 has it. Other loaders than multiboot2's, and those that do not know
    // the header's tag, use the addresses of the ELF file.
    mov ebp, offset link_address
    cmp edi, 0x36d76289
    jne 3f
    mov ecx, [ebx]                                              // length of the information
    add ecx, ebx                                                // its end
    add ebx, 8                                                  // the first tag
1:  lea edx, [ebx + 12]
    cmp edx, ecx
    ja 3f
    cmp dword ptr [ebx], 21
    je 2f
    mov eax, [ebx + 4]                                          // length of the tag
    cmp dword ptr [ebx], 0                                      // the end tag
    je 3f
    cmp eax, 8                                                  // a tag without its own head
    jb 3f
    add eax, 7
    and eax, -8
    add ebx, eax
    jc 3f
    jmp 1b
2:  mov ebp, [ebx + 8]
3:
    lea esp, [ebp + boot_stack_top_offset]

    mov eax, 0x80000000                                         // does the CPU have long mode?
    cpuid
    cmp eax, 0x80000001
    jb no_long_mode
    mov eax, 0x80000001
    cpuid
    test edx, 1 << 29
    jz no_long_mode

    // Identity map of the first 4 GiB in 2 MiB pages. start_rust replaces it by its own tables with W^X.
    lea ebx, [ebp + boot_tables_offset]
    lea eax, [ebx + PDPT + 3]
    mov [ebx + PML4], eax
    mov ecx, 0
    lea eax, [ebx + PD + 3]
1:  mov [ebx + PDPT + ecx * 8], eax
    add eax, 4096
    inc ecx
    cmp ecx, 4
    jb 1b
    mov ecx, 0
2:  mov eax, ecx
    shl eax, 21
    or eax, 0x83                                                // present, writable, 2 MiB
    mov [ebx + PD + ecx * 8], eax
    inc ecx
    cmp ecx, 2048
    jb 2b

    mov eax, cr4
    or eax, 0x20                                                // PAE
    mov cr4, eax
    lea eax, [ebx + PML4]
    mov cr3, eax
    mov ecx, 0xc0000080                                         // IA32_EFER.LME
    rdmsr
    or eax, 0x100
    wrmsr
    mov eax, cr0
    or eax, 0x80000001                                          // PG, PE
    mov cr0, eax
    lea eax, [ebp + GDT]
    mov [ebp + GDT_POINTER + 2], eax
    lgdt [ebp + GDT_POINTER]
    // A far return to 64-bit code. It is not a far jump, because its Intel syntax differs between assembler versions.
    push 8
    lea eax, [ebp + START_64]
    push eax
    retf

no_long_mode:
    mov al, 0xa1                                                // POST code
    out 0x80, al
    lea esi, [ebp + NO_LONG_MODE_TEXT]
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
    lea rsp, [rip + boot_stack_top]

    // The relocations, in the format RELR (gABI, "Relative Relocation Table"): words to which the distance between link
    // address and load address is added. An even entry is the address of such a word. An odd entry is a bitmap: bit n is
    // for the nth word, from 1, after the last one that an entry before was about. linker.ld refuses all other kinds of
    // relocations. The boot tables map all of the image writable.
    lea rax, [rip + boot_start]
    sub rax, offset link_address                                // the distance
    lea rbx, [rip + relocations_start]
    lea rcx, [rip + relocations_end]
1:  cmp rbx, rcx
    jae 5f
    mov rdx, [rbx]
    add rbx, 8
    test dl, 1
    jnz 2f
    add rdx, rax
    add [rdx], rax
    lea r8, [rdx + 8]                                           // the word that a bitmap begins with
    jmp 1b
2:  mov r9, r8
3:  shr rdx, 1
    jz 4f
    test dl, 1
    jz 6f
    add [r9], rax
6:  add r9, 8
    jmp 3b
4:  add r8, 63 * 8
    jmp 1b
5:
    xor ebp, ebp                                                // ends the backtrace
    mov edi, edi                                                // magic: zero-extended
    mov esi, esi                                                // boot information
    mov al, 0xa2                                                // POST code
    out 0x80, al
    call start_rust
6:  hlt
    jmp 6b

.balign 8
// The image's link address, for Rust: what addresses in the file's symbol table are relative to.
.global boot_link_address
boot_link_address:
    .quad link_address
boot_gdt:
    .quad 0
    .quad 0x00af9b000000ffff                                    // 64-bit code
    .quad 0x00cf93000000ffff                                    // data
boot_gdt_pointer:
    .short 23
    .long 0                                                     // address of boot_gdt
no_long_mode_text:
    .asciz "sidecore: this CPU has no 64-bit mode; an x86_64 server is needed.\r\n"

.set GDT, boot_gdt - boot_start
.set GDT_POINTER, boot_gdt_pointer - boot_start
.set START_64, start_64 - boot_start
.set NO_LONG_MODE_TEXT, no_long_mode_text - boot_start

.section .boot.bss, "aw", @nobits
.balign 4096
.global boot_tables
boot_tables:
boot_pml4:
    .skip 4096
boot_pdpt:
    .skip 4096
boot_pd:
    .skip 4 * 4096
boot_stack:
    .skip 64 * 1024
.global boot_stack_top
boot_stack_top:

.set PML4, boot_pml4 - boot_tables
.set PDPT, boot_pdpt - boot_tables
.set PD, boot_pd - boot_tables
