//! The start of the guest: the setup header, the entries, and what the loader says of the machine.
//!
//! The 64-bit entry follows Documentation/arch/x86/boot.rst and zero-page.rst of Linux, protocol 2.15. It is 0x200 bytes into
//! the protected-mode part. RSI points to the boot parameters. The image's memory is mapped one to one.
//!
//! The 32-bit entry follows Xen's PVH start ABI (docs/misc/pvh.pandoc). It is the first byte of the protected-mode part, for a
//! guest that starts as firmware. EBX points to `hvm_start_info`. It maps the first 4 GiB and goes on at the other entry.

#![allow(unsafe_code, reason = "the header and the entry are assembly")]

use core::arch::global_asm;

use crate::{memory, trap};

global_asm!(
    r#"
    .section .setup, "a"
setup:
    .org setup + 0x1f1
    .byte 1                     // setup_sects: one beside the boot sector
    .word 0                     // root_flags
    .long image_paragraphs      // syssize
    .word 0                     // ram_size
    .word 0                     // vid_mode
    .word 0                     // root_dev
    .word 0xaa55                // boot_flag
    .byte 0xeb, 0x6a            // jump over the header, which ends at 0x26c
    .ascii "HdrS"
    .word 0x20f                 // version
    .long 0                     // realmode_swtch
    .word 0, 0                  // start_sys_seg, kernel_version
    .byte 0                     // type_of_loader
    .byte 1                     // loadflags: LOADED_HIGH
    .word 0                     // setup_move_size
    .long LOAD_ADDRESS          // code32_start
    .long 0, 0, 0               // ramdisk_image, ramdisk_size, bootsect_kludge
    .word 0                     // heap_end_ptr
    .byte 0, 0                  // ext_loader_ver, ext_loader_type
    .long 0                     // cmd_line_ptr
    .long 0x7fffffff            // initrd_addr_max
    .long 0x200000              // kernel_alignment
    .byte 0, 21                 // relocatable_kernel, min_alignment
    .word 1                     // xloadflags: XLF_KERNEL_64
    .long 255                   // cmdline_size
    .long 0                     // hardware_subarch
    .quad 0                     // hardware_subarch_data
    .long 0, 0                  // payload_offset, payload_length
    .quad 0                     // setup_data
    .quad LOAD_ADDRESS          // pref_address
    .long image_memory          // init_size
    .long 0, 0                  // handover_offset, kernel_info_offset
    .org setup + 0x400          // SETUP_SIZE of link.ld

    .section .head, "ax"
head:
    .code32
    cli
    cld
    mov esi, ebx
    mov edi, 0x1000             // page tables: 0x1000 to 0x6fff
    xor eax, eax
    mov ecx, 0x6000 / 4
    rep stosd
    mov dword ptr [0x1000], 0x2003
    mov dword ptr [0x2000], 0x3003
    mov dword ptr [0x2008], 0x4003
    mov dword ptr [0x2010], 0x5003
    mov dword ptr [0x2018], 0x6003
    mov edi, 0x3000
    mov eax, 0x83               // 2 MiB, present, writable
3:  mov [edi], eax
    add edi, 8
    add eax, 0x200000
    jnc 3b
    mov eax, 0x1000
    mov cr3, eax
    mov eax, cr4
    or eax, 0x20                // PAE
    mov cr4, eax
    mov ecx, 0xc0000080         // EFER
    rdmsr
    or eax, 0x100               // LME
    wrmsr
    mov eax, cr0
    or eax, 0x80000000          // PG
    mov cr0, eax
    lgdt [gdt_pointer_32]
    mov esp, 0x8000
    mov eax, offset entry_64
    push 0x08
    push eax
    retf
    .code64
    .org head + 0x200
    .globl entry_64
entry_64:
    cli
    cld
    mov ebx, esi
    lea rdi, [rip + bss_start]
    lea rcx, [rip + bss_end]
    sub rcx, rdi
    xor eax, eax
    rep stosb
    lea rsp, [rip + {stack} + {stack_size}]
    lea rax, [rip + gdt]
    mov [rip + gdt_pointer + 2], rax
    lgdt [rip + gdt_pointer]
    push 0x08
    lea rax, [rip + 2f]
    push rax
    retfq
2:  mov eax, 0x10
    mov ds, eax
    mov es, eax
    mov ss, eax
    xor eax, eax
    mov fs, eax
    mov gs, eax
    mov rdi, rbx
    call {main}
    ud2

    .section .data
    .balign 16
gdt:
    .quad 0, 0x00af9b000000ffff, 0x00cf93000000ffff
gdt_pointer:
    .word 23
    .quad 0
gdt_pointer_32:
    .word 23
    .long gdt
    "#,
    stack = sym STACK,
    stack_size = const STACK_SIZE,
    main = sym main,
);

unsafe extern "Rust" {
    /// The binary's main function; see [`entry!`](crate::entry).
    safe fn guest_main(machine: &Machine) -> !;
}

