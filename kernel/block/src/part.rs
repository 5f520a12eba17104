//! A part of a volume as a volume: a partition, or all of it. No request leaves its blocks.
//!
//! The back-end has checked a request against the volume's shape already. This check is the one that keeps guests apart,
//! so it does not rely on that.

use crate::storage::{Geometry, Operation, Request, Status, Storage, Submitted, Tag};

/// Some blocks of a volume. A part that is all of the volume grows and shrinks with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<V> {
    whole: V,
    /// First block of it.
    first: u64,
    /// Its number of blocks, when it was made.
    blocks: u64,
    /// It is all of the volume, also when the volume has another size later.
    is_all: bool,
}

impl<V> Part<V> {
    /// Makes a part of `blocks` blocks from `first` on, of a volume that has `all` blocks. Returns `None` if it is empty or
    /// not within the volume. A part that is all of the volume changes its size with it.
    #[must_use]
    pub fn new(whole: V, all: u64, first: u64, blocks: u64) -> Option<Self> {
        let is_within = blocks != 0 && first.checked_add(blocks)? <= all;
        is_within.then_some(Self { whole, first, blocks, is_all: blocks == all })
    }

    /// The volume of which it is a part.
    pub const fn whole(&self) -> &V {
        &self.whole
    }

    /// Returns its number of blocks, if the volume has `all`.
    const fn blocks_of(&self, all: u64) -> u64 {
        let left = all.saturating_sub(self.first);
        if self.is_all || left < self.blocks { left } else { self.blocks }
    }

    /// Returns its shape, from the shape of the volume.
    #[must_use]
    pub const fn geometry(&self, whole: &Geometry) -> Geometry {
        Geometry { blocks: self.blocks_of(whole.blocks), ..*whole }
    }

    /// Converts a request's first block to the volume's. Returns `None` if the request leaves the part. The volume has `all`
    /// blocks.
    fn within(&self, first: u64, blocks: u32, all: u64) -> Option<u64> {
        let is_within = first.checked_add(blocks.into())? <= self.blocks_of(all);
        if is_within { self.first.checked_add(first) } else { None }
    }
}

/// A storage whose volumes are parts of another storage's volumes.
pub struct Parts<S>(S);

impl<S> Parts<S> {
    /// Makes it.
    #[must_use]
    pub const fn new(storage: S) -> Self {
        Self(storage)
    }

    /// The storage beneath.
    #[cfg(test)]
    pub(crate) const fn inner(&mut self) -> &mut S {
        &mut self.0
    }
}

impl<S: Storage> Storage for Parts<S> {
    type Volume = Part<S::Volume>;

    fn geometry(&self, part: Self::Volume) -> Geometry {
        part.geometry(&self.0.geometry(part.whole))
    }

    fn are_flushed_together(one: Self::Volume, other: Self::Volume) -> bool {
        S::are_flushed_together(one.whole, other.whole)
    }

    fn take_size_change(&mut self) -> bool {
        self.0.take_size_change()
    }

    fn blocks(&self, part: Self::Volume) -> u64 {
        part.blocks_of(self.0.blocks(part.whole))
    }

    fn submit(&mut self, part: Self::Volume, tag: Tag, request: &Request<'_>, now: u64) -> Submitted {
        let first = match request.operation {
            // It has no blocks. It flushes other parts too.
            Operation::Flush => 0,
            _ => match part.within(request.first, request.blocks, self.0.blocks(part.whole)) {
                Some(first) => first,
                None => return Submitted::Done(Status::Failed),
            },
        };
        self.0.submit(part.whole, tag, &Request { first, ..*request }, now)
    }

    fn notify(&mut self) {
        self.0.notify();
    }

    #[inline]
    fn wants_poll(&self) -> bool {
        self.0.wants_poll()
    }

    fn poll(&mut self, now: u64, ended: &mut impl FnMut(Tag, Status)) {
        self.0.poll(now, ended);
    }

    fn cancel(&mut self, tag: Tag) -> bool {
        self.0.cancel(tag)
    }
}
