//! The operator's shell on COM1, as a terminal of 80x24 shows it: completion, a message while a line is typed, `top`, and the audit.

use std::num::NonZero;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use control::{Command, GuestState, Outcome, Way};

use crate::scenario::{Context, seconds};
use crate::session::Session;

/// Seconds in which the bytes of `top` are counted.
const TOP_SECONDS: u64 = 5;
/// Most bytes that `top` sends in a second: a third of what 115,200 baud carry.
const TOP_BYTES: u64 = 4000;
/// Bytes of a line of the guest that is busy.
const LINE_BYTES: u64 = 200;

/// The bytes that COM1 has sent.
fn com1(session: &Session) -> Result<Vec<u8>> {
    session.file("com1")
}

/// What a terminal shows now, without blanks at the ends of lines, that got COM1 behind its first `from` bytes.
fn screen(session: &Session, from: usize) -> Result<String> {
    let (rows, columns) = (NonZero::new(24).context("no rows")?, NonZero::new(80).context("no columns")?);
    let mut terminal = vt100::Parser::new(rows, columns, 0);
    terminal.process(com1(session)?.get(from..).context("COM1 has become shorter")?);
    let text = terminal.screen().contents();
    let lines: Vec<&str> = text.trim_end().lines().map(str::trim_end).collect();
    Ok(lines.join("\n"))
}

/// Waits until the terminal shows something of which `wanted` accepts the text. Returns what that found.
fn wait<T>(session: &Session, from: usize, what: &str, wanted: impl Fn(&str) -> Option<T>) -> Result<T> {
    let deadline = Instant::now() + seconds(120);
    loop {
        let text = screen(session, from)?;
        if let Some(found) = wanted(&text) {
            return Ok(found);
        }
        if Instant::now() > deadline {
            bail!("the terminal does not show {what}, but\n{text}");
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Waits until the last line of the terminal is `line`. Returns the line before it.
fn wait_for_line(session: &Session, from: usize, line: &str) -> Result<String> {
    wait(session, from, &format!("{line:?} as its last line"), |text| {
        let mut lines = text.lines().rev();
        (lines.next()? == line).then(|| lines.next().unwrap_or_default().to_owned())
    })
}

/// The seconds in the first line of `top`.
fn uptime(text: &str) -> Option<u64> {
    let (_, rest) = text.lines().next()?.strip_prefix("sidecore top")?.split_once("up ")?;
    let mut parts = rest.split(' ').next()?.split(':').map(str::parse::<u64>);
    Some(parts.next()?.ok()? * 3600 + parts.next()?.ok()? * 60 + parts.next()?.ok()?)
}

/// The exits a second of a guest in `top`, and the reason of most of them.
fn exits(text: &str, guest: &str) -> Option<(u64, String)> {
    let mut fields = text.lines().find(|line| line.split(' ').next() == Some(guest))?.split_whitespace().skip(2);
    Some((fields.next()?.trim_end_matches('K').parse().ok()?, fields.next()?.to_owned()))
}

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
    let (rate, reason) = wait(session, from, "exits of guest a in `top`", |text| {
        exits(text, "a").filter(|(rate, reason)| *rate > 0 && reason.contains(char::is_alphabetic))
    })?;
    let (bytes, begun) = (com1(session)?.len(), wait(session, from, "the time", uptime)?);
    ensure!(session.running()? == 2, "`list` on COM2 shows other guests");
    let ended = wait(session, from, "a later time", |text| uptime(text).filter(|up| *up >= begun + TOP_SECONDS))?;
    let bytes = com1(session)?.len() - bytes;
    let disturbed = screen(session, from)?.contains("flood 0000");
    session.type_in("\r")?;
    let of_guest = wait(session, from, "the exits of a guest by reason", |text| {
        let begin = text.lines().position(|line| line.starts_with("exit "))?;
        text.lines().nth(begin + 1).filter(|line| !line.trim().is_empty()).map(str::to_owned)
    })?;
    session.type_in("q")?;
    wait_for_line(session, from, "sidecore>")?;
    ensure!(!screen(session, from)?.contains("guests run"), "the picture is still there");

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
    figures.at_most("bytes a second of `top`", bytes as u64 / (ended - begun), TOP_BYTES)?;
    ensure!(!reason.is_empty() && !of_guest.is_empty(), "no reason of exits");
    Ok(())
}
