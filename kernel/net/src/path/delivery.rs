//! The last step of each path: counting a delivery, and copying from guest to guest.

use memory::GuestMemory;

use crate::counters::PortCounters;
use crate::cursor::Cursor;
use crate::receive_buffers::Refused;

/// Counts the result of delivering a frame of `len` bytes.
pub(crate) fn count_delivery(counters: &PortCounters, len: u32, delivered: Result<(), Refused>) {
    match delivered {
        Ok(()) => {
            counters.frames.rx_packets.add(1);
            counters.frames.rx_bytes.add(u64::from(len));
        }
        Err(Some(cause)) => cause(counters).add(1),
        Err(None) => {}
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
        left -= n;
    }
    Some(())
}
