//! ELVIS 4.3 and 4.7: exits and interrupts for each way to ask and to complete.

use serde_json::Value;

use crate::bench::paper::chart::{By, Chart, Kind, Paper, Section, Table, text};

/// The hardware of ELVIS' experiments (4.1).
pub const ELVIS: &str = "two sockets with a Xeon E5-2660 of 2.2 GHz each, Intel x520 (10 Gbit/s), Linux 3.1.0 and QEMU 0.14.0, guests with \
                         one virtual CPU";

/// The loads of `bench exits`, and what they are.
const LOADS: [(&str, &str); 5] = [
    ("probe requests", "requests, each answered before the next, by a guest without a timer"),
    ("probe singles", "frames, each completed before the next, by a guest without a timer"),
    ("probe stream", "a stream of full frames, by a guest without a timer"),
    ("linux udp", "UDP requests between Linux guests, each answered before the next"),
    ("linux stream", "a TCP stream between Linux guests"),
];

/// The pair of modes of a run.
fn pair(run: &Value) -> String {
    format!("{} {}", text(run, "requests"), text(run, "completion"))
}

/// The section of what `bench exits` returns.
pub fn section(part: &Value) -> Section {
    let runs: Vec<&Value> = part["runs"].as_array().into_iter().flatten().collect();
    let mut charts = Vec::new();
    for (load, what) in LOADS {
        let of_load = runs.iter().copied().filter(|run| run["load"] == load);
        let mut table = Table::default();
        for run in of_load {
            let by_reason = run["exits_per_1000_packets_by_reason"].as_object();
            // A run without exits has a category too.
            table.add(pair(run), "exits".to_owned(), None);
            for (reason, count) in by_reason.into_iter().flatten() {
                table.add(pair(run), reason.clone(), count.as_f64());
            }
        }
        let (labels, series) = table.split();
        charts.push(Chart {
            title: format!("Exits for 1,000 packets: {what}"),
            by: By::Counts,
            note: "The first word is how the engine learns of requests, the second how it completes them. A reason without a number \
                   had no exit. `io-uart` is the guest's report of its result, a fixed number of exits. HLT is the guest's \
                   own wish; emulators have reasons of their own to intercept it.",
            paper: Paper {
                place: "ELVIS 4.3 (Figure 4) and 4.7 (Figure 8)",
                had: "With one guest the baseline (notify, inject) had 142,000 exits a second with a TCP stream, 109,000 with Apache and \
                      146,000 with memcached; ELVIS (poll, ELI) had fewer than 800, of which the timer's were 500.",
                hardware: ELVIS,
            },
            kind: Kind::Stacked,
            across: "requests and completions",
            labels,
            series,
        });
    }
    let value = |key: &'static str| move |run: &Value| (pair(run), text(run, "load"), run[key].as_f64());
    let (labels, series) = Table::of(runs.iter().copied(), value("interrupts_per_packet")).split();
    charts.push(Chart {
        title: "Interrupts that the engine sent, for a packet".to_owned(),
        by: By::Counts,
        note: "A guest counts two packets for an answered request. For streams the number depends on how fast the guest is against the \
               engine.",
        paper: Paper {
            place: "ELVIS 4.3",
            had: "With a TCP stream each guest got 10,000 interrupts a second, against 30,000 with an assigned device.",
            hardware: ELVIS,
        },
        kind: Kind::Grouped,
        across: "requests and completions",
        labels,
        series,
    });
    let (labels, series) = Table::of(runs.iter().copied(), value("exits_per_second")).split();
    charts.push(Chart {
        title: "Exits a second".to_owned(),
        by: By::Time,
        note: "This is the unit of the paper.",
        paper: Paper {
            place: "ELVIS 4.3",
            had: "Baseline with one guest: 109,000 to 146,000; with seven guests 39,000 to 60,000 for each. ELVIS: fewer than 800.",
            hardware: ELVIS,
        },
        kind: Kind::Grouped,
        across: "requests and completions",
        labels,
        series,
    });
    let (labels, series) = Table::of(runs.iter().copied(), value("microseconds_per_packet")).split();
    charts.push(Chart {
        title: "Microseconds for a packet".to_owned(),
        by: By::Time,
        note: "For requests and frames one at a time this is latency: an answered request is two packets. For streams it is throughput. The \
               time in which the counters are read is in it.",
        paper: Paper {
            place: "ELVIS 4.4 (Figure 5) and 4.7 (Figure 8)",
            had: "UDP requests took 8 us less than in the baseline with one guest, up to 28 us less with several, and at most 1 % more than \
                  with an assigned device. One TCP stream had 1.45 Gbit/s against 1.08 in the baseline.",
            hardware: ELVIS,
        },
        kind: Kind::Grouped,
        across: "requests and completions",
        labels,
        series,
    });
    Section {
        title: "Requests and completions with and without exits (ELVIS 4.3, 4.4, 4.7)",
        about: "Every pair of a way to ask for I/O (poll, notify, adaptive) and a way to complete it (posted, eli, direct, inject). The \
                runs are those of `cargo mk bench exits`. The baseline of the paper is notify with inject, ELVIS is poll with eli.",
        platform: part["platform"].as_str().map(str::to_owned),
        quick: part["quick"] == true,
        charts,
    }
}
