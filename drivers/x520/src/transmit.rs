//! A transmit queue (data sheet 7.2.1, 7.2.3, 8.2.3.9).
//!
//! A frame is a context descriptor if neither of the queue's two contexts fits, a descriptor for the copied header, and
//! one for each segment. Frames are shown to the device in batches; the last descriptor of each asks for a report, and
//! when that is written back the whole batch is done.

use alloc::boxed::Box;
use alloc::vec;

use crate::descriptor::{ContextHigh, TYPE_DATA, TransmitData};
use crate::dma::Ring;
use crate::nic::{Outcome, Outgoing, Refused, Segment};
use crate::offload::{MAX_HEADER, checksum_context, plan};
use crate::registers::{Bus, Registers, TDT};

/// Segments of a frame: 38 descriptors are allowed (7.2.1.1), of which one is the header's.
pub(crate) const MAX_SEGMENTS: usize = 36;
/// Bytes of the shortest frame that the device pads (7.2.1.2).
const MIN_FRAME: u32 = 17;

/// What every data descriptor says.
const DATA: u64 = TransmitData::new().with_dtyp(TYPE_DATA).with_dext(true).with_ifcs(true).into_bits();
const END: u64 = TransmitData::new().with_eop(true).into_bits();
const TAG: u64 = TransmitData::new().with_vle(true).into_bits();
const CHECKSUM: u64 = TransmitData::new().with_txsm(true).with_cc(true).into_bits();
/// Where PAYLEN and IDX stand.
const PAYLEN: u32 = 46;
const IDX: u32 = 36;
const REPORT: u64 = TransmitData::new().with_rs(true).into_bits();

/// Frames that were shown to the device together. Counts run on, like all positions here.
#[derive(Clone, Copy, Debug, Default)]
struct Batch {
    /// The descriptor behind it.
    end: u32,
    /// The frame behind it.
    frames: u32,
}

pub(crate) struct TransmitQueue<T> {
    index: u16,
    /// Why it takes no frames; None: it does.
    pub closed: Option<Refused>,
    /// What it holds has to be given back before it can be used again: the device has ended all DMA.
    pub draining: bool,
    /// With a header in each slot.
    ring: Ring<MAX_HEADER>,
    /// By number of the frame. There are never more frames than descriptors.
    tokens: Box<[Option<T>]>,
    /// By first descriptor.
    batches: Box<[Batch]>,
    /// First descriptor that the device may still need.
    clean: u32,
    /// First descriptor that has not been shown to the device.
    shown: u32,
    /// The next descriptor to write.
    next: u32,
    /// The frame to give back next.
    oldest: u32,
    /// The number that the next frame gets.
    newest: u32,
    /// What the device has in its two slots; all zeroes: nothing.
    contexts: [[u64; 2]; 2],
    /// The context to replace next.
    victim: u8,
}

impl<T> TransmitQueue<T> {
    pub(crate) fn new(index: u16, ring: Ring<MAX_HEADER>) -> Self {
        let count = ring.mask() as usize + 1;
        Self {
            index,
            closed: Some(Refused::NotReady),
            draining: false,
            ring,
            tokens: (0..count).map(|_| None).collect(),
            batches: vec![Batch::default(); count].into_boxed_slice(),
            clean: 0,
            shown: 0,
            next: 0,
            oldest: 0,
            newest: 0,
            contexts: [[0; 2]; 2],
            victim: 0,
        }
    }

    pub(crate) fn ring(&self) -> &Ring<MAX_HEADER> {
        &self.ring
    }

    /// Whether frames wait for the device.
    pub(crate) fn is_busy(&self) -> bool {
        self.clean != self.next
    }

    /// Tokens that are out.
    pub(crate) fn outstanding(&self) -> usize {
        self.newest.wrapping_sub(self.oldest) as usize
    }

    /// Whether the device was shown frames and has not yet said that the first of them are done.
    pub(crate) fn is_waiting(&self) -> bool {
        self.clean != self.shown && self.done().is_none()
    }

    /// The first descriptor that the device may still need.
    pub(crate) fn position(&self) -> u32 {
        self.clean
    }

