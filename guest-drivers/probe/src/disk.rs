//! Drives a virtio block device (virtio 1.3, 5.2) with one queue, over [`transport`](crate::transport). A request reads
//! or writes one block of 4 KiB.

#![allow(unsafe_code, reason = "memory shared with the device")]

use core::sync::atomic::{Ordering, fence};

use bare::memory::ARENA;
use bare::virtio_pci::{NO_VECTOR, Parts};
use virtio_drivers::Error;
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::{DeviceType, Transport};

use crate::transport::{Arena, Features, Pci};

/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// Requests that the driver can have in flight.
pub const DEPTH: usize = 32;
/// Descriptors of the queue. A request takes three: header, data, status.
const SIZE: usize = 128;
const _: () = assert!(DEPTH * 3 <= SIZE);
/// The queue, and its MSI-X entry.
const QUEUE: u16 = 0;
/// Sectors of 512 bytes in a block.
const SECTORS: u64 = BLOCK as u64 / 512;
/// Address of the requests: header and status in one page, the data in the next.
const REQUESTS: u64 = ARENA + 0x10_0000;
const STRIDE: u64 = 0x2000;
const STATUS: u64 = 16;
const DATA: u64 = 0x1000;

/// Request types (5.2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// VIRTIO_BLK_T_IN.
    Read = 0,
    /// VIRTIO_BLK_T_OUT.
    Write = 1,
}

/// A running device.
pub struct Disk {
    queue: VirtQueue<Arena, SIZE>,
    transport: Pci,
    /// For each descriptor that begins a request: the request's slot and type.
    owners: [Option<(usize, Kind)>; SIZE],
    /// Its size in blocks.
    pub blocks: u64,
}

/// Bytes of the driver's part of the arena. The caller chooses a part that the device does not have.
fn bytes(at: u64, len: usize) -> &'static mut [u8] {
    // SAFETY: the part is in the arena, and no other object is there. There is one CPU. No reference is kept while the
    // device has the part.
    unsafe { core::slice::from_raw_parts_mut(at as *mut u8, len) }
}

/// The address of a slot's request.
const fn request(slot: usize) -> u64 {
    REQUESTS + (slot % DEPTH) as u64 * STRIDE
}

impl Disk {
    /// Starts the device, with an interrupt for its queue.
    pub fn open(parts: Parts) -> Result<Self, Error> {
        let mut transport = Pci::begin(parts, DeviceType::Block, Features::all(), [QUEUE, NO_VECTOR]);
        let sectors: u64 = transport.read_consistent(|| transport.read_config_space(0))?;
        let event_idx = transport.event_idx();
        let queue = VirtQueue::new(&mut transport, QUEUE, false, event_idx)?;
        transport.finish_init();
        Ok(Self { queue, transport, owners: [None; SIZE], blocks: sectors / SECTORS })
    }

    /// Notifications sent so far.
    pub fn kicks(&self) -> u64 {
        self.transport.kicks()
    }

    /// The data of a slot's request. The caller may use them while the request is not in flight.
    pub fn data(slot: usize) -> &'static mut [u8] {
        bytes(request(slot) + DATA, BLOCK)
    }

    /// Starts a request.
    pub fn give(&mut self, slot: usize, kind: Kind, block: u64) -> Result<(), Error> {
        let header = bytes(request(slot), 16);
        header[..8].copy_from_slice(&(kind as u64).to_le_bytes());
        header[8..].copy_from_slice(&(block * SECTORS).to_le_bytes());
        let status = bytes(request(slot) + STATUS, 1);
        status.fill(0xff);
        // SAFETY: the buffers are static. Nobody touches them until `take` says that the device is done with them.
        let token = unsafe {
            match kind {
                Kind::Read => self.queue.add(&[header], &mut [Self::data(slot), status])?,
                Kind::Write => self.queue.add(&[header, Self::data(slot)], &mut [status])?,
            }
        };
        self.owners[usize::from(token)] = Some((slot, kind));
        self.transport.notify_if_wanted(QUEUE);
        Ok(())
    }

    /// Takes the next completed request, if there is one: its slot and its status.
    pub fn take(&mut self) -> Option<(usize, u8)> {
        let token = self.queue.peek_used()?;
        let (slot, kind) = self.owners.get_mut(usize::from(token))?.take()?;
        let (header, status) = (bytes(request(slot), 16), bytes(request(slot) + STATUS, 1));
        // SAFETY: they are the buffers that were given under this token.
        unsafe {
            match kind {
                Kind::Read => {
                    self.queue.pop_used(token, &[header], &mut [Self::data(slot), &mut *status]).ok()?;
                }
                Kind::Write => {
                    self.queue.pop_used(token, &[header, Self::data(slot)], &mut [&mut *status]).ok()?;
                }
            }
        }
        // `pop_used` has asked for an interrupt at the next request. The device sees that before we look whether it has
        // completed that request already (2.7.7.2).
        fence(Ordering::SeqCst);
        Some((slot, status[0]))
    }

    /// Whether a request has been completed.
    pub fn has_used(&self) -> bool {
        self.queue.can_pop()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The rings' pages are given back after this. The device must be done with them.
        assert!(self.transport.reset(), "the device does not reset");
        self.transport.parts().control_msix(false, false);
    }
}
