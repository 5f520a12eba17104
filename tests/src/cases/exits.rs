//! Compares the exits that sidecore counts, and those that it traces, with the emulator's own record.

use anyhow::{Context as _, Result, ensure};
use control::{GuestState, StopReason, TraceStep};
use sidecore_trace::resolve::Resolver;
use sidecore_trace::symbols::Choice;

use super::trace::{command, saved};
use crate::boot::{Boot, alone};
use crate::counts::all_exits;
use crate::guests::{Guest, server, with_entries};
use crate::platform::Platform;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::Session;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "the exits we count and those we trace against the emulator's own record, over a guest's whole life; \
                 LSTAR and the IDT say where its kernel is";
    vec![alone(Scenario::new("exit-count", about, &[Platform::Qemu, Platform::Bochs]), exit_count)]
}

fn exit_count(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    // The core of a guest has a record for each exit, and no other records.
    let entry = "[trace]\non = [\"exits\"]\n";
    let mut setup = with_entries(server("exit-count", &[Guest::new(1).then("poweroff")]), entry);
    setup.record_exits = true;
    let mut session = context.boot(&setup)?;
    let reason = session.state("a", GuestState::Stopped, seconds(240))?;
    ensure!(reason == Some(StopReason::PowerOff), "guest a stopped for {reason:?}");
    let ours = all_exits(&session.counters()?, "a");
    let cores = session.trace_state()?.cores;
    let traced: u64 = cores.iter().filter(|core| core.user == "a").map(|core| core.records).sum();
    // What is left in the ring, and where the guest's kernel was.
    session.ask(command(TraceStep::Off, false, ""), seconds(20))?;
    let trace = saved(&mut session, TraceStep::Save)?;
    let choice = Choice { guest: "a".to_owned(), file: context.guest_kernel()?, offset: None };
    let notes = Resolver::new(&[choice], &trace)?.notes();
    let places: usize = notes.iter().filter(|note| note.checked && note.raw.is_empty()).map(|n| n.offsets.len()).sum();
    context.figures.exactly("places of the guest's kernel, by LSTAR and its IDT", places as u64, 1)?;
    session.shut_down()?;
    context.figures.exactly("exits traced, less those reported", traced.abs_diff(ours), 0)?;
    compare_with_emulator(context, &session, ours)
}

/// Compares the exits that sidecore has counted, which are those of all guests in all of their lives, with the emulator's record. The
/// machine has ended.
pub fn compare_with_emulator(context: &mut Context<'_>, session: &Session, ours: u64) -> Result<()> {
    let theirs = session.recorded_entries()?.context("the emulator recorded nothing")?;
    context.figures.at_least("exits reported", ours, 1000)?;
    context.figures.at_least("exits recorded by the emulator", theirs, 1000)?;
    // QEMU's record is exact.
    let most = if context.platform().is_qemu() { 0.0 } else { theirs as f64 * 0.001 };
    context.figures.at_most("difference", ours.abs_diff(theirs), most)
}
