//! Abuses of a guest's own interrupts. A guest may do them, but they must harm nobody else. Each is repeated many
//! times, while other guests count what happens to them.
//!
//! Each abuse reports its rounds, and how many of its own interrupts arrived meanwhile: as many as it requested. Three
//! abuses do not end by themselves. [`fall`] ends in a triple fault. [`stick`] and [`alignment::stick`] end when the
//! guest is killed.

#![allow(unsafe_code, reason = "moves and rewrites the IDT")]

pub mod alignment;

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bare::virtio_pci::Parts;
use bare::{cpu, trap};

use crate::apic::{self, msr};
use crate::events;
use crate::load;
use crate::report::say;
use crate::time;

const VECTOR: u8 = 0x41;
const IDT_BYTES: usize = 4096;
const GATE_BYTES: usize = 16;
/// A vector that nobody uses.
const UNUSED: usize = 0x77;
/// P, in the upper half of a gate's first word.
const PRESENT: u64 = 1 << 47;

/// Room for an IDT that does not begin at a page boundary.
#[repr(align(4096))]
struct Room([AtomicU64; 2 * IDT_BYTES / 8]);
static ROOM: Room = Room([const { AtomicU64::new(0) }; 2 * IDT_BYTES / 8]);

/// Runs all abuses that end by themselves, one after another.
pub fn all(parts: Option<Parts>, rounds: u32) -> Result<(), &'static str> {
    for (name, abuse) in [
        ("icr", icr as fn(u32) -> Result<u32, &'static str>),
        ("idt-across-pages", idt_across_pages),
        ("idt-writes", idt_writes),
        ("every-vector", every_vector),
        ("tpr", tpr),
    ] {
        events::clear();
        said(name, rounds, abuse(rounds)?);
    }
    if let Some(parts) = parts {
        events::clear();
        said("msix-masks", rounds, load::masked(parts, rounds)?);
    }
    say!("\"do\":\"abuse\",\"rounds\":{rounds}");
    Ok(())
}

fn said(name: &str, rounds: u32, arrived: u32) {
    say!("\"do\":\"abused\",\"what\":\"{name}\",\"rounds\":{rounds},\"arrived\":{arrived}");
}

/// Sends an interrupt to this CPU and waits until it arrives.
fn ask_and_take(vector: u8) -> Result<(), &'static str> {
    let before = trap::arrived(vector);
    apic::self_ipi(vector);
    if time::wait(|| trap::arrived(vector) != before) { Ok(()) } else { Err("an interrupt of its own did not arrive") }
}

/// Writes every kind of command to the ICR, most of them for processors that do not exist.
fn icr(rounds: u32) -> Result<u32, &'static str> {
    const FIXED: u64 = 0;
    const LOWEST: u64 = 1 << 8;
    const SMI: u64 = 2 << 8;
    const RESERVED: u64 = 3 << 8;
    const NMI: u64 = 4 << 8;
    const INIT: u64 = 5 << 8;
    const STARTUP: u64 = 6 << 8;
    const EXTERNAL: u64 = 7 << 8;
    const LOGICAL: u64 = 1 << 11;
    const OTHERS: u64 = 3 << 18;
    let kinds = [FIXED, LOWEST, SMI, RESERVED, NMI, INIT, STARTUP, EXTERNAL];
    let before = trap::arrived(VECTOR);
    for round in 0..rounds {
        let kind = kinds[round as usize % kinds.len()];
        let to = u64::from(1 + round / 8 % 255) << 32;
        // All processors of a cluster that does not exist. Cluster 0 is the guest's own.
        let logical = to << 16 | 0xffff << 32;
        let vector = u64::from(round) & 0xff;
        for value in [
            to | kind | vector,
            kind | OTHERS | vector,
            logical | LOGICAL | kind | vector,
            u64::MAX << 32 | kind | OTHERS,
        ] {
            // Some are refused with #GP, which is correct too.
            let _ = cpu::write_msr(msr::ICR, value);
        }
        ask_and_take(VECTOR)?;
    }
    Ok(trap::arrived(VECTOR) - before)
}

/// Returns the address of the IDT.
fn idt() -> u64 {
    let mut pointer = [0_u16; 5];
    // SAFETY: stores exactly ten bytes.
    unsafe { asm!("sidt [{}]", in(reg) pointer.as_mut_ptr(), options(nostack, preserves_flags)) };
    pointer[1..].iter().rev().fold(0, |base, word| base << 16 | u64::from(*word))
}

/// Loads an IDT of `bytes` bytes from `base`.
fn load_idt(base: u64, bytes: usize) {
    let limit = bytes.saturating_sub(1) as u64 & 0xffff;
    let pointer = [base << 16 | limit, base >> 48];
    // SAFETY: it is a copy of the table in use, or the guest is meant to fault on it.
    unsafe { asm!("lidt [{}]", in(reg) &pointer, options(readonly, nostack, preserves_flags)) };
}

/// A word of the IDT in use.
fn gate_word(base: u64, at: usize) -> &'static AtomicU64 {
    // SAFETY: the IDT is a static table of atomic words (trap.rs), 4 KiB long.
    unsafe { AtomicU64::from_ptr(core::ptr::with_exposed_provenance_mut((base as usize) + at % IDT_BYTES / 8 * 8)) }
}

/// Where [`copy_across_pages`] begins in [`ROOM`].
const ACROSS: usize = IDT_BYTES / 2;

/// Copies the IDT to an address at which it crosses a page boundary. Returns the address.
fn copy_across_pages(home: u64) -> u64 {
    for at in (0..IDT_BYTES).step_by(8) {
        ROOM.0[(ACROSS + at) / 8].store(gate_word(home, at).load(Relaxed), Relaxed);
    }
    ROOM.0.as_ptr() as u64 + ACROSS as u64
}

