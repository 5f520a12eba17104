//! The PCI functions that this driver supports.

pub use intel_nic::id::VENDOR;

use intel_nic::id::Unsupported;

/// Where a card's link goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Medium {
    /// To a cage for SFP+ modules.
    #[default]
    Cage,
    /// To other ports in the same chassis, over a backplane: KR, KX4 or KX, as the EEPROM says, mostly negotiated (802.3
    /// clause 73).
    Backplane,
}

/// A device by its PCI device identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceId {
    /// PCI device identifier.
    pub device: u16,
    /// The product's name.
    pub name: &'static str,
    /// Where its link goes.
    pub medium: Medium,
}

impl DeviceId {
    const fn new(device: u16, medium: Medium, name: &'static str) -> Self {
        Self { device, name, medium }
    }
}

/// The 82599 cards that are supported. Those with the same medium differ only in their identifier. Only 0x10fb and 0x1517
/// were tried, and only as models. [`needs`] has others.
pub const DEVICE_IDS: &[DeviceId] = &[
    DeviceId::new(0x10f7, Medium::Backplane, "82599 for a backplane, KX4"),
    DeviceId::new(0x10f8, Medium::Backplane, "82599 for a backplane"),
    DeviceId::new(0x10fb, Medium::Cage, "82599 SFP+"),
    DeviceId::new(0x1507, Medium::Cage, "82599 SFP+, X520-P2 Express Module"),
    DeviceId::new(0x1514, Medium::Backplane, "82599 for a backplane, KX4, mezzanine card"),
    DeviceId::new(0x1517, Medium::Backplane, "82599 for a backplane, KR"),
    DeviceId::new(0x1529, Medium::Cage, "82599 SFP+ with FCoE"),
    DeviceId::new(0x152a, Medium::Backplane, "82599 for a backplane with FCoE"),
    DeviceId::new(0x154a, Medium::Cage, "82599 SFP+, X520-4"),
    DeviceId::new(0x154d, Medium::Cage, "82599 SFP+, X520 10G 2P"),
    DeviceId::new(0x1557, Medium::Cage, "82599EN SFP+"),
];

fn find(vendor: u16, device: u16) -> Option<&'static DeviceId> {
    DEVICE_IDS.iter().find(|id| vendor == VENDOR && id.device == device)
}

/// The name of a PCI function that this driver supports. `None`: the driver does not support it.
#[must_use]
pub fn name(vendor: u16, device: u16) -> Option<&'static str> {
    find(vendor, device).map(|id| id.name)
}

/// Where the link of a PCI function goes that this driver supports.
#[must_use]
pub fn medium(vendor: u16, device: u16) -> Option<Medium> {
    find(vendor, device).map(|id| id.medium)
}

#[rustfmt::skip]
const UNSUPPORTED: &[Unsupported] = &[
    Unsupported {
        devices: &[0x10b6, 0x10c6, 0x10c7, 0x10c8, 0x10db, 0x10dd, 0x10e1, 0x10ec, 0x10f1, 0x10f4],
        name: "Intel 82598",
        needs: "it has other queues and filters than the 82599, and would need a driver of its own",
    },
    Unsupported {
        devices: &[0x10f9, 0x10fc, 0x151c, 0x154f, 0x1558],
        name: "Intel 82599 with another port",
        needs: "its link goes by CX4, XAUI, a 10GBASE-T PHY or QSFP, and the driver sets up links of SFP+ modules and of backplanes only",
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
    use super::{DEVICE_IDS, Medium, UNSUPPORTED, VENDOR, medium, name, needs};

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
        assert_eq!(
            (medium(VENDOR, 0x10fb), medium(VENDOR, 0x1517), medium(VENDOR, 0x1528)),
            (Some(Medium::Cage), Some(Medium::Backplane), None)
        );
        assert!(DEVICE_IDS.is_sorted_by_key(|id| id.device), "each once");
    }
}
