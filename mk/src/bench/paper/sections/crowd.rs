//! ELVIS 4.3 to 4.7 with many guests: 1 to 7 guests with the same load, and requests beside streams.

use serde_json::Value;

use super::exits::ELVIS;
use crate::bench::paper::chart::{By, Chart, Kind, Paper, Section, Table, text};

/// A chart without its numbers.
struct Plan {
    title: &'static str,
    key: &'static str,
    by: By,
    note: &'static str,
    place: &'static str,
    had: &'static str,
}

impl Plan {
    /// The chart with the numbers of these rows. `across`: the key of the categories, and what they are. `series`: the keys of
    /// the series' names.
    fn chart(&self, rows: &[&Value], across: (&str, &'static str), series: &[&str]) -> Chart {
        let pick = |row: &Value| {
            let name: Vec<String> = series.iter().map(|key| text(row, key)).collect();
            (row[across.0].to_string(), name.join(" "), row[self.key].as_f64())
        };
        let (labels, series) = Table::of(rows.iter().copied(), pick).split();
        Chart {
            title: self.title.to_owned(),
            by: self.by,
            note: self.note,
            paper: Paper { place: self.place, had: self.had, hardware: ELVIS },
            kind: Kind::Lines,
            across: across.1,
            labels,
            series,
        }
    }
}

const SCALING: [Plan; 7] = [
    Plan {
        title: "All guests together, as a multiple of one guest",
        key: "total_to_one_guest",
        by: By::Ratio,
        note: "The first point is 1 by definition. Frames that were dropped do not count.",
        place: "ELVIS 4.3 (Figure 4), 4.5 (Figure 6) and 4.7 (Figure 8)",
        had: "TCP streams with ELVIS scaled almost perfectly to 7 guests on one engine, and memcached to 3, where the engine was saturated. \
              Disks scaled perfectly: 21,613 operations a second for each guest, however many there were; the baseline had 18,715 with one \
              guest and 8,862 for each of 14. Fine scheduling alone gave up to 2.7 times the baseline, ELVIS 3 times.",
    },
    Plan {
        title: "Frames of 1,000 that were dropped, because the receiver had no buffer",
        key: "dropped_per_1000",
        by: By::Pace,
        note: "All streams go to one guest. Requests and disks are never dropped.",
        place: "ELVIS 4.3",
        had: "No figure. The streams went to another machine, by TCP, which slows down before that.",
    },
    Plan {
        title: "Units of work in a turn of the engine that found work",
        key: "units_per_busy_turn",
        by: By::Pace,
        note: "A unit is an answered request, a frame of a stream, or a request of a disk. With `fine` a turn is a visit to one queue, with \
               `per-device` to all. So compare a schedule with itself only: more guests fill more of a turn of `per-device`.",
        place: "ELVIS 4.3 and 4.6",
        had: "No figure. It says that the engine batches requests, and so needs fewer interrupts: 10,000 a second for each guest, against \
              30,000 with an assigned device.",
    },
    Plan {
        title: "Engine's time that was busy, in percent",
        key: "busy_percent",
        by: By::Pace,
        note: "Of the engine's cycles in the window.",
        place: "ELVIS 4.3",
        had: "No figure. One engine was saturated by 3 guests with memcached, and not by 7 with TCP streams, which filled the 10 Gbit/s.",
    },
    Plan {
        title: "Fairness: the guest with the least work against the one with the most",
        key: "least_to_most",
        by: By::Ratio,
        note: "1: all guests did the same. Each guest's own speed counts too.",
        place: "ELVIS 4.5",
        had: "The operations a second of guests with disks had a standard deviation of 128, of 21,613.",
    },
    Plan {
        title: "Exits for 1,000 units of work",
        key: "exits_per_1000",
        by: By::Counts,
        note: "Exits of all these guests for any reason, with polled requests and completions by ELI.",
        place: "ELVIS 4.3",
        had: "Fewer than 800 exits a second for each guest. The baseline had 142,000 with one TCP stream, and 53,000 for each of 7.",
    },
    Plan {
        title: "Interrupts for a unit of work",
        key: "interrupts_per_unit",
        by: By::Pace,
        note: "",
        place: "ELVIS 4.3",
        had: "10,000 interrupts a second for each guest with a TCP stream of 1.45 Gbit/s.",
    },
];

/// The section of 1 to 7 guests.
pub fn scaling(part: &Value) -> Section {
    let rows: Vec<&Value> = part["rows"].as_array().into_iter().flatten().collect();
    let across = ("guests", "guests on one engine");
    Section {
        title: "1 to 7 guests on one engine (ELVIS 4.3, 4.4, 4.5, 4.7)",
        about: "Each guest makes the same load: requests one at a time to one other guest, a stream of full frames to it, or 32 requests in \
                flight to a RAM disk. `fine` is the schedule of ELVIS: short visits, and short queues are served early. `per-device` \
                visits each queue in turn, up to 64 requests. A visit of `fine` lasts 4 us by the platform's clock, in which an engine on an \
                emulator does little: there it ends after one portion of 16 requests (of 64 while no other queue has any), and `fine` pays for a visit more often than on \
                hardware. The paper's baseline had a thread for each device instead, and Linux's \
                scheduler; there is no such thing here.",
        platform: part["platform"].as_str().map(str::to_owned),
        quick: part["quick"] == true,
        charts: SCALING.iter().map(|plan| plan.chart(&rows, across, &["load", "scheduling"])).collect(),
    }
}

/// What the paper had of mixed loads.
const MIXED_HAD: &str = "7 guests, of which 1 to 6 with TCP streams: ELVIS' requests took 28 to 45 us longer than alone, and its streams lost 0 to \
                         32 %. The baseline's took 29 to 129 us longer, and its streams lost 16 to 52 %.";

const MIXED: [Plan; 6] = [
    Plan {
        title: "Frames of the streams from one answered request to the next",
        key: "frames_per_request",
        by: By::Pace,
        note: "Two frames through the engine make an answered request.",
        place: "ELVIS 4.6 (Figure 7)",
        had: MIXED_HAD,
    },
    Plan {
        title: "Turns of the engine that found work, for an answered request",
        key: "busy_turns_per_request",
        by: By::Pace,
        note: "With `fine` a turn is a visit to one queue, with `per-device` to all. So compare a schedule with itself only.",
        place: "ELVIS 4.6 (Figure 7)",
        had: MIXED_HAD,
    },
    Plan {
        title: "Average time of a request, as a multiple of that without streams",
        key: "average_to_alone",
        by: By::Ratio,
        note: "The first point is 1 by definition. The guest's reports, which are slow on a serial line, are in this time.",
        place: "ELVIS 4.6 (Figure 7)",
        had: MIXED_HAD,
    },
    Plan {
        title: "Median time of a request, as a multiple of that without streams",
        key: "p50_to_alone",
        by: By::Ratio,
        note: "The first point is 1 by definition. By the guest's own clock, of one series of requests.",
        place: "ELVIS 4.6 (Figure 7)",
        had: MIXED_HAD,
    },
    Plan {
        title: "99th percentile of the time of a request, as a multiple of that without streams",
        key: "p99_to_alone",
        by: By::Ratio,
        note: "The first point is 1 by definition. By the guest's own clock, of one series of requests.",
        place: "ELVIS 4.6 (Figure 7)",
        had: MIXED_HAD,
    },
    Plan {
        title: "A stream's frames a second, as a multiple of the only stream's",
        key: "stream_to_one",
        by: By::Ratio,
        note: "The average of the streams, without what was dropped. With one stream it is 1 by definition.",
        place: "ELVIS 4.6 (Figure 7)",
        had: MIXED_HAD,
    },
];

/// The section of requests beside streams.
pub fn mixed(part: &Value) -> Section {
    let rows: Vec<&Value> = part["rows"].as_array().into_iter().flatten().collect();
    let across = ("streams", "guests with streams beside one with requests");
    Section {
        title: "Requests beside streams (ELVIS 4.6)",
        about: "One guest makes requests, one at a time, to another guest. Beside it 0 to 6 guests stream full frames to a third one. \
                What the third one has no buffer for is dropped.",
        platform: part["platform"].as_str().map(str::to_owned),
        quick: part["quick"] == true,
        charts: MIXED.iter().map(|plan| plan.chart(&rows, across, &["scheduling"])).collect(),
    }
}
