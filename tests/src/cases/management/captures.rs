//! Captures by ssh: tshark reads the frames at a guest's port from a pipe while the guests ping, then the reader goes away.

use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use control::{Command, Event, Outcome, TraceStep};

use super::operator::{LOGIN, Operator};
use crate::cases::trace;
use crate::programs::{LiveFrames, Running, echoes, frames_at};
use crate::scenario::seconds;
use crate::session::{Session, number};

/// Waits until `trace show` says this, or does not say it any more.
fn shown(operator: &mut Operator<'_, '_>, what: &str, is_there: bool) -> Result<()> {
    let deadline = Instant::now() + LOGIN;
    loop {
        let shown = operator.says("alice", "trace show")?;
        if shown.contains(what) == is_there {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "`{what}`: {}: {shown}", if is_there { "is not shown" } else { "stays" });
    }
}

/// Waits until captured frames are not sent to the management guest any more. COM2, which asks, is busy with records.
fn not_sent(session: &mut Session) -> Result<()> {
    let deadline = Instant::now() + LOGIN;
    loop {
        let refused =
            session.ask(Command::Captures, seconds(20)).err().map(|error| error.to_string()).unwrap_or_default();
        if refused.contains("records are being sent on COM2 already") {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{refused}");
        thread::sleep(Duration::from_millis(200));
    }
}

/// tshark prints as many frames as a's port counts, before the capture ends. Meanwhile COM2 gets a trace. When ssh and tshark are
/// gone, the capture ends.
pub fn read_live(operator: &mut Operator<'_, '_>, session: &mut Session) -> Result<()> {
    ensure!(operator.fails("viewer", "capture a", 4)?.contains("needs the permission `capture`"));
    ensure!(operator.fails("bound", "capture b", 4)?.contains("which is bound to: a"));
    ensure!(operator.fails("alice", "capture nobody", 1)?.contains("there is no guest and no uplink `nobody`"));
    ensure!(operator.fails("alice", "capture a inn", 1)?.contains("did you mean `in`"));

    let arrived = trace::collect(session);
    session.ask(trace::command(TraceStep::On, false, "life"), seconds(20))?;
    session.ask(trace::command(TraceStep::Save, false, ""), seconds(20))?;
    let before = frames_at(&session.counters()?, "a")?;
    let mut ssh = operator.ssh("alice", "capture a")?;
    let mut ssh = Running(ssh.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?);
    let pipe = ssh.0.stdout.take().context("no pipe")?;
    let mut frames = LiveFrames::of(operator.context, pipe)?;
    shown(operator, "captured of a:", true)?;
    // The port of the guest has one reader, and captured frames go one way.
    ensure!(operator.fails("alice", "capture b", 1)?.contains("another client"));
    let begun = frames_at(&session.counters()?, "a")?;
    let refused = session.ask(Command::Captures, seconds(20)).err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(refused.contains("captured frames are being sent to the management guest already"), "{refused}");
    // Somebody at a cable captures b meanwhile.
    let of_b = |filter: &str| Command::Capture { guest: "b".to_owned(), filter: filter.to_owned() };
    session.ask(of_b(""), seconds(20))?;

    let ping = session.act("b", "ping:200", seconds(120))?;
    operator.context.figures.exactly("pings answered while captured", number(&ping, "received")?, 200)?;
    let after = frames_at(&session.counters()?, "a")?;
    let wanted = after - begun..=after - before;
    let live = frames.wait_for(*wanted.start(), LOGIN)?;
    ensure!(ssh.0.try_wait()?.is_none() && !frames.ended()?, "the capture has ended");
    ensure!(wanted.contains(&live), "tshark has printed {live} frames, the port has counted {wanted:?}");
    operator.context.figures.note("frames that tshark printed while the capture went on", live as f64);

    // The reader goes away while nothing comes.
    drop(ssh);
    echoes(operator.context, &frames.lines()?, ["by ssh", "a"], 200)?;
    shown(operator, "captured of a:", false)?;
    // What was captured for somebody else goes on without that reader.
    not_sent(session)?;
    shown(operator, "captured of b:", true)?;
    session.ask(of_b("off"), seconds(20))?;
    shown(operator, "captured of", false)?;
    let json = operator.says("alice", "show audit --json")?;
    let Ok(Event::Audit { records, .. }) = Event::from_line(&json) else { bail!("no audit: {json}") };
    let found: Vec<_> = records
        .iter()
        .filter(|record| &*record.who == "alice" && record.outcome == Outcome::Done)
        .map(|record| record.command.trim_end())
        .filter(|command| command.starts_with("capture"))
        .collect();
    ensure!(found == ["capture a", "captures", "capture a off"], "in the audit: {found:?}");

    // The trace on COM2 went on. An uplink is captured by the same command; what ssh itself sends is not taken.
    let read = operator.begin_ssh("alice", "capture first ethertype=0x88b5 --seconds 1", b"")?.end(LOGIN)?;
    let errors = String::from_utf8_lossy(&read.stderr).into_owned();
    // No frame of this type comes. The section's head is there.
    ensure!(read.status.success() && read.stdout.starts_with(b"\n\r\r\n"), "{:?}: {errors}", read.stdout);
    shown(operator, "the trace is off", false)?;
    session.ask(trace::command(TraceStep::Off, false, ""), seconds(20))?;
    let bytes = trace::ended(session, &arrived)?;
    trace::Read::new(&bytes).map(drop)
}
