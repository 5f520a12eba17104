//! A transmit queue (data sheet 7.2.1, 7.2.3, 8.2.3.9).
//!
//! A frame is a context descriptor if neither of the queue's two contexts fits, a descriptor for the copied header, and
//! one for each segment. Frames are shown to the device in batches; the last descriptor of each asks for a report, and
//! when that is written back the whole batch is done.

use alloc::boxed::Box;
use alloc::vec;

use crate::descriptor::{TYPE_DATA, TransmitData};
use crate::dma::{DmaBuffer, Ring};
use crate::nic::{Outcome, Outgoing, Refused, Segment};
use crate::offload::{MAX_HEADER, Plan, plan};
use crate::registers::{Bus, Registers, TDT};

/// Segments of a frame: 38 descriptors are allowed (7.2.1.1), of which one is the header's.
pub(crate) const MAX_SEGMENTS: usize = 36;
/// Bytes of the shortest frame that the device pads (7.2.1.2).
const MIN_FRAME: u32 = 17;

pub(crate) struct TransmitQueue<T> {
    index: u16,
    ring: Ring,
    headers: DmaBuffer,
    /// By index of a frame's last descriptor.
    tokens: Box<[Option<T>]>,
    /// By index of a batch's first descriptor: its last.
    ends: Box<[u32]>,
    /// First descriptor that the device may still need; runs on, like the two below.
    clean: u32,
    /// First descriptor of the batch that has not been shown to the device.
    batch: u32,
    /// The next descriptor to write.
    next: u32,
    contexts: [Option<[u64; 2]>; 2],
    /// The context to replace next.
    victim: u8,
}

impl<T> TransmitQueue<T> {
    pub(crate) fn new(index: u16, ring: Ring, headers: DmaBuffer) -> Self {
        let count = ring.mask() as usize + 1;
        let tokens = (0..count).map(|_| None).collect();
        let ends = vec![0; count].into_boxed_slice();
        Self { index, ring, headers, tokens, ends, clean: 0, batch: 0, next: 0, contexts: [None; 2], victim: 0 }
    }

    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Whether frames wait for the device.
    pub(crate) fn is_busy(&self) -> bool {
        self.clean != self.next
    }

    /// Tokens that are out.
    pub(crate) fn outstanding(&self) -> usize {
        self.tokens.iter().flatten().count()
    }

    /// Whether the device was shown frames and has not yet said that the first of them are done.
    pub(crate) fn is_waiting(&self) -> bool {
        let end = self.ends[(self.clean & self.ring.mask()) as usize];
        self.clean != self.batch && !TransmitData::from_bits(self.ring.status(end)).dd()
    }

    /// The first descriptor that the device may still need.
    pub(crate) fn position(&self) -> u32 {
        self.clean
    }

    #[inline]
    pub(crate) fn add(&mut self, frame: &Outgoing<'_>, token: T, max_frame: u32) -> Result<(), (Refused, T)> {
        match self.prepare(frame, max_frame) {
            Ok(plan) => {
                self.write(frame, &plan, token);
                Ok(())
            }
            Err(why) => Err((why, token)),
        }
    }

    #[inline(always)]
    fn prepare(&mut self, frame: &Outgoing<'_>, max_frame: u32) -> Result<Plan, Refused> {
        if frame.header.len() > MAX_HEADER {
            return Err(Refused::Header);
        }
        if frame.segments.len() > MAX_SEGMENTS {
            return Err(Refused::Segments);
        }
        let payload: u32 = frame.segments.iter().map(|s| u32::from(s.len())).sum();
        let total = payload + frame.header.len() as u32;
        if total < MIN_FRAME || frame.segments.iter().any(Segment::is_empty) {
            return Err(Refused::Length);
        }
        let plan = plan(frame.header, total, &frame.offload, max_frame)?;
        let wanted = 2 + frame.segments.len() as u32;
        // One descriptor stays free: tail equal to head means that the ring is empty.
        if self.next.wrapping_sub(self.clean) + wanted > self.ring.mask() {
            return Err(Refused::Full);
        }
        Ok(plan)
    }

