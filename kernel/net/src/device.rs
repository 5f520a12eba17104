//! The configuration of a network device (virtio 1.3 5.1.2, 5.1.4).

use virtio::config::{CONFIG_BYTES, DeviceConfig, MAX_QUEUES};

use crate::features::Features;
use crate::status::{self, DEVICE_TYPE};

/// Most queue pairs of a network device.
pub const MAX_QUEUE_PAIRS: usize = 4;
const _: () = assert!(2 * MAX_QUEUE_PAIRS < MAX_QUEUES, "and a control queue");

/// Offset of the number of queue pairs in the configuration (5.1.4).
const MAX_PAIRS: usize = 8;
/// Offset of the MTU in the configuration (5.1.4).
pub(crate) const MTU: usize = 10;

/// Returns the configuration of a network device with `pairs` queue pairs. Receive and transmit queues alternate: queue
/// 0 receives, queue 1 transmits. The control queue is the last. `mtu` is the largest payload of a frame in bytes.
/// It offers every feature. A device whose frames can leave through an uplink must not offer IN_ORDER.
#[must_use]
pub const fn config(mac: [u8; 6], mtu: u16, pairs: u16) -> DeviceConfig {
    assert!(pairs as usize <= MAX_QUEUE_PAIRS);
    let mut config = [0; CONFIG_BYTES];
    [config[0], config[1], config[2], config[3], config[4], config[5]] = mac;
    config[status::OFFSET] = status::LINK_UP;
    [config[MAX_PAIRS], config[MAX_PAIRS + 1]] = pairs.to_le_bytes();
    [config[MTU], config[MTU + 1]] = mtu.to_le_bytes();
    DeviceConfig {
        device_type: DEVICE_TYPE,
        features: Features::all().bits(),
        queues: pairs.saturating_mul(2).saturating_add(1),
        queue_size: 256,
        config,
        config_len: 12,
        driver_writes: 0,
    }
}
