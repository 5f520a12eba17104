//! A receive queue (82599 data sheet 7.1.6, 7.1.9, 8.2.3.8; 82576 data sheet 7.1.5, 8.10).
//!
//! Descriptor `i` always has buffer `i`. The caller borrows a frame in its buffer. Then the driver rearms the
//! descriptors, and moves the tail when a batch of them is ready. One descriptor always stays with the driver, because
//! head equal to tail means an empty ring.

#![allow(unsafe_code, reason = "received bytes are lent out of memory that the device wrote")]

use core::marker::PhantomData;

use nic::{Checked, Received};

use crate::descriptor::{PACKET_UDP, ReceiveInfo, ReceiveStatus};
use crate::dma::{Ring, STEP, View};
use crate::family::Family;
use crate::registers::{Bus, Registers};

/// Bytes of a receive buffer.
pub const BUFFER_BYTES: usize = 2048;
/// Most buffers of a frame: 15.5 KiB are 8.
const MAX_PIECES: usize = 8;
/// Most descriptors per tail write.
const BATCH: u32 = 32;

/// A receive queue.
pub struct ReceiveQueue<F> {
    /// The device's number of this queue.
    number: u16,
    /// The ring, with a buffer in each slot.
    ring: Ring<BUFFER_BYTES>,
    /// The next descriptor to look at.
    next: u32,
    /// Rearmed descriptors that the device does not know of, without the one that stays with the driver.
    ready: u32,
    batch: u32,
    /// Frames that were dropped because their descriptors made no sense.
    pub malformed: u64,
    /// Whether the queue delivered frames since the device's counters were last read.
    delivered: bool,
    family: PhantomData<F>,
}

impl<F: Family> ReceiveQueue<F> {
    /// A queue whose number the device has as `number`.
    #[must_use]
    pub fn new(number: u16, ring: Ring<BUFFER_BYTES>) -> Self {
        let batch = BATCH.min(ring.count() / 4);
        Self { number, ring, next: 0, ready: 0, batch, malformed: 0, delivered: false, family: PhantomData }
    }

    /// The device's number of this queue.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The ring.
    #[must_use]
    pub fn ring(&self) -> &Ring<BUFFER_BYTES> {
        &self.ring
    }

    /// Makes all descriptors ready, as after a reset.
    pub fn restart(&mut self) {
        (self.next, self.ready) = (0, self.ring.count().saturating_sub(1));
        rearm(self.ring.view(), 0, self.ring.count());
    }

    /// Gives the device the descriptors that are ready.
    pub fn advance_tail<R: Registers>(&mut self, bus: &Bus<R>) {
        self.ready = 0;
        bus.write(&F::RDT, self.number, self.ring.number(self.next.wrapping_sub(STEP)));
    }

    /// The tail as it was last written.
    fn tail(&self) -> u32 {
        self.ring.number(self.next.wrapping_sub(self.ready.wrapping_add(1).wrapping_mul(STEP)))
    }

    /// The first descriptor that the device has not written back, if the queue waits for it: `next`, or the one behind the descriptors of
    /// an unfinished frame. `None`: a whole frame is there, or the device has written back all descriptors without ending a frame.
    fn awaited(&self) -> Option<u32> {
        let view = self.ring.view();
        for used in 0..self.ring.count() {
            let at = self.next.wrapping_add(used.wrapping_mul(STEP));
            let status = ReceiveStatus::from_bits(view.status(at));
            if !status.dd() {
                return Some(self.ring.number(at));
            }
            if status.eop() {
                return None;
            }
        }
        None
    }

    /// Begins a period of the device's counters. Returns whether the queue hangs, because the device passed a descriptor without
    /// write-back, or the tail register does not have the value that was written. `skipped`: what was found before.
    pub fn hangs<R: Registers>(&mut self, bus: &Bus<R>, skipped: &mut Option<u32>) -> bool {
        self.delivered = false;
        // If seen twice, no write-back is on its way: the queue would wait for it forever.
        let passed = self.awaited().filter(|next| bus.read(&F::RDH, self.number) != *next);
        let lost = passed.is_some() && passed == *skipped;
        *skipped = passed;
        bus.read(&F::RDT, self.number) != self.tail() || lost
    }

