//! What interrupted the program: each interrupt's vector and where it hit, in the order in which they were taken, and
//! numbers that a test's own hook wants to remember.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use bare::trap::{self, Frame, Hook};

const KEPT: usize = 64;
const TRAP_FLAG: u64 = 1 << 8;
/// #DB.
pub const DEBUG: u8 = 1;

static TAKEN: AtomicUsize = AtomicUsize::new(0);
static VECTORS: [AtomicUsize; KEPT] = [const { AtomicUsize::new(0) }; KEPT];
static RIPS: [AtomicU64; KEPT] = [const { AtomicU64::new(0) }; KEPT];
static NOTES: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];

/// Begins to record.
pub fn init() {
    clear();
    set_hook(record);
}

/// Has a test's own hook called; it calls [`record`] itself.
pub fn set_hook(hook: Hook) {
    trap::set_hook(hook);
}

/// Forgets everything.
pub fn clear() {
    TAKEN.store(0, Relaxed);
    for note in &NOTES {
        note.store(0, Relaxed);
    }
}

/// Records an interrupt. Single-stepping ends with the first step.
pub fn record(vector: u8, frame: &mut Frame) {
    let index = TAKEN.fetch_add(1, Relaxed);
    if let (Some(slot), Some(rip)) = (VECTORS.get(index), RIPS.get(index)) {
        slot.store(vector.into(), Relaxed);
        rip.store(frame.rip, Relaxed);
    }
    if vector == DEBUG {
        frame.rflags &= !TRAP_FLAG;
    }
}

/// How many have been taken.
pub fn taken() -> usize {
    TAKEN.load(Relaxed)
}

/// Their vectors, the first ones if they are many.
pub fn vectors() -> heapless::Vec<u8, KEPT> {
    VECTORS.iter().take(taken()).map(|vector| vector.load(Relaxed) as u8).collect()
}

/// Where the program was when the `index`-th was taken.
pub fn rip(index: usize) -> u64 {
    RIPS.get(index).map_or(0, |rip| rip.load(Relaxed))
}

/// Remembers a number.
pub fn note(index: usize, value: u64) {
    if let Some(note) = NOTES.get(index) {
        note.store(value, Relaxed);
    }
}

/// A number remembered.
pub fn noted(index: usize) -> u64 {
    NOTES.get(index).map_or(0, |note| note.load(Relaxed))
}
