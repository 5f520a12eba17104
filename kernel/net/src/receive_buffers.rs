//! The receive buffers that a frame is written to: one, or with MRG_RXBUF several (virtio 1.3 5.1.6.3, 5.1.6.4).

use engine::device::{Device, MOST_OFFERED};
use virtio::chain::Segments;
use virtio::counters::Counter;
use virtio::fault::Fault;
use virtio::queue::{Request, Token};

use crate::counters::PortCounters;
use crate::cursor::Cursor;
use crate::features::Features;
use crate::offload::HEADER_BYTES;

/// Most buffers of one frame (MRG_RXBUF).
pub const MAX_BUFFERS: usize = 64;
/// Descriptors of a frame's buffers after which no further buffer is taken. 64 buffers of two descriptors have as many. So
/// a frame's buffers have at most 191 descriptors, because one buffer has at most [`MOST_OFFERED`].
const MOST_DESCRIPTORS: usize = 2 * MAX_BUFFERS;
const _: () = assert!(MOST_DESCRIPTORS < 256 && MOST_OFFERED as usize <= 64);

/// Selects the counter of the cause of a drop.
pub(crate) type Cause = fn(&PortCounters) -> &Counter;

/// Why a frame was not delivered. `None`: the receiver's device failed meanwhile, and that was counted.
pub(crate) type Refused = Option<Cause>;

/// The buffers of a frame, and the bytes of each.
pub(crate) type Buffers = heapless::Vec<(Token, u32), MAX_BUFFERS>;

/// Takes buffers for `need` bytes from a receive queue. Their segments are in `posted`. The caller passes `buffers`,
/// because they take a kilobyte, too much to move for each frame.
///
/// If the buffers are too few or too small, the queue remembers that. Later frames are then refused without a look at the
/// descriptors, until the driver adds a buffer, or until a smaller frame comes.
pub(crate) fn gather(
    posted: &mut Segments,
    receiver: &mut Device,
    queue: u16,
    need: u32,
    buffers: &mut Buffers,
) -> Result<(), Refused> {
    let merge = Features::of(receiver).contains(Features::NET_MRG_RXBUF);
    posted.clear();
    let refused = |too_few: bool| -> Refused {
        Some(if too_few { |c| &c.drops.rx_no_buffer } else { |c| &c.drops.rx_too_large })
    };
    if let Some(too_few) = receiver.known_short(queue, need) {
        return Err(refused(too_few));
    }
    let mut room = 0u32;
    while room < need {
        let full = buffers.is_full() || posted.all().len() >= MOST_DESCRIPTORS || (!merge && !buffers.is_empty());
        let request = if full { None } else { receiver.pop(queue, posted) };
        let Some(Request { token, chain }) = request else {
            if !receiver.running() {
                return Err(None);
            }
            let end = if full { None } else { receiver.place(queue) };
            while let Some((token, _)) = buffers.pop() {
                receiver.rewind(token);
            }
            receiver.remember_short(queue, need, end);
            return Err(refused(!full));
        };
        if chain.readable_bytes != 0 || chain.writable_bytes == 0 {
            receiver.fail(Fault::Direction);
            return Err(None);
        }
        room = room.saturating_add(chain.writable_bytes);
        // It has room: `full` was checked above.
        let _ = buffers.push((token, chain.writable_bytes));
    }
    Ok(())
}

/// Completes the buffers, with `need` bytes in them.
pub(crate) fn complete(receiver: &mut Device, buffers: &mut Buffers, need: u32) {
    let mut left = need;
    for (token, room) in buffers.drain(..) {
        let written = room.min(left);
        left = left.saturating_sub(written);
        receiver.complete(token, written);
    }
}

/// Writes `bytes` into a receiver's buffers. `None`: they are not in its memory, and its device has failed.
pub(crate) fn put(receiver: &mut Device, to: &mut Cursor<'_>, bytes: &[u8]) -> Option<()> {
    let written = to.write(receiver.memory(), bytes);
    if written.is_none() {
        receiver.fail(Fault::Buffer);
    }
    written
}

/// Returns the bytes of a frame of `len` bytes with its virtio-net header.
#[inline(always)]
pub(crate) const fn need(len: u32) -> u32 {
    len.saturating_add(HEADER_BYTES as u32)
}
