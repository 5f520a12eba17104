//! A device for tests that do not depend on its type.

use crate::config::{CONFIG_BYTES, DeviceConfig, Features};

/// The configuration of [`device`], as a network device has it: MAC address, status, number of queue pairs, MTU.
const CONFIG: [u8; 12] = [2, 0, 0, 0, 0, 1, 1, 0, 1, 0, 0xdc, 5];

/// A device of type 1 with three queues of up to 256 descriptors. It offers every feature of the ring, and features 0
/// and 5 of its own type.
#[must_use]
pub const fn device() -> DeviceConfig {
    let mut config = [0; CONFIG_BYTES];
    let mut i = 0;
    while i < CONFIG.len() {
        config[i] = CONFIG[i];
        i += 1;
    }
    DeviceConfig {
        device_type: 1,
        features: Features::all().bits() | 1 << 0 | 1 << 5,
        queues: 3,
        queue_size: 256,
        config,
        config_len: CONFIG.len() as u16,
        driver_writes: 0,
    }
}
