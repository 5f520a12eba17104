//! `metrics`: the counters in Prometheus' text format, version 0.0.4.
//!
//! Names are `sidecore_`, what is counted, its unit, and `_total` for what only grows. Times are seconds, sizes bytes. Names and
//! labels do not change from one reading to the next, and their number does not grow with what guests do: a guest has at most
//! [`MAX_GUEST_SERIES`] series, whatever devices it has, and an engine at most [`MAX_ENGINE_SERIES`]. Values are floating-point
//! numbers, as in all of Prometheus: a count above 2^53 is rounded.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;

use anyhow::{Context as _, Result};
use control::{Block, Command, Count, Counters, Event, GuestState, View};
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Encoder as _, TextEncoder};

use crate::client::{Client, Failed};
use crate::http::{self, Response};

/// Most series of a guest.
pub const MAX_GUEST_SERIES: usize = 40;
/// Most series of an engine.
pub const MAX_ENGINE_SERIES: usize = 200;
/// Most kinds of counts of an uplink, of up to four of an engine.
const UPLINK_KINDS: usize = 48;

/// Exit reasons that have a series of their own. All others are in `other`.
const REASONS: [&str; 14] = [
    "cpuid",
    "hlt",
    "msr-apic-eoi",
    "msr-apic-icr",
    "msr-apic-timer",
    "msr-other",
    "io-uart",
    "io-virtio-notify",
    "io-other",
    "nested-fault",
    "external-interrupt",
    "nmi",
    "interrupt-window",
    "deadline",
];

