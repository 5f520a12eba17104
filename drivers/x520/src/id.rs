//! The PCI functions that this driver supports.

/// A device by its PCI device identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceId {
    /// PCI device identifier.
    pub device: u16,
    /// The product's name.
    pub name: &'static str,
}

/// Intel's PCI vendor identifier.
pub const VENDOR: u16 = 0x8086;

/// The 82599 cards with a cage for SFP+ modules. They differ only in their identifier. Only 0x10fb was tried, and only
/// as a model.
///
/// These are not supported, because their link needs more than the EEPROM's mode and a restart: backplane and mezzanine
/// cards with KX4, KR or CX4 (0x10f7, 0x10f8, 0x10f9, 0x10fc, 0x1514, 0x1517, 0x152a), 10GBASE-T (0x151c), QSFP
/// (0x1558). Virtual functions (0x10ed) are not supported either: they have registers of their own.
pub const DEVICE_IDS: &[DeviceId] = &[
    DeviceId { device: 0x10fb, name: "82599 SFP+" },
    DeviceId { device: 0x1507, name: "82599 SFP+, X520-P2 Express Module" },
    DeviceId { device: 0x1529, name: "82599 SFP+ with FCoE" },
    DeviceId { device: 0x154a, name: "82599 SFP+, X520-4" },
    DeviceId { device: 0x154d, name: "82599 SFP+, X520 10G 2P" },
    DeviceId { device: 0x1557, name: "82599EN SFP+" },
];

/// The name of a PCI function that this driver supports. `None`: the driver does not support it.
#[must_use]
pub fn name(vendor: u16, device: u16) -> Option<&'static str> {
    DEVICE_IDS.iter().find(|id| vendor == VENDOR && id.device == device).map(|id| id.name)
}

#[cfg(test)]
mod tests {
    use super::{DEVICE_IDS, VENDOR, name};

    #[test]
    fn a_function_is_known_by_vendor_and_device() {
        assert_eq!(name(VENDOR, 0x10fb), Some("82599 SFP+"));
        assert_eq!((name(0x1af4, 0x10fb), name(VENDOR, 0x10ed), name(VENDOR, 0x151c)), (None, None, None));
        assert!(DEVICE_IDS.is_sorted_by_key(|id| id.device), "each once");
    }
}
