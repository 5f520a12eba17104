//! A transmit queue (data sheet 7.2.1, 7.2.3, 8.2.3.9).
//!
//! A frame is a context descriptor if neither of the queue's two contexts fits, a descriptor for the copied header, and
//! one for each segment. Frames are shown to the device in batches; the last descriptor of each asks for a report, and
//! when that is written back the whole batch is done.

use alloc::boxed::Box;
use alloc::vec;

use crate::descriptor::{ContextHigh, TYPE_DATA, TransmitData};
use crate::dma::Ring;
use crate::nic::{Offload, Outcome, Outgoing, Refused, Segment};
use crate::offload::{MAX_HEADER, VLAN, plan};
use crate::registers::{Bus, Registers, TDT};

/// Segments of a frame: 38 descriptors are allowed (7.2.1.1), of which one is the header's.
pub(crate) const MAX_SEGMENTS: usize = 36;
/// Bytes of the shortest frame that the device pads (7.2.1.2).
const MIN_FRAME: u32 = 17;

/// What every data descriptor says.
const DATA: u64 = TransmitData::new().with_dtyp(TYPE_DATA).with_dext(true).with_ifcs(true).into_bits();
const END: u64 = TransmitData::new().with_eop(true).into_bits();
/// Where PAYLEN stands.
const PAYLEN: u32 = 46;
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
    contexts: [Option<[u64; 2]>; 2],
    /// The context to replace next.
    victim: u8,
    /// What the last planned frame was, whose context stands until another is planned.
    recent: Recent,
}

/// What a frame's descriptors say, but for lengths and addresses.
#[derive(Clone, Copy)]
struct Kind {
    /// The first one, without PAYLEN.
    first: u64,
    /// The others.
    each: u64,
    /// Bytes of the shortest frame that can be so.
    least: u32,
}

impl Kind {
    /// Nothing is done to it.
    const PLAIN: Self = Self { first: DATA, each: DATA, least: MIN_FRAME };
}

/// A kind, and what makes another frame one of the same: a guest sends many in a row.
#[derive(Clone, Copy)]
struct Recent {
    offload: Offload,
    /// Ethernet type, and version and length of the IP header.
    start: [u8; 3],
    kind: Kind,
}

impl Recent {
    /// No frame is one: an offload of nothing is not asked for.
    const NONE: Self =
        Self { offload: Offload { checksum: None, mss: None, vlan: None }, start: [0; 3], kind: Kind::PLAIN };

    /// What a frame leaves for the next. Segmentation changes headers, and behind a tag the IP header is elsewhere: these are
    /// planned each time.
    fn of(frame: &Outgoing<'_>, kind: Kind) -> Self {
        match (frame.offload.mss, frame.offload.checksum, ip_start(frame.header)) {
            (None, Some(checksum), Some(start)) if start[..2] != VLAN.to_be_bytes() => {
                // The checksum has to lie within the frame.
                let least = u32::from(checksum.start) + u32::from(checksum.offset) + 2;
                Self { offload: frame.offload, start, kind: Kind { least: least.max(MIN_FRAME), ..kind } }
            }
            _ => Self::NONE,
        }
    }

    #[inline(always)]
    fn is_of(&self, frame: &Outgoing<'_>) -> bool {
        self.offload == frame.offload && ip_start(frame.header) == Some(self.start)
    }
}

/// Ethernet type and the first byte behind it.
#[inline(always)]
fn ip_start(header: &[u8]) -> Option<[u8; 3]> {
    header.get(12..)?.first_chunk().copied()
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
            contexts: [None; 2],
            victim: 0,
            recent: Recent::NONE,
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
        // The common shape is written on the spot, if nothing is wrong with it. All else takes the long way.
        let (first, header) = (self.next, frame.header);
        let kind = if frame.offload.is_none() {
            Kind::PLAIN
        } else if self.recent.is_of(frame) {
            self.recent.kind
        } else {
            return self.write_any(frame, max_frame);
        };
        if let [segment] = frame.segments
            && (1..=MAX_HEADER).contains(&header.len())
            && !segment.is_empty()
            && self.has_room(first, 2)
        {
            let total = header.len() as u32 + u32::from(segment.len());
            if (kind.least..=max_frame).contains(&total) {
                let address = self.ring.store(first, header);
                let view = self.ring.view();
                view.write(first, [address, kind.first | header.len() as u64 | u64::from(total) << PAYLEN]);
                let last = kind.each | END | u64::from(segment.len());
                view.write(first.wrapping_add(1), [segment.address(), last]);
                return Ok(first.wrapping_add(2));
            }
        }
        self.write_any(frame, max_frame)
    }

    /// Whether there are so many descriptors at `next`. One stays free: tail equal to head means that the ring is empty.
    #[inline(always)]
    fn has_room(&self, next: u32, descriptors: u32) -> bool {
        next.wrapping_sub(self.clean) + descriptors <= self.ring.mask()
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
        // A frame that is refused says nothing on those that follow.
        self.recent = Recent::NONE;
        let plan = plan(header, total, &frame.offload, max_frame)?;
        // A context and a header, if there are any.
        if !self.has_room(self.next, 2 + segments.len() as u32) {
            return Err(Refused::Full);
        }
        let mut first = self.next;
        let mut options = TransmitData::new()
            .with_vle(plan.vle)
            .with_tse(plan.tse)
            .with_ixsm(plan.ixsm)
            .with_txsm(plan.txsm)
            .with_paylen(plan.paylen);
        if let Some(context) = plan.context {
            let known = self.contexts.iter().position(|c| *c == Some(context));
            let slot = known.unwrap_or(usize::from(self.victim));
            if known.is_none() {
                self.contexts[slot] = Some(context);
                self.victim ^= 1;
                let high = ContextHigh::from_bits(context[1]).with_idx(slot as u8);
                self.ring.view().write(first, [context[0], high.into_bits()]);
                first = first.wrapping_add(1);
            }
            options = options.with_idx(slot as u8).with_cc(true);
        }
        // Every descriptor of a frame says what is done to it; length and checksums count in the first.
        let data = DATA | TransmitData::new().with_vle(plan.vle).with_tse(plan.tse).into_bits();
        let kind = Kind { first: data | options.with_paylen(0).into_bits(), each: data, least: MIN_FRAME };
        self.recent = Recent::of(frame, kind);
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
        while self.oldest != end {
            let token = self.tokens[(self.oldest & mask) as usize].take();
            self.oldest = self.oldest.wrapping_add(1);
            // There is one: it was put there when the frame was taken.
            if let Some(token) = token {
                done(token);
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
        self.contexts = [None; 2];
        self.victim = 0;
        self.recent = Recent::NONE;
        self.draining = false;
    }
}
