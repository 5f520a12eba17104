//! The serial ports: which are used, and why (`boot::console`).

use alloc::{format, vec, vec::Vec};
use core::fmt;

use boot::acpi::Spcr;
use boot::console::{Consoles, Source};
use control::{RECORD, ReportEntry};

use crate::{decision, fallback, found, warning};

/// A UART that is there: its first I/O port and its rate in baud.
pub type Found = (u16, u32);

/// People's serial port. `found`: the UART that was taken, which is COM1 if there is none where it was wanted.
#[must_use]
pub fn people(wanted: &Consoles, found: Option<Found>) -> Vec<ReportEntry> {
    let mut said = Vec::new();
    let why = match wanted.source {
        Source::CommandLine => ", as the command line says",
        Source::Spcr => ", as ACPI's SPCR says",
        Source::Usual => "",
        Source::Unusable(spcr) => {
            said.push(fallback(format!("{spcr}: people's console is COM1 instead")));
            ""
        }
    };
    said.push(match (wanted.people.map(|uart| uart.port), found) {
        (None, _) => decision("people have no serial port, as the command line says"),
        (Some(wanted), Some((port, rate))) if port == wanted => {
            decision(format!("people's console is the UART at port {port:#x} with {rate} baud{why}"))
        }
        (Some(wanted), Some((port, rate))) => warning(format!(
            "no UART answers at port {wanted:#x}{why}: people's console is the UART at port {port:#x} with {rate} baud"
        )),
        (Some(wanted), None) => warning(format!("no UART answers at port {wanted:#x}: people have no serial port")),
    });
    said
}

/// What ACPI's SPCR says, which the first lines of the boot could not read, because it is above 4 GiB. `None`: they did, or the port is the
/// one that people have.
#[must_use]
pub fn late(wanted: &Consoles, spcr: Spcr) -> Option<ReportEntry> {
    let unread = wanted.source == Source::Usual && spcr != Spcr::Off;
    let is_theirs = matches!(spcr, Spcr::Uart(uart) if wanted.people.is_some_and(|people| people.port == uart.port));
    (unread && !is_theirs).then(|| {
        fallback(format!("{spcr}; the table is above 4 GiB, where the first lines of the boot cannot read it: `console=` names the port instead"))
    })
}

/// Base class and sub-class of serial controllers (PCI Code and ID Assignment). A programming interface up to 6 is a UART of the 16550's
/// family.
const SERIAL: u32 = 0x07_00;
const LAST_16550: u32 = 6;

/// A serial port on PCI, such as that of Intel's AMT. `class`: the function's class code; `bar`: its base address register 0; `users`: the UARTs
/// that are used. Returns `None` for other functions, and for a UART that is used.
#[must_use]
pub fn on_pci(at: impl fmt::Display, class: u32, bar: u32, users: &[Option<Found>]) -> Option<ReportEntry> {
    const IO: u32 = 1;
    if class >> 8 != SERIAL || class & 0xff > LAST_16550 {
        return None;
    }
    let said = match (bar & IO != 0, bar & !3) {
        (true, 0) => format!("the serial port on PCI at {at} has no I/O ports: the firmware has given it none"),
        (true, port) if users.iter().flatten().any(|(used, _)| u32::from(*used) == port) => return None,
        (true, port) => format!(
            "the serial port on PCI at {at} has its registers at I/O port {port:#x}: it is not used; `console={port:#x}` on the command line \
             makes it people's console"
        ),
        (false, _) => format!(
            "the serial port on PCI at {at} has its registers in memory: sidecore drives those at I/O ports only"
        ),
    };
    Some(found(said))
}

