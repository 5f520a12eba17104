//! Uplinks in whole files.

use crate::{Gateway, MAX_UPLINKS, Mac, Optics, Parsed, PciDevice, Steering, parse};

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
    let ports =
        "[[port]]\ndevice = '0000:02:00.1'\nname = 'lan'\n[[port]]\ndevice = 'first'\n[[port]]\ndevice = '03:00.0'\n";
    let nets =
        "[[guest.net]]\nport = '03:00.0'\n[[guest.net]]\nport = 'lan'\n[[guest.net]]\n[[guest.net]]\nport = 'first'\n";
    let Parsed { config, mistakes, .. } = parse("f", format!("{ports}{MINIMAL}{nets}"));
    assert_eq!(mistakes, []);
    let named: Vec<_> = config.uplinks.iter().map(|port| (port.name.as_str(), port.device)).collect();
    let at = |bus, function| Some(PciDevice::At(bus, 0, function));
    assert_eq!(named, [("lan", at(2, 1)), ("first", Some(PciDevice::First)), ("03:00.0", at(3, 0))]);
    let chosen: Vec<_> = config.guests[0].nets().map(|net| net.uplink).collect();
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
        let Parsed { config, mistakes, .. } = parse("f", format!("[[port]]\ndevice = 'first'\n{line}\n{MINIMAL}"));
        assert_eq!((mistakes, config.uplinks[0].steering), (Vec::new(), steering));
    }
}

#[test]
fn a_nic_takes_the_optics_that_its_eeprom_allows_unless_the_file_says_any() {
    for (line, optics) in
        [("", Optics::Allowed), ("optics = 'allowed'", Optics::Allowed), ("optics = 'any'", Optics::Any)]
    {
        let Parsed { config, mistakes, .. } = parse("f", format!("[[port]]\ndevice = 'first'\n{line}\n{MINIMAL}"));
        assert_eq!((mistakes, config.uplinks[0].optics), (Vec::new(), optics));
        assert_eq!(crate::NicNeeds::of(&config.uplinks[0], 1, 1514).optics, optics);
    }
}

#[test]
fn a_gateway_has_addresses_of_both_kinds_and_no_guest_has_them() {
    let port = "[[port]]\ndevice = 'first'\n";
    let gateway = "gateway = ['10.0.0.1', '02:00:00:00:00:01', 'fe80::1']\n";
    let Parsed { config, mistakes, .. } = parse("f", format!("{port}{gateway}{MINIMAL}"));
    let addresses = vec!["10.0.0.1".parse().unwrap(), "fe80::1".parse().unwrap()];
    let wanted = Gateway { addresses, macs: vec![Mac([2, 0, 0, 0, 0, 1])] };
    assert_eq!((mistakes, &config.uplinks[0].gateway), (vec![], &wanted));
    for (line, expected) in [
        ("gateway = '10.0.0.1'", "`gateway`"),
        ("gateway = ['10.0.0']", "f:3:12: '10.0.0': `gateway` is a list of IP and MAC addresses"),
        ("gateway = [1]", "`gateway` is a list of IP and MAC addresses"),
        ("gateway = ['224.0.0.1']", "expected an address of one machine's"),
        ("gateway = ['03:00:00:00:00:01']", "expected a unicast address"),
        ("gateway = ['10.0.0.1', '10.0.0.1']", "it stands twice in `gateway`"),
    ] {
        let wrong = explained(&format!("{port}{line}\n{MINIMAL}"));
        assert!(wrong.contains(expected), "{line}: {wrong}");
    }
    for line in ["mac = '02:00:00:00:00:01'", "static = ['02:00:00:00:00:01']"] {
        let wrong = explained(&format!("{port}{gateway}{MINIMAL}[[guest.net]]\n{line}\n"));
        assert!(wrong.contains("02:00:00:00:00:01 is the address of a gateway"), "{wrong}");
    }
}

#[test]
fn mistakes_about_several_uplinks_are_explained_and_shift_no_guest_to_another() {
    let first = "[[port]]\ndevice = '01:00.0'\nname = 'lan'\n";
    for (rest, expected) in [
        ("device = '01:00.0'", "f:5:10: '01:00.0': the port in line 2 has this device; expected one of its own"),
        ("device = '0000:01:00.0'", "f:5:10: '0000:01:00.0': the port in line 2 has this device"),
        ("device = 'first'\nname = 'lan'", "f:6:8: 'lan': the port in line 2 has this name; expected one of its own"),
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
        let devices: Vec<_> = parsed.config.uplinks.iter().map(|port| port.device.is_some()).collect();
        assert_eq!(devices, [true, false, true], "{rest}");
        let chosen: Vec<_> = parsed.config.guests[0].nets().map(|net| net.uplink).collect();
        assert_eq!(chosen, [Some(2), Some(0)], "{rest}");
    }
    let five: String = (1..=6).map(|bus| format!("[[port]]\ndevice = '0{bus}:00.0'\n")).collect();
    let parsed = parse("f", format!("{five}{MINIMAL}"));
    assert_eq!((parsed.mistakes.len(), parsed.config.uplinks.len()), (1, MAX_UPLINKS));
    assert_eq!(parsed.mistakes[0].line, 9);
    assert!(parsed.mistakes[0].message.contains("at most 4 uplinks"), "{}", parsed.mistakes[0]);
    let wrong = explained(&format!("{first}{MINIMAL}[[guest.net]]\nport = 'lam'\n"));
    assert!(wrong.contains("no [[port]] has this name; did you mean \"lan\"?"), "{wrong}");
    let wrong = explained(&format!("{first}{MINIMAL}[[guest.net]]\nport = 'outside'\n"));
    assert!(wrong.contains("no [[port]] has this name; there are: lan"), "{wrong}");
}
