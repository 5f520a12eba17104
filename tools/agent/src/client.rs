//! A client of the broker: asks for a command, and waits for its answer.

use std::io::{self, BufReader, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use control::{Command, Counters, Event, Latency, Notice, Request, Sender, TraceState};
use serde_json::json;

use crate::lines::{MAX_EVENT, read_line};

/// Time for an answer: a little more than the broker's.
const ANSWER_TIME: Duration = Duration::from_secs(35);

/// Time for the hypervisor to note a report. Whoever logs in waits for it.
const REPORT_TIME: Duration = Duration::from_secs(5);

/// The broker, as somebody reaches it.
#[derive(Clone, Debug)]
pub struct Broker {
    /// Its socket.
    pub socket: PathBuf,
    /// Who it is that asks there.
    pub sender: Sender,
}

impl Broker {
    /// Connects. `events`: events are to come too.
    ///
    /// # Errors
    /// The broker is not there.
    pub fn connect(&self, events: bool) -> Result<Client, Failed> {
        let mut client = Client::connect(&self.socket, false)?;
        client.stream.get_mut().write_all(self.introduction(events).as_bytes())?;
        Ok(client)
    }

    /// The first line of a client: who it is, and whether it wants events.
    #[must_use]
    pub fn introduction(&self, events: bool) -> String {
        let Sender { who, address } = &self.sender;
        format!("{}\n", json!({ "events": events, "who": who.as_str(), "address": address.as_str() }))
    }

    /// Reports something of the key to the hypervisor's audit. `line` and `why`: the command that was refused, and why. If the
    /// hypervisor does not answer, or reports come too fast, there is no record.
    pub fn report(&self, what: Notice, line: &str, why: &str) {
        let Ok(mut client) = self.connect(false) else { return };
        if client.stream.get_ref().set_read_timeout(Some(REPORT_TIME)).is_ok() {
            let _ = client.ask(Command::Notice { what, line: beginning(line), why: beginning(why) });
        }
    }
}

/// The `id` of the command that an event answers. `None`: it answers none. Each event is named here, so that a new one is judged
/// before this compiles again.
const fn answered(event: &Event) -> Option<u64> {
    match event {
        Event::Reply { id, .. }
        | Event::Audit { id, .. }
        | Event::Config { id, .. }
        | Event::Modules { id, .. }
        | Event::Applied { id, .. }
        | Event::Output { id, .. }
        | Event::TraceState(TraceState { id, .. })
        | Event::Latency(Latency { id, .. })
        | Event::Counters(Counters { id, .. }) => *id,
        Event::Boot { .. }
        | Event::Report(_)
        | Event::ConfigError { .. }
        | Event::Guest { .. }
        | Event::Console { .. }
        | Event::Port { .. }
        | Event::Dropped { .. }
        | Event::Log { .. }
        | Event::Trace { .. }
        | Event::Stuck { .. }
        | Event::Panic { .. }
        | Event::End { .. } => None,
    }
}

/// As much of a text as the audit may keep of it, so that the line is not too long.
fn beginning(text: &str) -> String {
    text.chars().take(80).collect()
}

/// A connection with the broker.
pub struct Client {
    stream: BufReader<UnixStream>,
    last: u64,
}

/// Why a command was not carried out.
#[derive(Debug)]
pub enum Failed {
    /// The hypervisor or the broker has refused it. The sentence to show.
    Refused(String),
    /// The broker is not there, or the connection broke.
    Connection(io::Error),
    /// What came is not an answer.
    NotAnAnswer(String),
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(why) => f.write_str(why),
            Self::Connection(error) => write!(f, "no connection with the hypervisor: {error}"),
            Self::NotAnAnswer(what) => write!(f, "not an answer: {what}"),
        }
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Connection(error)
    }
}

impl Client {
    /// Connects with the broker, and does not say who it is. `events`: events are to come too.
    ///
    /// # Errors
    /// The broker is not there.
    pub fn connect(socket: &Path, events: bool) -> Result<Self, Failed> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(ANSWER_TIME))?;
        stream.set_write_timeout(Some(ANSWER_TIME))?;
        let mut client = Self { stream: BufReader::new(stream), last: 0 };
        if events {
            client.stream.get_mut().write_all(b"{\"events\":true}\n")?;
        }
        Ok(client)
    }

    /// Asks for a command. Returns the answer, and the events that came before it.
    ///
    /// # Errors
    /// It was refused, or there is no answer.
    pub fn ask(&mut self, command: Command) -> Result<(Event, Vec<Event>), Failed> {
        self.last += 1;
        let line = Request::new(Some(self.last), command).to_line();
        self.stream.get_mut().write_all(line.as_bytes())?;
        let mut events = Vec::new();
        loop {
            let event = self.event()?;
            // The broker answers without an `id` to what it could not read.
            let is_unread = matches!(event, Event::Reply { id: None, ok: false, .. });
            let is_answer = is_unread || answered(&event) == Some(self.last);
            match event {
                Event::Reply { ok: false, error, .. } if is_answer => {
                    return Err(Failed::Refused(error.unwrap_or("refused".into()).into_owned()));
                }
                answer if is_answer => return Ok((answer, events)),
                event => events.push(event),
            }
        }
    }

    /// Whether a part of an event has been read already, so that waiting for the stream would miss it.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        !self.stream.buffer().is_empty()
    }

    /// Returns the next event.
    ///
    /// # Errors
    /// The connection ended, or a line is no event.
    pub fn event(&mut self) -> Result<Event, Failed> {
        match read_line(&mut self.stream, MAX_EVENT)? {
            Some(Some(line)) => Event::from_line(&line).map_err(Failed::NotAnAnswer),
            Some(None) => Err(Failed::NotAnAnswer(format!("a line of more than {MAX_EVENT} bytes"))),
            None => Err(Failed::Connection(io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.get_ref().as_fd()
    }
}
