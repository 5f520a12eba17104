//! `metrics`: the counters for Prometheus, as OpenMetrics 1.0 if the client accepts it, otherwise in the text format 0.0.4.
//!
//! Names are `sidecore_`, what is counted, its unit, and `_total` for what only grows. Times are seconds, sizes bytes. Names and
//! labels do not change from one reading to the next, and their number does not grow with what guests do: a guest has at most
//! [`MAX_GUEST_SERIES`] series, whatever devices it has, and an engine at most [`MAX_ENGINE_SERIES`]. Counts are written exactly;
//! Prometheus itself rounds those above 2^53.

use std::net::TcpListener;
use std::path::Path;

use anyhow::{Context as _, Result};
use control::{Command, Count, Counters, Event, GuestState, View};

use crate::client::{Client, Failed};
use crate::exposition::{Families, Format, Value};
use crate::http::{self, Response};

/// Most series of a guest.
pub const MAX_GUEST_SERIES: usize = 40;
/// Most series of an engine.
pub const MAX_ENGINE_SERIES: usize = 200;
/// Most kinds of counts of an uplink, of up to four of an engine.
const UPLINK_KINDS: usize = 47;

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

/// Causes of dropped packets. Each has a series.
const DROP_CAUSES: [&str; 5] = ["no-buffer", "rules", "malformed", "no-destination", "other"];

/// The cause of drops that the hypervisor counts as `kind`.
fn drop_cause(kind: &str) -> &'static str {
    match kind {
        "rx_no_buffer" => "no-buffer",
        "tx_spoofed_mac" | "tx_spoofed_address" | "tx_vlan" | "tx_denied" | "tx_limited" | "tx_storm" | "rx_denied"
        | "rx_limited" => "rules",
        "tx_bad_length" | "tx_bad_header" | "tx_small_mss" | "tx_bad_source" | "tx_unreadable" | "rx_unreadable" => {
            "malformed"
        }
        "tx_no_destination" => "no-destination",
        _ => "other",
    }
}

/// A count of cycles of that frequency as time.
#[expect(clippy::cast_precision_loss, reason = "a time is not exact")]
fn time(cycles: u64, hz: u64) -> Value {
    Value::Seconds(cycles as f64 / hz.max(1) as f64)
}

fn number(count: u64) -> Value {
    Value::Count(count)
}

fn total(counts: impl IntoIterator<Item = u64>) -> u64 {
    counts.into_iter().fold(0, u64::saturating_add)
}

fn sum(counts: impl IntoIterator<Item = u64>) -> Value {
    number(total(counts))
}

/// Writes the counters in a format.
#[must_use]
pub fn write(counters: &Counters, format: Format) -> String {
    let mut families = Families::default();
    machine(counters, &mut families);
    for guest in &counters.guests {
        one_guest(guest, counters.tsc_hz, &mut families);
    }
    for engine in &counters.engines {
        one_engine(engine, counters.tsc_hz, &mut families);
    }
    families.encoded(format)
}

fn machine(counters: &Counters, families: &mut Families) {
    let machine = &counters.hypervisor;
    families.add(
        "sidecore_uptime_seconds",
        "Time since the processor's time stamp counter began.",
        &[],
        time(counters.tsc, counters.tsc_hz),
    );
    families.add("sidecore_memory_bytes", "Memory that the hypervisor keeps for itself.", &[], number(machine.memory));
    families.add("sidecore_heap_size_bytes", "Size of the hypervisor's heap.", &[], number(machine.heap.size));
    families.add("sidecore_heap_used_bytes", "Part of the hypervisor's heap in use.", &[], number(machine.heap.used));
    families.add("sidecore_log_dropped_total", "Lines of the log that were dropped.", &[], number(machine.log_dropped));
    for (name, port) in ["com1", "com2"].iter().zip(&machine.serial) {
        let dropped = "Bytes of output to a serial port that were dropped.";
        families.add("sidecore_serial_dropped_bytes_total", dropped, &[("port", name)], number(port.dropped_bytes));
    }
    let checks = &machine.machine_checks;
    for (severity, count) in
        [("corrected", checks.corrected), ("deferred", checks.deferred), ("ended-guest", checks.ended)]
    {
        let help = "Errors that the machine-check banks told.";
        families.add("sidecore_machine_check_errors_total", help, &[("severity", severity)], number(count));
    }
    for (kind, count) in
        [("stray", machine.stray_interrupts), ("serr", machine.system_errors), ("iochk", machine.io_checks)]
    {
        families.add(
            "sidecore_unexpected_interrupts_total",
            "Interrupts that nobody expected.",
            &[("kind", kind)],
            number(count),
        );
    }
}

