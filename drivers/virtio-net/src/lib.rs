//! Driver for a virtio network device (virtio 1.3, 5.1). It is the uplink if sidecore runs in a virtual machine.
//!
//! The `virtio-drivers` crate has the rings. This crate has the buffers and the [`Nic`] that an engine polls. Frames
//! are copied to and from buffers of the driver, so the device reads no guest memory and tokens come back at once. The
//! driver negotiates no offloads. It does not read the link state: the link counts as up.
//!
//! The device is trusted as the machine is, but not its answers. An answer that names no buffer of the device's ends
//! the use of the device: it is reset, and the link is down from then on.

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]
#![allow(unsafe_code, reason = "lends its buffers to a device, and copies what guests' segments name")]

pub mod id;

use core::slice;
use core::sync::atomic::{Ordering, fence};

use heapless::Deque;
use nic::{Checked, Limits, Link, Nic, Outcome, Outgoing, Received, Refused, Statistics};
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::DeviceStatus;
use virtio_drivers::{BufferDirection, Error, PAGE_SIZE};

pub use virtio_drivers::{Hal, transport::Transport};

/// Descriptors of a ring, and buffers in each direction.
const RING: usize = 128;
/// Bytes of a buffer: the virtio-net header and the longest frame.
const BUFFER: usize = 2048;
/// Bytes of the virtio-net header in each buffer (5.1.6).
const HEADER: usize = 12;
/// Bytes of the longest frame, without FCS: 1,500 of payload, the Ethernet header, and a VLAN tag.
const MAX_FRAME: usize = 1518;
const ETHERNET: usize = 14;
/// Numbers of the two queues (5.1.2).
const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;
/// No buffer has this descriptor.
const NOBODY: u8 = u8::MAX;
/// How often the address is read until it stays the same.
const TRIES: u32 = 100;

const _: () = assert!(RING < NOBODY as usize && HEADER + MAX_FRAME <= BUFFER);

bitflags::bitflags! {
    /// Features that the driver knows.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Features: u64 {
        /// The device has an address.
        const MAC = 1 << 5;
        /// The device follows virtio 1.
        const VERSION_1 = 1 << 32;
        /// The device may reach memory by an IOMMU.
        const ACCESS_PLATFORM = 1 << 33;
    }
}

/// [`RING`] buffers that the device may reach. They are never freed.
struct Buffers(*mut u8);

impl Buffers {
    fn allocate<H: Hal>() -> Option<Self> {
        let (address, pointer) = H::dma_alloc(RING * BUFFER / PAGE_SIZE, BufferDirection::Both);
        (address != 0).then_some(Self(pointer.as_ptr()))
    }

    /// A buffer. The caller owns it: the device has given it back, or never had it.
    fn get(&mut self, slot: u8) -> &mut [u8] {
        let at = (usize::from(slot) % RING).wrapping_mul(BUFFER);
        // SAFETY: within the pages of `allocate`, which nobody else has; the device has given the buffer back, or never
        // had it.
        unsafe { slice::from_raw_parts_mut(self.0.add(at), BUFFER) }
    }
}

/// Adds to a counter, which stays at the largest value.
fn add(counter: &mut u64, more: usize) {
    *counter = counter.saturating_add(more as u64);
}

/// A queue and its buffers.
struct Ring<H: Hal> {
    queue: VirtQueue<H, RING>,
    buffers: Buffers,
    /// The buffer of each descriptor that the device has, and its bytes.
    out: [(u8, u16); RING],
    /// Buffers were offered since the device was last notified.
    offered: bool,
}

impl<H: Hal> Ring<H> {
    fn new(transport: &mut impl Transport, number: u16) -> Result<Self, Error> {
        // Without event indices: the driver notifies once for a batch, and the crate compares with the event index as
        // if buffers were added one by one.
        let mut queue = VirtQueue::new(transport, number, false, false)?;
        queue.set_dev_notify(false);
        let buffers = Buffers::allocate::<H>().ok_or(Error::DmaError)?;
        Ok(Self { queue, buffers, out: [(NOBODY, 0); RING], offered: false })
    }

    /// Offers the first `len` bytes of a buffer to the device, which may write to it if `write`.
    fn offer(&mut self, slot: u8, len: usize, write: bool) -> Result<(), Error> {
        let buffer = self.buffers.get(slot).get_mut(..len).ok_or(Error::InvalidParam)?;
        // SAFETY: the buffer is not used again before the device has given it back: see `take`.
        let descriptor = unsafe {
            match write {
                true => self.queue.add(&[], &mut [buffer]),
                false => self.queue.add(&[buffer], &mut []),
            }
        }?;
        if let Some(place) = self.out.get_mut(usize::from(descriptor)) {
            *place = (slot, len as u16);
        }
        self.offered = true;
        Ok(())
    }

