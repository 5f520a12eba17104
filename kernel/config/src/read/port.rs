//! `[[port]]`: ways out of the machine.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::Range;

use toml::de::DeTable;

use crate::mistake::{Mistake, Source};
use crate::section::Section;
use crate::stage::Stages;
use crate::{Place, Rules, guest, rules};

/// Which PCI function drives an uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PciDevice {
    /// The first for which there is a driver.
    First,
    /// Bus, device (0 to 31) and function (0 to 7).
    At(u8, u8, u8),
}

impl PciDevice {
    /// `first`, or an address as `lspci` writes it: `01:00.0`, with or without segment 0 before it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text == "first" {
            return Some(Self::First);
        }
        let address = text.strip_prefix("0000:").unwrap_or(text);
        let (bus, rest) = address.split_once(':')?;
        let (device, function) = rest.split_once('.')?;
        let number = |text: &str, digits: usize, limit: u8| {
            let hexadecimal = text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
            u8::from_str_radix(text, 16).ok().filter(|&n| hexadecimal && n <= limit)
        };
        Some(Self::At(number(bus, 2, 255)?, number(device, 2, 31)?, number(function, 1, 7)?))
    }
}

impl core::fmt::Display for PciDevice {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::First => f.write_str("first"),
            Self::At(bus, device, function) => write!(f, "{bus:02x}:{device:02x}.{function}"),
        }
    }
}

/// What decides by which of its receive queues a NIC hands over a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Steering {
    /// Nothing: there is one queue.
    #[default]
    None,
    /// A hash of its addresses and ports.
    Flows,
    /// Its destination: each guest's device has a queue of its own.
    Addresses,
}

/// `[[port]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// What a guest's `port` calls it; its device, unless the file says otherwise.
    pub name: String,
    /// Its NIC. None: there is a mistake in its entry, and nothing passes.
    pub device: Option<PciDevice>,
    /// What decides among its NIC's receive queues.
    pub steering: Steering,
    /// What its frames may do.
    pub rules: Rules,
    /// Where the file says so.
    pub place: Place,
}

/// Reads a `[[port]]`; `before` are those before it. One with a mistake lets nothing through, rather than everything or what
/// the next one would.
pub(crate) fn read(
    source: Source<'_>,
    table: &DeTable<'_>,
    span: Range<usize>,
    before: &[Port],
    stages: &Stages,
) -> (Port, Vec<Mistake>) {
    let keys: Vec<&str> = ["device", "name", "steering"].into_iter().chain(rules::KEYS).collect();
    let mut section = Section::new(source, table, span, "[[port]]", &keys);
    let place = section.at("device");
    let device = read_device(&mut section, before);
    let name = read_name(&mut section, device, before);
    let words = [("none", Steering::None), ("flows", Steering::Flows), ("addresses", Steering::Addresses)];
    let steering = section.word("steering", &words).unwrap_or_default();
    let rules = rules::read(&mut section, stages);
    let device = device.filter(|_| section.mistakes.is_empty());
    (Port { name: name.unwrap_or_default(), device, steering, rules, place }, section.mistakes)
}

fn read_device(section: &mut Section<'_, '_>, before: &[Port]) -> Option<PciDevice> {
    let expected = "\"first\" or a PCI address like \"01:00.0\"";
    let Some((text, place)) = section.string("device", expected) else {
        if !section.has("device") {
            let place = section.place();
            section.complain_at(&place, format!("`device` is missing: {expected}"));
        }
        return None;
    };
    let Some(device) = PciDevice::parse(text) else {
        section.complain_at(&place, format!("expected {expected}"));
        return None;
    };
    if let Some(other) = before.iter().find(|port| port.device == Some(device)) {
        let line = other.place.line;
        section.complain_at(&place, format!("the port in line {line} has this device; expected one of its own"));
        return None;
    }
    Some(device)
}

