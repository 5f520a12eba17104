//! Delivers a frame to a guest that cannot take it as it is. Completes checksums and segments TCP on the way from guest
//! to guest.

use engine::device::Device;
use memory::GuestMemory;
use nic::PartialChecksum;
use virtio::fault::Fault;

use crate::bridge::Bridge;
use crate::cursor::Cursor;
use crate::features::Features;
use crate::frame::Frame;
use crate::offload;
use crate::offload::sum::Sum;
use crate::offload::{HEADER_BYTES, MAX_FRONT, OffloadRequest, OffloadSupport};
use crate::path::delivery::copy;
use crate::receive_buffers::{Buffers, Refused, complete, need};
use crate::work;

/// A frame that is ready to be written, except for its checksum.
struct Prepared<'f> {
    /// The request in the virtio-net header that the receiver gets.
    request: OffloadRequest,
    /// Its first bytes.
    front: &'f mut [u8],
    /// Bytes of the frame after `front`, in the sender's buffers.
    rest: u32,
    /// The checksum to complete while copying.
    checksum: Option<PartialChecksum>,
}

impl Prepared<'_> {
    /// The bytes of the frame. They are no more than the sender's frame has.
    const fn len(&self) -> u32 {
        self.rest.wrapping_add(self.front.len() as u32)
    }
}

impl Bridge {
    /// Delivers a frame to a guest that cannot take it as it is. Completes the checksum or segments the frame. Counts
    /// the result. Returns `None` if segments are missing because the frame has caused enough work.
    pub(crate) fn deliver_offloaded(
        &mut self,
        frame: &Frame<'_>,
        sender: &GuestMemory,
        receiver: &mut Device,
        to: usize,
        queue: u16,
    ) -> Option<()> {
        let counters = self.counters(to);
        let front = frame.front().frame();
        let (mut from, rest) = frame.rest();
        let mut room = [0; MAX_FRONT];
        let Some(own) = room.get_mut(..front.len()) else { return Some(()) };
        let request = frame.request();
        let Some(segmentation) = request.segmentation else {
            own.copy_from_slice(front);
            let checksum = request.checksum;
            let prepared = Prepared { request: OffloadRequest::NOTHING, front: own, rest: rest as u32, checksum };
            let delivered = self.deliver_prepared(prepared, sender, &mut from, receiver, queue);
            counters.frames.rx_checksums.add(1);
            self.add_work(work::times(frame.rest().0.pieces() as u32, work::PIECE));
            self.count_delivery(to, frame.len(), delivered, || room.get(..front.len()).unwrap_or(&room));
            return Some(());
        };
        // For a receiver that accepts partial checksums, the payload need not be summed.
        let open = OffloadSupport::driver(Features::of(receiver)).checksum;
        for number in 0..segmentation.segments(frame.len()) {
            if self.work >= work::MOST {
                return None;
            }
            let Some(piece) = segmentation.segment(front, frame.len(), number, &mut room) else { break };
            let Some(own) = room.get_mut(..front.len()) else { break };
            let checksum = Some(segmentation.checksum());
            let (told, here) = if open { (checksum, None) } else { (None, checksum) };
            let request = OffloadRequest { checksum: told, segmentation: None };
            let prepared = Prepared { request, front: own, rest: piece.len, checksum: here };
            let len = prepared.len();
            let delivered = self.deliver_prepared(prepared, sender, &mut from.clone(), receiver, queue);
            counters.frames.rx_segments.add(1);
            self.count_delivery(to, len, delivered, || room.get(..front.len()).unwrap_or(&room));
            let pieces = from.pieces();
            from.skip(piece.len as usize);
            let passed = pieces.wrapping_sub(from.pieces()) as u32;
            // They are passed twice: to copy them, and here.
            self.add_work(work::SEGMENT);
            self.add_work(work::times(passed, 2 * work::PIECE));
            if !receiver.running() {
                break;
            }
        }
        Some(())
    }

    /// Writes a frame into the receiver's buffers: its first bytes, then `rest` bytes from the sender at `from`.
    fn deliver_prepared(
        &mut self,
        mut prepared: Prepared<'_>,
        sender: &GuestMemory,
        from: &mut Cursor<'_>,
        receiver: &mut Device,
        queue: u16,
    ) -> Result<(), Refused> {
        let need = need(prepared.len());
        let mut buffers = Buffers::new();
        self.gather(receiver, queue, need, &mut buffers)?;
        let bytes = prepared.rest;
        self.add_work(work::COPY);
        if prepared.checksum.is_some() {
            self.add_work(work::CHECKSUM);
            self.add_work(work::summed(bytes));
        } else {
            self.add_work(work::copied(bytes));
        }
        let header = prepared.request.header(buffers.len() as u16);
        let to = Cursor::new(self.posted.all());
        if write(&header, &mut prepared, sender, from, receiver.memory(), to, &mut self.bounce).is_none() {
            receiver.fail(Fault::Buffer);
            return Err(None);
        }
        complete(receiver, &mut buffers, need);
        Ok(())
    }
}

/// Writes header, frame and checksum. `None`: a range is not memory of its guest, or the checksum does not lie in the
/// frame's first bytes.
fn write(
    header: &[u8; HEADER_BYTES],
    prepared: &mut Prepared<'_>,
    sender: &GuestMemory,
    from: &mut Cursor<'_>,
    receiver: &GuestMemory,
    mut to: Cursor<'_>,
    bounce: &mut [u8],
) -> Option<()> {
    // The first bytes are written last: the checksum in them covers the bytes that follow.
    let mut start = to.clone();
    to.skip(prepared.front.len().saturating_add(HEADER_BYTES));
    let mut left = prepared.rest as usize;
    if let Some(checksum) = prepared.checksum {
        // The bytes that are summed are the bytes that are written, even if the sender changes its buffers meanwhile.
        let mut sum = Sum::new();
        while left != 0 {
            let n = left.min(bounce.len());
            let bytes = bounce.get_mut(..n)?;
            from.read(sender, bytes)?;
            sum.add(bytes);
            to.write(receiver, bytes)?;
            // `n` is not more than `left`.
            left = left.wrapping_sub(n);
        }
        if !offload::complete(prepared.front, checksum, sum) {
            return None;
        }
    } else {
        copy(from, sender, &mut to, receiver, left)?;
    }
    start.write(receiver, header)?;
    start.write(receiver, prepared.front)
}
