//! What is known of a machine: the last two readings of its counters, its report, and a log of its events. Everything is bounded,
//! whatever the machine sends.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use control::{Counters, Event, GuestState, Latency, Level, Platform, ReportKind, StopReason};

use crate::capture::Capture;
use crate::clean::{LINE, NAME, clean};
use crate::lines::Line;
use crate::rates::{MAX_REASONS, Pair};
use crate::sheet::Tone;
use crate::traced::{Known, Traced};

/// Most guests and engines that are shown. The hypervisor has fewer.
pub const MAX_GUESTS: usize = 256;
/// Most entries of the log of each kind: events, and lines of guests' consoles. Lines cannot push events out.
pub const MAX_LOG: usize = 1000;
/// Most devices of a guest or an engine of each kind, and stages of a device.
const MAX_DEVICES: usize = 64;
/// Most rows of how long exits took.
const MAX_LATENCY: usize = 5_000;
/// Most sentences of the report.
const MAX_REPORT: usize = 300;

/// Whether there is a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// It is being made.
    Opening,
    /// It is there.
    Up,
    /// It is not there.
    Down {
        /// Why.
        why: String,
        /// When the next attempt begins, by the clock of [`State::clock`].
        again: Duration,
    },
    /// The recording has ended.
    Ended,
}

/// Whether what is shown is what the machine does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// No counters have come yet.
    Nothing,
    /// Yes.
    Live,
    /// No: the last counters came so long ago.
    Old(Duration),
    /// It is the end of a recording.
    Ended,
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When it came.
    pub at: Duration,
    /// Its number.
    pub number: u64,
    /// What it is: a word for the event, such as `output` for a line of a guest's console. `link`, `record` and `watch` are
    /// entries of this program itself.
    pub kind: &'static str,
    /// How it is meant.
    pub tone: Tone,
    /// The guest that it is about, or empty.
    pub guest: String,
    /// The text.
    pub text: String,
}

/// What is known.
#[derive(Clone, Debug)]
pub struct State {
    /// Time since the program or the recording began.
    pub clock: Duration,
    /// The connection.
    pub link: Link,
    /// Time between two requests for counters. A reading that is three times as old, and 5 s at least, is old.
    pub interval: Duration,
    /// Its version, if the machine booted while we listened, or answered the request for it.
    pub version: Option<String>,
    /// Facts about the machine, if it booted while we listened.
    pub platform: Option<Platform>,
    /// The capability report.
    pub report: Vec<(ReportKind, String)>,
    /// Why each guest stopped, by its last `guest` event. `None`: the event gave no reason.
    pub told: BTreeMap<String, Option<StopReason>>,
    /// Guests beyond [`MAX_GUESTS`] in the last counters. They are not shown.
    pub hidden: usize,
    /// Lines that were no events, among them those that were too long.
    pub noise: u64,
    /// Readings of the counters so far.
    pub readings: u64,
    /// What has arrived of a trace.
    pub traced: Traced,
    /// The capture that goes on, until the machine has sent its end.
    pub capture: Option<Capture>,
    /// What it is written to takes nothing more.
    pub capture_failed: bool,
    /// The requests that have begun it.
    pub capture_ids: Range<u64>,
    /// The trace comes another way than the events. Then an event of a trace only tells its end, before all of it is here.
    pub traced_elsewhere: bool,
    /// The requests that have begun the trace: for its state, to switch it on, and to send it.
    pub trace_ids: Range<u64>,
    /// Records were being sent before, to another program.
    pub trace_taken: bool,
    /// The first of these requests that the machine has refused, and why.
    pub trace_refused: Option<(u64, String)>,
    /// The request whose answer is waited for.
    pub awaited: Option<u64>,
    /// How long exits, turns, visits and requests took, if the machine has said so.
    pub latency: Option<Latency>,
    now: Option<Counters>,
    before: Option<Counters>,
    read_at: Duration,
    events: VecDeque<Entry>,
    lines: VecDeque<Entry>,
    next: u64,
}

