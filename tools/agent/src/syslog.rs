//! `syslog`: writes the machine's events to the log of this guest, as datagrams to `/dev/log` in the form of RFC 3164. Its syslogd stores
//! them, and forwards them if it is told to. What guests write to their consoles is not among them.
//!
//! - Whatever somebody outside may have chosen is escaped: a message is one line of printable ASCII, of at most 1,024 bytes.
//! - 200 messages may come at once, then one in a tenth of a second. The number of those that came faster is in the log.
//! - Nothing waits for syslogd. What it does not take is counted like what came too fast.

use std::fmt::Write as _;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use control::{Event, GuestState, Level, Outcome, Record, StopReason, show_records};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::client::{Broker, Client, Failed};

/// Messages that may come at once.
const AT_ONCE: u32 = 200;
/// Time until there may be one message more.
const PERIOD: Duration = Duration::from_millis(100);
/// Most bytes of a message (RFC 3164 4.1).
const MOST: usize = 1024;
/// What comes before the text of each message: the tag (RFC 3164 4.1.3).
const TAG: &str = "sidecore: ";
/// How long to wait for the end of a flood before its count is told.
const TELL: Duration = Duration::from_secs(1);

/// Where a message belongs (RFC 3164 4.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Facility {
    /// System daemons.
    Daemon = 3,
    /// Security and authorization messages, private: the audit.
    Private = 10,
}

/// How important a message is (RFC 3164 4.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Severity {
    Critical = 2,
    Error = 3,
    Warning = 4,
    Notice = 5,
    Informational = 6,
    Debug = 7,
}

/// A message for the log.
#[derive(Debug, PartialEq, Eq)]
struct Message {
    facility: Facility,
    severity: Severity,
    text: String,
}

impl Message {
    /// The datagram: one line of printable ASCII. syslogd adds its own time.
    fn datagram(&self) -> String {
        let mut line = format!("<{}>{TAG}", self.facility as u8 * 8 + self.severity as u8);
        for character in self.text.trim_end().chars() {
            let start = line.len();
            match character {
                '\\' => line.push_str("\\\\"),
                ' '..='~' => line.push(character),
                // Writing to a string does not fail.
                _ => _ = write!(line, "{}", character.escape_unicode()),
            }
            if line.len() > MOST {
                line.truncate(start);
                break;
            }
        }
        line
    }
}

/// What an event says in the log. Each event is named here, so that a new one is judged before this compiles again.
fn messages(event: Event) -> Vec<Message> {
    let daemon = |severity, text| vec![Message { facility: Facility::Daemon, severity, text }];
    match event {
        Event::Guest { guest, state, reason, detail } => {
            let mut text = format!("guest {guest}: {}", state.name());
            for why in reason.map(StopReason::name).into_iter().chain(detail.as_deref()) {
                text = format!("{text}: {why}");
            }
            daemon(of_guest(state, reason), text)
        }
        Event::ConfigError { file, line, column, value, message, .. } => {
            daemon(Severity::Warning, format!("{file}:{line}:{column}: {value}: {message}"))
        }
        Event::Dropped { guest, messages, bytes } => {
            let whose = guest.map_or("of sidecore".to_owned(), |guest| format!("of guest {guest}"));
            daemon(Severity::Warning, format!("{messages} messages, {bytes} bytes, {whose} were dropped"))
        }
        // It comes as an event of its own, whose severity follows from the reason.
        Event::Log { text, .. } if is_state(&text) => Vec::new(),
        Event::Log { level, text } => daemon(of_level(level), text),
        Event::Audit { id: None, records } => records.iter().map(of_audit).collect(),
        Event::Stuck { core, guest, seconds, at, .. } => {
            let guest = guest.map(|guest| format!(", which runs guest {guest},")).unwrap_or_default();
            let place = at.map(|at| format!(", at {at}")).unwrap_or_default();
            daemon(Severity::Critical, format!("core {core}{guest} makes no progress for {seconds} s{place}"))
        }
        Event::Panic { message, location, .. } => daemon(Severity::Critical, format!("panic: {message} at {location}")),
        Event::End { reason } => daemon(Severity::Notice, format!("sidecore ends: {reason}")),
        // What guests write, what was asked for, and what comes before there is a management guest.
        Event::Boot { .. }
        | Event::Report(_)
        | Event::Console { .. }
        | Event::Output { .. }
        | Event::Port { .. }
        | Event::Counters(_)
        | Event::Audit { .. }
        | Event::Config { .. }
        | Event::Modules { .. }
        | Event::Applied { .. }
        | Event::Trace { .. }
        | Event::TraceState(_)
        | Event::Latency(_)
        | Event::Reply { .. } => Vec::new(),
    }
}

