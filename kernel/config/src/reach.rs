//! Whether the operator still reaches a machine that runs a configuration with mistakes.

use alloc::format;
use alloc::string::String;

use crate::{Config, Net, Parsed, Plan};

/// Why the operator of a machine in a rack does not reach it with this configuration, as far as it is checked: nothing of the file
/// could be read, or it has `[management]`, and no guest that manages starts. `None`: he does, or the file wants nobody to.
#[must_use]
pub fn out_of_reach(parsed: &Parsed) -> Option<String> {
    let Parsed { config, is_read, wants_management, .. } = parsed;
    if !is_read {
        return Some(format!("{} cannot be read", config.file));
    }
    let manages = config.management.as_ref().is_some_and(|management| {
        // A guest with a mistake is left out.
        config.guests.iter().any(|guest| guest.name == management.guest)
    });
    (*wants_management && !manages).then(|| does_not_start(config))
}

/// The same of a configuration that is checked against the machine, as it will run: its management guest is left out, or has no core,
/// or the only NICs of its network cannot be used. `has_nic`: whether the uplink of that number has its NIC.
#[must_use]
pub fn out_of_reach_here(config: &Config, plan: &Plan, has_nic: impl Fn(usize) -> bool) -> Option<String> {
    let management = config.management.as_ref()?;
    let runs = |number: &usize| plan.guests.get(*number).is_some_and(|cores| !cores.is_empty());
    let number = config.guests.iter().position(|guest| guest.name == management.guest).filter(runs);
    let Some(guest) = number.and_then(|number| config.guests.get(number)) else {
        return Some(does_not_start(config));
    };
    // A device without a name for its uplink may use any of them.
    let is_connected = |net: &Net| match net.uplink {
        Some(uplink) => has_nic(uplink),
        None => config.uplinks.is_empty() || (0..config.uplinks.len()).any(&has_nic),
    };
    let cut_off = guest.nets().next().is_some() && !guest.nets().any(is_connected);
    cut_off.then(|| format!("the management guest of {} has no NIC for its network", config.file))
}

fn does_not_start(config: &Config) -> String {
    format!("the management guest of {} does not start", config.file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check_modules, parse};

    const MANAGED: &str = "[management]\nguest = 'm'\n[[guest]]\nname = 'm'\nmemory = '64M'\nkernel = 'k'\n";

    fn why(text: &str) -> String {
        let mut parsed = parse("f", text);
        parsed.mistakes.extend(check_modules(&mut parsed.config, &["k"]));
        assert!(!parsed.mistakes.is_empty(), "{text}");
        out_of_reach(&parsed).unwrap_or_default()
    }

    #[test]
    fn a_file_of_which_nothing_is_read_leaves_nobody() {
        assert_eq!(why("[[guest"), "f cannot be read");
        assert_eq!(why(&"#".repeat(crate::MAX_FILE + 1)), "f cannot be read");
        let parsed = parse("f", b"\xff");
        assert_eq!(out_of_reach(&parsed).as_deref(), Some("f cannot be read"));
    }

    #[test]
    fn a_management_guest_that_is_left_out_leaves_nobody() {
        for (from, to) in [
            ("memory = '64M'", "memory = '1X'"),
            ("guest = 'm'", "guest = 'n'"),
            ("guest = 'm'", "gest = 'm'"),
            ("kernel = 'k'", "kernel = 'none'"),
        ] {
            assert_eq!(why(&MANAGED.replacen(from, to, 1)), "the management guest of f does not start", "{to}");
        }
    }

    #[test]
    fn what_this_machine_lacks_matters_too() {
        let text = |rest: &str| {
            format!("{MANAGED}[[guest.net]]\nmac = '52:54:00:00:00:09'\n{rest}[[port]]\ndevice = 'first'\n")
        };
        let here = |text: &str, cores: &[u32], has_nic: bool| {
            let parsed = parse("f", text);
            assert_eq!(parsed.mistakes.len(), 0, "{:?}", parsed.mistakes);
            let plan = Plan { guests: vec![cores.to_vec()], ..Plan::default() };
            out_of_reach_here(&parsed.config, &plan, |_| has_nic).unwrap_or_default()
        };
        assert_eq!(here(&text(""), &[2], true), "");
        assert_eq!(here(&text(""), &[2], false), "the management guest of f has no NIC for its network");
        assert_eq!(here(&text(""), &[], true), "the management guest of f does not start");
        assert_eq!(here(MANAGED, &[2], false), "", "it is to have no network, so it is reached otherwise");
        assert_eq!(here("[[guest]]\nname = 'a'\nmemory = '64M'\nkernel = 'k'\n", &[], false), "");
    }

    #[test]
    fn other_mistakes_do_not_matter() {
        let other = "[[guest]]\nname = 'a'\nmemory = '1X'\nkernel = 'k'\n";
        assert_eq!(why(&format!("{MANAGED}{other}")), "");
        assert_eq!(why(other), "", "nobody is to manage it over the network");
        assert_eq!(out_of_reach(&parse("f", MANAGED)), None);
        assert_eq!(out_of_reach(&parse("f", "")), None);
    }
}
