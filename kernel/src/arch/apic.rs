//! This core's local APIC in x2APIC mode: end of interrupt, IPIs, timer (SDM vol. 3A ch. 11, 11.12).

#![allow(unsafe_code, reason = "the x2APIC is model-specific registers")]

use super::{host_vectors, idle, time};
use x86_64::registers::model_specific::Msr;

const APIC_BASE: u32 = 0x1b;
const ID: u32 = 0x802;
const TPR: u32 = 0x808;
const EOI: u32 = 0x80b;
const ISR: u32 = 0x810;
const IRR: u32 = 0x820;
const VECTORS: u32 = 256;
const SPURIOUS: u32 = 0x80f;
const ICR: u32 = 0x830;
const VERSION: u32 = 0x803;
const LVT_CMCI: u32 = 0x82f;
const LVT_TIMER: u32 = 0x832;
const LVT_LINT0: u32 = 0x835;
/// The local vector table, in the order in which CPUs introduced its entries. An APIC with n entries has the first n
/// (SDM vol. 3A 11.4.8, 11.5.1).
const LVTS: [u32; 7] = [LVT_TIMER, LVT_LINT0, 0x836, 0x837, 0x834, 0x833, LVT_CMCI];
const INITIAL_COUNT: u32 = 0x838;
const CURRENT_COUNT: u32 = 0x839;
const DIVIDE: u32 = 0x83e;
const TSC_DEADLINE: u32 = 0x6e0;

const LVT_MASKED: u64 = 1 << 16;
/// Bits of an LVT entry that [`reset`] keeps: delivery mode, polarity and trigger mode.
const LVT_KEPT: u64 = 7 << 8 | 1 << 13 | 1 << 15;
const LVT_TSC_DEADLINE: u64 = 2 << 17;

fn read(msr: u32) -> u64 {
    // SAFETY: the registers named in this file exist on every CPU with an x2APIC. Reading them has no effect.
    unsafe { Msr::new(msr).read() }
}

fn write(msr: u32, value: u64) {
    // SAFETY: the registers named in this file belong to this core alone. All values come from the callers below. The
    // fence in `send` makes earlier memory writes visible before an IPI.
    unsafe { Msr::new(msr).write(value) };
}

/// Switches this core's APIC to x2APIC mode, software-enabled, with the timer masked.
pub fn enable() {
    // xAPIC mode comes first: one step from disabled to x2APIC mode is #GP (SDM vol. 3A 11.12.5).
    write(APIC_BASE, read(APIC_BASE) | 1 << 11);
    write(APIC_BASE, read(APIC_BASE) | 1 << 10);
    write(SPURIOUS, 0x100 | u64::from(host_vectors::SPURIOUS));
    write(LVT_TIMER, LVT_MASKED);
    // LINT0 is the line from the 8259 interrupt controllers. Firmware leaves it unmasked.
    write(LVT_LINT0, LVT_MASKED);
    write(DIVIDE, 0b1011);
}

/// Returns IA32_APIC_BASE.
pub fn base() -> u64 {
    read(APIC_BASE)
}

/// Returns this core's APIC ID, with all of its 32 bits. Its APIC is in x2APIC mode.
pub fn id() -> u32 {
    read(ID) as u32
}

/// Ends the interrupt in service.
pub fn end_of_interrupt() {
    write(EOI, 0);
}

fn send(destination: u32, command: u64) {
    // SAFETY: this is a fence. WRMSR to the ICR does not serialise, and this core's writes must be visible before the
    // IPI.
    unsafe { core::arch::asm!("mfence", "lfence", options(nostack, preserves_flags)) };
    write(ICR, u64::from(destination) << 32 | command);
}

/// Sends an NMI. A kick is an NMI.
pub fn send_nmi(destination: u32) {
    send(destination, 4 << 8 | 1 << 14);
}

/// Sends an NMI to all other cores. A panic stops them by it.
pub fn send_nmi_to_others() {
    send(0, 3 << 18 | 4 << 8 | 1 << 14);
}

/// Sends a fixed interrupt. For a guest that owns its core's APIC, this is the completion itself. For a guest with a
/// virtual APIC, it notifies the CPU of a posted interrupt.
pub fn send_fixed(destination: u32, vector: u8) {
    send(destination, 1 << 14 | u64::from(vector));
}

/// Writes a register of this core's APIC for a guest that owns it. The caller has checked the value.
pub fn write_for_guest(msr: u32, value: u64) {
    write(msr, value);
}

/// Puts this core's APIC into its state after INIT, but enabled. Removes what a guest left there: a running timer, a
/// priority that holds interrupts back, interrupts in service, and pending interrupts.
pub fn reset() {
    let timer = LVT_MASKED;
    // One-shot mode comes first. In TSC-deadline mode the APIC ignores a write of the count, and vice versa.
    for (msr, value) in [(LVT_TIMER, timer), (INITIAL_COUNT, 0), (TPR, 0)] {
        write(msr, value);
    }
    if time::rates().deadline {
        write(LVT_TIMER, LVT_TSC_DEADLINE | timer);
        write(TSC_DEADLINE, 0);
        write(LVT_TIMER, timer);
    }
    let entries = ((read(VERSION) >> 16 & 0xff) as usize).saturating_add(1);
    for &lvt in LVTS.iter().take(entries) {
        write(lvt, read(lvt) & LVT_KEPT | LVT_MASKED);
    }
    write(DIVIDE, 0b1011);
    write(SPURIOUS, 0x100 | u64::from(host_vectors::SPURIOUS));
    // One EOI ends one interrupt in service. The host's handlers take and end pending interrupts.
    for _ in 0..2 * VECTORS {
        if (0..VECTORS / 32).any(|i| read(ISR.saturating_add(i)) != 0) {
            end_of_interrupt();
        } else if (0..VECTORS / 32).any(|i| read(IRR.saturating_add(i)) != 0) {
            idle::take_pending();
        } else {
            break;
        }
    }
}

/// Sends INIT.
pub fn send_init(destination: u32) {
    send(destination, 5 << 8 | 1 << 14);
}

/// Sends a start-up IPI for the code at physical address `page`.
pub fn send_startup(destination: u32, page: u32) {
    send(destination, 6 << 8 | 1 << 14 | u64::from(page >> 12));
}

/// Starts the timer: it counts down once from `count` and does not interrupt. Used to measure its rate.
pub fn start_count(count: u32) {
    write(LVT_TIMER, LVT_MASKED);
    write(INITIAL_COUNT, u64::from(count));
}

/// Returns what is left of the count.
pub fn current_count() -> u32 {
    read(CURRENT_COUNT) as u32
}

/// Interrupts this core after `count` ticks of the APIC timer (0: never).
pub fn arm_one_shot(count: u32) {
    write(LVT_TIMER, u64::from(host_vectors::TIMER));
    write(INITIAL_COUNT, u64::from(count));
}

/// Interrupts this core when the TSC reaches `deadline` (0: never).
pub fn arm_deadline(deadline: u64) {
    write(LVT_TIMER, LVT_TSC_DEADLINE | u64::from(host_vectors::TIMER));
    // SAFETY: this is a fence. The APIC must see the change of mode before the deadline (SDM vol. 3A 11.5.4.1).
    unsafe { core::arch::asm!("mfence", options(nostack, preserves_flags)) };
    write(TSC_DEADLINE, deadline);
}
