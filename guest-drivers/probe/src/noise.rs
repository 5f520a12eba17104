//! Leaves rings behind, as firmware does: enables a queue without EVENT_IDX, completes a request, overwrites the pages of the
//! rings with noise, and waits. An engine that reads them as rings finds requests in them, or breaks the device off. Then
//! resets the device and uses it again.

use bare::memory::{self, ARENA};
use bare::virtio_pci::{Parts, common};

use crate::report::say;
use crate::time;

/// Descriptors of the queue.
const SIZE: u16 = 16;
/// Addresses of the descriptor table, the available ring and the used ring: a page each.
const RINGS: [u64; 3] = [ARENA, ARENA + 0x1000, ARENA + 0x2000];
/// End of the rings.
const END: u64 = ARENA + 0x3000;
/// Address of the buffers.
const BUFFERS: u64 = ARENA + 0x4000;
/// How long the noise is left to the engine, in microseconds.
const WAIT_US: u64 = 1_000_000;
/// VIRTIO_F_VERSION_1, in the upper half.
const VERSION_1: u32 = 1;

const ACKNOWLEDGE: u8 = 1;
const DRIVER: u8 = 2;
const DRIVER_OK: u8 = 4;
const FEATURES_OK: u8 = 8;
const NEEDS_RESET: u8 = 0x40;

const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// A buffer: its address, its length, and whether the device writes it.
type Buffer = (u64, u32, bool);

/// Resets the device, and starts it with one queue, which has its rings at [`RINGS`]. Returns the queue's doorbell.
fn open(parts: &Parts, queue: u16) -> Result<u64, &'static str> {
    let status = |value| memory::write8(parts.common + common::DEVICE_STATUS, value);
    let read = || memory::read8(parts.common + common::DEVICE_STATUS);
    status(0);
    if !time::wait(|| read() == 0) {
        return Err("the device is not reset");
    }
    status(ACKNOWLEDGE | DRIVER);
    for (select, half) in [(0, 0), (1, VERSION_1)] {
        memory::write32(parts.common + common::DRIVER_FEATURE_SELECT, select);
        memory::write32(parts.common + common::DRIVER_FEATURE, half);
    }
    status(ACKNOWLEDGE | DRIVER | FEATURES_OK);
    memory::clear(ARENA, END - ARENA);
    memory::write16(parts.common + common::QUEUE_SELECT, queue);
    memory::write16(parts.common + common::QUEUE_SIZE, SIZE);
    for (register, address) in [common::QUEUE_DESC, common::QUEUE_DRIVER, common::QUEUE_DEVICE].into_iter().zip(RINGS) {
        memory::write32(parts.common + register, address as u32);
        memory::write32(parts.common + register + 4, (address >> 32) as u32);
    }
    memory::write16(parts.common + common::QUEUE_ENABLE, 1);
    status(ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK);
    Ok(parts.doorbell(queue))
}

/// Makes the first request of a queue, and waits for its completion.
fn request(parts: &Parts, queue: u16, doorbell: u64, buffers: &[Buffer]) -> Result<(), &'static str> {
    let [table, avail, used] = RINGS;
    for (n, &(address, length, written)) in (0_u16..).zip(buffers) {
        let at = table + u64::from(n) * 16;
        let last = usize::from(n) + 1 == buffers.len();
        memory::write64(at, address);
        memory::write32(at + 8, length);
        memory::write16(at + 12, if last { 0 } else { NEXT } | if written { WRITE } else { 0 });
        memory::write16(at + 14, n + 1);
    }
    memory::write16(avail + 4, 0);
    memory::write16(avail + 2, 1);
    parts.ring(doorbell, queue);
    if time::wait(|| memory::read16(used + 2) == 1) { Ok(()) } else { Err("a request was not completed") }
}

/// Byte number `at` of the noise. It is odd, so that no index in it is the one that the engine has seen last.
fn noise(at: u64) -> u8 {
    ((at * 7 + at / 256 + 3) | 1) as u8
}

/// Leaves the rings of a queue behind. Returns how many bytes of the noise somebody changed, and whether the device asked for
/// a reset.
fn leave(parts: &Parts, queue: u16, buffers: &[Buffer]) -> Result<(u64, bool), &'static str> {
    let doorbell = open(parts, queue)?;
    request(parts, queue, doorbell, buffers)?;
    (0..END - ARENA).for_each(|at| memory::write8(ARENA + at, noise(at)));
    time::spin_us(WAIT_US);
    let changed = (0..END - ARENA).filter(|&at| memory::read8(ARENA + at) != noise(at)).count() as u64;
    let status = memory::read8(parts.common + common::DEVICE_STATUS);
    let doorbell = open(parts, queue)?;
    request(parts, queue, doorbell, buffers)?;
    Ok((changed, status & NEEDS_RESET != 0))
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
