//! Keeps a state up to date: cuts what comes into lines, records them, and asks for counters.

mod brought;
mod by_ssh;

use std::fs::{File, OpenOptions};
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result};
use control::{Command, Request, TraceStep, View};
use sidecore_trace::record::Capture as Wanted;
use sidecore_trace::record::com2::first_id;

use crate::capture::Capture;
use crate::clean::{LINE, clean};
use crate::lines::{Line, Lines};
use crate::link::{Agent, Clock, News, Requests, Way, keep_open, play};
use crate::options::Options;
use crate::record::Recorder;
use crate::sheet::Tone;
use crate::state::{Link, State};
use crate::traced::Known;

/// Time after which the counters are requested again if none came. A UART whose FIFO overflows loses bytes of a request. At
/// 115,200 baud the counters of 64 vCPUs take 12 s.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time that the program waits at its end for the machine to end the trace.
const END: Duration = Duration::from_secs(3);
/// Readings of counters for each request for how long exits, turns and requests take, which has as many bytes.
const LATENCY_EVERY: u64 = 4;
/// The same while the machine records nothing of it. Then the answer is short.
const LATENCY_SELDOM: u64 = 16;
/// What is traced.
const CLASSES: &str = "exits,histograms";
/// Time after which the program looks whether something is due.
const LOOK: Duration = Duration::from_millis(250);

/// The way that the command line names. `None`: a recording.
fn way(options: &Options) -> Option<Way> {
    let Options { socket, tcp, serial, baud, ssh, command, .. } = options;
    let socket = socket.clone().map(Way::Socket);
    let tcp = || tcp.clone().map(Way::Tcp);
    let serial = || serial.clone().map(|path| Way::Serial(path, *baud));
    socket.or_else(tcp).or_else(serial).or_else(|| ssh.clone().map(|host| Way::Ssh(host, command.clone())))
}

/// Where the lines come from, for the head of the screen.
#[must_use]
pub fn source(options: &Options) -> String {
    let text = match (way(options), &options.replay) {
        (Some(way), _) => way.to_string(),
        (None, Some(path)) => format!("replay {}", path.display()),
        (None, None) => String::new(),
    };
    clean(&text, LINE)
}

/// Starts to listen.
///
/// # Errors
/// The recording cannot be opened.
pub fn start<T: Send + 'static>(options: &Options, news: SyncSender<T>, wrap: fn(News) -> T) -> Result<()> {
    match (way(options), &options.replay) {
        (Some(way), _) => {
            keep_open(way, news, wrap);
            Ok(())
        }
        (None, Some(path)) => play(path, options.speed, options.until, news, wrap),
        (None, None) => Ok(()),
    }
}

/// A state that is kept up to date.
pub struct Feed {
    state: State,
    clock: Clock,
    lines: Lines,
    /// The port is people's too.
    shared: bool,
    recorder: Option<Recorder<File>>,
    requests: Option<Requests>,
    source: String,
    interval: Duration,
    /// Readings when the counters were requested last, and when that was.
    asked: Option<(u64, Duration)>,
    next_id: u64,
    watched: bool,
    traced: bool,
    /// Whether the trace is to be switched on as soon as there is a connection.
    trace_from_start: bool,
    /// Where captured frames go.
    capture_to: Option<String>,
    /// What is captured, if not the chosen port.
    capture_of: Option<Wanted>,
    /// Writes captured frames.
    writing: Option<JoinHandle<io::Result<()>>>,
    /// The agent behind ssh. Then the trace and captured frames come by another ssh.
    agent: Option<Agent>,
    /// What that brings now.
    brought: Option<brought::Brought>,
    /// Its other end is dropped when the target of the last capture by ssh has closed.
    reader: Option<Receiver<()>>,
}

impl Feed {
    /// Makes one, and the file of the recording if the command line wants one.
    ///
    /// # Errors
    /// The file exists already, or cannot be made.
    pub fn new(options: &Options) -> Result<Self> {
        let recorder = match &options.record {
            Some(path) => {
                let file = OpenOptions::new().write(true).create_new(true).open(path);
                let file = file.with_context(|| format!("cannot make {}", path.display()))?;
                Some(Recorder::new(file, options.record_limit.saturating_mul(1 << 20)))
            }
            None => None,
        };
        let interval = Duration::from_secs_f64(options.interval);
        let agent = options.ssh.as_ref().and_then(|host| Agent::of(host, &options.command));
        let mut state = State::new(interval).with_symbols(Known::read(&options.symbols)?);
        state.traced_elsewhere = agent.is_some();
        Ok(Self {
            state,
            clock: Clock::start(),
            lines: Lines::of_port(options.shared),
            shared: options.shared,
            recorder,
            requests: None,
            source: source(options),
            interval,
            asked: None,
            next_id: first_id(),
            watched: false,
            traced: false,
            trace_from_start: options.trace,
            capture_to: options.capture.clone(),
            capture_of: options.capture_of.clone(),
            writing: None,
            agent,
            brought: None,
            reader: None,
        })
    }

