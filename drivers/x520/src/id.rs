//! The PCI functions that this driver supports.

pub use intel_nic::id::VENDOR;

use intel_nic::id::Unsupported;

/// A device by its PCI device identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceId {
    /// PCI device identifier.
    pub device: u16,
    /// The product's name.
    pub name: &'static str,
}

/// The 82599 cards with a cage for SFP+ modules. They differ only in their identifier. Only 0x10fb was tried, and only
/// as a model. [`needs`] has others.
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

#[rustfmt::skip]
const UNSUPPORTED: &[Unsupported] = &[
    Unsupported {
        devices: &[0x10b6, 0x10c6, 0x10c7, 0x10c8, 0x10db, 0x10dd, 0x10e1, 0x10ec, 0x10f1, 0x10f4],
        name: "Intel 82598",
        needs: "it has other queues and filters than the 82599, and would need a driver of its own",
    },
    Unsupported {
        devices: &[0x10f7, 0x10f8, 0x10fc, 0x1514, 0x1517, 0x152a],
        name: "Intel 82599 for a backplane",
        needs: "its link is negotiated with KX4 or KR, and the driver sets up links of SFP+ modules only",
    },
    Unsupported {
        devices: &[0x10f9, 0x151c, 0x1558],
        name: "Intel 82599 without an SFP+ cage",
        needs: "its link goes by CX4, by a 10GBASE-T PHY or by QSFP, and the driver sets up links of SFP+ modules only",
    },
    Unsupported {
        devices: &[0x10ed, 0x1515, 0x1565, 0x15a8, 0x15c5],
        name: "virtual function of an Intel 82599, X540 or X550",
        needs: "it has registers of its own, and needs the driver of its physical function",
    },
    Unsupported {
        devices: &[0x1528, 0x1560],
        name: "Intel X540",
        needs: "it has the 82599's queues, but a driver would have to set up its 10GBASE-T PHY by MDIO",
    },
    Unsupported {
        devices: &[
            0x1563, 0x15d1, 0x15aa, 0x15ab, 0x15ac, 0x15ad, 0x15ae, 0x15b0, 0x15c2, 0x15c3, 0x15c4, 0x15c6, 0x15c7, 0x15c8,
            0x15ca, 0x15cc, 0x15ce, 0x15e4, 0x15e5,
        ],
        name: "Intel X550",
        needs: "it has the 82599's queues, but a driver would have to set up its PHY by commands to its firmware",
    },
    Unsupported {
        devices: &[
            0x104f, 0x1572, 0x1580, 0x1581, 0x1583, 0x1584, 0x1585, 0x1586, 0x1587, 0x1588, 0x1589, 0x158a, 0x158b, 0x15ff,
            0x37ce, 0x37cf, 0x37d0, 0x37d1, 0x37d2, 0x37d3,
        ],
        name: "Intel X710, XL710 or X722",
        needs: "it has other registers, and firmware sets it up by an admin queue: it would need a driver of its own",
    },
];

/// The name of an Intel NIC that is known and not supported, and what it would need. `None`: it is not known.
#[must_use]
pub fn needs(vendor: u16, device: u16) -> Option<(&'static str, &'static str)> {
    intel_nic::id::needs(UNSUPPORTED, vendor, device)
}

#[cfg(test)]
mod tests {
    use super::{DEVICE_IDS, UNSUPPORTED, VENDOR, name, needs};

    #[test]
    fn what_is_not_supported_has_a_name_and_says_what_it_needs() {
        for (device, expected) in
            [(0x1528, "Intel X540"), (0x1563, "Intel X550"), (0x1572, "Intel X710, XL710 or X722")]
        {
            assert_eq!(needs(VENDOR, device).map(|(name, _)| name), Some(expected));
        }
        assert_eq!((needs(VENDOR, 0x10fb), needs(0x1af4, 0x1528), needs(VENDOR, 0x100e)), (None, None, None));
        let mut all: Vec<u16> = UNSUPPORTED.iter().flat_map(|family| family.devices).copied().collect();
        all.extend(DEVICE_IDS.iter().map(|id| id.device));
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count, "each once");
    }

    #[test]
    fn a_function_is_known_by_vendor_and_device() {
        assert_eq!(name(VENDOR, 0x10fb), Some("82599 SFP+"));
        assert_eq!((name(0x1af4, 0x10fb), name(VENDOR, 0x10ed), name(VENDOR, 0x151c)), (None, None, None));
        assert!(DEVICE_IDS.is_sorted_by_key(|id| id.device), "each once");
    }
}
