//! A conversation with a running sidecore over COM2: JSON lines, events one way and commands the other.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use control::{
    Command, Counters, Event, GuestState, GuestSummary, Latency, Record, Request, StopReason, TraceState, TraceStep,
    View,
};
use serde_json::{Value, json};

use crate::machine::Machine;
use crate::setup::config_address;

/// A line of COM2: an event, or why the line is no event.
type Incoming = Result<Event, String>;

/// Error: no event came within the limit.
#[derive(Debug)]
struct Silence(String);

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Silence {}

/// A function that gets each event as it arrives.
type Observer = Box<dyn FnMut(&Event)>;

/// Most times that the counters are requested until an answer comes.
const ASK_FOR_COUNTERS: usize = 3;

/// A running sidecore. Dropping it ends the emulator.
pub struct Session {
    machine: Box<dyn Machine>,
    commands: Box<dyn Write + Send>,
    events: Receiver<Incoming>,
    /// Nobody reads COM2.
    deaf: Arc<AtomicBool>,
    /// Events that arrived while the scenario waited for another one.
    waiting: Vec<Event>,
    /// Multiplies every limit.
    patience: u32,
    /// Called with each event as it arrives.
    observer: Option<Observer>,
    next_id: u64,
    /// The number of lines that were no events.
    noise: u64,
}

impl Session {
    /// Takes over a machine and the two directions of its COM2. Writes every line that arrives to `log` too.
    pub fn new(
        machine: Box<dyn Machine>,
        input: Box<dyn Read + Send>,
        commands: Box<dyn Write + Send>,
        log: Box<dyn Write + Send>,
        patience: u32,
    ) -> Self {
        let (sender, events) = mpsc::channel();
        let deaf = Arc::new(AtomicBool::new(false));
        let is_deaf = deaf.clone();
        thread::spawn(move || read_events(input, log, &sender, &is_deaf));
        Self { machine, commands, events, deaf, waiting: Vec::new(), patience, observer: None, next_id: 1, noise: 0 }
    }

    /// Calls `observer` with each event from now on.
    pub fn observe(&mut self, observer: impl FnMut(&Event) + 'static) {
        self.observer = Some(Box::new(observer));
    }

    /// Waits for an event that `pick` accepts. Keeps other events for later waits. `limit` is multiplied by the
    /// platform's patience. It only ends a hang.
    pub fn wait<T>(&mut self, what: &str, limit: Duration, mut pick: impl FnMut(&Event) -> Option<T>) -> Result<T> {
        if let Some((index, found)) = self.waiting.iter().enumerate().find_map(|(i, e)| Some((i, pick(e)?))) {
            self.waiting.remove(index);
            return Ok(found);
        }
        let deadline = Instant::now() + limit * self.patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let event = match self.events.recv_timeout(left) {
                Ok(Ok(event)) => event,
                // Firmware may write to the port before sidecore does.
                Ok(Err(_)) => {
                    self.noise += 1;
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => {
                    let waited = (limit * self.patience).as_secs();
                    bail!(Silence(format!("waited {waited} s for {what}\n{}", self.last_words())))
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("the emulator ended while waiting for {what}\n{}", self.last_words())
                }
            };
            if let Some(observer) = &mut self.observer {
                observer(&event);
            }
            if let Event::Panic { message, location, .. } = &event {
                bail!("sidecore panicked while waiting for {what}: {message} at {location}\n{}", self.last_words());
            }
            if let Some(found) = pick(&event) {
                return Ok(found);
            }
            self.waiting.push(event);
        }
    }

    /// Waits for sidecore's `boot` event. Returns its platform.
    pub fn booted(&mut self, limit: Duration) -> Result<control::Platform> {
        self.wait("the event \"boot\"", limit, |event| match event {
            Event::Boot { platform, .. } => Some(platform.clone()),
            _ => None,
        })
    }

    /// Waits until sidecore's control loop answers. A scenario calls it if it waits for no guest that starts with the machine. What is sent
    /// during the boot may be lost.
    pub fn answers(&mut self) -> Result<()> {
        let reply = |event: &Event| match event {
            Event::Reply { id, .. } => Some((*id, ())),
            _ => None,
        };
        self.ask_again("the end of the boot", &Command::Version, Duration::from_secs(10), 30, reply)
    }

