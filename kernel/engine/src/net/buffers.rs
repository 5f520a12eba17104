//! Where a frame's bytes are put: a receiver's buffers, one or, with MRG_RXBUF, several (virtio 1.3 5.1.6.3, 5.1.6.4).

use memory::GuestMemory;

use super::{HEADER_BYTES, MAX_BUFFERS};
use crate::chain::{Segment, Segments};
use crate::device::Device;
use crate::fault::Fault;
use crate::offload::sum::Sum;
use crate::queue::{Request, Token};
use crate::shared::Features;
use crate::stats::{Counter, PortCounters};

/// The counter of a reason not to deliver.
pub(super) type Cause = fn(&PortCounters) -> &Counter;

/// Why a frame was not given to a receiver. None: it has lost its device meanwhile, which has been counted.
pub(super) type Refused = Option<Cause>;

/// Buffers that a frame is put into, and the bytes that each takes.
pub(super) type Buffers = heapless::Vec<(Token, u32), MAX_BUFFERS>;

/// Takes buffers for `need` bytes from a receiver; their segments are in `posted`. `buffers` stay where they are: they are a
/// kilobyte, too much to be moved for each frame.
pub(super) fn gather(
    posted: &mut Segments,
    receiver: &mut Device,
    queue: u16,
    need: u32,
    buffers: &mut Buffers,
) -> Result<(), Refused> {
    let merge = receiver.features().contains(Features::NET_MRG_RXBUF);
    posted.clear();
    let mut room = 0u32;
    while room < need {
        let full = buffers.is_full() || !posted.has_room() || (!merge && !buffers.is_empty());
        let request = if full { None } else { receiver.pop(queue, posted) };
        let Some(Request { token, chain }) = request else {
            if !receiver.running() {
                return Err(None);
            }
            while let Some((token, _)) = buffers.pop() {
                receiver.rewind(token);
            }
            return Err(Some(if full { |c| &c.rx_too_large } else { |c| &c.rx_no_buffer }));
        };
        if chain.readable_bytes != 0 || chain.writable_bytes == 0 {
            receiver.fail(Fault::Direction);
            return Err(None);
        }
        room = room.saturating_add(chain.writable_bytes);
        // Not full: looked at above.
        let _ = buffers.push((token, chain.writable_bytes));
    }
    Ok(())
}

/// Gives buffers back with `need` bytes in them.
pub(super) fn complete(receiver: &mut Device, buffers: &mut Buffers, need: u32) {
    let mut left = need;
    for (token, room) in buffers.drain(..) {
        let written = room.min(left);
        left -= written;
        receiver.complete(token, written);
    }
}

/// Puts `bytes` into a receiver's buffers. None, and its device is broken: they are not its memory.
pub(super) fn put(receiver: &mut Device, to: &mut Cursor<'_>, bytes: &[u8]) -> Option<()> {
    let written = to.write(receiver.memory(), bytes);
    if written.is_none() {
        receiver.fail(Fault::Buffer);
    }
    written
}

/// Bytes that a frame of `len` bytes needs in a receiver's buffers.
#[inline(always)]
pub(super) const fn need(len: u32) -> u32 {
    HEADER_BYTES as u32 + len
}

/// A position in a list of buffers.
#[derive(Clone)]
pub(crate) struct Cursor<'s> {
    buffers: &'s [Segment],
    offset: u32,
}

impl<'s> Cursor<'s> {
    pub(crate) const fn new(buffers: &'s [Segment]) -> Self {
        Self { buffers, offset: 0 }
    }

    /// Bytes up to the end of this buffer.
    pub(super) fn contiguous(&self) -> usize {
        self.buffers.first().map_or(0, |b| (b.len - self.offset) as usize)
    }

    /// Goes on by up to `max` bytes (not zero) within one buffer: the address and how many. None at the end.
    #[inline]
    pub(crate) fn run(&mut self, max: usize) -> Option<(u64, usize)> {
        let (buffer, rest) = self.buffers.split_first()?;
        let gpa = buffer.gpa + u64::from(self.offset);
        let n = self.contiguous().min(max);
        if n == 0 {
            return None;
        }
        self.offset += n as u32;
        if self.offset == buffer.len {
            (self.buffers, self.offset) = (rest, 0);
        }
        Some((gpa, n))
    }

    /// Goes on by `n` bytes, or to the end.
    pub(crate) fn skip(&mut self, mut n: usize) {
        while n != 0 {
            let Some((_, done)) = self.run(n) else { return };
            n -= done;
        }
    }

    /// Copies the bytes that come next out of `memory`.
    pub(super) fn read(&mut self, memory: &GuestMemory, mut into: &mut [u8]) -> Option<()> {
        while !into.is_empty() {
            let (gpa, n) = self.run(into.len())?;
            let (now, later) = into.split_at_mut(n);
            memory.read(gpa, now).ok()?;
            into = later;
        }
        Some(())
    }

    /// Copies `from` to `memory`.
    pub(super) fn write(&mut self, memory: &GuestMemory, mut from: &[u8]) -> Option<()> {
        while !from.is_empty() {
            let (gpa, n) = self.run(from.len())?;
            let (now, later) = from.split_at(n);
            memory.write(gpa, now).ok()?;
            from = later;
        }
        Some(())
    }

    /// The sum of the next `left` bytes, read by way of `bounce`.
    pub(crate) fn sum(&mut self, memory: &GuestMemory, mut left: usize, bounce: &mut [u8]) -> Option<Sum> {
        let mut sum = Sum::new();
        while left != 0 {
            let n = left.min(bounce.len());
            let bytes = bounce.get_mut(..n).filter(|bytes| !bytes.is_empty())?;
            self.read(memory, bytes)?;
            sum.add(bytes);
            left -= n;
        }
        Some(sum)
    }
}
