//! A vCPU's timer that another core watches. So the timer ends without an exit. The watching core polls: it compares
//! the deadline with the TSC, and posts the interrupt when it is due ([`crate::posted`]). Only a core that polls anyway
//! can do that.
//!
//! The vCPU's core sets the alarm before an entry and takes it back after the exit. Either it gets the alarm back, or
//! the alarm has fired and its interrupt is posted. Both exchange one word atomically. So exactly one of the two
//! happens (tested in `model.rs`).

use super::atomics::{AtomicU64, Ordering::SeqCst};

/// Bits of the vector. The other bits are the deadline's.
const VECTOR: u64 = 0xff;

/// Deadline and vector in one word, or 0. It has its own pair of cache lines, which the watching core keeps in its
/// cache until the word changes.
#[derive(Debug)]
#[repr(align(128))]
pub struct Alarm(AtomicU64);

impl Default for Alarm {
    fn default() -> Self {
        Self::new()
    }
}

impl Alarm {
    /// Makes an alarm that is not set.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Sets it to a TSC at most 255 ticks after `deadline`. `vector` is not 0. The vCPU's core calls it.
    pub fn set(&self, deadline: u64, vector: u8) {
        self.0.store(deadline.saturating_add(VECTOR) & !VECTOR | u64::from(vector), SeqCst);
    }

    /// Takes it back. Returns false if it has fired. The vCPU's core calls it, once after each [`Alarm::set`].
    #[must_use = "false means that its interrupt is posted, or about to be"]
    pub fn take_back(&self) -> bool {
        self.0.swap(0, SeqCst) != 0
    }

    /// Fires it if it is due. Returns the vector to post. Any core may call it.
    #[must_use = "the interrupt has to be posted"]
    pub fn ring(&self, now: u64) -> Option<u8> {
        let set = self.0.load(SeqCst);
        if set == 0 || now < set & !VECTOR {
            return None;
        }
        // The alarm may have been taken back and set again to the same value meanwhile. Then it is due too.
        self.0.compare_exchange(set, 0, SeqCst, SeqCst).ok().map(|set| set as u8)
    }
}
