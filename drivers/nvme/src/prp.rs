//! Physical region pages: how the data of a command is described to the controller (NVMe Base 2.0, 4.1.1).
//!
//! ```text
//!   data        |---- chunk 0 ----|------ 4,096 ------|------ 4,096 ------|-- rest --|
//!   entry       PRP1, with offset   page-aligned        page-aligned        page-aligned
//! ```
//!
//! The offset of PRP1 decides where all later chunks begin. [`Cursor::lead`] chooses it so that the longest segment's
//! pages are named where they lie. A chunk that is not in one piece at the right offset takes a bounce page.

use crate::dma::{PAGE, Segment};

/// Bytes of a page.
pub(crate) const PAGE_BYTES: u64 = PAGE as u64;
/// Entries of a page of a PRP list.
pub(crate) const LIST_ENTRIES: usize = PAGE / 8;

/// A place in the bytes of some segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    segments: &'a [Segment],
    /// Bytes of the first segment that lie before the place.
    offset: u32,
}

impl<'a> Cursor<'a> {
    /// The first byte.
    #[inline(always)]
    pub(crate) const fn new(segments: &'a [Segment]) -> Self {
        Self { segments, offset: 0 }
    }

    /// Takes the next piece of memory, of `most` bytes at most and not empty: its address and length. `None` at the
    /// end.
    #[inline]
    pub(crate) fn take(&mut self, most: u64) -> Option<(u64, u32)> {
        loop {
            let (first, rest) = self.segments.split_first()?;
            let left = first.len().saturating_sub(self.offset);
            if left == 0 {
                (self.segments, self.offset) = (rest, 0);
                continue;
            }
            let len = u64::from(left).min(most) as u32;
            let address = first.address().wrapping_add(u64::from(self.offset));
            self.offset = self.offset.saturating_add(len);
            return (len != 0).then_some((address, len));
        }
    }

    /// The address of the next `len` bytes, if they lie in the first segment and there is one.
    #[inline(always)]
    fn within_first(&self, len: u64) -> Option<u64> {
        let first = self.segments.first()?;
        let left = u64::from(first.len().saturating_sub(self.offset));
        (left >= len && len != 0).then_some(first.address().wrapping_add(u64::from(self.offset)))
    }

    /// Moves on by `bytes`.
    #[inline]
    pub(crate) fn skip(&mut self, mut bytes: u64) {
        while let Some((_, len)) = self.take(bytes) {
            bytes = bytes.saturating_sub(len.into());
        }
    }

    /// The address of the next `len` bytes, if they lie in one piece.
    #[inline]
    fn contiguous(&self, len: u64) -> Option<u64> {
        let mut at = *self;
        let (address, first) = at.take(len)?;
        let mut have = u64::from(first);
        while have < len {
            let (next, more) = at.take(len.saturating_sub(have))?;
            if next != address.wrapping_add(have) {
                return None;
            }
            have = have.saturating_add(more.into());
        }
        Some(address)
    }

    /// Chooses the offset of PRP1 for the next `len` bytes: a multiple of 4 below [`PAGE`]. The pages of the longest
    /// segment that can be named where it lies begin chunks then.
    #[inline]
    pub(crate) fn lead(&self, len: u64) -> u64 {
        let (mut at, mut position) = (*self, 0);
        let (mut lead, mut longest) = (0, 0);
        while position < len {
            let Some((address, bytes)) = at.take(len.saturating_sub(position)) else { break };
            let offset = address.wrapping_sub(position) % PAGE_BYTES;
            if bytes > longest && offset.is_multiple_of(4) && has_chunk(address, u64::from(bytes), position, len) {
                (lead, longest) = (offset, bytes);
            }
            position = position.saturating_add(bytes.into());
        }
        lead
    }
}

/// Bytes from an address to the end of its page, 1 to [`PAGE_BYTES`].
#[inline]
const fn to_page_end(address: u64) -> u64 {
    PAGE_BYTES.saturating_sub(address % PAGE_BYTES)
}

/// Whether a piece has a whole chunk, if its pages begin chunks. It lies at `position` in data of `len` bytes.
#[inline]
const fn has_chunk(address: u64, bytes: u64, position: u64, len: u64) -> bool {
    let to_page = to_page_end(address) % PAGE_BYTES;
    let begins = position == 0 && (bytes >= to_page_end(address) || bytes == len);
    let ends = to_page < bytes && position.saturating_add(bytes) == len;
    begins || ends || to_page.saturating_add(PAGE_BYTES) <= bytes
}

