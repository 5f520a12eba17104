//! The engine's clock: the time-stamp counter, as in the hypervisor.

#![allow(unsafe_code, reason = "reads the time-stamp counter")]

use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// Now, in ticks.
#[inline]
pub fn now() -> u64 {
    // SAFETY: every x86_64 CPU has it, and Linux lets processes read it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Ticks in a microsecond, at least 1; measured against the system's clock at the first call.
pub fn ticks_per_microsecond() -> u64 {
    static RATE: OnceLock<u64> = OnceLock::new();
    *RATE.get_or_init(|| {
        let (begin, ticks) = (Instant::now(), now());
        thread::sleep(Duration::from_millis(20));
        let (took, ticks) = (begin.elapsed(), now().wrapping_sub(ticks));
        (ticks * 1000 / (took.as_nanos() as u64).max(1)).max(1)
    })
}
