//! The PCI functions that this driver supports, and those of the same family that it does not.

pub use intel_nic::id::VENDOR;

use intel_nic::id::Unsupported;

/// A kind of device. They differ in little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 82576: two ports, 24 addresses.
    I82576,
    /// I350: up to four ports, 32 addresses.
    I350,
}

/// A device by its PCI device identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceId {
    /// PCI device identifier.
    pub device: u16,
    /// The product's name.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
}

/// Those with copper ports. None was tried but on a model. [`needs`] has others.
pub const DEVICE_IDS: &[DeviceId] = &[
    DeviceId { device: 0x10c9, name: "Intel 82576", kind: Kind::I82576 },
    DeviceId { device: 0x10e8, name: "Intel 82576, four ports (ET)", kind: Kind::I82576 },
    DeviceId { device: 0x150a, name: "Intel 82576NS", kind: Kind::I82576 },
    DeviceId { device: 0x1521, name: "Intel I350", kind: Kind::I350 },
    DeviceId { device: 0x1526, name: "Intel 82576, four ports (ET2)", kind: Kind::I82576 },
];

fn find(vendor: u16, device: u16) -> Option<&'static DeviceId> {
    DEVICE_IDS.iter().find(|id| vendor == VENDOR && id.device == device)
}

/// The name of a PCI function that this driver supports. `None`: the driver does not support it.
#[must_use]
pub fn name(vendor: u16, device: u16) -> Option<&'static str> {
    find(vendor, device).map(|id| id.name)
}

/// What a function that has a [`name`] is.
#[must_use]
pub fn kind(vendor: u16, device: u16) -> Option<Kind> {
    find(vendor, device).map(|id| id.kind)
}

#[rustfmt::skip]
const UNSUPPORTED: &[Unsupported] = &[
    Unsupported {
        devices: &[0x10e6, 0x10e7, 0x150d, 0x1518],
        name: "Intel 82576 without copper ports",
        needs: "its link goes by SerDes or fibre, and the driver sets up copper links only",
    },
    Unsupported {
        devices: &[0x1522, 0x1523, 0x1524, 0x1546],
        name: "Intel I350 without copper ports",
        needs: "its link goes by SerDes, SGMII or fibre, and the driver sets up copper links only",
    },
    Unsupported {
        devices: &[0x10ca, 0x152d, 0x1520, 0x152f],
        name: "virtual function of an Intel 82576 or I350",
        needs: "it has registers of its own, and needs the driver of its physical function",
    },
    Unsupported {
        devices: &[0x10a7, 0x10a9, 0x10d6],
        name: "Intel 82575",
        needs: "it has other queues and contexts than the 82576, and would need a driver of its own",
    },
    Unsupported {
        devices: &[0x150e, 0x150f, 0x1510, 0x1511, 0x1516, 0x1527, 0x0438, 0x043a, 0x043c, 0x0440],
        name: "Intel 82580 or DH89xxCC",
        needs: "it is like the I350, but nobody has compared its registers with the driver's",
    },
    Unsupported {
        devices: &[0x1533, 0x1536, 0x1537, 0x1538, 0x1539, 0x157b, 0x157c],
        name: "Intel I210 or I211",
        needs: "it has other non-volatile memory and semaphores than the I350, and the driver would have to set up its PLL",
    },
    Unsupported {
        devices: &[0x1f40, 0x1f41, 0x1f45],
        name: "Intel I354",
        needs: "its link goes by SGMII or a backplane, and the driver sets up copper links only",
    },
];

/// The name of a NIC of this family that is known and not supported, and what it would need. `None`: it is not known.
#[must_use]
pub fn needs(vendor: u16, device: u16) -> Option<(&'static str, &'static str)> {
    intel_nic::id::needs(UNSUPPORTED, vendor, device)
}

#[cfg(test)]
mod tests {
    use super::{DEVICE_IDS, Kind, UNSUPPORTED, VENDOR, kind, name, needs};

    #[test]
    fn what_is_not_supported_has_a_name_and_says_what_it_needs() {
        for (device, expected) in [
            (0x1533, "Intel I210 or I211"),
            (0x10ca, "virtual function of an Intel 82576 or I350"),
            (0x1f41, "Intel I354"),
        ] {
            assert_eq!(needs(VENDOR, device).map(|(name, _)| name), Some(expected));
        }
        assert_eq!((needs(VENDOR, 0x10c9), needs(0x1af4, 0x1533), needs(VENDOR, 0x100e)), (None, None, None));
        let mut all: Vec<u16> = UNSUPPORTED.iter().flat_map(|family| family.devices).copied().collect();
        all.extend(DEVICE_IDS.iter().map(|id| id.device));
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count, "each once");
    }

    #[test]
    fn a_function_is_known_by_vendor_and_device() {
        assert_eq!((name(VENDOR, 0x10c9), kind(VENDOR, 0x10c9)), (Some("Intel 82576"), Some(Kind::I82576)));
        assert_eq!((name(VENDOR, 0x1521), kind(VENDOR, 0x1521)), (Some("Intel I350"), Some(Kind::I350)));
        assert_eq!((name(0x1af4, 0x10c9), name(VENDOR, 0x10fb), kind(VENDOR, 0x1533)), (None, None, None));
        assert!(DEVICE_IDS.is_sorted_by_key(|id| id.device), "each once");
    }
}
