//! What the management guest's agent brings by another ssh: the machine's trace, or captured frames.
//!
//! The control channel carries neither (`tools/agent`). A thread waits for ssh, so that the views never do. The agent ends the trace or
//! the capture when its reader goes away.

use std::io::{self, Read as _, Write};
use std::os::fd::AsFd;
use std::process::{ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sidecore_pcapng::pipe::has_no_reader;

use super::ssh::{Ssh, Started, start};
use crate::target::Target;

/// Most bytes of a piece.
const PIECE: usize = 64 << 10;
/// Pieces that wait for the program: at most 1 MiB. Then the agent waits, and the machine counts what it loses.
const PIECES: usize = 16;
/// Time between two looks whether a capture still has a reader.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
/// Time for ssh to end after its output has ended. Then it is ended.
const LAST: Duration = Duration::from_secs(2);

/// How a command at the agent is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// The host for ssh.
    pub host: String,
    /// What stands before the words of a command. Empty where the agent is the key's shell.
    before: String,
}

impl Agent {
    /// Finds it in the command that passes lines on. `None`: that is not the agent, so it has no such commands.
    ///
    /// ```
    /// use sidecore_console::link::Agent;
    /// let line = |command| Agent::of("host", command).map(|agent| agent.line("trace save"));
    /// assert_eq!(line("sidecore-agent pipe").as_deref(), Some("trace save"));
    /// assert_eq!(line("sudo /opt/sidecore-agent pipe").as_deref(), Some("sudo /opt/sidecore-agent run trace save"));
    /// assert_eq!(line("nc -U /tmp/com2"), None);
    /// ```
    #[must_use]
    pub fn of(host: &str, command: &str) -> Option<Self> {
        let words: Vec<&str> = command.split_whitespace().collect();
        let before = match words.as_slice() {
            ["sidecore-agent", "pipe"] => String::new(),
            [before @ .., "pipe"] if before.iter().any(|word| word.rsplit('/').next() == Some("sidecore-agent")) => {
                format!("{} run ", before.join(" "))
            }
            _ => return None,
        };
        Some(Self { host: host.to_owned(), before })
    }

    /// The line for ssh.
    #[must_use]
    pub fn line(&self, words: &str) -> String {
        format!("{}{words}", self.before)
    }
}

/// Whether a word can be part of a command at a host where a shell may read it. Names of guests come from the machine, which may be
/// hostile.
#[must_use]
pub fn is_plain(word: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':' | '=' | ',' | '/');
    !word.is_empty() && !word.starts_with('-') && word.chars().all(is_plain)
}

/// What has come.
#[derive(Debug, PartialEq, Eq)]
pub enum Got {
    /// Bytes of a trace.
    Bytes(Vec<u8>),
    /// Captured frames are being written.
    Frames,
    /// It has ended.
    End(End),
}

/// How it has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// ssh has ended.
    Ssh {
        /// Its exit code: the agent's, or 255 for ssh's own. `None`: a signal has ended it.
        code: Option<i32>,
        /// The last line on its standard error.
        said: Option<String>,
    },
    /// There is no ssh, or its output cannot be read.
    NoSsh(String),
    /// The target of a capture cannot be written.
    Target(String),
}

/// ssh's process, and whether it is wanted.
#[derive(Debug, Default)]
struct Running {
    stopped: bool,
    ssh: Option<Ssh>,
}

type Shared = Arc<Mutex<Running>>;

fn lock(running: &Shared) -> MutexGuard<'_, Running> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A command at the agent that goes on. Dropping it ends ssh.
#[derive(Debug)]
pub struct Errand {
    got: Receiver<Got>,
    running: Shared,
}

impl Drop for Errand {
    fn drop(&mut self) {
        let mut running = lock(&self.running);
        running.stopped = true;
        running.ssh = None;
    }
}

impl Errand {
    fn begin(work: impl FnOnce(&SyncSender<Got>, &Shared) -> Option<End> + Send + 'static) -> Self {
        let ((sender, got), running) = (sync_channel(PIECES), Shared::default());
        let shared = running.clone();
        thread::spawn(move || {
            if let Some(end) = work(&sender, &shared) {
                // Nobody waits for it any more.
                let _ = sender.send(Got::End(end));
            }
        });
        Self { got, running }
    }

