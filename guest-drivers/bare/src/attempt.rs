//! The outcome of an instruction that may fault. The attempt stores the address at which the program continues after a
//! fault. The exception handler returns to that address.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The address at which the program continues if the next instruction faults. 0: no fault is expected. The attempt sets
/// it, in the same piece of assembly as the instruction.
pub static RECOVER: AtomicU64 = AtomicU64::new(0);
/// Vector of the attempt's exception, plus one. 0: there was none.
static FAULT: AtomicU64 = AtomicU64::new(0);
/// Of the last attempt that faulted: RFLAGS in the exception's frame, its error code, and the address of the instruction.
static FRAME: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// Returns the outcome of an attempt, after its assembly. The error is the vector of its exception.
pub fn outcome() -> Result<(), u8> {
    RECOVER.store(0, Relaxed);
    match FAULT.swap(0, Relaxed) {
        0 => Ok(()),
        vector => Err((vector - 1) as u8),
    }
}

/// RFLAGS in the frame of the last attempt's exception.
pub fn flags() -> u64 {
    FRAME[0].load(Relaxed)
}

/// Error code of the last attempt's exception. 0 if it has none.
pub fn error() -> u64 {
    FRAME[1].load(Relaxed)
}

/// Address of the instruction that faulted in the last attempt.
pub fn address() -> u64 {
    FRAME[2].load(Relaxed)
}

/// Whether an attempt is in progress.
pub(crate) fn is_expected() -> bool {
    RECOVER.load(Relaxed) != 0
}

/// Records the exception `vector` of the attempt, with RFLAGS, error code and RIP of its frame. Returns the address at
/// which the program continues.
pub(crate) fn faulted(vector: u64, flags: u64, error: u64, rip: u64) -> u64 {
    FRAME[0].store(flags, Relaxed);
    FRAME[1].store(error, Relaxed);
    FRAME[2].store(rip, Relaxed);
    FAULT.store(vector + 1, Relaxed);
    RECOVER.swap(0, Relaxed)
}
