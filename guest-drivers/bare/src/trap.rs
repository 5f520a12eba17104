//! Handles exceptions and interrupts. If an attempt faults, the program continues behind the faulting instruction. An
//! interrupt is counted and passed to a hook, if there is one. Any other exception is a panic.
//!
//! Follows SDM vol. 3A ch. 6 (APM vol. 2 ch. 8).

#![allow(unsafe_code, reason = "the IDT, and the entry code in assembly")]

use core::arch::global_asm;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::{attempt, cpu};

global_asm!(
    r#"
    .text
    .balign 16
    .globl trap_entries
trap_entries:
    .set vector, 0
    .rept 256
    .balign 16
    // These push an error code themselves: 8, 10 to 14, 17, 21, 29, 30.
    .if ((0x60227d00 >> vector) & 1) == 0 || vector > 31
    pushq $0
    .endif
    pushq $vector
    jmp trap_common
    .set vector, vector + 1
    .endr

trap_common:
    pushq %rax
    pushq %rcx
    pushq %rdx
    pushq %rbx
    pushq %rbp
    pushq %rsi
    pushq %rdi
    pushq %r8
    pushq %r9
    pushq %r10
    pushq %r11
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, %rdi
    cld
    call {trap}
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %r11
    popq %r10
    popq %r9
    popq %r8
    popq %rdi
    popq %rsi
    popq %rbp
    popq %rbx
    popq %rdx
    popq %rcx
    popq %rax
    addq $16, %rsp
    iretq
    "#,
    trap = sym trap,
    options(att_syntax),
);

unsafe extern "C" {
    /// 256 entries of 16 bytes.
    static trap_entries: [[u8; 16]; 256];
}

/// The stack as the entry code leaves it.
#[repr(C)]
pub struct Frame {
    registers: [u64; 15],
    vector: u64,
    error: u64,
    /// Address at which the interrupted program continues.
    pub rip: u64,
    cs: u64,
    /// Its flags.
    pub rflags: u64,
    rsp: u64,
    ss: u64,
}

/// The [`Hook`] as an address. 0: there is none.
static HOOK: AtomicUsize = AtomicUsize::new(0);
/// Arrivals by vector.
static ARRIVED: [AtomicU32; 256] = [const { AtomicU32::new(0) }; 256];

/// The IDT. It has a page of its own, as in Linux, because `eli` shadows no other.
#[repr(C, align(4096))]
struct Idt([[AtomicU64; 2]; 256]);
static IDT: Idt = Idt([const { [const { AtomicU64::new(0) }; 2] }; 256]);

/// Vector of spurious interrupts. SVR holds it after a reset, and guests here do not change it.
pub const SPURIOUS: u8 = 0xff;
const DEBUG: u64 = 1;
const NMI: u64 = 2;

/// A function that is called with each interrupt before its EOI, and with each #DB. IF is clear. It may open
/// interrupts.
pub type Hook = fn(vector: u8, frame: &mut Frame);

/// Has `hook` called with every interrupt from now on.
pub fn set_hook(hook: Hook) {
    HOOK.store(hook as usize, Relaxed);
}

fn hook() -> Option<Hook> {
    match HOOK.load(Relaxed) {
        0 => None,
        // SAFETY: only `set_hook` stores anything else, and that was a `Hook`.
        address => Some(unsafe { core::mem::transmute::<usize, Hook>(address) }),
    }
}

extern "C" fn trap(frame: &mut Frame) {
    match frame.vector {
        NMI => count(2),
        vector @ 0..32 if attempt::is_expected() => {
            frame.rip = attempt::faulted(vector, frame.rflags, frame.error, frame.rip);
        }
        vector @ DEBUG if hook().is_some() => show(vector, frame),
        0..32 => {
            let Frame { vector, error, rip, .. } = *frame;
            let cr2 = cpu::cr2();
            panic!("exception {vector} ({error:#x}) at {rip:#x}, CR2 {cr2:#x}, that nothing here expected");
        }
        vector => {
            count(vector);
            show(vector, frame);
            // A spurious interrupt is not in service (SDM vol. 3A 11.9).
            if vector != u64::from(SPURIOUS) {
                cpu::end_of_interrupt();
            }
        }
    }
}

fn show(vector: u64, frame: &mut Frame) {
    if let Some(hook) = hook() {
        hook(vector as u8, frame);
    }
}

fn count(vector: u64) {
    if let Some(arrived) = ARRIVED.get(vector as usize) {
        arrived.fetch_add(1, Relaxed);
    }
}

/// Makes the IDT and loads it.
pub fn init() {
    for (vector, entry) in (0..=255).zip(&IDT.0) {
        let (low, high) = gate(vector);
        entry[0].store(low, Relaxed);
        entry[1].store(high, Relaxed);
    }
    load();
}

/// Loads the IDT on a vCPU, after [`init`].
pub fn load() {
    // It does not fault, because the address is canonical.
    let _ = cpu::load_idt(IDT.0.as_ptr() as u64, 0xfff);
}

/// Returns both halves of a vector's gate, for a table elsewhere.
pub fn gate(vector: u8) -> (u64, u64) {
    let entry = &raw const trap_entries as u64 + u64::from(vector) * 16;
    // Interrupt gate, present, DPL 0, selector 8.
    (entry & 0xffff | 8 << 16 | 0x8e00 << 32 | (entry >> 16 & 0xffff) << 48, entry >> 32)
}

/// How many interrupts with this vector have arrived. Vector 2 counts NMIs.
pub fn arrived(vector: u8) -> u32 {
    ARRIVED.get(usize::from(vector)).map_or(0, |count| count.load(Relaxed))
}

/// How many NMIs and interrupts of any vector have arrived.
pub fn all_arrived() -> u32 {
    ARRIVED.iter().map(|count| count.load(Relaxed)).fold(0, u32::wrapping_add)
}
