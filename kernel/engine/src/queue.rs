//! The device's side of a virtqueue, in either form (virtio 1.3 ch. 2.7: split, ch. 2.8: packed).
//!
//! Every index is the queue's own: of the guest's memory only what its driver is to write there is read (indices, ring
//! entries, descriptors, events), each once and then checked. Nothing that the host wrote there is ever read back.

#![allow(unsafe_code, reason = "a queue's ring is kept as it is found in the host's memory")]

use memory::GuestMemory;

#[cfg(all(test, not(miri)))]
mod model;
mod packed;
mod run;
mod split;

pub(crate) use run::{Entries, First, Look, Run, Used};

use crate::chain::{Chain, Segments};
use crate::fault::Fault;
use crate::schedule::Glance;
use crate::shared::{Features, QueueConfig};
use packed::Packed;
use split::Split;

/// The right to complete one request, once. It is neither copied nor cloned; one that outlives a reset of its device
/// is stale and completes nothing.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a request that is never completed stays with the device"]
pub struct Token {
    pub(crate) queue: u16,
    pub(crate) generation: u32,
    taken: Taken,
}

/// What a ring knows of a request by.
#[derive(Debug, PartialEq, Eq)]
struct Taken {
    /// What its driver calls it: its head, or its buffer id.
    id: u16,
    /// Where in the ring it stood.
    position: u16,
    /// Entries of the ring that it took.
    descriptors: u16,
}

impl Token {
    /// The queue it came from.
    #[must_use]
    pub const fn queue(&self) -> u16 {
        self.queue
    }
}

/// A request taken from a queue: a token and the chain's buffers in the [`Segments`] it was taken into.
#[derive(Debug)]
pub struct Request {
    /// To complete it with.
    pub token: Token,
    /// Its buffers.
    pub chain: Chain,
}

/// Whether a driver wants an interrupt for what was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing was published since it was looked at last.
    Nothing,
    /// The driver wants no interrupt.
    Quiet,
    /// The driver wants an interrupt.
    Interrupt,
}

/// A queue that holds no request, as plain data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueState {
    /// As the driver configured it.
    pub config: QueueConfig,
    /// The next position in the available ring. Of a packed ring: the next descriptor, and in bit 15 the wrap counter.
    pub avail: u16,
    /// The next position in the used ring. Of a packed ring: the same, as no request is out.
    pub used: u16,
}

impl QueueState {
    /// A queue as it begins: a packed ring's wrap counters are 1 (2.8.1).
    #[must_use]
    pub const fn start(config: QueueConfig, features: Features) -> Self {
        let position = if features.contains(Features::RING_PACKED) { packed::WRAP } else { 0 };
        Self { config, avail: position, used: position }
    }
}

/// A queue in use.
pub struct Queue {
    ring: Ring,
    index: u16,
    generation: u32,
    /// The region of the guest's memory that held the buffer looked at last.
    region: u8,
    in_flight: u16,
}

enum Ring {
    Split(Split),
    Packed(Packed),
}

/// Does the same with a ring of either form: a `Ring` of whoever calls it.
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
    /// Takes a queue into use as the driver configured it, from position `state.avail` and `state.used` on, with
    /// notifications off.
    ///
    /// # Errors
    /// Size, addresses or positions break the rules.
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
        Ok(Self { ring, index, generation, region: 0, in_flight: 0 })
    }

    /// Its positions in the ring, to go on from later; see [`QueueState`]. None while a request is out or a completion is
    /// not yet published.
    #[must_use]
    pub fn positions(&self) -> Option<(u16, u16)> {
        either!(&self.ring, ring => ring.positions()).filter(|_| self.in_flight == 0)
    }

    /// Requests taken and not yet completed.
    #[must_use]
    pub const fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// How many requests can be taken, at least: 0 only if there is none.
    ///
    /// # Errors
    /// A split ring's index moved back or more than a queue ahead.
    #[inline]
    pub fn available(&mut self) -> Result<u16, Fault> {
        either!(&mut self.ring, ring => ring.available())
    }

    /// What a look at the ring finds. Nothing is believed and nothing changes: the next visit reads it anew.
    #[must_use]
    #[inline]
    pub fn glance(&self) -> Glance {
        either!(&self.ring, ring => ring.glance())
    }

    /// Whether it holds no request, as far as a look says that believes nothing.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        either!(&self.ring, ring => ring.is_empty())
    }

    /// Takes the next request, its buffers appended to `segments`, which must have room for a chain. None: there is
    /// none.
    ///
    /// # Errors
    /// The guest broke a rule; the queue must not be used any more.
    #[inline]
    pub fn pop(&mut self, memory: &GuestMemory, segments: &mut Segments) -> Result<Option<Request>, Fault> {
        let Some((taken, chain)) = either!(&mut self.ring, ring => ring.pop(memory, segments)?) else {
            return Ok(None);
        };
        self.in_flight += 1;
        let token = Token { queue: self.index, generation: self.generation, taken };
        Ok(Some(Request { token, chain }))
    }

    /// Gives back the request taken last, as if it had not been taken; several are given back in reverse order. False,
    /// and no effect, if the token is stale or another was taken after it.
    pub fn rewind(&mut self, token: Token) -> bool {
        let last = token.generation == self.generation && either!(&mut self.ring, ring => ring.rewind(&token.taken));
        self.in_flight -= u16::from(last);
        last
    }

    /// Whether the chain at `head` of a split ring is with the device.
    #[inline]
    fn holds(&self, head: u16) -> bool {
        matches!(&self.ring, Ring::Split(ring) if ring.holds(head))
    }

    /// Completes a request of which the device wrote `written` bytes, in any order. The driver sees it after
    /// [`Queue::publish`]. False, and no effect, if the token is stale.
    ///
    /// # Errors
    /// The ring is not in the guest's memory (it was when the queue was set up).
    #[inline]
    pub fn complete(&mut self, memory: &GuestMemory, token: Token, written: u32) -> Result<bool, Fault> {
        let done = token.generation == self.generation
            && either!(&mut self.ring, ring => ring.complete(memory, &token.taken, written)?);
        self.in_flight -= u16::from(done);
        Ok(done)
    }

    /// Shows the driver what was completed since the last time, all at once. Between two looks at its wish fewer than 65,536
    /// requests may be shown, which a split ring counts in 16 bits: the limits of a visit are far below.
    #[inline]
    pub fn publish(&mut self) {
        either!(&mut self.ring, ring => ring.publish());
    }

    /// Whether the driver wants an interrupt for what was published since the last time. Between the two must be a full fence, or
    /// a driver that goes to sleep is not woken.
    ///
    /// # Errors
    /// The rings are not in the guest's memory (they were when the queue was set up).
    #[inline]
    pub fn wish(&mut self, memory: &GuestMemory) -> Result<Wish, Fault> {
        either!(&mut self.ring, ring => ring.wish(memory))
    }

    /// Asks the driver to notify from its next request on, and then looks again: how many requests there are to take.
    /// Only if there are none may the caller wait for a notification.
    ///
    /// # Errors
    /// As for [`Queue::available`].
    pub fn arm(&mut self, memory: &GuestMemory) -> Result<u16, Fault> {
        either!(&mut self.ring, ring => ring.arm(memory))
    }

    /// Asks the driver not to notify.
    ///
    /// # Errors
    /// The ring is not in the guest's memory (it was when the queue was set up).
    pub fn disarm(&mut self, memory: &GuestMemory) -> Result<(), Fault> {
        either!(&mut self.ring, ring => ring.disarm(memory))
    }
}
