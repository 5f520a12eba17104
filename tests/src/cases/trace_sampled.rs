//! Traces that leave something out: records of one of so many exits, RIPs, and the ends of one interrupt that exit only because they
//! are watched.

use anyhow::{Context as _, Result, ensure};
use control::{Command, GuestState, StopReason, TraceStep};
use sidecore_trace::model::Damage;
use sidecore_trace::report::Report;
use sidecore_trace::resolve::Resolver;
use trace::Kind;

use super::trace::{command, saved};
use crate::boot::{Boot, alone};
use crate::counts::exits;
use crate::guests::{Guest, server, with_entries};
use crate::platform::{BOCHS, Platform};
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};
use crate::setup::Setup;

/// One of so many exits has a record.
const ONE_OF: u64 = 16;
/// The reason of exits at the end of an interrupt.
const EOI: &str = "virtual-eoi";
/// The vector of Linux' local timer, which `/proc/interrupts` counts as LOC.
const TIMER: u8 = 0xec;
/// Timer interrupts that the guest waits for.
const INTERRUPTS: u64 = 200;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let sampled = "one of 16 exits has a record, over a guest's whole life: of each reason exactly a sixteenth of what the counters \
                   say; saved without RIPs, no record has one";
    let eoi = "`trace eoi` for the vector of a guest's timer: as many exits as the guest itself counts timer interrupts; none \
               before and none after";
    vec![
        alone(
            Scenario::new("trace-sampled", sampled, &[Platform::Qemu, Platform::Bochs]).taking_turns(),
            one_of_sixteen,
        ),
        alone(Scenario::new("trace-eoi", eoi, BOCHS), ends_of_interrupts),
    ]
}

/// A server with a guest, whose core's ring loses nothing.
fn setup(name: &str, guest: Guest) -> Setup {
    let mut setup = with_entries(server(name, &[guest]), "[trace]\nmemory = \"1M\"\n");
    setup.memory_mib += 3;
    setup
}

fn one_of_sixteen(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let guest = Guest::new(1).started_later().then("obey");
    let mut session = context.boot(&setup("trace-sampled", guest))?;
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
    let trace = saved(&mut session, TraceStep::SaveWithoutRips)?;
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

/// Timer interrupts that guest `a` has counted, after so many more.
fn timer_interrupts(session: &mut Session, more: u64) -> Result<u64> {
    let said = session.act("a", &format!("timer-interrupts:{more}"), seconds(240))?;
    number(&said, "count")
}

fn eoi_exits(session: &mut Session) -> Result<u64> {
    Ok(exits(&session.counters()?, "a")?.get(EOI).copied().unwrap_or_default())
}

fn ends_of_interrupts(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let guest = Guest::new(1).completion("posted").then("obey");
    let mut session = context.boot(&setup("trace-eoi", guest))?;
    session.all_obey(["a"])?;
    timer_interrupts(&mut session, INTERRUPTS)?;
    let before = eoi_exits(&mut session)?;

    // What the guest counts between its inner two readings has exited for certain, and nothing outside of the outer two has.
    session.ask(command(TraceStep::On, true, "exits"), seconds(20))?;
    let first_outer = timer_interrupts(&mut session, 0)?;
    session.ask(Command::TraceEoi { guest: "a".to_owned(), vector: format!("{TIMER:#x}") }, seconds(20))?;
    let first_inner = timer_interrupts(&mut session, 0)?;
    let last_inner = timer_interrupts(&mut session, INTERRUPTS)?;
    session.ask(Command::TraceEoi { guest: "a".to_owned(), vector: "off".to_owned() }, seconds(20))?;
    let last_outer = timer_interrupts(&mut session, 0)?;
    let watched = eoi_exits(&mut session)? - before;
    session.ask(command(TraceStep::Off, false, ""), seconds(20))?;
    timer_interrupts(&mut session, INTERRUPTS)?;
    let after = eoi_exits(&mut session)? - before - watched;

    let trace = saved(&mut session, TraceStep::Save)?;
    session.shut_down()?;
    let records = trace.events.iter().map(|event| &event.record);
    let exits = records.filter(|record| record.known_kind() == Some(Kind::Exit));
    let ends: Vec<u64> = exits.filter(|record| trace.names.reason(record.code) == EOI).map(|record| record.b).collect();
    let others = ends.iter().filter(|vector| **vector != u64::from(TIMER)).count();

    let figures = &mut context.figures;
    figures.exactly("records lost", trace.lost(), 0)?;
    figures.exactly("such exits before it was on", before, 0)?;
    figures.exactly("such exits after it was off", after, 0)?;
    figures.at_least("timer interrupts that the guest counts while it is on", last_inner - first_inner, INTERRUPTS)?;
    figures.at_least("exits at their ends", watched, last_inner - first_inner)?;
    figures.at_most("the same, against the timer interrupts around it", watched, last_outer - first_outer)?;
    figures.exactly("records of them, less the exits counted", (ends.len() as u64).abs_diff(watched), 0)?;
    figures.exactly("records of them with another vector", others, 0)
}
