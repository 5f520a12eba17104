//! A virtio network device as uplink. It is used if sidecore itself runs in a virtual machine.

use crate::{
    pci::Function,
    virtio_pci::{self, Memory},
};
use alloc::{format, string::String};
use net::uplink::Held;
use virtio_drivers::transport::pci::PciTransport;

/// The driver.
pub type Device = virtio_net::VirtioNet<Memory, PciTransport, Held>;

/// Returns the name of a function in the report, or `None` if it is not a virtio network device.
pub fn name(function: &Function) -> Option<&'static str> {
    virtio_net::id::name(function.vendor, function.device)
}

/// Sets up a device that has a [`name`].
///
/// # Errors
/// It has no usable registers, or it does not follow the initialisation protocol (virtio 1.3, 3.1).
pub fn open(found: &Function) -> Result<Device, String> {
    Device::new(virtio_pci::transport(found)?).map_err(|e| format!("{e}"))
}
