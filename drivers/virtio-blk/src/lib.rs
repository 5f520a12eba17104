//! Driver for a virtio block device (virtio 1.3, 5.2). Guests' disks are on it if sidecore runs in a virtual machine.
//!
//! The `virtio-drivers` crate has the ring. This crate has requests that are polled: its own driver waits for each
//! flush, and has no discard. A request here is a *part*: it moves at most [`PART_BYTES`] by a buffer of the driver. So
//! the device never reaches guest memory. The user divides what is longer, and copies.
//!
//! The device is trusted as the machine is, but not its answers: an answer that names no part in flight ends the use of
//! the device.

#![cfg_attr(not(any(test, feature = "testing")), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]
#![allow(unsafe_code, reason = "lends its buffers to a device")]

mod shape;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "a model for tests")]
pub mod testing;
#[cfg(test)]
mod tests;

use core::ptr::NonNull;
use core::slice;
use core::sync::atomic::{Ordering, fence};

use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::DeviceStatus;
use virtio_drivers::{BufferDirection, PAGE_SIZE};

pub use shape::{Features, PART_BYTES, SECTOR, Shape, Unusable};
pub use virtio_drivers::{Hal, transport::Transport};

/// Most parts in flight.
pub const PARTS: usize = 32;

/// Descriptors of the ring: three for each part. Indirect tables would take memory from the heap for each request.
const RING: usize = 128;
const QUEUE: u16 = 0;
/// Bytes between two parts' headers. A status byte is behind each header.
const HEADER_STRIDE: usize = 32;
const HEADER: usize = 16;
/// Bytes of the range of a discard or of a request to write zeroes.
const RANGE: usize = 16;
/// No part has this descriptor.
const NOBODY: u8 = u8::MAX;
/// Microseconds after which a device that has not answered is asked whether it still works.
const PATIENCE: u64 = 10_000_000;
/// Microseconds after which a device that has not answered a part is reset. Virtio has no way to end a single request.
const GIVE_UP: u64 = 60_000_000;

const _: () = assert!(PARTS * 3 <= RING && PARTS < NOBODY as usize && PARTS * HEADER_STRIDE <= PAGE_SIZE);

/// What a part does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads sectors.
    Read,
    /// Writes sectors.
    Write,
    /// Makes completed writes durable. It has no sectors.
    Flush,
    /// The contents of the sectors are no longer needed.
    Discard,
    /// Writes zeroes. `unmap`: the device may release the sectors.
    WriteZeroes {
        /// The sectors may be released.
        unmap: bool,
    },
}

/// A part. The driver does not check that its sectors are on the disk: the device does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The user's name for it. [`VirtioBlk::poll`] gives it back.
    pub id: u32,
    /// What it does.
    pub operation: Operation,
    /// First sector.
    pub first: u64,
    /// Number of sectors: of a read or write at most [`Shape::part_sectors`].
    pub sectors: u32,
}

/// How a part ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It succeeded.
    Ok,
    /// It failed.
    Failed,
    /// The device does not have this operation.
    Unsupported,
}

/// Why a part was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// All parts are in flight.
    Busy,
    /// It has no sectors, or more than a part can have.
    Length,
    /// The user had no data for it.
    Data,
    /// The device is not used any more.
    Gone,
}

/// A part in flight.
#[derive(Clone, Copy)]
struct Flight {
    id: u32,
    operation: Operation,
    /// Bytes of its data.
    bytes: usize,
    /// Microsecond of its submission.
    since: u64,
}

/// Memory that the driver and the device share. It is never freed.
struct Buffers {
    data: NonNull<u8>,
    headers: NonNull<u8>,
}

impl Buffers {
    fn allocate<H: Hal>() -> Option<Self> {
        let pages = |pages| {
            let (address, pointer) = H::dma_alloc(pages, BufferDirection::Both);
            (address != 0).then_some(pointer)
        };
        Some(Self { data: pages(PARTS * PART_BYTES / PAGE_SIZE)?, headers: pages(1)? })
    }

    /// The header, the first `bytes` of the data, and the status byte of a part, which is not the device's now, or is
    /// about to become the device's.
    fn of(&mut self, slot: u8, bytes: usize) -> (&mut [u8], &mut [u8], &mut [u8]) {
        let slot = usize::from(slot) % PARTS;
        // SAFETY: three places that do not overlap, in pages that nobody but this driver and the device has. A part's
        // places are used only before it is offered, and after the device has answered it.
        unsafe {
            let header = self.headers.as_ptr().add(slot.wrapping_mul(HEADER_STRIDE));
            (
                slice::from_raw_parts_mut(header, HEADER),
                slice::from_raw_parts_mut(self.data.as_ptr().add(slot.wrapping_mul(PART_BYTES)), bytes.min(PART_BYTES)),
                slice::from_raw_parts_mut(header.add(HEADER), 1),
            )
        }
    }
}