    /// What is known.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// Whether it is recorded.
    #[must_use]
    pub const fn is_recording(&self) -> bool {
        self.recorder.is_some()
    }

    /// Time until [`tick`](Self::tick) should be called.
    #[must_use]
    pub fn pause(&self) -> Duration {
        LOOK.min(self.interval)
    }

    /// Takes what a way tells.
    pub fn take(&mut self, news: News) {
        match news {
            News::Up(requests) => {
                self.lines = Lines::of_port(self.shared);
                self.requests = Some(requests);
                self.asked = None;
                self.state.connected(&self.source);
                self.end_line();
                self.ask(Command::Version);
                self.ask(Command::Report);
                // A connection that was made again goes on with it.
                if std::mem::take(&mut self.trace_from_start) {
                    self.trace();
                }
                self.tick();
            }
            News::Bytes(bytes, at) => self.bytes(&bytes, at),
            News::Down(why, pause) => {
                self.requests = None;
                self.state.disconnected(&why, pause);
            }
            News::Ended => self.state.link = Link::Ended,
        }
    }

    fn bytes(&mut self, bytes: &[u8], at: Option<Duration>) {
        if let Some(at) = at {
            self.state.link = Link::Up;
            self.state.clock = at;
        }
        let (state, recorder) = (&mut self.state, &mut self.recorder);
        self.lines.feed(bytes, |line| {
            if let (Line::Text(text), Some(open)) = (&line, recorder.as_mut())
                && let Err(error) = open.line(state.clock, text)
            {
                state.say("record", Tone::Bad, &format!("recording ended: {error}"));
                *recorder = None;
            }
            state.take(&line);
        });
    }

    /// Lets time pass, and asks for counters when it is time.
    pub fn tick(&mut self) {
        self.check_brought();
        if self.requests.is_none() {
            // The clock of a recording is the recording's.
            if matches!(self.state.link, Link::Opening | Link::Down { .. }) {
                self.state.clock = self.clock.now();
            }
            return;
        }
        self.state.clock = self.clock.now();
        self.check_capture();
        self.check_trace();
        let due = match self.asked {
            None => true,
            Some((readings, at)) => {
                let limit = if self.state.readings > readings { self.interval } else { PATIENCE.max(self.interval) };
                self.state.clock.saturating_sub(at) >= limit
            }
        };
        if due {
            if self.asked.is_some_and(|(readings, _)| self.state.readings == readings) {
                self.end_line();
            }
            self.asked = Some((self.state.readings, self.state.clock));
            self.ask(Command::Show(View::Counters));
            let is_recorded = self.traced || self.state.latency.as_ref().is_some_and(|latency| latency.on);
            if self.state.readings.is_multiple_of(if is_recorded { LATENCY_EVERY } else { LATENCY_SELDOM }) {
                self.ask(Command::Latency);
            }
        }
    }

    /// Asks the machine to switch the engines' profiles on, or off again.
    pub fn watch(&mut self) {
        if self.requests.is_none() {
            return self.state.say("watch", Tone::Warning, "there is no connection");
        }
        self.watched = !self.watched;
        self.ask(Command::Watch(self.watched));
        let word = if self.watched { "on" } else { "off" };
        self.state.say("watch", Tone::Plain, &format!("the engines' profiles are switched {word}"));
    }

    /// Asks the machine to trace exits and send what it has traced, or to end that.
    pub fn trace(&mut self) {
        if self.is_traced_by_ssh() {
            return self.end_brought();
        }
        if self.requests.is_none() {
            return self.state.say("trace", Tone::Warning, "there is no connection");
        }
        if self.state.capture.is_some() {
            return self.state.say("trace", Tone::Warning, "frames are captured; `c` ends that");
        }
        if let Some(agent) = self.agent.clone() {
            return self.trace_by_ssh(&agent);
        }
        self.traced = !self.traced;
        let step = |step, classes: &str| Command::Trace { step, stop: false, classes: classes.to_owned() };
        if self.traced {
            let first = self.next_id;
            self.ask(step(TraceStep::Show, ""));
            self.ask(step(TraceStep::On, CLASSES));
            self.ask(step(TraceStep::Save, ""));
            let state = &mut self.state;
            (state.trace_ids, state.trace_taken, state.trace_refused) = (first..self.next_id, false, None);
        } else {
            self.ask(step(TraceStep::Off, ""));
        }
        let word = if self.traced { "on" } else { "off" };
        self.state.say("trace", Tone::Plain, &format!("the trace of exits is switched {word}"));
    }

    /// Takes back what was asked for the trace if the machine has refused a part of it.
    fn check_trace(&mut self) {
        let Some((id, why)) = self.state.trace_refused.take().filter(|_| self.traced) else { return };
        self.traced = false;
        let last = self.state.trace_ids.end.saturating_sub(1);
        // It is on if only its sending was refused. A trace that another program takes stays on.
        if id == last && !self.state.trace_taken {
            self.ask(Command::Trace { step: TraceStep::Off, stop: false, classes: String::new() });
        }
        self.state.say("trace", Tone::Warning, &format!("no trace of exits: {why}; `t` tries again"));
    }

