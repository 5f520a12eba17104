//! `trace save`: copies the machine's trace from the port `org.sidecore.trace` to standard output, as it is. `capture`: writes the
//! frames that come there to standard output as pcap-ng, each when it comes.
//!
//! The guest's kernel lets one program at a time open the port. The hypervisor sends while it is open, and ends when it is
//! closed. What is not read is overwritten there and counted in the trace, so a slow reader loses records, and knows how many.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use control::capture::Wanted as Filtered;
use control::{Command, Event, TraceStep};
use sidecore_pcapng::filter;
use sidecore_pcapng::live::Live;
use sidecore_pcapng::only::Only;
use sidecore_pcapng::pipe::has_no_reader;

use crate::client::{Broker, Client, Failed};

/// Bytes that are read at once.
const PIECE: usize = 64 << 10;
/// Time between two looks at a port that has nothing.
const LOOK: Duration = Duration::from_millis(2);
/// The port is empty if it had nothing for so long.
const EMPTY: Duration = Duration::from_millis(50);
/// Most time in which it has to become empty. What waits there is the end of a trace that was not read.
const EMPTYING: Duration = Duration::from_secs(5);
/// A trace has ended if the hypervisor has had the port closed for so long, though its event of the end did not come.
const CLOSED: Duration = Duration::from_secs(3);
/// When captures of others go on, there is no event of the end. Then it is over when nothing has come for so long.
const QUIET: Duration = Duration::from_secs(3);
/// Most time for the end after the trace was switched off. The hypervisor gives up after five seconds without a reader.
const END: Duration = Duration::from_secs(60);

/// What is to be saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Names of classes to switch on, with commas between them. Empty: what is on stays on.
    pub classes: String,
    /// With classes: a core drops new records when its ring is full, instead of the oldest.
    pub stop: bool,
    /// The trace is switched off after this time. `None`: it goes on until somebody switches it off. Without RIPs only the
    /// saving ends: whoever may not switch the trace on does not switch it off.
    pub time: Option<Duration>,
    /// With guests' RIPs.
    pub rips: bool,
}

/// The frames that are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// A guest or an uplink.
    pub name: String,
    /// The filter in the hypervisor's words. Empty: all frames.
    pub filter: String,
    /// It ends after this time. `None`: it goes on until the reader is gone, or somebody ends it.
    pub time: Option<Duration>,
    /// It is for a key that is bound to guests, so it is no uplink.
    pub is_guest: bool,
}

impl Captured {
    /// The port whose frames are passed on. The rings are shared by all ports, and somebody else may capture others.
    ///
    /// # Errors
    /// The filter has no such word. The hypervisor would say the same sentence.
    fn only(&self) -> Result<Only, NotSaved> {
        let Filtered { net, .. } = self.filter.parse().map_err(|why: control::Text| NotSaved::Refused(why.into()))?;
        Ok(Only { name: self.name.clone(), net, is_guest: self.is_guest })
    }

    /// The command that ends it: with the filter `off` of the same port.
    fn off(&self) -> Command {
        Command::Capture { guest: self.name.clone(), filter: filter::off(&self.filter) }
    }
}

/// Why a trace was not saved, or not to its end.
#[derive(Debug)]
pub enum NotSaved {
    /// Another client has the port, or the hypervisor refuses. The sentence to show.
    Refused(String),
    /// The hypervisor does not answer.
    Failed(Failed),
    /// The output takes nothing more.
    Output(io::Error),
}

impl From<Failed> for NotSaved {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Refused(why) => Self::Refused(why),
            Failed::Connection(_) | Failed::NotAnAnswer(_) => Self::Failed(failed),
        }
    }
}

/// Opens the port. Reading from it does not wait.
///
/// # Errors
/// Another client has it open, or there is none.
pub fn open(port: &Path) -> Result<File, NotSaved> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(port).map_err(not_opened)
}

fn not_opened(error: io::Error) -> NotSaved {
    match error.kind() {
        io::ErrorKind::ResourceBusy => {
            NotSaved::Refused("the trace goes to another client; try again later".to_owned())
        }
        _ => NotSaved::Failed(Failed::Connection(error)),
    }
}

