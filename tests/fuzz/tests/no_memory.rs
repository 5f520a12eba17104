//! What happens when there is no memory left. The allocator of this program fails when a test says so.
//!
//! - `commands`: what an operator, a script or a guest can ask for while guests run. Its n-th allocation fails, for each n. It gives
//!   an error or its usual result. Where code allocates without a way to fail, Rust ends the program, and the test has failed.
//! - `boot`: parsers of files and disks that are read once, some of them by crates that cannot refuse. They need no more memory than
//!   is known before they begin.

#![allow(unsafe_code, reason = "the allocator that counts and fails")]

#[path = "no_memory/boot.rs"]
mod boot;
#[path = "no_memory/commands.rs"]
mod commands;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;

/// Counts the memory that a thread has, and fails one of its allocations.
struct Failing;

thread_local! {
    /// Allocations until the one that fails. `None`: none fails.
    static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
    static NOW: Cell<usize> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(0) };
}

/// What the hypervisor's allocator needs for an allocation, at most: a tag behind it, and all in units of 32 bytes.
const fn chunk(bytes: usize) -> usize {
    (bytes + 8).next_multiple_of(32)
}

// SAFETY: the system's allocator does the work. An allocation that fails returns a null pointer.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(left) = LEFT.get() {
            if left == 0 {
                return ptr::null_mut();
            }
            LEFT.set(Some(left - 1));
            if left == 1 {
                return ptr::null_mut();
            }
        }
        NOW.set(NOW.get().wrapping_add(chunk(layout.size())));
        MOST.set(MOST.get().max(NOW.get()));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.set(NOW.get().wrapping_sub(chunk(layout.size())));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) };
    }
}

#[global_allocator]
static HEAP: Failing = Failing;

/// Runs `run`. Its allocation number `n`, from 1, and all that follow fail. Returns its result, and whether it got there.
fn failing<R>(n: u64, run: impl FnOnce() -> R) -> (R, bool) {
    LEFT.set(Some(n));
    let result = run();
    (result, LEFT.replace(None) == Some(0))
}

/// Runs `run`. Returns its result, and the most memory that it had at a time beyond what there was before.
fn needed<R>(run: impl FnOnce() -> R) -> (R, usize) {
    // The count of a thread that frees what others have made is below zero.
    NOW.set(1 << 40);
    MOST.set(1 << 40);
    let result = run();
    (result, MOST.get() - (1 << 40))
}

/// Runs `run` without memory for its n-th allocation, for each n. `check` gets the result and whether there was memory for all.
/// Returns the number of allocations.
fn for_each_allocation<R>(run: impl Fn() -> R, check: impl Fn(R, bool)) -> u64 {
    let mut n = 1;
    loop {
        let (result, failed) = failing(n, &run);
        check(result, !failed);
        if !failed {
            return n - 1;
        }
        n += 1;
    }
}

#[test]
fn the_allocation_that_is_to_fail_fails() {
    let take = || (0..3).try_for_each(|_| Vec::<u8>::new().try_reserve_exact(8)).is_ok();
    assert_eq!(for_each_allocation(take, |all, there_was| assert_eq!(all, there_was)), 3);
    assert_eq!(needed(|| drop((vec![0_u8; 100], vec![0_u8; 8]))).1, 128 + 32);
}
