//! A transmit queue (82599 data sheet 7.2.1, 7.2.3, 8.2.3.9; 82576 data sheet 7.2, 8.12).
//!
//! A frame takes one descriptor for the copied header and one for each segment. If neither of the queue's two contexts
//! fits, a context descriptor comes first. The device sees frames in batches. The last descriptor of a batch requests a
//! write-back, which says that the whole batch is done.

#![allow(unsafe_code, reason = "what says that there is room for a token is the ring of descriptors")]

mod checksum_batch;

use alloc::boxed::Box;
use alloc::vec;
use core::marker::PhantomData;

use nic::{Link, Offload, Outcome, Outgoing, Refused, Segment, Single};

use crate::descriptor::{TYPE_DATA, TransmitData};
use crate::dma::{DESCRIPTOR_BYTES, Ring, STEP};
use crate::family::Family;
use crate::life::Life;
use crate::offload::{CommonHeader, Context, MAX_HEADER, plan};
use crate::registers::{Bus, Registers};
use crate::tokens::Tokens;

/// Bytes of the shortest frame that the device pads (7.2.1.2).
const MIN_FRAME: u32 = 17;
/// Most descriptors of a frame of one header and one segment: a context may come first.
const MOST: u32 = 3;

/// Bits of every data descriptor.
const DATA: u64 = TransmitData::new().with_dtyp(TYPE_DATA).with_dext(true).with_ifcs(true).into_bits();
const END: u64 = TransmitData::new().with_eop(true).into_bits();
const TAG: u64 = TransmitData::new().with_vle(true).into_bits();
/// Bits that all descriptors of a frame have in common.
const EACH: u64 = DATA | TAG;
/// Lowest bit of PAYLEN.
const PAYLEN: u32 = 46;
/// Lowest bit of IDX, the number of the context: the same in data and context descriptors.
const IDX: u32 = 36;
const REPORT: u64 = TransmitData::new().with_rs(true).into_bits();

/// The bit by which every descriptor of a frame asks for the insertion of its VLAN tag.
#[inline(always)]
const fn tag(asked: Offload) -> u64 {
    // Bit 48 of the request moves to the place of VLE.
    asked.word() >> 18 & TAG
}

/// Frames that the device got by one tail write.
#[derive(Clone, Copy, Debug, Default)]
struct Batch {
    /// The descriptor after its last one.
    end: u32,
    /// The number of the frame after its last one.
    frames: u32,
}

/// Why a batch loop ended.
enum BatchEnd<T> {
    /// No contiguous descriptors are left, or no item.
    Full,
    /// `write` made no frame.
    NoFrame,
    /// This frame does not qualify for the loop and was not taken.
    Unfit(Single<T>),
}

/// Whether a frame is a header of at least `least` bytes plus a rest that is not empty, and not longer than
/// `max_frame`.
#[inline(always)]
fn is_pair(least: u32, header: u32, rest: u32, max_frame: u32) -> bool {
    // An empty rest wraps round to a large number.
    (least..=MAX_HEADER as u32).contains(&header) && rest.wrapping_sub(1) < max_frame.saturating_sub(header)
}

/// A transmit queue. `T`: the token that names the owner of a frame.
pub struct TransmitQueue<T, F> {
    index: u16,
    /// Why it takes no frames. `None`: it takes them.
    closed: Option<Refused>,
    /// The device has ended all DMA. The tokens in the queue have to be given back before it can be used again.
    pub draining: bool,
    /// The ring, with a header in each slot.
    ring: Ring<MAX_HEADER>,
    /// End of the free descriptors. Equal to `next` while the queue is closed, so that one comparison per frame
    /// suffices.
    limit: u32,
    /// Tokens of the frames in the queue. There are never more frames than descriptors.
    tokens: Tokens<T>,
    /// Batches by their first descriptor.
    batches: Box<[Batch]>,
    /// First descriptor that the device may still need.
    clean: u32,
    /// First descriptor that has not been shown to the device.
    shown: u32,
    /// The next descriptor to write.
    next: u32,
    contexts: Contexts,
    /// The last frame had an offload request, so the next one probably has one too.
    asked: bool,
    family: PhantomData<F>,
}

/// Bits of the first descriptor of a frame that asks for a checksum.
const fn checksum<F: Family>() -> u64 {
    TransmitData::new().with_txsm(true).with_cc(F::CHECK_CONTEXT).into_bits()
}

impl<T, F: Family> TransmitQueue<T, F> {
    /// A queue whose number the device has as `index`. It is closed.
    #[must_use]
    pub fn new(index: u16, ring: Ring<MAX_HEADER>) -> Self {
        let count = ring.count() as usize;
        Self {
            index,
            closed: Some(Refused::NotReady),
            draining: false,
            ring,
            limit: 0,
            tokens: Tokens::new(count),
            batches: vec![Batch::default(); count].into_boxed_slice(),
            clean: 0,
            shown: 0,
            next: 0,
            contexts: Contexts::default(),
            asked: false,
            family: PhantomData,
        }
    }