/// Copies the trace from `port`, which does not wait, to `out`. `broker`: where it is asked for. Returns when the trace has ended. If
/// `out` takes nothing more, it switches the trace off.
///
/// # Errors
/// See [`NotSaved`]. What had come before is in `out`.
pub fn save(port: &mut impl Read, broker: &Broker, wanted: &Wanted, out: &mut dyn Write) -> Result<(), NotSaved> {
    empty(port)?;
    let mut client = broker.connect(true)?;
    // Whoever is being served is not disturbed.
    if let (Event::TraceState(state), _) = client.ask(command(TraceStep::Show))?
        && state.saving
    {
        return Err(NotSaved::Refused("the trace is being sent already; try again later".to_owned()));
    }
    if !wanted.classes.is_empty() {
        let on = Command::Trace { step: TraceStep::On, stop: wanted.stop, classes: wanted.classes.clone() };
        client.ask(on)?;
    }
    let switches = wanted.rips || !wanted.classes.is_empty();
    let copying = Copying { broker, off: switches.then(|| command(TraceStep::Off)), time: wanted.time, quiet: None };
    let step = if wanted.rips { TraceStep::Save } else { TraceStep::SaveWithoutRips };
    if let Err(why) = client.ask(command(step)) {
        if !wanted.classes.is_empty() {
            // Nobody reads what was switched on for this.
            let _ = copying.off();
        }
        return Err(why.into());
    }
    // A reader sees at once what little comes of a quiet trace.
    let copied = copying.run(port, &events(client), |bytes| {
        out.write_all(bytes)?;
        out.flush().map(|()| true)
    });
    if copied.is_err() {
        // The hypervisor ends the sending by itself when the port is closed, but not the trace.
        let _ = copying.off();
    }
    copied
}

/// Captures frames, and writes them to `out` as pcap-ng while they come from `port`, which does not wait. A trace that goes elsewhere
/// is not disturbed. Frames of other ports, which somebody else captures meanwhile, are not written. Returns when the capture has ended. It also ends if `out` takes nothing more, or nobody reads standard output.
///
/// # Errors
/// See [`NotSaved`]. What had come before is in `out`.
pub fn capture(port: &mut impl Read, broker: &Broker, wanted: &Captured, out: &mut dyn Write) -> Result<(), NotSaved> {
    let only = wanted.only()?;
    empty(port)?;
    let mut client = broker.connect(true)?;
    client.ask(Command::Capture { guest: wanted.name.clone(), filter: wanted.filter.clone() })?;
    let copying = Copying { broker, off: Some(wanted.off()), time: wanted.time, quiet: Some(QUIET) };
    let copied = client.ask(Command::Captures).map_err(NotSaved::from).and_then(|_| {
        let application = concat!("sidecore-agent ", env!("CARGO_PKG_VERSION"));
        let mut live = Live::new(out, application).map_err(NotSaved::Output)?.only(only);
        copying.run(port, &events(client), |bytes| {
            let before = live.frames();
            live.take(bytes).map(|()| live.frames() != before)
        })?;
        live.end().map_err(NotSaved::Output)
    });
    if copied.is_err() {
        let _ = copying.off();
    }
    copied
}

fn command(step: TraceStep) -> Command {
    Command::Trace { step, stop: false, classes: String::new() }
}

/// Reads what an earlier client has left.
fn empty(port: &mut impl Read) -> Result<(), NotSaved> {
    let (mut last, end) = (Instant::now(), Instant::now() + EMPTYING);
    let mut dropped = vec![0; PIECE];
    while last.elapsed() < EMPTY {
        match read(port, &mut dropped)? {
            Got::Bytes(_) => last = Instant::now(),
            Got::Nothing | Got::Closed => thread::sleep(LOOK),
        }
        if Instant::now() > end {
            return Err(NotSaved::Refused("the port still has an earlier trace; try again later".to_owned()));
        }
    }
    Ok(())
}