    /// The oldest batch that was shown, if the device is done with it.
    #[inline(always)]
    fn done(&self) -> Option<Batch> {
        let batch = self.batches[(self.clean & self.ring.mask()) as usize];
        let last = TransmitData::from_bits(self.ring.view().status(batch.end.wrapping_sub(1)));
        last.dd().then_some(batch)
    }

    #[inline(always)]
    pub(crate) fn add(&mut self, frame: &Outgoing<'_>, token: T, max_frame: u32) -> Result<(), (Refused, T)> {
        match self.write(frame, max_frame) {
            Ok(end) => {
                self.next = end;
                self.tokens[(self.newest & self.ring.mask()) as usize] = Some(token);
                self.newest = self.newest.wrapping_add(1);
                Ok(())
            }
            Err(why) => Err((why, token)),
        }
    }

    /// Writes a frame's descriptors behind `next`, which nobody looks at before it moves. The descriptor behind them.
    #[inline(always)]
    fn write(&mut self, frame: &Outgoing<'_>, max_frame: u32) -> Result<u32, Refused> {
        // The common shape, also with a checksum, is written on the spot if nothing is wrong with it. All else takes the long
        // way.
        let (header, offload) = (frame.header, &frame.offload);
        if let [segment] = frame.segments
            && (1..=MAX_HEADER).contains(&header.len())
            && !segment.is_empty()
            && self.has_room(3)
        {
            let total = header.len() as u32 + u32::from(segment.len());
            if (MIN_FRAME..=max_frame).contains(&total) {
                if offload.is_none() {
                    return Ok(self.write_pair(header, segment, DATA, u64::from(total) << PAYLEN));
                }
                if let (Some(checksum), None) = (offload.checksum, offload.mss)
                    && checksum.end() <= total
                    && let Some((context, _)) = checksum_context(header, checksum, offload.vlan)
                {
                    let options = CHECKSUM | self.context(context) << IDX | u64::from(total) << PAYLEN;
                    let each = if offload.vlan.is_some() { DATA | TAG } else { DATA };
                    return Ok(self.write_pair(header, segment, each, options));
                }
            }
        }
        self.write_any(frame, max_frame)
    }

    /// Writes two descriptors: `each` is what both say, `whole` what the first says of the frame. The descriptor behind them.
    #[inline(always)]
    fn write_pair(&mut self, header: &[u8], segment: &Segment, each: u64, whole: u64) -> u32 {
        let first = self.next;
        let address = self.ring.store(first, header);
        let view = self.ring.view();
        view.write(first, [address, each | whole | header.len() as u64]);
        view.write(first.wrapping_add(1), [segment.address(), each | END | u64::from(segment.len())]);
        first.wrapping_add(2)
    }

    /// Whether there are so many descriptors at `next`. One stays free: tail equal to head means that the ring is empty.
    #[inline(always)]
    fn has_room(&self, descriptors: u32) -> bool {
        self.next.wrapping_sub(self.clean) + descriptors <= self.ring.mask()
    }

    /// The slot of a context. If the device does not know it, it is written to the ring first, and `next` moves: the frame
    /// behind it must not be refused any more.
    #[inline(always)]
    fn context(&mut self, words: [u64; 2]) -> u64 {
        if words == self.contexts[0] {
            return 0;
        }
        if words == self.contexts[1] {
            return 1;
        }
        let slot = self.victim;
        self.victim ^= 1;
        self.contexts[usize::from(slot & 1)] = words;
        let high = ContextHigh::from_bits(words[1]).with_idx(slot);
        self.ring.view().write(self.next, [words[0], high.into_bits()]);
        self.next = self.next.wrapping_add(1);
        slot.into()
    }

