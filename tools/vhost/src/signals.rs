//! Waits for SIGINT and SIGTERM, without a handler.

#![allow(unsafe_code, reason = "the standard library has no signals")]

use std::ptr;
use std::time::Duration;

fn ending() -> libc::sigset_t {
    // SAFETY: all-zero bytes are a valid `sigset_t`; `sigemptyset` initializes it.
    let mut set = unsafe { std::mem::zeroed() };
    // SAFETY: a set of ours.
    unsafe {
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGINT);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
    }
    set
}

/// Blocks the signals for [`wait`], in this thread and all threads that it starts.
pub fn hold() {
    let set = ending();
    // SAFETY: a valid set.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) };
}

/// Waits for one of the signals. Returns false if none came in that time.
pub fn wait(limit: Duration) -> bool {
    let set = ending();
    let limit = libc::timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    // SAFETY: a valid set and a valid time; no information is asked for.
    unsafe { libc::sigtimedwait(&raw const set, ptr::null_mut(), &raw const limit) > 0 }
}