    /// Runs a command whose output is a trace.
    #[must_use]
    pub fn trace(agent: &Agent, words: &str) -> Self {
        let (host, line) = (agent.host.clone(), agent.line(words));
        Self::begin(move |sender, running| {
            let mut output = match run(&host, &line, running)? {
                Ok(started) => started,
                Err(end) => return Some(end),
            };
            let mut bytes = vec![0; PIECE];
            loop {
                match output.output.read(&mut bytes) {
                    Ok(0) => return Some(output.end(running)),
                    Ok(length) => {
                        sender.send(Got::Bytes(bytes.get(..length).unwrap_or_default().to_vec())).ok()?;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Some(End::NoSsh(error.to_string())),
                }
            }
        })
    }

    /// Runs a command whose output is pcap-ng, and writes that to `target`: a path, or `|` and a command of the system's shell. `ends`
    /// gets nothing; it is dropped when the target has closed.
    #[must_use]
    pub fn capture(agent: &Agent, words: &str, target: &str, ends: SyncSender<()>) -> Self {
        let (host, line, target) = (agent.host.clone(), agent.line(words), target.to_owned());
        Self::begin(move |sender, running| {
            let _ends = ends;
            match Target::open(&target) {
                Ok(Target::File(file)) => copied(&host, &line, running, file, sender),
                Ok(Target::Program(mut child, input)) => {
                    if let Some(end) = copied(&host, &line, running, input, sender) {
                        let _ = sender.send(Got::End(end));
                    }
                    // A person may look at the frames for as long as they like.
                    let _ = child.wait();
                    None
                }
                Err(error) => Some(End::Target(error.to_string())),
            }
        })
    }

    /// What has come, without waiting.
    #[must_use]
    pub fn next(&self) -> Option<Got> {
        self.got.try_recv().ok()
    }
}

/// Output of an ssh that runs.
struct Output {
    output: ChildStdout,
    said: super::ssh::Said,
}

/// Starts ssh. `None`: it is not wanted any more.
fn run(host: &str, line: &str, running: &Shared) -> Option<Result<Output, End>> {
    let mut shared = lock(running);
    if shared.stopped {
        return None;
    }
    Some(match start(host, line, Stdio::null()) {
        Ok(Started { process, output, said, .. }) => {
            shared.ssh = Some(process);
            Ok(Output { output, said })
        }
        Err(error) => Err(End::NoSsh(format!("{error:#}"))),
    })
}

impl Output {
    /// Waits for the end of the process.
    fn end(self, running: &Shared) -> End {
        let step = Duration::from_millis(10);
        let mut left = LAST;
        let status = loop {
            let mut shared = lock(running);
            let Some(ssh) = &mut shared.ssh else { break None };
            if let Some(status) = ssh.ended() {
                break Some(status);
            }
            if left.is_zero() {
                break ssh.end();
            }
            drop(shared);
            thread::sleep(step);
            left = left.saturating_sub(step);
        };
        End::Ssh { code: status.and_then(|status| status.code()), said: self.said.last() }
    }
}

/// Runs ssh, and copies its output to `target` until either ends. Returns how, or `None` if it is not wanted any more.
fn copied<T: Write + AsFd>(
    host: &str,
    line: &str,
    running: &Shared,
    mut target: T,
    sender: &SyncSender<Got>,
) -> Option<End> {
    let mut output = match run(host, line, running)? {
        Ok(output) => output,
        Err(end) => return Some(end),
    };
    match copy(&mut output.output, &mut target, sender) {
        Ok(()) => Some(output.end(running)),
        Err(error) => {
            // The agent then ends the capture.
            lock(running).ssh = None;
            Some(End::Target(error.to_string()))
        }
    }
}

fn copy<T: Write + AsFd>(output: &mut ChildStdout, target: &mut T, sender: &SyncSender<Got>) -> io::Result<()> {
    let mut bytes = vec![0; PIECE];
    let mut told = false;
    loop {
        if has_no_reader(target) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut polled = [PollFd::new(output, PollFlags::IN)];
        match poll(&mut polled, Some(&LOOK)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) | Err(_) => {}
        }
        match output.read(&mut bytes) {
            Ok(0) => return target.flush(),
            Ok(length) => {
                if !told {
                    told = true;
                    let _ = sender.try_send(Got::Frames);
                }
                target.write_all(bytes.get(..length).unwrap_or_default()).and_then(|()| target.flush())?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // What has come is in the target.
            Err(_) => return target.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_words_go_to_a_shell_that_may_be_there() {
        for word in ["alpha", "net=1,in,ethertype=0x806", "mac=52:54:00:00:00:01", "a.b-c_d"] {
            assert!(is_plain(word), "{word}");
        }
        for word in ["", "-x", "$(reboot)", "a;b", "a b", "`a`", "a\nb", "ä", "a|b", "*", "~x"] {
            assert!(!is_plain(word), "{word}");
        }
    }

    #[test]
    fn a_target_that_cannot_be_written_runs_no_ssh() {
        let agent = Agent::of("host.invalid", "sidecore-agent pipe").unwrap();
        let (sender, ends) = sync_channel(1);
        let errand = Errand::capture(&agent, "capture a", "/nonexistent/a.pcapng", sender);
        assert!(ends.recv().is_err(), "nobody reads the target");
        assert!(matches!(errand.got.recv(), Ok(Got::End(End::Target(why))) if why.contains("No such file")));
        assert!(lock(&errand.running).ssh.is_none());
    }
}