    /// Asks the machine to capture frames and send them, or to end that. `port`: the chosen one, as the view of ports names it.
    pub fn capture(&mut self, port: Option<&str>) {
        let warn = |state: &mut State, text: &str| state.say("capture", Tone::Warning, text);
        if self.is_captured_by_ssh() {
            return self.end_brought();
        }
        if self.requests.is_none() {
            return warn(&mut self.state, "there is no connection");
        }
        if self.state.capture.is_some() {
            return self.end_capture();
        }
        let Some(target) = self.capture_to.clone() else {
            return warn(&mut self.state, "start with --capture FILE, or --capture '|wireshark -k -i -'");
        };
        if self.traced {
            return warn(&mut self.state, "the trace of exits goes the same way; `t` ends it");
        }
        let is_read = matches!(self.reader.as_ref().map(Receiver::try_recv), Some(Err(TryRecvError::Empty)));
        if is_read || self.writing.as_ref().is_some_and(|writing| !writing.is_finished()) {
            return warn(&mut self.state, "the reader of the capture before is still there");
        }
        let wanted = match (&self.capture_of, port) {
            (Some(wanted), _) => wanted.clone(),
            (None, Some(port)) => {
                let (guest, net) = port.rsplit_once(':').unwrap_or((port, "0"));
                Wanted { guest: guest.to_owned(), filter: format!("net={net}") }
            }
            (None, None) => return warn(&mut self.state, "choose a port in the view of ports (4)"),
        };
        if let Some(agent) = self.agent.clone() {
            return self.capture_by_ssh(&agent, wanted, &target);
        }
        let (capture, writing) = Capture::start(&target, wanted.guest, wanted.filter);
        let first = self.next_id;
        self.ask(capture.on());
        self.ask(Command::Captures);
        self.state.capture_ids = first..self.next_id;
        let text = format!("frames of {} go to {target}; `c` ends that", capture.name);
        (self.state.capture, self.state.capture_failed, self.writing) = (Some(capture), false, Some(writing));
        self.state.say("capture", Tone::Plain, &clean(&text, LINE));
    }

    /// Asks the machine to end the capture. Its end comes later.
    fn end_capture(&mut self) {
        let Some(off) = self.state.capture.as_ref().map(Capture::off) else { return };
        self.ask(off);
        self.state.say("capture", Tone::Plain, "the capture ends");
    }

    /// Ends the capture if its frames cannot be written any more.
    fn check_capture(&mut self) {
        let has_ended = self.writing.as_ref().is_some_and(JoinHandle::is_finished);
        if !(has_ended || self.state.capture_failed) {
            return;
        }
        if let Some(Err(error)) = self.writing.take_if(|_| has_ended).and_then(|writing| writing.join().ok()) {
            self.state.say("capture", Tone::Warning, &format!("captured frames cannot be written: {error}"));
        }
        self.end_capture();
        (self.state.capture, self.state.capture_failed) = (None, false);
    }

    /// Switches the trace off, if it is on, and waits until the machine has ended it. `more` waits for what comes next, or for
    /// the time that it is given.
    pub fn end(&mut self, mut more: impl FnMut(Duration) -> Option<Option<News>>) {
        self.end_by_ssh(&mut more);
        if self.requests.is_none() || !self.traced && self.state.capture.is_none() {
            return;
        }
        if self.traced {
            self.trace();
        }
        self.end_capture();
        let since = self.clock.now();
        while !self.state.traced.is_over() || self.state.capture.is_some() {
            let left = END.saturating_sub(self.clock.now().saturating_sub(since));
            match more(left) {
                Some(Some(news)) => self.take(news),
                Some(None) => {}
                None => break,
            }
        }
        // Its file gets its end. A pipe may have no reader.
        self.state.capture = None;
        while self.writing.as_ref().is_some_and(|writing| !writing.is_finished())
            && self.clock.now().saturating_sub(since) < END
        {
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn ask(&mut self, command: Command) {
        let line = Request::new(Some(self.next_id), command).to_line();
        self.next_id = self.next_id.saturating_add(1);
        self.send_line(line);
    }

    /// Ends a line that somebody may have left unfinished, or that has lost its end. The agent has a line of its own for each ssh, and
    /// would refuse an empty one.
    fn end_line(&mut self) {
        if self.agent.is_none() {
            self.send_line("\n".into());
        }
    }

    fn send_line(&mut self, mut line: String) {
        let Some(requests) = &self.requests else { return };
        if self.shared {
            line.insert(0, char::from(control::RECORD));
        }
        if !requests.send(line) {
            self.state.say("link", Tone::Warning, "the machine takes no requests");
        }
    }
}
