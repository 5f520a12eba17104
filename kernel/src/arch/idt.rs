//! The interrupt descriptor table, shared by all cores, and what happens on each vector.
//!
//! Host code runs with interrupts off. They are opened in two places: in [`park`], and by a guest core after an exit
//! that a physical interrupt caused. NMIs are kicks from other cores and may arrive anywhere.

#![allow(unsafe_code, reason = "the table points to assembly, and the frame is the interrupted code's registers")]

use crate::{arch::apic, cores};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use spin::Once;
use x86_64::{
    VirtAddr,
    instructions::port::Port,
    registers::control::Cr2,
    structures::idt::{Entry, HandlerFunc, InterruptDescriptorTable},
};

core::arch::global_asm!(include_str!("interrupts.s"));

unsafe extern "C" {
    static interrupt_entries: u8;
    static park_window_start: u8;
    static park_window_end: u8;
    fn park(kick: *const AtomicBool);
}

/// The local APIC timer's vector.
pub const TIMER: u8 = 0xf0;
/// Posted-interrupt notification (SDM vol. 3C 30.6): for the CPU while a guest runs. In the host it has no meaning, because
/// the vCPU's core looks by itself before each entry.
pub const NOTIFICATION: u8 = 0xf2;
/// The local APIC's spurious vector.
pub const SPURIOUS: u8 = 0xff;

