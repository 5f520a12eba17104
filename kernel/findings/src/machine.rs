//! Memory, cores, PCI: what the firmware's tables and the devices say.

use alloc::{format, string::String, vec::Vec};
use core::fmt;

use boot::acpi::EcamWindow;
use control::ReportEntry;
use drivers::hpet::Silenced;
use drivers::ioapic::Masked;

use crate::{decision, fallback, found, warning};

/// Usable memory of so many bytes.
#[must_use]
pub fn memory(bytes: u64) -> ReportEntry {
    found(format!("{} MiB of memory", bytes >> 20))
}

/// Ranges of addresses in a line of the report.
const RANGES: usize = 3;

/// Memory that was in use before sidecore gave any away: what for, its start, and its end (exclusive).
pub type Taken = (String, u64, u64);

/// The firmware's map of usable memory, what was taken of it before anything was given away, and the free bytes after that. `map`: start and
/// end (exclusive) of each range.
#[must_use]
pub fn memory_map(map: &[(u64, u64)], taken: &[Taken], free: u64) -> Vec<ReportEntry> {
    let range = |start: u64, end: u64| format!("{start:#x} to {end:#x}");
    let map = map.chunks(RANGES).map(|few| {
        let few: Vec<_> = few.iter().map(|&(start, end)| range(start, end)).collect();
        decision(format!("memory map: {}", few.join(", ")))
    });
    let taken = taken.chunks(RANGES).map(|few| {
        let few: Vec<_> = few.iter().map(|(what, start, end)| format!("{} {what}", range(*start, *end))).collect();
        decision(format!("memory taken of it: {}", few.join(", ")))
    });
    let free = decision(format!("memory that is free after that: {} KiB", free >> 10));
    map.chain(taken).chain([free]).collect()
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

/// A PCI function of a segment other than 0.
pub struct Elsewhere<A> {
    /// The segment.
    pub segment: u32,
    /// Bus, device and function.
    pub at: A,
    /// Vendor identifier.
    pub vendor: u16,
    /// Device identifier.
    pub device: u16,
    /// Class code, 24 bits.
    pub class: u32,
}

/// Class code of NVMe controllers: non-volatile memory, with NVMe's programming interface (PCI Code and ID Assignment).
pub const NVME: u32 = 0x01_0802;

/// The PCI functions of segments other than 0 that are no bridges: their number, and each that sidecore would drive in segment 0.
pub fn elsewhere<A: fmt::Display>(all: impl IntoIterator<Item = Elsewhere<A>>) -> Vec<ReportEntry> {
    let (mut count, mut said) = (0_usize, Vec::new());
    for Elsewhere { segment, at, vendor, device, class } in all {
        count = count.saturating_add(1);
        let name = if class == NVME { Some("NVMe controller") } else { nic(vendor, device) };
        if let Some(name) = name {
            said.push(fallback(format!(
                "{name} at {at} of segment {segment} ({vendor:04x}:{device:04x}): sidecore drives devices of segment 0 only; put the card into \
                 another slot, mostly one of the first processor"
            )));
        }
    }
    if count != 0 {
        let all = "are in segments other than 0: their bus mastering and MSI are off, and sidecore drives none of them";
        said.insert(0, fallback(format!("{count} PCI devices {all}")));
    }
    said
}

/// What became of the I/O APICs: for each its address, and what was masked (`None`: none answers there).
#[must_use]
pub fn io_apics(all: &[(u32, Option<Masked>)]) -> Vec<ReportEntry> {
    let there = || all.iter().filter_map(|(_, masked)| *masked);
    let sum = |of: fn(Masked) -> u32| there().map(of).fold(0, u32::saturating_add);
    let mut said = Vec::new();
    if there().next().is_some() {
        let smi = match sum(|masked| masked.smi) {
            0 => String::new(),
            count => format!("; {count} send SMIs and are the firmware's"),
        };
        said.push(found(format!(
            "I/O APICs: {} with {} entries, all masked; the firmware had left {} open{smi}",
            there().count(),
            sum(|masked| masked.entries),
            sum(|masked| masked.were_open)
        )));
    }
    if sum(|masked| masked.refused) != 0 {
        said.push(warning(format!("{} entries of I/O APICs cannot be masked", sum(|masked| masked.refused))));
    }
    for (at, _) in all.iter().filter(|(_, masked)| masked.is_none()) {
        said.push(warning(format!("no I/O APIC answers at {at:#x}, where ACPI's MADT has one")));
    }
    said
}

/// What became of the HPET's timers, whose registers ACPI says are at this physical address. `None`: none answers there.
#[must_use]
pub fn hpet(at: u64, silenced: Option<Silenced>) -> ReportEntry {
    match silenced {
        None => found(format!("no HPET answers at {at:#x}, where ACPI has one; it is left alone")),
        Some(Silenced { refused: 1.., timers, .. }) => {
            warning(format!("HPET at {at:#x}: of its {timers} timers some send interrupts, and cannot be switched off"))
        }
        Some(Silenced { were_on: 0, timers, .. }) => {
            found(format!("HPET at {at:#x}: none of its {timers} timers sends interrupts"))
        }
        Some(Silenced { were_on, timers, messages, .. }) => decision(format!(
            "HPET at {at:#x}: the firmware had left {were_on} of its {timers} timers sending interrupts, {messages} of them past the I/O \
             APICs; they are off"
        )),
    }
}

/// Bridges to PCI that the firmware had left sending interrupts as messages. They are off now.
#[must_use]
pub fn bridges_with_messages<A: fmt::Display>(all: impl IntoIterator<Item = A>) -> Option<ReportEntry> {
    let names: Vec<_> = all.into_iter().map(|at| format!("{at}")).collect();
    (!names.is_empty()).then(|| {
        decision(format!("MSI is off for every PCI bridge; the firmware had left it on for {}", names.join(", ")))
    })
}

/// There is no second UART at the usual ports.
#[must_use]
pub fn no_com2() -> ReportEntry {
    warning("no COM2: scripts cannot read counters or send commands")
}

/// The name of a NIC for which there is a driver, by PCI's vendor and device identifier; `None` for any other function.
#[must_use]
pub fn nic(vendor: u16, device: u16) -> Option<&'static str> {
    virtio_net::id::name(vendor, device)
        .or_else(|| x520::id::name(vendor, device))
        .or_else(|| igb::id::name(vendor, device))
}