/// The driver. `H`: memory for the device; `T`: the way to its registers.
pub struct VirtioBlk<H: Hal, T: Transport> {
    transport: T,
    queue: VirtQueue<H, RING>,
    shape: Shape,
    buffers: Buffers,
    flights: [Option<Flight>; PARTS],
    /// The part of each first descriptor.
    heads: [u8; RING],
    free: heapless::Vec<u8, PARTS>,
    /// Parts were offered since the device was last notified.
    offered: bool,
    /// The device is not used any more.
    gone: bool,
    /// When the device is asked whether it still works.
    check_at: u64,
}

// SAFETY: rings and buffers belong to this driver, and only it accesses them.
unsafe impl<H: Hal, T: Transport + Send> Send for VirtioBlk<H, T> {}

/// Begins the initialisation of a device and asks what it is.
fn negotiate(transport: &mut impl Transport) -> Result<Shape, Unusable> {
    let features: Features = transport.begin_init(Features::all());
    if !transport.get_status().contains(DeviceStatus::FEATURES_OK) {
        return Err(virtio_drivers::Error::Unsupported.into());
    }
    shape::read(transport, features)
}

/// Asks a device what it is, and resets it.
///
/// # Errors
/// The device cannot be used; the error says why.
pub fn ask(transport: &mut impl Transport) -> Result<Shape, Unusable> {
    let shape = negotiate(transport);
    transport.set_status(DeviceStatus::empty());
    shape
}

impl<H: Hal, T: Transport> VirtioBlk<H, T> {
    /// Sets the device up. Interrupts stay off.
    ///
    /// # Errors
    /// The device cannot be used; the error says why.
    pub fn new(mut transport: T) -> Result<Self, Unusable> {
        let shape = negotiate(&mut transport)?;
        let mut queue = VirtQueue::new(&mut transport, QUEUE, false, false)?;
        queue.set_dev_notify(false);
        let buffers = Buffers::allocate::<H>().ok_or(Unusable::Memory)?;
        transport.finish_init();
        Ok(Self {
            transport,
            queue,
            shape,
            buffers,
            flights: [None; PARTS],
            heads: [NOBODY; RING],
            free: (0..PARTS as u8).collect(),
            offered: false,
            gone: false,
            check_at: 0,
        })
    }

    /// The device's disk.
    #[must_use]
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Whether a part would be taken now.
    #[must_use]
    pub fn has_room(&self) -> bool {
        !self.free.is_empty() && !self.gone
    }

