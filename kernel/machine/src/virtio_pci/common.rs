//! The common configuration structure of virtio-pci and its state: what the driver has negotiated and set up so far.
//! The engine learns of a queue when the driver enables it, and of the device at DRIVER_OK.
//!
//! Follows virtio 1.3 ch. 2.1 (status), 2.2 (features), 3.1.1 (initialisation), 4.1.4.3 (layout), 4.1.5; 2.6.1 (reset
//! of a queue).

use bitflags::bitflags;
use virtio::{
    config::{Features, MAX_QUEUES, NO_VECTOR, QueueConfig},
    shared::Shared,
};

/// Length of the structure, up to and including the administration queue.
pub const LENGTH: u32 = 0x40;

/// Offsets of its fields.
mod field {
    pub const DEVICE_FEATURE_SELECT: u64 = 0x00;
    pub const DRIVER_FEATURE_SELECT: u64 = 0x08;
    pub const DRIVER_FEATURE: u64 = 0x0c;
    pub const CONFIG_MSIX_VECTOR: u64 = 0x10;
    pub const DEVICE_STATUS: u64 = 0x14;
    pub const QUEUE_SELECT: u64 = 0x16;
    pub const QUEUE_SIZE: u64 = 0x18;
    pub const QUEUE_MSIX_VECTOR: u64 = 0x1a;
    pub const QUEUE_ENABLE: u64 = 0x1c;
    pub const QUEUE_DESC: u64 = 0x20;
    pub const QUEUE_DRIVER: u64 = 0x28;
    pub const QUEUE_DEVICE: u64 = 0x30;
    pub const QUEUE_RESET: u64 = 0x3a;
}

bitflags! {
    /// Device status (2.1).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Status: u8 {
        /// The guest has noticed the device.
        const ACKNOWLEDGE = 1;
        /// The guest has a driver for it.
        const DRIVER = 2;
        /// The driver is ready.
        const DRIVER_OK = 4;
        /// The feature negotiation is complete.
        const FEATURES_OK = 8;
        /// The device cannot go on.
        const NEEDS_RESET = 64;
        /// The driver has given up.
        const FAILED = 128;
    }
}

/// Double words of feature bits that a driver may select. The device offers two.
const FEATURE_WORDS: usize = 4;

/// The transport's state of one device.
#[derive(Clone, Debug)]
pub struct Common {
    device_feature_select: u32,
    driver_feature_select: u32,
    driver_features: [u32; FEATURE_WORDS],
    config_vector: u16,
    status: Status,
    /// The driver wrote 0 to the status, and the engine has not acknowledged the reset yet.
    resetting: bool,
    queue_select: u16,
    queues: [QueueConfig; MAX_QUEUES],
    /// Queues that the driver has reset and whose reset the engine has not acknowledged yet, one bit each.
    queues_resetting: u16,
}

impl Common {
    /// Makes the state after reset.
    #[must_use]
    pub fn new(shared: &Shared) -> Self {
        let queue = QueueConfig { size: shared.max_queue_size(), ..QueueConfig::RESET };
        Self {
            device_feature_select: 0,
            driver_feature_select: 0,
            driver_features: [0; FEATURE_WORDS],
            config_vector: NO_VECTOR,
            status: Status::empty(),
            resetting: false,
            queue_select: 0,
            queues: [queue; MAX_QUEUES],
            queues_resetting: 0,
        }
    }

    /// Completes a reset of the device or of single queues, if the engine has acknowledged it.
    fn settle(&mut self, shared: &Shared) {
        if self.resetting && shared.reset_done() {
            *self = Self::new(shared);
        }
        for (index, queue) in (0..).zip(&mut self.queues) {
            if self.queues_resetting >> index & 1 != 0 && shared.queue_reset_done(index) {
                self.queues_resetting &= !(1 << index);
                *queue = QueueConfig { size: shared.max_queue_size(), ..QueueConfig::RESET };
            }
        }
    }

