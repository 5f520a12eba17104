//! Reports: their figures against sums over the records, made here.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::Value;
use sidecore_trace::model::{Event, Trace};
use sidecore_trace::report::{self, Report};
use sidecore_trace::resolve::Resolver;
use trace::record::{ENDS_GUEST, SYSTEM_ERROR};
use trace::{Kind, Record};

use crate::any::{any_trace, example};

fn json(trace: &Trace) -> Value {
    serde_json::to_value(Report::new(trace, &Resolver::default(), Some(3))).unwrap()
}

fn text(trace: &Trace) -> String {
    let mut out = Vec::new();
    report::text::print(&Report::new(trace, &Resolver::default(), Some(3)), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn the_report_of_a_small_trace_is_what_was_computed_by_hand() {
    let expected = "\
7 records in 0.000 s, TSC at 2000.000 MHz
LOST: 1 of 8 records (core 2: 1). What follows is of the others.

guest alpha: 3 exits, 0.006 ms in the host
reason                     samples samples%    time%    min us     max us    avg us        +-    p50 us    p99 us
cpuid                            2   66.67%   50.00%      1.00       2.00      1.50    33.33%      1.00      2.00
hlt                              1   33.33%   50.00%      3.00       3.00      3.00     0.00%      3.00      3.00

guest alpha: where cpuid comes from; shares are of this reason
address                    samples samples%    time%    min us     max us    avg us        +-    p50 us    p99 us
0xffffffff81000110               2  100.00%  100.00%      1.00       2.00      1.50    33.33%      1.00      2.00

guest alpha: where hlt comes from; shares are of this reason
address                    samples samples%    time%    min us     max us    avg us        +-    p50 us    p99 us
0xffffffff81000110               1  100.00%  100.00%      3.00       3.00      3.00     0.00%      3.00      3.00

engine on core 1: 4 requests in busy turns
turns, visits              samples samples%    time%    min us     max us    avg us        +-    p50 us    p99 us
busy turns                       1  100.00%  100.00%      2.50       2.50      2.50     0.00%      2.50      2.50
alpha net0 queue 1               1  100.00%  100.00%      1.50       1.50      1.50     0.00%      1.50      1.50
queue                     requests   a visit        bytes   us each completions      told
alpha net0 queue 1               4      4.00          240     0.375           1         1

stages of requests and frames; shares are of the stage itself
stage                      samples samples%    time%    min us     max us    avg us        +-    p50 us    p99 us
visit to completion              1  100.00%  100.00%      1.45       1.45      1.45     0.00%      1.45      1.45
";
    assert_eq!(text(&example()), expected);
}

#[test]
fn a_complete_trace_says_that_nothing_was_lost() {
    let mut trace = example();
    trace.losses.clear();
    assert!(text(&trace).contains("\nNo record was lost.\n"));
}

#[test]
fn an_unknown_frequency_is_said() {
    let mut trace = example();
    trace.clock = sidecore_trace::clock::Clock::new(0, None);
    assert!(text(&trace).contains("does not name the TSC's frequency"));
}

#[test]
fn drops_are_summed_up_and_what_the_control_core_told_is_listed() {
    let drop = |tsc, code, bytes: u64| {
        (1, Record { guest: 0, unit: 3, code, a: 3 << 32 | bytes, ..Record::new(Kind::FrameDropped, tsc) })
    };
    let life = |tsc, code, a| (0, Record { guest: 0, code, a, ..Record::new(Kind::Life, tsc) });
    let records = [
        life(2_000_000, 1, 0),
        drop(4_000_000, 0, 60),
        drop(4_100_000, 13, 1514),
        drop(4_200_000, 13, 100),
        (0, Record { code: SYSTEM_ERROR, a: 2, ..Record::new(Kind::Nmi, 6_000_000) }),
        (0, Record { guest: 0, unit: 2, code: ENDS_GUEST, a: 0xabcd, ..Record::new(Kind::MachineCheck, 8_000_000) }),
        life(2_002_000_000, 4, 5),
    ];
    let mut trace = example();
    trace.losses.clear();
    trace.events = records.iter().zip(0..).map(|(&(core, record), number)| Event { core, number, record }).collect();
    trace.names.states.extend([(1, "running".to_owned()), (4, "stopped".to_owned())]);
    trace.names.stops.insert(5, "memory-error".to_owned());
    trace.names.causes.insert(13, "rx_no_buffer".to_owned());
    let expected = "\
7 records in 1.000 s, TSC at 2000.000 MHz
No record was lost.

frames dropped at        cause                       frames        bytes
alpha net0               rx_no_buffer                     2         1614
alpha net0               cause-0                          1           60

     seconds  told by the control core
       0.000  life running alpha
       0.002  nmi serr 0x2
       0.003  machine-check ends-guest alpha 0xabcd
       1.000  life stopped memory-error alpha
";
    assert_eq!(text(&trace), expected);
}

proptest! {
    #[test]
    fn drops_are_sums_over_the_records(trace in any_trace()) {
        let report = json(&trace);
        let sum = |key: &str| {
            report["drops"].as_array().unwrap().iter().map(|drops| drops[key].as_u64().unwrap()).sum::<u64>()
        };
        let records = trace.events.iter().map(|event| event.record);
        let dropped = records.filter(|record| record.known_kind() == Some(Kind::FrameDropped));
        let bytes = dropped.map(|record| record.a & 0xffff_ffff);
        prop_assert_eq!((sum("frames"), sum("bytes")), (bytes.clone().count() as u64, bytes.sum::<u64>()));
    }

    #[test]
    fn figures_of_exits_are_sums_over_the_records(trace in any_trace()) {
        let mut sums: BTreeMap<(String, String), (u64, u64, u64, u64)> = BTreeMap::new();
        for event in &trace.events {
            let record = &event.record;
            if record.known_kind() == Some(Kind::Exit) {
                let key = (trace.names.guest(record.guest), trace.names.reason(record.code));
                let (samples, cycles, min, max) = sums.entry(key).or_insert((0, 0, u64::MAX, 0));
                let span = u64::from(record.span);
                *samples += 1;
                *cycles += span;
                *min = span.min(*min);
                *max = span.max(*max);
            }
        }
        let report = json(&trace);
        let mut found = BTreeMap::new();
        for guest in report["guests"].as_array().unwrap() {
            for reason in guest["reasons"].as_array().unwrap() {
                let number = |key: &str| reason[key].as_u64().unwrap();
                let key = (guest["guest"].as_str().unwrap().to_owned(), reason["reason"].as_str().unwrap().to_owned());
                found.insert(key, (number("samples"), number("cycles"), number("min"), number("max")));
            }
        }
        prop_assert_eq!(found, sums);
        text(&trace);
    }

    #[test]
    fn visits_and_turns_are_sums_over_the_records(trace in any_trace()) {
        let of = |kind| trace.events.iter().map(|event| event.record).filter(move |r| r.known_kind() == Some(kind));
        let report = json(&trace);
        let engines = report["engines"].as_array().unwrap();
        let sum = |key: &str| {
            engines
                .iter()
                .flat_map(|engine| engine["queues"].as_array().unwrap())
                .map(|queue| queue[key].as_u64().unwrap())
                .sum::<u64>()
        };
        prop_assert_eq!(sum("samples"), of(Kind::Visit).count() as u64);
        prop_assert_eq!(sum("completions"), of(Kind::Completion).count() as u64);
        prop_assert_eq!(sum("requests"), of(Kind::Visit).map(|record| record.a & 0xffff_ffff).sum::<u64>());
    }
}
