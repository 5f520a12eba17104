//! Requests that are completed in the order in which they were taken.
//!
//! A device whose requests are in order can be taken over after its host has died in mid-request: the requests from the
//! next used position on are those that were not answered. For that a [`Track`] keeps the position.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use virtio::config::{MAX_QUEUE_SIZE, MAX_QUEUES};
use virtio::queue::Token;

/// Learns of each completion. Positions are as in [`virtio::queue::QueueState`].
pub trait Track: Sync {
    /// The entry at `from` is about to be written and published. `to` is the position after it.
    fn completing(&self, queue: u16, from: u16, to: u16);

    /// The driver can see the completion.
    fn completed(&self, queue: u16, from: u16, to: u16);
}

/// A request that was taken: its position and, when it has ended, the token and the bytes written.
type Entry = (u16, Option<(Token, u32)>);

/// The requests of a device that are in flight, in the order of each queue.
pub struct Order {
    track: &'static dyn Track,
    queues: Box<[VecDeque<Entry>; MAX_QUEUES]>,
}

impl Order {
    /// No requests. Allocates room for as many as the queues may have, so nothing is allocated later.
    pub fn new(track: &'static dyn Track) -> Self {
        let queue = |_| VecDeque::with_capacity(usize::from(MAX_QUEUE_SIZE));
        Self { track, queues: Box::new(core::array::from_fn(queue)) }
    }

    /// A request was taken.
    pub fn taken(&mut self, token: &Token) {
        if let Some(queue) = self.queues.get_mut(usize::from(token.queue())) {
            queue.push_back((token.position(), None));
        }
    }

    /// The request that was taken last was put back.
    pub fn rewound(&mut self, queue: u16, position: u16) {
        if let Some(queue) = self.queues.get_mut(usize::from(queue)) {
            queue.pop_back_if(|(last, ended)| *last == position && ended.is_none());
        }
    }

    /// A request has ended. Returns false if it is not known: it was taken before a reset.
    pub fn ended(&mut self, token: Token, written: u32) -> bool {
        let queue = self.queues.get_mut(usize::from(token.queue()));
        let entry = queue.and_then(|queue| queue.iter_mut().find(|(position, _)| *position == token.position()));
        match entry {
            Some((_, ended @ None)) => {
                *ended = Some((token, written));
                true
            }
            _ => false,
        }
    }

    /// A queue was released. No request of it is completed any more.
    pub fn forget(&mut self, queue: u16) {
        if let Some(queue) = self.queues.get_mut(usize::from(queue)) {
            queue.clear();
        }
    }

    /// The oldest request of a queue, if it has ended.
    pub fn next(&mut self, queue: u16) -> Option<(&'static dyn Track, Token, u32)> {
        let queue = self.queues.get_mut(usize::from(queue))?;
        let (_, ended) = queue.pop_front_if(|(_, ended)| ended.is_some())?;
        ended.map(|(token, written)| (self.track, token, written))
    }
}
