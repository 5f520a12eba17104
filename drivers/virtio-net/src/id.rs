//! The PCI functions that this driver supports (virtio 1.3, 4.1.2 and 5.1.1).

/// PCI vendor identifier of virtio devices.
const VENDOR: u16 = 0x1af4;
/// PCI device identifiers of a network device: transitional, and modern.
const DEVICES: [u16; 2] = [0x1000, 0x1041];

/// The name of a PCI function that this driver supports. `None`: the driver does not support it.
#[must_use]
pub fn name(vendor: u16, device: u16) -> Option<&'static str> {
    (vendor == VENDOR && DEVICES.contains(&device)).then_some("virtio network device")
}
