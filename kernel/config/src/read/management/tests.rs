//! `[management]`: who gets the ports, and what is said about mistakes.

use super::*;
use crate::parse;

const GUEST: &str = "[[guest]]\nname = 'm'\nmemory = '64M'\nkernel = 'k'\n";

fn one(text: &str) -> String {
    let parsed = parse("f", text);
    assert_eq!(parsed.mistakes.len(), 1, "{:?}", parsed.mistakes);
    assert_eq!(parsed.config.management, None, "it is off with a mistake");
    parsed.mistakes[0].to_string()
}

fn ports(config: &Config, guest: usize) -> Vec<&str> {
    let consoles = config.guests[guest].devices.iter().filter_map(|device| match device {
        GuestDevice::Console(console) => Some(console),
        _ => None,
    });
    consoles.flat_map(|console| &console.ports).map(|port| &**port).collect()
}

#[test]
fn the_guest_gets_the_ports_and_starts_again_whenever_it_ends() {
    let other = GUEST.replace("'m'", "'a'");
    for (device, devices) in [("", 1), ("[[guest.console]]\n", 1), ("[[guest.entropy]]\n", 2)] {
        let parsed = parse("f", format!("[management]\nguest = 'm'\n{other}{GUEST}{device}"));
        assert_eq!(parsed.mistakes, []);
        assert_eq!(parsed.config.management.as_ref().unwrap().guest, "m");
        assert_eq!(ports(&parsed.config, 1), [CONTROL_PORT, TRACE_PORT]);
        assert_eq!(parsed.config.guests[1].devices.len(), devices);
        assert_eq!(parsed.config.guests[1].restart, Restart::Always);
        assert_eq!((ports(&parsed.config, 0).len(), parsed.config.guests[0].restart), (0, Restart::Never));
    }
}

#[test]
fn the_guest_may_ask_for_what_the_file_allows() {
    let allow = |text: &str| {
        let parsed = parse("f", format!("[management]\nguest = 'm'\n{text}{GUEST}"));
        (parsed.config.management.unwrap().allow, parsed.mistakes.first().map(|mistake| mistake.line))
    };
    assert_eq!(allow(""), (Permissions::VIEW, None));
    let two = Permissions::VIEW | Permissions::OPERATE;
    assert_eq!(allow("allow = ['view', 'operate']\n"), (two, None));
    assert_eq!(allow("allow = []\n"), (Permissions::empty(), None));
    assert_eq!(allow("allow = ['operate', 'root']\n"), (Permissions::VIEW, Some(3)));
    assert_eq!(allow("allow = 'operate'\n"), (Permissions::VIEW, Some(3)));
}

#[test]
fn without_the_table_nobody_has_the_ports() {
    let config = parse("f", format!("{GUEST}[[guest.console]]\n")).config;
    assert_eq!((config.management.is_none(), ports(&config, 0).len()), (true, 0));
}

#[test]
fn no_guest_may_name_the_ports() {
    for name in [CONTROL_PORT, TRACE_PORT] {
        let said = one(&format!("{GUEST}[[guest.console]]\nports = ['{name}']\n"));
        assert!(said.starts_with(&format!("f:6:10: '{name}': only the guest of [management]")), "{said}");
        assert!(said.ends_with("(guest `m` does not start)"), "{said}");
    }
}

#[test]
fn mistakes_name_line_and_value() {
    let names = "f:2:9: 'n': no guest has this name; did you mean \"m\"?";
    assert_eq!(one(&format!("[management]\nguest = 'n'\n{GUEST}")), names);
    let none = "f:2:9: 'xyz': no guest has this name; there is none";
    assert_eq!(one("[management]\nguest = 'xyz'\n"), none);
    let needs = "f:1:1: [management]: [management] needs `guest`: the name of a guest";
    assert_eq!(one(&format!("[management]\n{GUEST}")), needs);
    let kind = "f:2:9: 5: `guest` of [management] is the name of a guest, not of type integer";
    assert_eq!(one(&format!("[management]\nguest = 5\n{GUEST}")), kind);
    let parsed = parse("f", format!("[management]\nguest = 'm'\nallows = 1\n{GUEST}"));
    assert!(parsed.explain().concat().starts_with("f:3:1: allows: no such key in [management]"), "{parsed:?}");
    let said = one(&format!("[management]\nguest = 'm'\n{GUEST}[[guest.console]]\nports = ['x']\n"));
    assert!(said.starts_with("f:7:1: ") && said.contains("expected no `ports`"), "{said}");
    let full = format!("[management]\nguest = 'm'\n{GUEST}{}", "[[guest.net]]\n".repeat(MAX_DEVICES));
    assert!(one(&full).starts_with("f:2:9: 'm': this guest has 8 devices"), "{}", one(&full));
}

#[test]
fn a_guest_that_is_left_out_for_a_mistake_is_not_complained_about_twice() {
    let said = one("[management]\nguest = 'm'\n[[guest]]\nname = 'm'\nmemory = '1X'\nkernel = 'k'\n");
    assert!(said.contains("expected a size"), "{said}");
}
