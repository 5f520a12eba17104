//! Virtio block devices of the machine beneath guests' disks, where sidecore itself runs in a virtual machine. The
//! driver is the crate `virtio_blk`.
//!
//! A request is divided into parts of the driver, which are copied. So the device never reaches guest memory. Several
//! parts of a request are in flight at the same time, and requests take turns.

mod running;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::num::NonZero;

use virtio_blk::{Hal, Operation as Command, SECTOR, Shape, Transport, VirtioBlk};

use crate::storage::{Geometry, Operation, Request, Status, Storage, Submitted, Tag};
use running::{REQUESTS, Running};

/// A whole disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtioDisk {
    /// Index of the device, in the order in which they were given to [`VirtioDisks::new`].
    pub device: usize,
    /// Its shape.
    pub geometry: Geometry,
}

/// Bytes of a unit of discards that are shown in place of more: whole blocks that 32 bits can count.
const LARGEST_UNIT: u32 = 1 << 31;

/// Returns the shape of a disk as guests see it.
#[must_use]
pub fn geometry(shape: &Shape, read_only: bool) -> Geometry {
    let in_block = NonZero::new(shape.block_bytes / SECTOR).unwrap_or(NonZero::<u32>::MIN);
    let read_only = read_only || shape.read_only;
    let unit = shape.discard_unit.saturating_mul(SECTOR).checked_next_multiple_of(shape.block_bytes);
    let if_written = |sectors: u32| if read_only { 0 } else { sectors / in_block };
    Geometry {
        block_bytes: shape.block_bytes,
        blocks: shape.sectors / NonZero::<u64>::from(in_block),
        physical_bytes: shape.physical_bytes,
        read_only,
        volatile_cache: shape.volatile_cache,
        max_discard: if_written(shape.discard_sectors),
        discard_bytes: unit.unwrap_or(LARGEST_UNIT),
        max_zeroes: if_written(shape.zero_sectors),
    }
}

/// A device and the requests that it works on.
struct Driven<H: Hal, T: Transport> {
    device: VirtioBlk<H, T>,
    running: Box<[Running]>,
    /// The request whose turn is next.
    next: usize,
}

/// The virtio block devices of an engine.
pub struct VirtioDisks<H: Hal, T: Transport> {
    all: Box<[Driven<H, T>]>,
    /// The engine's ticks in a microsecond.
    ticks: NonZero<u64>,
}

impl<H: Hal, T: Transport> VirtioDisks<H, T> {
    /// Takes the engine's devices. `ticks` of the engine's clock are a microsecond.
    #[must_use]
    pub fn new(devices: Vec<VirtioBlk<H, T>>, ticks: u64) -> Self {
        let driven = |device| Driven { device, running: (0..REQUESTS).map(|_| Running::new()).collect(), next: 0 };
        Self {
            all: devices.into_iter().map(driven).collect(),
            ticks: NonZero::new(ticks).unwrap_or(NonZero::<u64>::MIN),
        }
    }
}

impl<H: Hal, T: Transport> Driven<H, T> {
    /// Offers parts of the requests until the device has no room. Each request in its turn offers one.
    fn offer(&mut self, now: u64) {
        let Self { device, running, next } = self;
        let mut idle = 0_usize;
        while idle < running.len() && device.has_room() {
            let index = *next;
            let after = index.saturating_add(1);
            *next = if after < running.len() { after } else { 0 };
            let offered = running.get_mut(index).is_some_and(|request| request.offer(index as u32, device, now));
            idle = if offered { 0 } else { idle.saturating_add(1) };
        }
    }
}

impl<H: Hal, T: Transport> Storage for VirtioDisks<H, T> {
    type Volume = VirtioDisk;

    fn are_flushed_together(one: VirtioDisk, other: VirtioDisk) -> bool {
        one.device == other.device
    }

    fn geometry(&self, volume: VirtioDisk) -> Geometry {
        volume.geometry
    }

    fn submit(&mut self, volume: VirtioDisk, tag: Tag, request: &Request<'_>, now: u64) -> Submitted {
        let Some(driven) = self.all.get_mut(volume.device) else { return Submitted::Done(Status::Failed) };
        if driven.device.is_gone() {
            return Submitted::Done(Status::Failed);
        }
        let shape = driven.device.shape();
        let (command, then_flush) = match request.operation {
            // Without a volatile cache, completed writes are durable.
            Operation::Flush if !shape.volatile_cache => return Submitted::Done(Status::Ok),
            Operation::Flush => (Command::Flush, false),
            Operation::Read => (Command::Read, false),
            Operation::Write { durable } => (Command::Write, durable && shape.volatile_cache),
            Operation::Discard => (Command::Discard, false),
            Operation::WriteZeroes { unmap, durable } => {
                (Command::WriteZeroes { unmap }, durable && shape.volatile_cache)
            }
        };
        let sectors_in_block = u64::from(shape.block_bytes / SECTOR);
        let Some(place) = driven.running.iter_mut().find(|running| running.is_free()) else { return Submitted::Busy };
        if !place.begin(tag, command, request, sectors_in_block, then_flush) {
            return Submitted::Done(Status::Failed);
        }
        driven.offer(now / self.ticks);
        Submitted::Pending
    }

    fn notify(&mut self) {
        self.all.iter_mut().for_each(|driven| driven.device.notify());
    }

    fn poll(&mut self, now: u64, ended: &mut impl FnMut(Tag, Status)) {
        let now = now / self.ticks;
        for driven in &mut self.all {
            let Driven { device, running, .. } = driven;
            if running.iter().all(Running::is_free) {
                continue;
            }
            device.poll(now, |part, status, data| running::part_ended(running, part, status, data));
            for request in running.iter_mut() {
                if let Some((tag, status)) = request.take_ended(device.is_gone()) {
                    ended(tag, status);
                }
            }
            driven.offer(now);
            driven.device.notify();
        }
    }

    fn cancel(&mut self, _: Self::Volume, tag: Tag) -> bool {
        self.all.iter_mut().flat_map(|driven| &mut driven.running).any(|running| running.cancel(tag))
    }
}
