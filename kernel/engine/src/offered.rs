//! Buffers that a driver has offered on queues that nobody visits, such as receive queues, while its device's queues are
//! looked at after their kicks only.
//!
//! At a kick the chains are taken from the ring, at most [`MOST`] of all queues together. Later the back-end gets its
//! buffers from here, and the ring is not read for them. What does not fit stays in the ring until the next kick.

use heapless::Vec;
use virtio::chain::{Chain, Segment, Segments};
use virtio::queue::{Request, Token};

/// Most chains held for a device. EDK2's network driver offers 64.
const MOST: usize = 64;
/// Most buffers of a chain. EDK2 has two: one for the header, one for the frame. A longer chain stays in the ring.
const MOST_BUFFERS: usize = 4;

/// A chain that was taken from its ring.
struct Held {
    queue: u16,
    position: u16,
    /// `None` while the back-end has it.
    token: Option<Token>,
    chain: Chain,
    buffers: Vec<Segment, MOST_BUFFERS>,
}

/// The chains of a device that were taken from their rings.
pub(crate) struct Offered {
    /// In the order in which they were taken.
    held: Vec<Held, MOST>,
    /// The queues whose chains are taken at kicks, one bit each.
    queues: u16,
    /// Of these, the ones that were kicked or started since, one bit each.
    due: u16,
}

impl Offered {
    /// No queue.
    pub const NONE: Self = Self { held: Vec::new(), queues: 0, due: 0 };

    /// Adds a queue.
    pub fn start(&mut self, queue: u16) {
        self.queues |= 1 << queue;
        self.due |= 1 << queue;
    }

    /// Whether the chains of this queue are taken at kicks.
    #[inline(always)]
    pub const fn has(&self, queue: u16) -> bool {
        self.queues >> queue & 1 != 0
    }

    /// Notes that a queue was kicked.
    pub const fn kicked(&mut self, queue: u16) {
        self.due |= 1 << queue;
    }

    /// Takes the queues that were kicked or started since the last call, one bit each.
    pub const fn take_due(&mut self) -> u16 {
        core::mem::replace(&mut self.due, 0)
    }

    /// Whether a queue was kicked or started since the last [`Offered::take_due`].
    pub const fn is_due(&self) -> bool {
        self.due != 0
    }

    /// Whether there is no room for another chain.
    pub fn is_full(&self) -> bool {
        self.held.is_full()
    }

    /// Holds a request whose buffers are in `segments`. Returns its token if there is no room for it.
    pub fn hold(&mut self, request: Request, segments: &Segments) -> Result<(), Token> {
        let Request { token, chain } = request;
        let Ok(buffers) = Vec::from_slice(chain.all(segments)) else { return Err(token) };
        let held = Held { queue: token.queue(), position: token.position(), token: Some(token), chain, buffers };
        self.held.push(held).map_err(|held| held.token).or_else(|token| token.map_or(Ok(()), Err))
    }

    /// Gives the back-end the oldest chain of a queue. Its buffers are appended to `segments`.
    pub fn pop(&mut self, queue: u16, segments: &mut Segments) -> Option<Request> {
        let held = self.held.iter_mut().find(|held| held.queue == queue && held.token.is_some())?;
        let chain = segments.append(&held.chain, &held.buffers)?;
        Some(Request { token: held.token.take()?, chain })
    }

    /// Takes back a chain that the back-end does not need now. Returns whether it came from here.
    pub fn rewind(&mut self, token: Token) -> bool {
        let mut held = self.held.iter_mut().filter(|held| held.token.is_none());
        let place = held.find(|held| held.queue == token.queue() && held.position == token.position());
        place.map(|held| held.token = Some(token)).is_some()
    }

    /// Forgets a chain that the back-end completes.
    pub fn completed(&mut self, token: &Token) {
        let (queue, position) = (token.queue(), token.position());
        self.held.retain(|held| held.token.is_some() || held.queue != queue || held.position != position);
    }

    /// Number of chains of a queue that the back-end can have.
    pub fn available(&self, queue: u16) -> u16 {
        self.held.iter().filter(|held| held.queue == queue && held.token.is_some()).count() as u16
    }

    /// Removes the newest chain of a queue that is to be taken out of use. Returns its token, for the ring.
    pub fn release(&mut self, queue: u16) -> Option<Token> {
        let newest = self.held.iter().rposition(|held| held.queue == queue && held.token.is_some())?;
        self.held.remove(newest).token
    }

    /// Removes a queue.
    pub const fn stop(&mut self, queue: u16) {
        self.queues &= !(1 << queue);
        self.due &= !(1 << queue);
    }
}
