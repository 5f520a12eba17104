//! Driver for a virtio network device (virtio 1.3, 5.1). It is the uplink if sidecore runs in a virtual machine.
//!
//! The `virtio-drivers` crate has the rings. This crate has the buffers and the [`Nic`] that an engine polls. Frames
//! are copied to and from buffers of the driver, so the device reads no guest memory and tokens come back at once. The
//! driver negotiates no offloads. It does not read the link state: the link counts as up.

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]
#![allow(unsafe_code, reason = "lends its buffers to a device, and copies what guests' segments name")]

use core::slice;

use heapless::Deque;
use nic::{Checked, Limits, Link, Nic, Outcome, Outgoing, Received, Refused, Statistics};
use virtio_drivers::{BufferDirection, Hal, PAGE_SIZE, device::net::VirtIONetRaw, transport::Transport};

/// Descriptors of a ring, and buffers in each direction.
const RING: usize = 128;
/// Bytes of a buffer: the virtio-net header and the longest frame.
const BUFFER: usize = 2048;
/// Bytes of the longest frame, without FCS: 1,500 of payload, the Ethernet header, and a VLAN tag.
const MAX_FRAME: usize = 1518;
const ETHERNET: usize = 14;

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

/// The driver. `H`: memory for the device; `T`: the way to its registers; `K`: names the owners of frames.
pub struct VirtioNet<H: Hal, T: Transport, K> {
    device: VirtIONetRaw<H, T, RING>,
    receiving: Buffers,
    sending: Buffers,
    /// The receive buffer of each descriptor.
    posted: [u8; RING],
    /// The transmit buffer of each descriptor.
    sent: [u8; RING],
    free: heapless::Vec<u8, RING>,
    /// Tokens that the next `reclaim` gives back.
    done: Deque<K, RING>,
    statistics: Statistics,
}

// SAFETY: buffers and rings belong to this driver, and only it accesses them.
unsafe impl<H: Hal, T: Transport + Send, K: Send> Send for VirtioNet<H, T, K> {}

impl<H: Hal, T: Transport, K> VirtioNet<H, T, K> {
    /// Sets the device up and gives it all receive buffers. Interrupts stay off.
    ///
    /// # Errors
    /// The device breaks the protocol, or there is no memory for the buffers.
    pub fn new(transport: T) -> virtio_drivers::Result<Self> {
        let mut device = VirtIONetRaw::new(transport)?;
        device.disable_interrupts();
        let buffers = || Buffers::allocate::<H>().ok_or(virtio_drivers::Error::DmaError);
        let mut this = Self {
            device,
            receiving: buffers()?,
            sending: buffers()?,
            posted: [0; RING],
            sent: [0; RING],
            free: (0..RING as u8).collect(),
            done: Deque::new(),
            statistics: Statistics::default(),
        };
        for slot in 0..RING as u8 {
            this.post(slot)?;
        }
        Ok(this)
    }

    /// Gives the device a receive buffer.
    fn post(&mut self, slot: u8) -> virtio_drivers::Result<()> {
        // SAFETY: the buffer is not used again before the device has given it back: see `receive`.
        let descriptor = unsafe { self.device.receive_begin(self.receiving.get(slot)) }?;
        if let Some(place) = self.posted.get_mut(usize::from(descriptor) % RING) {
            *place = slot;
        }
        Ok(())
    }

    /// Takes back the buffers that the device has sent.
    fn collect(&mut self) {
        while let Some(descriptor) = self.device.poll_transmit() {
            let Some(&slot) = self.sent.get(usize::from(descriptor) % RING) else { return };
            // SAFETY: it is the buffer that was handed over for this descriptor.
            if unsafe { self.device.transmit_complete(descriptor, self.sending.get(slot)) }.is_err() {
                return;
            }
            // There is room: this buffer was not in the list.
            let _ = self.free.push(slot);
        }
    }
}

impl<H: Hal, T: Transport, K> Nic for VirtioNet<H, T, K> {
    type Token = K;

    fn address(&self) -> [u8; 6] {
        self.device.mac_address()
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
        Link::Up(10_000)
    }

    fn statistics(&self) -> Statistics {
        self.statistics
    }

    fn service(&mut self, _now: u64) -> bool {
        self.collect();
        false
    }

    fn receive(&mut self, queue: u16, budget: u32, mut sink: impl FnMut(Received<'_>)) -> u32 {
        let mut count = 0_u32;
        while queue == 0 && count < budget {
            let Some(descriptor) = self.device.poll_receive() else { break };
            let Some(&slot) = self.posted.get(usize::from(descriptor) % RING) else { break };
            // SAFETY: it is the buffer that was handed over for this descriptor.
            let got = unsafe { self.device.receive_complete(descriptor, self.receiving.get(slot)) };
            count = count.saturating_add(1);
            let frame =
                got.ok().and_then(|(header, len)| self.receiving.get(slot).get(header..header.checked_add(len)?));
            match frame {
                Some(frame) => {
                    add(&mut self.statistics.received, 1);
                    add(&mut self.statistics.received_bytes, frame.len());
                    sink(Received { pieces: &[frame], checked: Checked::Unknown, vlan: None, hash: 0 });
                }
                None => add(&mut self.statistics.malformed, 1),
            }
            if self.post(slot).is_err() {
                // The ring had room for this buffer before, so the device broke its ring. It loses the buffer.
                add(&mut self.statistics.no_buffer, 1);
            }
        }
        count
    }

    fn transmit(&mut self, queue: u16, frame: &Outgoing<'_>, token: K) -> Result<(), (Refused, K)> {
        let payload = frame.segments.iter().map(|s| usize::from(s.len())).sum::<usize>();
        let len = frame.header.len().saturating_add(payload);
        let refused = if queue != 0 {
            Some(Refused::Queue)
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
        if self.free.is_empty() {
            self.collect();
        }
        let Some(slot) = self.free.pop() else { return Err((Refused::Full, token)) };
        let buffer = self.sending.get(slot);
        // A header of zeroes asks for no offload. The buffer is larger than the header.
        let at = self.device.fill_buffer_header(buffer).unwrap_or(0);
        // The whole frame fits into the buffer, as checked above.
        let buffer = buffer.get_mut(..at.saturating_add(len)).unwrap_or_default();
        let mut room = buffer.get_mut(at..).unwrap_or_default();
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
        // SAFETY: the buffer is not used again before the device has given it back: see `collect`.
        match unsafe { self.device.transmit_begin(buffer) } {
            Ok(descriptor) => {
                if let Some(place) = self.sent.get_mut(usize::from(descriptor) % RING) {
                    *place = slot;
                }
                add(&mut self.statistics.sent, 1);
                add(&mut self.statistics.sent_bytes, len);
                // There is room, as checked above.
                let _ = self.done.push_back(token);
                Ok(())
            }
            Err(_) => {
                let _ = self.free.push(slot);
                Err((Refused::Full, token))
            }
        }
    }

    fn flush(&mut self, _queue: u16) {
        // `transmit_begin` has notified the device already if the device wanted that.
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
