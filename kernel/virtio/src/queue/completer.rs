//! Completes many requests of a [`Queue`] that were taken before, in any order. The ring is looked up once, and the code per
//! request is compiled for each ring format.

use memory::ring::Slots;

use super::batch::Batch;
use super::packed::Packed;
use super::request::{Origin, Token};
use super::ring::{Queue, Ring};
use super::split::{Split, WORDS};

/// Completes requests of a queue. [`Complete::finish`] must follow.
pub enum Completer<'d> {
    /// Of a split ring.
    Split(SplitCompleter<'d>),
    /// Of a packed ring.
    Packed(PackedCompleter<'d>),
}

/// What both ring formats do.
pub trait Complete {
    /// The queue. Only its tokens are completed.
    fn origin(&self) -> Origin;

    /// Completes a request of this queue, into which the device wrote `written` bytes. Returns false, and does nothing, if
    /// it is not in flight.
    fn complete(&mut self, token: Token, written: u32) -> bool;

    /// Ends the sequence. The driver sees the completions after [`Queue::publish`].
    fn finish(self);
}

/// What both formats need at the end.
struct Common<'d> {
    origin: Origin,
    /// Requests of the queue that are in flight.
    in_flight: &'d mut u16,
    /// The device's queues that have completions to publish, one bit each.
    dirty: &'d mut u16,
}

impl Common<'_> {
    fn finish(self, completed: u16) {
        if completed != 0 {
            *self.in_flight = self.in_flight.wrapping_sub(completed);
            *self.dirty |= 1 << self.origin.queue();
        }
    }
}

/// Completes requests of a split ring.
pub struct SplitCompleter<'d> {
    common: Common<'d>,
    used: Slots<'static, [u32; 2]>,
    outstanding: &'d mut [u64; WORDS],
    /// The position of the next used entry, where it is kept and as it will be.
    kept: &'d mut u16,
    next_used: u16,
}

/// Completes requests of a packed ring.
pub struct PackedCompleter<'d> {
    common: Common<'d>,
    entries: Slots<'static, [u64; 2]>,
    ring: &'d mut Packed,
    completed: u16,
}

impl Complete for SplitCompleter<'_> {
    #[inline(always)]
    fn origin(&self) -> Origin {
        self.common.origin
    }

    #[inline(always)]
    fn complete(&mut self, token: Token, written: u32) -> bool {
        let done = token.origin == self.common.origin && Split::release(self.outstanding, token.taken.id);
        if done {
            self.used.set(self.next_used, [u32::from(token.taken.id), written]);
            self.next_used = self.next_used.wrapping_add(1);
        }
        done
    }

    #[inline(always)]
    fn finish(self) {
        let before = core::mem::replace(self.kept, self.next_used);
        self.common.finish(self.next_used.wrapping_sub(before));
    }
}

impl Complete for PackedCompleter<'_> {
    #[inline(always)]
    fn origin(&self) -> Origin {
        self.common.origin
    }

    #[inline(always)]
    fn complete(&mut self, token: Token, written: u32) -> bool {
        let done = token.origin == self.common.origin;
        if done {
            let (slot, word) = self.ring.complete_next(&token.taken, written);
            self.entries.entry(slot).set_second(0, word);
            self.completed = self.completed.wrapping_add(1);
        }
        done
    }

    #[inline(always)]
    fn finish(self) {
        self.common.finish(self.completed);
    }
}

impl<'d> Batch<'d> {
    /// Completes requests that were taken before. Returns `None` if the ring cannot be used for batches.
    pub fn completer(self) -> Option<Completer<'d>> {
        let Batch { queue: Queue { ring, origin, in_flight, .. }, dirty, .. } = self;
        let common = Common { origin: *origin, in_flight, dirty };
        Some(match ring {
            Ring::Split(ring) => {
                let (_, _, used) = ring.rings?;
                let Split { outstanding, next_used: kept, .. } = ring;
                let next_used = *kept;
                Completer::Split(SplitCompleter { common, used, outstanding, kept, next_used })
            }
            Ring::Packed(ring) => {
                Completer::Packed(PackedCompleter { common, entries: ring.entries?, ring, completed: 0 })
            }
        })
    }
}