/// What a port gives.
enum Got {
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// Nothing, and the hypervisor has the port closed.
    Closed,
}

fn read(port: &mut impl Read, bytes: &mut [u8]) -> Result<Got, NotSaved> {
    match port.read(bytes) {
        Ok(0) => Ok(Got::Closed),
        Ok(len) => Ok(Got::Bytes(len)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(Got::Nothing)
        }
        Err(error) => Err(Failed::Connection(error).into()),
    }
}

/// Why no more events come.
enum Last {
    /// The trace has ended.
    End,
    /// The connection with the broker broke.
    Broken,
}

/// Waits in a thread for the event of the trace's end, or for the end of the connection. Says once which it was.
fn events(mut client: Client) -> Receiver<Last> {
    let (tell, told) = channel();
    thread::spawn(move || {
        let last = loop {
            match client.event() {
                Ok(Event::Trace { end: true, .. }) => break Last::End,
                // Another event, or none for a long time.
                Ok(_) | Err(Failed::NotAnAnswer(_)) => {}
                Err(Failed::Connection(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => break Last::Broken,
            }
        };
        // Nobody listens if the copying has failed.
        let _ = tell.send(last);
    });
    told
}

/// What is copied, and how it ends.
struct Copying<'b> {
    broker: &'b Broker,
    /// The command that ends it. `None`: it ends when the port is closed, which ends the sending only.
    off: Option<Command>,
    /// When that is to be given.
    time: Option<Duration>,
    /// After that command it is over if nothing that was asked for comes for so long.
    quiet: Option<Duration>,
}

impl Copying<'_> {
    fn off(&self) -> Result<(), Failed> {
        match &self.off {
            Some(off) => self.broker.connect(false)?.ask(off.clone()).map(drop),
            None => Ok(()),
        }
    }

    /// Gives `take` what comes, until the end. It says whether something in that was asked for.
    fn run(
        &self,
        port: &mut impl Read,
        ends: &Receiver<Last>,
        mut take: impl FnMut(&[u8]) -> io::Result<bool>,
    ) -> Result<(), NotSaved> {
        let mut bytes = vec![0; PIECE];
        let mut off_at = self.time.map(|time| Instant::now() + time);
        let (mut over_at, mut closed_since, mut last) = (None, None, None);
        let (mut came, mut looked) = (Instant::now(), Instant::now());
        loop {
            if off_at.is_some_and(|at| Instant::now() >= at) {
                if self.off.is_none() {
                    return Ok(());
                }
                self.off()?;
                (off_at, over_at, came) = (None, Some(Instant::now() + END), Instant::now());
            }
            if looked.elapsed() >= EMPTY {
                looked = Instant::now();
                if has_no_reader(&io::stdout()) {
                    return Err(NotSaved::Output(io::ErrorKind::BrokenPipe.into()));
                }
            }
            // The event comes when everything is in the port. So an empty port means the end only if it came before.
            last = last.or_else(|| ends.try_recv().ok());
            match (read(port, &mut bytes)?, &last) {
                (Got::Bytes(len), _) => {
                    closed_since = None;
                    if take(bytes.get(..len).unwrap_or_default()).map_err(NotSaved::Output)? {
                        came = Instant::now();
                    }
                }
                (_, Some(Last::End)) => break,
                (_, Some(Last::Broken)) => return Err(Failed::Connection(io::ErrorKind::UnexpectedEof.into()).into()),
                (Got::Closed, None) => {
                    if closed_since.get_or_insert_with(Instant::now).elapsed() > CLOSED {
                        break;
                    }
                    thread::sleep(LOOK);
                }
                (Got::Nothing, None) => {
                    closed_since = None;
                    thread::sleep(LOOK);
                }
            }
            if over_at.is_some() && self.quiet.is_some_and(|quiet| came.elapsed() > quiet) {
                break;
            }
            if over_at.is_some_and(|at| Instant::now() > at) {
                return Err(NotSaved::Refused("the trace does not end".to_owned()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
