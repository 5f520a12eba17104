//! A vCPU's timer that another core watches, so that the timer ends without an exit. The watching core compares the
//! deadline with the TSC again and again, and posts the interrupt when it is due ([`crate::posted`]). Only a core that
//! polls anyhow can do that.
//!
//! The vCPU's core sets the alarm before an entry and takes it back after the exit. Either it gets the alarm back, or the
//! alarm has rung and its interrupt is posted. Both exchange one word atomically, so exactly one of the two happens
//! (`model.rs` tries it).

use super::atomics::{AtomicU64, Ordering::SeqCst};

/// Bits of the vector; the others are the deadline's.
const VECTOR: u64 = 0xff;

/// Deadline and vector in one word, 0 if there is none. A cache line pair of its own: the watching core keeps it in its cache
/// until it changes.
#[derive(Debug)]
#[repr(align(128))]
pub struct Alarm(AtomicU64);

impl Default for Alarm {
    fn default() -> Self {
        Self::new()
    }
}

impl Alarm {
    /// Not set.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Sets it to a time of the TSC, at most 255 ticks after `deadline`. By the vCPU's core. `vector` is not 0.
    pub fn set(&self, deadline: u64, vector: u8) {
        self.0.store(deadline.saturating_add(VECTOR) & !VECTOR | u64::from(vector), SeqCst);
    }

    /// Takes it back. False: it has rung. By the vCPU's core, once after each [`Alarm::set`].
    #[must_use = "false means that its interrupt is posted, or about to be"]
    pub fn take_back(&self) -> bool {
        self.0.swap(0, SeqCst) != 0
    }

    /// Rings if it is due: the vector to post. From any core.
    #[must_use = "the interrupt has to be posted"]
    pub fn ring(&self, now: u64) -> Option<u8> {
        let set = self.0.load(SeqCst);
        if set == 0 || now < set & !VECTOR {
            return None;
        }
        // Taken back and set again meanwhile, to the same value: then it is due all the same.
        self.0.compare_exchange(set, 0, SeqCst, SeqCst).ok().map(|set| set as u8)
    }
}
