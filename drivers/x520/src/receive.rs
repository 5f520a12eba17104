//! A receive queue (data sheet 7.1.6, 7.1.9, 8.2.3.8).
//!
//! Descriptor `i` always has buffer `i`. A frame is lent to the caller where it lies; then its descriptors are written
//! anew, and when a batch of them is ready the tail moves. One descriptor always stays on this side of the tail, since
//! head equal to tail means none.

#![allow(unsafe_code, reason = "received bytes are lent out of memory that the device wrote")]

use crate::descriptor::{PACKET_UDP, ReceiveInfo, ReceiveStatus};
use crate::dma::{DmaBuffer, Ring};
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
    buffers: DmaBuffer,
    /// The next descriptor to look at; runs on, masked when used.
    next: u32,
    /// Descriptors that are ready but not shown to the device yet, the one that stays here left out.
    ready: u32,
    batch: u32,
    /// Frames that nothing could be made of.
    pub malformed: u64,
}

impl ReceiveQueue {
    pub(crate) fn new(index: u16, ring: Ring, buffers: DmaBuffer) -> Self {
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
            self.renew(i);
        }
    }

    /// Shows the device what is ready.
    pub(crate) fn give<R: Registers>(&mut self, bus: &Bus<R>) {
        self.ready = 0;
        bus.write(&RDT, self.index, self.next.wrapping_sub(1) & self.ring.mask());
    }

    /// The descriptor that is waited for, if the device has not written it back.
    pub(crate) fn awaited(&self) -> Option<u32> {
        let status = ReceiveStatus::from_bits(self.ring.status(self.next));
        (!status.dd()).then_some(self.next & self.ring.mask())
    }

    #[inline(always)]
    fn renew(&mut self, index: u32) {
        let index = index & self.ring.mask();
        self.ring.write(index, [self.buffers.bus() + u64::from(index) * BUFFER_BYTES as u64, 0]);
    }

    #[inline]
    pub(crate) fn poll<R: Registers>(&mut self, bus: &Bus<R>, budget: u32, mut sink: impl FnMut(Received<'_>)) -> u32 {
        let mut count = 0;
        while count < budget {
            let status = ReceiveStatus::from_bits(self.ring.status(self.next));
            if !status.dd() {
                break;
            }
            let used = if status.eop() { self.single(status, &mut sink) } else { self.several(&mut sink) };
            if used == 0 {
                break;
            }
            for i in 0..used {
                self.renew(self.next.wrapping_add(i));
            }
            self.next = self.next.wrapping_add(used);
            self.ready += used;
            count += 1;
            if self.ready >= self.batch {
                self.give(bus);
            }
        }
        count
    }

    /// A frame in one buffer. How many descriptors it takes.
    #[inline(always)]
    fn single(&mut self, status: ReceiveStatus, sink: &mut impl FnMut(Received<'_>)) -> u32 {
        let info = ReceiveInfo::from_bits(self.ring.first(self.next));
        match self.piece(self.next, status) {
            Some(piece) if !status.rxe() => sink(describe(info, status, &[piece])),
            _ => self.malformed += 1,
        }
        1
    }

    /// A frame in several buffers. How many descriptors it takes; 0: it is not all there yet.
    fn several(&mut self, sink: &mut impl FnMut(Received<'_>)) -> u32 {
        let mut pieces: [&[u8]; MAX_PIECES] = [&[]; MAX_PIECES];
        let mut good = true;
        // One frame cannot hold all descriptors, whatever they say.
        for i in 0..=self.ring.mask() {
            let at = self.next.wrapping_add(i);
            let status = ReceiveStatus::from_bits(self.ring.status(at));
            if !status.dd() {
                return 0;
            }
            match (pieces.get_mut(i as usize), self.piece(at, status)) {
                (Some(place), Some(piece)) => *place = piece,
                _ => good = false,
            }
            if status.eop() {
                if good && !status.rxe() {
                    let info = ReceiveInfo::from_bits(self.ring.first(at));
                    sink(describe(info, status, &pieces[..=i as usize]));
                } else {
                    self.malformed += 1;
                }
                return i + 1;
            }
        }
        self.malformed += 1;
        self.ring.mask() + 1
    }

    /// What a descriptor's buffer holds. None: more than there is room.
    #[inline(always)]
    fn piece(&self, index: u32, status: ReceiveStatus) -> Option<&[u8]> {
        let len = usize::from(status.len());
        // SAFETY: the device has said that it is done with this buffer (DD), and gets it back only by a tail that moves
        // past it, after the borrow has ended.
        (len <= BUFFER_BYTES).then(|| unsafe { self.buffers.bytes(index & self.ring.mask(), BUFFER_BYTES, len) })
    }
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