/// Metric families in the making, by name.
#[derive(Default)]
struct Families(BTreeMap<&'static str, MetricFamily>);

impl Families {
    fn add(&mut self, name: &'static str, help: &str, labels: &[(&str, &str)], value: f64) {
        let counts = name.ends_with("_total");
        let family = self.0.entry(name).or_insert_with(|| {
            let mut family = MetricFamily::default();
            family.set_name(name.to_owned());
            family.set_help(help.to_owned());
            family.set_field_type(if counts { MetricType::COUNTER } else { MetricType::GAUGE });
            family
        });
        let mut metric = Metric::default();
        if counts {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        metric.set_label(
            labels
                .iter()
                .map(|(name, value)| {
                    let mut pair = LabelPair::default();
                    pair.set_name((*name).to_owned());
                    pair.set_value((*value).to_owned());
                    pair
                })
                .collect(),
        );
        family.mut_metric().push(metric);
    }
}

/// A count as a number of Prometheus.
#[expect(clippy::cast_precision_loss, reason = "all numbers of Prometheus are of this type")]
fn number(count: u64) -> f64 {
    count as f64
}

fn sum(counts: impl IntoIterator<Item = u64>) -> f64 {
    number(counts.into_iter().fold(0, u64::saturating_add))
}

/// Writes the counters in the text format.
#[must_use]
pub fn text(counters: &Counters) -> Vec<u8> {
    let mut families = Families::default();
    let seconds = |cycles: u64| number(cycles) / number(counters.tsc_hz.max(1));
    let add = &mut families;
    machine(counters, add);
    for guest in &counters.guests {
        one_guest(guest, &seconds, add);
    }
    for engine in &counters.engines {
        one_engine(engine, &seconds, add);
    }
    let mut out = Vec::new();
    let all: Vec<MetricFamily> = families.0.into_values().collect();
    // Writing to a vector does not fail, and no family is empty.
    let _ = TextEncoder::new().encode(&all, &mut out);
    out
}

fn machine(counters: &Counters, add: &mut Families) {
    let machine = &counters.hypervisor;
    add.add(
        "sidecore_uptime_seconds",
        "Time since the processor's time stamp counter began.",
        &[],
        number(counters.tsc) / number(counters.tsc_hz.max(1)),
    );
    add.add("sidecore_memory_bytes", "Memory that the hypervisor keeps for itself.", &[], number(machine.memory));
    add.add("sidecore_heap_size_bytes", "Size of the hypervisor's heap.", &[], number(machine.heap.size));
    add.add("sidecore_heap_used_bytes", "Part of the hypervisor's heap in use.", &[], number(machine.heap.used));
    add.add("sidecore_log_dropped_total", "Lines of the log that were dropped.", &[], number(machine.log_dropped));
    for (name, port) in ["com1", "com2"].iter().zip(&machine.serial) {
        let dropped = "Bytes of output to a serial port that were dropped.";
        add.add("sidecore_serial_dropped_bytes_total", dropped, &[("port", name)], number(port.dropped_bytes));
    }
    let checks = &machine.machine_checks;
    for (severity, count) in
        [("corrected", checks.corrected), ("deferred", checks.deferred), ("ended-guest", checks.ended)]
    {
        let help = "Errors that the machine-check banks told.";
        add.add("sidecore_machine_check_errors_total", help, &[("severity", severity)], number(count));
    }
    for (kind, count) in
        [("stray", machine.stray_interrupts), ("serr", machine.system_errors), ("iochk", machine.io_checks)]
    {
        add.add(
            "sidecore_unexpected_interrupts_total",
            "Interrupts that nobody expected.",
            &[("kind", kind)],
            number(count),
        );
    }
}

fn one_guest(guest: &control::Guest, seconds: &dyn Fn(u64) -> f64, add: &mut Families) {
    let name: &str = &guest.name;
    let mut gauge = |metric, help, value| add.add(metric, help, &[("guest", name)], value);
    gauge(
        "sidecore_guest_running",
        "1 while the guest's vCPUs run.",
        number((guest.state == GuestState::Running).into()),
    );
    gauge("sidecore_guest_vcpus", "Virtual CPUs of the guest.", number(guest.vcpus.len() as u64));
    gauge("sidecore_guest_memory_bytes", "RAM of the guest.", number(guest.memory));
    gauge("sidecore_guest_kept_bytes", "Memory of the hypervisor for the guest, beside its RAM.", number(guest.kept));
    gauge("sidecore_guest_starts_total", "Times the guest was started.", number(guest.starts));
    gauge("sidecore_guest_refusals_total", "What the guest tried and was refused.", number(guest.total_refusals()));
    let dropped = "Bytes and lines of the guest's console that were dropped.";
    gauge("sidecore_guest_console_dropped_total", dropped, sum([guest.console_dropped, guest.lines_dropped]));
    let exits = || guest.vcpus.iter().flat_map(|vcpu| &vcpu.exits);
    let in_host = "Time that the guest's exits took in the hypervisor.";
    gauge(
        "sidecore_guest_exit_seconds_total",
        in_host,
        seconds(exits().map(|e| e.cycles).fold(0, u64::saturating_add)),
    );

    let ports = || guest.ports.iter();
    let packets = "Packets to (rx) and from (tx) the guest's network devices.";
    let bytes = "Bytes to (rx) and from (tx) the guest's network devices.";
    for (direction, count, size) in [
        ("rx", sum(ports().map(|port| port.rx_packets)), sum(ports().map(|port| port.rx_bytes))),
        ("tx", sum(ports().map(|port| port.tx_packets)), sum(ports().map(|port| port.tx_bytes))),
    ] {
        let labels = [("guest", name), ("direction", direction)];
        add.add("sidecore_guest_network_packets_total", packets, &labels, count);
        add.add("sidecore_guest_network_bytes_total", bytes, &labels, size);
    }
    let labels = [("guest", name)];
    let drops = sum(ports().flat_map(|port| &port.drops).map(|drop| drop.count));
    add.add("sidecore_guest_network_drops_total", "Packets of the guest's ports that were dropped.", &labels, drops);
    let interrupts = sum(ports().map(|port| port.interrupts));
    let help = "Completion interrupts of the guest's network devices.";
    add.add("sidecore_guest_network_interrupts_total", help, &labels, interrupts);
    let kicks = sum(ports().map(|port| port.kicks));
    let help = "Notifications of the guest's network drivers.";
    add.add("sidecore_guest_network_notifications_total", help, &labels, kicks);

    let blocks = |kind: &str| sum(guest.blocks.iter().map(|block: &Block| block.count(kind)));
    for (operation, kind) in [("read", "reads"), ("write", "writes"), ("flush", "flushes")] {
        let help = "Requests that the guest's disks have completed.";
        let labels = [("guest", name), ("operation", operation)];
        add.add("sidecore_guest_disk_requests_total", help, &labels, blocks(kind));
    }
    for (operation, kind) in [("read", "read_bytes"), ("write", "written_bytes")] {
        let help = "Bytes that the guest's disks have read and written.";
        let labels = [("guest", name), ("operation", operation)];
        add.add("sidecore_guest_disk_bytes_total", help, &labels, blocks(kind));
    }
    let help = "Requests that the guest's disks have failed.";
    add.add("sidecore_guest_disk_errors_total", help, &labels, blocks("errors"));

    let of = |reason: &str| sum(exits().filter(|exit| exit.reason == reason).map(|exit| exit.count));
    let others = sum(exits().filter(|exit| !REASONS.contains(&&*exit.reason)).map(|exit| exit.count));
    for (reason, count) in REASONS.iter().map(|&reason| (reason, of(reason))).chain([("other", others)]) {
        let help = "Exits of the guest's virtual CPUs.";
        add.add("sidecore_guest_exits_total", help, &[("guest", name), ("reason", reason)], count);
    }
}

fn one_engine(engine: &control::Engine, seconds: &dyn Fn(u64) -> f64, add: &mut Families) {
    let id = engine.id.to_string();
    for (mode, turns, cycles) in
        [("busy", engine.busy_turns, engine.busy_cycles), ("idle", engine.idle_turns, engine.idle_cycles)]
    {
        let labels = [("engine", &*id), ("mode", mode)];
        add.add("sidecore_engine_turns_total", "Turns that found work (busy) or none (idle).", &labels, number(turns));
        add.add("sidecore_engine_seconds_total", "Time in busy and in idle turns.", &labels, seconds(cycles));
    }
    let help = "Turns so long that a guest's timer may have been late.";
    add.add("sidecore_engine_long_turns_total", help, &[("engine", &id)], number(engine.long_turns));
    for uplink in &engine.uplinks {
        for Count { kind, count } in uplink.counts.iter().take(UPLINK_KINDS) {
            let (metric, help, kind) = match kind.strip_suffix("_bytes") {
                Some(kind) => ("sidecore_uplink_bytes_total", "Bytes of an uplink, by kind.", kind),
                None => ("sidecore_uplink_events_total", "Frames and events of an uplink, by kind.", &**kind),
            };
            add.add(metric, help, &[("engine", &id), ("uplink", &uplink.name), ("kind", kind)], number(*count));
        }
    }
}

/// Serves `/metrics` and `/healthz` for good.
///
/// # Errors
/// The address is not available.
pub fn serve(socket: &Path, listen: &str) -> Result<()> {
    let listener = TcpListener::bind(listen).with_context(|| format!("cannot listen at {listen}"))?;
    let socket = socket.to_owned();
    http::serve(&listener, move |path| match path {
        "/metrics" => match counters(&socket) {
            Ok(counters) => Response { status: "200 OK", content_type: prometheus::TEXT_FORMAT, body: text(&counters) },
            Err(why) => Response::text("503 Service Unavailable", &format!("{why}\n")),
        },
        "/healthz" => match version(&socket) {
            Ok(version) => Response::text("200 OK", &format!("sidecore {version}\n")),
            Err(why) => Response::text("503 Service Unavailable", &format!("{why}\n")),
        },
        _ => Response::text("404 Not Found", "there are /metrics and /healthz\n"),
    });
    Ok(())
}

fn counters(socket: &Path) -> Result<Counters, Failed> {
    match Client::connect(socket, false)?.ask(Command::Show(View::Counters))?.0 {
        Event::Counters(counters) => Ok(counters),
        other => Err(Failed::NotAnAnswer(format!("{other:?}"))),
    }
}

fn version(socket: &Path) -> Result<String, Failed> {
    match Client::connect(socket, false)?.ask(Command::Version)?.0 {
        Event::Reply { version: Some(version), .. } => Ok(version.into_owned()),
        other => Err(Failed::NotAnAnswer(format!("{other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use control::{ExitCount, Port, Uplink, VcpuCounters};

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
            console_dropped: 0,
            lines_dropped: 0,
            input_dropped: 0,
            shadow_idt: vec![],
            refusals: vec![],
            ports: vec![Port { rx_packets: 10, ..Port::default() }; devices],
            blocks: vec![Block::default(); devices],
            entropy: vec![],
            consoles: vec![],
        }
    }

    fn reading() -> Counters {
        let kinds = |n: usize| (0..n).map(|n| Count { kind: format!("kind{n}_bytes").into(), count: 1 }).collect();
        let uplink =
            |name: &str| Uplink { name: name.into(), device: String::new(), counts: kinds(90), stages: vec![] };
        let engine = control::Engine {
            busy_cycles: 5_000_000,
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

    fn lines(text: &[u8], label: &str) -> Vec<String> {
        let text = std::str::from_utf8(text).unwrap();
        text.lines().filter(|line| !line.starts_with('#') && line.contains(label)).map(String::from).collect()
    }

    #[test]
    fn values_have_base_units_and_stable_names() {
        let text = text(&reading());
        for line in [
            "sidecore_uptime_seconds 2",
            "sidecore_guest_memory_bytes{guest=\"a\"} 67108864",
            "sidecore_guest_exits_total{guest=\"a\",reason=\"cpuid\"} 7",
            "sidecore_guest_exits_total{guest=\"a\",reason=\"other\"} 150",
            "sidecore_guest_network_packets_total{guest=\"x\\\"\\\\\\n\",direction=\"rx\"} 80",
            "sidecore_engine_seconds_total{engine=\"0\",mode=\"busy\"} 0.0025",
        ] {
            assert!(lines(&text, "").contains(&line.to_owned()), "{line}\n{}", String::from_utf8_lossy(&text));
        }
    }

    #[test]
    fn the_number_of_series_is_bounded_and_does_not_depend_on_devices() {
        let text = text(&reading());
        let (small, large) = (lines(&text, "guest=\"a\"").len(), lines(&text, "guest=\"x").len());
        assert!(small == large && small <= MAX_GUEST_SERIES, "{small} {large}");
        let engine = lines(&text, "engine=\"0\"").len();
        assert!(engine <= MAX_ENGINE_SERIES && engine > 150, "{engine}");
    }

    #[test]
    fn each_family_has_help_and_type_once() {
        let text = String::from_utf8(text(&reading())).unwrap();
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
        let text = text(&Counters::default());
        assert!(lines(&text, "sidecore_uptime_seconds").concat().ends_with(" 0"));
    }
}
