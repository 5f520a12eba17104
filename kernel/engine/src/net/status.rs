//! The `status` byte of a network device's configuration (virtio 1.3, 5.1.4): the link, and the wish that the guest
//! announce itself. Each bit has its own writer, so a bit is set without touching the other.

use super::DEVICE_TYPE;
use crate::shared::Shared;

/// Where it is in the configuration.
pub const OFFSET: usize = 6;
/// The link is up.
pub const LINK_UP: u8 = 1;
/// The driver is asked to tell the network where its addresses are.
pub const ANNOUNCE: u8 = 2;

/// Sets or clears the bit of a network device and says whether that changed anything. The caller sends the configuration-change interrupt.
pub fn set(shared: &Shared, bit: u8, on: bool) -> bool {
    let [status] = shared.config_bytes(OFFSET);
    if shared.device().device_type != DEVICE_TYPE || (status & bit != 0) == on {
        return false;
    }
    shared.change_config(OFFSET, if on { status | bit } else { status & !bit });
    true
}
