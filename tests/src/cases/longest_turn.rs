//! How long a guest's request waits for another guest's portion of work, while that one does its worst. On Bochs the TSC counts
//! instructions of each core, so these are counts and no times.

use anyhow::{Context as _, Result, ensure};
use control::Command;

use crate::boot::{Boot, alone};
use crate::counts::net;
use crate::platform::BOCHS;
use crate::probes::{Probe, server};
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};

/// Requests of a series.
const REQUESTS: u32 = 1000;
/// Frames of 256 buffers that the engine has to take while series are made.
const FRAMES: u64 = 640;
/// Series, at least.
const SERIES: u64 = 4;
/// Instructions of the engine in a portion (`kernel/net/src/work.rs`), and those of one frame of 256 buffers, with which it may end.
const PORTION: u64 = 24_576;
const FRAME: u64 = 256 * 89 + 4_000;
/// Those of two portions, and as many again for the request itself, its answer, and turns without work.
const MOST: u64 = 4 * (PORTION + FRAME);

/// This scenario.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "a guest has the engine walk 64 chains of 256 buffers at once, again and again: another one's request is answered within \
                 a few portions of the engine's instructions";
    vec![alone(Scenario::new("longest-turn", about, BOCHS), longest_turn)]
}

/// What a series of requests took, in instructions: the median and the longest.
#[derive(Clone, Copy, Default)]
struct Series {
    median: u64,
    longest: u64,
}

/// Waits for the end of a series.
fn series(session: &mut Session, rate: u64) -> Result<Series> {
    let instructions = |ns: u64| ns * (rate / 1_000_000) / 1000;
    let said = session.result("p2", "latency", seconds(240))?;
    Ok(Series { median: instructions(number(&said, "p50_ns")?), longest: instructions(number(&said, "max_ns")?) })
}

fn taken(session: &mut Session) -> Result<u64> {
    Ok(net(&session.counters()?, "p1")?.tx_packets)
}

fn longest_turn(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let probes = [
        Probe::new(1, "eli", "obey").peer(3),
        Probe::new(2, "eli", &format!("latency:{REQUESTS}")).peer(3),
        Probe::new(3, "eli", "serve"),
    ];
    let mut session = context.boot(&server("longest-turn", &probes))?;
    session.result("p2", "ready", seconds(240))?;
    session.tell("p2", "")?;
    let rate = session.counters()?.tsc_hz;
    let alone = series(&mut session, rate)?;

    session.ask(Command::Watch(true), seconds(60))?;
    session.tell("p1", "chains:0")?;
    session.result("p1", "begins", seconds(120))?;
    let before = taken(&mut session)?;
    let mut attacked = Series::default();
    let mut count = 0_u64;
    while count < SERIES || taken(&mut session)? < before + FRAMES {
        let one = series(&mut session, rate)?;
        attacked = Series { median: attacked.median.max(one.median), longest: attacked.longest.max(one.longest) };
        count += 1;
    }
    let frames = taken(&mut session)? - before;
    session.tell("p1", "stop")?;
    session.result("p1", "chains", seconds(240))?;
    let after = session.counters()?;
    let watched =
        after.engines.first().and_then(|engine| engine.watched.as_ref()).context("the engine was not watched")?;

    let figures = &mut context.figures;
    figures.at_least("frames of 256 buffers", frames, FRAMES)?;
    figures.note("series of requests meanwhile", count as f64);
    figures.note("instructions of a request, median, without an attack", alone.median as f64);
    figures.note("instructions of a request, largest median of a series, during the attack", attacked.median as f64);
    figures.note("instructions of the longest request without an attack", alone.longest as f64);
    figures.at_most("instructions of the longest request during the attack", attacked.longest, MOST)?;
    figures.at_most("instructions of the engine's longest turn", watched.longest_turn, MOST)?;
    ensure!(session.running()? == 3, "a guest has stopped");
    session.shut_down().map(drop)
}
