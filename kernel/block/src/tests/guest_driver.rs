//! A guest's driver that nobody here wrote: the block driver of the crate `virtio-drivers`, over a device's shared state and a
//! guest's memory.

#![allow(unsafe_code, reason = "memory shared with the device")]

use std::cell::RefCell;
use std::ptr::NonNull;

use virtio::config::QueueConfig;
use virtio::shared::Shared;
use virtio_drivers::device::blk::{BlkReq, BlkResp, VirtIOBlk};
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{BufferDirection, Error, Hal, PAGE_SIZE, PhysAddr};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The memory of the thread's guest: its address on the host, its bytes, and the next free one. Nothing is given back.
#[derive(Clone, Copy)]
struct Room {
    host: NonNull<u8>,
    len: usize,
    next: usize,
}

thread_local! {
    static ROOM: RefCell<Option<Room>> = const { RefCell::new(None) };
}

fn with_room<T>(run: impl FnOnce(&mut Room) -> T) -> T {
    ROOM.with_borrow_mut(|room| run(room.as_mut().expect("the guest has memory")))
}

/// Takes so many bytes of the guest's memory. Returns their guest-physical address, and that on the host.
fn take(len: usize, align: usize) -> (PhysAddr, NonNull<u8>) {
    with_room(|room| {
        let at = room.next.next_multiple_of(align);
        assert!(at + len <= room.len, "no room for {len} bytes");
        room.next = at + len;
        // SAFETY: within the guest's memory, as just checked.
        (at as u64, unsafe { room.host.add(at) })
    })
}

/// Gives the driver parts of the guest's memory. Buffers are copied there and back.
struct Copied;

// SAFETY: `take` gives every byte out once. The memory is zeroes that nobody else uses, and it lives as long as the test.
unsafe impl Hal for Copied {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        take(pages * PAGE_SIZE, PAGE_SIZE)
    }

    unsafe fn dma_dealloc(_: PhysAddr, _: NonNull<u8>, _: usize) -> i32 {
        0
    }

    unsafe fn mmio_phys_to_virt(_: PhysAddr, _: usize) -> NonNull<u8> {
        unreachable!("only the crate's own transports ask")
    }

    unsafe fn share(buffer: NonNull<[u8]>, direction: BufferDirection) -> PhysAddr {
        let (at, host) = take(buffer.len(), 16);
        if direction != BufferDirection::DeviceToDriver {
            // SAFETY: both have the buffer's bytes, and `take` has given the room to nobody else.
            unsafe { host.as_ptr().copy_from(buffer.as_ptr().cast(), buffer.len()) };
        }
        at
    }

    unsafe fn unshare(at: PhysAddr, buffer: NonNull<[u8]>, direction: BufferDirection) {
        if direction != BufferDirection::DriverToDevice {
            // SAFETY: `share` has returned this address for as many bytes.
            unsafe {
                buffer
                    .as_ptr()
                    .cast::<u8>()
                    .copy_from(with_room(|room| room.host.add(at as usize)).as_ptr(), buffer.len())
            };
        }
    }
}

/// The device's registers.
struct Registers {
    shared: &'static Shared,
    features: u64,
    status: DeviceStatus,
}

impl Transport for Registers {
    fn device_type(&self) -> DeviceType {
        DeviceType::Block
    }

    fn read_device_features(&mut self) -> u64 {
        self.shared.device().features
    }

    fn write_driver_features(&mut self, features: u64) {
        self.features = features;
    }

    fn max_queue_size(&mut self, _: u16) -> u32 {
        self.shared.device().queue_size.into()
    }

    fn notify(&mut self, queue: u16) {
        self.shared.kick(queue);
    }

    fn get_status(&self) -> DeviceStatus {
        self.status
    }

    fn set_status(&mut self, status: DeviceStatus) {
        self.status = status;
        if status.contains(DeviceStatus::DRIVER_OK) {
            assert!(self.shared.activate(self.features), "the device takes the features");
        }
    }

    fn set_guest_page_size(&mut self, _: u32) {}

    fn requires_legacy_layout(&self) -> bool {
        false
    }

    fn queue_set(&mut self, queue: u16, size: u32, desc: PhysAddr, avail: PhysAddr, used: PhysAddr) {
        let config = QueueConfig { size: size as u16, desc, avail, used, vector: 1, enabled: true };
        assert!(self.shared.configure_queue(queue, &config), "the device takes the queue");
    }

    fn queue_unset(&mut self, _: u16) {}

    fn queue_used(&mut self, queue: u16) -> bool {
        self.shared.queue(queue).enabled
    }

    fn ack_interrupt(&mut self) -> InterruptStatus {
        InterruptStatus::empty()
    }

    fn read_config_generation(&self) -> u32 {
        self.shared.config_generation().into()
    }

    fn read_config_space<T: FromBytes + IntoBytes>(&self, offset: usize) -> Result<T, Error> {
        let mut value = T::new_zeroed();
        for (at, byte) in (offset as u64..).zip(value.as_mut_bytes()) {
            *byte = self.shared.read_config(at, 1) as u8;
        }
        Ok(value)
    }

    fn write_config_space<T: IntoBytes + Immutable>(&mut self, _: usize, _: T) -> Result<(), Error> {
        Err(Error::Unsupported)
    }
}

/// A request of the driver. What the driver needs until its end.
struct InFlight {
    token: u16,
    write: bool,
    request: Box<BlkReq>,
    data: Vec<u8>,
    response: Box<BlkResp>,
}

/// The driver of a guest.
pub struct Driver {
    blk: VirtIOBlk<Copied, Registers>,
    in_flight: Vec<InFlight>,
}

impl Driver {
    /// Initializes the device. The guest has `len` bytes of memory at `host`, which is its address 0. Each thread has one
    /// guest at a time.
    pub fn new(shared: &'static Shared, host: NonNull<u8>, len: usize) -> Self {
        ROOM.set(Some(Room { host, len, next: PAGE_SIZE }));
        let registers = Registers { shared, features: 0, status: DeviceStatus::empty() };
        Self { blk: VirtIOBlk::new(registers).expect("a device"), in_flight: Vec::new() }
    }

    /// Offers a request to write this, or to read as much. Returns its token.
    pub fn offer(&mut self, write: bool, sector: usize, data: Vec<u8>) -> u16 {
        let (mut request, mut data, mut response) = (Box::<BlkReq>::default(), data, Box::<BlkResp>::default());
        // SAFETY: the three stay where they are, and nobody looks at them before the request's end.
        let token = unsafe {
            if write {
                self.blk.write_blocks_nb(sector, &mut request, &data, &mut response)
            } else {
                self.blk.read_blocks_nb(sector, &mut request, &mut data, &mut response)
            }
        };
        let token = token.expect("there is room");
        self.in_flight.push(InFlight { token, write, request, data, response });
        token
    }

    /// Requests that are not answered.
    pub fn waiting(&self) -> usize {
        self.in_flight.len()
    }

    /// Takes the next answer: the token, whether the request succeeded, and its data.
    pub fn take(&mut self) -> Option<(u16, bool, Vec<u8>)> {
        let token = self.blk.peek_used()?;
        let at = self.in_flight.iter().position(|one| one.token == token).expect("it was offered and not answered");
        let InFlight { write, request, mut data, mut response, .. } = self.in_flight.remove(at);
        // SAFETY: these are the request's own.
        let done = unsafe {
            if write {
                self.blk.complete_write_blocks(token, &request, &data, &mut response)
            } else {
                self.blk.complete_read_blocks(token, &request, &mut data, &mut response)
            }
        };
        Some((token, done.is_ok(), data))
    }
}
