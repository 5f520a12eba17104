//! Reads `[management]`, and gives the guest that it names its ports.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use control::Permissions;
use toml::de::DeTable;

use crate::config::Config;
use crate::guest::{Console, GuestDevice, Restart};
use crate::limits::{MAX_CONSOLE_PORTS, MAX_DEVICES};
use crate::management::{CONTROL_PORT, Management, TRACE_PORT};
use crate::mistake::{Mistake, Source};
use crate::section::Section;

/// Reads `[management]`. The guests are read later.
pub(crate) fn read(source: Source<'_>, table: &DeTable<'_>, span: Range<usize>) -> (Option<Management>, Vec<Mistake>) {
    let mut section = Section::new(source, table, span, "[management]", &["guest", "allow"]);
    let before = section.mistakes.len();
    let guest = section.string("guest", "the name of a guest");
    if guest.is_none() && section.mistakes.len() == before {
        let place = section.place();
        section.complain_at(&place, "[management] needs `guest`: the name of a guest");
    }
    // A mistake does not open what somebody wanted to close.
    let allow = section.permissions("allow").unwrap_or(Permissions::VIEW);
    let management = guest.map(|(guest, place)| Management { guest: guest.into(), allow, place });
    (management, section.mistakes)
}

/// Gives the management guest its ports, and has it start again whenever it ends. If that is not possible there is no
/// management. `named`: names of all guests of the file, also of those with mistakes.
pub(crate) fn apply(config: &mut Config, named: &[&str]) -> Option<Mistake> {
    let management = config.management.take()?;
    let Some(guest) = config.guests.iter_mut().find(|guest| guest.name == management.guest) else {
        if named.contains(&&*management.guest) {
            // The mistake in its entry is told.
            return None;
        }
        let names: Vec<&str> = config.guests.iter().map(|guest| &*guest.name).collect();
        let message = match control::nearest(&management.guest, names.iter().copied()) {
            Some(meant) => format!("no guest has this name; did you mean \"{meant}\"?"),
            None if names.is_empty() => "no guest has this name; there is none".into(),
            None => format!("no guest has this name; there are: {}", names.join(", ")),
        };
        return Some(Mistake::new(&config.file, &management.place, message));
    };
    let is_full = guest.devices.len() >= MAX_DEVICES;
    let console = guest.devices.iter_mut().find_map(|device| match device {
        GuestDevice::Console(console) => Some(console),
        _ => None,
    });
    let ports = [CONTROL_PORT, TRACE_PORT].map(String::from);
    match console {
        Some(console) if console.ports.is_empty() => console.ports.extend(ports),
        Some(console) => {
            let message = format!(
                "expected no `ports`: it is the management guest, and {CONTROL_PORT} and {TRACE_PORT} are the \
                 {MAX_CONSOLE_PORTS} that a console device can have"
            );
            return Some(Mistake::new(&config.file, &console.place, message));
        }
        None if !is_full => {
            guest.devices.push(GuestDevice::Console(Console { ports: ports.into(), place: management.place.clone() }));
        }
        None => {
            let message =
                format!("this guest has {MAX_DEVICES} devices; expected room for the console device it needs");
            return Some(Mistake::new(&config.file, &management.place, message));
        }
    }
    guest.restart = Restart::Always;
    config.management = Some(management);
    None
}

#[cfg(test)]
mod tests {
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
}
