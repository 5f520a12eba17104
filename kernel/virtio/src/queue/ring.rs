//! A virtqueue in use, split or packed.

#![allow(unsafe_code, reason = "a queue's ring is kept as it is found in the host's memory")]

use memory::GuestMemory;

use super::packed::Packed;
use super::request::{Backlog, Origin, Request, Token, UsedNotification};
use super::split::Split;
use super::state::QueueState;
use crate::chain::Segments;
use crate::config::Features;
use crate::fault::Fault;

/// A queue in use.
pub struct Queue {
    pub(super) ring: Ring,
    pub(super) index: u16,
    pub(super) origin: Origin,
    /// The guest memory region of the last buffer of each [`Purpose`](super::Purpose).
    pub(super) regions: [u8; 2],
    /// Requests taken and not yet completed. A ring has fewer than 65,536.
    pub(super) in_flight: u16,
    /// What was found too small, if nothing was taken since.
    short: Option<Short>,
}

/// Requests that were taken for a need, found too small together, and put back.
#[derive(Clone, Copy)]
struct Short {
    /// Bytes that were needed.
    need: u32,
    /// The position of the first of them.
    first: u16,
    /// The position after the last of them, if more requests would help.
    end: Option<u16>,
}

/// The ring of a queue.
pub(super) enum Ring {
    Split(Split),
    Packed(Packed),
}

/// Evaluates the same expression for a ring of either format. The caller must have `Ring` in scope.
macro_rules! either {
    ($ring:expr, $name:ident => $what:expr) => {
        match $ring {
            Ring::Split($name) => $what,
            Ring::Packed($name) => $what,
        }
    };
}
pub(crate) use either;

impl Queue {
    /// Takes a queue into use with the driver's configuration. It starts at positions `state.avail` and `state.used`,
    /// with notifications disabled.
    ///
    /// # Errors
    /// The size, an address or a position breaks the rules.
    ///
    /// # Safety
    /// `memory`, or a clone of it, must live as long as the queue.
    pub unsafe fn new(
        memory: &GuestMemory,
        index: u16,
        generation: u32,
        features: Features,
        max_size: u16,
        state: &QueueState,
    ) -> Result<Self, Fault> {
        let ring = if features.contains(Features::RING_PACKED) {
            // SAFETY: the queue lives no longer than the memory, as the caller says, and the ring no longer than the queue.
            Ring::Packed(unsafe { Packed::new(memory, features, max_size, state)? })
        } else {
            // SAFETY: as above.
            Ring::Split(unsafe { Split::new(memory, features, max_size, state)? })
        };
        Ok(Self { ring, index, origin: Origin::new(index, generation), regions: [0; 2], in_flight: 0, short: None })
    }

    /// Returns the positions from which the queue can be resumed; see [`QueueState`]. Returns `None` while a request is
    /// taken or a completion is not published.
    #[must_use]
    pub fn positions(&self) -> Option<(u16, u16)> {
        either!(&self.ring, ring => ring.positions()).filter(|_| self.in_flight == 0)
    }

    /// Requests taken and not yet completed.
    #[must_use]
    pub const fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// Returns how many requests can be taken, at least. It returns 0 only if there is none.
    ///
    /// # Errors
    /// The index of a split ring moved back, or more than a queue ahead.
    #[inline]
    pub fn available(&mut self) -> Result<u16, Fault> {
        either!(&mut self.ring, ring => ring.available())
    }

    /// Reads the backlog without any effect. The value is a hint: the next visit reads the ring again.
    #[must_use]
    #[inline]
    pub fn backlog(&self) -> Backlog {
        either!(&self.ring, ring => ring.backlog())
    }

