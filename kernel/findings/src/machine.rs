//! Memory, cores, PCI: what the firmware's tables and the devices say.

use alloc::format;
use control::ReportEntry;

use crate::{fallback, found, warning};

/// Usable memory of so many bytes.
#[must_use]
pub fn memory(bytes: u64) -> ReportEntry {
    found(format!("{} MiB of memory", bytes >> 20))
}

/// The way to PCI's configuration space. `window`: physical address, first and last bus of ACPI's MCFG.
#[must_use]
pub fn configuration_space(window: Option<(u64, u8, u8)>) -> ReportEntry {
    match window {
        Some((base, first, last)) => {
            found(format!("PCI configuration space in memory at {base:#x}, buses {first} to {last}"))
        }
        None => fallback("ACPI has no MCFG: PCI configuration space is reached by ports CF8 and CFC"),
    }
}

/// The PCI functions that are no bridges.
#[must_use]
pub fn pci_devices(count: usize) -> ReportEntry {
    found(format!("{count} PCI devices; no IOMMU is used, so a device driven later has to be trusted"))
}

/// There is no second UART at the usual ports.
#[must_use]
pub fn no_com2() -> ReportEntry {
    warning("no COM2: scripts cannot read counters or send commands")
}

/// The name of a NIC for which there is a driver, by PCI's vendor and device identifier; `None` for any other function.
#[must_use]
pub fn nic(vendor: u16, device: u16) -> Option<&'static str> {
    virtio_net::id::name(vendor, device).or_else(|| x520::id::name(vendor, device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nics_are_those_that_have_drivers() {
        assert!(nic(0x8086, 0x10fb).is_some_and(|name| name.contains("82599")), "the X520");
        assert_eq!(nic(0x1af4, 0x1041), nic(0x1af4, 0x1000));
        assert_eq!(nic(0x1af4, 0x1042), None, "a virtio disk");
        assert_eq!(nic(0x8086, 0x1528), None, "an X540");
    }
}
