//! Records: takes the trace from a machine's COM2 into a file.
//!
//! A thread reads the source, because reading may wait for ever. The other one cuts lines, decodes the trace of
//! `trace` events, writes it to the file, and asks the machine what is to be asked (`com2`).

pub mod com2;
mod counter;
pub mod lines;
pub mod source;

use std::fmt;
use std::io::{self, Read, Write};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use sidecore_pcapng::filter::off;

use self::com2::{Ask, Said};
use self::counter::Counter;
use self::lines::Lines;
use self::source::Connection;

/// Bytes that are read at once.
const PIECE: usize = 64 << 10;
/// Time between two looks at the clock and at the signal.
const LOOK: Duration = Duration::from_millis(100);
/// Time in which the machine answers. A command of which a byte was lost gets no answer, and is sent again.
const ANSWER: Duration = Duration::from_secs(2);
/// Times that a command is sent.
const TRIES: u32 = 4;
/// The trace has ended when, after it was switched off, nothing of it came for this time. Usually the machine says its end.
const QUIET: Duration = Duration::from_secs(3);
/// Most time that is spent on the end of the trace: that of 1 MiB on a line of 115,200 baud.
const END: Duration = Duration::from_secs(120);

/// What was recorded so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Records.
    pub records: u64,
    /// Records that are missing.
    pub lost: u64,
    /// Bytes of the trace.
    pub bytes: u64,
    /// Events of the trace that could not be decoded. What was in them is missing.
    pub broken: u64,
    /// Lines that were dropped because of their length.
    pub long_lines: u64,
}

/// What is recorded, and when it ends by itself.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Names of classes with commas between them. Empty: the machine chooses.
    pub classes: String,
    /// When a core's ring is full, the machine drops new records, not the oldest.
    pub stop_when_full: bool,
    /// The port is people's too: only lines with the mark of `control::RECORD` count, and commands have it.
    pub shared: bool,
    /// Frames of these ports are captured, instead of records.
    pub captures: Vec<Capture>,
    /// It ends after so many seconds, and then takes what is left in the rings.
    pub seconds: Option<u64>,
    /// It ends as soon as there are so many records.
    pub records: Option<u64>,
}

/// A port whose frames are captured: `NAME` or `NAME=FILTER`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// The guest or the uplink.
    pub guest: String,
    /// The filter in the words of the machine. Empty: all frames of the guest's first network device, or of the uplink.
    pub filter: String,
}

impl FromStr for Capture {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (guest, filter) = text.split_once('=').unwrap_or((text, ""));
        Ok(Self { guest: guest.to_owned(), filter: filter.to_owned() })
    }
}

/// Why a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By a signal.
    Stopped,
    /// By the limit of seconds.
    Seconds,
    /// By the limit of records.
    Records,
    /// The source has ended.
    Source,
}

/// A recording that has ended. Its text says why, and what went wrong on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Why.
    pub ended: Ended,
    /// What was recorded.
    pub state: State,
    /// Whether the machine said that the trace is off. None: nothing could be sent to it.
    pub off: Option<bool>,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.ended {
            Ended::Stopped => "ended by a signal",
            Ended::Seconds => "ended by the limit of seconds",
            Ended::Records => "ended by the limit of records",
            Ended::Source => "the source has ended",
        })?;
        if self.off == Some(false) {
            f.write_str("; the machine did not say that the trace is off")?;
        }
        if self.state.broken > 0 {
            write!(f, "; {} events of the trace were broken", self.state.broken)?;
        }
        if self.state.long_lines > 0 {
            write!(f, "; {} lines were too long", self.state.long_lines)?;
        }
        Ok(())
    }
}

/// Why nothing, or no more, could be recorded.
#[derive(Debug)]
pub enum Error {
    /// The file cannot be written.
    Output(io::Error),
    /// The machine is not there or refuses: a sentence.
    Machine(String),
}

