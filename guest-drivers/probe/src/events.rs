//! Records interrupts in the order in which they were taken: the vector, and the address that was interrupted. Also
//! keeps numbers for a test's own hook.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use bare::trap::{self, Frame, Hook};

const KEPT: usize = 64;
/// RFLAGS.TF.
pub const TRAP_FLAG: u64 = 1 << 8;
/// #DB.
pub const DEBUG: u8 = 1;

static TAKEN: AtomicUsize = AtomicUsize::new(0);
static VECTORS: [AtomicUsize; KEPT] = [const { AtomicUsize::new(0) }; KEPT];
static RIPS: [AtomicU64; KEPT] = [const { AtomicU64::new(0) }; KEPT];
static FLAGS: [AtomicU64; KEPT] = [const { AtomicU64::new(0) }; KEPT];
static NOTES: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];

/// Starts to record.
pub fn init() {
    clear();
    set_hook(record);
}

/// Has a test's own hook called instead of [`record`]. The hook calls [`record`] itself.
pub fn set_hook(hook: Hook) {
    trap::set_hook(hook);
}

/// Deletes all records and numbers.
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
    if let Some(flags) = FLAGS.get(index) {
        flags.store(frame.rflags, Relaxed);
    }
    if vector == DEBUG {
        frame.rflags &= !TRAP_FLAG;
    }
}

/// How many interrupts were taken.
pub fn taken() -> usize {
    TAKEN.load(Relaxed)
}

/// The vectors of the interrupts, up to the first 64.
pub fn vectors() -> heapless::Vec<u8, KEPT> {
    VECTORS.iter().take(taken()).map(|vector| vector.load(Relaxed) as u8).collect()
}

/// The address that interrupt number `index` interrupted.
pub fn rip(index: usize) -> u64 {
    RIPS.get(index).map_or(0, |rip| rip.load(Relaxed))
}

/// RFLAGS in the frame of interrupt number `index`.
pub fn flags(index: usize) -> u64 {
    FLAGS.get(index).map_or(0, |flags| flags.load(Relaxed))
}

/// Keeps a number.
pub fn note(index: usize, value: u64) {
    if let Some(note) = NOTES.get(index) {
        note.store(value, Relaxed);
    }
}

/// Address of number `index`, for assembly that keeps an address of its own.
pub fn note_address(index: usize) -> *mut u64 {
    NOTES[index % NOTES.len()].as_ptr()
}

/// Returns a number that was kept.
pub fn noted(index: usize) -> u64 {
    NOTES.get(index).map_or(0, |note| note.load(Relaxed))
}
