//! A virtio network device as uplink. It is used if sidecore itself runs in a virtual machine.

use crate::{
    pci::Function,
    virtio_pci::{self, Memory, VIRTIO},
};
use alloc::{format, string::String};
use net::uplink::Held;
use virtio_drivers::transport::pci::PciTransport;

/// Network devices by the transitional and by the modern identifier (virtio 1.3, 4.1.2).
const VIRTIO_NET: [u16; 2] = [0x1000, 0x1041];

/// The driver.
pub type Device = virtio_net::VirtioNet<Memory, PciTransport, Held>;

/// Returns the name of a function in the report, or `None` if it is not a virtio network device.
pub fn name(function: &Function) -> Option<&'static str> {
    (function.vendor == VIRTIO && VIRTIO_NET.contains(&function.device)).then_some("virtio network device")
}

/// Sets up a device that has a [`name`].
///
/// # Errors
/// It has no usable registers, or it does not follow the initialisation protocol (virtio 1.3, 3.1).
pub fn open(found: &Function) -> Result<Device, String> {
    Device::new(virtio_pci::transport(found)?).map_err(|e| format!("{e}"))
}