/// None: it has none that can be used.
fn read_name(section: &mut Section<'_, '_>, device: Option<PciDevice>, before: &[Port]) -> Option<String> {
    let expected = "a text of 1 to 32 letters, digits, `-`, `_` and `.`";
    let (name, place) = match section.string("name", expected) {
        Some((name, place)) if guest::is_name(name) => (String::from(name), place),
        Some((_, place)) => {
            section.complain_at(&place, format!("`name` must be {expected}"));
            return None;
        }
        None => (device?.to_string(), section.at("device")),
    };
    if let Some(other) = before.iter().find(|port| port.name == name) {
        let line = other.place.line;
        section.complain_at(&place, format!("the port in line {line} has this name; expected one of its own"));
        return None;
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::{PciDevice, Steering};
    use crate::{MAX_UPLINKS, Parsed, parse};

    const MINIMAL: &str = "[[guest]]\nname = 'a'\nmemory = '64M'\nkernel = 'k'\n";

    /// The one mistake.
    fn explained(text: &str) -> String {
        let all = parse("f", text).explain();
        assert_eq!(all.len(), 1, "{all:#?}");
        all[0].clone()
    }

    #[test]
    fn addresses_are_those_that_lspci_writes() {
        assert_eq!(PciDevice::parse("first"), Some(PciDevice::First));
        for text in ["01:1f.7", "0000:01:1f.7"] {
            assert_eq!(PciDevice::parse(text), Some(PciDevice::At(1, 31, 7)));
        }
        for bad in ["", "First", "1:00.0", "01:20.0", "01:00.8", "01:00", "0001:01:00.0", "+1:00.0", "01:00.0 "] {
            assert_eq!(PciDevice::parse(bad), None, "{bad}");
        }
        assert_eq!(PciDevice::At(1, 0, 2).to_string(), "01:00.2");
    }

    #[test]
    fn several_uplinks_each_have_a_device_and_a_name_and_guests_choose_by_that() {
        let ports = "[[port]]\ndevice = '0000:02:00.1'\nname = 'lan'\n[[port]]\ndevice = 'first'\n[[port]]\ndevice = '03:00.0'\n";
        let nets = "[[guest.net]]\nport = '03:00.0'\n[[guest.net]]\nport = 'lan'\n[[guest.net]]\n[[guest.net]]\nport = 'first'\n";
        let Parsed { config, mistakes } = parse("f", format!("{ports}{MINIMAL}{nets}"));
        assert_eq!(mistakes, []);
        let named: Vec<_> = config.ports.iter().map(|port| (port.name.as_str(), port.device)).collect();
        let at = |bus, function| Some(PciDevice::At(bus, 0, function));
        assert_eq!(named, [("lan", at(2, 1)), ("first", Some(PciDevice::First)), ("03:00.0", at(3, 0))]);
        let chosen: Vec<_> = config.guests[0].nets.iter().map(|net| net.port).collect();
        assert_eq!(chosen, [Some(2), Some(0), None, Some(1)]);
    }

    #[test]
    fn a_nic_has_one_queue_unless_the_file_says_how_to_choose_among_several() {
        for (line, steering) in [
            ("", Steering::None),
            ("steering = 'none'", Steering::None),
            ("steering = 'flows'", Steering::Flows),
            ("steering = 'addresses'", Steering::Addresses),
        ] {
            let Parsed { config, mistakes } = parse("f", format!("[[port]]\ndevice = 'first'\n{line}\n{MINIMAL}"));
            assert_eq!((mistakes, config.ports[0].steering), (Vec::new(), steering));
        }
    }

    #[test]
    fn mistakes_about_several_uplinks_are_explained_and_shift_no_guest_to_another() {
        let first = "[[port]]\ndevice = '01:00.0'\nname = 'lan'\n";
        for (rest, expected) in [
            ("device = '01:00.0'", "f:5:10: '01:00.0': the port in line 2 has this device; expected one of its own"),
            ("device = '0000:01:00.0'", "f:5:10: '0000:01:00.0': the port in line 2 has this device"),
            (
                "device = 'first'\nname = 'lan'",
                "f:6:8: 'lan': the port in line 2 has this name; expected one of its own",
            ),
            ("device = 'first'\nname = 'l n'", "`name` must be a text of 1 to 32"),
            ("name = 'dmz'", "`device` is missing"),
            (
                "device = 'first'\nsteering = 'address'",
                "f:6:12: 'address': `steering` of [[port]] must be one of \"none\", \"flows\", \"addresses\"; did you mean",
            ),
            (
                "device = 'first'\nsteering = 4",
                "`steering` of [[port]] is one of \"none\", \"flows\", \"addresses\", not of type",
            ),
        ] {
            let last = "[[port]]\ndevice = '09:00.0'\nname = 'last'\n";
            let nets = "[[guest.net]]\nport = 'last'\n[[guest.net]]\nport = 'lan'\n";
            let parsed = parse("f", format!("{first}[[port]]\n{rest}\n{last}{MINIMAL}{nets}"));
            let [mistake] = &parsed.explain()[..] else { panic!("{rest}: {parsed:#?}") };
            assert!(mistake.contains(expected), "{mistake}");
            let devices: Vec<_> = parsed.config.ports.iter().map(|port| port.device.is_some()).collect();
            assert_eq!(devices, [true, false, true], "{rest}");
            let chosen: Vec<_> = parsed.config.guests[0].nets.iter().map(|net| net.port).collect();
            assert_eq!(chosen, [Some(2), Some(0)], "{rest}");
        }
        let five: String = (1..=6).map(|bus| format!("[[port]]\ndevice = '0{bus}:00.0'\n")).collect();
        let parsed = parse("f", format!("{five}{MINIMAL}"));
        assert_eq!((parsed.mistakes.len(), parsed.config.ports.len()), (1, MAX_UPLINKS));
        assert_eq!(parsed.mistakes[0].line, 9);
        assert!(parsed.mistakes[0].message.contains("at most 4 uplinks"), "{}", parsed.mistakes[0]);
        let wrong = explained(&format!("{first}{MINIMAL}[[guest.net]]\nport = 'lam'\n"));
        assert!(wrong.contains("no [[port]] has this name; did you mean \"lan\"?"), "{wrong}");
        let wrong = explained(&format!("{first}{MINIMAL}[[guest.net]]\nport = 'outside'\n"));
        assert!(wrong.contains("no [[port]] has this name; there are: lan"), "{wrong}");
    }
}
