//! A machine of which nothing is used but COM1 and COM2: the shell, `top` and a trace, with the emulator's own count of exits as the
//! judge.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use control::{GuestState, StopReason, TraceStep, Way};
use sidecore_trace::model::Damage;
use sidecore_trace::report::Report;
use sidecore_trace::resolve::Resolver;

use super::exits::compare_with_emulator;
use super::trace::saved;
use crate::boot::{Boot, alone};
use crate::counts::{all_exits, exits};
use crate::guests::{Guest, server, with_entries};
use crate::platform::Platform;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::Session;
use crate::terminal::{TOP_BYTES, bytes_of_top, com1, leave_top, open_guest, wait, wait_for_exits, wait_for_line};

/// This scenario.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "by serial cable only: on COM1 commands with TAB, `top` while a guest boots, the guest's console, a trace switched on; \
                 fetched over COM2, its exits by reason are the counters', and all of them the emulator's";
    let platforms = &[Platform::Qemu, Platform::Bochs];
    vec![alone(Scenario::new("cable", about, platforms).taking_turns(), cable)]
}

fn cable(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    // A ring holds all exits of a guest's life.
    let guest = Guest::new(1).started_later().then("obey");
    let mut setup = with_entries(server("cable", &[guest]), "[trace]\nmemory = \"1M\"\n");
    setup.memory_mib += 3;
    setup.typed = true;
    setup.record_exits = true;
    let mut session = context.boot(&setup)?;
    live(context, &mut session)?;

    let trace = saved(&mut session, TraceStep::Save)?;
    ensure!(trace.damage == Damage::default(), "{:?}", trace.damage);
    let report = Report::new(&trace, &Resolver::new(&[], &trace)?, None);
    let rows = report.guests.iter().find(|found| found.guest == "a").map(|guest| &guest.reasons);
    let traced: BTreeMap<String, u64> =
        rows.into_iter().flatten().map(|reason| (reason.reason.clone(), reason.row.samples)).collect();

    let counters = session.counters()?;
    let (counted, ours) = (exits(&counters, "a")?, all_exits(&counters, "a"));
    ensure!(traced == counted, "exits by reason, traced: {traced:?}; counted: {counted:?}");
    let figures = &mut context.figures;
    figures.at_least("reasons of exits", traced.len() as u64, 5)?;
    let records = report.records + report.lost;
    figures.exactly("records and losses, less the exits counted", records.abs_diff(ours), 0)?;
    figures.note("records lost", report.lost as f64);
    let typed = session.audit()?.iter().filter(|record| record.way == Way::Com1 && record.command == "start a").count();
    figures.exactly("`start a` on COM1 in the audit", typed, 1)?;
    session.shut_down()?;
    compare_with_emulator(context, &session, ours)
}

/// What an operator does at the cable: the trace is on for all of a guest's life.
fn live(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    let from = com1(session)?.len();
    session.type_until("\x15\r", "sidecore>", seconds(20))?;

    // Two commands begin like this.
    session.type_in("tra\t")?;
    wait_for_line(session, from, "sidecore> trace")?;
    session.type_in("\t")?;
    wait(session, from, "both commands and the line again", |text| {
        text.ends_with("\ntrace trace-eoi\nsidecore> trace").then_some(())
    })?;
    session.type_in(" on exits\r")?;
    wait_for_line(session, from, "sidecore>")?;
    session.type_in("trace show\r")?;
    wait(session, from, "that exits are traced", |text| text.contains("\non: exits; ").then_some(()))?;
    session.type_in("sta\t")?;
    wait_for_line(session, from, "sidecore> start")?;
    // There is one guest.
    session.type_in("\t")?;
    wait_for_line(session, from, "sidecore> start a")?;
    session.type_in("\r")?;
    session.state("a", GuestState::Running, seconds(60))?;

    session.type_in("top\r")?;
    let rate = wait_for_exits(session, from, "a")?;
    let bytes = bytes_of_top(session, from)?;
    let reason = open_guest(session, from)?;
    ensure!(reason.contains(char::is_alphabetic), "no reason of exits: {reason}");
    leave_top(session, from)?;
    let figures = &mut context.figures;
    figures.at_least("exits a second of the guest in `top`", rate, 1)?;
    figures.at_most("bytes a second of `top`", bytes, TOP_BYTES)?;

    session.result("a", "obey", seconds(240))?;
    let begun = session.console()?.len();
    session.type_in("attach a\r")?;
    session.shown("\"do\":\"obey\"", begun, seconds(60))?;
    session.type_in("poweroff\r")?;
    let reason = session.state("a", GuestState::Stopped, seconds(120))?;
    ensure!(reason == Some(StopReason::PowerOff), "guest a stopped for {reason:?}");
    session.type_until("\x1d\x15trace off\r", "sidecore>", seconds(60))?;
    session.type_in("trace show\r")?;
    wait(session, from, "that the trace is off", |text| text.contains("the trace is off").then_some(()))
}
