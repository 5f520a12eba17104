//! The outcome of an instruction that may fault: the attempt says where to go on, the exception handler goes on there.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Where to go on if the next instruction faults; 0: faults are not expected. Set by the attempt itself, in the same
/// piece of assembly as the instruction.
pub static RECOVER: AtomicU64 = AtomicU64::new(0);
/// Vector of the exception that the attempt met, plus one.
static FAULT: AtomicU64 = AtomicU64::new(0);

/// The outcome of an attempt after its assembly: the vector of the exception it met.
pub fn outcome() -> Result<(), u8> {
    RECOVER.store(0, Relaxed);
    match FAULT.swap(0, Relaxed) {
        0 => Ok(()),
        vector => Err((vector - 1) as u8),
    }
}

/// Whether an attempt is under way.
pub(crate) fn is_expected() -> bool {
    RECOVER.load(Relaxed) != 0
}

/// The attempt has met the exception `vector`. Returns where to go on.
pub(crate) fn faulted(vector: u64) -> u64 {
    FAULT.store(vector + 1, Relaxed);
    RECOVER.swap(0, Relaxed)
}
