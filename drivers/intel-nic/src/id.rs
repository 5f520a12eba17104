//! PCI identifiers of Intel's NICs. Each driver has the lists of those that it knows.

/// Intel's PCI vendor identifier.
pub const VENDOR: u16 = 0x8086;

/// Devices that a driver knows and does not support.
#[derive(Clone, Copy, Debug)]
pub struct Unsupported {
    /// Their PCI device identifiers.
    pub devices: &'static [u16],
    /// What they are called.
    pub name: &'static str,
    /// What the driver would need to support them.
    pub needs: &'static str,
}

/// The name of a PCI function that is in a driver's list, and what it would need. `None`: it is not in the list.
#[must_use]
pub fn needs(list: &[Unsupported], vendor: u16, device: u16) -> Option<(&'static str, &'static str)> {
    let known = |unsupported: &&Unsupported| vendor == VENDOR && unsupported.devices.contains(&device);
    list.iter().find(known).map(|unsupported| (unsupported.name, unsupported.needs))
}
