//! Keys that are bound to guests, and the picture of `top`, by OpenSSH's client: what the scenario `management` does not show.

use std::io::{Read, Write as _};
use std::process::{ChildStdin, ChildStdout, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use control::{Command, Event, Outcome};

use super::management::operator::{LOGIN, Operator};
use super::management::{NUMBER, managed};
use crate::boot::{Boot, alone};
use crate::guests::{Guest, address, server};
use crate::platform::QEMU;
use crate::programs::{Folder, LiveFrames, Running, echoes, frames_at};
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};
use crate::setup::{HOST_ADDRESS, Setup};

/// Pings of b to a, and of b to the host by the uplink, while frames are captured.
const PINGS: u64 = 100;

/// This scenario.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "COM1 says the fingerprint of the host key that the guest makes at boot. By ssh: a key bound to a guest captures the frames \
                 of its guest's port and of no other, as tshark counts them, also while others are captured; `top` on a terminal: its keys, \
                 its end, and what a bound key's picture has";
    vec![alone(Scenario::new("management-keys", about, QEMU).taking_turns(), keys)]
}

fn setup(keys: String, ssh: u16) -> Setup {
    let server = server("management-keys", &[Guest::new(1).then("obey"), Guest::new(2).peer(1).then("obey")]);
    let allow = "[\"view\", \"profile\", \"capture\", \"operate\"]";
    let mut setup = managed(server, allow, " management.metrics=off", keys, None);
    setup.forwards = vec![(ssh, address(NUMBER), 22)];
    setup
}

fn keys(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let folder = Folder::new("management-keys")?;
    let mut operator = Operator::new(context, folder, 0)?;
    let (alice, bound) = (operator.new_key("alice")?, operator.new_key("bound")?);
    let setup = setup(format!("{alice}guests=a {bound}"), operator.ssh);
    let mut session = operator.context.boot(&setup)?;
    operator.learn_host_key(&mut session)?;
    session.all_obey(["a", "b"])?;
    ensure!(operator.first_login(seconds(240))?.starts_with("sidecore "));
    captures(&mut operator, &mut session)?;
    picture(&mut operator)?;
    bound_picture(&mut operator)?;
    session.shut_down().map(drop)
}

/// A bound key captures at its guest's port, while b's port and the uplink are captured too, and is refused these.
fn captures(operator: &mut Operator<'_, '_>, session: &mut Session) -> Result<()> {
    for other in ["b", "management", "first"] {
        let why = operator.fails("bound", &format!("capture {other}"), 4)?;
        ensure!(why.contains("which is bound to: a"), "capture {other}: {why}");
    }
    ensure!(operator.fails("bound", "trace show", 4)?.contains("which is about all guests"));

    let before = frames_at(&session.counters()?, "a")?;
    let mut ssh = operator.ssh("bound", "capture a")?;
    let mut ssh = Running(ssh.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?);
    let pipe = ssh.0.stdout.take().context("no pipe")?;
    let mut frames = LiveFrames::of(operator.context, pipe)?;
    let deadline = Instant::now() + LOGIN;
    while !operator.says("alice", "trace show")?.contains("captured of a:") {
        ensure!(Instant::now() < deadline, "the capture does not begin");
    }
    // The hypervisor sends frames of all that is captured by the port that the agent reads.
    for (name, filter) in [("b", ""), ("first", "ethertype=ipv4")] {
        let others = Command::Capture { guest: name.to_owned(), filter: filter.to_owned() };
        session.ask(others, seconds(20))?;
    }
    let (begun, of_b) = (frames_at(&session.counters()?, "a")?, frames_at(&session.counters()?, "b")?);
    for target in ["", &format!(":{HOST_ADDRESS}")] {
        let ping = session.act("b", &format!("ping:{PINGS}{target}"), seconds(120))?;
        operator.context.figures.exactly("pings answered while captured", number(&ping, "received")?, PINGS)?;
    }
    let counters = session.counters()?;
    let after = frames_at(&counters, "a")?;
    // b's port has seen the pings to the host too.
    operator.context.figures.at_least("frames at b's port meanwhile", frames_at(&counters, "b")? - of_b, 4 * PINGS)?;
    let wanted = after - begun..=after - before;
    let live = frames.wait_for(*wanted.start(), LOGIN)?;
    ensure!(ssh.0.try_wait()?.is_none() && !frames.ended()?, "the capture has ended");
    ensure!(wanted.contains(&live), "tshark has printed {live} frames, a's port has counted {wanted:?}");
    drop(ssh);
    let lines = frames.lines()?;
    let others = lines.iter().filter(|line| !line.starts_with("a net0\t")).count();
    operator.context.figures.exactly("frames of other ports that the bound key has got", others, 0)?;
    echoes(operator.context, &lines, ["by a bound key", "a"], PINGS)?;
    for name in ["b", "first"] {
        session.ask(Command::Capture { guest: name.to_owned(), filter: "off".to_owned() }, seconds(20))?;
    }

    let json = operator.says("alice", "show audit --json")?;
    let Ok(Event::Audit { records, .. }) = Event::from_line(&json) else { bail!("no audit: {json}") };
    for (command, outcome) in
        [("capture a", Outcome::Done), ("capture b", Outcome::Refused), ("capture first", Outcome::Refused)]
    {
        let of_bound = records.iter().filter(|record| &*record.who == "bound");
        let found = of_bound.filter(|record| record.command.trim_end() == command && record.outcome == outcome).count();
        ensure!(found > 0, "no record of `{command}` by bound, {outcome:?}: {json}");
    }
    Ok(())
}