/// Splits `len` bytes into chunks, one for each PRP entry, and calls `entry` with each chunk's entry. A chunk that
/// cannot be named where it lies is given to `bounce`, with its place, its length and its offset in a page. `bounce`
/// returns the address of the chunk's copy. `state` goes through both.
///
/// Returns false if one of them failed.
#[inline]
pub(crate) fn chunks<S>(
    mut at: Cursor<'_>,
    len: u64,
    state: &mut S,
    mut bounce: impl FnMut(&mut S, Cursor<'_>, u32, u32) -> Option<u64>,
    mut entry: impl FnMut(&mut S, u64) -> bool,
) -> bool {
    // Most data is one segment. All its pages are named where they lie.
    if let Some(mut address) = at.within_first(len).filter(|address| address.is_multiple_of(4)) {
        let mut left = len;
        loop {
            let to_page = to_page_end(address);
            if !entry(state, address) {
                return false;
            }
            if left <= to_page {
                return true;
            }
            (address, left) = (address.wrapping_add(to_page), left.saturating_sub(to_page));
        }
    }
    let (mut offset, mut left) = (at.lead(len), len);
    while left != 0 {
        let chunk = left.min(PAGE_BYTES.saturating_sub(offset));
        let address = match at.contiguous(chunk) {
            Some(address) if address % PAGE_BYTES == offset => Some(address),
            _ => bounce(state, at, chunk as u32, offset as u32),
        };
        if !address.is_some_and(|address| entry(state, address)) {
            return false;
        }
        at.skip(chunk);
        (offset, left) = (0, left.saturating_sub(chunk));
    }
    true
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code, reason = "segments that nobody reads")]

    use super::{Cursor, PAGE_BYTES, chunks};
    use crate::dma::Segment;
    use proptest::prelude::*;
    use std::vec::Vec;

    const BOUNCED: u64 = 1 << 60;

    /// The entries for some segments. Bounced chunks are marked.
    fn entries(parts: &[(u64, u32)]) -> Vec<u64> {
        // SAFETY: nothing reads them.
        let segments: Vec<_> = parts.iter().map(|(address, len)| unsafe { Segment::new(*address, *len) }).collect();
        let len = parts.iter().map(|(_, len)| u64::from(*len)).sum();
        let mut out = Vec::new();
        let bounce = |_: &mut Vec<u64>, _: Cursor<'_>, _, offset| Some(BOUNCED | u64::from(offset));
        assert!(chunks(Cursor::new(&segments), len, &mut out, bounce, |out, address| {
            out.push(address);
            true
        }));
        out
    }

    #[test]
    fn pages_are_named_where_they_lie() {
        assert_eq!(entries(&[(0x1000, 4096)]), [0x1000]);
        assert_eq!(entries(&[(0x1e00, 512)]), [0x1e00]);
        assert_eq!(entries(&[(0x1e00, 1024)]), [0x1e00, 0x2000]);
        assert_eq!(entries(&[(0x1000, 8192)]), [0x1000, 0x2000]);
        assert_eq!(entries(&[(0x1200, 8192)]), [0x1200, 0x2000, 0x3000]);
        assert_eq!(entries(&[(0x1000, 4096), (0x9000, 4096), (0x4000, 512)]), [0x1000, 0x9000, 0x4000]);
        assert_eq!(entries(&[(0x1f00, 256), (0x9000, 4096), (0x4000, 256)]), [0x1f00, 0x9000, 0x4000]);
    }

    proptest! {
        #[test]
        fn the_pages_of_one_aligned_segment_are_all_named(page in 1..9_u64, dword in 0..1024_u64, len in 1..20_000_u32) {
            let address = page * PAGE_BYTES + 4 * dword;
            prop_assert_eq!(entries(&[(address, len)]), pages(address, len.into()));
            // The general way: an empty segment comes first.
            prop_assert_eq!(entries(&[(0x100, 0), (address, len)]), pages(address, len.into()));
        }
    }

    /// The pages of a piece of memory, the first one with its offset.
    fn pages(address: u64, len: u64) -> Vec<u64> {
        let end = address + len;
        let first = address / PAGE_BYTES;
        (first..end.div_ceil(PAGE_BYTES)).map(|page| (page * PAGE_BYTES).max(address)).collect()
    }

    #[test]
    fn neighbours_are_one_piece() {
        assert_eq!(entries(&[(0x1000, 100), (0x1064, 3996), (0x2000, 4096)]), [0x1000, 0x2000]);
        assert_eq!(entries(&[(0x1000, 100), (0x9000, 0), (0x1064, 412)]), [0x1000]);
    }

    #[test]
    fn only_what_prp_cannot_say_is_bounced() {
        // A short first segment ends within its page. Its copy ends at a page's end, so that the rest stays.
        assert_eq!(entries(&[(0x1000, 512), (0x8000, 8192)]), [BOUNCED | 3584, 0x8000, 0x9000]);
        // A gap in the middle: only its page.
        assert_eq!(
            entries(&[(0x1000, 8192), (0x5000, 100), (0x7000, 3996), (0x9000, 8192)]),
            [0x1000, 0x2000, BOUNCED, 0x9000, 0xa000]
        );
        // Not aligned to a dword.
        assert_eq!(entries(&[(0x1001, 512)]), [BOUNCED]);
        assert_eq!(entries(&[(0x1001, 8192)]), [BOUNCED, BOUNCED]);
        assert_eq!(entries(&[(0x1002, 511), (0x8003, 1)]), [BOUNCED]);
    }

    #[test]
    fn a_failed_bounce_or_a_full_list_is_told() {
        // SAFETY: nothing reads them.
        let segments = [unsafe { Segment::new(1, 512) }];
        assert!(!chunks(Cursor::new(&segments), 512, &mut (), |(), _, _, _| None, |(), _| true));
        assert!(!chunks(Cursor::new(&segments), 512, &mut (), |(), _, _, _| Some(PAGE_BYTES), |(), _| false));
    }
}
