//! A report as text, for people. Times are in microseconds.

use std::io::{self, Write};

use super::Report;
use super::rare::{Drops, Told};
use super::row::Row;
use crate::clock::Clock;
use crate::resolve::Note;

/// Prints a report. What is missing comes first.
///
/// # Errors
/// `out` fails.
pub fn print(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let clock = report.clock();
    let seconds = clock.microseconds(report.cycles as f64) / 1e6;
    writeln!(out, "{} records in {seconds:.3} s, TSC at {:.3} MHz", report.records, report.tsc_khz as f64 / 1e3)?;
    if !report.tsc_known {
        writeln!(out, "The trace does not name the TSC's frequency: each cycle is shown as a nanosecond.")?;
    }
    missing(report, out)?;
    for guest in &report.guests {
        let total = clock.microseconds(guest.cycles as f64) / 1e3;
        write!(out, "\nguest {}: ", guest.guest)?;
        match report.exits_one_of {
            Some(1) => writeln!(out, "{} exits, {total:.3} ms in the host", guest.exits)?,
            Some(of) => {
                let about = guest.exits.saturating_mul(of.into());
                writeln!(out, "{} samples of about {about} exits, {total:.3} ms of theirs in the host", guest.exits)?;
            }
            None => writeln!(out, "{} samples of more exits, {total:.3} ms of theirs in the host", guest.exits)?,
        }
        head("reason", out)?;
        guest.reasons.iter().try_for_each(|reason| row(&reason.reason, &reason.row, &clock, out))?;
    }
    symbols(report, out)?;
    if let Some(places) = &report.rips {
        let mut before = None;
        for place in places {
            if before != Some((&place.guest, &place.reason)) {
                writeln!(out, "\nguest {}: where {} comes from; shares are of this reason", place.guest, place.reason)?;
                head("address", out)?;
                before = Some((&place.guest, &place.reason));
            }
            row(&format!("{:#x}", place.rip), &place.row, &clock, out)?;
            if let Some(symbol) = &place.symbol {
                writeln!(out, "    {symbol}")?;
            }
        }
    }
    engines(report, &clock, out)?;
    if !report.journey.is_empty() {
        writeln!(out, "\nstages of requests and frames; shares are of the stage itself")?;
        head("stage", out)?;
        for stage in &report.journey {
            row(stage.stage, &stage.row, &clock, out)?;
            if stage.without_end > 0 {
                writeln!(out, "    {} more have no end in this trace", stage.without_end)?;
            }
        }
    }
    rare(report, &clock, out)
}

/// Says where guests' kernels are, and which addresses stay without a name.
fn symbols(report: &Report, out: &mut impl Write) -> io::Result<()> {
    if !report.symbols.is_empty() {
        writeln!(out)?;
    }
    for Note { guest, file, offsets, checked, raw } in &report.symbols {
        let file = file.display();
        for offset in offsets {
            let how = if *checked { "by LSTAR and the handler of page faults" } else { "not checked" };
            writeln!(out, "guest {guest}: its kernel is at {offset:#x} from the addresses in {file}, {how}")?;
        }
        for why in raw {
            writeln!(out, "guest {guest}: addresses stay raw: {why} ({file})")?;
        }
    }
    Ok(())
}

fn rare(report: &Report, clock: &Clock, out: &mut impl Write) -> io::Result<()> {
    if !report.drops.is_empty() {
        writeln!(out, "\n{:<24} {:<24} {:>9} {:>12}", "frames dropped at", "cause", "frames", "bytes")?;
    }
    for Drops { device, cause, frames, bytes } in &report.drops {
        writeln!(out, "{device:<24} {cause:<24} {frames:>9} {bytes:>12}")?;
    }
    if !report.told.is_empty() {
        writeln!(out, "\n{:>12}  told by the control core", "seconds")?;
    }
    for Told { at, guest, what, number } in &report.told {
        write!(out, "{:>12.3}  {what}", clock.microseconds(*at as f64) / 1e6)?;
        if let Some(guest) = guest {
            write!(out, " {guest}")?;
        }
        match number {
            Some(number) => writeln!(out, " {number:#x}")?,
            None => writeln!(out)?,
        }
    }
    Ok(())
}

