//! The last step of each path: counting a delivery, and copying from guest to guest.

use engine::device::Device;
use memory::GuestMemory;
use virtio::counters::Counter;

use crate::bridge::Bridge;
use crate::cursor::Cursor;
use crate::receive_buffers::{Buffers, Refused, gather};
use crate::work;

impl Bridge {
    /// [`gather`] into `posted`. The walk counts as work of the frame.
    pub(crate) fn gather(
        &mut self,
        receiver: &mut Device,
        queue: u16,
        need: u32,
        buffers: &mut Buffers,
    ) -> Result<(), Refused> {
        let gathered = gather(&mut self.posted, receiver, queue, need, buffers);
        self.add_work(work::times(self.posted.all().len() as u32, work::DESCRIPTOR + work::PIECE));
        gathered
    }

    /// Counts the result of delivering a frame of `len` bytes to port `to`. `front` gives its first bytes to whoever watches.
    #[inline(always)]
    pub(crate) fn count_delivery<'f>(
        &self,
        to: usize,
        len: u32,
        delivered: Result<(), Refused>,
        front: impl FnOnce() -> &'f [u8],
    ) {
        let counters = self.counters(to);
        match delivered {
            Ok(()) => {
                counters.frames.rx_packets.add(1);
                counters.frames.rx_bytes.add(u64::from(len));
                if self.is_watched() {
                    self.show_out(to, len, front(), None);
                }
            }
            Err(Some(cause)) => self.drop_at_receiver(to, cause(counters), len, front),
            Err(None) => {}
        }
    }

    /// Counts a frame of `len` bytes for port `to` that was dropped there. `front` gives its first bytes to whoever watches.
    #[inline(always)]
    pub(crate) fn drop_at_receiver<'f>(&self, to: usize, cause: &Counter, len: u32, front: impl FnOnce() -> &'f [u8]) {
        self.drop_frame(to, cause, len);
        if self.is_watched() {
            self.show_out(to, len, front(), Some(cause));
        }
    }
}

/// Copies `left` bytes from guest to guest. `None`: a range is not memory of its guest, or ends early.
pub(crate) fn copy(
    from: &mut Cursor<'_>,
    sender: &GuestMemory,
    to: &mut Cursor<'_>,
    receiver: &GuestMemory,
    mut left: usize,
) -> Option<()> {
    while left != 0 {
        let n = from.contiguous().min(to.contiguous()).min(left);
        let ((src, n), (dst, _)) = (from.run(n)?, to.run(n)?);
        receiver.copy_from(dst, sender, src, n as u64).ok()?;
        // `n` is not more than `left`.
        left = left.wrapping_sub(n);
    }
    Some(())
}