impl State {
    /// Makes an empty one. `interval`: the time between two requests for counters.
    #[must_use]
    pub fn new(interval: Duration) -> Self {
        Self {
            clock: Duration::ZERO,
            link: Link::Opening,
            interval,
            version: None,
            platform: None,
            report: Vec::new(),
            told: BTreeMap::new(),
            hidden: 0,
            noise: 0,
            readings: 0,
            traced: Traced::default(),
            capture: None,
            capture_failed: false,
            capture_ids: 0..0,
            traced_elsewhere: false,
            trace_ids: 0..0,
            trace_taken: false,
            trace_refused: None,
            awaited: None,
            latency: None,
            now: None,
            before: None,
            read_at: Duration::ZERO,
            events: VecDeque::new(),
            lines: VecDeque::new(),
            next: 0,
        }
    }

    /// The same, with the symbols of guests' kernels.
    #[must_use]
    pub fn with_symbols(self, known: Known) -> Self {
        Self { traced: Traced::new(known), ..self }
    }

    /// The last two readings of the counters. `None` before the first.
    #[must_use]
    pub fn pair(&self) -> Option<Pair<'_>> {
        self.now.as_ref().map(|now| Pair::new(now, self.before.as_ref()))
    }

    /// Whether what is shown is what the machine does now.
    #[must_use]
    pub fn freshness(&self) -> Freshness {
        let age = self.clock.saturating_sub(self.read_at);
        match (&self.link, &self.now) {
            (Link::Ended, _) => Freshness::Ended,
            (_, None) => Freshness::Nothing,
            (Link::Up, Some(_)) if age <= self.interval.saturating_mul(3).max(Duration::from_secs(5)) => {
                Freshness::Live
            }
            _ => Freshness::Old(age),
        }
    }

    /// Why a guest stopped, as far as an event said so.
    #[must_use]
    pub fn stop_reason(&self, guest: &str) -> Option<StopReason> {
        self.told.get(&clean(guest, NAME)).copied().flatten()
    }

    /// The log, in the order in which it came.
    #[must_use]
    pub fn log(&self) -> Vec<&Entry> {
        let mut all: Vec<&Entry> = self.events.iter().chain(&self.lines).collect();
        all.sort_by_key(|entry| entry.number);
        all
    }

    /// Adds an entry of this program's own to the log.
    pub fn say(&mut self, kind: &'static str, tone: Tone, text: &str) {
        self.add(kind, tone, "", text);
    }

    /// The connection was made.
    pub fn connected(&mut self, to: &str) {
        self.link = Link::Up;
        self.say("link", Tone::Plain, &format!("connected to {to}"));
    }

    /// There is no connection. `pause`: time until the next attempt.
    pub fn disconnected(&mut self, why: &str, pause: Duration) {
        let why = clean(why, LINE);
        if !matches!(&self.link, Link::Down { why: before, .. } if *before == why) {
            self.say("link", Tone::Bad, &format!("no connection: {why}"));
        }
        self.link = Link::Down { why, again: self.clock.saturating_add(pause) };
    }

    /// Takes a line.
    pub fn take(&mut self, line: &Line) {
        let event = match line {
            Line::Text(text) => Event::from_line(text),
            Line::TooLong => Err("a line is too long".into()),
        };
        match event {
            Ok(event) => self.event(event),
            Err(_) => self.noise = self.noise.saturating_add(1),
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Boot { version, platform } => {
                // Nothing of the life before is true any more.
                (self.now, self.before, self.hidden) = (None, None, 0);
                self.report.clear();
                self.told.clear();
                self.latency = None;
                self.traced.forget();
                self.add("boot", Tone::Plain, "", &format!("sidecore {version} booted"));
                self.version = Some(clean(&version, NAME));
                self.platform = Some(platform);
            }
            Event::Report(entry) => self.report(entry.kind, &entry.text),
            Event::ConfigError { file, line, column, value, message, guest } => {
                let text = format!("{file}:{line}:{column}: `{value}`: {message}");
                self.add("config", Tone::Bad, &guest.unwrap_or_default(), &text);
            }
            Event::Guest { guest, state, reason, detail } => self.guest(&guest, state, reason, detail),
            Event::Console { guest, line } => self.add("output", Tone::Quiet, &guest, &line),
            Event::Dropped { guest, messages, bytes } => {
                let text = format!("{messages} events, {bytes} bytes did not fit on the line");
                self.add("dropped", Tone::Warning, &guest.unwrap_or_default(), &text);
            }
            Event::Log { level, text } => {
                let tone = match level {
                    Level::Error => Tone::Bad,
                    Level::Warn => Tone::Warning,
                    Level::Info | Level::Debug | Level::Trace => Tone::Plain,
                };
                self.add("log", tone, "", &text);
            }
            Event::Counters(counters) => self.counters(counters),
            Event::Reply { id, ok, error, version, .. } => {
                self.awaited = self.awaited.filter(|awaited| id != Some(*awaited));
                if let Some(version) = version {
                    self.version = Some(clean(&version, NAME));
                }
                if !ok {
                    // A capture that the machine refuses has no end.
                    if id.is_some_and(|id| self.capture_ids.contains(&id)) {
                        self.capture_failed = true;
                    }
                    let error = error.as_deref().unwrap_or("without a reason");
                    if let Some(id) = id.filter(|id| self.trace_ids.contains(id)) {
                        self.trace_refused.get_or_insert_with(|| (id, clean(error, LINE)));
                    }
                    self.add("refused", Tone::Warning, "", error);
                }
            }
            Event::Stuck { core, guest, seconds, at, rip } => {
                let place = at.unwrap_or_else(|| rip.map_or("an unknown place".into(), |rip| format!("{rip:#x}")));
                let text = format!("core {core} made no progress for {seconds} s, at {place}");
                self.add("stuck", Tone::Bad, &guest.unwrap_or_default(), &text);
            }
            Event::Panic { message, location, .. } => {
                self.add("panic", Tone::Bad, "", &format!("{message} at {location}"));
            }
            Event::End { reason } => self.add("end", Tone::Warning, "", &format!("sidecore ended: {reason}")),
            Event::Trace { .. } if self.traced_elsewhere => {}
            Event::Trace { data, end } if self.capture.is_some() => self.captured(&data, end),
            Event::Trace { data, end } => {
                if !self.traced.take(&data, end) {
                    self.noise = self.noise.saturating_add(1);
                }
            }
            Event::Latency(mut latency) => {
                cut(&mut latency.rows, MAX_LATENCY);
                self.latency = Some(latency);
            }
            Event::TraceState(state) => {
                self.trace_taken |= state.saving && state.id.is_some_and(|id| self.trace_ids.contains(&id));
            }
            // Not shown: output that another program asked for, and records of commands.
            Event::Port { .. }
            | Event::Output { .. }
            | Event::Audit { .. }
            | Event::Config { .. }
            | Event::Modules { .. }
            | Event::Applied { .. } => {}
        }
    }

    /// Takes a piece of what is captured.
    fn captured(&mut self, data: &str, end: bool) {
        match STANDARD.decode(data) {
            Ok(bytes) => {
                let is_written = self.capture.as_ref().is_some_and(|capture| capture.take(bytes));
                self.capture_failed |= !is_written;
            }
            Err(_) => self.noise = self.noise.saturating_add(1),
        }
        if end {
            self.capture = None;
        }
    }

    fn report(&mut self, kind: ReportKind, text: &str) {
        let entry = (kind, clean(text, LINE));
        // The whole report comes again after each connection.
        if self.report.len() >= MAX_REPORT || self.report.contains(&entry) {
            return;
        }
        if kind == ReportKind::RequiredMissing {
            self.add("report", Tone::Bad, "", text);
        }
        self.report.push(entry);
    }

    fn guest(&mut self, guest: &str, state: GuestState, reason: Option<StopReason>, detail: Option<String>) {
        let why = reason.map_or(String::new(), |reason| format!(" ({})", reason.name()));
        let detail = detail.map_or(String::new(), |detail| format!(": {detail}"));
        let tone = match reason {
            Some(StopReason::PowerOff | StopReason::Reset | StopReason::Killed) | None => Tone::Plain,
            Some(_) => Tone::Bad,
        };
        self.add("guest", tone, guest, &format!("is {}{why}{detail}", state.name()));
        let name = clean(guest, NAME);
        if self.told.len() < MAX_GUESTS || self.told.contains_key(&name) {
            self.told.insert(name, reason);
        }
    }

    fn counters(&mut self, mut counters: Counters) {
        self.hidden = counters.guests.len().saturating_sub(MAX_GUESTS);
        bound(&mut counters);
        self.before = self.now.replace(counters);
        self.read_at = self.clock;
        self.readings = self.readings.saturating_add(1);
    }

    fn add(&mut self, kind: &'static str, tone: Tone, guest: &str, text: &str) {
        let entry =
            Entry { at: self.clock, number: self.next, kind, tone, guest: clean(guest, NAME), text: clean(text, LINE) };
        self.next = self.next.saturating_add(1);
        let ring = if kind == "output" { &mut self.lines } else { &mut self.events };
        if ring.len() >= MAX_LOG {
            ring.pop_front();
        }
        ring.push_back(entry);
    }
}

