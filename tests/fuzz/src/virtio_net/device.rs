//! The device: registers, and both ends of its rings (virtio 1.3, 2.7 and 5.1).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus};
use virtio_drivers::{Error, PhysAddr};
use virtio_net::Transport;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::pages;
use crate::input::Input;

/// Descriptors of a ring.
pub const RING: usize = 128;
/// Bytes of a receive buffer.
pub const BUFFER: usize = 2048;
/// Bytes of the header before a frame.
pub const HEADER: usize = 12;
/// The two queues.
pub const RECEIVE: u16 = 0;
pub const TRANSMIT: u16 = 1;

const VERSION_1: u64 = 1 << 32;

/// A queue as the device sees it.
#[derive(Default)]
struct Queue {
    /// Descriptors, driver area, device area.
    areas: [u64; 3],
    seen: u16,
    used: u16,
    /// Buffers that the device has taken, oldest first: descriptor, address, bytes.
    taken: VecDeque<(u16, u64, usize)>,
}

/// The device.
pub struct Device {
    features: u64,
    /// Features that it refuses to work without, which the driver cannot know.
    demands: bool,
    address: [u8; 6],
    /// The generation of the configuration changes so many times more when it is read.
    restless: u32,
    generation: u32,
    config_len: usize,
    largest: u32,
    status: DeviceStatus,
    queues: [Queue; 2],
    /// How often the driver has notified it.
    pub notified: u32,
}

impl Device {
    /// A device: most are good.
    pub fn new(input: &mut Input<'_>) -> Self {
        let kind = input.byte();
        let odd = |bit: u8| kind & 0x80 == 0 && kind >> bit & 1 != 0;
        let others = input.wide() & !VERSION_1;
        Self {
            features: others | if odd(0) && odd(1) { 0 } else { VERSION_1 },
            demands: odd(2) && odd(0),
            address: [2, 0, 0, 0, kind, 1],
            restless: if odd(3) && odd(0) { u32::MAX } else { u32::from(kind % 8) },
            generation: 0,
            config_len: if odd(4) && odd(0) { 4 } else { 24 },
            largest: if odd(5) && odd(0) { 64 } else { 256 },
            status: DeviceStatus::empty(),
            queues: Default::default(),
            notified: 0,
        }
    }

    /// Whether the driver can use it.
    pub fn is_usable(&self) -> bool {
        let works = self.features & VERSION_1 != 0 && !self.demands && self.restless != u32::MAX;
        works && self.config_len >= 6 && self.largest as usize >= RING
    }

    /// Its address.
    pub fn address(&self) -> [u8; 6] {
        self.address
    }

    /// Whether the driver has reset it.
    pub fn is_reset(&self) -> bool {
        self.status == DeviceStatus::empty()
    }

    /// Buffers that the device has taken.
    pub fn with_device(&self, queue: u16) -> usize {
        self.queues[usize::from(queue)].taken.len()
    }

    /// Buffers that are offered and not taken.
    pub fn offered(&self, queue: u16) -> usize {
        let queue = &self.queues[usize::from(queue)];
        usize::from(half(queue.areas[1] + 2).wrapping_sub(queue.seen))
    }

    /// Takes the buffers that the driver has offered: their addresses and bytes.
    pub fn take(&mut self, queue: u16) -> Vec<(u64, usize)> {
        let queue = &mut self.queues[usize::from(queue)];
        let [descriptors, driver, _] = queue.areas;
        let (end, mut all) = (half(driver + 2), Vec::new());
        while queue.seen != end && all.len() < RING {
            let head = half(driver + 4 + 2 * u64::from(queue.seen % RING as u16));
            queue.seen = queue.seen.wrapping_add(1);
            let Some(entry) = pages::read(descriptors + 16 * u64::from(head), 16) else { continue };
            let address = u64::from_le_bytes(entry[..8].try_into().expect("8 bytes"));
            let len = u32::from_le_bytes(entry[8..12].try_into().expect("4 bytes")) as usize;
            queue.taken.push_back((head, address, len));
            all.push((address, len));
        }
        all
    }

    /// The buffer that it has had for longest: descriptor, address, bytes.
    pub fn pop(&mut self, queue: u16) -> Option<(u16, u64, usize)> {
        self.queues[usize::from(queue)].taken.pop_front()
    }

    /// The buffer that it has taken last.
    pub fn pop_newest(&mut self, queue: u16) -> Option<(u16, u64, usize)> {
        self.queues[usize::from(queue)].taken.pop_back()
    }

