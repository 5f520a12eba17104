//! The system's ssh: runs a command on a host. With connection sharing in the user's configuration (`ControlMaster`), a second one
//! needs no second login.

use std::io::Read as _;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::clean::{LINE, clean};

/// Most bytes of ssh's own messages that are kept: the last ones.
const MESSAGES: usize = 4096;
/// Time for the rest of ssh's messages, after its output has ended. A shared connection keeps them open for longer.
const LAST_MESSAGE: Duration = Duration::from_secs(1);

/// ssh's process. It is ended when this is dropped.
#[derive(Debug)]
pub struct Ssh(Child);

impl Ssh {
    /// How it has ended. `None`: it has not.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }

    /// Ends it, and returns how it has ended. `None`: the system does not say.
    pub fn end(&mut self) -> Option<ExitStatus> {
        // It may have ended by itself.
        let _ = self.0.kill();
        self.0.wait().ok()
    }
}

impl Drop for Ssh {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// What ssh, and the program at the other end, say on standard error.
#[derive(Debug)]
pub struct Said {
    text: Arc<Mutex<String>>,
    /// Its other end is dropped when standard error has ended.
    ends: Receiver<()>,
}

impl Said {
    fn of(mut messages: ChildStderr) -> Self {
        let (text, (end, ends)) = (Arc::new(Mutex::new(String::new())), channel());
        let heard = text.clone();
        thread::spawn(move || {
            let _end = end;
            let mut bytes = [0; 512];
            while let Ok(length @ 1..) = messages.read(&mut bytes) {
                let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
                let part = String::from_utf8_lossy(bytes.get(..length).unwrap_or_default());
                heard.push_str(&part);
                let surplus = heard.ceil_char_boundary(heard.len().saturating_sub(MESSAGES));
                heard.drain(..surplus);
            }
        });
        Self { text, ends }
    }

    /// The last message, made safe. It says why ssh ends. `None`: there is none.
    #[must_use]
    pub fn last(&self) -> Option<String> {
        // It ends by the other end that is dropped, or by the time.
        let _ = self.ends.recv_timeout(LAST_MESSAGE);
        let said = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        let last = said.lines().rev().find(|line| !line.trim().is_empty())?;
        Some(clean(last.trim(), LINE))
    }
}

/// An ssh that runs.
pub struct Started {
    /// The process.
    pub process: Ssh,
    /// Its standard input, if it has a pipe for it.
    pub input: Option<ChildStdin>,
    /// Its standard output.
    pub output: ChildStdout,
    /// Its standard error.
    pub said: Said,
}

/// Runs `command` at `host`. ssh must not ask anything on the terminal, which shows the views. So it logs in by a key or not at all.
///
/// # Errors
/// There is no ssh.
pub fn start(host: &str, command: &str, input: Stdio) -> Result<Started> {
    let mut child = Command::new("ssh")
        .args(["-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=10", "--", host, command])
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run ssh")?;
    let (input, output, messages) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let process = Ssh(child);
    let (Some(output), Some(messages)) = (output, messages) else { bail!("ssh has no pipes") };
    Ok(Started { process, input, output, said: Said::of(messages) })
}
