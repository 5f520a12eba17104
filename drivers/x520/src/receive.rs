//! A receive queue (data sheet 7.1.6, 7.1.9, 8.2.3.8).
//!
//! Descriptor `i` always has buffer `i`. A frame is lent to the caller where it lies; then its descriptors are written
//! anew, and when a batch of them is ready the tail moves. One descriptor always stays on this side of the tail, since
//! head equal to tail means none.

#![allow(unsafe_code, reason = "received bytes are lent out of memory that the device wrote")]

use crate::descriptor::{PACKET_UDP, ReceiveInfo, ReceiveStatus};
use crate::dma::{Ring, Slots};
use crate::nic::{Checked, Received};
use crate::registers::{Bus, RDT, Registers};

/// Bytes of a receive buffer.
pub(crate) const BUFFER_BYTES: usize = 2048;
/// Buffers that a frame may be spread over: 15.5 KiB are 8.
const MAX_PIECES: usize = 8;
/// Descriptors given back at once, at most.
const BATCH: u32 = 32;

pub(crate) struct ReceiveQueue {
    index: u16,
    ring: Ring,
    buffers: Slots<BUFFER_BYTES>,
    /// The next descriptor to look at; runs on, masked when used.
    next: u32,
    /// Descriptors that are ready but not shown to the device yet, the one that stays here left out.
    ready: u32,
    batch: u32,
    /// Frames that nothing could be made of.
    pub malformed: u64,
}

impl ReceiveQueue {
    pub(crate) fn new(index: u16, ring: Ring, buffers: Slots<BUFFER_BYTES>) -> Self {
        let batch = BATCH.min((ring.mask() + 1) / 4);
        Self { index, ring, buffers, next: 0, ready: 0, batch, malformed: 0 }
    }

    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Makes all descriptors ready, as after a reset.
    pub(crate) fn restart(&mut self) {
        (self.next, self.ready) = (0, self.ring.mask());
        for i in 0..=self.ring.mask() {
            self.ring.descriptors().write(i, [self.buffers.bus(i), 0]);
        }
    }

    /// Shows the device what is ready.
    pub(crate) fn give<R: Registers>(&mut self, bus: &Bus<R>) {
        self.ready = 0;
        show(bus, self.index, &self.ring, self.next);
    }

    /// The descriptor that is waited for, if the device has not written it back.
    pub(crate) fn awaited(&self) -> Option<u32> {
        let status = ReceiveStatus::from_bits(self.ring.descriptors().status(self.next));
        (!status.dd()).then_some(self.next & self.ring.mask())
    }

    #[inline(always)]
    pub(crate) fn poll<R: Registers>(&mut self, bus: &Bus<R>, budget: u32, mut sink: impl FnMut(Received<'_>)) -> u32 {
        let descriptors = self.ring.descriptors();
        let (mut next, mut ready, mut count) = (self.next, self.ready, 0);
        while count < budget {
            let status = ReceiveStatus::from_bits(descriptors.status(next));
            if !status.dd() {
                break;
            }
            // A frame in one buffer is written on the spot; all else is rare.
            // SAFETY: the device has said that it is done with this buffer (DD), and gets it back only by a tail that moves
            // past it, after the borrow has ended.
            let used = match unsafe { self.buffers.bytes(next, usize::from(status.len())) } {
                Some(piece) if status.is_whole_and_good() => {
                    sink(describe(ReceiveInfo::from_bits(descriptors.first(next)), status, &[piece]));
                    1
                }
                _ => several(&self.ring, &self.buffers, next, &mut self.malformed, &mut sink),
            };
            if used == 0 {
                break;
            }
            let end = next.wrapping_add(used);
            while next != end {
                descriptors.write(next, [self.buffers.bus(next), 0]);
                next = next.wrapping_add(1);
            }
            ready += used;
            count += 1;
            if ready >= self.batch {
                ready = 0;
                show(bus, self.index, &self.ring, next);
            }
        }
        (self.next, self.ready) = (next, ready);
        count
    }
}

/// Moves the tail to the descriptor before `next`.
#[inline(always)]
fn show<R: Registers>(bus: &Bus<R>, queue: u16, ring: &Ring, next: u32) {
    bus.write(&RDT, queue, next.wrapping_sub(1) & ring.mask());
}

/// A frame in several buffers, or one that is no good. How many descriptors it takes; 0: it is not all there yet.
#[cold]
#[inline(never)]
fn several(
    ring: &Ring,
    buffers: &Slots<BUFFER_BYTES>,
    next: u32,
    malformed: &mut u64,
    sink: &mut impl FnMut(Received<'_>),
) -> u32 {
    let descriptors = ring.descriptors();
    let mut pieces: [&[u8]; MAX_PIECES] = [&[]; MAX_PIECES];
    let mut good = true;
    // One frame cannot hold all descriptors, whatever they say.
    for i in 0..=ring.mask() {
        let at = next.wrapping_add(i);
        let status = ReceiveStatus::from_bits(descriptors.status(at));
        if !status.dd() {
            return 0;
        }
        // SAFETY: as in `poll`.
        match (pieces.get_mut(i as usize), unsafe { buffers.bytes(at, usize::from(status.len())) }) {
            (Some(place), Some(piece)) => *place = piece,
            _ => good = false,
        }
        if status.eop() {
            if good && !status.rxe() {
                sink(describe(ReceiveInfo::from_bits(descriptors.first(at)), status, &pieces[..=i as usize]));
            } else {
                *malformed += 1;
            }
            return i + 1;
        }
    }
    *malformed += 1;
    ring.mask() + 1
}

#[inline(always)]
fn describe<'a>(info: ReceiveInfo, status: ReceiveStatus, pieces: &'a [&'a [u8]]) -> Received<'a> {
    // A UDP datagram without checksum is reported as wrong (erratum 44), so of UDP only good news is believed.
    let wrong_transport = status.l4e() && info.packet_type() & PACKET_UDP == 0;
    let checked = if status.ipe() || wrong_transport {
        Checked::Bad
    } else if status.l4cs() && !status.l4e() {
        Checked::Good
    } else {
        Checked::Unknown
    };
    Received { pieces, checked, vlan: status.vp().then_some(status.vlan()), hash: info.hash() }
}
