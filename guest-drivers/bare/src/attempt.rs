//! The outcome of an instruction that may fault. The attempt stores the address at which the program continues after a
//! fault. The exception handler returns to that address.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The address at which the program continues if the next instruction faults. 0: no fault is expected. The attempt sets
/// it, in the same piece of assembly as the instruction.
pub static RECOVER: AtomicU64 = AtomicU64::new(0);
/// Vector of the attempt's exception, plus one. 0: there was none.
static FAULT: AtomicU64 = AtomicU64::new(0);

/// Returns the outcome of an attempt, after its assembly. The error is the vector of its exception.
pub fn outcome() -> Result<(), u8> {
    RECOVER.store(0, Relaxed);
    match FAULT.swap(0, Relaxed) {
        0 => Ok(()),
        vector => Err((vector - 1) as u8),
    }
}

/// Whether an attempt is in progress.
pub(crate) fn is_expected() -> bool {
    RECOVER.load(Relaxed) != 0
}

/// Records the exception `vector` of the attempt. Returns the address at which the program continues.
pub(crate) fn faulted(vector: u64) -> u64 {
    FAULT.store(vector + 1, Relaxed);
    RECOVER.swap(0, Relaxed)
}