    /// Whether the ring looks empty. The value is a hint, like [`Queue::backlog`].
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        either!(&self.ring, ring => ring.is_empty())
    }

    /// Takes the next request and appends its buffers to `segments`, which must have room for a chain. Returns `None`
    /// if there is no request.
    ///
    /// # Errors
    /// The guest broke a rule. The queue must not be used any more.
    #[inline]
    pub fn pop(&mut self, memory: &GuestMemory, segments: &mut Segments) -> Result<Option<Request>, Fault> {
        let Some((taken, chain)) = either!(&mut self.ring, ring => ring.pop(memory, segments)?) else {
            return Ok(None);
        };
        self.in_flight = self.in_flight.wrapping_add(1);
        let token = Token { origin: self.origin, taken };
        Ok(Some(Request { token, chain }))
    }

    /// Puts back the request that was taken last, as if it had not been taken. Put several back in reverse order.
    /// Returns false, and does nothing, if the token is stale or another request was taken after it.
    pub fn rewind(&mut self, token: Token) -> bool {
        let last = token.origin == self.origin && either!(&mut self.ring, ring => ring.rewind(&token.taken));
        self.in_flight = self.in_flight.wrapping_sub(last.into());
        last
    }

    /// Whether the device holds the chain at `head` of a split ring.
    #[inline]
    pub(super) fn holds(&self, head: u16) -> bool {
        matches!(&self.ring, Ring::Split(ring) if ring.holds(head))
    }

    /// Limits the descriptors of later chains, those of indirect tables included. `most` is not 0. A longer chain is
    /// [`Fault::ChainTooLong`].
    pub fn limit_chains(&mut self, most: u16) {
        either!(&mut self.ring, ring => ring.limit_chains(most));
    }

    /// The position of the next request to take.
    #[must_use]
    #[inline]
    pub fn place(&self) -> u16 {
        either!(&self.ring, ring => ring.place())
    }

    /// Remembers that the next requests are too small for `need` bytes. They were taken, and are put back. `end` is the
    /// position after the last of them if more requests would help.
    pub fn remember_short(&mut self, need: u32, end: Option<u16>) {
        self.short = Some(Short { need, first: self.place(), end });
    }

    /// Whether the next requests are known to be too small for `need` bytes, so that nobody need take them to find out.
    /// Some(true): more requests would help, and the driver has offered none since.
    #[must_use]
    #[inline]
    pub fn known_short(&self, need: u32) -> Option<bool> {
        let Short { need: for_less, first, end } = self.short?;
        let unchanged = need >= for_less && first == self.place();
        let unchanged = unchanged && end.is_none_or(|end| either!(&self.ring, ring => ring.ends_at(end)));
        unchanged.then_some(end.is_some())
    }

    /// Completes a request, in any order. The device wrote `written` bytes. The driver sees it after
    /// [`Queue::publish`]. Returns false, and does nothing, if the token is stale.
    ///
    /// # Errors
    /// The ring is not in the guest's memory (it was when the queue was set up).
    #[inline]
    pub fn complete(&mut self, memory: &GuestMemory, token: Token, written: u32) -> Result<bool, Fault> {
        let done = token.origin == self.origin
            && either!(&mut self.ring, ring => ring.complete(memory, &token.taken, written)?);
        self.in_flight = self.in_flight.wrapping_sub(done.into());
        Ok(done)
    }

    /// Returns the position of the next used entry, and the position after it if the request of `token` is completed
    /// next. Positions are as in [`QueueState`].
    #[must_use]
    pub fn completion(&self, token: &Token) -> (u16, u16) {
        either!(&self.ring, ring => ring.completion(&token.taken))
    }

    /// Publishes all completions at once. Between two calls of [`Queue::used_notification`] fewer than 65,536 requests
    /// may be published, because a split ring counts them in 16 bits. The limits of a visit are far below that.
    #[inline]
    pub fn publish(&mut self) {
        either!(&mut self.ring, ring => ring.publish());
    }

    /// Returns whether the driver wants an interrupt for what was published since the last call. A full fence must come
    /// between [`Queue::publish`] and this call. Without it a driver that goes to sleep is not woken.
    ///
    /// # Errors
    /// The rings are not in the guest's memory (they were when the queue was set up).
    #[inline]
    pub fn used_notification(&mut self, memory: &GuestMemory) -> Result<UsedNotification, Fault> {
        either!(&mut self.ring, ring => ring.used_notification(memory))
    }

    /// The position up to which the driver can see completions. Positions count the entries of a split ring, or the
    /// descriptors of a packed one, so that requests of more than one descriptor count more than once there.
    #[must_use]
    #[inline]
    pub fn published(&self) -> u16 {
        either!(&self.ring, ring => ring.published())
    }

    /// How far it is from one position on to another one.
    #[must_use]
    #[inline]
    pub fn distance(&self, from: u16, to: u16) -> u16 {
        either!(&self.ring, ring => ring.distance(from, to))
    }

    /// Whether `position` is `mark`, or less than half of all positions after it.
    #[must_use]
    #[inline]
    pub fn has_passed(&self, position: u16, mark: u16) -> bool {
        either!(&self.ring, ring => ring.has_passed(position, mark))
    }

    /// What the driver says now of the interrupts that it wants: `used_event` or a flag in a split ring, its event suppression
    /// structure in a packed one. 0 if that is not in the guest's memory.
    #[must_use]
    #[inline]
    pub fn driver_word(&self, memory: &GuestMemory) -> u32 {
        either!(&self.ring, ring => ring.driver_word(memory))
    }

    /// Whether such a word names a completion at `mark` or after it.
    #[must_use]
    #[inline]
    pub fn is_past(&self, word: u32, mark: u16) -> bool {
        either!(&self.ring, ring => ring.is_past(word, mark))
    }

    /// Whether the driver is known to have taken the completions before `mark`, or to have begun to. It had said `word`
    /// ([`Queue::driver_word`]) when they were published. It is known by any of these:
    ///
    /// - its word has changed, and names a completion at `mark` or after it,
    /// - its word has changed, and names no completion: it has switched interrupts on or off,
    /// - in a split ring it has offered so much that it must have taken them.
    ///
    /// A driver that writes something else is believed.
    #[must_use]
    #[inline]
    pub fn is_taken(&self, memory: &GuestMemory, mark: u16, word: u32) -> bool {
        either!(&self.ring, ring => ring.is_taken(memory, mark, word))
    }

    /// Enables notifications, then reads the ring again. Returns how many requests there are. Only if it returns 0 may
    /// the caller wait for a notification.
    ///
    /// # Errors
    /// As for [`Queue::available`].
    pub fn arm(&mut self, memory: &GuestMemory) -> Result<u16, Fault> {
        either!(&mut self.ring, ring => ring.arm(memory))
    }

    /// Disables notifications.
    ///
    /// # Errors
    /// The ring is not in the guest's memory (it was when the queue was set up).
    pub fn disarm(&mut self, memory: &GuestMemory) -> Result<(), Fault> {
        either!(&mut self.ring, ring => ring.disarm(memory))
    }
}