    /// The number of parts in flight.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        PARTS.saturating_sub(self.free.len())
    }

    /// Whether the device failed, or was stopped.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        self.gone
    }

    /// Offers a part to the device. `fill` puts the data of a write into the buffer; it returns false if there is none.
    /// The device may not look before [`VirtioBlk::notify`]. `now`: microseconds.
    ///
    /// # Errors
    /// The part was not taken, and nothing has happened.
    pub fn submit(&mut self, part: &Part, now: u64, fill: impl FnOnce(&mut [u8]) -> bool) -> Result<(), Refused> {
        let Part { id, operation, first, sectors } = *part;
        let bytes = match operation {
            _ if self.gone => return Err(Refused::Gone),
            Operation::Read | Operation::Write if sectors == 0 || sectors > self.shape.part_sectors => {
                return Err(Refused::Length);
            }
            Operation::Read | Operation::Write => sectors.saturating_mul(SECTOR) as usize,
            Operation::Flush => 0,
            Operation::Discard | Operation::WriteZeroes { .. } => RANGE,
        };
        let Some(&slot) = self.free.last() else { return Err(Refused::Busy) };
        let (header, data, status) = self.buffers.of(slot, bytes);
        if operation == Operation::Write && !fill(data) {
            return Err(Refused::Data);
        }
        let (kind, sector) = match operation {
            Operation::Read => (0_u32, first),
            Operation::Write => (1, first),
            Operation::Flush => (4, 0),
            Operation::Discard => (11, 0),
            Operation::WriteZeroes { .. } => (13, 0),
        };
        let mut asked = [0; HEADER];
        asked[..4].copy_from_slice(&kind.to_le_bytes());
        asked[8..].copy_from_slice(&sector.to_le_bytes());
        header.copy_from_slice(&asked);
        if matches!(operation, Operation::Discard | Operation::WriteZeroes { .. }) {
            let flags = u32::from(operation == Operation::WriteZeroes { unmap: true });
            let mut range = [0; RANGE];
            range[..8].copy_from_slice(&first.to_le_bytes());
            range[8..12].copy_from_slice(&sectors.to_le_bytes());
            range[12..].copy_from_slice(&flags.to_le_bytes());
            data.copy_from_slice(&range);
        }
        // A device that answers without a status has failed.
        status.fill(u8::MAX);
        // SAFETY: the places are not used again before the device has answered: see `poll`.
        let head = unsafe {
            match operation {
                Operation::Read => self.queue.add(&[header], &mut [data, status]),
                Operation::Flush => self.queue.add(&[header], &mut [status]),
                _ => self.queue.add(&[header, data], &mut [status]),
            }
        };
        // There are descriptors for all parts.
        let Ok(head) = head else { return Err(Refused::Busy) };
        self.free.pop();
        if let Some(place) = self.heads.get_mut(usize::from(head)) {
            *place = slot;
        }
        if let Some(flight) = self.flights.get_mut(usize::from(slot)) {
            *flight = Some(Flight { id, operation, bytes, since: now });
        }
        self.offered = true;
        Ok(())
    }

    /// Tells the device of the parts that were offered since the last call, if it wants to be told.
    pub fn notify(&mut self) {
        if !core::mem::take(&mut self.offered) || self.gone {
            return;
        }
        // The device sets its flag and then reads the ring's index. We have written the index and read the flag now. Without
        // a full fence on both sides each could miss what the other has written (virtio 1.3, 2.7.13.4.1).
        fence(Ordering::SeqCst);
        if self.queue.should_notify() {
            self.transport.notify(QUEUE);
        }
    }

    /// Reports each part that has ended: its name, how it ended, and of a read the data. `now`: microseconds.
    pub fn poll(&mut self, now: u64, mut ended: impl FnMut(u32, Status, &[u8])) {
        while let Some(head) = self.queue.peek_used().filter(|_| !self.gone) {
            let place = self.heads.get_mut(usize::from(head));
            let slot = place.map_or(NOBODY, |place| core::mem::replace(place, NOBODY));
            let Some(flight) = self.flights.get_mut(usize::from(slot)).and_then(Option::take) else {
                self.fail(&mut ended);
                return;
            };
            let (header, data, status) = self.buffers.of(slot, flight.bytes);
            // SAFETY: these are the buffers that were offered with this descriptor.
            let popped = unsafe {
                match flight.operation {
                    Operation::Read => self.queue.pop_used(head, &[header], &mut [data, status]),
                    Operation::Flush => self.queue.pop_used(head, &[header], &mut [status]),
                    _ => self.queue.pop_used(head, &[header, data], &mut [status]),
                }
            };
            let (_, data, status) = self.buffers.of(slot, flight.bytes);
            let status = match (popped, &*status) {
                (Ok(_), [0]) => Status::Ok,
                (Ok(_), [2]) => Status::Unsupported,
                _ => Status::Failed,
            };
            let data = if flight.operation == Operation::Read { &*data } else { &[] };
            ended(flight.id, status, data);
            // There is room: this part was in flight.
            let _ = self.free.push(slot);
        }
        if self.outstanding() != 0 && now >= self.check_at && !self.gone {
            self.check(now, ended);
        }
    }

    /// Asks a device that has not answered a part for long whether it still works.
    fn check(&mut self, now: u64, mut ended: impl FnMut(u32, Status, &[u8])) {
        self.check_at = now.saturating_add(PATIENCE);
        let age = |flight: &Flight| now.saturating_sub(flight.since);
        let oldest = self.flights.iter().flatten().map(age).max().unwrap_or(0);
        if oldest < PATIENCE {
            return;
        }
        let status = self.transport.get_status();
        let works = status.contains(DeviceStatus::DRIVER_OK) && !status.contains(DeviceStatus::DEVICE_NEEDS_RESET);
        if !works || oldest >= GIVE_UP {
            self.fail(&mut ended);
        }
    }

    /// Resets the device and does not use it again. All parts in flight fail.
    fn fail(&mut self, ended: &mut impl FnMut(u32, Status, &[u8])) {
        self.stop();
        for (slot, flight) in (0..).zip(&mut self.flights) {
            if let Some(flight) = flight.take() {
                ended(flight.id, Status::Failed, &[]);
            }
            if !self.free.contains(&slot) {
                let _ = self.free.push(slot);
            }
        }
    }

    /// Resets the device. It does not reach memory any more, and takes no parts.
    pub fn stop(&mut self) {
        self.transport.set_status(DeviceStatus::empty());
        self.gone = true;
    }
}
