//! Reads a byte of memory on a core in host mode, and reports a page fault instead of a panic. It needs the feature
//! `read-memory`, for the scenario `maps`.
//!
//! The line `where` on COM2 asks where some things are that not all cores map. The line `read CORE ADDRESS` asks for a byte. The core answers where it looks at its requests: the control core at
//! once, an engine's core at the end of a turn, a guest's core between an exit and the next entry, an idle core as
//! a job. The answer is a line of the log.

#![allow(unsafe_code, reason = "reads any address, which is what this is for")]

use crate::{
    arch::{CoreIndex, MAX_CORES, frame::Frame, number, time},
    channel, console, cores,
    facts::facts,
};
use core::{
    ptr,
    sync::atomic::{AtomicU64, Ordering},
};
use x86_64::registers::control::Cr2;

/// Microseconds that the control core waits for an answer. An emulated core may be late.
const PATIENCE: u64 = 2_000_000;

/// Value of a [`WANTED`] word: nothing is wanted.
const NOTHING: u64 = u64::MAX;
/// Value of an [`ANSWERS`] word: not answered yet.
const NONE: u64 = u64::MAX;
/// Value of an [`ANSWERS`] word, and of the routine: the read has faulted. A byte is less.
const FAULT: u64 = 1 << 8;

/// The address that each core is to read.
static WANTED: [AtomicU64; MAX_CORES] = [const { AtomicU64::new(NOTHING) }; MAX_CORES];
/// What each core has read.
static ANSWERS: [AtomicU64; MAX_CORES] = [const { AtomicU64::new(NONE) }; MAX_CORES];

// read_memory_byte(address): the byte, or FAULT. Only the first instruction may fault.
core::arch::global_asm!(
    ".global read_memory_byte",
    ".global read_memory_fault",
    "read_memory_byte:",
    "movzx eax, byte ptr [rdi]",
    "ret",
    "read_memory_fault:",
    "mov eax, 0x100",
    "ret",
);

unsafe extern "C" {
    static read_memory_fault: u8;
    fn read_memory_byte(address: u64) -> u64;
}

/// Tells where a guest's machine is.
pub fn tell_machine<T>(guest: usize, machine: &T) {
    log::info!("the machine of guest {guest} is at {}", ptr::from_ref(machine).addr());
}

/// Carries out a line of COM2. Returns false if it is none of these lines.
pub fn received(line: &str) -> bool {
    if line.trim() == "where" {
        tell_where(line);
        return true;
    }
    let mut words = line.split_whitespace();
    let (Some("read"), Some(core), Some(address)) = (words.next(), words.next(), words.next()) else { return false };
    let (Ok(core), Ok(address)) = (core.parse::<CoreIndex>(), address.parse::<u64>()) else { return false };
    match read(core, address) {
        Some(FAULT) => log::info!("read {{\"core\":{core},\"address\":{address},\"byte\":null}}"),
        Some(byte) => log::info!("read {{\"core\":{core},\"address\":{address},\"byte\":{byte}}}"),
        None => log::warn!("core {core} does not read memory"),
    }
    true
}

/// Tells where things are that only the control core and engines' cores map (this line and the list of boot modules on the heap,
/// what waits for the consoles and the management guest's channel in the image), and what every core maps (the boot core's box on the heap).
fn tell_where(line: &str) {
    let modules = facts().modules.as_ptr().addr();
    let waiting = console::place_of_waiting();
    let channel = ptr::from_ref(&channel::END).addr();
    let core = cores::get(0).map_or(0, |core| ptr::from_ref(core).addr());
    let line = line.as_ptr().addr();
    log::info!("where {{\"control\":[{line},{modules},{waiting},{channel}],\"everybody\":[{core}]}}");
}

fn read(index: CoreIndex, address: u64) -> Option<u64> {
    let (core, wanted, answer) = (cores::get(index)?, WANTED.get(index)?, ANSWERS.get(index)?);
    answer.store(NONE, Ordering::SeqCst);
    wanted.store(address, Ordering::SeqCst);
    if index == number::current() {
        serve(index);
    } else if !core.give(move |core| serve(core.index)) {
        // It has a job, and looks at its requests there.
        core.kick();
    }
    let until = time::tsc().saturating_add(time::micros(PATIENCE));
    while time::tsc() < until {
        let byte = answer.load(Ordering::SeqCst);
        if byte != NONE {
            return Some(byte);
        }
        core::hint::spin_loop();
    }
    wanted.store(NOTHING, Ordering::SeqCst);
    None
}

/// Reads what this core, of that number, is asked to read.
pub fn serve(index: CoreIndex) {
    let (Some(wanted), Some(place)) = (WANTED.get(index), ANSWERS.get(index)) else { return };
    if wanted.load(Ordering::Relaxed) == NOTHING {
        return;
    }
    let address = wanted.swap(NOTHING, Ordering::SeqCst);
    if address != NOTHING {
        // SAFETY: reads one byte. If it is not mapped, `leave` ends the routine. Reading memory has no effect. Nobody asks for
        // registers of devices.
        let answer = unsafe { read_memory_byte(address) };
        place.store(answer, Ordering::SeqCst);
    }
}

/// Makes the routine return if this page fault is its own: at its first instruction, and at the address that it reads.
pub fn leave(frame: &mut Frame) -> bool {
    let own = frame.rip == read_memory_byte as *const () as u64 && Cr2::read_raw() == frame.rdi;
    if own {
        frame.rip = &raw const read_memory_fault as u64;
    }
    own
}
