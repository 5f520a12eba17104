//! Frames for receivers that cannot take them as they are: checksums completed, and TCP cut into segments, on the way
//! from guest to guest.

use memory::GuestMemory;
use nic::PartialChecksum;

use super::HEADER_BYTES;
use super::buffers::{Buffers, Cursor, Refused, complete, gather, need};
use super::forward::{Bridge, copy, count_given};
use super::frame::Frame;
use crate::device::Device;
use crate::fault::Fault;
use crate::offload::sum::Sum;
use crate::offload::{self, Asked, Can, MAX_FRONT};

/// A frame of which all is made but a checksum.
struct Made<'f> {
    /// What its receiver is told of it.
    asked: Asked,
    /// Its front.
    front: &'f mut [u8],
    /// Bytes behind that.
    rest: u32,
    /// The checksum that is to be completed here.
    checksum: Option<PartialChecksum>,
}

impl Bridge {
    /// Gives a frame to a receiver with that done which it cannot do itself, and counts what became of it.
    pub(super) fn give_done(&mut self, frame: &Frame<'_>, sender: &GuestMemory, receiver: &mut Device, queue: u16) {
        let counters = receiver.shared().counters();
        let front = frame.front().frame();
        let (mut from, rest) = frame.rest();
        let mut room = [0; MAX_FRONT];
        let Some(own) = room.get_mut(..front.len()) else { return };
        let asked = frame.asked();
        let Some(cut) = asked.cut else {
            own.copy_from_slice(front);
            let checksum = asked.checksum;
            let made = Made { asked: Asked::NOTHING, front: own, rest: rest as u32, checksum };
            let given = self.give_made(made, sender, &mut from, receiver, queue);
            counters.rx_checksums.add(1);
            return count_given(counters, frame.len(), given);
        };
        // Who takes a frame without checksum saves us adding up the payload.
        let open = Can::driver(receiver.features()).checksum;
        for number in 0..cut.segments(frame.len()) {
            let Some(piece) = cut.segment(front, frame.len(), number, &mut room) else { return };
            let Some(own) = room.get_mut(..front.len()) else { return };
            let checksum = Some(cut.checksum());
            let (told, here) = if open { (checksum, None) } else { (None, checksum) };
            let asked = Asked { checksum: told, cut: None };
            let made = Made { asked, front: own, rest: piece.len, checksum: here };
            let given = self.give_made(made, sender, &mut from.clone(), receiver, queue);
            counters.rx_segments.add(1);
            count_given(counters, front.len() as u32 + piece.len, given);
            if !receiver.running() {
                return;
            }
            from.skip(piece.len as usize);
        }
    }

    /// Puts a frame into the receiver's buffers: its front, and so many bytes from where `from` is.
    fn give_made(
        &mut self,
        mut made: Made<'_>,
        sender: &GuestMemory,
        from: &mut Cursor<'_>,
        receiver: &mut Device,
        queue: u16,
    ) -> Result<(), Refused> {
        let need = need(made.front.len() as u32 + made.rest);
        let mut buffers = Buffers::new();
        gather(&mut self.posted, receiver, queue, need, &mut buffers)?;
        let header = made.asked.header(buffers.len() as u16);
        let to = Cursor::new(self.posted.all());
        if write(&header, &mut made, sender, from, receiver.memory(), to, &mut self.bounce).is_none() {
            receiver.fail(Fault::Buffer);
            return Err(None);
        }
        complete(receiver, &mut buffers, need);
        Ok(())
    }
}

fn write(
    header: &[u8; HEADER_BYTES],
    made: &mut Made<'_>,
    sender: &GuestMemory,
    from: &mut Cursor<'_>,
    receiver: &GuestMemory,
    mut to: Cursor<'_>,
    bounce: &mut [u8],
) -> Option<()> {
    // The front goes there last, because its checksum is that of what follows.
    let mut start = to.clone();
    to.skip(HEADER_BYTES + made.front.len());
    let mut left = made.rest as usize;
    if let Some(checksum) = made.checksum {
        // What is added up is what arrives, whatever the sender does to its buffers meanwhile.
        let mut sum = Sum::new();
        while left != 0 {
            let n = left.min(bounce.len());
            let bytes = bounce.get_mut(..n)?;
            from.read(sender, bytes)?;
            sum.add(bytes);
            to.write(receiver, bytes)?;
            left -= n;
        }
        if !offload::complete(made.front, checksum, sum) {
            return None;
        }
    } else {
        copy(from, sender, &mut to, receiver, left)?;
    }
    start.write(receiver, header)?;
    start.write(receiver, made.front)
}