fn one_guest(guest: &control::Guest, hz: u64, families: &mut Families) {
    let name: &str = &guest.name;
    let mut series = |metric, help, value| families.add(metric, help, &[("guest", name)], value);
    series(
        "sidecore_guest_running",
        "1 while the guest's vCPUs run.",
        number((guest.state == GuestState::Running).into()),
    );
    series("sidecore_guest_vcpus", "Virtual CPUs of the guest.", number(guest.vcpus.len() as u64));
    series("sidecore_guest_memory_bytes", "RAM of the guest.", number(guest.memory));
    series("sidecore_guest_kept_bytes", "Memory of the hypervisor for the guest, beside its RAM.", number(guest.kept));
    series("sidecore_guest_starts_total", "Times the guest was started.", number(guest.starts));
    series("sidecore_guest_refusals_total", "What the guest tried and was refused.", number(guest.total_refusals()));
    let dropped = "Bytes and lines of the guest's console that were dropped.";
    series("sidecore_guest_console_dropped_total", dropped, sum([guest.console_dropped, guest.lines_dropped]));
    let exits = || guest.vcpus.iter().flat_map(|vcpu| &vcpu.exits);
    let in_host = "Time that the guest's exits took in the hypervisor.";
    let cycles = total(exits().map(|exit| exit.cycles));
    series("sidecore_guest_exit_seconds_total", in_host, time(cycles, hz));

    let ports = || guest.ports.iter();
    let packets = "Packets to (rx) and from (tx) the guest's network devices.";
    let bytes = "Bytes to (rx) and from (tx) the guest's network devices.";
    for (direction, count, size) in [
        ("rx", sum(ports().map(|port| port.rx_packets)), sum(ports().map(|port| port.rx_bytes))),
        ("tx", sum(ports().map(|port| port.tx_packets)), sum(ports().map(|port| port.tx_bytes))),
    ] {
        let labels = [("guest", name), ("direction", direction)];
        families.add("sidecore_guest_network_packets_total", packets, &labels, count);
        families.add("sidecore_guest_network_bytes_total", bytes, &labels, size);
    }
    let drops = |cause: &str| {
        sum(ports().flat_map(|port| &port.drops).filter(|drop| drop_cause(&drop.kind) == cause).map(|drop| drop.count))
    };
    for cause in DROP_CAUSES {
        let help = "Packets of the guest's ports that were dropped.";
        families.add("sidecore_guest_network_drops_total", help, &[("guest", name), ("cause", cause)], drops(cause));
    }
    let labels = [("guest", name)];
    let interrupts = sum(ports().map(|port| port.interrupts));
    let help = "Completion interrupts of the guest's network devices.";
    families.add("sidecore_guest_network_interrupts_total", help, &labels, interrupts);
    let kicks = sum(ports().map(|port| port.kicks));
    let help = "Notifications of the guest's network drivers.";
    families.add("sidecore_guest_network_notifications_total", help, &labels, kicks);

    let blocks = |kind: &str| sum(guest.blocks.iter().map(|block| block.count(kind)));
    for (operation, kind) in [("read", "reads"), ("write", "writes"), ("flush", "flushes")] {
        let help = "Requests that the guest's disks have completed.";
        let labels = [("guest", name), ("operation", operation)];
        families.add("sidecore_guest_disk_requests_total", help, &labels, blocks(kind));
    }
    for (operation, kind) in [("read", "read_bytes"), ("write", "written_bytes")] {
        let help = "Bytes that the guest's disks have read and written.";
        let labels = [("guest", name), ("operation", operation)];
        families.add("sidecore_guest_disk_bytes_total", help, &labels, blocks(kind));
    }
    let help = "Requests that the guest's disks have failed.";
    families.add("sidecore_guest_disk_errors_total", help, &labels, blocks("errors"));

    let of = |reason: &str| sum(exits().filter(|exit| exit.reason == reason).map(|exit| exit.count));
    let others = sum(exits().filter(|exit| !REASONS.contains(&&*exit.reason)).map(|exit| exit.count));
    for (reason, count) in REASONS.iter().map(|&reason| (reason, of(reason))).chain([("other", others)]) {
        let help = "Exits of the guest's virtual CPUs.";
        families.add("sidecore_guest_exits_total", help, &[("guest", name), ("reason", reason)], count);
    }
}