    /// Device status as the driver reads it.
    pub fn status(&mut self, shared: &Shared) -> Status {
        self.settle(shared);
        let mut status = self.status;
        status.set(Status::NEEDS_RESET, shared.needs_reset() && !self.status.is_empty());
        status
    }

    /// Reads `size` bytes (up to 8) at `offset`, at any alignment. Reads zero beyond the end.
    pub fn read(&mut self, shared: &Shared, offset: u64, size: u8) -> u64 {
        let status = self.status(shared);
        let byte = |at: u64| u64::from(self.word(shared, status, at / 4) >> ((at & 3) << 3) & 0xff);
        (0..u64::from(size.min(8))).fold(0, |v, i| v | byte(offset.wrapping_add(i)) << (i << 3))
    }

    /// Returns double word `index` of the structure.
    fn word(&self, shared: &Shared, status: Status, index: u64) -> u32 {
        let pair = |low: u16, high: u16| u32::from(high) << 16 | u32::from(low);
        // A queue that does not exist has size 0 (4.1.5.1.3). Its other fields are as after reset.
        let queue = self.selected(shared).unwrap_or(QueueConfig::RESET);
        match index {
            0 => self.device_feature_select,
            1 if self.device_feature_select < 2 => (shared.offered() >> (self.device_feature_select << 5)) as u32,
            2 => self.driver_feature_select,
            3 => self.driver_features.get(self.driver_feature_select as usize).copied().unwrap_or(0),
            4 => pair(self.config_vector, shared.queues()),
            5 => {
                let bytes = [status.bits(), shared.config_generation()];
                pair(u16::from_le_bytes(bytes), self.queue_select)
            }
            6 => pair(queue.size, queue.vector),
            // `queue_notify_off` is the queue's number: each has its own port.
            7 => {
                pair(u16::from(queue.enabled), if self.queue_select < shared.queues() { self.queue_select } else { 0 })
            }
            8 => queue.desc as u32,
            9 => (queue.desc >> 32) as u32,
            10 => queue.avail as u32,
            11 => (queue.avail >> 32) as u32,
            12 => queue.used as u32,
            13 => (queue.used >> 32) as u32,
            14 => {
                let resetting = self.queues_resetting.checked_shr(self.queue_select.into()).unwrap_or(0) & 1;
                pair(0, resetting)
            }
            // queue_notif_config_data, admin_queue_index, admin_queue_num: their features are not offered.
            _ => 0,
        }
    }

    fn selected(&self, shared: &Shared) -> Option<QueueConfig> {
        self.queues.get(usize::from(self.queue_select)).filter(|_| self.queue_select < shared.queues()).copied()
    }

    fn selected_mut(&mut self, shared: &Shared) -> Option<&mut QueueConfig> {
        self.queues.get_mut(usize::from(self.queue_select)).filter(|_| self.queue_select < shared.queues())
    }

    /// Writes a field. The access must have the field's width, or be a half of a 64-bit field, as the specification
    /// demands of the driver (4.1.3.1). Any other access has no effect. During a reset no access has.
    pub fn write(&mut self, shared: &Shared, offset: u64, size: u8, value: u64) {
        self.settle(shared);
        if self.resetting {
            return;
        }
        match (offset, size) {
            (field::DEVICE_FEATURE_SELECT, 4) => self.device_feature_select = value as u32,
            (field::DRIVER_FEATURE_SELECT, 4) => self.driver_feature_select = value as u32,
            (field::DRIVER_FEATURE, 4) => self.set_driver_features(value as u32),
            (field::CONFIG_MSIX_VECTOR, 2) => self.config_vector = shared.set_config_vector(value as u16),
            (field::DEVICE_STATUS, 1) => self.set_status(shared, value as u8),
            (field::QUEUE_SELECT, 2) => self.queue_select = value as u16,
            (field::QUEUE_SIZE, 2) => self.set_queue_size(shared, value as u16),
            (field::QUEUE_MSIX_VECTOR, 2) => {
                let vector = shared.set_queue_vector(self.queue_select, value as u16);
                if let Some(queue) = self.selected_mut(shared) {
                    queue.vector = vector;
                }
            }
            (field::QUEUE_ENABLE, 2) if value as u16 == 1 => self.enable_queue(shared),
            (field::QUEUE_RESET, 2) if value as u16 == 1 && shared.reset_queue(self.queue_select) => {
                self.queues_resetting |= 1 << self.queue_select;
            }
            (field::QUEUE_DESC..LAST_ADDRESS_END, 4) if offset.is_multiple_of(4) => {
                self.set_address(shared, offset, value)
            }
            (field::QUEUE_DESC..LAST_ADDRESS_END, 8) if offset.is_multiple_of(8) => {
                self.set_address(shared, offset, value);
                self.set_address(shared, offset | 4, value >> 32);
            }
            _ => {}
        }
    }

