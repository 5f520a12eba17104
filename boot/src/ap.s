// An application processor starts here after its start-up IPI (SDM vol. 3A 9.4 and 10.8.5). It starts in real mode, at
// CS:IP = vector * 4 KiB : 0. It ends with the kernel's own page tables, in a Rust function. The code is copied to a
// page below 1 MiB. All addresses in it are relative to that page. The kernel writes the parameters at its end.
//
// All processors run it at the same time. So it writes nothing into the page and has no stack, until the processor has found
// its seat (trampoline.rs) by its APIC ID and has taken it.

.section .rodata.ap, "a"
.balign 16
.global ap_start
.global ap_parameters
.global ap_end
.code16
ap_start:
    cli
    cld
    mov ax, cs
    mov ds, ax
    // Three instructions are given as bytes, because the assembler accepts no difference of symbols as an address in
    // Intel syntax.
    .byte 0x66, 0x0f, 0x01, 0x16                                // lgdt [disp16], 32-bit base
    .short ap_gdt_pointer - ap_start
    mov eax, cr4
    or eax, 0x20                                                // PAE
    mov cr4, eax
    .byte 0x66, 0xa1                                            // mov eax, [disp16]
    .short ap_cr3 - ap_start
    mov cr3, eax
    mov ecx, 0xc0000080                                         // IA32_EFER: LME, NXE
    rdmsr
    or eax, 0x900
    wrmsr
    mov eax, cr0
    and eax, 0x9fffffff                                         // caches on: CD and NW clear
    or eax, 0x80010001                                          // PG, WP, PE
    mov cr0, eax
    .byte 0x66, 0xff, 0x2e                                      // jmp far [disp16], 32-bit offset and selector
    .short ap_far - ap_start
.code64
ap_64:
    mov ax, 16
    mov ds, ax
    mov es, ax
    mov ss, ax
    xor eax, eax
    mov fs, ax
    mov gs, ax
    // x2APIC mode: enabled first, then extended (SDM vol. 3A 11.12.5). Only there the ID register has 32 bits (11.12.1).
    mov ecx, 0x1b                                               // IA32_APIC_BASE: EN, EXTD
    rdmsr
    or eax, 0x800
    wrmsr
    or eax, 0x400
    wrmsr
    mov ecx, 0x802                                              // the APIC ID
    rdmsr
    mov rbx, [rip + ap_seats]
    mov rcx, [rip + ap_count]
1:  test rcx, rcx
    jz 3f
    cmp [rbx], eax
    je 2f
    add rbx, 32                                                 // bytes of a seat
    dec rcx
    jmp 1b
2:  xor eax, eax                                                // from free
    mov edx, 1                                                  // to taken
    lock cmpxchg [rbx + 4], edx
    jnz 3f
    mov rsp, [rbx + 8]
    mov rdi, [rbx + 16]
    mov rax, [rip + ap_entry]
    xor ebp, ebp
    call rax
3:  cli
    hlt
    jmp 3b

.balign 8
ap_gdt:
    .quad 0
    .quad 0x00af9b000000ffff
    .quad 0x00cf93000000ffff
ap_gdt_pointer:
    .short 23
ap_parameters:
    .long 0                                                     // linear address of ap_gdt
ap_far:
    .long 0                                                     // linear address of ap_64
    .short 8
ap_cr3:
    .long 0
    .short 0
.balign 8
ap_seats:
    .quad 0
ap_count:
    .quad 0
ap_entry:
    .quad 0
ap_end:
.balign 4
.global ap_offsets
// For Rust: where ap_gdt and ap_64 are in the page.
ap_offsets:
    .long ap_gdt - ap_start
    .long ap_64 - ap_start
.code64