fn one_engine(engine: &control::Engine, hz: u64, families: &mut Families) {
    let id = engine.id.to_string();
    for (mode, turns, cycles) in
        [("busy", engine.busy_turns, engine.busy_cycles), ("idle", engine.idle_turns, engine.idle_cycles)]
    {
        let labels = [("engine", &*id), ("mode", mode)];
        families.add(
            "sidecore_engine_turns_total",
            "Turns that found work (busy) or none (idle).",
            &labels,
            number(turns),
        );
        families.add("sidecore_engine_seconds_total", "Time in busy and in idle turns.", &labels, time(cycles, hz));
    }
    let help = "Turns so long that a guest's timer may have been late.";
    families.add("sidecore_engine_long_turns_total", help, &[("engine", &id)], number(engine.long_turns));
    let help = "The longest turn without a request, if it was long: something else had the engine's core.";
    families.add("sidecore_engine_longest_gap_seconds", help, &[("engine", &id)], time(engine.longest_idle_turn, hz));
    if let Some(permille) = engine.speed_permille {
        let help = "Average speed of the engine's core in the last second, as a ratio of the TSC's rate.";
        families.add("sidecore_engine_speed_ratio", help, &[("engine", &id)], Value::Ratio(permille as f64 / 1000.0));
    }
    let help = "Seconds in which the engine's core, or its processor, was slowed down by heat or by a limit.";
    let slow = Value::Seconds(engine.throttled_seconds as f64);
    families.add("sidecore_engine_throttled_seconds_total", help, &[("engine", &id)], slow);
    if let Some(smis) = engine.smis {
        let help = "System management interrupts of the engine's core: the firmware has stopped it.";
        families.add("sidecore_engine_smis_total", help, &[("engine", &id)], number(smis));
    }
    for uplink in &engine.uplinks {
        for Count { kind, count } in uplink.counts.iter().take(UPLINK_KINDS) {
            let (metric, help, kind) = match kind.strip_suffix("_bytes") {
                Some(kind) => ("sidecore_uplink_bytes_total", "Bytes of an uplink, by kind.", kind),
                None => ("sidecore_uplink_events_total", "Frames and events of an uplink, by kind.", &**kind),
            };
            families.add(metric, help, &[("engine", &id), ("uplink", &uplink.name), ("kind", kind)], number(*count));
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
    http::serve(&listener, move |request| match request.path.as_str() {
        "/metrics" => match counters(&socket) {
            Ok(counters) => {
                let format = Format::accepted(&request.accept);
                let body = write(&counters, format).into_bytes();
                Response { status: "200 OK", content_type: format.content_type(), body }
            }
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
mod tests;