    /// Takes a buffer back that the device has finished with: its number, and the bytes that the device has written.
    ///
    /// # Errors
    /// The device has given back what it does not have.
    fn take(&mut self, write: bool) -> Result<Option<(u8, usize)>, Broken> {
        let Some(descriptor) = self.queue.peek_used() else { return Ok(None) };
        let place = self.out.get_mut(usize::from(descriptor)).ok_or(Broken)?;
        let (slot, len) = core::mem::replace(place, (NOBODY, 0));
        if slot == NOBODY {
            return Err(Broken);
        }
        let buffer = self.buffers.get(slot).get_mut(..usize::from(len)).ok_or(Broken)?;
        // SAFETY: this is the buffer that was offered with this descriptor.
        let written = unsafe {
            match write {
                true => self.queue.pop_used(descriptor, &[], &mut [buffer]),
                false => self.queue.pop_used(descriptor, &[buffer], &mut []),
            }
        };
        written.map(|written| Some((slot, written as usize))).map_err(|_| Broken)
    }

    /// Tells the device of the buffers that were offered since the last call, if it wants to be told.
    fn notify(&mut self, transport: &mut impl Transport, number: u16) {
        if !core::mem::take(&mut self.offered) {
            return;
        }
        // The device sets its flag and then reads the ring's index. We have written the index and read the flag now. Without
        // a full fence on both sides each could miss what the other has written (virtio 1.3, 2.7.13.4.1).
        fence(Ordering::SeqCst);
        if self.queue.should_notify() {
            transport.notify(number);
        }
    }
}

/// The device has broken the rules of a ring.
struct Broken;

/// The driver. `H`: memory for the device; `T`: the way to its registers; `K`: names the owners of frames.
pub struct VirtioNet<H: Hal, T: Transport, K> {
    transport: T,
    address: [u8; 6],
    receiving: Ring<H>,
    sending: Ring<H>,
    /// Transmit buffers that the device does not have.
    free: heapless::Vec<u8, RING>,
    /// Tokens that the next `reclaim` gives back.
    done: Deque<K, RING>,
    statistics: Statistics,
    /// The device is not used any more.
    gone: bool,
}

// SAFETY: buffers and rings belong to this driver, and only it accesses them.
unsafe impl<H: Hal, T: Transport + Send, K: Send> Send for VirtioNet<H, T, K> {}

impl<H: Hal, T: Transport, K> VirtioNet<H, T, K> {
    /// Sets the device up and gives it all receive buffers. Interrupts stay off.
    ///
    /// # Errors
    /// The device breaks the protocol, does not follow virtio 1, or there is no memory for the buffers.
    pub fn new(mut transport: T) -> virtio_drivers::Result<Self> {
        let features: Features = transport.begin_init(Features::all());
        if !features.contains(Features::VERSION_1) || !transport.get_status().contains(DeviceStatus::FEATURES_OK) {
            return Err(Error::Unsupported);
        }
        let address = address(&transport)?;
        let receiving = Ring::new(&mut transport, RECEIVE)?;
        let sending = Ring::new(&mut transport, TRANSMIT)?;
        transport.finish_init();
        let mut this = Self {
            transport,
            address,
            receiving,
            sending,
            free: (0..RING as u8).collect(),
            done: Deque::new(),
            statistics: Statistics::default(),
            gone: false,
        };
        for slot in 0..RING as u8 {
            this.receiving.offer(slot, BUFFER, true)?;
        }
        this.receiving.notify(&mut this.transport, RECEIVE);
        Ok(this)
    }

    /// Takes back the buffers that the device has sent.
    fn collect(&mut self) {
        // The device cannot make this longer than the ring is.
        for _ in 0..RING {
            if self.gone {
                return;
            }
            match self.sending.take(false) {
                Ok(None) => return,
                Ok(Some((slot, _))) => {
                    // There is room: the device had this buffer.
                    let _ = self.free.push(slot);
                }
                Err(Broken) => self.fail(),
            }
        }
    }

    /// Resets the device and does not use it again.
    fn fail(&mut self) {
        self.transport.set_status(DeviceStatus::empty());
        self.gone = true;
    }
}

/// The device's address. It is read until it stays the same meanwhile (virtio 1.3, 2.5.1).
fn address(transport: &impl Transport) -> virtio_drivers::Result<[u8; 6]> {
    for _ in 0..TRIES {
        let before = transport.read_config_generation();
        let address = transport.read_config_space(0)?;
        if transport.read_config_generation() == before {
            return Ok(address);
        }
    }
    Err(Error::IoError)
}

