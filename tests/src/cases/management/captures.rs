//! Captures by ssh: tshark reads the frames at a guest's port from a pipe while the guests ping, then the reader goes away.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use control::{Command, Counters, Event, Outcome, TraceStep};

use super::operator::{LOGIN, Operator, Running};
use crate::cases::trace;
use crate::counts::net;
use crate::scenario::seconds;
use crate::session::{Session, number};

/// Frames that a's port has seen: sent, given to it, and dropped there.
fn seen(counters: &Counters) -> Result<u64> {
    let net = net(counters, "a")?;
    Ok(net.tx_packets
        + net.rx_packets
        + net.drops.iter().filter(|(cause, _)| cause.starts_with("rx_")).map(|(_, n)| n).sum::<u64>())
}

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
    let before = seen(&session.counters()?)?;
    let mut ssh = operator.ssh("alice", "capture a")?;
    let mut ssh = Running(ssh.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?);
    let pipe = ssh.0.stdout.take().context("no pipe")?;
    let mut tshark = operator.context.tshark(&["frame.interface_name", "icmp.type", "frame.comment"])?;
    let mut tshark = Running(tshark.stdin(pipe).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?);
    let lines = BufReader::new(tshark.0.stdout.take().context("no output of tshark")?).lines();
    let printed = Arc::new(AtomicU64::new(0));
    let counting = printed.clone();
    let reader = thread::spawn(move || {
        let lines = lines.map_while(Result::ok).inspect(|_| _ = counting.fetch_add(1, Relaxed));
        lines.collect::<Vec<_>>()
    });
    shown(operator, "captured of a:", true)?;
    // The port of the guest has one reader, and captured frames go one way.
    ensure!(operator.fails("alice", "capture b", 1)?.contains("another client"));
    let begun = seen(&session.counters()?)?;
    let refused = session.ask(Command::Captures, seconds(20)).err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(refused.contains("captured frames are being sent to the management guest already"), "{refused}");

    let ping = session.act("b", "ping:200", seconds(120))?;
    operator.context.figures.exactly("pings answered while captured", number(&ping, "received")?, 200)?;
    let after = seen(&session.counters()?)?;
    let wanted = after - begun..=after - before;
    let deadline = Instant::now() + LOGIN;
    while printed.load(Relaxed) < *wanted.start() {
        ensure!(Instant::now() < deadline, "tshark prints {} frames of {wanted:?}", printed.load(Relaxed));
        thread::sleep(Duration::from_millis(50));
    }
    let live = printed.load(Relaxed);
    ensure!(ssh.0.try_wait()?.is_none() && tshark.0.try_wait()?.is_none(), "the capture has ended");
    ensure!(wanted.contains(&live), "tshark has printed {live} frames, the port has counted {wanted:?}");
    operator.context.figures.note("frames that tshark printed while the capture went on", live as f64);

    // The reader goes away while nothing comes.
    drop(ssh);
    let lines = reader.join().ok().context("the reader panicked")?;
    for kind in ["8", "0"] {
        let found = lines.iter().filter(|line| **line == format!("a net0\t{kind}\tpassed")).count();
        operator.context.figures.at_least(&format!("echo messages of type {kind} that tshark printed"), found, 200)?;
    }
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
