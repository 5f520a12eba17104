//! Leaves rings behind, as firmware does: enables a queue without EVENT_IDX, completes a request, overwrites the pages of the
//! rings with noise, and waits. An engine that reads them as rings finds requests in them, or breaks the device off. Then
//! resets the device and uses it again.

use bare::memory::{self, ARENA};
use bare::virtio_pci::Parts;

use crate::raw::{BUFFERS, Buffer, END, Raw};
use crate::report::say;
use crate::time;

/// How long the noise is left to the engine, in microseconds.
const WAIT_US: u64 = 1_000_000;

/// Opens a device and makes the first request of a queue. Returns the queue after its completion.
fn request(parts: &Parts, queue: u16, buffers: &[Buffer]) -> Result<Raw, &'static str> {
    let mut raw = Raw::open(*parts, queue, 0)?;
    raw.chain(0, buffers);
    raw.offer(0);
    raw.ring();
    raw.finish()?;
    Ok(raw)
}

/// Byte number `at` of the noise. It is odd, so that no index in it is the one that the engine has seen last.
fn noise(at: u64) -> u8 {
    ((at * 7 + at / 256 + 3) | 1) as u8
}

/// Leaves the rings of a queue behind. Returns how many bytes of the noise somebody changed, and whether the device asked for
/// a reset.
fn leave(parts: &Parts, queue: u16, buffers: &[Buffer]) -> Result<(u64, bool), &'static str> {
    let raw = request(parts, queue, buffers)?;
    (0..END - ARENA).for_each(|at| memory::write8(ARENA + at, noise(at)));
    time::spin_us(WAIT_US);
    let changed = (0..END - ARENA).filter(|&at| memory::read8(ARENA + at) != noise(at)).count() as u64;
    let broken = raw.needs_reset();
    request(parts, queue, buffers)?;
    Ok((changed, broken))
}

/// Leaves the rings of a network device's transmit queue and of a disk's queue behind. Reports what became of them.
pub fn all(net: Parts, disk: Parts) -> Result<(), &'static str> {
    memory::clear(BUFFERS, 0x1000);
    // A frame of 60 bytes to everybody, behind its header of 12.
    (0..6).for_each(|at| memory::write8(BUFFERS + 12 + at, 0xff));
    let (net, net_reset) = leave(&net, 1, &[(BUFFERS, 72, false)])?;
    // A read of block 0: VIRTIO_BLK_T_IN is 0.
    let (header, data, status) = (BUFFERS + 0x100, BUFFERS + 0x200, BUFFERS + 0x600);
    memory::write8(status, 0xff);
    let (disk, disk_reset) = leave(&disk, 0, &[(header, 16, false), (data, 512, true), (status, 1, true)])?;
    let good = memory::read8(status) == 0;
    say!(
        "\"do\":\"noise\",\"changed\":{},\"resets\":{},\"read\":{good}",
        net + disk,
        u8::from(net_reset) + u8::from(disk_reset)
    );
    Ok(())
}