/// Registers of the interrupted code, as the assembly pushed them.
#[repr(C)]
#[derive(Debug)]
pub struct Frame {
    r15: u64,
    r14: u64,
    r13: u64,
    r12: u64,
    r11: u64,
    r10: u64,
    r9: u64,
    r8: u64,
    rdi: u64,
    rsi: u64,
    /// Frame pointer: where a backtrace starts.
    pub rbp: u64,
    rbx: u64,
    rdx: u64,
    rcx: u64,
    rax: u64,
    vector: u64,
    error: u64,
    /// Where it was interrupted.
    pub rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

static TABLE: Once<InterruptDescriptorTable> = Once::new();
/// Interrupts on vectors that nobody uses.
pub static STRAY: AtomicU64 = AtomicU64::new(0);
/// NMIs for which the chipset names a cause.
pub static MACHINE_NMIS: AtomicU64 = AtomicU64::new(0);

/// Loads the table on this core, building it on the first call.
pub fn load() {
    let table = TABLE.call_once(|| {
        let mut t = InterruptDescriptorTable::new();
        let entry = |vector: usize| VirtAddr::new(&raw const interrupt_entries as u64 + 16 * vector as u64);
        // SAFETY: each address is the entry for that vector, which pops or pushes the error code as the vector needs.
        unsafe {
            t.divide_error.set_handler_addr(entry(0));
            t.debug.set_handler_addr(entry(1));
            t.non_maskable_interrupt.set_handler_addr(entry(2)).set_stack_index(super::gdt::NMI_STACK);
            t.breakpoint.set_handler_addr(entry(3));
            t.overflow.set_handler_addr(entry(4));
            t.bound_range_exceeded.set_handler_addr(entry(5));
            t.invalid_opcode.set_handler_addr(entry(6));
            t.device_not_available.set_handler_addr(entry(7));
            t.double_fault.set_handler_addr(entry(8)).set_stack_index(super::gdt::DOUBLE_FAULT_STACK);
            t.invalid_tss.set_handler_addr(entry(10));
            t.segment_not_present.set_handler_addr(entry(11));
            t.stack_segment_fault.set_handler_addr(entry(12));
            t.general_protection_fault.set_handler_addr(entry(13));
            t.page_fault.set_handler_addr(entry(14));
            t.x87_floating_point.set_handler_addr(entry(16));
            t.alignment_check.set_handler_addr(entry(17));
            t.machine_check.set_handler_addr(entry(18)).set_stack_index(super::gdt::MACHINE_CHECK_STACK);
            t.simd_floating_point.set_handler_addr(entry(19));
            t.virtualization.set_handler_addr(entry(20));
            t.cp_protection_exception.set_handler_addr(entry(21));
            t.vmm_communication_exception.set_handler_addr(entry(29));
            t.security_exception.set_handler_addr(entry(30));
            for v in 32..256usize {
                let e: &mut Entry<HandlerFunc> = &mut t[v as u8];
                e.set_handler_addr(entry(v));
            }
        }
        t
    });
    table.load();
}

/// Halts this core until it is kicked or interrupted; returns at once if `kick` is set. Interrupts are off again on
/// return.
pub fn wait(kick: &AtomicBool) {
    // SAFETY: interrupts may be taken here: the descriptor tables are loaded on every core that gets this far, and
    // the handlers touch nothing that host code holds.
    unsafe { park(kick) };
}

/// Opens interrupts for as long as it takes to deliver those that are pending.
pub fn take_pending() {
    // SAFETY: as in `wait`. The NOP gives STI's shadow an instruction to cover.
    unsafe { core::arch::asm!("sti", "nop", "nop", "cli", options(nostack)) };
}

/// In [`cores::taking`]: no interrupt is wanted; one is; this and the vector: here it is.
const NOT_TAKING: u16 = 0;
const WANTED: u16 = 1;
const TAKEN: u16 = 0x100;

/// Takes the most urgent interrupt that is pending in this core's local APIC, and does not end it. None: there is none, or
/// its priority does not suffice.
pub fn take_one() -> Option<u8> {
    let taking = cores::taking()?;
    taking.store(WANTED, Ordering::Relaxed);
    take_pending();
    let taken = taking.swap(NOT_TAKING, Ordering::Relaxed);
    (taken >= TAKEN).then_some(taken as u8)
}

/// Whether the interrupt was wanted by [`take_one`]. No other comes after it: the interrupted code goes on with interrupts
/// off.
fn take(frame: &mut Frame, vector: u8) -> bool {
    const RFLAGS_IF: u64 = 1 << 9;
    match cores::taking() {
        Some(taking) if taking.load(Ordering::Relaxed) == WANTED => {
            taking.store(TAKEN | u16::from(vector), Ordering::Relaxed);
            frame.rflags &= !RFLAGS_IF;
            true
        }
        _ => false,
    }
}

/// A physical interrupt that the CPU acknowledged when it left the guest: what its handler would have done.
pub fn acknowledged(vector: u8) {
    match vector {
        TIMER => cores::timer_expired(),
        NOTIFICATION => {}
        SPURIOUS => return,
        _ => {
            STRAY.fetch_add(1, Ordering::Relaxed);
        }
    }
    apic::end_of_interrupt();
}

#[unsafe(no_mangle)]
extern "C" fn interrupt_rust(frame: &mut Frame) {
    match frame.vector as u8 {
        2 => non_maskable(frame),
        vector @ 32..=255 if take(frame, vector) => {}
        vector @ 32..=255 => {
            leave_park(frame);
            acknowledged(vector);
        }
        vector => exception(vector, frame),
    }
}

/// What was interrupted was about to halt: it does not any more.
fn leave_park(frame: &mut Frame) {
    let window = &raw const park_window_start as u64..&raw const park_window_end as u64;
    if window.contains(&frame.rip) {
        frame.rip = window.end;
    }
}

fn non_maskable(frame: &mut Frame) {
    crate::panic::park_if_panicking();
    leave_park(frame);
    vmx::leave_entry_window(&mut frame.rip);
    if cores::is_boot_core() {
        machine_nmi();
    }
}

/// Kicks and the machine's own NMIs look alike, but for the latter the chipset keeps SERR# and IOCHK# (port 0x61, bits 7
/// and 6), and firmware sends them to the boot core. Each is counted, and its latch cleared so that the next one is seen.
fn machine_nmi() {
    let mut control = Port::<u8>::new(0x61);
    // SAFETY: the NMI status and control register. Setting and clearing bits 2 and 3 clears the latches; the rest stays.
    unsafe {
        let status = control.read();
        if status & 0xc0 != 0 && status != 0xff {
            MACHINE_NMIS.fetch_add(1, Ordering::Relaxed);
            control.write(status & 0x0f | 0x0c);
            control.write(status & 0x03);
        }
    }
}

fn exception(vector: u8, frame: &Frame) -> ! {
    const NAMES: [&str; 22] = [
        "#DE divide error",
        "#DB debug",
        "NMI",
        "#BP breakpoint",
        "#OF overflow",
        "#BR bound range",
        "#UD invalid opcode",
        "#NM no device",
        "#DF double fault",
        "coprocessor overrun",
        "#TS invalid TSS",
        "#NP not present",
        "#SS stack fault",
        "#GP general protection",
        "#PF page fault",
        "reserved",
        "#MF x87",
        "#AC alignment check",
        "#MC machine check",
        "#XM SIMD",
        "#VE virtualization",
        "#CP control protection",
    ];
    let name = NAMES.get(usize::from(vector)).copied().unwrap_or("reserved exception");
    crate::panic::report(
        format_args!(
            "{name} at {:#x}, error code {:#x}, CR2 {:#x}, RSP {:#x}",
            frame.rip,
            frame.error,
            Cr2::read_raw(),
            frame.rsp
        ),
        None,
        Some(frame),
        (vector == 14 || vector == 8).then(Cr2::read_raw),
    )
}
