//! Batches of frames that ask for a checksum. A sender of TCP or UDP repeats the same request with the same kind of header, so
//! the context of one frame serves the next as long as request and kind stay the same.

#![allow(unsafe_code, reason = "the ring of descriptors says that there is room for a token")]

use nic::{Offload, Single};

use super::{BatchEnd, DATA, END, IDX, MOST, PAYLEN, TransmitQueue, checksum, is_pair, tag};
use crate::dma::{DESCRIPTOR_BYTES, STEP};
use crate::family::Family;
use crate::offload::{CommonHeader, MAX_HEADER};

/// The last request, and the descriptor bits that it results in.
struct Known {
    asked: Offload,
    common: &'static CommonHeader,
    /// Bits of a frame's first descriptor, without the lengths.
    first: u64,
    /// Bits of its last descriptor, without the length.
    last: u64,
}

impl<T, F: Family> TransmitQueue<T, F> {
    /// As `add_all`, for frames that ask for a checksum whose descriptors (`room` bytes) and tokens are contiguous. Returns how
    /// many were taken, and why the loop ended.
    #[inline(always)]
    pub(super) fn add_checksum_batch<'a, I>(
        &mut self,
        room: u32,
        items: &'a [I],
        max_frame: u32,
        write: &mut impl FnMut(&'a I, &mut [u8; MAX_HEADER]) -> Option<Single<T>>,
    ) -> (usize, BatchEnd<T>) {
        let Self { ring, tokens, next: position, contexts, .. } = self;
        let row = ring.row();
        let begin = ring.offset(*position) as usize;
        let mut known = Known { asked: Offload::NOTHING, common: CommonHeader::NONE, first: 0, last: 0 };
        let (mut at, mut taken) = (begin, 0_u32);
        let mut end = BatchEnd::Full;
        for (item, place) in items.iter().zip(tokens.vacant(room / (MOST * STEP))) {
            // SAFETY: the offset of a descriptor that the device was not shown: its slot is the driver's alone.
            let slot = unsafe { row.slot(at) };
            let bus = row.bus(slot);
            let Some(frame) = write(item, slot) else {
                end = BatchEnd::NoFrame;
                break;
            };
            let (header, rest) = (frame.header as u32, u32::from(frame.rest.len()));
            let asked = frame.offload;
            let fits = |common: &CommonHeader| common.matches(slot) && is_pair(common.min_len, header, rest, max_frame);
            if asked != known.asked {
                let common = CommonHeader::of(asked).filter(|&common| fits(common));
                let Some(common) = common else {
                    end = BatchEnd::Unfit(frame);
                    break;
                };
                let (index, new) = contexts.slot(common.context(asked));
                if let Some(words) = new {
                    // SAFETY: the first of three free descriptors: `room` has three for each place.
                    unsafe { row.write(at, words) };
                    at = at.wrapping_add(STEP as usize);
                }
                let each = DATA.wrapping_add(tag(asked));
                known = Known {
                    asked,
                    common,
                    first: each.wrapping_add(const { checksum::<F>() }).wrapping_add(index << IDX),
                    last: each.wrapping_add(END),
                };
            } else if !fits(known.common) {
                end = BatchEnd::Unfit(frame);
                break;
            }
            // As in `add_plain_batch`.
            let first = (u64::from(rest.wrapping_add(header)) << PAYLEN)
                .wrapping_add(u64::from(header))
                .wrapping_add(known.first);
            // SAFETY: two of three free descriptors, as above.
            unsafe {
                row.write(at, [bus, first]);
                row.write(
                    at.wrapping_add(STEP as usize),
                    [frame.rest.address(), u64::from(rest).wrapping_add(known.last)],
                );
            }
            at = at.wrapping_add(2 * DESCRIPTOR_BYTES);
            place.write(frame.token);
            taken = taken.wrapping_add(1);
        }
        *position = position.wrapping_add(at.wrapping_sub(begin) as u32);
        // SAFETY: `taken` places were written.
        unsafe { tokens.advance(taken) };
        (taken as usize, end)
    }
}
