//! Compares the exits that sidecore counts with the emulator's own record.

use anyhow::{Context as _, Result, ensure};
use control::{GuestState, StopReason};

use crate::boot::{Boot, alone};
use crate::counts::all_exits;
use crate::guests::{Guest, server};
use crate::platform::Platform;
use crate::scenario::{Context, Scenario, seconds};

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "the exits we report against the emulator's own record, over a guest's whole life";
    vec![alone(Scenario::new("exit-count", about, &[Platform::Qemu, Platform::Bochs]), exit_count)]
}

fn exit_count(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = server("exit-count", &[Guest::new(1).then("poweroff")]);
    setup.record_exits = true;
    let mut session = context.boot(&setup)?;
    let reason = session.state("a", GuestState::Stopped, seconds(240))?;
    ensure!(reason == Some(StopReason::PowerOff), "guest a stopped for {reason:?}");
    let ours = all_exits(&session.counters()?, "a");
    session.shut_down()?;
    let theirs = session.recorded_entries()?.context("the emulator recorded nothing")?;
    context.figures.at_least("exits reported", ours, 1000)?;
    context.figures.at_least("exits recorded by the emulator", theirs, 1000)?;
    context.figures.at_most("difference", ours.abs_diff(theirs), theirs as f64 * 0.001)
}
