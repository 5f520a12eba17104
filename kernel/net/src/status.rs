//! The `status` byte of a network device's configuration (virtio 1.3 5.1.4): the state of the link, and the request to
//! the guest to announce itself. Each bit has its own writer. Setting one bit does not change the other.

use virtio::shared::Shared;

/// Virtio device type of a network device (virtio 1.3 5).
pub const DEVICE_TYPE: u16 = 1;
/// Offset of the status in the configuration.
pub const OFFSET: usize = 6;
/// The link is up.
pub const LINK_UP: u8 = 1;
/// The driver must announce its addresses to the network.
pub const ANNOUNCE: u8 = 2;

/// Sets or clears a bit of a network device's status. Returns whether that changed it. The caller sends the
/// configuration-change interrupt.
pub fn set(shared: &Shared, bit: u8, on: bool) -> bool {
    let [status] = shared.config_bytes(OFFSET);
    if shared.device().device_type != DEVICE_TYPE || (status & bit != 0) == on {
        return false;
    }
    shared.change_config(OFFSET, &[if on { status | bit } else { status & !bit }]);
    true
}
