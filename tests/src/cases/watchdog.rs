//! The watchdog: a core that makes no progress in the hypervisor is named, with its function. Words on the kernel's command
//! line make a core spin.

use anyhow::{Result, ensure};
use control::{Event, GuestState, StopReason};

use crate::boot::{Boot, alone};
use crate::guests::{Guest, server};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::Session;

/// The function in which the core spins.
const WHERE: &str = "sidecore::options::spin";
/// The limit on the command lines below, in seconds.
const LIMIT: u64 = 5;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "a core without progress in the hypervisor, the control core, the engine's and a guest's one after the other: a \
                 line and an event name core and function; the first two stop the machine, the third its guest only";
    vec![alone(Scenario::new("watchdog", about, QEMU).taking_turns(), watchdog)]
}

/// Boots a machine whose core `core` gets stuck, without which it cannot go on. Checks the panic.
fn stops_the_machine(context: &mut Context<'_>, options: &'static str, core: u64, role: &str) -> Result<()> {
    let mut setup = server("watchdog", &[Guest::new(1).then("wait")]);
    setup.options = options;
    let mut session = context.boot(&setup)?;
    let (message, location, backtrace) = session.panicked(seconds(120))?;
    ensure!(message == format!("core {core}: {role} has made no progress for {LIMIT} s"), "{message} at {location}");
    ensure!(location.starts_with(WHERE), "it is said to be at {location}");
    ensure!(backtrace.iter().any(|entry| entry.contains(WHERE)), "the backtrace does not go through it: {backtrace:?}");
    session.wait_end(seconds(60))?;
    let line = format!("panic on core {core}: {role} has made no progress");
    context.figures.exactly(&format!("{role}: lines on COM1"), session.console()?.matches(&line).count(), 1)
}

fn next_stuck(session: &mut Session) -> Result<(u64, Option<String>, u64, Option<String>)> {
    session.wait("the event \"stuck\"", seconds(120), |event| match event {
        Event::Stuck { core, guest, seconds, at, .. } => Some((*core, guest.clone(), *seconds, at.clone())),
        _ => None,
    })
}

fn watchdog(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    stops_the_machine(context, "emulator watchdog=5 selftest=stuck-control", 0, "the control core")?;
    stops_the_machine(context, "emulator watchdog=5 selftest=stuck-engine", 1, "the engine's core")?;

    let mut setup = server("watchdog", &[Guest::new(1).then("wait"), Guest::new(2).then("obey")]);
    setup.options = "emulator watchdog=5 selftest=stuck-guest";
    let mut session = context.boot(&setup)?;
    let (core, guest, seconds_without, at) = next_stuck(&mut session)?;
    ensure!(guest.as_deref() == Some("a"), "it is said to be guest {guest:?}");
    ensure!(at.as_deref().is_some_and(|at| at.starts_with(WHERE)), "it is said to be at {at:?}");
    context.figures.exactly("seconds without progress", seconds_without, LIMIT as f64)?;
    let reason = session.state("a", GuestState::Stopped, seconds(60))?;
    ensure!(reason == Some(StopReason::Failed), "it stopped by {reason:?}");
    // The other guest's cores, the engine's and the control core were busy all the time, and nobody finds fault with them.
    session.all_obey(["b"])?;
    session.act("b", "seen", seconds(60)).map(drop)?;
    session.shut_down()?;
    let console = session.console()?;
    let line = format!("watchdog: core {core} has made no progress in the hypervisor for {LIMIT} s, at {WHERE}");
    context.figures.exactly("lines on COM1 that name it", console.matches(&line).count(), 1)?;
    let all =
        console.lines().filter(|line| line.contains("watchdog: core")).filter(|line| line.contains("no progress"));
    context.figures.exactly("cores of which the watchdog said so", all.count(), 1)
}