    /// Opens the queue, or closes it and says why. A frame then costs one comparison.
    pub fn open_or_close(&mut self, life: &Life) {
        self.closed = if !life.is_running() {
            Some(Refused::NotReady)
        } else if life.link == Link::Down {
            Some(Refused::LinkDown)
        } else if self.draining {
            Some(Refused::Full)
        } else {
            None
        };
        self.update_limit();
    }

    /// The device has ended all DMA: the queue gives back the tokens that it holds.
    pub fn take_back(&mut self) {
        self.draining = self.is_busy();
        if !self.draining {
            self.restart();
        }
    }

    /// One descriptor stays free: tail equal to head means that the ring is empty.
    #[inline(always)]
    fn update_limit(&mut self) {
        self.limit = if self.closed.is_some() { self.next } else { self.clean.wrapping_add(self.ring.span()) };
    }

    /// Whether that many descriptors are free.
    #[inline(always)]
    fn has_room(&self, descriptors: u32) -> bool {
        self.limit.wrapping_sub(self.next) / STEP >= descriptors
    }

    /// The ring.
    #[must_use]
    pub fn ring(&self) -> &Ring<MAX_HEADER> {
        &self.ring
    }

    /// Whether the device still has frames.
    pub fn is_busy(&self) -> bool {
        self.clean != self.next
    }

    /// Tokens that were not given back.
    pub fn outstanding(&self) -> usize {
        self.tokens.len() as usize
    }

    /// Whether the device has not yet finished the oldest batch.
    fn is_waiting(&self) -> bool {
        self.clean != self.shown && self.done().is_none()
    }

    /// The oldest batch, if the device has finished it.
    #[inline(always)]
    fn done(&self) -> Option<Batch> {
        let batch = *self.batches.get(self.ring.number(self.clean) as usize)?;
        let last = TransmitData::from_bits(self.ring.view().status(batch.end.wrapping_sub(STEP)));
        last.dd().then_some(batch)
    }

    /// Takes a frame of any form.
    #[inline(never)]
    pub fn add(&mut self, frame: &Outgoing<'_>, token: T, max_frame: u32) -> Result<(), (Refused, T)> {
        match self.closed.map_or_else(|| self.write_any(frame, max_frame), Err) {
            Ok(()) => {
                // SAFETY: there is a place, because every frame has a descriptor, and the ring had room for this one's.
                unsafe { self.tokens.push(token) };
                Ok(())
            }
            Err(why) => Err((why, token)),
        }
    }

    /// Takes a frame for each of `items` as long as there is room. `write` makes the frame: a header, and one segment
    /// at most. Returns how many were taken, and the next one if it was refused.
    #[inline(always)]
    pub fn add_all<'a, I>(
        &mut self,
        items: &'a [I],
        max_frame: u32,
        mut write: impl FnMut(&'a I, &mut [u8; MAX_HEADER]) -> Option<Single<T>>,
    ) -> (usize, Option<(Refused, T)>) {
        let mut done = 0;
        while self.has_room(MOST)
            && let Some(left @ [item, ..]) = items.get(done..)
        {
            let begin = self.ring.offset(self.next);
            let room = self.limit.wrapping_sub(self.next).min(self.ring.bytes().wrapping_sub(begin));
            let (taken, end) = if self.asked {
                self.add_checksum_batch(room, left, max_frame, &mut write)
            } else {
                self.add_plain_batch(room / (2 * STEP), left, max_frame, &mut write)
            };
            done = done.saturating_add(taken);
            let other = match end {
                BatchEnd::Full if taken != 0 => continue,
                // The descriptors of the next frame wrap round.
                BatchEnd::Full => {
                    // SAFETY: the device was not shown this descriptor: its slot is the driver's alone.
                    let slot = unsafe { self.ring.view().slot_mut(self.next) };
                    let Some(other) = write(item, slot) else { break };
                    other
                }
                BatchEnd::NoFrame => break,
                BatchEnd::Unfit(other) => other,
            };
            // The next frames usually ask for the same.
            self.asked = !other.offload.is_none();
            if let Err(refused) = self.add_one(other, max_frame) {
                return (done, Some(refused));
            }
            done = done.saturating_add(1);
        }
        (done, None)
    }