/// Programs on a terminal of 80x24 behind `ssh -tt`.
struct Terminal {
    running: Running,
    input: ChildStdin,
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: thread::JoinHandle<()>,
}

impl Terminal {
    /// Logs in with a key and gives a command. Without one the agent's prompt comes.
    fn open(operator: &mut Operator<'_, '_>, key: &str, command: Option<&str>) -> Result<Self> {
        // An empty command is none for ssh.
        let mut ssh = operator.ssh_with(key, &["-tt"], command.unwrap_or_default())?;
        ssh.env("TERM", "vt100");
        ssh.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut running = Running(ssh.spawn()?);
        let input = running.0.stdin.take().context("no input")?;
        let mut output: ChildStdout = running.0.stdout.take().context("no output")?;
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let kept = bytes.clone();
        let reader = thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut piece) {
                kept.lock().unwrap_or_else(PoisonError::into_inner).extend(piece.iter().take(count));
            }
        });
        Ok(Self { running, input, bytes, reader })
    }

    fn type_in(&mut self, text: &str) -> Result<()> {
        self.input.write_all(text.as_bytes())?;
        Ok(self.input.flush()?)
    }

    /// What the terminal shows now.
    fn screen(&self) -> Result<vt100::Screen> {
        let (rows, columns) = (24.try_into()?, 80.try_into()?);
        let mut terminal = vt100::Parser::new(rows, columns, 0);
        terminal.process(&self.bytes.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(terminal.screen().clone())
    }

    /// Waits until the terminal shows something that `wanted` accepts.
    fn wait(&self, what: &str, wanted: impl Fn(&vt100::Screen) -> bool) -> Result<String> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let screen = self.screen()?;
            if wanted(&screen) {
                return Ok(screen.contents());
            }
            ensure!(Instant::now() < deadline, "the terminal does not show {what}, but\n{}", screen.contents());
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits for ssh's end.
    fn end(mut self) -> Result<(ExitStatus, vt100::Screen)> {
        let deadline = Instant::now() + LOGIN;
        let status = loop {
            if let Some(status) = self.running.0.try_wait()? {
                break status;
            }
            ensure!(Instant::now() < deadline, "ssh does not end, and shows\n{}", self.screen()?.contents());
            thread::sleep(Duration::from_millis(20));
        };
        let (reader, bytes) = (self.reader, self.bytes);
        reader.join().ok().context("the reader panicked")?;
        let mut terminal = vt100::Parser::new(24.try_into()?, 80.try_into()?, 0);
        terminal.process(&bytes.lock().unwrap_or_else(PoisonError::into_inner));
        Ok((status, terminal.screen().clone()))
    }
}