    /// As `write`, for any frame.
    #[inline(never)]
    fn write_any(&mut self, frame: &Outgoing<'_>, max_frame: u32) -> Result<u32, Refused> {
        let (header, segments) = (frame.header, frame.segments);
        if header.len() > MAX_HEADER {
            return Err(Refused::Header);
        }
        if segments.len() > MAX_SEGMENTS {
            return Err(Refused::Segments);
        }
        let total = segments.iter().map(|s| u32::from(s.len())).sum::<u32>() + header.len() as u32;
        if total < MIN_FRAME || segments.iter().any(Segment::is_empty) {
            return Err(Refused::Length);
        }
        let plan = plan(header, total, &frame.offload, max_frame)?;
        // A context and a header, if there are any.
        if !self.has_room(2 + segments.len() as u32) {
            return Err(Refused::Full);
        }
        let mut options = TransmitData::new()
            .with_vle(plan.vle)
            .with_tse(plan.tse)
            .with_ixsm(plan.ixsm)
            .with_txsm(plan.txsm)
            .with_paylen(plan.paylen);
        if let Some(context) = plan.context {
            options = options.with_idx(self.context(context) as u8).with_cc(true);
        }
        let first = self.next;
        // Every descriptor of a frame says what is done to it; length and checksums count in the first.
        let data = DATA | TransmitData::new().with_vle(plan.vle).with_tse(plan.tse).into_bits();
        let mut at = first;
        if !header.is_empty() {
            let address = self.ring.store(at, header);
            for (offset, value) in plan.patches.iter().flatten() {
                self.ring.put(at, *offset, *value);
            }
            self.ring.view().write(at, [address, data | header.len() as u64]);
            at = at.wrapping_add(1);
        }
        for segment in segments {
            self.ring.view().write(at, [segment.address(), data | u64::from(segment.len())]);
            at = at.wrapping_add(1);
        }
        self.ring.view().or_status(first, options.into_bits());
        self.ring.view().or_status(at.wrapping_sub(1), END);
        Ok(at)
    }

    #[inline(always)]
    pub(crate) fn flush<R: Registers>(&mut self, bus: &Bus<R>) {
        if self.shown == self.next {
            return;
        }
        let mask = self.ring.mask();
        self.ring.view().or_status(self.next.wrapping_sub(1), REPORT);
        self.batches[(self.shown & mask) as usize] = Batch { end: self.next, frames: self.newest };
        self.shown = self.next;
        bus.write(&TDT, self.index, self.next & mask);
    }

    #[inline(always)]
    pub(crate) fn reclaim(&mut self, mut done: impl FnMut(T, Outcome)) -> u32 {
        let begin = self.oldest;
        while self.clean != self.shown
            && let Some(batch) = self.done()
        {
            self.give_back(batch.frames, |token| done(token, Outcome::Sent));
            self.clean = batch.end;
        }
        self.oldest.wrapping_sub(begin)
    }

    /// Gives back the tokens of frames up to the number `end`.
    #[inline(always)]
    fn give_back(&mut self, end: u32, mut done: impl FnMut(T)) {
        let mask = self.ring.mask();
        let count = end.wrapping_sub(self.oldest) as usize;
        let start = (self.oldest & mask) as usize;
        self.oldest = end;
        // In order: those up to the array's end, then those at its begin.
        let (front, back) = self.tokens.split_at_mut(start);
        let (now, rest) = (count.min(back.len()), count.saturating_sub(back.len()));
        for part in [&mut back[..now], &mut front[..rest]] {
            for slot in part {
                // There is one: it was put there when the frame was taken.
                if let Some(token) = slot.take() {
                    done(token);
                }
            }
        }
    }

    /// Gives back all that is left, as the device can DMA no more, and starts anew.
    #[cold]
    pub(crate) fn drain(&mut self, mut done: impl FnMut(T, Outcome)) -> u32 {
        let count = self.reclaim(&mut done);
        let begin = self.oldest;
        self.give_back(self.newest, |token| done(token, Outcome::Dropped));
        let dropped = self.oldest.wrapping_sub(begin);
        self.restart();
        count + dropped
    }

    /// Starts anew at descriptor 0. Nothing waits any more.
    pub(crate) fn restart(&mut self) {
        (self.clean, self.shown, self.next) = (0, 0, 0);
        self.contexts = [[0; 2]; 2];
        self.victim = 0;
        self.draining = false;
    }
}