    /// As `add_all`, for up to `room` frames without offload request whose descriptors and tokens are contiguous.
    /// Returns how many were taken, and why the loop ended.
    #[inline(always)]
    fn add_plain_batch<'a, I>(
        &mut self,
        room: u32,
        items: &'a [I],
        max_frame: u32,
        write: &mut impl FnMut(&'a I, &mut [u8; MAX_HEADER]) -> Option<Single<T>>,
    ) -> (usize, BatchEnd<T>) {
        let Self { ring, tokens, next: position, .. } = self;
        let row = ring.row();
        let begin = ring.offset(*position) as usize;
        let mut at = begin;
        let mut end = BatchEnd::Full;
        for (item, place) in items.iter().zip(tokens.vacant(room)) {
            // SAFETY: the offset of a descriptor that the device was not shown: its slot is the driver's alone.
            let slot = unsafe { row.slot(at) };
            let bus = row.bus(slot);
            let Some(frame) = write(item, slot) else {
                end = BatchEnd::NoFrame;
                break;
            };
            let (header, rest) = (frame.header as u32, u32::from(frame.rest.len()));
            if !frame.offload.is_none() || !is_pair(MIN_FRAME, header, rest, max_frame) {
                end = BatchEnd::Unfit(frame);
                break;
            }
            // The summands have no bits in common. Adding takes fewer instructions than OR.
            let first =
                (u64::from(rest.wrapping_add(header)) << PAYLEN).wrapping_add(u64::from(header)).wrapping_add(DATA);
            // SAFETY: two descriptors for each place.
            unsafe {
                row.write(at, [bus, first]);
                row.write(
                    at.wrapping_add(STEP as usize),
                    [frame.rest.address(), u64::from(rest).wrapping_add(DATA).wrapping_add(END)],
                );
            }
            at = at.wrapping_add(2 * DESCRIPTOR_BYTES);
            place.write(frame.token);
        }
        let written = at.wrapping_sub(begin) as u32;
        *position = position.wrapping_add(written);
        let taken = written / (2 * STEP);
        // SAFETY: for each pair of descriptors a place was written.
        unsafe { tokens.advance(taken) };
        (taken as usize, end)
    }

    /// Takes one frame of any form. Its header is in the slot of the next descriptor, and there is room.
    #[inline(never)]
    fn add_one(&mut self, frame: Single<T>, max_frame: u32) -> Result<(), (Refused, T)> {
        let (header, rest) = (frame.header, frame.rest);
        let total = (header as u32).saturating_add(rest.len().into());
        // SAFETY: as in `add_all`.
        let slot = unsafe { self.ring.view().slot_mut(self.next) };
        let bus = self.ring.view().slot_bus(self.next);
        let good = (MIN_FRAME as usize..=MAX_HEADER).contains(&header) && total <= max_frame;
        let asked = frame.offload;
        let options = if !good {
            None
        } else if asked.is_none() {
            Some(DATA)
        } else {
            let common = CommonHeader::of(asked).filter(|common| common.matches(slot) && common.min_len <= total);
            common.map(|common| {
                DATA | const { checksum::<F>() } | self.context(common.context(asked)) << IDX | tag(asked)
            })
        };
        let Some(options) = options else { return self.add_slow(frame, max_frame) };
        let view = self.ring.view();
        let first = u64::from(total) << PAYLEN | header as u64 | options;
        if rest.is_empty() {
            view.write(self.next, [bus, first | END]);
            self.next = self.next.wrapping_add(STEP);
        } else {
            view.write(self.next, [bus, first]);
            let last = u64::from(rest.len()) | options & EACH | END;
            view.write(self.next.wrapping_add(STEP), [rest.address(), last]);
            self.next = self.next.wrapping_add(2 * STEP);
        }
        // SAFETY: as in `add`.
        unsafe { self.tokens.push(frame.token) };
        Ok(())
    }

    /// Returns the slot of a context. If the device does not know the context, writes it to the ring and moves `next`.
    /// The frame after it must not be refused any more.
    #[inline(always)]
    fn context(&mut self, context: Context) -> u64 {
        let (slot, new) = self.contexts.slot(context);
        if let Some(words) = new {
            self.ring.view().write(self.next, words);
            self.next = self.next.wrapping_add(STEP);
        }
        slot
    }

    /// Takes a frame with uncommon headers. Its header is in the slot of the next descriptor.
    #[cold]
    #[inline(never)]
    fn add_slow(&mut self, frame: Single<T>, max_frame: u32) -> Result<(), (Refused, T)> {
        let Single { header, rest, offload, token } = frame;
        // SAFETY: as in `add_all`.
        let copy = *unsafe { self.ring.view().slot_mut(self.next) };
        let Some(header) = copy.get(..header) else { return Err((Refused::Header, token)) };
        let segments: &[_] = if rest.is_empty() { &[] } else { &[rest] };
        self.add(&Outgoing { header, segments, offload }, token, max_frame)
    }

