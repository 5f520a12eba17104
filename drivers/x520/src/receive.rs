//! A receive queue (data sheet 7.1.6, 7.1.9, 8.2.3.8).
//!
//! Descriptor `i` always has buffer `i`. A frame is lent to the caller where it lies; then its descriptors are written
//! anew, and when a batch of them is ready the tail moves. One descriptor always stays on this side of the tail, since
//! head equal to tail means none.

#![allow(unsafe_code, reason = "received bytes are lent out of memory that the device wrote")]

use crate::descriptor::{PACKET_UDP, ReceiveInfo, ReceiveStatus};
use crate::dma::{Ring, STEP, View};
use crate::nic::{Checked, Received};
use crate::registers::{Bus, RDT, Registers};

/// Bytes of a receive buffer.
pub(crate) const BUFFER_BYTES: usize = 2048;
/// Buffers that a frame may be spread over: 15.5 KiB are 8.
const MAX_PIECES: usize = 8;
/// Descriptors given back at once, at most.
const BATCH: u32 = 32;

pub(crate) struct ReceiveQueue {
    /// The device's.
    number: u16,
    /// With a buffer in each slot.
    ring: Ring<BUFFER_BYTES>,
    /// The next descriptor to look at.
    next: u32,
    /// Descriptors that are ready but not shown to the device yet, the one that stays here left out.
    ready: u32,
    batch: u32,
    /// Frames that nothing could be made of.
    pub malformed: u64,
    /// It gave frames since the device's counters were last read.
    pub gave: bool,
}

impl ReceiveQueue {
    pub(crate) fn new(number: u16, ring: Ring<BUFFER_BYTES>) -> Self {
        let batch = BATCH.min(ring.count() / 4);
        Self { number, ring, next: 0, ready: 0, batch, malformed: 0, gave: false }
    }

    /// The device's number of it.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    pub(crate) fn ring(&self) -> &Ring<BUFFER_BYTES> {
        &self.ring
    }

    /// Makes all descriptors ready, as after a reset.
    pub(crate) fn restart(&mut self) {
        (self.next, self.ready) = (0, self.ring.count() - 1);
        renew(self.ring.view(), 0, self.ring.count());
    }

    /// Shows the device what is ready.
    pub(crate) fn give<R: Registers>(&mut self, bus: &Bus<R>) {
        self.ready = 0;
        bus.write(&RDT, self.number, self.ring.number(self.next.wrapping_sub(STEP)));
    }

    /// Where the device was told that the ring ends.
    pub(crate) fn tail(&self) -> u32 {
        self.ring.number(self.next.wrapping_sub((self.ready + 1) * STEP))
    }

    /// The descriptor that is waited for, if the device has not written it back.
    pub(crate) fn awaited(&self) -> Option<u32> {
        let status = ReceiveStatus::from_bits(self.ring.view().status(self.next));
        (!status.dd()).then_some(self.ring.number(self.next))
    }

    #[inline(always)]
    pub(crate) fn poll<R: Registers>(&mut self, bus: &Bus<R>, budget: u32, mut sink: impl FnMut(Received<'_>)) -> u32 {
        let mut left = budget;
        while left > 0 {
            // Frames in one buffer, up to where the tail moves: the common run.
            let run = left.min(self.batch.saturating_sub(self.ready));
            let done = self.singles(run, &mut sink);
            self.ready += done;
            left -= done;
            if done < run {
                let used = self.several(&mut sink);
                if used == 0 {
                    break;
                }
                self.ready += used;
                left -= 1;
            }
            if self.ready >= self.batch {
                self.give(bus);
            }
        }
        self.gave |= left != budget;
        budget - left
    }

    /// Whether nothing has come by it since the counters were read: it cannot have been full.
    pub(crate) fn is_silent(&self) -> bool {
        !self.gave && self.awaited().is_some()
    }

    /// Hands over up to `most` frames that are good and lie in one buffer each, until there is something else. How many.
    #[inline(always)]
    fn singles(&mut self, most: u32, sink: &mut impl FnMut(Received<'_>)) -> u32 {
        let view = self.ring.view();
        let begin = self.next;
        let end = begin.wrapping_add(most * STEP);
        let mut next = begin;
        while next != end {
            let status = ReceiveStatus::from_bits(view.status(next));
            if !status.is_single() {
                break;
            }
            // SAFETY: the device has said that it is done with this buffer (DD), and gets it back only by a tail that moves
            // past it, after the borrow has ended.
            let Some(piece) = (unsafe { view.bytes(next, status.bytes()) }) else { break };
            sink(describe(ReceiveInfo::from_bits(view.first(next)), status, &[piece]));
            view.write(next, [view.slot_bus(next), 0]);
            next = next.wrapping_add(STEP);
        }
        self.next = next;
        next.wrapping_sub(begin) / STEP
    }

    /// Hands over a frame in several buffers, or drops one that is no good. How many descriptors it takes; 0: it is not all
    /// there yet.
    #[cold]
    #[inline(never)]
    fn several(&mut self, sink: &mut impl FnMut(Received<'_>)) -> u32 {
        let view = self.ring.view();
        let mut pieces: [&[u8]; MAX_PIECES] = [&[]; MAX_PIECES];
        let (mut good, mut used) = (true, 0);
        // One frame cannot hold all descriptors, whatever they say.
        while used < self.ring.count() {
            let at = self.next.wrapping_add(used * STEP);
            let status = ReceiveStatus::from_bits(view.status(at));
            if !status.dd() {
                return 0;
            }
            // SAFETY: as in `singles`.
            match (pieces.get_mut(used as usize), unsafe { view.bytes(at, status.bytes()) }) {
                (Some(place), Some(piece)) => *place = piece,
                _ => good = false,
            }
            used += 1;
            if status.eop() {
                good &= !status.rxe();
                if good {
                    sink(describe(ReceiveInfo::from_bits(view.first(at)), status, &pieces[..used as usize]));
                }
                break;
            }
            good &= used < self.ring.count();
        }
        self.malformed += u64::from(!good);
        renew(view, self.next, used);
        self.next = self.next.wrapping_add(used * STEP);
        used
    }
}

/// Writes descriptors anew.
fn renew(view: View<'_, BUFFER_BYTES>, start: u32, count: u32) {
    for i in 0..count {
        let at = start.wrapping_add(i * STEP);
        view.write(at, [view.slot_bus(at), 0]);
    }
}

#[inline(always)]
fn describe<'a>(info: ReceiveInfo, status: ReceiveStatus, pieces: &'a [&'a [u8]]) -> Received<'a> {
    let checked = match status.l4e() || status.ipe() {
        false if status.l4cs() => Checked::Good,
        false => Checked::Unknown,
        true => wrong(info, status),
    };
    Received { pieces, checked, vlan: status.vp().then_some(status.vlan()), hash: info.hash() }
}

/// What to make of a frame of which the device says that a checksum is wrong.
#[cold]
fn wrong(info: ReceiveInfo, status: ReceiveStatus) -> Checked {
    // A UDP datagram without checksum is reported as wrong (erratum 44), so of UDP only good news is believed.
    if status.ipe() || info.packet_type() & PACKET_UDP == 0 { Checked::Bad } else { Checked::Unknown }
}
