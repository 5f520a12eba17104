//! Rows of frames of which checksums are asked, as a sender of TCP or UDP leaves them: the same again and again, of packets
//! with the usual headers. What was found out for one holds for the next one of which the same is asked and whose header
//! says the same of itself.

#![allow(unsafe_code, reason = "what says that there is room for a token is the ring of descriptors")]

use super::{CHECKSUM, DATA, END, End, IDX, MOST, PAYLEN, TransmitQueue, is_pair, tag};
use crate::dma::STEP;
use crate::nic::{Offload, Single};
use crate::offload::{MAX_HEADER, Usual};

/// What was last asked, and what that comes to.
struct Known {
    asked: Offload,
    usual: &'static Usual,
    /// What a frame's first descriptor says but for lengths, and its last one.
    first: u64,
    last: u64,
}

impl<T> TransmitQueue<T> {
    /// As `add_all`, for frames of which checksums are asked, and whose descriptors, `room` bytes of them, and tokens are in a
    /// row. How many were taken, and what comes then.
    #[inline(always)]
    pub(super) fn add_asked_row<'a, I>(
        &mut self,
        room: u32,
        items: &'a [I],
        max_frame: u32,
        write: &mut impl FnMut(&'a I, &mut [u8; MAX_HEADER]) -> Option<Single<T>>,
    ) -> (usize, End<T>) {
        let Self { ring, tokens, next: position, contexts, .. } = self;
        let row = ring.row();
        let begin = ring.offset(*position) as usize;
        let mut known = Known { asked: Offload::NOTHING, usual: Usual::NONE, first: 0, last: 0 };
        let (mut at, mut taken) = (begin, 0);
        let mut end = End::Row;
        for (item, place) in items.iter().zip(tokens.vacant(room / (MOST * STEP))) {
            // SAFETY: the offset of a descriptor that the device was not shown: its slot is the driver's alone.
            let slot = unsafe { row.slot(at) };
            let bus = row.bus(slot);
            let Some(frame) = write(item, slot) else {
                end = End::Stop;
                break;
            };
            let (header, rest) = (frame.header as u32, u32::from(frame.rest.len()));
            let asked = frame.offload;
            let fits = |usual: &Usual| usual.fits(slot) && is_pair(usual.least, header, rest, max_frame);
            if asked != known.asked {
                let usual = Usual::of(asked).filter(|&usual| fits(usual));
                let Some(usual) = usual else {
                    end = End::Other(frame);
                    break;
                };
                let (index, new) = contexts.slot(usual.context(asked));
                if let Some(words) = new {
                    // SAFETY: one of three descriptors that there are: the row has so many for each place.
                    unsafe { row.write(at, words) };
                    at += STEP as usize;
                }
                let each = DATA + tag(asked);
                known = Known { asked, usual, first: each + CHECKSUM + (index << IDX), last: each + END };
            } else if !fits(known.usual) {
                end = End::Other(frame);
                break;
            }
            let first = (u64::from(rest + header) << PAYLEN) + u64::from(header) + known.first;
            // SAFETY: two of three descriptors that there are, as was looked at.
            unsafe {
                row.write(at, [bus, first]);
                row.write(at + STEP as usize, [frame.rest.address(), u64::from(rest) + known.last]);
            }
            at += 2 * STEP as usize;
            place.write(frame.token);
            taken += 1;
        }
        *position = position.wrapping_add((at - begin) as u32);
        // SAFETY: so many places were written.
        unsafe { tokens.advance(taken) };
        (taken as usize, end)
    }
}
