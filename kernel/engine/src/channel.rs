//! A channel for one command at a time, from one core to another, with one reply to each. Neither core waits for the
//! other. `channel_model.rs` lets loom try every interleaving.

#![allow(unsafe_code, reason = "a command changes hands between two cores by a state word")]

use super::atomics::{AtomicU32, Ordering, UnsafeCell};

/// State: there is no command and no reply.
pub(super) const EMPTY: u32 = 0;
/// State: the sender is writing a command.
const WRITING: u32 = 1;
/// State: a command waits for the receiver.
const READY: u32 = 2;
/// State: the receiver has taken the command, and will answer it.
const TAKEN: u32 = 3;
/// State: a reply waits for the sender.
const DONE: u32 = 4;
/// State: the sender is taking the reply.
const READING: u32 = 5;

/// A channel for commands `C` and replies `R`.
pub struct Channel<C, R> {
    pub(super) state: AtomicU32,
    pub(super) command: UnsafeCell<Option<C>>,
    pub(super) reply: UnsafeCell<Option<R>>,
}

// SAFETY: `state` says at any time which core owns the cells. In EMPTY, READY and DONE, no core accesses them. In
// WRITING, TAKEN and READING, the owner is the one core that made this step by compare-exchange. Each hand-over is a
// release store, and the next owner reads it with acquire. The command and the reply are Send.
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
