//! The configuration of an entropy device (virtio 1.3 5.4.2 to 5.4.4).

use virtio::config::{CONFIG_BYTES, DeviceConfig, Features};

/// Virtio device type of an entropy device (virtio 1.3 5).
pub const DEVICE_TYPE: u16 = 4;
/// Largest size of its queue, in descriptors. 16 is enough: Linux's driver has one request at a time.
const QUEUE_SIZE: u16 = 16;

/// Returns the configuration of an entropy device: one queue, only features of the ring and the transport, and no
/// configuration fields. Packed rings are not offered: they help with many requests, and this device has few.
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
        driver_writes: 0,
    }
}