    /// Writes any frame.
    #[inline(never)]
    fn write_any(&mut self, frame: &Outgoing<'_>, max_frame: u32) -> Result<(), Refused> {
        let (header, segments) = (frame.header, frame.segments);
        if header.len() > MAX_HEADER {
            return Err(Refused::Header);
        }
        if segments.len() > F::MAX_SEGMENTS {
            return Err(Refused::Segments);
        }
        let total = segments.iter().map(|s| u32::from(s.len())).sum::<u32>().saturating_add(header.len() as u32);
        if total < MIN_FRAME || segments.iter().any(Segment::is_empty) {
            return Err(Refused::Length);
        }
        let plan = plan(header, total, frame.offload, max_frame)?;
        // A context and a header, if there are any.
        if !self.has_room((segments.len() as u32).saturating_add(2)) {
            return Err(Refused::Full);
        }
        let mut options = TransmitData::new()
            .with_vle(plan.vle)
            .with_tse(plan.tse)
            .with_ixsm(plan.ixsm)
            .with_txsm(plan.txsm)
            .with_paylen(plan.paylen);
        if let Some(context) = plan.context {
            options = options.with_idx(self.context(context) as u8).with_cc(F::CHECK_CONTEXT);
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
            at = at.wrapping_add(STEP);
        }
        for segment in segments {
            self.ring.view().write(at, [segment.address(), data | u64::from(segment.len())]);
            at = at.wrapping_add(STEP);
        }
        self.ring.view().or_status(first, options.into_bits());
        self.ring.view().or_status(at.wrapping_sub(STEP), END);
        self.next = at;
        Ok(())
    }

    /// Gives the device the frames that were taken.
    #[inline(always)]
    pub fn flush<R: Registers>(&mut self, bus: &Bus<R>) {
        if self.shown == self.next || self.closed.is_some() {
            return;
        }
        let Some(batch) = self.batches.get_mut(self.ring.number(self.shown) as usize) else { return };
        self.ring.view().or_status(self.next.wrapping_sub(STEP), REPORT);
        *batch = Batch { end: self.next, frames: self.tokens.newest() };
        self.shown = self.next;
        bus.write(&F::TDT, self.index, self.ring.number(self.next));
    }

    /// Gives back the tokens of frames that the device has finished. Returns how many.
    #[inline(always)]
    pub fn reclaim(&mut self, mut done: impl FnMut(T, Outcome)) -> u32 {
        let mut count = 0_u32;
        while self.clean != self.shown
            && let Some(batch) = self.done()
        {
            let taken = self.tokens.take_until(batch.frames, |token| done(token, Outcome::Sent));
            count = count.saturating_add(taken);
            self.clean = batch.end;
        }
        self.update_limit();
        count
    }

    /// Gives back all that is left, as the device can DMA no more, and starts anew.
    #[cold]
    pub fn drain(&mut self, mut done: impl FnMut(T, Outcome)) -> u32 {
        let count = self.reclaim(&mut done);
        let dropped = self.tokens.take_until(self.tokens.newest(), |token| done(token, Outcome::Dropped));
        self.restart();
        count.saturating_add(dropped)
    }

    /// Starts anew at descriptor 0. Nothing waits any more.
    fn restart(&mut self) {
        (self.clean, self.shown, self.next) = (0, 0, 0);
        self.contexts = Contexts::default();
        self.draining = false;
        self.update_limit();
    }
}

/// The watch over a transmit queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// When the queue last moved, in microseconds.
    moved_at: u64,
    /// The first descriptor that the device needed then.
    position: u32,
}

impl Progress {
    /// Nothing was to be done before `now`.
    pub fn begin(&mut self, now: u64) {
        self.moved_at = now;
    }

    /// Whether the queue hangs: it waits for longer than `most` microseconds, or has frames and no link. Without a link the
    /// device sends nothing, and would keep its frames forever.
    pub fn hangs<T, F: Family>(&mut self, queue: &TransmitQueue<T, F>, link: Link, now: u64, most: u64) -> bool {
        if !queue.is_waiting() || queue.clean != self.position || queue.draining {
            (self.position, self.moved_at) = (queue.clean, now);
        }
        let has_no_link = link == Link::Down && queue.is_busy() && !queue.draining;
        has_no_link || now.saturating_sub(self.moved_at) > most
    }
}

/// The contexts that the device has in its two slots.
#[derive(Default)]
struct Contexts {
    names: [u64; 2],
    /// The one that was written last; the other is replaced next.
    newest: u64,
}

impl Contexts {
    /// The slot of a context, and its descriptor if that has to be written first.
    #[inline(always)]
    fn slot(&mut self, Context { name, words: [low, high] }: Context) -> (u64, Option<[u64; 2]>) {
        let [first, second] = self.names;
        if name == first || name == second {
            return ((name != first).into(), None);
        }
        let slot = (self.newest ^ 1) & 1;
        self.newest = slot;
        if let Some(place) = self.names.get_mut(slot as usize) {
            *place = name;
        }
        (slot, Some([low, high | slot << IDX]))
    }
}
