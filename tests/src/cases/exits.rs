//! Whether the exits that sidecore counts are those that the emulator saw.

use anyhow::{Context as _, Result, ensure};
use control::{GuestState, StopReason};

use crate::guests::{Guest, server};
use crate::machine::Platform;
use crate::scenario::{Context, Scenario, seconds};

/// These scenarios.
pub fn list() -> Vec<Scenario> {
    vec![Scenario {
        name: "exit-count",
        about: "the exits we report against the emulator's own record, over a guest's whole life",
        platforms: &[Platform::Qemu, Platform::Bochs],
        slow_on_bochs: false,
        run: exit_count,
    }]
}

fn exit_count(context: &mut Context<'_>) -> Result<()> {
    let mut setup = server("exit-count", &[Guest::new(1).then("poweroff")]);
    setup.record_exits = true;
    let mut session = context.boot(&setup)?;
    let reason = session.state("a", GuestState::Stopped, seconds(240))?;
    ensure!(reason == Some(StopReason::PowerOff), "guest a stopped for {reason:?}");
    let counters = session.counters()?;
    let ours = counters.guest("a").map_or(0, control::Guest::total_exits);
    session.shut_down()?;
    let theirs = session.recorded_entries()?.context("the emulator recorded nothing")?;
    context.figures.at_least("exits reported", ours, 1000)?;
    context.figures.at_least("exits recorded by the emulator", theirs, 1000)?;
    context.figures.at_most("difference", ours.abs_diff(theirs), theirs as f64 * 0.001)
}