fn missing(report: &Report, out: &mut impl Write) -> io::Result<()> {
    if report.lost == 0 {
        writeln!(out, "No record was lost.")?;
    } else {
        let by_core: Vec<String> =
            report.lost_by_core.iter().map(|(core, lost)| format!("core {core}: {lost}")).collect();
        let all = report.records.saturating_add(report.lost);
        writeln!(
            out,
            "LOST: {} of {all} records ({}). What follows is of the others.",
            report.lost,
            by_core.join(", ")
        )?;
    }
    if report.captured > 0 || report.captured_lost > 0 {
        let Report { captured, captured_lost: lost, .. } = report;
        writeln!(out, "{captured} captured frames, {lost} lost: see `export --format pcapng`.")?;
    }
    match report.exits_one_of {
        Some(1) => {}
        Some(of) => writeln!(out, "SAMPLED: 1 of {of} exits of a vCPU for the same reason has a record.")?,
        None => writeln!(out, "SAMPLED: not every exit has a record, and for how many there is one has changed.")?,
    }
    if !report.has_rips {
        writeln!(out, "This trace was saved without guests' RIPs.")?;
    }
    if report.damaged_bytes > 0 {
        writeln!(out, "DAMAGED: {} bytes are no sound part of a trace, and were skipped.", report.damaged_bytes)?;
    }
    Ok(())
}

fn engines(report: &Report, clock: &Clock, out: &mut impl Write) -> io::Result<()> {
    for engine in &report.engines {
        match engine.busy_turns {
            Some(_) => writeln!(out, "\nengine on core {}: {} requests in busy turns", engine.core, engine.requests)?,
            None => writeln!(out, "\nengine on core {}", engine.core)?,
        }
        head("turns, visits", out)?;
        for (name, turns) in [("busy turns", &engine.busy_turns), ("idle turns", &engine.idle_turns)] {
            if let Some(turns) = turns {
                row(name, turns, clock, out)?;
            }
        }
        // A queue may have completions only.
        for queue in engine.queues.iter().filter(|queue| queue.row.samples > 0) {
            row(&format!("{} queue {}", queue.device, queue.queue), &queue.row, clock, out)?;
        }
        if engine.queues.is_empty() {
            continue;
        }
        writeln!(
            out,
            "{:<24} {:>9} {:>9} {:>12} {:>9} {:>11} {:>9}",
            "queue", "requests", "a visit", "bytes", "us each", "completions", "told"
        )?;
        for queue in &engine.queues {
            let a_visit = ratio(queue.requests as f64, queue.row.samples);
            let each = ratio(clock.microseconds(queue.row.cycles as f64), queue.requests);
            writeln!(
                out,
                "{:<24} {:>9} {a_visit:>9.2} {:>12} {each:>9.3} {:>11} {:>9}",
                format!("{} queue {}", queue.device, queue.queue),
                queue.requests,
                queue.bytes,
                queue.completions,
                queue.notified
            )?;
        }
    }
    Ok(())
}

fn ratio(of: f64, by: u64) -> f64 {
    if by == 0 { 0.0 } else { of / by as f64 }
}

fn head(first: &str, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{first:<24} {:>9} {:>8} {:>8} {:>9} {:>10} {:>9} {:>9} {:>9} {:>9}",
        "samples", "samples%", "time%", "min us", "max us", "avg us", "+-", "p50 us", "p99 us"
    )
}

fn row(name: &str, row: &Row, clock: &Clock, out: &mut impl Write) -> io::Result<()> {
    let us = |ticks: u32| clock.microseconds(ticks.into());
    // A full field means that long or longer.
    let mark = if row.max == u32::MAX { ">" } else { "" };
    let max = format!("{mark}{:.2}", us(row.max));
    writeln!(
        out,
        "{name:<24} {:>9} {:>7.2}% {:>7.2}% {:>9.2} {max:>10} {:>9.2} {:>8.2}% {:>9.2} {:>9.2}",
        row.samples,
        row.samples_percent,
        row.cycles_percent,
        us(row.min),
        clock.microseconds(row.average),
        row.deviation_percent,
        us(row.p50),
        us(row.p99)
    )
}