/// The entry code calls it with the boot parameters' address.
extern "C" fn main(parameters: u64) -> ! {
    trap::init();
    memory::init();
    guest_main(&Machine::read(parameters))
}

const STACK_SIZE: usize = 64 << 10;

/// A vCPU's stack. Only the entry code uses it, through its address.
#[repr(C, align(16))]
pub(crate) struct Stack(core::cell::UnsafeCell<[u8; STACK_SIZE]>);

// SAFETY: nothing forms a reference to the contents. One vCPU uses it as its stack.
unsafe impl Sync for Stack {}

impl Stack {
    pub(crate) const fn new() -> Self {
        Self(core::cell::UnsafeCell::new([0; STACK_SIZE]))
    }
}

static STACK: Stack = Stack::new();

/// Most regions of the firmware's memory map that are kept.
const MAX_REGIONS: usize = 32;

/// A region of the firmware's memory map.
#[derive(Clone, Copy, Default)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// 1: RAM.
    pub kind: u32,
}

impl Region {
    /// Whether an address is in it.
    pub fn contains(&self, address: u64) -> bool {
        address.checked_sub(self.start).is_some_and(|offset| offset < self.length)
    }
}

/// The machine as the loader describes it.
pub struct Machine {
    regions: [Region; MAX_REGIONS],
    count: usize,
    /// End of RAM below 4 GiB.
    pub memory_end: u64,
    /// End of RAM above 4 GiB. If there is none: 4 GiB.
    pub high_end: u64,
    /// Address of the ACPI root pointer.
    pub rsdp: u64,
    command_line: [u8; 256],
}

const FOUR_GIB: u64 = 1 << 32;

/// First word of `hvm_start_info`.
const START_INFO_MAGIC: u32 = 0x336e_c578;

impl Machine {
    /// Reads the boot parameters, or the `hvm_start_info`, at `parameters`.
    pub fn read(parameters: u64) -> Self {
        if memory::read32(parameters) == START_INFO_MAGIC {
            let table = memory::read64(parameters + 0x28);
            let count = memory::read32(parameters + 0x30) as usize;
            let (rsdp, line) = (memory::read64(parameters + 0x20), memory::read64(parameters + 0x18));
            return Self::with(rsdp, line, (0..count.min(MAX_REGIONS) as u64).map(|n| table + n * 24));
        }
        const ACPI_RSDP_ADDR: u64 = 0x070;
        const E820_ENTRIES: u64 = 0x1e8;
        const CMD_LINE_PTR: u64 = 0x228;
        const E820_TABLE: u64 = 0x2d0;
        let count = usize::from(memory::read8(parameters + E820_ENTRIES)).min(MAX_REGIONS);
        let entries = (0..count as u64).map(|n| parameters + E820_TABLE + n * 20);
        let line = u64::from(memory::read32(parameters + CMD_LINE_PTR));
        Self::with(memory::read64(parameters + ACPI_RSDP_ADDR), line, entries)
    }

    /// The machine with this ACPI root pointer, this address of a command line (0: none), and these addresses of entries of a
    /// memory map. Both protocols have the same first 20 bytes in an entry.
    fn with(rsdp: u64, line: u64, entries: impl Iterator<Item = u64>) -> Self {
        let mut machine = Self {
            regions: [Region::default(); MAX_REGIONS],
            count: 0,
            memory_end: 0,
            high_end: FOUR_GIB,
            rsdp,
            command_line: [0; 256],
        };
        for (at, region) in entries.zip(&mut machine.regions) {
            machine.count += 1;
            *region =
                Region { start: memory::read64(at), length: memory::read64(at + 8), kind: memory::read32(at + 16) };
        }
        let ram = machine.regions.iter().filter(|region| region.kind == 1);
        for region in ram {
            let end = region.start.saturating_add(region.length);
            if region.start >= FOUR_GIB {
                machine.high_end = machine.high_end.max(end);
            } else {
                machine.memory_end = machine.memory_end.max(end);
            }
        }
        if line != 0 {
            for (at, byte) in (line..).zip(&mut machine.command_line) {
                *byte = memory::read8(at);
                if *byte == 0 {
                    break;
                }
            }
        }
        machine
    }

    /// The firmware's memory map.
    pub fn regions(&self) -> &[Region] {
        self.regions.get(..self.count).unwrap_or_default()
    }

    /// Words of the command line.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        let end = self.command_line.iter().position(|byte| *byte == 0).unwrap_or(self.command_line.len());
        let line = self.command_line.get(..end).and_then(|line| core::str::from_utf8(line).ok()).unwrap_or("");
        line.split_whitespace()
    }

    /// The value of an option on the command line. `key` includes the `=`.
    pub fn option(&self, key: &str) -> Option<&str> {
        self.words().find_map(|word| word.strip_prefix(key))
    }
}