/// Cuts every list. The hypervisor's are shorter. Views compare lists with those of the reading before, entry by entry, so a long
/// one would keep the program busy.
fn bound(counters: &mut Counters) {
    cut(&mut counters.guests, MAX_GUESTS);
    cut(&mut counters.engines, MAX_GUESTS);
    for guest in &mut counters.guests {
        cut(&mut guest.vcpus, MAX_GUESTS);
        guest.vcpus.iter_mut().for_each(|vcpu| cut(&mut vcpu.exits, MAX_REASONS));
        cut(&mut guest.shadow_idt, MAX_REASONS);
        cut(&mut guest.refusals, MAX_REASONS);
        cut(&mut guest.ports, MAX_DEVICES);
        for port in &mut guest.ports {
            cut(&mut port.drops, MAX_REASONS);
            cut(&mut port.stages, MAX_DEVICES);
        }
        cut(&mut guest.blocks, MAX_DEVICES);
        guest.blocks.iter_mut().for_each(|block| cut(&mut block.counts, MAX_REASONS));
        cut(&mut guest.entropy, MAX_DEVICES);
        cut(&mut guest.consoles, MAX_DEVICES);
        guest.consoles.iter_mut().for_each(|console| cut(&mut console.ports, MAX_DEVICES));
    }
    for engine in &mut counters.engines {
        cut(&mut engine.uplinks, MAX_DEVICES);
        for uplink in &mut engine.uplinks {
            cut(&mut uplink.counts, MAX_REASONS);
            cut(&mut uplink.stages, MAX_DEVICES);
        }
        if let Some(watched) = &mut engine.watched {
            cut(&mut watched.visits, MAX_DEVICES);
        }
    }
}

