//! Handles each interrupt and exception. The entry code (arch/interrupts.s) calls it.

#![allow(unsafe_code, reason = "the assembly calls in here")]

use crate::{
    arch::{
        apic,
        frame::Frame,
        host_vectors::{NOTIFICATION, SPURIOUS, TIMER},
        idle, msr,
    },
    cores, machine_check, mem,
    nmi::{self, IOCHK, SERR},
    panic, trace, watchdog,
};
use ::trace::record;
use core::sync::atomic::{AtomicU64, Ordering};
use x86_64::registers::control::Cr2;

/// Number of interrupts on vectors that nobody uses.
pub static STRAY: AtomicU64 = AtomicU64::new(0);
/// Number of NMIs by which the chipset reports SERR#: a PCI device, or memory, has met an error that nobody can put right.
pub static SYSTEM_ERRORS: AtomicU64 = AtomicU64::new(0);
/// Number of NMIs by which the chipset reports IOCHK#: an error of a device on the LPC bus.
pub static IO_CHECKS: AtomicU64 = AtomicU64::new(0);
/// Number of NMIs that no core has sent and of which the chipset latches no cause.
pub static OTHER_NMIS: AtomicU64 = AtomicU64::new(0);

/// Value of [`cores::taking`]: no interrupt is wanted.
const NOT_TAKING: u16 = 0;
/// Value of [`cores::taking`]: one interrupt is wanted.
const WANTED: u16 = 1;
/// Value of [`cores::taking`] together with a vector: this interrupt was taken.
const TAKEN: u16 = 0x100;

/// Takes the most urgent interrupt that is pending in this core's local APIC. Sends no EOI for it. Returns `None` if no
/// interrupt is pending, or if the APIC holds it back because of its priority.
pub fn take_one() -> Option<u8> {
    let taking = cores::taking()?;
    taking.store(WANTED, Ordering::Relaxed);
    idle::take_pending();
    let taken = taking.swap(NOT_TAKING, Ordering::Relaxed);
    (taken >= TAKEN).then_some(taken as u8)
}

/// Hands an interrupt to [`take_one`]. Returns false if `take_one` does not wait for one. No second interrupt follows,
/// because the interrupted code goes on with interrupts off.
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

/// Handles a physical interrupt that the CPU acknowledged when it left the guest. Does what the interrupt's handler
/// would have done.
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

/// Returns whether to go back without IRET.
#[unsafe(no_mangle)]
extern "C" fn interrupt_rust(frame: &mut Frame) -> bool {
    match frame.vector as u8 {
        2 => non_maskable(frame),
        18 => {
            machine_check::in_host(frame);
            return mem::is_nmi_stack(frame.rsp);
        }
        13 if msr::leave(frame) => {}
        #[cfg(feature = "read-memory")]
        14 if crate::read_memory::leave(frame) => {}
        vector @ 32..=255 if take(frame, vector) => {}
        vector @ 32..=255 => {
            idle::leave_park(frame);
            acknowledged(vector);
        }
        vector => exception(vector, frame),
    }
    false
}

fn non_maskable(frame: &mut Frame) {
    panic::park_if_panicking();
    if frame.is_nested() {
        panic::report(format_args!("an NMI within an NMI, at {:#x}", frame.rip), None, Some(frame), None);
    }
    watchdog::answer(frame);
    idle::leave_park(frame);
    vmx::leave_entry_window(&mut frame.rip);
    if cores::is_boot_core() {
        machine_nmi();
    }
}

/// Counts an NMI of the machine itself. It looks like a kick, but no core has sent it, or the chipset latches its cause. Firmware
/// sends these NMIs to the boot core.
fn machine_nmi() {
    let sent = nmi::TO_BOOT_CORE.came();
    let status = nmi::take_latches();
    let causes =
        [(status.system_error, &SYSTEM_ERRORS), (status.io_check, &IO_CHECKS), (!sent && !status.any(), &OTHER_NMIS)];
    for (is_it, count) in causes {
        count.fetch_add(is_it.into(), Ordering::Relaxed);
    }
}

/// [`record::SYSTEM_ERROR`] and [`record::IO_CHECK`] are the other codes.
const UNKNOWN: u8 = 0;

/// Logs what the machine has reported by NMI since the last call. The control core calls it once a tick.
pub fn tell_machine_nmis() {
    static TOLD: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
    nmi::TO_BOOT_CORE.tick();
    let causes = [
        (&SYSTEM_ERRORS, record::SYSTEM_ERROR, format_args!("the chipset reports an error by NMI, {SERR}")),
        (&IO_CHECKS, record::IO_CHECK, format_args!("the chipset reports an error by NMI, {IOCHK}")),
        (
            &OTHER_NMIS,
            UNKNOWN,
            format_args!(
                "an NMI that no core has sent and of which the chipset has no cause: a button, or a management controller"
            ),
        ),
    ];
    for ((count, code, what), told) in causes.into_iter().zip(&TOLD) {
        let now = count.load(Ordering::Relaxed);
        let before = told.swap(now, Ordering::Relaxed);
        if before != now {
            log::warn!("{what}");
            trace::machine_nmi(code, now.wrapping_sub(before));
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
    panic::report(
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