/// Makes the table that [`shake_idt`] moves to.
pub fn prepare_shaking() {
    copy_across_pages(idt());
}

/// Moves this vCPU's IDT and back, with an interrupt of its own at each step, and rewrites a gate if told so. It does not wait for
/// the interrupts, so it may be left at any instruction. It mostly has its own IDT, which is shadowed, and the copy for a short time.
pub fn shake_idt(vector: u8, rewrite: bool) {
    let (home, away) = (idt(), ROOM.0.as_ptr() as u64 + ACROSS as u64);
    let gate = gate_word(home, UNUSED * GATE_BYTES);
    for (table, turns) in [(away, 10), (home, 1000)] {
        load_idt(table, IDT_BYTES);
        apic::self_ipi(vector);
        cpu::open_interrupts(turns);
        if rewrite {
            gate.fetch_xor(PRESENT, Relaxed);
        }
    }
}

/// Takes an interrupt of this vCPU's own.
pub fn take_own() -> Result<(), &'static str> {
    ask_and_take(VECTOR)
}

/// Moves the IDT to an address at which it crosses a page boundary, and back.
fn idt_across_pages(rounds: u32) -> Result<u32, &'static str> {
    let (home, before) = (idt(), trap::arrived(VECTOR));
    let away = copy_across_pages(home);
    for _ in 0..rounds {
        load_idt(away, IDT_BYTES);
        let moved = ask_and_take(VECTOR);
        load_idt(home, IDT_BYTES);
        moved?;
    }
    Ok(trap::arrived(VECTOR) - before)
}

/// Writes gates while interrupts arrive, also from the timer.
fn idt_writes(rounds: u32) -> Result<u32, &'static str> {
    let (home, before) = (idt(), trap::arrived(VECTOR));
    for round in 0..rounds {
        if round % 16 == 0 {
            apic::watchdog();
        }
        let gate = gate_word(home, UNUSED * GATE_BYTES);
        let old = gate.load(Relaxed);
        gate.store(old ^ PRESENT, Relaxed);
        let taken = ask_and_take(VECTOR);
        gate.store(old, Relaxed);
        taken?;
    }
    apic::stop_timer();
    Ok(trap::arrived(VECTOR) - before)
}

/// Uses every interrupt vector, even those that the host may use.
fn every_vector(rounds: u32) -> Result<u32, &'static str> {
    let before = trap::all_arrived();
    for round in 0..rounds {
        // 0xFF is the spurious interrupt's.
        ask_and_take(0x20 + (round % 0xdf) as u8)?;
    }
    Ok(trap::all_arrived() - before)
}

/// Raises the task priority, with interrupts open, while an interrupt of lower priority waits.
fn tpr(rounds: u32) -> Result<u32, &'static str> {
    let before = trap::arrived(VECTOR);
    for round in 0..rounds {
        bare::cpu::wrmsr(msr::TPR, 0xff);
        let waiting = trap::arrived(VECTOR);
        apic::self_ipi(VECTOR);
        // The first round waits long.
        time::open_us(if round == 0 { 200_000 } else { 10 });
        if trap::arrived(VECTOR) != waiting {
            return Err("an interrupt arrived that the task priority should have held back");
        }
        bare::cpu::wrmsr(msr::TPR, 0);
        if !time::wait(|| trap::arrived(VECTOR) != waiting) {
            return Err("an interrupt did not arrive when the task priority had fallen");
        }
    }
    Ok(trap::arrived(VECTOR) - before)
}

/// Switches the caches off, and keeps the CPU for ever. The host must keep them on.
pub fn uncached() -> ! {
    const CD: u64 = 1 << 30;
    /// Anybody who looks at the registers finds it in R15.
    const MARKER: u64 = 0x51de_c04e_0cd0_0cd0;
    let written = bare::instruction!("mov cr0, rax", cpu::cr0() | CD, bare::memory::ARENA);
    say!("\"do\":\"uncached\",\"written\":{},\"cr0\":{}", written.is_ok(), cpu::cr0());
    cpu::spin_marked(MARKER)
}

/// Loads an invalid IDT and takes an interrupt. That is a triple fault.
pub fn fall() -> ! {
    for (base, bytes) in [(0x5ead_0000_0000, 1), (u64::MAX >> 17, IDT_BYTES), (0x7ead_0000_0008, IDT_BYTES)] {
        load_idt(base, bytes);
    }
    apic::self_ipi(VECTOR);
    loop {
        cpu::open_interrupts(10);
    }
}

/// Raises #DB for ever with interrupts closed. `deep`: during the delivery of #DB itself, if the CPU does that.
pub fn stick(deep: bool) -> ! {
    // After the boot protocol the task segment is at address 0. So IST1 is at 0x24 (SDM vol. 3A 8.7).
    const STACK: u64 = 0x8_0000;
    bare::memory::write64(0x24, STACK);
    let gate = gate_word(idt(), GATE_BYTES);
    gate.store(gate.load(Relaxed) | 1 << 32, Relaxed);
    say!("\"do\":\"stick\"");
    // SAFETY: this program does not continue after it. DR0 is the address of the first word that the delivery pushes.
    // DR7 watches it for stores of eight bytes.
    unsafe {
        asm!(
            "cli",
            "mov dr0, {at}",
            "mov dr7, {watch}",
            "2:",
            ".byte 0xf1", // INT1
            "jmp 2b",
            at = in(reg) STACK - 8,
            watch = in(reg) if deep { 0x9_0402_u64 } else { 0x400 },
            options(noreturn),
        )
    }
}