/// The first words of the lines of guests, in their order.
fn guests(text: &str) -> Vec<&str> {
    let first = text.lines().filter_map(|line| line.split(' ').next());
    first.filter(|word| ["a", "b", "management"].contains(word)).collect()
}

/// `top` draws on a terminal, takes keys, and gives the terminal back.
fn picture(operator: &mut Operator<'_, '_>) -> Result<()> {
    let mut terminal = Terminal::open(operator, "alice", Some("top"))?;
    let text = terminal.wait("the picture with all guests", |screen| guests(&screen.contents()).len() == 3)?;
    ensure!(terminal.screen()?.alternate_screen() && terminal.screen()?.hide_cursor(), "{text}");
    ensure!(text.starts_with("sidecore top") && text.contains("guests run"), "{text}");
    ensure!(text.lines().all(|line| line.chars().count() <= 80) && text.lines().count() <= 24, "{text}");
    // Sorted by name, whatever they do.
    terminal.type_in("n")?;
    terminal.wait("the guests by name", |screen| guests(&screen.contents()) == ["a", "b", "management"])?;
    // The exits of the first guest by reason, and back.
    terminal.type_in("\r")?;
    terminal.wait("a guest's exits", |screen| screen.contents().lines().any(|line| line.starts_with("exit ")))?;
    terminal.type_in("\r")?;
    terminal.wait("the machine again", |screen| guests(&screen.contents()).len() == 3)?;
    terminal.type_in("q")?;
    let (status, screen) = terminal.end()?;
    operator.context.figures.exactly("exit code of `top`", status.code().context("a signal")?, 0)?;
    ensure!(!screen.alternate_screen() && !screen.hide_cursor(), "the terminal is not as it was");
    ensure!(!screen.contents().contains("guests run"), "the picture is still there:\n{}", screen.contents());

    // At the prompt the terminal serves the next command as before.
    let mut terminal = Terminal::open(operator, "alice", None)?;
    let is_prompt = |screen: &vt100::Screen| {
        !screen.alternate_screen() && screen.contents().lines().last().is_some_and(|line| line.starts_with("sidecore>"))
    };
    terminal.wait("a prompt", is_prompt)?;
    terminal.type_in("top\r")?;
    terminal.wait("the picture", |screen| screen.alternate_screen() && screen.contents().contains("guests run"))?;
    terminal.type_in("q")?;
    terminal.wait("the prompt again", is_prompt)?;
    terminal.type_in("version\r")?;
    terminal.wait("an answer", |screen| {
        screen.contents().lines().any(|line| line.starts_with("sidecore ") && !line.contains('>'))
    })?;
    terminal.type_in("\x04")?;
    let (status, _) = terminal.end()?;
    operator.context.figures.exactly("exit code of the prompt", status.code().context("a signal")?, 0)
}

/// The picture of a bound key has its guest, and nothing of others.
fn bound_picture(operator: &mut Operator<'_, '_>) -> Result<()> {
    let mut terminal = Terminal::open(operator, "bound", Some("top"))?;
    let text = terminal.wait("the picture of a bound key", |screen| !guests(&screen.contents()).is_empty())?;
    ensure!(guests(&text) == ["a"] && !text.contains("management"), "{text}");
    // Nor has the next guest's page another one.
    terminal.type_in("j\r")?;
    let text =
        terminal.wait("a guest's exits", |screen| screen.contents().lines().any(|line| line.starts_with("exit ")))?;
    ensure!(!text.contains("management") && !text.contains("guest b"), "{text}");
    terminal.type_in("\x03")?;
    let (status, _) = terminal.end()?;
    operator.context.figures.exactly("exit code of `top` after Ctrl-C", status.code().context("a signal")?, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::management::operator::written;

    #[test]
    fn the_configuration_is_understood() {
        let parsed = config::parse("f", written(&setup("k".into(), 1)).unwrap());
        assert_eq!(parsed.mistakes, []);
    }

    #[test]
    fn guests_are_found_in_a_picture() {
        assert_eq!(guests("sidecore top\nGUEST x\nb  1\na  2\nmore\n"), ["b", "a"]);
    }
}