/// Records from `connection` into `out`, until the source ends, a limit is reached, or `stop` is set. Then it switches the
/// trace off and takes the rest of it, until `stop` is set again. If `out` takes nothing more, it only switches the trace off.
/// `progress` is called several times a second. If nothing can be sent, it takes what the source has.
///
/// # Errors
/// The file cannot be written; or the machine does not answer, or refuses.
pub fn record(
    connection: Connection,
    options: &Options,
    stop: &AtomicBool,
    out: impl Write,
    progress: impl FnMut(&State),
) -> Result<Done, Error> {
    let Connection { from, to } = connection;
    let mut session = Session {
        pieces: pieces_of(from),
        to,
        out,
        progress,
        lines: Lines::default(),
        counter: Counter::default(),
        state: State::default(),
        last_trace: Instant::now(),
        over: false,
        answer: None,
        next_id: com2::first_id(),
        captures: &options.captures,
        shared: options.shared,
    };
    let ended = session.run(options, stop);
    // What has arrived is kept, whatever comes now.
    let off = match &ended {
        Ok(Ended::Stopped | Ended::Seconds) => session.end(stop),
        Ok(Ended::Records) => session.off(),
        Err(Error::Output(_)) => {
            // Nobody would take the trace. The answer is not waited for, because more of the trace may come before it.
            let _ = session.send_off();
            Ok(None)
        }
        Ok(Ended::Source) | Err(Error::Machine(_)) => Ok(session.to.is_some().then_some(false)),
    };
    session.out.flush().map_err(Error::Output)?;
    Ok(Done { ended: ended?, state: session.state, off: off? })
}

