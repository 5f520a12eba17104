//! A request that was taken from a queue, and what the engine can see of a queue without taking anything.

use crate::chain::Chain;

/// The right to complete one request, once. A token is not copied and not cloned. A token that outlives a reset of its
/// device is stale and completes nothing.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a request that is never completed stays with the device"]
pub struct Token {
    pub(super) origin: Origin,
    pub(super) taken: Taken,
}

/// A queue during one activation of its device, in one number: the queue's index in bits 47:32, the generation below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin(u64);

impl Origin {
    pub(super) const fn new(queue: u16, generation: u32) -> Self {
        Self((queue as u64) << 32 | generation as u64)
    }

    /// The queue's index.
    #[must_use]
    #[inline(always)]
    pub const fn queue(self) -> u16 {
        (self.0 >> 32) as u16
    }
}

/// What the ring needs to complete a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Taken {
    /// The index of the head descriptor, or the buffer id of a packed ring.
    pub id: u16,
    /// Its position in the ring.
    pub position: u16,
    /// Ring entries that it occupies.
    pub descriptors: u16,
}

impl Token {
    /// The queue it came from.
    #[must_use]
    pub const fn queue(&self) -> u16 {
        self.origin.queue()
    }

    /// Where it came from.
    #[must_use]
    #[inline(always)]
    pub const fn origin(&self) -> Origin {
        self.origin
    }

    /// Its position in the ring. No two requests of a queue that are in flight have the same.
    #[must_use]
    pub const fn position(&self) -> u16 {
        self.taken.position
    }
}

/// A request taken from a queue: a token and the chain's buffers in the [`Segments`](crate::chain::Segments) it was taken into.
#[derive(Debug)]
pub struct Request {
    /// The right to complete it.
    pub token: Token,
    /// Its buffers.
    pub chain: Chain,
}

/// Whether the driver wants a used buffer notification (virtio 1.3 2.7.7, 2.8.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsedNotification {
    /// Nothing was published since the last call.
    Nothing,
    /// The driver has suppressed the interrupt.
    Suppressed,
    /// The driver wants an interrupt.
    Wanted,
}

/// A queue's backlog, read without any effect on the queue. It may be inexact if it is [`INEXACT_BACKLOG`] or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// The driver's available index. It follows each new request only while fewer than [`INEXACT_BACKLOG`] wait.
    pub index: u16,
    /// Requests that wait.
    pub waiting: u16,
}

/// A [`Backlog`] of this many requests or more may be inexact. The scheduler asks only whether a queue is short.
pub const INEXACT_BACKLOG: u16 = 32;
