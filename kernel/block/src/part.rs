//! A part of a volume as a volume: a partition, or all of it. No request leaves its blocks.
//!
//! The back-end has checked a request against the volume's shape already. This check is the one that keeps guests apart,
//! so it does not rely on that.

use crate::storage::{Geometry, One, Operation, Request, Status, Storage, Submitted, Tag, Target, Visitor};

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
}

/// A part of a volume that was looked up.
struct Bounded<T> {
    whole: T,
    /// First block of the part, and its number of blocks now.
    first: u64,
    blocks: u64,
}

impl<T: Target> Target for Bounded<&mut T> {
    #[inline(always)]
    fn submit(&mut self, tag: Tag, request: &Request<'_>) -> Submitted {
        let first = match request.operation {
            // It has no blocks. It flushes other parts too.
            Operation::Flush => 0,
            _ => {
                // The last block at which so many may begin.
                let last = self.blocks.checked_sub(request.blocks.into());
                if last.is_none_or(|last| request.first > last) {
                    return Submitted::Done(Status::Failed);
                }
                // It does not wrap: the part is within the volume.
                self.first.wrapping_add(request.first)
            }
        };
        self.whole.submit(tag, &Request { first, ..*request })
    }
}

/// Does what `visitor` does, with a part of the volume that it is given.
struct Within<V> {
    visitor: V,
    first: u64,
    blocks: u64,
}

impl<V: Visitor> Visitor for Within<V> {
    type Output = V::Output;

    #[inline(always)]
    fn visit(self, whole: &mut impl Target) -> V::Output {
        let Self { visitor, first, blocks } = self;
        visitor.visit(&mut Bounded { whole, first, blocks })
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
        One { tag, request }.submit(self, part, now)
    }

    #[inline(always)]
    fn visit<V: Visitor>(&mut self, part: Self::Volume, now: u64, visitor: V) -> Option<V::Output> {
        let (first, blocks) = (part.first, self.blocks(part));
        self.0.visit(part.whole, now, Within { visitor, first, blocks })
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

    fn cancel(&mut self, part: Self::Volume, tag: Tag) -> bool {
        self.0.cancel(part.whole, tag)
    }
}
