//! The operator's programs at the COM2 of a running machine: `sidecore-trace` and `sidecore-console` capture frames, and tshark reads them.

use std::io::{BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Command as Program, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::boot::{Boot, alone};
use crate::guests::{Guest, server};
use crate::platform::QEMU;
use crate::programs::{Folder, LiveFrames, Running, echoes, frames_at};
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};

const PINGS: u64 = 200;
/// Ends a hang only.
const LIMIT: Duration = Duration::from_secs(120);

/// This scenario.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "`sidecore-trace record` and the key `c` of `sidecore-console` capture a guest's frames by COM2 while it is pinged: tshark reads \
                 as many as the counters say";
    vec![alone(Scenario::new("operator-tools", about, QEMU).taking_turns(), tools)]
}

fn tools(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let folder = Folder::new("operator-tools")?;
    let com2 = folder.0.join("com2");
    let guests = [1, 2].map(|number| Guest::new(number).peer(3 - number).then("obey"));
    let mut setup = server("operator-tools", &guests);
    setup.shared_com2 = Some(com2.clone());
    let (trace, console) = (context.tool("sidecore-trace")?, context.tool("sidecore-console")?);
    let mut session = context.boot(&setup)?;
    session.all_obey(guests.iter().map(Guest::name))?;
    by_record(context, &mut session, trace, &com2)?;
    by_console(context, &mut session, &console, &com2, &folder.0.join("frames.pcapng"))?;
    session.shut_down().map(drop)
}

/// Waits until the audit has so many commands that begin like this.
fn audited(session: &mut Session, command: &str, count: usize) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let found = session.audit()?.iter().filter(|record| record.command.trim_end().starts_with(command)).count();
        if found == count {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "`{command}` is {found} times in the audit, expected {count}");
        thread::sleep(Duration::from_millis(200));
    }
}

/// `record --capture a -o -` with tshark at the pipe, until Ctrl-C.
fn by_record(context: &mut Context<'_>, session: &mut Session, mut program: Program, com2: &Path) -> Result<()> {
    program.args(["record", "--from", &format!("unix:{}", com2.display()), "--capture", "a", "-o", "-"]);
    let before = frames_at(&session.counters()?, "a")?;
    let program = program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut program = Running(program.spawn().context("cannot start sidecore-trace")?);
    let frames = LiveFrames::of(context, program.0.stdout.take().context("no pipe")?)?;
    audited(session, "captures", 1)?;
    let begun = frames_at(&session.counters()?, "a")?;
    let ping = session.act("b", &format!("ping:{PINGS}"), seconds(120))?;
    context.figures.exactly("record: pings answered", number(&ping, "received")?, PINGS)?;
    let after = frames_at(&session.counters()?, "a")?;
    let wanted = after - begun..=after - before;
    let live = frames.wait_for(*wanted.start(), LIMIT)?;
    ensure!(program.0.try_wait()?.is_none(), "sidecore-trace has ended");
    ensure!(wanted.contains(&live), "tshark has printed {live} frames, the port has counted {wanted:?}");

    let interrupt = Program::new("kill").args(["-INT", &program.0.id().to_string()]).status()?;
    ensure!(interrupt.success(), "kill: {interrupt}");
    let mut said = String::new();
    program.0.stderr.take().context("no errors")?.read_to_string(&mut said)?;
    let status = program.0.wait()?;
    ensure!(status.success(), "sidecore-trace: {status}: {said}");
    echoes(context, &frames.lines()?, ["record", "a"], PINGS)?;
    audited(session, "capture a off", 1)
}

/// The console in a terminal of 200 by 50, which `script` makes. `c` begins a capture and ends it, `q` quits.
fn by_console(
    context: &mut Context<'_>,
    session: &mut Session,
    program: &Program,
    com2: &Path,
    file: &Path,
) -> Result<()> {
    let program = program.get_program().display();
    let command = format!(
        "stty rows 50 cols 200; exec {program} --socket {} --view port --capture-of a --capture {}",
        com2.display(),
        file.display()
    );
    let mut script = Program::new("script");
    let script = script.args(["-qec", &command, "/dev/null"]).env("TERM", "xterm");
    let script = script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut script = Running(script.spawn().context("cannot start script (util-linux)")?);
    let mut keys = script.0.stdin.take().context("no keys")?;
    let shown = Arc::new(Mutex::new(Vec::new()));
    let (mut screen, all) = (BufReader::new(script.0.stdout.take().context("no screen")?), shown.clone());
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = screen.read(&mut bytes) {
            all.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&bytes[..length]);
        }
    });
    let shows = |what: &str| -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let text = String::from_utf8_lossy(&shown.lock().unwrap_or_else(PoisonError::into_inner)).into_owned();
            if text.contains(what) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the console does not show {what:?}: {text:?}");
            thread::sleep(Duration::from_millis(100));
        }
    };
    // The table of ports. A terminal gets no blanks, but moves of the cursor.
    shows("52:54:00:00:00:01")?;
    shows("52:54:00:00:00:02")?;
    let before = frames_at(&session.counters()?, "a")?;
    keys.write_all(b"c")?;
    audited(session, "captures", 2)?;
    let begun = frames_at(&session.counters()?, "a")?;
    let ping = session.act("b", &format!("ping:{PINGS}"), seconds(120))?;
    context.figures.exactly("console: pings answered", number(&ping, "received")?, PINGS)?;
    let after = frames_at(&session.counters()?, "a")?;
    keys.write_all(b"c")?;
    audited(session, "capture a off", 2)?;
    keys.write_all(b"q")?;
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = script.0.try_wait()? {
            break status;
        }
        ensure!(Instant::now() < deadline, "the console does not end");
        thread::sleep(Duration::from_millis(50));
    };
    ensure!(status.success(), "sidecore-console: {status}");
    let pcap = std::fs::File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    let lines = LiveFrames::of(context, pcap)?.lines()?;
    let (found, wanted) = (lines.len() as u64, after - begun..=after - before);
    ensure!(wanted.contains(&found), "{found} frames in the console's file, the port has counted {wanted:?}");
    echoes(context, &lines, ["console", "a"], PINGS)
}