/// Whether a line of sidecore's log says which state a guest is in: `guest a: stopped: killed`.
fn is_state(line: &str) -> bool {
    let state = line.strip_prefix("guest ").and_then(|rest| rest.split_once(": ")).map(|(_, state)| state);
    state.is_some_and(|state| GuestState::ALL.iter().any(|known| state.split(':').next() == Some(known.name())))
}

/// How important it is that a guest is in this state.
const fn of_guest(state: GuestState, reason: Option<StopReason>) -> Severity {
    match (state, reason) {
        (
            GuestState::Stopped,
            Some(StopReason::TripleFault | StopReason::MemoryError | StopReason::Failed | StopReason::NotStarted),
        ) => Severity::Error,
        (GuestState::Stopped, _) => Severity::Notice,
        _ => Severity::Informational,
    }
}

const fn of_level(level: Level) -> Severity {
    match level {
        Level::Error => Severity::Error,
        Level::Warn => Severity::Warning,
        Level::Info => Severity::Informational,
        Level::Debug | Level::Trace => Severity::Debug,
    }
}

/// A record of the audit, as `show audit` has it, in one line.
fn of_audit(record: &Record) -> Message {
    let mut shown = String::new();
    // Writing to a string does not fail.
    let _ = show_records([record], &mut shown);
    let text = shown.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let severity = if record.outcome == Outcome::Refused { Severity::Warning } else { Severity::Notice };
    Message { facility: Facility::Private, severity, text }
}

/// How many messages may come, and how many were left out.
struct Rate {
    /// When [`AT_ONCE`] messages may come again.
    unlimited_at: Instant,
    left_out: u64,
}

impl Rate {
    fn new(now: Instant) -> Self {
        Self { unlimited_at: now, left_out: 0 }
    }

    /// Whether a message may come now.
    fn may(&mut self, now: Instant) -> bool {
        let begins = self.unlimited_at.max(now);
        let may = begins.duration_since(now) < PERIOD * AT_ONCE;
        if may {
            self.unlimited_at = begins + PERIOD;
        }
        may
    }

    /// How many were left out, if that can be told now.
    fn tells(&mut self, now: Instant) -> Option<Message> {
        if self.left_out == 0 || !self.may(now) {
            return None;
        }
        let text = format!("{} messages came too fast for the log", std::mem::take(&mut self.left_out));
        Some(Message { facility: Facility::Daemon, severity: Severity::Warning, text })
    }
}

/// The log, and what may be written to it.
struct Log<'p> {
    socket: UnixDatagram,
    path: &'p Path,
    rate: Rate,
}

impl<'p> Log<'p> {
    fn new(path: &'p Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, path, rate: Rate::new(Instant::now()) })
    }

    fn write(&mut self, message: &Message) {
        let now = Instant::now();
        self.tell(now);
        if !self.rate.may(now) || !self.send(message) {
            self.rate.left_out += 1;
        }
    }

    /// Tells how many messages are missing, if there may be one.
    fn tell(&mut self, now: Instant) {
        let left_out = self.rate.left_out;
        if let Some(message) = self.rate.tells(now)
            && !self.send(&message)
        {
            self.rate.left_out = left_out;
        }
    }

    /// Returns whether syslogd has taken it. There may be a new syslogd, so the socket is found anew.
    fn send(&self, message: &Message) -> bool {
        self.socket.send_to(message.datagram().as_bytes(), self.path).is_ok()
    }
}

/// Waits for [`TELL`] until the broker says something. Returns whether it has.
fn has_something(client: &Client) -> io::Result<bool> {
    let time = Timespec::try_from(TELL).ok();
    match poll(&mut [PollFd::new(client, PollFlags::IN)], time.as_ref()) {
        Err(rustix::io::Errno::INTR) => Ok(false),
        ready => Ok(ready? > 0),
    }
}