    /// Puts an element into a used ring.
    pub fn complete(&mut self, queue: u16, head: u32, written: u32) {
        let queue = &mut self.queues[usize::from(queue)];
        let place = queue.areas[2] + 4 + 8 * u64::from(queue.used % RING as u16);
        pages::write(place, &head.to_le_bytes());
        pages::write(place + 4, &written.to_le_bytes());
        queue.used = queue.used.wrapping_add(1);
        pages::write(queue.areas[2] + 2, &queue.used.to_le_bytes());
    }

    /// Sets the index of a used ring.
    pub fn jump(&mut self, queue: u16, index: u16) {
        let queue = &mut self.queues[usize::from(queue)];
        queue.used = index;
        pages::write(queue.areas[2] + 2, &index.to_le_bytes());
    }

    /// Writes a byte anywhere into a queue.
    pub fn scribble(&mut self, queue: u16, at: u64, value: u8) {
        let areas = self.queues[usize::from(queue)].areas;
        pages::write(if at < 0x1000 { areas[0] + at } else { areas[2] + at - 0x1000 }, &[value]);
    }

    /// Changes the descriptor in an element of a used ring while the driver takes a buffer back.
    pub fn change_when_unshared(&mut self, queue: u16, element: u64, head: u32) {
        let queue = &mut self.queues[usize::from(queue)];
        pages::write_later(queue.areas[2] + 4 + 8 * element, head);
    }

    /// Whether it wants to be told of buffers, in the transmit queue; and an event index, which no feature asked for.
    pub fn set_flags(&mut self, quiet: bool, event: u16) {
        let used = self.queues[usize::from(TRANSMIT)].areas[2];
        pages::write(used, &u16::from(quiet).to_le_bytes());
        pages::write(used + 4 + 8 * RING as u64, &event.to_le_bytes());
    }
}

/// Reads 16 bits of a ring.
fn half(at: u64) -> u16 {
    pages::read(at, 2).map_or(0, |bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
}

/// The way to the device's registers.
pub struct Port(pub Rc<RefCell<Device>>);

impl Transport for Port {
    fn device_type(&self) -> DeviceType {
        DeviceType::Network
    }
    fn read_device_features(&mut self) -> u64 {
        self.0.borrow().features
    }
    fn write_driver_features(&mut self, features: u64) {
        assert_eq!(features & !self.0.borrow().features, 0, "only what was offered");
    }
    fn max_queue_size(&mut self, _: u16) -> u32 {
        self.0.borrow().largest
    }
    fn notify(&mut self, queue: u16) {
        assert!(queue < 2 && !self.0.borrow().is_reset(), "a queue of a device that is in use");
        self.0.borrow_mut().notified += 1;
    }
    fn get_status(&self) -> DeviceStatus {
        self.0.borrow().status
    }
    fn set_status(&mut self, status: DeviceStatus) {
        let mut device = self.0.borrow_mut();
        device.status = if device.demands { status - DeviceStatus::FEATURES_OK } else { status };
    }
    fn set_guest_page_size(&mut self, _: u32) {}
    fn requires_legacy_layout(&self) -> bool {
        false
    }
    fn queue_set(&mut self, queue: u16, size: u32, descriptors: PhysAddr, driver: PhysAddr, device: PhysAddr) {
        assert_eq!(size as usize, RING);
        self.0.borrow_mut().queues[usize::from(queue)].areas = [descriptors, driver, device];
    }
    fn queue_unset(&mut self, _: u16) {}
    fn queue_used(&mut self, _: u16) -> bool {
        false
    }
    fn ack_interrupt(&mut self) -> InterruptStatus {
        InterruptStatus::empty()
    }
    fn read_config_generation(&self) -> u32 {
        let mut device = self.0.borrow_mut();
        if device.restless > 0 {
            device.generation = device.generation.wrapping_add(1);
            // One that never rests stays restless.
            device.restless -= u32::from(device.restless != u32::MAX);
        }
        device.generation
    }
    fn read_config_space<V: FromBytes + IntoBytes>(&self, offset: usize) -> Result<V, Error> {
        let device = self.0.borrow();
        let mut config = [0; 24];
        config[..6].copy_from_slice(&device.address);
        let bytes =
            config[..device.config_len].get(offset..offset + size_of::<V>()).ok_or(Error::ConfigSpaceTooSmall)?;
        V::read_from_bytes(bytes).map_err(|_| Error::InvalidParam)
    }
    fn write_config_space<V: IntoBytes + Immutable>(&mut self, _: usize, _: V) -> Result<(), Error> {
        Err(Error::Unsupported)
    }
}
