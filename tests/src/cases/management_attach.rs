//! A guest's console by ssh, and the log of the management guest.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, UdpSocket};
use std::process::{ChildStdin, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use control::{Command, Event, GuestState, LEAVE_KEY};

use super::management::operator::{LOGIN, Operator};
use super::management::{NUMBER, is_ready, managed};
use crate::boot::{Boot, alone};
use crate::guests::{Guest, address, server};
use crate::platform::QEMU;
use crate::programs::{Folder, Running};
use crate::scenario::{Context, Scenario, seconds};
use crate::session::Session;
use crate::setup::{HOST_ADDRESS, Setup};

/// What is typed where the guest asks for it without an echo.
const SECRET: &str = "hunter2";

/// The question where the cursor is, which busybox's shell puts behind its prompt.
const CURSOR: &str = "\x1b[6n";

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "a guest's console by `ssh -tt`: a prompt and an echo without the end of their line are seen, what is typed with the echo \
                 off is not, nothing comes twice while a second login attaches, Ctrl-] leaves, `--raw` and the filter; the machine's events \
                 and audit come to a listener of syslog on another machine";
    vec![alone(Scenario::new("attach", about, QEMU).taking_turns(), attach)]
}

fn setup(keys: String, host_key: String, ssh: u16, log: u16) -> Setup {
    let server = server("attach", &[Guest::new(1).then("shell"), Guest::new(2).then("obey")]);
    let words = format!(" management.syslog={HOST_ADDRESS}:{log}");
    let mut setup = managed(server, "[\"view\", \"console\", \"operate\"]", &words, keys, Some(host_key));
    setup.forwards = vec![(ssh, address(NUMBER), 22)];
    setup
}

fn attach(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let folder = Folder::new("attach")?;
    let log = Listener::new()?;
    let mut operator = Operator::new(context, folder, 0)?;
    let (alice, bound) = (operator.new_key("alice")?, operator.new_key("bound")?);
    let host_key = operator.new_host_key()?;
    let setup = setup(format!("{alice}guests=b {bound}"), host_key, operator.ssh, log.port);
    let mut session = operator.context.boot(&setup)?;
    session.all_obey(["b"])?;
    is_ready(&mut session)?;
    operator.first_login(seconds(240))?;

    ensure!(operator.fails("bound", "attach a", 4)?.contains("of guest `a` is not for this key"));
    ensure!(operator.fails("alice", "attach nobody", 1)?.contains("no guest `nobody`"));
    ensure!(operator.fails("alice", "attach management", 1)?.contains("is not told its own output"));
    type_secretly(&mut operator, &mut session)?;
    filter(&mut operator)?;
    by_com2(&mut session)?;
    judge_log(&mut operator, &mut session, &log)?;
    session.shut_down().map(drop)
}

