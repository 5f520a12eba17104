//! Two storages as one: a device's volume says which of them it belongs to.

use crate::storage::{Geometry, Request, Status, Storage, Submitted, Tag, Visitor};

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
}

impl<A: Storage, B: Storage> Pair<A, B> {
    /// Makes one of two.
    #[must_use]
    pub const fn new(first: A, second: B) -> Self {
        Self { first, second }
    }

    /// The second storage, to configure it.
    pub const fn second_mut(&mut self) -> &mut B {
        &mut self.second
    }
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

    fn submit(&mut self, volume: Self::Volume, tag: Tag, request: &Request<'_>, now: u64) -> Submitted {
        match volume {
            Either::First(volume) => self.first.submit(volume, tag, request, now),
            Either::Second(volume) => self.second.submit(volume, tag, request, now),
        }
    }

    #[inline(always)]
    fn visit<V: Visitor>(&mut self, volume: Self::Volume, now: u64, visitor: V) -> Option<V::Output> {
        match volume {
            Either::First(volume) => self.first.visit(volume, now, visitor),
            Either::Second(volume) => self.second.visit(volume, now, visitor),
        }
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

    fn cancel(&mut self, volume: Self::Volume, tag: Tag) -> bool {
        match volume {
            Either::First(volume) => self.first.cancel(volume, tag),
            Either::Second(volume) => self.second.cancel(volume, tag),
        }
    }
}