/// The name of a NIC that is known and has no driver, and what a driver would need. `None`: it is not known.
#[must_use]
pub fn nic_without_driver(vendor: u16, device: u16) -> Option<(&'static str, &'static str)> {
    x520::id::needs(vendor, device).or_else(|| igb::id::needs(vendor, device))
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::ReportKind;

    #[test]
    fn io_apics_are_told_together_and_what_is_wrong_with_one_apart() {
        let masked = |were_open, smi, refused| Some(Masked { entries: 24, were_open, smi, refused });
        let said = io_apics(&[(0xfec0_0000, masked(2, 0, 0)), (0xfec0_1000, masked(1, 1, 0))]);
        let whole = "I/O APICs: 2 with 48 entries, all masked; the firmware had left 3 open; 1 send SMIs and are the firmware's";
        assert_eq!(said, [found(whole)]);
        let said = io_apics(&[(0xfec0_0000, masked(0, 0, 1)), (0xfec0_1000, None)]);
        assert_eq!(said[0], found("I/O APICs: 1 with 24 entries, all masked; the firmware had left 0 open"));
        assert_eq!(said[1], warning("1 entries of I/O APICs cannot be masked"));
        assert_eq!(said[2], warning("no I/O APIC answers at 0xfec01000, where ACPI's MADT has one"));
        assert_eq!(io_apics(&[]), []);
    }

    #[test]
    fn an_hpet_and_bridges_that_sent_interrupts_are_said() {
        let left = |were_on, messages, refused| Some(Silenced { timers: 3, were_on, messages, refused });
        for (silenced, kind, text) in [
            (None, ReportKind::Found, "no HPET answers"),
            (left(0, 0, 0), ReportKind::Found, "none of its 3 timers sends interrupts"),
            (left(2, 1, 0), ReportKind::Decision, "had left 2 of its 3 timers sending interrupts, 1 of them past"),
            (left(1, 0, 1), ReportKind::Warning, "cannot be switched off"),
        ] {
            let said = hpet(0xfed0_0000, silenced);
            assert!(said.kind == kind && said.text.contains(text), "{}", said.text);
        }
        assert_eq!(bridges_with_messages::<&str>([]), None);
        let said = bridges_with_messages(["00:01.0", "00:1c.0"]).expect("two");
        assert!(said.text.ends_with("left it on for 00:01.0, 00:1c.0"), "{}", said.text);
    }

    #[test]
    fn the_memory_map_has_three_ranges_a_line_and_what_was_taken_by_name() {
        let map = [(0x1000, 0x9f000), (0x10_0000, 0x8000_0000), (1 << 32, 3 << 31), (1 << 40, 1 << 41)];
        let taken = [("image".to_owned(), 0x20_0000, 0x30_0000), ("module a".to_owned(), 1 << 24, (1 << 24) + 5)];
        let lines = [
            "memory map: 0x1000 to 0x9f000, 0x100000 to 0x80000000, 0x100000000 to 0x180000000",
            "memory map: 0x10000000000 to 0x20000000000",
            "memory taken of it: 0x200000 to 0x300000 image, 0x1000000 to 0x1000005 module a",
            "memory that is free after that: 7 KiB",
        ];
        assert_eq!(memory_map(&map, &taken, 7 << 10), lines.map(decision));
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
        assert_eq!(configuration_space(&[])[0].kind, control::ReportKind::Fallback);
    }

    #[test]
    fn devices_of_other_segments_are_told_only_if_there_are_some() {
        assert_eq!(elsewhere::<&str>([]), []);
        let of = |at, vendor, device, class| Elsewhere { segment: 2, at, vendor, device, class };
        let said = elsewhere([
            of("01:00.0", 0x8086, 0x10fb, 0x02_0000),
            of("02:00.0", 0x8086, 0x1528, 0x02_0000),
            of("03:00.0", 0x144d, 0xa80a, 0x01_0802),
        ]);
        let begin = [
            "3 PCI devices are in segments other than 0",
            "82599 SFP+ at 01:00.0 of segment 2 (8086:10fb): sidecore drives devices of segment 0 only",
            "NVMe controller at 03:00.0 of segment 2 (144d:a80a): sidecore drives devices of segment 0 only",
        ];
        assert_eq!(said.len(), begin.len());
        assert!(said.iter().zip(begin).all(|(said, begin)| said.text.starts_with(begin)), "{said:?}");
    }

    #[test]
    fn the_nics_are_those_that_have_drivers() {
        assert!(nic(0x8086, 0x10fb).is_some_and(|name| name.contains("82599")), "the X520");
        assert!(nic(0x8086, 0x10c9).is_some_and(|name| name.contains("82576")), "QEMU's igb");
        assert_eq!(nic(0x1af4, 0x1041), nic(0x1af4, 0x1000));
        assert_eq!(nic(0x1af4, 0x1042), None, "a virtio disk");
        assert_eq!(nic(0x8086, 0x1528), None, "an X540");
        for (device, name) in [(0x1528, "Intel X540"), (0x1563, "Intel X550"), (0x1533, "Intel I210 or I211")] {
            assert_eq!(nic_without_driver(0x8086, device).map(|(name, _)| name), Some(name));
        }
        assert_eq!(nic_without_driver(0x8086, 0x10fb), None, "the X520 has one");
    }
}