/// A login at a terminal that attaches to guest a.
struct Attached {
    running: Running,
    keys: ChildStdin,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Attached {
    fn new(operator: &mut Operator<'_, '_>, command: &str) -> Result<Self> {
        let mut ssh = operator.ssh_with("alice", &["-tt"], command)?;
        let ssh = ssh.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut running = Running(ssh.context("cannot start ssh")?);
        let keys = running.0.stdin.take().context("no keys")?;
        let mut from = running.0.stdout.take().context("no output")?;
        let shown = Arc::new(Mutex::new(Vec::new()));
        let all = shown.clone();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = from.read(&mut bytes) {
                all.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&bytes[..len]);
            }
        });
        Ok(Self { running, keys, shown })
    }

    /// All that was shown, but for [`CURSOR`].
    fn all(&self) -> String {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&shown).replace(CURSOR, "")
    }

    fn types(&mut self, keys: &str) -> Result<()> {
        self.keys.write_all(keys.as_bytes())?;
        Ok(self.keys.flush()?)
    }

    /// Waits until what was shown ends like this, but for blanks.
    fn ends_with(&self, text: &str) -> Result<()> {
        let deadline = Instant::now() + LOGIN;
        while !self.all().trim_end().ends_with(text) {
            ensure!(Instant::now() < deadline, "there is no {text:?} at the end of {:?}", self.all());
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Types a command, and waits for the prompt behind what it writes. Returns what was shown since.
    fn runs(&mut self, command: &str, writes: &str) -> Result<String> {
        let before = self.all().len();
        self.types(&format!("{command}\r"))?;
        let deadline = Instant::now() + LOGIN;
        loop {
            let all = self.all();
            let new = all.get(before..).unwrap_or_default();
            if new.find(writes).is_some_and(|at| new[at..].trim_end().ends_with('#')) {
                return Ok(new.to_owned());
            }
            ensure!(Instant::now() < deadline, "`{command}` does not write {writes:?}: {new:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Types Ctrl-], and waits for the end.
    fn leaves(mut self) -> Result<String> {
        self.types(&char::from(LEAVE_KEY).to_string())?;
        let deadline = Instant::now() + LOGIN;
        let status = loop {
            match self.running.0.try_wait()? {
                Some(status) => break status,
                None if Instant::now() > deadline => bail!("Ctrl-] does not leave: {:?}", self.all()),
                None => thread::sleep(Duration::from_millis(20)),
            }
        };
        ensure!(status.success(), "attach: {status}: {:?}", self.all());
        self.ends_with("left a")?;
        Ok(self.all())
    }
}

/// What is unfinished is seen, and what is secret is not.
fn type_secretly(operator: &mut Operator<'_, '_>, session: &mut Session) -> Result<()> {
    let mut person = Attached::new(operator, "attach a")?;
    // The shell has written its prompt long before, and it has no end of line.
    person.ends_with("#")?;
    // The guest's echo, without Enter.
    person.types("echo un''ended")?;
    person.ends_with("echo un''ended")?;
    person.types("\x15")?;

    person.types("stty -echo; printf 'wo''rd: '; read x; stty echo; echo len''gth=${#x}.\r")?;
    person.ends_with("word:")?;
    person.types(&format!("{SECRET}\r"))?;
    let length = format!("length={}.", SECRET.len());
    let deadline = Instant::now() + LOGIN;
    while !person.all().contains(&length) {
        ensure!(Instant::now() < deadline, "no {length} in {:?}", person.all());
        thread::sleep(Duration::from_millis(20));
    }

    // A script attaches too, and leaves. The person sees what it has done, once, and goes on.
    let script = operator.begin_ssh("alice", "attach a", b"echo by-a-scr''ipt; sleep 1\n")?.end(LOGIN)?;
    ensure!(script.status.success(), "attach without a terminal: {}", script.status);
    let seen = String::from_utf8_lossy(&script.stdout).into_owned();
    ensure!(!seen.contains("length="), "a script sees what was there before: {seen:?}");
    person.runs("echo stays-on-$((40+2))", "stays-on-42")?;
    // The script's end has not ended it for the person.
    operator.context.figures.exactly("ends in the audit while one is attached", followed(session, "off")?, 0)?;
    let all = person.leaves()?;
    for once in ["by-a-script", "stays-on-42", &length] {
        operator.context.figures.exactly(&format!("times that {once} was shown"), all.matches(once).count(), 1)?;
    }
    ensure!(!all.contains(SECRET), "what was typed without an echo is shown: {all:?}");
    ensure!(!all.contains("missing"), "{all:?}");
    operator.context.figures.exactly("attaches in the audit", followed(session, "on")?, 2)?;
    // The broker sees a little later that the person is gone.
    let deadline = Instant::now() + LOGIN;
    while followed(session, "off")? == 0 {
        ensure!(Instant::now() < deadline, "nobody is attached, and output is still sent");
    }
    operator.context.figures.exactly("ends in the audit when both are gone", followed(session, "off")?, 1)
}

/// How often the audit has that somebody has asked for a's output, or wants no more.
fn followed(session: &mut Session, on: &str) -> Result<usize> {
    let command = format!("follow a {on}");
    Ok(session.audit()?.iter().filter(|record| record.command.trim_end() == command).count())
}

/// The filter holds, unless it is not wanted.
fn filter(operator: &mut Operator<'_, '_>) -> Result<()> {
    let escapes = "printf 'be''gin\\033[?1049h\\033]0;title\\007\\033[31mred\\033[0mend\\n'";
    for (command, expected) in [
        ("attach a", "begin\x1b[31mred\x1b[0mend"),
        ("attach --raw a", "begin\x1b[?1049h\x1b]0;title\x07\x1b[31mred\x1b[0mend"),
    ] {
        let mut person = Attached::new(operator, command)?;
        person.ends_with("#")?;
        person.runs(escapes, expected)?;
        person.leaves()?;
    }
    Ok(())
}

/// Programs at COM2 may follow too.
fn by_com2(session: &mut Session) -> Result<()> {
    let follow = |on| Command::Follow { guest: "a".to_owned(), on };
    let sent = session.send(follow(true))?;
    let output = |event: &Event| match event {
        Event::Output { id, at, text, .. } => Some((*id, *at, text.clone())),
        _ => None,
    };
    let (id, at, earlier) = session.wait("output of a on COM2", seconds(60), output)?;
    let prompt = earlier.replace(CURSOR, "");
    ensure!(id == Some(sent) && prompt.trim_end().ends_with('#'), "{id:?}: {earlier:?}");
    let mut next = at + earlier.chars().count() as u64;
    session.ask(Command::Input { guest: "a".to_owned(), text: "echo un''ended".to_owned() }, seconds(20))?;
    let mut text = String::new();
    while !text.contains("echo un''ended") {
        let (id, at, new) = session.wait("the echo on COM2", seconds(60), output)?;
        ensure!(id.is_none() && at == next, "output at {at}, expected {next}");
        next += new.chars().count() as u64;
        text.push_str(&new);
    }
    session.ask(follow(false), seconds(20)).map(drop)
}

/// What came to a port of this machine's loopback.
struct Listener {
    port: u16,
    socket: UdpSocket,
    lines: Mutex<Vec<String>>,
}

impl Listener {
    fn new() -> Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_read_timeout(Some(Duration::from_secs(1)))?;
        Ok(Self { port: socket.local_addr()?.port(), socket, lines: Mutex::default() })
    }

    /// Waits for a message with this in it. Returns it.
    fn wait(&self, text: &str) -> Result<String> {
        let deadline = Instant::now() + LOGIN;
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(line) = lines.iter().find(|line| line.contains(text)) {
                return Ok(line.clone());
            }
            ensure!(Instant::now() < deadline, "no {text:?} in the log: {lines:#?}");
            let mut bytes = [0; 4096];
            if let Ok(len) = self.socket.recv(&mut bytes) {
                lines.push(String::from_utf8_lossy(&bytes[..len]).into_owned());
            }
        }
    }
}

/// The management guest's syslogd has forwarded what has happened.
fn judge_log(operator: &mut Operator<'_, '_>, session: &mut Session, log: &Listener) -> Result<()> {
    operator.says("alice", "kill b")?;
    session.state("b", GuestState::Stopped, seconds(60))?;
    let by_alice = format!("channel (alice, {HOST_ADDRESS}, says the agent): kill b: done");
    // Facility and severity (RFC 3164 4.1.1): the audit is 10, the machine is 3.
    for (text, priority) in [
        ("sidecore: guest b: stopped: killed", "<29>"),
        (by_alice.as_str(), "<85>"),
        ("the agent reports (bound", "<85>"),
        ("attach a: refused", "<84>"),
    ] {
        let line = log.wait(text)?;
        ensure!(line.starts_with(priority), "{line:?} does not begin with {priority}");
    }
    let lines = log.lines.lock().unwrap_or_else(PoisonError::into_inner);
    let is_plain = |line: &String| line.trim_end().chars().all(|c| matches!(c, ' '..='~'));
    ensure!(lines.iter().all(is_plain), "{lines:#?}");
    ensure!(!lines.iter().any(|line| line.contains("by-a-script")), "what guests write is in the log: {lines:#?}");
    operator.context.figures.at_least("messages that syslogd has forwarded", lines.len(), 4)
}

#[cfg(test)]
mod tests {
    use super::super::management::operator::written;
    use super::*;

    #[test]
    fn the_configuration_is_understood() {
        let parsed = config::parse("f", written(&setup("k".into(), "h".into(), 1, 2)).unwrap());
        assert_eq!(parsed.mistakes, []);
    }
}
