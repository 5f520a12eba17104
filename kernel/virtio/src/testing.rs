//! The driver's half of a virtqueue, for tests of this crate and others. It behaves like Linux's driver.

use alloc::collections::VecDeque;

use memory::GuestMemory;

use crate::config::{Features, QueueConfig};
use packed::Packed;
use split::Split;

mod buffer;
mod device;
mod interrupts;
pub mod packed;
mod split;

pub use buffer::{Buffer, TABLE_BYTES};
pub use device::device;
pub use interrupts::set_up_interrupts;

/// Bytes of a ring area. A test guest has one for each queue, from address 0 on.
pub const RING_AREA: u64 = 0x8000;
/// Offset in an area of the available ring, or of the driver's event suppression structure.
pub const AVAIL: u64 = 0x4000;
/// Offset in an area of the used ring, or of the device's event suppression structure.
pub const USED: u64 = 0x5000;
/// Address of its indirect tables: 1 KiB for each head or id.
pub const TABLES: u64 = 0x2_0000;
/// Address of its buffers.
pub const BUFFERS: u64 = 0x18_0000;
/// Bytes between two buffers.
pub const BUFFER_STRIDE: u64 = 0x1000;
/// Bytes of a test guest's memory.
pub const MEMORY: usize = 0x40_0000;

/// The driver's half of a virtqueue. The features select the ring format.
pub struct DriverQueue {
    /// Its configuration.
    pub config: QueueConfig,
    ring: Ring,
    /// With IN_ORDER: the requests offered and not taken back, oldest first.
    order: Option<VecDeque<u16>>,
}

enum Ring {
    Split(Split),
    Packed(Packed),
}

impl DriverQueue {
    /// Queue number `index`, with `size` descriptors, in its own ring area.
    #[must_use]
    pub fn new(memory: &GuestMemory, index: u16, size: u16, features: Features) -> Self {
        let area = u64::from(index) * RING_AREA;
        let config =
            QueueConfig { size, desc: area, avail: area + AVAIL, used: area + USED, vector: index + 1, enabled: true };
        memory.zero(area, RING_AREA).expect("the test guest's memory");
        let tables = TABLES + u64::from(index) * 0x10_0000 / 2;
        let ring = if features.contains(Features::RING_PACKED) {
            Ring::Packed(Packed::new(memory.clone(), config, features, tables))
        } else {
            Ring::Split(Split::new(memory.clone(), config, features, tables))
        };
        Self { config, ring, order: features.contains(Features::IN_ORDER).then(VecDeque::new) }
    }

    /// Free descriptors.
    #[must_use]
    pub fn free(&self) -> usize {
        crate::queue::either!(&self.ring, ring => ring.free())
    }

    /// Offers a request. Several buffers go into an indirect table if that was negotiated. Returns the head or id;
    /// `None` if too few descriptors are free.
    pub fn add(&mut self, buffers: &[Buffer]) -> Option<u16> {
        let id = crate::queue::either!(&mut self.ring, ring => ring.add(buffers))?;
        if let Some(order) = &mut self.order {
            order.push_back(id);
        }
        Some(id)
    }

    /// For a packed ring, returns the address of the descriptor that is `ahead` positions after the next one to offer,
    /// and the AVAIL and USED bits that offer it. `ahead` is less than the ring's size. For a split ring, returns
    /// zeros.
    #[must_use]
    pub fn to_offer(&self, ahead: u16) -> (u64, u16) {
        match &self.ring {
            Ring::Split(_) => (0, 0),
            Ring::Packed(ring) => ring.to_offer(ahead),
        }
    }

    /// Whether the device needs a notification for the requests added since the last call.
    pub fn kick_prepare(&mut self) -> bool {
        core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
        crate::queue::either!(&mut self.ring, ring => ring.kick_prepare())
    }

    /// How many requests the device has published as used since the queue started.
    #[must_use]
    pub fn used_index(&self) -> u16 {
        crate::queue::either!(&self.ring, ring => ring.used_index())
    }

    /// Whether there is a used request to take.
    #[must_use]
    pub fn has_used(&self) -> bool {
        crate::queue::either!(&self.ring, ring => ring.has_used())
    }

    /// Takes the next used request. Returns its head or id, and the number of bytes written.
    ///
    /// # Panics
    /// If the device has broken a rule of the ring.
    pub fn take_used(&mut self) -> Option<(u16, u32)> {
        let (id, len) = crate::queue::either!(&mut self.ring, ring => ring.take_used())?;
        if let Some(order) = &mut self.order {
            assert_eq!(order.pop_front(), Some(id), "buffers come back in order");
        }
        Some((id, len))
    }

    /// Asks for an interrupt at the next used request.
    pub fn enable_interrupts(&mut self) {
        crate::queue::either!(&mut self.ring, ring => ring.enable_interrupts());
    }

    /// Suppresses interrupts.
    pub fn disable_interrupts(&mut self) {
        crate::queue::either!(&mut self.ring, ring => ring.disable_interrupts());
    }

    /// Asks for an interrupt when the used index passes `event`; needs EVENT_IDX. A packed ring counts descriptors.
    pub fn write_used_event(&self, event: u16) {
        crate::queue::either!(&self.ring, ring => ring.write_used_event(event));
    }
}
