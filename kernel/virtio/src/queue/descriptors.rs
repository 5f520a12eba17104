//! The descriptors of one chain of a [`Batch`], in order, for back-ends whose requests are chains of a known form.
//!
//! A chain is in an indirect table, or, in a split ring, in the ring's own table. The descriptors are read once and are
//! not checked: a back-end looks at each, and finds its buffer by [`Batch::buffer_at`]. It takes the request by
//! [`Queue::pop`](super::Queue::pop) if anything is not as it expects.

use core::marker::PhantomData;

use memory::span::{Pairs, Piece, Span};

use super::batch::{Batch, Entries, Purpose, RingDescriptor};
use crate::chain::{ChainDescriptor, ChainLimits, DESCRIPTOR_BYTES};

/// The descriptors of a chain.
#[derive(Clone, Copy, Debug)]
pub struct Descriptors<'d, L> {
    table: Pairs<'d>,
    /// The next one. No descriptor follows if there is no such entry.
    index: u32,
    format: PhantomData<L>,
}

impl<'d, L: Entries<'d>> Descriptors<'d, L> {
    #[inline(always)]
    const fn new(table: Pairs<'d>, index: u32) -> Self {
        Self { table, index, format: PhantomData }
    }

    /// Reads the next descriptor. Returns `None` if the last one names one that is not in the table. Do not call it after
    /// the last one. A driver may link descriptors into a loop: the caller must end the chain when it has more than
    /// [`ChainLimits::descriptors`].
    #[inline(always)]
    pub fn read(&mut self) -> Option<ChainDescriptor> {
        let pair = self.table.get(self.index)?;
        let (descriptor, next) = L::of_table(pair, self.index, self.table.len());
        self.index = next;
        Some(descriptor)
    }
}

/// The regions of memory in which the buffers of a chain are looked for first, one for each [`Purpose`].
#[derive(Clone, Copy, Debug)]
pub struct Regions<'d>([Span<'d>; 2]);

impl<'d> Batch<'d> {
    /// The regions of the last buffers.
    #[inline(always)]
    pub fn regions(&self) -> Regions<'d> {
        Regions([self.span(Purpose::Data), self.span(Purpose::Control)])
    }

    /// Reads the indirect table that `first` names. Returns its descriptors if there are three, they are a chain in the
    /// order of the table, and `is_good` returns true for each, with its index. The caller has asked
    /// [`ChainLimits::allows_table`].
    #[inline(always)]
    pub fn table_of_three<L: Entries<'d>>(
        &mut self,
        first: &RingDescriptor,
        regions: &mut Regions<'d>,
        is_good: impl Fn(u32, &ChainDescriptor) -> bool,
    ) -> Option<[ChainDescriptor; 3]> {
        const BYTES: usize = 3 * DESCRIPTOR_BYTES as usize;
        if !first.is_table() || first.len() as usize != BYTES {
            return None;
        }
        let table = self.buffer_at(first.addr(), BYTES as u32, Purpose::Control, regions)?.first::<BYTES>()?;
        let (a, next_a) = L::of_table([table.load_u64::<0>(), table.load_u64::<8>()], 0, 3);
        let (b, next_b) = L::of_table([table.load_u64::<16>(), table.load_u64::<24>()], 1, 3);
        let (c, _) = L::of_table([table.load_u64::<32>(), table.load_u64::<40>()], 2, 3);
        // One comparison each: the conditions are on bits of one number.
        let a_good = !a.last & (next_a == 1) & is_good(0, &a);
        let b_good = !b.last & (next_b == 2) & is_good(1, &b);
        let c_good = c.last & is_good(2, &c);
        (a_good && b_good && c_good).then_some([a, b, c])
    }

    /// Reads the chain that starts with `first` in the table of a split ring. Returns its descriptors if there are three,
    /// and `is_good` returns true for each, with its number. The caller has asked [`ChainLimits::descriptors`].
    #[inline(always)]
    pub fn chain_of_three<L: Entries<'d>>(
        &self,
        peek: &L,
        first: &RingDescriptor,
        is_good: impl Fn(u32, &ChainDescriptor) -> bool,
    ) -> Option<[ChainDescriptor; 3]> {
        let table = peek.chained().filter(|_| first.is_linked())?;
        let next_a = first.flags() >> 16;
        // A linked descriptor has neither WRITE nor INDIRECT.
        let a = ChainDescriptor { addr: first.addr(), len: first.len(), flags: 0, last: false };
        let (b, next_b) = L::of_table(table.get(next_a)?, next_a, table.len());
        if b.last | !is_good(0, &a) | !is_good(1, &b) {
            return None;
        }
        let (c, _) = L::of_table(table.get(next_b)?, next_b, table.len());
        (c.last & is_good(2, &c)).then_some([a, b, c])
    }

    /// Returns the descriptors of the chain that starts with `first`: those of the indirect table that it names, or
    /// those of the ring from `first` on. Returns `None` if the chain has another form or breaks a rule.
    #[inline(always)]
    pub fn descriptors<L: Entries<'d>>(
        &mut self,
        peek: &L,
        limits: ChainLimits,
        first: &RingDescriptor,
        regions: &mut Regions<'d>,
    ) -> Option<Descriptors<'d, L>> {
        if first.is_table() {
            let table = self.buffer_at(first.addr(), first.len(), Purpose::Control, regions)?;
            let whole = first.len().is_multiple_of(DESCRIPTOR_BYTES as u32);
            (whole && limits.indirect).then(|| Descriptors::new(table.pairs(), 0))
        } else {
            // `first` is read again with the others. Only the choice of the table rests on the earlier read.
            let table = peek.chained().filter(|_| first.is_linked())?;
            Some(Descriptors::new(table, u32::from(first.id())))
        }
    }

    /// Finds `len` bytes at `gpa`. Looks first in the region of the last buffer of this purpose. The region where they were
    /// found takes its place.
    #[inline(always)]
    pub fn buffer_at(
        &mut self,
        gpa: u64,
        len: u32,
        purpose: Purpose,
        Regions(regions): &mut Regions<'d>,
    ) -> Option<Piece<'d>> {
        let region = purpose.of_mut(regions);
        if let Some(piece) = region.piece(gpa, len) {
            return Some(piece);
        }
        let (piece, found) = self.find(gpa, len, purpose)?;
        *region = found;
        Some(piece)
    }
}