    /// Waits for a panic that the scenario has caused. Returns its message, its place, and the backtrace.
    pub fn panicked(&mut self, limit: Duration) -> Result<(String, String, Vec<String>)> {
        let deadline = Instant::now() + limit * self.patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok(Ok(Event::Panic { message, location, backtrace })) => return Ok((message, location, backtrace)),
                Ok(_) => {}
                Err(_) => bail!("sidecore did not panic as asked\n{}", self.last_words()),
            }
        }
    }

    /// Waits until sidecore reports a guest in that state. Returns why it stopped, if it did.
    pub fn state(&mut self, name: &str, wanted: GuestState, limit: Duration) -> Result<Option<StopReason>> {
        self.wait(&format!("guest {name} to be {}", wanted.name()), limit, |event| match event {
            Event::Guest { guest, state, reason, .. } if guest == name && *state == wanted => Some(*reason),
            _ => None,
        })
    }

    /// Waits for a result line (`SC {"do":ACTION,...}`) of a guest's init. An error that the guest reports for the same
    /// action fails the scenario.
    pub fn result(&mut self, guest: &str, action: &str, limit: Duration) -> Result<Value> {
        let found = self.wait(&format!("{action:?} of guest {guest}"), limit, |event| {
            let (from, result) = guest_result(event)?;
            (from == guest && result["do"] == action).then_some(result)
        });
        let found = found.map_err(|error| anyhow!("{error:#}\n{}", self.last_words_of(guest)))?;
        if let Some(error) = found["error"].as_str() {
            bail!("guest {guest}, {action}: {error}");
        }
        Ok(found)
    }

    /// Sends an action to a guest that obeys.
    pub fn tell(&mut self, guest: &str, action: &str) -> Result<()> {
        let input = Command::Input { guest: guest.to_owned(), text: format!("{action}\n") };
        self.ask(input, Duration::from_secs(20)).map(drop)
    }

    /// Sends an action to a guest that obeys, and waits for the result.
    pub fn act(&mut self, guest: &str, action: &str, limit: Duration) -> Result<Value> {
        self.tell(guest, action)?;
        self.result(guest, action.split(':').next().unwrap_or(action), limit)
    }

    /// Types a line into the shell of a guest, and waits until it is done.
    pub fn in_shell(&mut self, guest: &str, line: &str, limit: Duration) -> Result<()> {
        // Each command has another number. The echo of the line has the sum, and not its result.
        let mark = self.next_id;
        let text = format!("{line}; echo MARK-$(({mark}+1000))\n");
        self.ask(Command::Input { guest: guest.to_owned(), text }, Duration::from_secs(20))?;
        let done = format!("MARK-{}", mark + 1000);
        self.wait(line, limit, |event| match event {
            Event::Console { guest: from, line } if from == guest && line.contains(&done) => Some(()),
            _ => None,
        })
    }

    /// Waits until all these guests obey.
    pub fn all_obey<'n>(&mut self, names: impl IntoIterator<Item = &'n str>) -> Result<()> {
        names.into_iter().try_for_each(|name| self.result(name, "obey", Duration::from_secs(240)).map(drop))
    }

    /// The guests as they are now.
    pub fn guests(&mut self) -> Result<Vec<GuestSummary>> {
        match self.ask(Command::List, Duration::from_secs(20))? {
            Event::Reply { guests: Some(guests), .. } => Ok(guests),
            other => bail!("the reply to `list` lists nothing: {other:?}"),
        }
    }

    /// One guest as it is now.
    pub fn guest(&mut self, name: &str) -> Result<GuestSummary> {
        let found = self.guests()?.into_iter().find(|guest| guest.name == name);
        found.with_context(|| format!("there is no guest {name}"))
    }

    /// The number of running guests.
    pub fn running(&mut self) -> Result<usize> {
        Ok(self.guests()?.iter().filter(|guest| guest.state == GuestState::Running).count())
    }

    /// Sends a command and returns its number.
    pub fn send(&mut self, command: Command) -> Result<u64> {
        let id = self.next_id;
        self.next_id += 1;
        let line = Request::new(Some(id), command).to_line();
        self.commands.write_all(line.as_bytes()).context("cannot write to COM2")?;
        self.commands.flush()?;
        Ok(id)
    }

    /// Sends a command and waits for the reply. A refusal is an error here. Sends the command once more if no reply
    /// comes in half of the time, because a UART whose FIFO overflows loses bytes, perhaps the end of the line.
    /// sidecore also answers a command that it has carried out already.
    pub fn ask(&mut self, command: Command, limit: Duration) -> Result<Event> {
        let what = format!("the reply to {command:?}");
        let reply = self.ask_again(&what, &command, limit / 2, 2, |event| match event {
            Event::Reply { id, .. } => Some((*id, event.clone())),
            _ => None,
        })?;
        if let Event::Reply { ok: false, error, .. } = &reply {
            bail!("{what}: {}", error.as_deref().unwrap_or("refused without a reason"));
        }
        Ok(reply)
    }

    /// Sends a command up to `times` times, until an answer comes. Waits for `limit` each time. `answers` returns the
    /// answer in an event, and the number of the request that it belongs to.
    fn ask_again<T>(
        &mut self,
        what: &str,
        command: &Command,
        limit: Duration,
        times: usize,
        answers: impl Fn(&Event) -> Option<(Option<u64>, T)>,
    ) -> Result<T> {
        let mut sent = Vec::new();
        loop {
            if !sent.is_empty() {
                // Ends the line before, which may have lost its end.
                self.commands.write_all(b"\n").context("cannot write to COM2")?;
            }
            sent.push(self.send(command.clone())?);
            let ours = |event: &Event| answers(event).filter(|(id, _)| id.is_some_and(|id| sent.contains(&id)));
            let answer = self.wait(what, limit, |event| ours(event).map(|(_, answer)| answer));
            let silence = answer.as_ref().is_err_and(|error| error.is::<Silence>());
            if !silence || sent.len() == times {
                return answer;
            }
        }
    }

    /// Reads all counters. Requests them again if no answer comes, because a UART whose FIFO overflows loses bytes of
    /// the command. Reading counters twice does no harm.
    pub fn counters(&mut self) -> Result<Counters> {
        self.counters_within(Duration::from_secs(10))
    }

    /// The same, with a new request after each `limit`.
    fn counters_within(&mut self, limit: Duration) -> Result<Counters> {
        let command = Command::Show(View::Counters);
        self.ask_again("the counters", &command, limit, ASK_FOR_COUNTERS, |event| match event {
            Event::Counters(counters) => Some((counters.id, counters.clone())),
            _ => None,
        })
    }

    /// Reads the counters until `holds` accepts them, with pauses. Gives up after some four minutes. `what`: what it waits for.
    pub fn counters_when(&mut self, what: &str, mut holds: impl FnMut(&Counters) -> bool) -> Result<Counters> {
        for _ in 0..1200 {
            let counters = self.counters()?;
            if holds(&counters) {
                return Ok(counters);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        bail!("{what}: not so within four minutes")
    }

    /// Reads the records of the audit.
    pub fn audit(&mut self) -> Result<Vec<Record>> {
        self.ask_again("the audit", &Command::Audit, Duration::from_secs(20), ASK_FOR_COUNTERS, |event| match event {
            Event::Audit { id, records } => Some((*id, records.clone())),
            _ => None,
        })
    }

    /// Reads how long exits, turns and visits took.
    pub fn latency(&mut self) -> Result<Latency> {
        self.ask_again("the latency", &Command::Latency, Duration::from_secs(10), 2, |event| match event {
            Event::Latency(latency) => Some((latency.id, latency.clone())),
            _ => None,
        })
    }

    /// Reads what each core has traced.
    pub fn trace_state(&mut self) -> Result<TraceState> {
        let show = Command::Trace { step: TraceStep::Show, stop: false, classes: String::new() };
        self.ask_again("the state of the trace", &show, Duration::from_secs(10), 2, |event| match event {
            Event::TraceState(state) => Some((state.id, state.clone())),
            _ => None,
        })
    }

    /// Tells sidecore to stop its guests and end. Waits for its `end` event and for the emulator's end. Returns the
    /// last counters that it sent.
    pub fn shut_down(&mut self) -> Result<Option<Counters>> {
        let limit = Duration::from_secs(60);
        let mut last = None;
        self.send(Command::Shutdown)?;
        self.wait("the event \"end\"", limit, |event| {
            if let Event::Counters(counters) = event {
                last = Some(counters.clone());
            }
            matches!(event, Event::End { .. }).then_some(())
        })?;
        self.wait_end(limit)?;
        Ok(last)
    }

    /// Waits for sidecore's event `end`.
    pub fn end(&mut self, limit: Duration) -> Result<()> {
        self.wait("the event \"end\"", limit, |event| matches!(event, Event::End { .. }).then_some(()))
    }

    /// Has sidecore shut down, on a machine that is no emulator to it, and waits for its end.
    pub fn shut_down_as_machine(&mut self) -> Result<()> {
        self.ask(Command::Shutdown, Duration::from_secs(20))?;
        self.end(Duration::from_secs(60))
    }

    /// Waits until the machine, which stays when it is off (`after_reset` of its setup), has switched itself off.
    pub fn off(&mut self, limit: Duration) -> Result<()> {
        let begun = Instant::now();
        while self.monitor("query-status", &json!({}))?["status"] != "shutdown" {
            ensure!(begun.elapsed() < limit, "the machine is not off\n{}", self.console()?);
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// All events that have arrived and that no wait has taken.
    pub fn unread(&mut self) -> &[Event] {
        while let Ok(line) = self.events.try_recv() {
            self.waiting.extend(line.ok());
        }
        &self.waiting
    }

    /// Drops all events that have arrived and that no wait has taken.
    pub fn forget(&mut self) {
        self.unread();
        self.waiting.clear();
    }

    /// Waits until the emulator's process has ended.
    pub fn wait_end(&mut self, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit * self.patience;
        while !self.machine.ended()? {
            if Instant::now() > deadline {
                bail!("the emulator still runs after {} s\n{}", (limit * self.patience).as_secs(), self.last_words());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// The output on COM1 so far.
    pub fn console(&self) -> Result<String> {
        self.machine.console()
    }

    /// A limit as this platform needs it: multiplied by its patience.
    #[must_use]
    pub fn patient(&self, limit: Duration) -> Duration {
        limit * self.patience
    }

    /// Sends bytes to COM2 as they are.
    pub fn write_com2(&mut self, bytes: &[u8]) -> Result<()> {
        self.commands.write_all(bytes).context("cannot write to COM2")
    }

    /// Reads COM2 no more, or again. What sidecore sends fills the emulator's buffers meanwhile.
    pub fn set_deaf(&mut self, deaf: bool) {
        self.deaf.store(deaf, Ordering::Relaxed);
    }

    /// Types on COM1. The setup must say `typed`.
    pub fn type_in(&mut self, text: &str) -> Result<()> {
        self.machine.type_in(text.as_bytes())
    }

    /// Types on COM1, again each second until COM1 shows something new that contains `answer`. Returns all that is new.
    pub fn type_until(&mut self, text: &str, answer: &str, limit: Duration) -> Result<String> {
        let before = self.console()?.len();
        self.type_in(text)?;
        let deadline = Instant::now() + limit * self.patience;
        let mut again = Instant::now() + Duration::from_secs(1);
        loop {
            let console = self.console()?;
            let new = console.get(before..).unwrap_or_default();
            if new.contains(answer) {
                return Ok(new.to_owned());
            }
            if self.machine.ended()? || Instant::now() > deadline {
                bail!("{text:?} on COM1 does not bring {answer:?}, but\n{new}");
            }
            if Instant::now() > again {
                self.type_in(text)?;
                again += Duration::from_secs(1);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until COM1 shows something that contains `text`, behind its first `from` bytes.
    pub fn shown(&mut self, text: &str, from: usize, limit: Duration) -> Result<String> {
        let deadline = Instant::now() + limit * self.patience;
        loop {
            let console = self.console()?;
            if let Some(at) = console.get(from..).and_then(|new| new.find(text)) {
                let line = console[from + at..].lines().next().unwrap_or_default();
                return Ok(line.to_owned());
            }
            if self.machine.ended()? || Instant::now() > deadline {
                bail!("COM1 does not show {text:?}\n{}", self.last_words());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The contents of a file in the folder of the machine's logs.
    pub fn file(&self, name: &str) -> Result<Vec<u8>> {
        self.machine.file(name)
    }

    /// See [`Machine::monitor`].
    pub fn monitor(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        self.machine.monitor(command, arguments)
    }

    /// Gives QEMU's monitor a command of its language for people. Returns the text that it says.
    pub fn monitor_text(&mut self, line: &str) -> Result<String> {
        let said = self.monitor("human-monitor-command", &json!({ "command-line": line }))?;
        Ok(said.as_str().with_context(|| format!("the monitor says no text to {line}: {said}"))?.to_owned())
    }

    /// Reads a register of a function by CONFIG_ADDRESS and CONFIG_DATA: see [`config_address`]. sidecore does not use these ports where there
    /// is an MCFG.
    pub fn pci_register(&mut self, function: u32, register: u32) -> Result<u32> {
        self.monitor_text(&format!("o/w 0xcf8 {:#x}", config_address(function, register)))?;
        let answer = self.monitor_text("i/w 0xcfc")?;
        let (_, digits) = answer.trim().rsplit_once("0x").with_context(|| format!("QEMU says {answer}"))?;
        u32::from_str_radix(digits, 16).with_context(|| format!("QEMU says {answer}"))
    }

    /// Resets the machine into the plain Linux of its setup's `after_reset`, and waits for the result line of one of
    /// its actions on COM1.
    pub fn reset_into_linux(&mut self, action: &str, limit: Duration) -> Result<Value> {
        let before = self.console()?.len();
        self.machine.reset_into_linux()?;
        let deadline = Instant::now() + limit * self.patience;
        loop {
            let console = self.console()?;
            let lines = console.get(before..).unwrap_or_default().lines();
            let results = lines.filter_map(|line| serde_json::from_str(line.trim().strip_prefix("SC ")?).ok());
            if let Some(found) = results.into_iter().find(|result: &Value| result["do"] == action) {
                if let Some(error) = found["error"].as_str() {
                    bail!("after the reset, {action}: {error}");
                }
                return Ok(found);
            }
            if self.machine.ended()? || Instant::now() > deadline {
                bail!("no result of {action} after the reset\n{}", self.last_words());
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// See [`Machine::recorded_entries`].
    pub fn recorded_entries(&self) -> Result<Option<u64>> {
        self.machine.recorded_entries()
    }

    /// Whether the process has ended.
    pub fn ended(&mut self) -> Result<bool> {
        self.machine.ended()
    }

    /// The last lines of a guest's console, for an error message.
    fn last_words_of(&self, name: &str) -> String {
        let lines = self.waiting.iter().filter_map(|event| match event {
            Event::Console { guest, line } if guest == name => Some(line.as_str()),
            _ => None,
        });
        let lines: Vec<&str> = lines.collect();
        let tail = &lines[lines.len().saturating_sub(40)..];
        format!("the last lines of guest {name}:\n  {}", tail.join("\n  "))
    }

    /// The last lines on COM1, and those of guests that have stopped and nobody has waited for it, for an error message.
    fn last_words(&self) -> String {
        let console = self.machine.console().unwrap_or_default();
        let lines: Vec<&str> = console.lines().collect();
        let tail = &lines[lines.len().saturating_sub(25)..];
        let noise =
            if self.noise > 0 { format!("{} lines of COM2 were no events\n", self.noise) } else { String::new() };
        let stopped = self.waiting.iter().filter_map(|event| match event {
            Event::Guest { guest, state: GuestState::Stopped, .. } => Some(guest.as_str()),
            _ => None,
        });
        let stopped: String = stopped.map(|name| format!("\nstopped: {}", self.last_words_of(name))).collect();
        format!("{noise}the last lines of COM1:\n  {}{stopped}", tail.join("\n  "))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.machine.kill();
    }
}

/// A number of a guest's result line.
pub fn number(result: &Value, name: &str) -> Result<u64> {
    result[name].as_u64().with_context(|| format!("no number {name:?} in {result}"))
}

/// The guest's name and the JSON object, if the event is a result line.
pub fn guest_result(event: &Event) -> Option<(&str, Value)> {
    let Event::Console { guest, line } = event else { return None };
    let object = line.trim_start().strip_prefix("SC ")?;
    Some((guest, serde_json::from_str(object.trim_end()).ok()?))
}

fn read_events(
    input: Box<dyn Read + Send>,
    mut log: Box<dyn Write + Send>,
    sender: &mpsc::Sender<Incoming>,
    deaf: &AtomicBool,
) {
    let mut reader = BufReader::new(input);
    let mut line = Vec::new();
    loop {
        while deaf.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(10));
        }
        line.clear();
        match reader.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        // An error in the log, which is for people, must not lose the event.
        let _ = log.write_all(&line).and_then(|()| log.flush());
        if sender.send(Event::from_line(&String::from_utf8_lossy(&line))).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    struct Still;

    impl Machine for Still {
        fn ended(&mut self) -> Result<bool> {
            Ok(false)
        }
        fn kill(&mut self) {}
        fn console(&self) -> Result<String> {
            Ok("a line of COM1".to_owned())
        }
        fn recorded_entries(&self) -> Result<Option<u64>> {
            Ok(None)
        }
    }

    fn session() -> (Session, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let commands = ours.try_clone().unwrap();
        (Session::new(Box::new(Still), Box::new(ours), Box::new(commands), Box::new(std::io::sink()), 1), theirs)
    }

    const LIMIT: Duration = Duration::from_secs(5);

    fn say(kernel: &mut UnixStream, event: &Event) {
        kernel.write_all(event.to_line().unwrap().as_bytes()).unwrap();
    }

    #[test]
    fn an_event_that_came_early_is_kept_for_the_wait_that_wants_it() {
        let (mut session, mut kernel) = session();
        kernel.write_all(b"SeaBIOS\n").unwrap();
        for state in [GuestState::Running, GuestState::Stopped] {
            say(&mut kernel, &Event::Guest { guest: "a".into(), state, reason: None, detail: None });
        }
        session.state("a", GuestState::Stopped, LIMIT).unwrap();
        session.state("a", GuestState::Running, LIMIT).unwrap();
    }

    #[test]
    fn a_guests_result_is_told_from_the_others() {
        let (mut session, mut kernel) = session();
        for guest in ["b", "a"] {
            let line = format!("SC {{\"do\":\"ping\",\"by\":\"{guest}\"}}");
            say(&mut kernel, &Event::Console { guest: guest.into(), line });
        }
        assert_eq!(session.result("a", "ping", LIMIT).unwrap()["by"], "a");
    }

    #[test]
    fn a_reply_is_matched_by_its_number_and_a_refusal_is_an_error() {
        let (mut session, mut kernel) = session();
        say(&mut kernel, &Event::refused(Some(2), "no guest x".into()));
        say(&mut kernel, &Event::done(Some(1)));
        session.ask(Command::List, LIMIT).unwrap();
        let error = session.ask(Command::Stop("x".into()), LIMIT).unwrap_err();
        assert!(error.to_string().contains("no guest x"));
        let mut sent = [0; 128];
        let length = kernel.read(&mut sent).unwrap();
        let first = std::str::from_utf8(&sent[..length]).unwrap().lines().next().unwrap();
        assert_eq!(Request::from_line(first), Ok(Request::new(Some(1), Command::List)));
    }

    #[test]
    fn counters_are_asked_for_again_where_the_command_was_lost() {
        let (mut session, mut kernel) = session();
        let answering = thread::spawn(move || {
            let mut lines = BufReader::new(kernel.try_clone().unwrap()).lines().map(Result::unwrap);
            // This sidecore ignores the first line.
            let second = lines.by_ref().filter(|line| !line.is_empty()).nth(1).unwrap();
            let id = Request::from_line(&second).unwrap().id;
            say(&mut kernel, &Event::Counters(Counters { id, ..Counters::default() }));
        });
        assert_eq!(session.counters_within(Duration::from_secs(2)).unwrap().id, Some(2));
        answering.join().unwrap();
    }

    #[test]
    fn a_panic_is_what_a_command_ends_in_and_it_is_not_sent_again() {
        let (mut session, mut kernel) = session();
        say(&mut kernel, &Event::Panic { message: "oops".into(), location: "x.rs:1".into(), backtrace: Vec::new() });
        assert!(session.ask(Command::List, LIMIT).unwrap_err().to_string().contains("oops"));
        assert_eq!(session.next_id, 2);
    }

    #[test]
    fn silence_ends_in_an_error_that_shows_com1() {
        let (mut session, _kernel) = session();
        let error = session.booted(Duration::from_millis(20)).unwrap_err();
        assert!(error.to_string().contains("a line of COM1"));
    }

    #[test]
    fn a_panic_ends_the_wait() {
        let (mut session, mut kernel) = session();
        say(&mut kernel, &Event::Panic { message: "oops".into(), location: "x.rs:1".into(), backtrace: Vec::new() });
        assert!(session.booted(LIMIT).unwrap_err().to_string().contains("oops"));
    }
}
