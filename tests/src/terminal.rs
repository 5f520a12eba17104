//! What a terminal of 80x24 at COM1 shows (the crate `vt100`), and what is read from the picture of `top`.

use std::num::NonZero;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::scenario::seconds;
use crate::session::Session;

/// Most bytes that `top` sends in a second: a third of what 115,200 baud carry.
pub const TOP_BYTES: u64 = 4000;
/// Seconds of the machine in which the bytes of `top` are counted.
const TOP_SECONDS: u64 = 5;

/// The bytes that COM1 has sent.
pub fn com1(session: &Session) -> Result<Vec<u8>> {
    session.file("com1")
}

/// What a terminal shows now, without blanks at the ends of lines, that got COM1 behind its first `from` bytes.
pub fn screen(session: &Session, from: usize) -> Result<String> {
    let (rows, columns) = (NonZero::new(24).context("no rows")?, NonZero::new(80).context("no columns")?);
    let mut terminal = vt100::Parser::new(rows, columns, 0);
    terminal.process(com1(session)?.get(from..).context("COM1 has become shorter")?);
    let text = terminal.screen().contents();
    let lines: Vec<&str> = text.trim_end().lines().map(str::trim_end).collect();
    Ok(lines.join("\n"))
}

/// Waits until the terminal shows something of which `wanted` accepts the text. Returns what that found.
pub fn wait<T>(session: &mut Session, from: usize, what: &str, wanted: impl Fn(&str) -> Option<T>) -> Result<T> {
    let limit = session.patient(seconds(120));
    let deadline = Instant::now() + limit;
    loop {
        let text = screen(session, from)?;
        if let Some(found) = wanted(&text) {
            return Ok(found);
        }
        if session.ended()? || Instant::now() > deadline {
            bail!("the terminal does not show {what}, but\n{text}");
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Waits until the last line of the terminal is `line`. Returns the line before it.
pub fn wait_for_line(session: &mut Session, from: usize, line: &str) -> Result<String> {
    wait(session, from, &format!("{line:?} as its last line"), |text| {
        let mut lines = text.lines().rev();
        (lines.next()? == line).then(|| lines.next().unwrap_or_default().to_owned())
    })
}

/// Waits until `top` shows that a guest exits. Returns how often a second.
pub fn wait_for_exits(session: &mut Session, from: usize, guest: &str) -> Result<u64> {
    wait(session, from, &format!("exits of guest {guest} in `top`"), |text| {
        let (rate, reason) = exits(text, guest)?;
        (rate > 0 && reason.contains(char::is_alphabetic)).then_some(rate)
    })
}

/// The bytes a second that `top` sends, by the machine's own time.
pub fn bytes_of_top(session: &mut Session, from: usize) -> Result<u64> {
    let (bytes, begun) = (com1(session)?.len(), wait(session, from, "the time", uptime)?);
    let ended = wait(session, from, "a later time", |text| uptime(text).filter(|up| *up >= begun + TOP_SECONDS))?;
    Ok((com1(session)?.len() - bytes) as u64 / (ended - begun))
}

/// Opens the first guest of `top`. Returns its first exits by reason, as a line.
pub fn open_guest(session: &mut Session, from: usize) -> Result<String> {
    session.type_in("\r")?;
    wait(session, from, "the exits of a guest by reason", |text| {
        let begin = text.lines().position(|line| line.starts_with("exit "))?;
        text.lines().nth(begin + 1).filter(|line| !line.trim().is_empty()).map(str::to_owned)
    })
}

/// Leaves `top`.
pub fn leave_top(session: &mut Session, from: usize) -> Result<()> {
    session.type_in("q")?;
    wait_for_line(session, from, "sidecore>")?;
    ensure!(!screen(session, from)?.contains("guests run"), "the picture is still there");
    Ok(())
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
