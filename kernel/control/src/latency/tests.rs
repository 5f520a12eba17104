//! Tests of the answer and its table.

use trace::histogram::Histogram;

use super::*;
use crate::{Command, Event, Request, View};

fn shown(latency: &Latency) -> String {
    let mut text = String::new();
    show(latency, &mut text).unwrap();
    text
}

#[test]
fn the_table_is_in_microseconds_and_what_did_not_happen_is_left_out() {
    let histogram = <Histogram>::new();
    (0..99).for_each(|_| histogram.record(1, 2_000));
    histogram.record(1, 3_000_000);
    let mut totals = <Totals>::default();
    totals.add(&histogram, 1);
    let exits = Durations { guest: Some("a".into()), ..Durations::of("cpuid", &totals).unwrap() };
    let visits = Durations { engine: Some(1), ..Durations::of("visit", &totals).unwrap() };
    assert_eq!((exits.count, exits.sum), (100, 99 * 2_000 + 3_000_000));
    assert_eq!(Durations::of("hlt", &<Totals>::default()), None);
    let ticks = Durations::of("tick", &totals).unwrap();
    let latency = Latency { id: None, on: true, tsc_hz: 2_000_000_000, rows: vec![exits, ticks, visits] };
    // The bucket of 2,000 ends at 2,047.
    let expected = "\
of            what   count  p50 us  p90 us  p99 us   max us
a             cpuid    100    1.02    1.02    1.02  1500.00
control core  tick     100    1.02    1.02    1.02  1500.00
engine 1      visit    100    1.02    1.02    1.02  1500.00
";
    assert_eq!(shown(&latency), expected);
    let off = shown(&Latency { on: false, ..latency });
    assert_eq!(off, format!("nothing is recorded now; `trace on histograms` begins\n{expected}"));
    assert!(shown(&Latency::default()).ends_with("nothing was recorded\n"));
}

#[test]
fn queues_have_tables_of_their_own_and_requests_that_wait_are_no_times() {
    let histogram = <Histogram>::new();
    histogram.record(1, 6);
    let mut totals = <Totals>::default();
    totals.add(&histogram, 1);
    let of = |what| Durations {
        guest: Some("a".into()),
        queue: Some("net0 queue 1".into()),
        ..Durations::of(what, &totals).unwrap()
    };
    let latency =
        Latency { id: None, on: true, tsc_hz: 1_000_000, rows: vec![of(OCCUPANCY), of("arrival"), of("taken")] };
    let expected = "\
of  queue         what     count  p50 us  p90 us  p99 us  max us
a   net0 queue 1  arrival      1    6.00    6.00    6.00    6.00
a   net0 queue 1  taken        1    6.00    6.00    6.00    6.00
of  queue         what       visits  p50  p90  p99  max
a   net0 queue 1  occupancy       1    6    6    6    6
";
    assert_eq!(shown(&latency), expected);
}

#[test]
fn the_table_fits_a_terminal_with_the_largest_numbers() {
    let max = u64::MAX;
    let row = Durations { count: max, sum: max, p50: max, p90: max, p99: max, max, ..Durations::default() };
    let guest = Durations { guest: Some("x".repeat(32)), what: "mmio-virtio-notify".into(), ..row.clone() };
    let engine = Durations { engine: Some(max), what: "busy-turn".into(), ..row.clone() };
    let queue = |what: &'static str| Durations {
        guest: Some("x".repeat(32)),
        queue: Some("block15 queue 255".into()),
        what: what.into(),
        ..row.clone()
    };
    let latency =
        Latency { id: Some(3), on: false, tsc_hz: 1, rows: vec![guest, engine, queue("arrival"), queue(OCCUPANCY)] };
    let text = shown(&latency);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let event = Event::Latency(latency);
    assert_eq!(Event::from_line(&event.to_line().unwrap()), Ok(event));
}

#[test]
fn it_is_a_view_of_the_shell_and_a_command_of_its_own_in_json() {
    assert_eq!(Command::from_words("show latency"), Ok(Command::Show(View::Latency)));
    let command = Request::from_line(r#"{"command":"latency"}"#).map(|request| request.command);
    assert_eq!(command, Ok(Command::Latency));
    assert_eq!(Command::Latency.permission(), crate::Permissions::VIEW);
}