    /// Gives up to `budget` frames to `sink`, in order. Returns how many.
    #[inline(always)]
    pub fn poll<R: Registers>(&mut self, bus: &Bus<R>, budget: u32, mut sink: impl FnMut(Received<'_>)) -> u32 {
        let mut left = budget;
        while left > 0 {
            // The common case: frames of one buffer, up to the next tail write.
            let run = left.min(self.batch.saturating_sub(self.ready));
            let done = self.receive_single_buffer(run, &mut sink);
            debug_assert!(done <= run, "and `run` is at most `left`");
            self.ready = self.ready.wrapping_add(done);
            left = left.wrapping_sub(done);
            if done < run {
                let used = self.receive_multi_buffer(&mut sink);
                if used == 0 {
                    break;
                }
                self.ready = self.ready.wrapping_add(used);
                left = left.wrapping_sub(1);
            }
            if self.ready >= self.batch {
                self.advance_tail(bus);
            }
        }
        self.delivered |= left != budget;
        budget.wrapping_sub(left)
    }

    /// Whether no frame came since the counters were last read. Then the queue was not full.
    pub fn is_idle(&self) -> bool {
        !self.delivered && self.awaited().is_some()
    }

    /// Delivers up to `most` good frames of one buffer each. Stops at anything else. Returns how many.
    #[inline(always)]
    fn receive_single_buffer(&mut self, most: u32, sink: &mut impl FnMut(Received<'_>)) -> u32 {
        let view = self.ring.view();
        let begin = self.next;
        let end = begin.wrapping_add(most.wrapping_mul(STEP));
        let mut next = begin;
        while next != end {
            let status = ReceiveStatus::from_bits(view.status(next));
            if !status.is_single::<F>() {
                break;
            }
            // SAFETY: the device has finished this buffer (DD). It gets the buffer back only when the tail moves past
            // it, after the borrow has ended.
            let Some(piece) = (unsafe { view.bytes(next, status.bytes()) }) else { break };
            sink(describe::<F>(ReceiveInfo::from_bits(view.first(next)), status, &[piece]));
            view.write(next, [view.slot_bus(next), 0]);
            next = next.wrapping_add(STEP);
        }
        self.next = next;
        next.wrapping_sub(begin) / STEP
    }

    /// Delivers a frame of several buffers, or drops a bad one. Returns the number of its descriptors, 0 if the frame
    /// is not complete yet.
    #[cold]
    #[inline(never)]
    fn receive_multi_buffer(&mut self, sink: &mut impl FnMut(Received<'_>)) -> u32 {
        let view = self.ring.view();
        let mut pieces: [&[u8]; MAX_PIECES] = [&[]; MAX_PIECES];
        let (mut good, mut used) = (true, 0);
        // Descriptors that the device knows of: all but those that are rearmed, and the one that stays with the driver.
        let given = self.ring.count().saturating_sub(self.ready.saturating_add(1));
        // Looks at each descriptor once at most, even if none of them ends the frame.
        while used < self.ring.count() {
            let at = self.next.wrapping_add(used.wrapping_mul(STEP));
            let status = ReceiveStatus::from_bits(view.status(at));
            if !status.dd() {
                if used < given {
                    return 0;
                }
                // The device has no descriptor left that could end the frame.
                good = false;
                break;
            }
            // SAFETY: as in `receive_single_buffer`.
            match (pieces.get_mut(used as usize), unsafe { view.bytes(at, status.bytes()) }) {
                (Some(place), Some(piece)) => *place = piece,
                _ => good = false,
            }
            used = used.saturating_add(1);
            if status.eop() {
                good &= !status.has(F::DAMAGED);
                match pieces.get(..used as usize) {
                    Some(pieces) if good => sink(describe::<F>(ReceiveInfo::from_bits(view.first(at)), status, pieces)),
                    _ => good = false,
                }
                break;
            }
            good &= used < self.ring.count();
        }
        self.malformed = self.malformed.saturating_add(u64::from(!good));
        rearm(view, self.next, used);
        self.next = self.next.wrapping_add(used.wrapping_mul(STEP));
        used
    }
}

/// Rearms `count` descriptors from `start` on.
fn rearm(view: View<'_, BUFFER_BYTES>, start: u32, count: u32) {
    for i in 0..count {
        let at = start.wrapping_add(i.wrapping_mul(STEP));
        view.write(at, [view.slot_bus(at), 0]);
    }
}

#[inline(always)]
fn describe<'a, F: Family>(info: ReceiveInfo, status: ReceiveStatus, pieces: &'a [&'a [u8]]) -> Received<'a> {
    let checked = match status.has(const { F::WRONG_L4 | F::WRONG_IP }) {
        false if status.l4cs() => Checked::Good,
        false => Checked::Unknown,
        true => checksum_error::<F>(info, status),
    };
    Received { pieces, checked, vlan: status.vp().then_some(status.vlan()), hash: info.hash() }
}

/// The answer for a frame whose checksum the device reports as wrong.
#[cold]
fn checksum_error<F: Family>(info: ReceiveInfo, status: ReceiveStatus) -> Checked {
    // The device reports a UDP datagram without checksum as wrong (82599 erratum 44), so a bad UDP checksum is not believed.
    if status.has(F::WRONG_IP) || info.packet_type() & PACKET_UDP == 0 { Checked::Bad } else { Checked::Unknown }
}
