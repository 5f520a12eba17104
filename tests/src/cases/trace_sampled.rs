//! A trace that leaves something out: records of one of so many exits, and their RIPs.

use anyhow::{Context as _, Result, ensure};
use control::{Command, GuestState, StopReason, TraceStep};
use sidecore_trace::model::Damage;
use sidecore_trace::read;
use sidecore_trace::report::Report;
use sidecore_trace::resolve::Resolver;

use super::trace::{collect, command, ended};
use crate::boot::{Boot, alone};
use crate::counts::exits;
use crate::guests::{Guest, server, with_entries};
use crate::platform::Platform;
use crate::scenario::{Context, Scenario, seconds};

/// One of so many exits has a record.
const ONE_OF: u64 = 16;

/// This scenario.
pub fn list() -> Vec<Box<dyn Boot>> {
    let sampled = "one of 16 exits has a record, over a guest's whole life: of each reason exactly a sixteenth of what the counters \
                   say; saved without RIPs, no record has one";
    vec![alone(
        Scenario::new("trace-sampled", sampled, &[Platform::Qemu, Platform::Bochs]).taking_turns(),
        one_of_sixteen,
    )]
}

fn one_of_sixteen(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let guest = Guest::new(1).started_later().then("obey");
    let mut setup = with_entries(server("trace-sampled", &[guest]), "[trace]\nmemory = \"1M\"\n");
    setup.memory_mib += 3;
    let mut session = context.boot(&setup)?;
    session.ask(command(TraceStep::On, true, &format!("exits,1/{ONE_OF}")), seconds(20))?;
    let state = session.trace_state()?;
    ensure!(state.exits_one_of == Some(ONE_OF as u32) && state.classes == ["exits"], "{state:?}");
    let other = session.ask(command(TraceStep::On, true, "exits"), seconds(20));
    let why = other.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(why.contains("`trace off` first"), "samples and all exits in one trace: {why}");

    session.ask(Command::Start("a".to_owned()), seconds(60))?;
    session.result("a", "obey", seconds(240))?;
    session.tell("a", "poweroff")?;
    let reason = session.state("a", GuestState::Stopped, seconds(120))?;
    ensure!(reason == Some(StopReason::PowerOff), "guest a stopped for {reason:?}");
    let counted = exits(&session.counters()?, "a")?;
    session.ask(command(TraceStep::Off, false, ""), seconds(20))?;
    let arrived = collect(&mut session);
    session.ask(command(TraceStep::SaveWithoutRips, false, ""), seconds(20))?;
    let trace = read::bytes_of(&ended(&mut session, &arrived)?).context("no trace")?;
    session.shut_down()?;

    ensure!(trace.damage == Damage::default(), "{:?}", trace.damage);
    ensure!(trace.exits_one_of() == Some(ONE_OF as u32) && !trace.has_rips(), "{:?}", trace.scopes);
    let rips = trace.events.iter().filter(|event| event.record.a != 0).count();
    let report = Report::new(&trace, &Resolver::new(&[], &trace)?, Some(10));
    let of_a = report.guests.iter().find(|guest| guest.guest == "a").context("no exits of a")?;
    let wrong: Vec<String> = counted
        .iter()
        .filter_map(|(reason, &exits)| {
            let row = of_a.reasons.iter().find(|row| row.reason == *reason);
            let samples = row.map_or(0, |row| row.row.samples);
            (samples != exits.div_ceil(ONE_OF)).then(|| format!("{samples} samples of {exits} exits for {reason}"))
        })
        .collect();
    ensure!(wrong.is_empty(), "{}", wrong.join(", "));
    let figures = &mut context.figures;
    figures.exactly("records lost", report.lost, 0)?;
    figures.at_least("exits counted", counted.values().sum::<u64>(), 1_000)?;
    figures.at_least("reasons of exits, each with a sixteenth of its exits in the trace", counted.len(), 5)?;
    figures.exactly("records with a RIP, and blocks that say where the kernel is", rips + trace.kernels.len(), 0)
}