/// Reads in a thread of its own. The thread ends with the source, or with the first piece that nobody takes.
fn pieces_of(mut from: Box<dyn Read + Send>) -> Receiver<io::Result<Vec<u8>>> {
    let (send, receive) = sync_channel(16);
    thread::spawn(move || {
        let mut buffer = vec![0; PIECE];
        loop {
            let piece = match from.read(&mut buffer) {
                Ok(0) => return,
                Ok(len) => Ok(buffer.get(..len).unwrap_or_default().to_vec()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let failed = piece.is_err();
            if send.send(piece).is_err() || failed {
                return;
            }
        }
    });
    receive
}

/// A recording.
struct Session<'c, W, P> {
    pieces: Receiver<io::Result<Vec<u8>>>,
    to: Option<Box<dyn Write + Send>>,
    out: W,
    progress: P,
    lines: Lines,
    counter: Counter,
    state: State,
    /// When the last of the trace came.
    last_trace: Instant,
    /// The machine said that this was the last of it.
    over: bool,
    /// The answer to the last command: its `id`, and why it was refused.
    answer: Option<(u64, Result<(), String>)>,
    next_id: u64,
    captures: &'c [Capture],
    shared: bool,
}

impl<W: Write, P: FnMut(&State)> Session<'_, W, P> {
    fn run(&mut self, options: &Options, stop: &AtomicBool) -> Result<Ended, Error> {
        if self.to.is_some() {
            let on = Ask::On { classes: &options.classes, stop: options.stop_when_full };
            let captures = &options.captures;
            let mut asks: Vec<_> =
                captures.iter().map(|Capture { guest, filter }| Ask::Capture { guest, filter }).collect();
            asks.extend(if captures.is_empty() { vec![on, Ask::Save] } else { vec![Ask::Captures] });
            for (done, ask) in asks.iter().enumerate() {
                let refused = match self.ask(ask)? {
                    Some(Ok(())) => continue,
                    Some(Err(sentence)) => format!("the machine refuses: {sentence}"),
                    None => "no answer: is this COM2 of sidecore?".to_owned(),
                };
                // A capture does not stay because another one is refused.
                self.send_ends(captures.iter().take(done))?;
                return Err(Error::Machine(refused));
            }
        }
        let until = options.seconds.and_then(|seconds| Instant::now().checked_add(Duration::from_secs(seconds)));
        loop {
            if stop.load(Relaxed) {
                return Ok(Ended::Stopped);
            }
            if options.records.is_some_and(|most| self.state.records >= most) {
                return Ok(Ended::Records);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(Ended::Seconds);
            }
            if !self.take()? {
                return Ok(Ended::Source);
            }
        }
    }

    /// Switches the trace off. Returns whether the machine confirmed it. None: nothing can be sent.
    fn off(&mut self) -> Result<Option<bool>, Error> {
        if self.to.is_none() {
            return Ok(None);
        }
        if self.captures.is_empty() {
            return Ok(Some(self.ask(&Ask::Off)?.is_some_and(|answer| answer.is_ok())));
        }
        let mut is_off = true;
        for capture in self.captures {
            let ask = Ask::Capture { guest: &capture.guest, filter: &off(&capture.filter) };
            is_off &= self.ask(&ask)?.is_some_and(|answer| answer.is_ok());
        }
        Ok(Some(is_off))
    }

    /// Switches the trace off without waiting for an answer.
    fn send_off(&mut self) -> Result<(), Error> {
        if self.captures.is_empty() {
            self.send(&Ask::Off)?;
        }
        self.send_ends(self.captures)
    }

    /// Ends these captures without waiting for an answer.
    fn send_ends<'o>(&mut self, captures: impl IntoIterator<Item = &'o Capture>) -> Result<(), Error> {
        for capture in captures {
            self.send(&Ask::Capture { guest: &capture.guest, filter: &off(&capture.filter) })?;
        }
        Ok(())
    }

    /// Switches the trace off and takes what is still on its way.
    fn end(&mut self, stop: &AtomicBool) -> Result<Option<bool>, Error> {
        stop.store(false, Relaxed);
        let off = self.off()?;
        let begun = Instant::now();
        let is_quiet = |last: Instant| last.max(begun).elapsed() >= QUIET;
        while off.is_some() && !self.over && !stop.load(Relaxed) && begun.elapsed() < END && !is_quiet(self.last_trace)
        {
            if !self.take()? {
                break;
            }
        }
        Ok(off)
    }

    /// Sends a command until it is answered. Returns the answer: why it was refused, or that it was not. None: there was no
    /// answer. An answer to an earlier sending of it counts too, because the machine may take longer than [`ANSWER`].
    fn ask(&mut self, ask: &Ask<'_>) -> Result<Option<Result<(), String>>, Error> {
        let first = self.next_id;
        for _ in 0..TRIES {
            if !self.send(ask)? {
                return Ok(None);
            }
            let sent = Instant::now();
            while sent.elapsed() < ANSWER {
                let there = self.take()?;
                if let Some((answered, answer)) = self.answer.take()
                    && (first..self.next_id).contains(&answered)
                {
                    return Ok(Some(answer));
                }
                if !there {
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }

    /// Sends a command once, with a new `id`. Returns whether anything can be sent.
    fn send(&mut self, ask: &Ask<'_>) -> Result<bool, Error> {
        let Some(to) = &mut self.to else { return Ok(false) };
        // The line feed, or the mark, ends what is left of a command that was sent before.
        let before = if self.shared { char::from(control::RECORD) } else { '\n' };
        let line = format!("{before}{}\n", ask.to_line(self.next_id));
        self.next_id = self.next_id.saturating_add(1);
        to.write_all(line.as_bytes())
            .and_then(|()| to.flush())
            .map_err(|error| Error::Machine(format!("cannot send: {error}")))?;
        Ok(true)
    }

    /// Takes what has come, or waits for it for a moment. Returns false if the source has ended.
    fn take(&mut self) -> Result<bool, Error> {
        let piece = match self.pieces.recv_timeout(LOOK) {
            Ok(Ok(piece)) => piece,
            Ok(Err(error)) => return Err(Error::Machine(format!("cannot read: {error}"))),
            Err(RecvTimeoutError::Timeout) => Vec::new(),
            Err(RecvTimeoutError::Disconnected) => return Ok(false),
        };
        let mut written = Ok(());
        let mut lines = std::mem::take(&mut self.lines);
        lines.take(&piece, |line| {
            if written.is_ok() {
                written = self.line(line);
            }
        });
        self.state.long_lines = lines.dropped();
        self.lines = lines;
        (self.progress)(&self.state);
        written.map(|()| true).map_err(Error::Output)
    }

    /// Takes a line of COM2.
    fn line(&mut self, line: &[u8]) -> io::Result<()> {
        let line = if self.shared { control::record(line).unwrap_or_default() } else { line };
        match com2::read(line) {
            Said::Trace(bytes, end) => {
                self.out.write_all(&bytes)?;
                self.counter.take(&bytes);
                self.state.bytes = self.state.bytes.saturating_add(bytes.len() as u64);
                (self.state.records, self.state.lost) = (self.counter.records(), self.counter.lost());
                self.last_trace = Instant::now();
                self.over |= end;
            }
            Said::BrokenTrace => self.state.broken = self.state.broken.saturating_add(1),
            Said::Answer(id, answer) => self.answer = Some((id, answer)),
            Said::Other => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
