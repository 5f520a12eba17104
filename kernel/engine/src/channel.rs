//! A channel for one command at a time, from one core to another, with one reply to each. Neither core waits for the
//! other. `channel_model.rs` lets loom try every interleaving.

#![allow(unsafe_code, reason = "a command changes hands between two cores by a state word")]

use super::atomics::{AtomicU32, Ordering, UnsafeCell};

pub(super) const EMPTY: u32 = 0;
const WRITING: u32 = 1;
const READY: u32 = 2;
const TAKEN: u32 = 3;
const DONE: u32 = 4;
const READING: u32 = 5;

/// A channel for commands `C` and replies `R`.
pub struct Channel<C, R> {
    pub(super) state: AtomicU32,
    pub(super) command: UnsafeCell<Option<C>>,
    pub(super) reply: UnsafeCell<Option<R>>,
}

// SAFETY: each cell belongs at any time to the one core that `state` says: EMPTY nobody, WRITING and READING the core
// that made that step by compare-exchange, READY and TAKEN the one that obeys. Each hand-over is a release store that the
// next owner reads with acquire. What is handed over is Send.
unsafe impl<C: Send, R: Send> Sync for Channel<C, R> {}

impl<C, R> Channel<C, R> {
    /// Submits a command.
    pub fn submit(&self, command: C) -> Result<(), C> {
        if self.state.compare_exchange(EMPTY, WRITING, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return Err(command);
        }
        // SAFETY: we made the step to WRITING, so the cell is ours until the store below.
        unsafe { *self.command.get() = Some(command) };
        self.state.store(READY, Ordering::Release);
        Ok(())
    }

    /// Takes the reply to the last command, once there is one.
    pub fn reply(&self) -> Option<R> {
        self.state.compare_exchange(DONE, READING, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // SAFETY: we made the step to READING, so the cell is ours until the store below.
        let reply = unsafe { (*self.reply.get()).take() };
        self.state.store(EMPTY, Ordering::Release);
        reply
    }

    /// Takes the command. For the receiver.
    #[inline]
    pub fn take(&self) -> Option<C> {
        if self.state.load(Ordering::Relaxed) != READY {
            return None;
        }
        // If two receivers use the channel by mistake, only one of them gets the command.
        self.state.compare_exchange(READY, TAKEN, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // SAFETY: we made the step to TAKEN, so both cells are ours until `answer`.
        unsafe { (*self.command.get()).take() }
    }

    /// Answers the command that was taken. For the receiver.
    pub fn answer(&self, reply: R) {
        if self.state.load(Ordering::Relaxed) != TAKEN {
            return;
        }
        // SAFETY: in TAKEN the cell is the taker's.
        unsafe { *self.reply.get() = Some(reply) };
        self.state.store(DONE, Ordering::Release);
    }
}
