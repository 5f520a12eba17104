//! Experiments with many guests on one engine: 1 to 7 guests with the same load, and requests beside streams. Each runs once with each
//! schedule of the engine.
//!
//! The guests are probes (guest-drivers/probe). They are started one after another, and none ends, so one machine shows all
//! numbers of guests. Another guest stands for the papers' other machine at the wire: it answers requests, and takes streams.

use anyhow::{Context as _, Result};
use control::Command;
use scenarios::guests::scheduling;
use scenarios::launch::Launch as _;
use scenarios::platform::Platform;
use scenarios::probes::{self, Probe};
use scenarios::scenario::seconds;
use scenarios::session::Session;
use scenarios::setup::Setup;
use serde_json::{Value, json};

use super::window::{Length, Unit, Window, Worker, ratio};
use crate::emulator::Emulator;
use crate::ui;

/// The values of `scheduling`.
const SCHEDULINGS: [&str; 2] = ["fine", "per-device"];
/// Guests with a load: those of a socket in the paper.
const GUESTS: usize = 7;
/// Requests of a window of `mixed`, and with small amounts.
const REQUESTS: [u32; 2] = [500, 100];
/// More requests or frames than a guest makes until the machine ends.
const ENDLESS: u32 = 4_000_000_000;
/// MiB of a guest's disk.
const DISK_MIB: u32 = 1;
/// The way to complete: the paper's own.
const COMPLETION: &str = "eli";

/// The probe's action for a stream without end.
const STREAM: &str = "stream-on";

/// A load of all guests.
struct Load {
    /// Its name in the results.
    name: &'static str,
    /// The probe's action.
    action: &'static str,
    /// What is counted.
    unit: Unit,
}

const LOADS: [Load; 3] = [
    Load { name: "requests", action: "requests", unit: Unit::Received },
    Load { name: "stream", action: STREAM, unit: Unit::Sent },
    Load { name: "disk", action: "disk-deep", unit: Unit::Disk },
];

/// 1 to 7 guests with the same load.
pub fn scaling(platform: Platform, quick: bool) -> Result<Value> {
    let mut rows = Vec::new();
    for load in &LOADS {
        for schedule in SCHEDULINGS {
            ui::step("bench", &format!("1 to {GUESTS} guests, {}, {schedule}", load.name));
            let peer = GUESTS + 1;
            let mut guests: Vec<Probe> = (1..=GUESTS).map(|n| worker(n, load.action, peer)).collect();
            let serves = load.unit != Unit::Disk;
            if serves {
                guests.push(server(peer));
            }
            let mut session = boot(platform, &format!("bench-paper-{}-{schedule}", load.name), schedule, &guests)?;
            if serves {
                session.result(&Probe::name(&server(peer)), "serve", seconds(60))?;
            }
            let mut workers: Vec<Worker> = Vec::new();
            let mut one = None;
            for guest in &guests[..GUESTS] {
                begin(&mut session, guest)?;
                workers.push(Worker { name: guest.name(), unit: load.unit });
                let window = Window::pass(&mut session, &workers, Length::of(platform, quick))?;
                let row = scaling_row(load.name, schedule, &window, &workers, &mut one)?;
                rows.push(row);
            }
        }
    }
    Ok(json!({ "rows": rows }))
}

/// The numbers of a window. `one`: the units that were delivered a second of the first guest alone, which the first window sets.
fn scaling_row(
    load: &str,
    schedule: &str,
    window: &Window,
    workers: &[Worker],
    one: &mut Option<f64>,
) -> Result<Value> {
    let of_each = |of: fn(&Window, &Worker) -> Result<u64>| {
        workers.iter().map(|worker| of(window, worker)).collect::<Result<Vec<u64>>>()
    };
    let (units, exits, interrupts) = (of_each(Window::units)?, of_each(Window::exits)?, of_each(Window::interrupts)?);
    let (total, exits, interrupts) =
        (units.iter().sum::<u64>() as f64, exits.iter().sum::<u64>(), interrupts.iter().sum::<u64>());
    let (least, most) = units.iter().min().zip(units.iter().max()).context("no guest works")?;
    // Frames that the receiver had no buffer for are no work done, and cost the engine less.
    let dropped = window.dropped()?;
    let a_second = (total - dropped as f64) / window.seconds();
    let alone = *one.get_or_insert(a_second);
    Ok(json!({
        "load": load,
        "scheduling": schedule,
        "guests": workers.len(),
        "seconds": ratio(window.seconds(), 1.0),
        "units": units,
        "delivered_per_second": ratio(a_second, 1.0),
        "total_to_one_guest": ratio(a_second, alone),
        "least_to_most": ratio(*least as f64, *most as f64),
        "exits": exits,
        "exits_per_1000": ratio(exits as f64 * 1000.0, total),
        "interrupts": interrupts,
        "interrupts_per_unit": ratio(interrupts as f64, total),
        "dropped": dropped,
        "dropped_per_1000": ratio(dropped as f64 * 1000.0, total),
        "busy_turns": window.busy_turns()?,
        "units_per_busy_turn": ratio(total, window.busy_turns()? as f64),
        "busy_percent": window.busy_percent()?,
    }))
}

