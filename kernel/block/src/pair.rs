//! Two storages as one: a device's volume says which of them it belongs to.

use alloc::boxed::Box;

use memory::GuestMemory;
use virtio::chain::{Segment, Span};

use crate::storage::{Geometry, MAX_TAGS, Operation, Request, Status, Storage, Submitted, Tag};

/// A volume of one of the two storages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    /// Of the first.
    First(A),
    /// Of the second.
    Second(B),
}

/// Two storages.
pub struct Pair<A, B> {
    first: A,
    second: B,
    /// For each tag in flight: whether the second storage has it.
    in_second: Box<[bool; MAX_TAGS]>,
}

impl<A: Storage, B: Storage> Pair<A, B> {
    /// Makes one of two.
    #[must_use]
    pub fn new(first: A, second: B) -> Self {
        Self { first, second, in_second: Box::new([false; MAX_TAGS]) }
    }

    /// The second storage, to configure it.
    pub const fn second_mut(&mut self) -> &mut B {
        &mut self.second
    }
}

/// Gives a request to a storage. Its fields are arguments of their own. So a caller into which the other storage is
/// inlined keeps them in registers. With a reference to the request, it would write each request to memory.
#[inline(never)]
#[allow(clippy::too_many_arguments, reason = "as above")]
fn submit_to<S: Storage>(
    storage: &mut S,
    volume: S::Volume,
    tag: Tag,
    now: u64,
    operation: Operation,
    first: u64,
    blocks: u32,
    memory: &GuestMemory,
    buffers: &[Segment],
    place: (u32, u32),
) -> Submitted {
    let request = Request { operation, first, blocks, data: Span::within(buffers, place), memory };
    storage.submit(volume, tag, &request, now)
}

impl<A: Storage, B: Storage> Storage for Pair<A, B> {
    type Volume = Either<A::Volume, B::Volume>;

    fn are_flushed_together(one: Self::Volume, other: Self::Volume) -> bool {
        match (one, other) {
            (Either::First(one), Either::First(other)) => A::are_flushed_together(one, other),
            (Either::Second(one), Either::Second(other)) => B::are_flushed_together(one, other),
            _ => false,
        }
    }

    fn geometry(&self, volume: Self::Volume) -> Geometry {
        match volume {
            Either::First(volume) => self.first.geometry(volume),
            Either::Second(volume) => self.second.geometry(volume),
        }
    }

    fn take_size_change(&mut self) -> bool {
        // Both are asked.
        self.first.take_size_change() | self.second.take_size_change()
    }

    fn blocks(&self, volume: Self::Volume) -> u64 {
        match volume {
            Either::First(volume) => self.first.blocks(volume),
            Either::Second(volume) => self.second.blocks(volume),
        }
    }

    #[inline(always)]
    fn submit(&mut self, volume: Self::Volume, tag: Tag, request: &Request<'_>, now: u64) -> Submitted {
        let (submitted, second) = match volume {
            Either::First(volume) => (self.first.submit(volume, tag, request, now), false),
            Either::Second(volume) => {
                let Request { operation, first, blocks, data, memory } = *request;
                let (buffers, place) = data.place();
                (submit_to(&mut self.second, volume, tag, now, operation, first, blocks, memory, buffers, place), true)
            }
        };
        if submitted == Submitted::Pending
            && let Some(in_second) = self.in_second.get_mut(usize::from(tag.0))
        {
            *in_second = second;
        }
        submitted
    }

    fn notify(&mut self) {
        self.first.notify();
        self.second.notify();
    }

    #[inline]
    fn wants_poll(&self) -> bool {
        self.first.wants_poll() || self.second.wants_poll()
    }

    fn poll(&mut self, now: u64, ended: &mut impl FnMut(Tag, Status)) {
        self.first.poll(now, ended);
        self.second.poll(now, ended);
    }

    fn cancel(&mut self, tag: Tag) -> bool {
        if self.in_second.get(usize::from(tag.0)).copied().unwrap_or(false) {
            self.second.cancel(tag)
        } else {
            self.first.cancel(tag)
        }
    }
}
