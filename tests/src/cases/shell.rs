//! The operator's shell on COM1, as a terminal of 80x24 shows it: completion, a message while a line is typed, `top`, and the audit.

use anyhow::{Result, ensure};
use control::{Command, GuestState, Outcome, Way};

use crate::scenario::{Context, seconds};
use crate::session::Session;
use crate::terminal::{
    TOP_BYTES, bytes_of_top, com1, leave_top, open_guest, screen, wait, wait_for_exits, wait_for_line,
};

/// Bytes of a line of the guest that is busy.
const LINE_BYTES: u64 = 200;

/// Carries out the scenario. The guests are `a` and `b`. Guest `a` is killed.
pub fn run(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    let from = com1(session)?.len();
    session.type_until("\x15\r", "sidecore>", seconds(20))?;
    let before = session.audit()?;

    // TAB completes a command, and then lists the guests. A message comes while the line is typed.
    session.type_in("sta\t")?;
    wait_for_line(session, from, "sidecore> start")?;
    session.type_in("\t")?;
    let listed = wait(session, from, "the names of the guests", |text| {
        let names = text.strip_suffix("\nsidecore> start")?.lines().next_back()?;
        text.ends_with("sidecore> start\na b\nsidecore> start").then(|| names.split(' ').count())
    })?;
    session.ask(Command::Kill("b".to_owned()), seconds(20))?;
    session.state("b", GuestState::Stopped, seconds(60))?;
    let message = wait(session, from, "the message and the line after it", |text| {
        let mut lines = text.lines().rev();
        let line = lines.next()? == "sidecore> start";
        let message = lines.next()?;
        (line && message.contains("guest b: stopped: killed")).then(|| message.to_owned())
    })?;
    ensure!(!message.contains("sidecore>"), "the message is in the line: {message}");
    session.type_in("b\r")?;
    session.state("b", GuestState::Running, seconds(60))?;
    session.result("b", "obey", seconds(240))?;

    // A guest is busy, and writes all the time. COM2 is answered while COM1 shows the picture.
    session.act("a", &format!("console-flood:{LINE_BYTES}"), seconds(60))?;
    session.type_until("\x15\r", "sidecore>", seconds(20))?;
    session.type_in("top\r")?;
    let rate = wait_for_exits(session, from, "a")?;
    ensure!(session.running()? == 2, "`list` on COM2 shows other guests");
    let bytes = bytes_of_top(session, from)?;
    let disturbed = screen(session, from)?.contains("flood 0000");
    let of_guest = open_guest(session, from)?;
    leave_top(session, from)?;

    // Who did what, for a person and for a program.
    session.ask(Command::Kill("a".to_owned()), seconds(60))?;
    session.type_until("\x15show audit\r", "COM1: start b: done", seconds(20))?;
    let records = session.audit()?;
    let new = records.iter().filter(|record| !before.iter().any(|old| old.number == record.number));
    let done: Vec<_> = new
        .filter(|record| record.outcome == Outcome::Done && record.who.is_empty())
        .map(|record| (record.way, record.command.as_str()))
        .filter(|(_, command)| !command.starts_with("input"))
        .collect();
    let expected = [(Way::Com2, "kill b"), (Way::Com1, "start b"), (Way::Com2, "kill a")];
    ensure!(done == expected, "the audit has {done:?}");
    let figures = &mut context.figures;
    figures.exactly("guests that TAB lists", listed, 2)?;
    figures.exactly("new commands in the audit, in their order", done.len(), expected.len())?;
    figures.at_least("exits a second of the busy guest", rate, 1)?;
    figures.exactly("lines of the guest in the picture", usize::from(disturbed), 0)?;
    figures.at_most("bytes a second of `top`", bytes, TOP_BYTES)?;
    ensure!(!of_guest.is_empty(), "no reason of exits");
    Ok(())
}
