//! An endless loop of #AC (SDM vol. 3A 6.15, interrupt 17). Code at CPL 3, with CR0.AM and RFLAGS.AC set, makes a
//! misaligned access. The handler returns to that access. Interrupts are closed, so only an exit interrupts the loop.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bare::{cpu, memory};

use super::{GATE_BYTES, PRESENT, gate_word, idt};
use crate::report::say;

const ALIGNMENT_CHECK: usize = 17;
/// The GDT: null, code and data of CPL 0 as in `bare`, data and code of CPL 3, the task segment in two words.
const SEGMENTS: [u64; 7] =
    [0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff, 0x00cf_f300_0000_ffff, 0x00af_fb00_0000_ffff, 0, 0];
const DATA_3: u64 = 0x18 | 3;
const CODE_3: u64 = 0x20 | 3;
const TASK: u16 = 0x28;
const TASK_BYTES: u64 = 104;
/// The handler's stack, in low memory that nothing else uses.
const STACK_0: u64 = 0x8_0000;
/// The stack of CPL 3, in low memory that nothing else uses.
const STACK_3: u64 = 0x8_8000;
/// The bits R/W, U/S and P of a page table entry.
const FOR_ALL: u64 = 7;

static GDT: [AtomicU64; 7] = [const { AtomicU64::new(0) }; 7];
/// The task segment. RSP0 is the eight bytes at offset 4.
static TSS: [AtomicU64; 13] = [const { AtomicU64::new(0) }; 13];

global_asm!(
    ".globl alignment_handler",
    "alignment_handler:",
    "add rsp, 8", // the error code
    "iretq",
);

unsafe extern "C" {
    static alignment_handler: u8;
}

/// Loops for ever.
pub fn stick() -> ! {
    let tss = TSS.as_ptr() as u64;
    TSS[0].store(STACK_0 << 32, Relaxed);
    TSS[1].store(STACK_0 >> 32, Relaxed);
    for (to, from) in GDT.iter().zip(SEGMENTS) {
        to.store(from, Relaxed);
    }
    GDT[5].store((TASK_BYTES - 1) | (tss & 0xff_ffff) << 16 | 0x89 << 40 | (tss >> 24 & 0xff) << 56, Relaxed);
    GDT[6].store(tss >> 32, Relaxed);
    let handler = &raw const alignment_handler as u64;
    let gate = |half: usize| gate_word(idt(), ALIGNMENT_CHECK * GATE_BYTES + half * 8);
    gate(1).store(handler >> 32, Relaxed);
    gate(0).store(handler & 0xffff | 8 << 16 | PRESENT | 0xe << 40 | (handler >> 16 & 0xffff) << 48, Relaxed);
    open_pages();
    say!("\"do\":\"stick\"");
    let pointer = [(GDT.as_ptr() as u64) << 16 | (size_of_val(&GDT) as u64 - 1), GDT.as_ptr() as u64 >> 48];
    // SAFETY: this program does not continue after it. The first three segments are those in use. Nothing else uses the
    // two stacks.
    unsafe {
        asm!(
            "cli",
            "lgdt [{pointer}]",
            "ltr {task:x}",
            "mov rax, cr0",
            "or eax, 1 << 18", // AM
            "mov cr0, rax",
            "push {data}",
            "push {stack}",
            "push 0x40002", // AC
            "push {code}",
            "lea rax, [rip + 2f]",
            "push rax",
            "iretq",
            "2:",
            "mov eax, [rsp + 1]",
            "jmp 2b",
            pointer = in(reg) &pointer,
            task = in(reg) TASK,
            data = const DATA_3,
            stack = in(reg) STACK_3,
            code = const CODE_3,
            options(noreturn),
        )
    }
}

/// Gives CPL 3 access to the first GiB, which the tables reserve for the supervisor.
fn open_pages() {
    const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
    let open = |entry: u64| {
        memory::write64(entry, memory::read64(entry) | FOR_ALL);
        memory::read64(entry) & ADDRESS
    };
    let directory = open(open(cpu::cr3() & ADDRESS));
    (0..512).for_each(|index| {
        open(directory + index * 8);
    });
    // SAFETY: these tables are in use already, and map everything as before.
    unsafe { cpu::set_cr3(cpu::cr3()) };
}