/// One guest with requests, one at a time, beside 0 to 6 guests with streams.
pub fn mixed(platform: Platform, quick: bool) -> Result<Value> {
    let mut rows = Vec::new();
    let (answers, takes) = (server(GUESTS + 1), server(GUESTS + 2));
    let asks = Probe::new(1, COMPLETION, &format!("latency:{}", REQUESTS[usize::from(quick)]));
    let asks = asks.peer(GUESTS + 1).started_later();
    let streams: Vec<Probe> = (2..=GUESTS).map(|n| worker(n, STREAM, GUESTS + 2)).collect();
    let guests: Vec<Probe> = [&asks].into_iter().chain(&streams).chain([&answers, &takes]).cloned().collect();
    for schedule in SCHEDULINGS {
        ui::step("bench", &format!("requests beside streams, {schedule}"));
        let mut session = boot(platform, &format!("bench-paper-mixed-{schedule}"), schedule, &guests)?;
        for guest in [&answers, &takes] {
            session.result(&guest.name(), "serve", seconds(60))?;
        }
        begin(&mut session, &asks)?;
        let asking = Worker { name: asks.name(), unit: Unit::Received };
        let mut streaming: Vec<Worker> = Vec::new();
        let mut first = First::default();
        for next in std::iter::once(None).chain(streams.iter().map(Some)) {
            if let Some(guest) = next {
                begin(&mut session, guest)?;
                streaming.push(Worker { name: guest.name(), unit: Unit::Sent });
            }
            session.forget();
            let (window, said) = Window::until(&mut session, |session, begun| series(session, &asks.name(), begun))?;
            rows.push(mixed_row(schedule, &window, &said, (&asking, &streaming), &mut first)?);
        }
    }
    Ok(json!({ "rows": rows }))
}

/// Waits for the report of a series of requests that began after `begun`, by the TSC. Reports come late where the serial line is
/// slow, as on Bochs. The guest's TSC is the machine's, because it owns its local APIC.
fn series(session: &mut Session, name: &str, begun: u64) -> Result<Value> {
    loop {
        let said = session.result(name, "latency", seconds(300))?;
        if is_after(&said, begun)? {
            return Ok(said);
        }
    }
}

/// Whether the series of a report began after `begun`.
fn is_after(said: &Value, begun: u64) -> Result<bool> {
    said["begun"].as_u64().map(|at| at > begun).with_context(|| format!("no begin in {said}"))
}

/// What the first windows had, to which later ones are compared.
#[derive(Default)]
struct First {
    /// Nanoseconds of a request without streams: the average, the median and the 99th percentile.
    request: Option<[f64; 3]>,
    /// Frames a second of one stream, without those that were dropped.
    stream: Option<f64>,
}

/// The numbers of a window. `said`: the report of a series of requests in it, by the guest that asks.
fn mixed_row(
    schedule: &str,
    window: &Window,
    said: &Value,
    (asking, streaming): (&Worker, &[Worker]),
    first: &mut First,
) -> Result<Value> {
    let number = |key: &str| said[key].as_f64().with_context(|| format!("no number {key:?} in {said}"));
    let requests = window.units(asking)?.max(1) as f64;
    let sent = streaming.iter().map(|worker| window.units(worker)).collect::<Result<Vec<u64>>>()?;
    let frames = sent.iter().sum::<u64>() as f64;
    let times = [window.seconds() * 1e9 / requests, number("p50_ns")?, number("p99_ns")?];
    let alone = *first.request.get_or_insert(times);
    let [average, median, late] = [0, 1, 2].map(|n| ratio(times[n], alone[n]));
    let delivered = frames - window.dropped()? as f64;
    let of_a_stream = (!sent.is_empty()).then(|| delivered / window.seconds() / sent.len() as f64);
    let stream_to_one = of_a_stream.map(|rate| ratio(rate, *first.stream.get_or_insert(rate)));
    Ok(json!({
        "scheduling": schedule,
        "streams": streaming.len(),
        "seconds": ratio(window.seconds(), 1.0),
        "requests": requests,
        "frames": sent,
        "frames_per_request": ratio(frames, requests),
        "busy_turns": window.busy_turns()?,
        "busy_turns_per_request": ratio(window.busy_turns()? as f64, requests),
        "request_ns": { "average": times[0].round(), "p50": times[1], "p99": times[2] },
        "average_to_alone": average,
        "p50_to_alone": median,
        "p99_to_alone": late,
        "stream_to_one": stream_to_one,
        "dropped": window.dropped()?,
        "busy_percent": window.busy_percent()?,
    }))
}