impl<H: Hal, T: Transport, K> Nic for VirtioNet<H, T, K> {
    type Token = K;

    fn address(&self) -> [u8; 6] {
        self.address
    }

    fn limits(&self) -> Limits {
        Limits {
            receive_queues: 1,
            transmit_queues: 1,
            max_frame: MAX_FRAME as u32,
            max_header: MAX_FRAME,
            max_segments: usize::MAX,
            offloads: false,
        }
    }

    fn link(&self) -> Link {
        if self.gone { Link::Down } else { Link::Up(10_000) }
    }

    fn statistics(&self) -> Statistics {
        self.statistics
    }

    fn service(&mut self, _now: u64) -> bool {
        let worked = !self.gone;
        self.collect();
        self.gone && worked
    }

    fn receive(&mut self, queue: u16, budget: u32, mut sink: impl FnMut(Received<'_>)) -> u32 {
        let mut count = 0_u32;
        while queue == RECEIVE && count < budget && !self.gone {
            let (slot, written) = match self.receiving.take(true) {
                Ok(None) => break,
                Ok(Some(taken)) => taken,
                Err(Broken) => {
                    self.fail();
                    break;
                }
            };
            count = count.saturating_add(1);
            match self.receiving.buffers.get(slot).get(HEADER..written) {
                Some(frame) if (ETHERNET..=MAX_FRAME).contains(&frame.len()) => {
                    add(&mut self.statistics.received, 1);
                    add(&mut self.statistics.received_bytes, frame.len());
                    sink(Received { pieces: &[frame], checked: Checked::Unknown, vlan: None, hash: 0 });
                }
                _ => add(&mut self.statistics.malformed, 1),
            }
            // The ring has room for this buffer: the device has just given it back.
            if self.receiving.offer(slot, BUFFER, true).is_err() {
                self.fail();
            }
        }
        if !self.gone {
            self.receiving.notify(&mut self.transport, RECEIVE);
        }
        count
    }

    fn transmit(&mut self, queue: u16, frame: &Outgoing<'_>, token: K) -> Result<(), (Refused, K)> {
        let len = frame.segments.iter().fold(frame.header.len(), |len, s| len.saturating_add(s.len().into()));
        if self.free.is_empty() {
            self.collect();
        }
        let refused = if queue != 0 {
            Some(Refused::Queue)
        } else if self.gone {
            Some(Refused::NotReady)
        } else if !(ETHERNET..=MAX_FRAME).contains(&len) {
            Some(Refused::Length)
        } else if !frame.offload.is_none() {
            Some(Refused::Offload)
        } else if self.done.is_full() {
            Some(Refused::Full)
        } else {
            None
        };
        if let Some(why) = refused {
            return Err((why, token));
        }
        let Some(slot) = self.free.pop() else { return Err((Refused::Full, token)) };
        // The whole frame fits into the buffer, as checked above.
        let end = HEADER.saturating_add(len);
        let mut room = self.sending.buffers.get(slot).get_mut(..end).unwrap_or_default();
        // A header of zeroes asks for no offload.
        if let Some(header) = room.split_off_mut(..HEADER) {
            header.fill(0);
        }
        if let Some(to) = room.split_off_mut(..frame.header.len()) {
            to.copy_from_slice(frame.header);
        }
        for segment in frame.segments {
            let from = core::ptr::with_exposed_provenance(segment.address() as usize);
            let Some(to) = room.split_off_mut(..usize::from(segment.len())) else { break };
            // SAFETY: the caller of `Segment::new` promised that the bytes are readable. Memory is mapped at its
            // physical address.
            unsafe { memory::copy::copy(to.as_mut_ptr(), from, to.len()) };
        }
        if self.sending.offer(slot, end, false).is_err() {
            // The ring has as many descriptors as there are buffers.
            let _ = self.free.push(slot);
            return Err((Refused::Full, token));
        }
        add(&mut self.statistics.sent, 1);
        add(&mut self.statistics.sent_bytes, len);
        // There is room, as checked above.
        let _ = self.done.push_back(token);
        Ok(())
    }

    fn flush(&mut self, _queue: u16) {
        if !self.gone {
            self.sending.notify(&mut self.transport, TRANSMIT);
        }
    }

    fn reclaim(&mut self, queue: u16, mut done: impl FnMut(K, Outcome)) -> u32 {
        let mut count = 0_u32;
        while queue == 0
            && let Some(token) = self.done.pop_front()
        {
            done(token, Outcome::Sent);
            count = count.saturating_add(1);
        }
        count
    }
}
