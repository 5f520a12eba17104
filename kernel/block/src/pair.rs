//! Two storages as one: a device's volume says which of them it belongs to.

use alloc::boxed::Box;

use crate::storage::{Geometry, MAX_TAGS, Request, Status, Storage, Submitted, Tag};

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
        if let Some(in_second) = self.in_second.get_mut(usize::from(tag.0)) {
            *in_second = matches!(volume, Either::Second(_));
        }
        match volume {
            Either::First(volume) => self.first.submit(volume, tag, request, now),
            Either::Second(volume) => self.second.submit(volume, tag, request, now),
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

    fn cancel(&mut self, tag: Tag) -> bool {
        if self.in_second.get(usize::from(tag.0)).copied().unwrap_or(false) {
            self.second.cancel(tag)
        } else {
            self.first.cancel(tag)
        }
    }
}