/// Guest number `number`, which waits to be started.
fn worker(number: usize, action: &str, peer: usize) -> Probe {
    let guest = Probe::new(number, COMPLETION, &format!("{action}:{ENDLESS}")).peer(peer).started_later();
    if action == "disk-deep" { guest.disk(DISK_MIB, "") } else { guest }
}

/// A guest that answers requests and takes streams.
fn server(number: usize) -> Probe {
    Probe::new(number, COMPLETION, "serve")
}

fn boot(platform: Platform, name: &str, schedule: &str, guests: &[Probe]) -> Result<Session> {
    let setup: Setup = scheduling(probes::server(name, guests), schedule);
    Emulator::new(platform).launch(&setup)
}

/// Starts a guest, and lets it begin with its load.
fn begin(session: &mut Session, guest: &Probe) -> Result<()> {
    let name = guest.name();
    session.ask(Command::Start(name.clone()), seconds(60))?;
    probes::ready(session, &name)?;
    probes::go(session, &name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::paper::window::fixture;

    fn workers(names: &[&str]) -> Vec<Worker> {
        names.iter().map(|name| Worker { name: (*name).to_owned(), unit: Unit::Sent }).collect()
    }

    #[test]
    fn guests_are_compared_to_one_another_and_all_to_the_first_alone() {
        let mut one = None;
        let row = scaling_row("stream", "fine", &fixture::window(&[300]), &workers(&["p1"]), &mut one).unwrap();
        assert_eq!((&row["total_to_one_guest"], &row["least_to_most"]), (&json!(1.0), &json!(1.0)));
        let two = fixture::window(&[200, 250]);
        let row = scaling_row("stream", "fine", &two, &workers(&["p1", "p2"]), &mut one).unwrap();
        assert_eq!((&row["total_to_one_guest"], &row["least_to_most"]), (&json!(1.5), &json!(0.8)));
        assert_eq!((&row["units_per_busy_turn"], &row["interrupts_per_unit"]), (&json!(4.5), &json!(0.5)));
        assert_eq!((&row["guests"], &row["units"], &row["dropped"]), (&json!(2), &json!([200, 250]), &json!(45)));
        assert_eq!((&row["delivered_per_second"], &row["dropped_per_1000"]), (&json!(202.5), &json!(100.0)));
    }

    #[test]
    fn a_report_of_a_series_that_began_before_the_window_is_late() {
        let late = [99, 100, 101].map(|at| is_after(&json!({ "begun": at }), 100).unwrap());
        assert_eq!(late, [false, false, true]);
        assert!(is_after(&json!({ "count": 5 }), 100).is_err());
    }

    #[test]
    fn requests_beside_streams_are_compared_to_requests_alone() {
        let mut first = First::default();
        let asking = Worker { name: "p1".to_owned(), unit: Unit::Received };
        let mut row = |sent: &[u64], names: &[&str], late: u64| {
            let said = json!({ "count": 5, "p50_ns": 1000, "p99_ns": late });
            mixed_row("fine", &fixture::window(sent), &said, (&asking, &workers(names)), &mut first).unwrap()
        };
        let alone = row(&[0], &[], 2000);
        assert_eq!((&alone["p99_to_alone"], &alone["stream_to_one"]), (&json!(1.0), &Value::Null));
        assert_eq!(row(&[0, 400], &["p2"], 3000)["frames_per_request"], json!(8.0));
        let two = row(&[0, 400, 200], &["p2", "p3"], 5000);
        assert_eq!((&two["p50_to_alone"], &two["p99_to_alone"]), (&json!(1.0), &json!(2.5)));
        assert_eq!((&two["stream_to_one"], &two["frames_per_request"]), (&json!(0.75), &json!(12.0)));
    }

    #[test]
    fn a_worker_has_what_its_load_needs() {
        let setup = probes::server("x", &[worker(1, "disk-deep", 8), worker(2, STREAM, 8), server(8)]);
        // A core for control and one for the engine.
        assert_eq!(setup.cpus, 5);
        let scenarios::setup::Content::Text(config) = &setup.modules[0].content else { panic!("no configuration") };
        assert_eq!(config.matches("[[guest.block]]").count(), 1);
        assert!(config.contains("do=disk-deep:4000000000 peer=52:54:00:00:01:08"), "{config}");
        assert_eq!(config.matches("autostart = false").count(), 2);
    }
}
