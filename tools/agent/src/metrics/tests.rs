//! Tests of the metrics' names and values, and of the dashboard and alerts that use them.

use std::collections::BTreeSet;

use control::{Block, ExitCount, Port, Uplink, VcpuCounters};

use super::*;

fn guest(name: &str, devices: usize) -> control::Guest {
    let exits = |reason: String| ExitCount { reason: reason.into(), count: 3, cycles: 1_000 };
    let mut exits: Vec<ExitCount> = (0..50).map(|number| exits(format!("reason-{number}"))).collect();
    exits.push(ExitCount { reason: "cpuid".into(), count: 7, cycles: 0 });
    control::Guest {
        name: name.into(),
        state: GuestState::Running,
        starts: 2,
        memory: 64 << 20,
        kept: 5,
        vcpus: vec![VcpuCounters { core: 1, exits }; devices],
        ports: vec![Port { rx_packets: 10, ..Port::default() }; devices],
        blocks: vec![Block::default(); devices],
        ..control::Guest::default()
    }
}

fn reading() -> Counters {
    let kind = |n: usize| format!("kind{n}{}", if n == 0 { "" } else { "_bytes" });
    let kinds = |n: usize| (0..n).map(|n| Count { kind: kind(n).into(), count: 1 }).collect();
    let uplink = |name: &str| Uplink {
        name: name.into(),
        device: String::new(),
        port: String::new(),
        counts: kinds(90),
        stages: vec![],
    };
    let engine = control::Engine {
        busy_cycles: 5_000_000,
        speed_permille: Some(1523),
        throttled_seconds: 3,
        smis: Some(17),
        uplinks: ["a", "b", "c", "d"].map(uplink).into(),
        ..control::Engine::default()
    };
    Counters {
        tsc: 4_000_000_000,
        tsc_hz: 2_000_000_000,
        guests: vec![guest("a", 1), guest("x\"\\\n", 8)],
        engines: vec![engine],
        ..Counters::default()
    }
}

fn lines(text: &str, label: &str) -> Vec<String> {
    text.lines().filter(|line| !line.starts_with('#') && line.contains(label)).map(String::from).collect()
}

#[test]
fn values_have_base_units_and_stable_names() {
    let text = write(&reading(), Format::Text);
    for line in [
        "sidecore_uptime_seconds 2.0",
        "sidecore_guest_memory_bytes{guest=\"a\"} 67108864",
        "sidecore_guest_exits_total{guest=\"a\",reason=\"cpuid\"} 7",
        "sidecore_guest_exits_total{guest=\"a\",reason=\"other\"} 150",
        "sidecore_guest_network_packets_total{guest=\"x\\\"\\\\\\n\",direction=\"rx\"} 80",
        "sidecore_engine_seconds_total{engine=\"0\",mode=\"busy\"} 0.0025",
        "sidecore_engine_speed_ratio{engine=\"0\"} 1.523",
        "sidecore_engine_throttled_seconds_total{engine=\"0\"} 3.0",
        "sidecore_engine_smis_total{engine=\"0\"} 17",
    ] {
        assert!(lines(&text, "").contains(&line.to_owned()), "{line}\n{text}");
    }
}

#[test]
fn the_number_of_series_is_bounded_and_does_not_depend_on_devices() {
    let text = write(&reading(), Format::Text);
    let (small, large) = (lines(&text, "guest=\"a\"").len(), lines(&text, "guest=\"x").len());
    assert!(small == large && small <= MAX_GUEST_SERIES, "{small} {large}");
    let engine = lines(&text, "engine=\"0\"").len();
    assert!(engine <= MAX_ENGINE_SERIES && engine > 150, "{engine}");
}

#[test]
fn each_family_has_help_and_type_once() {
    let text = write(&reading(), Format::Text);
    let mut families: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    let all = families.len();
    families.dedup();
    assert_eq!(families.len(), all);
    assert_eq!(text.lines().filter(|line| line.starts_with("# HELP ")).count(), all);
}

#[test]
fn a_frequency_of_nothing_divides_nothing() {
    let text = write(&Counters::default(), Format::Text);
    assert!(lines(&text, "sidecore_uptime_seconds").concat().ends_with(" 0.0"));
}

#[test]
fn both_formats_have_the_same_series() {
    let values = |format| -> Vec<String> {
        let text = write(&reading(), format);
        text.lines().filter(|line| !line.starts_with('#')).map(String::from).collect()
    };
    assert!(values(Format::Text) == values(Format::OpenMetrics) && values(Format::Text).len() > 200);
}

#[test]
fn drops_are_told_by_cause() {
    let mut reading = reading();
    let drop = |kind: &'static str, count| Count { kind: kind.into(), count };
    let port = &mut reading.guests[0].ports[0];
    port.drops = vec![drop("rx_no_buffer", 1), drop("tx_limited", 2), drop("rx_denied", 3), drop("tx_cut_short", 4)];
    let text = write(&reading, Format::Text);
    let found = lines(&text, "network_drops_total{guest=\"a\"");
    let series = |cause: &str, count: u64| {
        format!("sidecore_guest_network_drops_total{{guest=\"a\",cause=\"{cause}\"}} {count}")
    };
    let expected = [("no-buffer", 1), ("rules", 5), ("malformed", 0), ("no-destination", 0), ("other", 4)];
    assert_eq!(found, expected.map(|(cause, count)| series(cause, count)));
}

/// The names of metrics in a text.
fn named(text: &str) -> BTreeSet<String> {
    let part = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    text.split(part).filter(|word| word.starts_with("sidecore_")).map(String::from).collect()
}

/// Each `label="value"` of the dashboard's and the alerts' selectors.
fn selected(text: &str) -> BTreeSet<String> {
    let text = text.replace("\\\"", "\"");
    let mut found = BTreeSet::new();
    for selector in text.split('{').skip(1).filter_map(|rest| rest.split('}').next()) {
        let pairs = selector.split(',').filter(|pair| pair.contains("=\"") && !pair.contains('$'));
        // The job is Prometheus' own label.
        found.extend(
            pairs.filter(|pair| !pair.contains(['~', '!', ':']) && !pair.starts_with("job=")).map(str::to_owned),
        );
    }
    found
}

const DASHBOARD: &str = include_str!("../../prometheus/dashboard.json");
const ALERTS: &str = include_str!("../../prometheus/alerts.yml");

#[test]
fn the_dashboard_and_the_alerts_name_metrics_and_labels_that_are_served() {
    let text = write(&reading(), Format::Text);
    let served: BTreeSet<String> =
        lines(&text, "").iter().map(|line| line.split(['{', ' ']).next().unwrap().to_owned()).collect();
    for (file, least) in [(DASHBOARD, 10), (ALERTS, 5)] {
        let named = named(file);
        let missing: Vec<_> = named.difference(&served).collect();
        assert!(missing.is_empty() && named.len() >= least, "not served: {missing:?}; named: {named:?}");
        let pairs = selected(file);
        let unknown: Vec<_> = pairs.iter().filter(|pair| !text.contains(pair.as_str())).collect();
        assert!(unknown.is_empty() && !pairs.is_empty(), "no series has {unknown:?}");
    }
}

#[test]
fn the_dashboard_is_json_and_its_panels_do_not_overlap() {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut taken = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        assert!(panel["targets"].as_array().unwrap().iter().all(|target| target["expr"].is_string()), "{panel}");
        let place = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        for (x, y) in (0..place("w")).flat_map(|x| (0..place("h")).map(move |y| (x, y))) {
            assert!(place("x") + x < 24 && taken.insert((place("x") + x, place("y") + y)), "{panel}");
        }
    }
}
