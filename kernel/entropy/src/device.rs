//! What an entropy device is (virtio 1.3 5.4.2 to 5.4.4).

use virtio::config::{CONFIG_BYTES, DeviceConfig, Features};

/// Virtio device type of an entropy device (virtio 1.3 5).
pub const DEVICE_TYPE: u16 = 4;
/// Largest size of its queue. Linux's driver has one request at a time.
const QUEUE_SIZE: u16 = 16;

/// What an entropy device is: one queue, no features and no configuration of its own. Packed rings are not offered: they pay
/// off with many requests, and here are few.
#[must_use]
pub const fn config() -> DeviceConfig {
    let features =
        Features::VERSION_1.union(Features::EVENT_IDX).union(Features::INDIRECT_DESC).union(Features::RING_RESET);
    DeviceConfig {
        device_type: DEVICE_TYPE,
        features: features.bits(),
        queues: 1,
        queue_size: QUEUE_SIZE,
        config: [0; CONFIG_BYTES],
        config_len: 0,
    }
}
