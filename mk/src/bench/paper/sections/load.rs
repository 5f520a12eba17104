//! VPE 5.1: the busy part of the engine's time.

use serde_json::Value;

use crate::bench::paper::chart::{By, Chart, Kind, Paper, Section, Series, Table, text};

/// What VPE had.
const VPE: Paper = Paper {
    place: "VPE 5.1, and Figures 8 and 10",
    had: "The engine was busy for 26.6 % of its time while a guest sent TCP (6,677 Mbit/s), and for 71.8 % while one received (4,319 Mbit/s). \
          With the paper's own protocol (LWEP) it was busy for 4 % at the sender and almost all of the time at the receiver. Without large \
          sends: 80 % and more with TCP, 49 % and 68 % with LWEP.",
    hardware: "Xeon E5345, Chelsio T3b (10 Gbit/s), Linux 2.6.24 and KVM-63, one guest with one virtual CPU",
};

/// The section of rising loads.
pub fn section(part: &Value) -> Section {
    let rows: Vec<&Value> = part["rows"].as_array().into_iter().flatten().collect();
    let chart = |title: &str, key: &'static str, by: By, note: &'static str| {
        let pick = |row: &Value| (offered(row), text(row, "frames"), row[key].as_f64());
        let (labels, series): (Vec<String>, Vec<Series>) = Table::of(rows.iter().copied(), pick).split();
        Chart {
            title: title.to_owned(),
            by,
            note,
            paper: VPE,
            kind: Kind::Lines,
            across: "frames a second that are offered",
            labels,
            series,
        }
    };
    let charts = vec![
        chart(
            "Engine's time that was busy, in percent",
            "busy_percent",
            By::Pace,
            "Busy is a turn that found work, as VPE's busy mode. The rest is its free mode: polling.",
        ),
        chart(
            "Frames a second that the engine took",
            "sent_per_second",
            By::Time,
            "Below what is offered where guest or engine is too slow.",
        ),
        chart("Frames in a turn that found work", "frames_per_busy_turn", By::Pace, ""),
    ];
    Section {
        title: "Busy and free engine against the load that is offered (VPE 5.1)",
        about: "One guest sends frames at a fixed rate. Short ones are to itself: the engine takes them and forwards them nowhere, so it copies nothing. That is not on its fast path. Full ones are \
                copied to another guest, or dropped where it has no buffer. The paper has no series of loads, only the highest of each test.",
        platform: part["platform"].as_str().map(str::to_owned),
        quick: part["quick"] == true,
        charts,
    }
}

/// The offered rate of a row, as a category.
fn offered(row: &Value) -> String {
    row["offered_per_second"].as_f64().map_or_else(|| "unlimited".to_owned(), |rate| format!("{rate}"))
}
