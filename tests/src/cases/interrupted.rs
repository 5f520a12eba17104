//! A machine that is kept from running, as firmware in system management mode does it: the emulator's process is stopped, and
//! its clocks go on.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use control::{Counters, Engine};
use serde_json::json;

use crate::boot::{Boot, alone};
use crate::guests::{Guest, server};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::Session;
use crate::setup::Setup;

/// Milliseconds of each short stop.
const SHORT: u64 = 30;
/// Milliseconds between two of them while the rate is measured.
const BETWEEN: u64 = 25;
/// The same while the engine's core is watched. That is for 20 ms, so it meets a stop.
const BETWEEN_WATCHED: u64 = 5;
/// Milliseconds of the long stop.
const LONG: u64 = 3000;

/// The beginning of the report's line on the engine's core.
const WATCHED: &str = "interruptions: the engine's core ";

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "QEMU's process is stopped for 30 ms again and again: the TSC's rate is that of an undisturbed boot within a thousandth, and \
                 the report says how long the engine's core was kept; stopped for three seconds later, the engine counts so long a gap";
    vec![alone(Scenario::new("interrupted", about, QEMU).taking_turns(), interrupted)]
}

fn setup() -> Setup {
    server("interrupted", &[Guest::new(1).then("obey")])
}

/// The process of the emulator.
struct Process(String);

impl Process {
    fn of(session: &mut Session) -> Result<Self> {
        let cpus = session.monitor("query-cpus-fast", &json!({}))?;
        let thread = cpus[0]["thread-id"].as_u64().context("QEMU does not say which threads it has")?;
        let status = std::fs::read_to_string(format!("/proc/{thread}/status"))?;
        let process =
            status.lines().find_map(|line| line.strip_prefix("Tgid:")).context("a thread without a process")?;
        Ok(Self(process.trim().to_owned()))
    }

    fn signal(&self, signal: &str) -> Result<()> {
        let status = Command::new("kill").args([signal, &self.0]).status().context("cannot start kill")?;
        ensure!(status.success(), "kill {signal} {}: {status}", self.0);
        Ok(())
    }

    /// Stops it for so many milliseconds.
    fn stop(&self, milliseconds: u64) -> Result<()> {
        self.signal("-STOP")?;
        sleep(Duration::from_millis(milliseconds));
        self.signal("-CONT")
    }
}

/// Stops the process again and again until people's console has this text. Returns how often.
fn stop_until(session: &mut Session, process: &Process, between: u64, text: &str) -> Result<u64> {
    let mut stops = 0;
    while !session.console()?.contains(text) {
        ensure!(stops < 10_000, "no `{text}`\n{}", session.console()?);
        process.stop(SHORT)?;
        sleep(Duration::from_millis(between));
        stops += 1;
    }
    Ok(stops)
}

fn engine(counters: &Counters) -> Result<&Engine> {
    counters.engines.first().context("no engine")
}

fn turns(counters: &Counters) -> Result<u64> {
    engine(counters).map(|engine| engine.idle_turns + engine.busy_turns)
}

fn interrupted(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut session = context.boot(&setup())?;
    session.all_obey(["a"])?;
    let quiet = session.counters()?.tsc_hz;
    session.shut_down()?;

    let mut session = context.boot(&setup())?;
    let process = Process::of(&mut session)?;
    // GRUB's menu. The rate is measured for 56 ms later, and said then: so it is measured through a stop at least.
    session.shown("Booting", 0, seconds(60))?;
    let stops = stop_until(&mut session, &process, BETWEEN, "TSC at")?;
    stop_until(&mut session, &process, BETWEEN_WATCHED, WATCHED)?;
    session.all_obey(["a"])?;
    let console = session.console()?;
    let kept = console.split_once(WATCHED).and_then(|(_, rest)| rest.split_once("had it for ")?.1.split_once(" us"));
    let kept = kept.and_then(|(micros, _)| micros.parse::<u64>().ok()).context("the report has no longest gap")?;
    let before = session.counters()?;
    process.stop(LONG)?;
    let first = session.counters()?;
    // The engine's core may go on later than the control core, which counts.
    let mut after = first.clone();
    while turns(&after)? == turns(&first)? {
        after = session.counters()?;
    }
    session.shut_down()?;

    let figures = &mut context.figures;
    figures.at_least("stops until the rate is said", stops, 2)?;
    figures.at_least("microseconds that the report says the engine's core was kept", kept, SHORT * 1000)?;
    ensure!(kept < LONG * 1000, "something else had the engine's core for {kept} us");
    let off = before.tsc_hz.abs_diff(quiet) * 1_000_000 / quiet;
    figures.at_most("the rate, parts in a million off that of an undisturbed boot", off, 1000)?;
    let gap = |counters: &Counters| anyhow::Ok(engine(counters)?.longest_idle_turn / (counters.tsc_hz / 1000));
    let (before, after) = (gap(&before)?, gap(&after)?);
    figures.note("milliseconds of the longest gap before", before as f64);
    ensure!(before < LONG, "something else had the engine's core for {before} ms");
    figures.at_least("milliseconds of the longest gap", after, LONG)
}
