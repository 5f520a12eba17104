//! Drives the virtio network device with the queues of the crate `virtio-drivers`, over [`transport`](crate::transport).

#![allow(unsafe_code, reason = "memory shared with the device")]

use core::sync::atomic::{AtomicUsize, Ordering};

use bare::memory::ARENA;
use bare::virtio_pci::{NO_VECTOR, Parts};
use virtio_drivers::Error;
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::{DeviceStatus, DeviceType, Transport};

use crate::transport::{Arena, Pci};
pub use crate::transport::{Features, MESSAGES, VECTORS};

/// Descriptors of a queue.
pub const SIZE: usize = 64;
/// The receive queue, and its MSI-X entry.
pub const RX: u16 = 0;
/// The transmit queue, and its MSI-X entry.
pub const TX: u16 = 1;

/// Bytes of the virtio-net header (5.1.6).
pub const HEADER: usize = 12;
/// Bytes of a buffer.
const ROOM: usize = 2048;
/// Address of the buffers. Those of the receive queue come first.
const BUFFERS: u64 = ARENA + 0x10_0000;

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Reads six hexadecimal pairs.
    pub fn parse(text: &str) -> Option<Self> {
        let mut pairs = text.split(':').map(|pair| u8::from_str_radix(pair, 16).ok());
        let mut octets = [0; 6];
        for octet in &mut octets {
            *octet = pairs.next()??;
        }
        pairs.next().is_none().then_some(Self(octets))
    }
}

type Queue = VirtQueue<Arena, SIZE>;

/// A running device.
pub struct Device {
    queues: [Queue; 2],
    transport: Pci,
    /// Its address.
    pub mac: Mac,
}

/// A used buffer.
pub struct Done {
    /// The buffer's number.
    pub buffer: usize,
    /// Bytes that the device has written, with the header.
    pub length: usize,
}

impl Device {
    /// Starts the device with these features. `interrupts` says which queues have an interrupt.
    pub fn open(parts: Parts, features: Features, interrupts: [bool; 2]) -> Result<Self, Error> {
        let vectors = [(RX, interrupts[0]), (TX, interrupts[1])].map(|(entry, on)| if on { entry } else { NO_VECTOR });
        let mut transport = Pci::begin(parts, DeviceType::Network, features, vectors);
        let mac = Mac(transport.read_consistent(|| transport.read_config_space(0))?);
        let event_idx = transport.event_idx();
        let mut queue = |number| Queue::new(&mut transport, number, false, event_idx);
        let queues = [queue(RX)?, queue(TX)?];
        transport.finish_init();
        Ok(Self { queues, transport, mac })
    }

    /// The addresses of its parts.
    pub fn parts(&self) -> &Parts {
        self.transport.parts()
    }

    /// Notifications sent so far.
    pub fn kicks(&self) -> u64 {
        self.transport.kicks()
    }

    /// Device status (2.1).
    pub fn status(&self) -> DeviceStatus {
        self.transport.get_status()
    }

    /// Whether a queue is enabled.
    pub fn enabled(&mut self, queue: u16) -> bool {
        self.transport.queue_used(queue)
    }

    /// Resets the device and waits until the reset is done. Returns whether it is.
    pub fn reset(&mut self) -> bool {
        self.transport.reset()
    }

    /// Enables or suppresses a queue's interrupts. For a device without EVENT_IDX (2.7.7).
    pub fn want_interrupts(&mut self, queue: u16, wanted: bool) {
        if let Some(queue) = self.queues.get_mut(usize::from(queue)) {
            queue.set_dev_notify(wanted);
        }
    }

    /// A buffer of a queue. The caller may use it until [`Device::give`], and again after [`Device::take`].
    pub fn buffer(queue: u16, number: usize) -> &'static mut [u8] {
        let address = BUFFERS + ((usize::from(queue) * SIZE + number % SIZE) * ROOM) as u64;
        // SAFETY: the buffer is in the arena, and no other object is there. There is one CPU. No reference is kept
        // while the device has the buffer.
        unsafe { core::slice::from_raw_parts_mut(address as *mut u8, ROOM) }
    }

    /// Adds a buffer to a queue: all of it to receive, or `length` bytes to send. Each buffer takes one descriptor, so
    /// the caller may have [`SIZE`] buffers in the queue.
    pub fn give(&mut self, queue: u16, number: usize, length: usize) -> Result<(), Error> {
        let buffer = &mut Self::buffer(queue, number)[..length];
        let queue_state = self.queues.get_mut(usize::from(queue)).ok_or(Error::InvalidParam)?;
        // SAFETY: the buffer is static. Nobody touches it until `take` says that the device is done with it.
        let token = unsafe {
            match queue {
                RX => queue_state.add(&[], &mut [buffer])?,
                _ => queue_state.add(&[buffer], &mut [])?,
            }
        };
        OWNERS[usize::from(queue)][usize::from(token)].store(number << 16 | length, Ordering::Relaxed);
        self.transport.notify_if_wanted(queue);
        Ok(())
    }

    /// Adds a receive buffer.
    pub fn give_to_receive(&mut self, number: usize) -> Result<(), Error> {
        self.give(RX, number, ROOM)
    }

    /// Takes the next used buffer of a queue, if there is one.
    pub fn take(&mut self, queue: u16) -> Option<Done> {
        let queue_state = self.queues.get_mut(usize::from(queue))?;
        let token = queue_state.peek_used()?;
        let owner = OWNERS[usize::from(queue)].get(usize::from(token))?.load(Ordering::Relaxed);
        let (number, length) = (owner >> 16, owner & 0xffff);
        let buffer = &mut Self::buffer(queue, number)[..length];
        // SAFETY: it is the buffer that was given under this token, with the same length.
        let length = unsafe {
            match queue {
                RX => queue_state.pop_used(token, &[], &mut [buffer]).ok()?,
                _ => queue_state.pop_used(token, &[buffer], &mut []).ok()?,
            }
        };
        Some(Done { buffer: number, length: length as usize })
    }

    /// Whether a queue has a used buffer.
    pub fn has_used(&self, queue: u16) -> bool {
        self.queues.get(usize::from(queue)).is_some_and(Queue::can_pop)
    }
}

/// For each descriptor of both queues: the number of its buffer, and the length.
static OWNERS: [[AtomicUsize; SIZE]; 2] = [const { [const { AtomicUsize::new(0) }; SIZE] }; 2];

impl Drop for Device {
    fn drop(&mut self) {
        // The rings' pages are given back after this. The device must be done with them.
        assert!(self.reset(), "the device does not reset");
        self.transport.parts().control_msix(false, false);
    }
}
