//! A batch of frames at the start of a transmit queue, as the fast paths read it.

use memory::span::{LabeledPiece, Piece};
use virtio::queue::{Batch, Entries};

use crate::addresses::Addresses;
use crate::ethernet::ETHERNET_BYTES;
use crate::flow_match::Layout;
use crate::frame_head::{FrameHead, LONG};
use crate::offload::{HEADER_BYTES, OffloadRequest};

/// Most frames in a batch.
pub(crate) const BATCH: usize = 64;
/// Bytes of the virtio-net header.
pub(crate) const HEADER: u32 = HEADER_BYTES as u32;
/// Smallest frame with its virtio-net header, in bytes.
pub(crate) const MIN_BYTES: u32 = HEADER + ETHERNET_BYTES;

/// A frame in its sender's memory: its bytes, or those in its first buffer. The label has the head of its descriptor
/// chain in the lower 16 bits. The other bits are marks.
pub(crate) type Offered<'d> = LabeledPiece<'d>;
/// Bit of a frame's label: the last bytes of the frame are in a second buffer.
pub(crate) const SPLIT: u32 = 1 << 16;
/// Bit of a frame's label, on the path from guest to guest: the piece does not contain the virtio-net header. Set by
/// [`SendQueue::frame_of`].
pub(crate) const SINGLE: u32 = 1 << 31;

/// Returns the bytes of `frames` frames, at most [`BATCH`], without their virtio-net headers. `bytes`: with them.
pub(crate) fn payload(bytes: u64, frames: usize) -> u64 {
    bytes.saturating_sub(u64::from(HEADER).saturating_mul(u64::from(frames as u32)))
}

/// The second buffers of the frames that lie in two buffers, in the order of the frames.
pub(crate) type Tails<'d> = heapless::Vec<Piece<'d>, BATCH>;
/// Iterates over the second buffers.
pub(crate) type Ends<'t, 'd> = core::slice::Iter<'t, Piece<'d>>;

/// A transmit queue, its entries that were looked at, and the second buffers of its frames.
pub(crate) struct SendQueue<'r, 'd, L> {
    pub tx: &'r mut Batch<'d>,
    pub look: &'r L,
    pub tails: &'r mut Tails<'d>,
    /// Longest frame of the sender's port, in bytes.
    pub max: u32,
}

/// A frame that was looked up by itself, not through the cached window.
pub(crate) struct SingleFrame<'d> {
    pub frame: Offered<'d>,
    pub addresses: Addresses,
    /// Bytes of its descriptor chain.
    pub bytes: u32,
    /// Its virtio-net header.
    pub header: [u8; HEADER_BYTES],
}

impl SingleFrame<'_> {
    /// Returns whether its header requests an offload. Only such a frame may be longer than the port's longest frame.
    pub(crate) const fn requests_offload(&self) -> bool {
        OffloadRequest::any(self.header[0], self.header[1])
    }
}

impl<'d, L: Entries<'d>> SendQueue<'_, 'd, L> {
    /// Returns request `i` if it is a frame in one or two buffers. It may request an offload.
    #[cold]
    #[inline(never)]
    pub(crate) fn frame(&mut self, i: usize) -> Option<SingleFrame<'d>> {
        let first = self.look.first::<true>(self.tx, i)?;
        let head = u32::from(first.id());
        let (header, body, mark, bytes) = if first.is_readable() {
            let whole = self.tx.buffer(&first)?;
            (whole, whole.skip(HEADER)?, head, whole.len())
        } else {
            let [one, other] = self.tx.chain_of_two(self.look, &first)?;
            let (front, bytes) = (one.skip(HEADER)?, one.len().checked_add(other.len())?);
            if front.is_empty() {
                (one, other, head, bytes)
            } else {
                self.tails.push(other).ok()?;
                (one, front, head | SPLIT, bytes)
            }
        };
        let (addresses, header) = Addresses::and_header(header, body)?;
        let single = SingleFrame { frame: LabeledPiece::new(body, mark), addresses, bytes, header };
        let usual = bytes >= MIN_BYTES && (bytes <= self.longest() || single.requests_offload());
        usual.then_some(single)
    }

    /// [`SendQueue::frame`] for a frame that requests no offload, has at least `least` bytes with its header, and has
    /// all bytes of the layout in its first buffer. Reads its first bytes into `head`.
    /// Returns the frame, and the bytes of its chain.
    #[cold]
    #[inline(never)]
    pub(crate) fn frame_of<F: Layout>(
        &mut self,
        i: usize,
        least: u32,
        head: &mut FrameHead,
    ) -> Option<(Offered<'d>, u32)> {
        let single = self.frame(i)?;
        let body = single.frame.piece();
        head.read(body, LONG, self.tx.copier());
        let usual =
            single.bytes >= least && body.len() >= (F::END as u32).max(ETHERNET_BYTES) && !single.requests_offload();
        usual.then(|| (Offered::new(body, single.frame.label() | SINGLE), single.bytes))
    }

    /// Returns the longest frame with its virtio-net header, in bytes.
    pub(crate) const fn longest(&self) -> u32 {
        self.max.saturating_add(HEADER)
    }
}
