//! The scenarios, by topic.

mod attackers;
mod block;
mod boot;
mod boots;
mod cable;
mod completions;
mod disk;
mod doctor;
mod exits;
mod fio;
mod firmware;
mod firmware_disk;
mod firmware_noise;
mod flood;
mod hostile;
mod interrupted;
mod isolation;
mod ixgbe;
mod life;
mod longest_tick;
mod longest_turn;
mod machine_checks;
mod machine_watchdog;
mod management;
mod management_attach;
mod management_debian;
mod management_keys;
mod maps;
mod media;
mod memory_map;
mod network;
mod network_boot;
mod nvme;
mod nvme_faults;
mod nvme_handover;
mod nvme_hangs;
mod nvme_late;
mod nvme_removal;
mod offloads;
mod operator_tools;
mod outside;
mod partitions;
mod pci;
mod policies;
mod power_cut;
mod probe;
mod probe_disk;
mod remapping;
mod requests;
mod rings;
mod screen;
mod seven;
mod shell;
mod smp;
mod steady_load;
mod top_seven;
mod trace;
mod trace_sampled;
mod trace_symbols;
mod two_guests;
mod uplink;
mod uplink_faults;
mod uplink_igb;
mod uplink_virtio;
mod vhost;
mod virtio_disk;
mod watchdog;
mod wire;

use crate::boot::Boot;
use crate::platform::Platform;

/// Every boot, in the order in which they run: the quick and basic ones first.
#[must_use]
pub fn all() -> Vec<Box<dyn Boot>> {
    let lists = [
        boot::list(),
        boots::list(),
        screen::list(),
        doctor::list(),
        two_guests::list(),
        network::list(),
        policies::list(),
        attackers::list(),
        requests::list(),
        rings::list(),
        uplink_igb::list(),
        uplink_virtio::list(),
        remapping::list(),
        uplink::list(),
        life::list(),
        management::list(),
        management_attach::list(),
        management_debian::list(),
        management_keys::list(),
        machine_checks::list(),
        watchdog::list(),
        machine_watchdog::list(),
        trace::list(),
        trace_symbols::list(),
        trace_sampled::list(),
        cable::list(),
        longest_tick::list(),
        longest_turn::list(),
        top_seven::list(),
        operator_tools::list(),
        maps::list(),
        memory_map::list(),
        block::list(),
        fio::list(),
        nvme::list(),
        pci::list(),
        nvme_faults::list(),
        nvme_hangs::list(),
        nvme_late::list(),
        nvme_removal::list(),
        nvme_handover::list(),
        power_cut::list(),
        virtio_disk::list(),
        partitions::list(),
        seven::list(),
        firmware::list(),
        firmware_disk::list(),
        firmware_noise::list(),
        isolation::list(),
        exits::list(),
        probe::list(),
        probe_disk::list(),
        hostile::list(),
        interrupted::list(),
        flood::list(),
        completions::list(),
        ixgbe::list(),
        vhost::list(),
        disk::list(),
        media::list(),
        network_boot::list(),
    ];
    lists.into_iter().flatten().collect()
}

/// The boots, their scenarios, and where each runs, as a table in Markdown. Brackets mark where a scenario takes turns.
#[must_use]
pub fn table() -> String {
    let mut rows = vec![["boot", "scenario", "where", "what it shows"].map(str::to_owned)];
    for boot in all() {
        let scenarios = boot.scenarios();
        let own = matches!(scenarios.as_slice(), [only] if only.name == boot.name());
        if !own {
            rows.push([boot.name(), "", "", boot.about()].map(str::to_owned));
        }
        for scenario in scenarios {
            let place = |platform: &Platform| {
                let turns = !platform.is_qemu() || scenario.in_turn;
                if turns { format!("({platform})") } else { platform.to_string() }
            };
            let places: Vec<String> = scenario.platforms.iter().map(place).collect();
            let boot = if own { "its own" } else { "" };
            rows.push([boot, scenario.name, &places.join(" "), scenario.about].map(str::to_owned));
        }
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths = [width(0), width(1), width(2)];
    let line = |row: &[String; 4]| {
        let [a, b, c, d] = row;
        format!("| {a:<0$} | {b:<1$} | {c:<2$} | {d} |\n", widths[0], widths[1], widths[2])
    };
    let mut text = line(&rows[0]);
    text += &format!("|{}|\n", [widths[0] + 2, widths[1] + 2, widths[2] + 2, 15].map(|n| "-".repeat(n)).join("|"));
    rows[1..].iter().for_each(|row| text += &line(row));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::{Launch, nowhere::Nowhere};
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_every_scenario_fails_without_an_emulator() {
        let mut names = BTreeSet::new();
        for boot in all() {
            for scenario in boot.scenarios() {
                assert!(names.insert(scenario.name), "two are called {}", scenario.name);
                let mut passed = Vec::new();
                let launcher = |_: &str| -> Box<dyn Launch> { Box::new(Nowhere) };
                boot.run(&launcher, &[scenario.name], false, &mut |ran| passed.push(ran.result.is_ok()));
                assert_eq!(passed, [false], "{}", scenario.name);
            }
        }
    }

    #[test]
    fn four_scenarios_run_in_nested_kvm_without_full_and_what_is_rare_somewhere_runs_there() {
        let all: Vec<_> = all().iter().flat_map(|boot| boot.scenarios()).collect();
        assert!(all.iter().all(|scenario| scenario.rare.iter().all(|rare| scenario.platforms.contains(rare))));
        let nested = |scenario: &&crate::scenario::Scenario| {
            scenario.platforms.contains(&Platform::Nested) && !scenario.rare.contains(&Platform::Nested)
        };
        let names: Vec<_> = all.iter().filter(nested).map(|scenario| scenario.name).collect();
        assert_eq!(names, ["boot-report", "two-guests-ping", "eli-traffic", "eli-steady"]);
    }

    #[test]
    fn what_takes_turns_somewhere_or_is_longer_there_runs_there() {
        for scenario in all().iter().flat_map(|boot| boot.scenarios()) {
            let turns: &[Platform] = if scenario.in_turn { &[Platform::Qemu] } else { &[] };
            let named = [turns, scenario.longer, scenario.checked].concat();
            assert!(named.iter().all(|platform| scenario.platforms.contains(platform)), "{}", scenario.name);
        }
    }

    #[test]
    fn the_readme_has_the_table() {
        assert!(include_str!("../README.md").contains(&table()), "`cargo mk e2e --list` prints the table");
    }
}