    #[inline(always)]
    fn write(&mut self, frame: &Outgoing<'_>, plan: &Plan, token: T) {
        let mut first = TransmitData::new()
            .with_dtyp(TYPE_DATA)
            .with_dext(true)
            .with_ifcs(true)
            .with_vle(plan.vle)
            .with_tse(plan.tse)
            .with_ixsm(plan.ixsm)
            .with_txsm(plan.txsm)
            .with_paylen(plan.paylen);
        if let Some(context) = plan.context {
            first = first.with_idx(self.context(context)).with_cc(true);
        }
        if !frame.header.is_empty() {
            let slot = self.next & self.ring.mask();
            let address = if plan.tse {
                self.headers.store(slot, MAX_HEADER, patched(frame.header, plan, &mut [0; MAX_HEADER]))
            } else {
                self.headers.store(slot, MAX_HEADER, frame.header)
            };
            let word = first.with_len(frame.header.len() as u16).with_eop(frame.segments.is_empty());
            self.push([address, word.into_bits()]);
        }
        for (i, segment) in frame.segments.iter().enumerate() {
            let word = first.with_len(segment.len()).with_eop(i + 1 == frame.segments.len());
            self.push([segment.address(), word.into_bits()]);
        }
        let last = self.next.wrapping_sub(1) & self.ring.mask();
        self.tokens[last as usize] = Some(token);
    }

    /// The slot of a context, which is written to the ring first if the device does not know it.
    #[inline(always)]
    fn context(&mut self, words: [u64; 2]) -> u8 {
        if let Some(slot) = self.contexts.iter().position(|c| *c == Some(words)) {
            return slot as u8;
        }
        let slot = self.victim;
        self.victim ^= 1;
        self.contexts[usize::from(slot)] = Some(words);
        let high = crate::descriptor::ContextHigh::from_bits(words[1]).with_idx(slot);
        self.push([words[0], high.into_bits()]);
        slot
    }

    #[inline(always)]
    fn push(&mut self, words: [u64; 2]) {
        self.ring.write(self.next & self.ring.mask(), words);
        self.next = self.next.wrapping_add(1);
    }

    #[inline]
    pub(crate) fn flush<R: Registers>(&mut self, bus: &Bus<R>) {
        if self.batch == self.next {
            return;
        }
        let mask = self.ring.mask();
        let last = self.next.wrapping_sub(1) & mask;
        self.ring.or_status(last, TransmitData::new().with_rs(true).into_bits());
        self.ends[(self.batch & mask) as usize] = last;
        self.batch = self.next;
        bus.write(&TDT, self.index, self.next & mask);
    }

    #[inline]
    pub(crate) fn reclaim(&mut self, mut done: impl FnMut(T, Outcome)) -> u32 {
        let mask = self.ring.mask();
        let mut count = 0;
        while self.clean != self.batch {
            let end = self.ends[(self.clean & mask) as usize];
            if !TransmitData::from_bits(self.ring.status(end)).dd() {
                break;
            }
            loop {
                let at = self.clean & mask;
                self.clean = self.clean.wrapping_add(1);
                if let Some(token) = self.tokens[at as usize].take() {
                    done(token, Outcome::Sent);
                    count += 1;
                }
                if at == end {
                    break;
                }
            }
        }
        count
    }

    /// Gives back all that is left, as the device can DMA no more, and starts anew.
    pub(crate) fn drain(&mut self, mut done: impl FnMut(T, Outcome)) -> u32 {
        let mut count = self.reclaim(&mut done);
        while self.clean != self.next {
            let at = (self.clean & self.ring.mask()) as usize;
            self.clean = self.clean.wrapping_add(1);
            if let Some(token) = self.tokens[at].take() {
                done(token, Outcome::Dropped);
                count += 1;
            }
        }
        self.restart();
        count
    }

    /// Starts anew at descriptor 0. Nothing waits any more.
    pub(crate) fn restart(&mut self) {
        (self.clean, self.batch, self.next) = (0, 0, 0);
        self.contexts = [None; 2];
        self.victim = 0;
    }
}

/// The header with the plan's changes.
fn patched<'a>(header: &[u8], plan: &Plan, copy: &'a mut [u8; MAX_HEADER]) -> &'a [u8] {
    let copy = &mut copy[..header.len()];
    copy.copy_from_slice(header);
    for (at, value) in plan.patches.iter().flatten() {
        if let Some(field) = copy.get_mut(*at..*at + 2) {
            field.copy_from_slice(&value.to_be_bytes());
        }
    }
    copy
}