    /// Sets the driver's features. Does nothing once FEATURES_OK is set.
    fn set_driver_features(&mut self, value: u32) {
        if self.status.contains(Status::FEATURES_OK) {
            return;
        }
        if let Some(word) = self.driver_features.get_mut(self.driver_feature_select as usize) {
            *word = value;
        }
    }

    /// Returns the features that the driver has chosen, or `None` if it set a bit beyond the 64 that may be offered.
    fn features(&self) -> Option<u64> {
        let [low, high, beyond @ ..] = self.driver_features;
        (beyond == [0; FEATURE_WORDS - 2]).then_some(u64::from(high) << 32 | u64::from(low))
    }

    /// Handles a write of the status. The driver can set bits, except the device's own. It can clear bits only by a
    /// reset.
    fn set_status(&mut self, shared: &Shared, value: u8) {
        if value == 0 {
            self.resetting = true;
            shared.request_reset();
            return self.settle(shared);
        }
        let new = Status::from_bits_truncate(value).difference(Status::NEEDS_RESET | self.status);
        self.status |= new & (Status::ACKNOWLEDGE | Status::DRIVER | Status::FAILED);
        let features = self.features().filter(|f| shared.accepts(*f));
        if new.contains(Status::FEATURES_OK) && features.is_some() {
            self.status |= Status::FEATURES_OK;
        }
        if new.contains(Status::DRIVER_OK)
            && self.status.contains(Status::FEATURES_OK)
            && features.is_some_and(|f| shared.activate(f))
        {
            self.status |= Status::DRIVER_OK;
        }
    }

    fn set_queue_size(&mut self, shared: &Shared, size: u16) {
        let max = shared.max_queue_size();
        // A packed ring may have any number of descriptors (2.8.10.1).
        let packed = self.features().is_some_and(|features| features & Features::RING_PACKED.bits() != 0);
        if let Some(queue) = self.selected_mut(shared)
            && !queue.enabled
            && (size.is_power_of_two() || packed && size != 0)
            && size <= max
        {
            queue.size = size;
        }
    }

    fn enable_queue(&mut self, shared: &Shared) {
        let index = self.queue_select;
        if let Some(queue) = self.selected_mut(shared)
            && !queue.enabled
        {
            // If the device runs without RING_RESET, this is refused, and the queue stays disabled.
            queue.enabled = shared.configure_queue(index, &QueueConfig { enabled: true, ..*queue });
        }
    }

    /// Writes half of a queue's address. `offset` is a multiple of 4 within the addresses. Does nothing once the queue
    /// is enabled.
    fn set_address(&mut self, shared: &Shared, offset: u64, value: u64) {
        let Some(queue) = self.selected_mut(shared).filter(|q| !q.enabled) else { return };
        let address = match offset & !7 {
            field::QUEUE_DESC => &mut queue.desc,
            field::QUEUE_DRIVER => &mut queue.avail,
            _ => &mut queue.used,
        };
        let shift = (offset & 4) << 3;
        *address = *address & !(0xffff_ffff << shift) | (value & 0xffff_ffff) << shift;
    }
}

const LAST_ADDRESS_END: u64 = field::QUEUE_DEVICE + 8;