/// Programs' serial port. `people`: people's. If both are the same, they share it. Nothing is said if none is wanted, or none is
/// there ([`no_com2`](crate::machine::no_com2) is said then).
#[must_use]
pub fn programs(people: Option<Found>, found: Option<Found>) -> Vec<ReportEntry> {
    found.map_or_else(Vec::new, |(port, rate)| {
        vec![decision(if found == people {
            format!("programs share people's console: each line of JSON there begins with the byte {RECORD:#x}")
        } else {
            format!("programs' console is the UART at port {port:#x} with {rate} baud")
        })]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use boot::console::{COM1, Uart, choose};
    use control::ReportKind;

    #[test]
    fn an_spcr_that_was_read_too_late_is_said_unless_its_port_is_peoples() {
        let uart = |port| Spcr::Uart(Uart { port, rate: None });
        let late = |line, early, spcr| late(&choose(line, early), spcr).map(|entry| entry.text.to_string());
        let said = late("", None, uart(0x2f8)).expect("another port");
        assert!(said.starts_with("ACPI's SPCR names the UART at port 0x2f8; the table is above 4 GiB"), "{said}");
        assert!(late("", None, Spcr::InMemory(0xfe00_0000)).is_some());
        for (line, early, spcr) in [
            ("", None, uart(COM1)),
            ("", None, Spcr::Off),
            ("", Some(uart(0x2f8)), uart(0x2f8)),
            ("", Some(Spcr::Type(3)), Spcr::Type(3)),
            ("console=com1", None, uart(0x2f8)),
        ] {
            assert_eq!(late(line, early, spcr), None, "{line} {early:?} {spcr:?}");
        }
    }

    #[test]
    fn a_serial_port_on_pci_is_named_unless_it_is_used() {
        let said = |class, bar, users: &[_]| on_pci("00:16.3", class, bar, users).map(|entry| entry.text.to_string());
        let unused = said(0x07_0002, 0xc051, &[None, Some((COM1, 9_600))]).expect("a 16550");
        assert!(
            unused.contains("at 00:16.3 has its registers at I/O port 0xc050") && unused.contains("`console=0xc050`"),
            "{unused}"
        );
        assert_eq!(said(0x07_0002, 0xc051, &[Some((0xc050, 115_200)), None]), None);
        assert!(said(0x07_0006, 1, &[]).is_some_and(|said| said.contains("has given it none")));
        assert!(said(0x07_0000, 0xfe00_0000, &[]).is_some_and(|said| said.contains("in memory")));
        for other in [0x07_0007, 0x07_0102, 0x02_0000] {
            assert_eq!(said(other, 0xc051, &[]), None, "{other:#x}");
        }
    }

    #[test]
    fn each_choice_has_its_sentence() {
        let said = |line, spcr, found| {
            let all = people(&choose(line, spcr), found);
            all.iter().map(|entry| (entry.kind, entry.text.to_string())).collect::<Vec<_>>()
        };
        let com1 = Some((COM1, 115_200));
        let spcr = Some(Spcr::Uart(Uart { port: 0x2f8, rate: None }));
        for (line, spcr, found, kind, text) in [
            ("", None, com1, ReportKind::Decision, "people's console is the UART at port 0x3f8 with 115200 baud"),
            ("", spcr, Some((0x2f8, 9_600)), ReportKind::Decision, "at port 0x2f8 with 9600 baud, as ACPI's SPCR says"),
            (
                "",
                spcr,
                com1,
                ReportKind::Warning,
                "no UART answers at port 0x2f8, as ACPI's SPCR says: people's console is the",
            ),
            (
                "console=com3",
                spcr,
                None,
                ReportKind::Warning,
                "no UART answers at port 0x3e8: people have no serial port",
            ),
            ("console=none", spcr, None, ReportKind::Decision, "people have no serial port, as the command line says"),
        ] {
            let said = said(line, spcr, found);
            assert!(matches!(said.as_slice(), [(k, t)] if *k == kind && t.contains(text)), "{line}: {said:?}");
        }
        let said = said("", Some(Spcr::InMemory(0xfe00_0000)), com1);
        assert_eq!(said.len(), 2);
        assert_eq!(said[0].0, ReportKind::Fallback);
        assert!(said[0].1.contains("in memory at 0xfe000000, which is not supported: people's console is COM1"));
        assert_eq!(programs(com1, None), []);
        assert!(programs(com1, Some((0x2f8, 115_200)))[0].text.contains("port 0x2f8"));
        assert!(
            programs(com1, com1)[0]
                .text
                .contains("share people's console: each line of JSON there begins with the byte 0x1e")
        );
    }
}