fn cut<T>(list: &mut Vec<T>, most: usize) {
    list.truncate(most);
    list.shrink_to_fit();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        State::new(Duration::from_secs(1))
    }

    fn take(state: &mut State, line: &str) {
        state.take(&Line::Text(line.into()));
    }

    const READING: &str = r#"{"event":"counters","tsc":1000,"tsc_hz":1000,"hypervisor":{"memory":0,"memory_without_guests":0},"guests":[],"engines":[]}"#;

    #[test]
    fn lines_that_are_no_events_are_counted_and_do_no_harm() {
        let mut state = state();
        for line in ["", "{", "null", "[[[[", r#"{"event":"nonsense"}"#, r#"{"event":"counters","tsc":-1}"#] {
            take(&mut state, line);
        }
        state.take(&Line::TooLong);
        assert_eq!((state.noise, state.readings), (7, 0));
        take(&mut state, &"[".repeat(100_000));
        assert_eq!(state.noise, 8);
    }

    #[test]
    fn guests_output_pushes_no_event_out_and_the_log_is_bounded() {
        let mut state = state();
        take(&mut state, r#"{"event":"stuck","core":3,"guest":"a","seconds":60}"#);
        for n in 0..3 * MAX_LOG {
            take(&mut state, &format!(r#"{{"event":"console","guest":"a","line":"{n}"}}"#));
        }
        let log = state.log();
        assert_eq!((log.len(), log[0].kind, log[0].tone), (MAX_LOG + 1, "stuck", Tone::Bad));
        assert_eq!(log.last().map(|entry| entry.text.clone()), Some((3 * MAX_LOG - 1).to_string()));
    }

    #[test]
    fn texts_are_safe_before_they_are_kept() {
        let mut state = state();
        take(&mut state, r#"{"event":"console","guest":"a\u001b]0;x\u0007","line":"\u001b[2Jx\u202e"}"#);
        let entry = state.log()[0].clone();
        assert_eq!((&*entry.guest, &*entry.text), ("a\u{fffd}]0;x\u{fffd}", "x\u{fffd}"));
    }

    #[test]
    fn a_machine_that_boots_again_has_no_rates_with_its_life_before() {
        let mut state = state();
        take(&mut state, READING);
        take(&mut state, &READING.replace("\"tsc\":1000", "\"tsc\":2000"));
        assert_eq!(state.pair().unwrap().seconds(), Some(1.0));
        take(&mut state, r#"{"event":"boot","version":"9","virtualization":"svm","cores":4,"memory":1}"#);
        assert!(state.pair().is_none());
        take(&mut state, &READING.replace("\"tsc\":1000", "\"tsc\":9000"));
        assert_eq!(state.pair().unwrap().seconds(), None);
    }

    #[test]
    fn millions_of_guests_are_not_kept() {
        let mut state = state();
        for n in 0..10_000 {
            take(&mut state, &format!(r#"{{"event":"guest","guest":"g{n}","state":"running"}}"#));
        }
        assert_eq!(state.told.len(), MAX_GUESTS);
        let guest =
            r#"{"name":"x","state":"running","starts":1,"memory":1,"kept":1,"vcpus":[],"refusals":[],"ports":[]}"#;
        let many = vec![guest; 20_000].join(",");
        take(&mut state, &READING.replace("\"guests\":[]", &format!("\"guests\":[{many}]")));
        assert_eq!(state.pair().map(|pair| pair.now.guests.len()), Some(MAX_GUESTS));
        assert_eq!((state.hidden, state.noise), (20_000 - MAX_GUESTS, 0));
    }

    #[test]
    fn what_is_shown_gets_old_without_readings_and_without_a_connection() {
        let mut state = state();
        state.connected("x");
        assert_eq!(state.freshness(), Freshness::Nothing);
        take(&mut state, READING);
        assert_eq!(state.freshness(), Freshness::Live);
        state.clock = Duration::from_secs(6);
        assert_eq!(state.freshness(), Freshness::Old(Duration::from_secs(6)));
        take(&mut state, READING);
        assert_eq!(state.freshness(), Freshness::Live);
        state.disconnected("it ended", Duration::from_secs(1));
        assert_eq!(state.freshness(), Freshness::Old(Duration::ZERO));
        assert!(state.pair().is_some(), "the last state stays");
        // The same reason is said once.
        state.disconnected("it ended", Duration::from_secs(2));
        assert_eq!(state.log().iter().filter(|entry| entry.text.contains("it ended")).count(), 1);
    }
}
