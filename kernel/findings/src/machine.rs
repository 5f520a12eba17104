//! Memory, cores, PCI: what the firmware's tables and the devices say.

use alloc::{format, string::String, vec::Vec};
use boot::acpi::EcamWindow;
use control::ReportEntry;

use crate::{fallback, found, warning};

/// Most cores that are used.
pub const MAX_CORES: usize = 64;

/// Usable memory of so many bytes.
#[must_use]
pub fn memory(bytes: u64) -> ReportEntry {
    found(format!("{} MiB of memory", bytes >> 20))
}

/// All `count` cores started that were asked. `listed` are enabled in ACPI's MADT.
#[must_use]
pub fn cores(count: usize, listed: usize) -> ReportEntry {
    if listed > MAX_CORES {
        warning(format!("{count} cores are used, all that this hypervisor can; the machine has {listed}"))
    } else {
        found(format!("{count} cores, all started"))
    }
}

/// The ways to PCI's configuration space: the windows of ACPI's MCFG.
#[must_use]
pub fn configuration_space(windows: &[EcamWindow]) -> Vec<ReportEntry> {
    if windows.is_empty() {
        return [fallback("ACPI has no MCFG: PCI configuration space is reached by ports CF8 and CFC")].into();
    }
    let line = |window: &EcamWindow| {
        let segment = match window.segment {
            0 => String::new(),
            other => format!(", segment {other}"),
        };
        let (start, first, last) = (window.start(), window.first, window.last);
        found(format!("PCI configuration space in memory at {start:#x}, buses {first} to {last}{segment}"))
    };
    windows.iter().map(line).collect()
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
    use control::ReportKind;

    #[test]
    fn more_cores_than_can_be_used_are_a_warning() {
        assert_eq!(cores(4, 4), found("4 cores, all started"));
        let entry = cores(64, 72);
        assert_eq!(entry.kind, ReportKind::Warning);
        assert!(entry.text.contains("64 cores are used") && entry.text.ends_with("the machine has 72"));
    }

    #[test]
    fn each_window_is_a_line_and_segments_but_the_first_are_named() {
        let windows = [(0xe000_0000, 0), (0x1_0000_0000, 3)];
        let windows = windows.map(|(base, segment)| EcamWindow { base, segment, first: 1, last: 255 });
        assert_eq!(
            configuration_space(&windows),
            [
                found("PCI configuration space in memory at 0xe0100000, buses 1 to 255"),
                found("PCI configuration space in memory at 0x100100000, buses 1 to 255, segment 3"),
            ]
        );
        assert_eq!(configuration_space(&[])[0].kind, ReportKind::Fallback);
    }

    #[test]
    fn the_nics_are_those_that_have_drivers() {
        assert!(nic(0x8086, 0x10fb).is_some_and(|name| name.contains("82599")), "the X520");
        assert_eq!(nic(0x1af4, 0x1041), nic(0x1af4, 0x1000));
        assert_eq!(nic(0x1af4, 0x1042), None, "a virtio disk");
        assert_eq!(nic(0x8086, 0x1528), None, "an X540");
    }
}