/// Writes events to the log at `path` until the broker ends.
///
/// # Errors
/// The broker is not there, or the connection broke.
pub fn run(broker: &Broker, path: &Path) -> Result<(), Failed> {
    let mut client = broker.connect(true)?;
    let mut log = Log::new(path)?;
    loop {
        if !client.has_begun() && !has_something(&client)? {
            log.tell(Instant::now());
            continue;
        }
        match client.event() {
            Ok(event) => messages(event).iter().for_each(|message| log.write(message)),
            // A line of a newer hypervisor.
            Err(Failed::NotAnAnswer(_)) => {}
            Err(why) => return Err(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use control::{Audit, Caller, Command, Note, Permissions, Sender, Way};
    use proptest::prelude::*;

    use super::*;
    use crate::broker::tests::machine;

    fn stopped(guest: &str, reason: StopReason, detail: Option<&str>) -> Event {
        let detail = detail.map(str::to_owned);
        Event::Guest { guest: guest.into(), state: GuestState::Stopped, reason: Some(reason), detail }
    }

    fn datagrams(event: Event) -> Vec<String> {
        messages(event).iter().map(Message::datagram).collect()
    }

    #[test]
    fn an_event_has_facility_severity_and_one_line() {
        let faulted = stopped("a", StopReason::TripleFault, Some("RIP 0x7\n\x1b[2J\\ \u{202e}"));
        assert_eq!(
            datagrams(faulted),
            ["<27>sidecore: guest a: stopped: triple-fault: RIP 0x7\\u{a}\\u{1b}[2J\\\\ \\u{202e}"]
        );
        let log = |text: &str| datagrams(Event::Log { level: Level::Info, text: text.into() });
        assert_eq!(log("guest a: stopped: killed"), [""; 0], "the event says it");
        assert_eq!(log("guest a: starts again in 1 s"), ["<30>sidecore: guest a: starts again in 1 s"]);
        assert_eq!(datagrams(stopped("a", StopReason::PowerOff, None)), ["<29>sidecore: guest a: stopped: power-off"]);
        let check = Event::Log { level: Level::Warn, text: "core 2: machine check".into() };
        assert_eq!(datagrams(check), ["<28>sidecore: core 2: machine check"]);
        let dropped = Event::Dropped { guest: None, messages: 3, bytes: 70 };
        assert_eq!(datagrams(dropped), ["<28>sidecore: 3 messages, 70 bytes, of sidecore were dropped"]);
        let console = Event::Console { guest: "a".into(), line: "<0>forged".into() };
        assert_eq!(datagrams(console), [""; 0], "what guests write is not in the log");
    }

    #[test]
    fn a_record_of_the_audit_is_private_and_the_answer_to_a_command_is_no_event() {
        let mut audit = Audit::new();
        let anna = Caller::cable(Way::Channel, Permissions::all()).with_sender(Sender::new("anna", "10.0.0.5"));
        let stop = Note::from(&Command::Stop("a".into()));
        for (outcome, why) in [(Outcome::Done, ""), (Outcome::Refused, "no permission")] {
            audit.note(0, &anna, &stop, outcome, why);
        }
        let records = audit.copy().unwrap();
        let begin = "sidecore: 1970-01-01 00:00:00 channel (anna, 10.0.0.5, says the agent): stop a:";
        assert_eq!(
            datagrams(Event::Audit { id: None, records: records.clone() }),
            [format!("<85>{begin} done"), format!("<84>{begin} refused: no permission")]
        );
        assert_eq!(datagrams(Event::Audit { id: Some(3), records }), [""; 0]);
    }

    #[test]
    fn messages_that_come_too_fast_are_counted_and_the_number_is_told() {
        let now = Instant::now();
        let mut rate = Rate::new(now);
        assert_eq!((0..10 * AT_ONCE).filter(|_| rate.may(now)).count(), AT_ONCE as usize);
        rate.left_out = 7;
        assert_eq!(rate.tells(now), None);
        let told = rate.tells(now + PERIOD).unwrap();
        assert_eq!(told.text, "7 messages came too fast for the log");
        assert_eq!(rate.tells(now + 2 * PERIOD), None, "it is told once");
        assert!(rate.may(now + 2 * PERIOD) && !rate.may(now + 2 * PERIOD), "one more in each period");
    }

    #[test]
    fn what_the_machine_tells_comes_to_the_log() {
        let place = std::env::temp_dir().join(format!("sidecore-syslog-{}", std::process::id()));
        let log = UnixDatagram::bind(&place).unwrap();
        log.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let socket = machine(|request| {
            vec![
                stopped("a", StopReason::Killed, None).to_line().unwrap(),
                "{\"event\":\"of a newer hypervisor\"}\n".to_owned(),
                Event::done(request.id).to_line().unwrap(),
            ]
        });
        let broker = Broker { socket, sender: Sender::nobody() };
        let (writer, path) = (broker.clone(), place.clone());
        std::thread::spawn(move || run(&writer, &path));
        let mut bytes = [0; 2 * MOST];
        // Each command has an event; one that comes before the writer is there is not seen by it.
        log.set_nonblocking(true).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let len = loop {
            broker.connect(false).unwrap().ask(Command::List).unwrap();
            match log.recv(&mut bytes) {
                Ok(len) => break len,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        };
        assert_eq!(&bytes[..len], b"<29>sidecore: guest a: stopped: killed");
        std::fs::remove_file(place).unwrap();
    }

    proptest! {
        #[test]
        fn whatever_a_guest_has_chosen_is_one_line_of_printable_ascii(text in "(\\PC|[\x00-\x1f\u{80}-\u{9f}]){0,600}") {
            let [line] = &datagrams(Event::Log { level: Level::Info, text })[..] else { panic!() };
            prop_assert!(line.len() <= MOST && line.starts_with("<30>sidecore: "));
            prop_assert!(line.chars().all(|c| matches!(c, ' '..='~')), "{}", line);
        }
    }
}
