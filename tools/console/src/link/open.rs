//! Opens a way to a machine: a UNIX socket, TCP, a serial device, or the system's ssh.

use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::fs::{Mode, OFlags};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

use crate::clean::{LINE, clean};

/// Time for a TCP connection.
const TCP: Duration = Duration::from_secs(10);
/// Most bytes of ssh's own messages that are kept: the last ones.
const MESSAGES: usize = 4096;
/// Time for ssh's last message, after its output has ended.
const LAST_MESSAGE: Duration = Duration::from_millis(200);

/// A way to a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// A UNIX socket.
    Socket(PathBuf),
    /// A TCP port: host and port.
    Tcp(String),
    /// A serial device, and its speed in baud.
    Serial(PathBuf, u32),
    /// ssh: the host, and the command that runs there.
    Ssh(String, String),
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "socket {}", path.display()),
            Self::Tcp(address) => write!(f, "tcp {address}"),
            Self::Serial(path, baud) => write!(f, "serial {} at {baud}", path.display()),
            Self::Ssh(host, _) => write!(f, "ssh {host}"),
        }
    }
}

/// An open way.
pub struct Opened {
    /// What the machine sends.
    pub input: Box<dyn Read + Send>,
    /// What it gets.
    pub output: Box<dyn Write + Send>,
    /// Says why it ended, if there is more to say than the error of a read.
    pub reason: Box<dyn FnOnce() -> Option<String>>,
}

impl Opened {
    fn plain(input: impl Read + Send + 'static, output: impl Write + Send + 'static) -> Self {
        Self { input: Box::new(input), output: Box::new(output), reason: Box::new(|| None) }
    }
}

impl Way {
    /// Opens it.
    ///
    /// # Errors
    /// It says what could not be opened, and why.
    pub fn open(&self) -> Result<Opened> {
        match self {
            Self::Socket(path) => {
                let stream =
                    UnixStream::connect(path).with_context(|| format!("cannot connect to {}", path.display()))?;
                Ok(Opened::plain(stream.try_clone()?, stream))
            }
            Self::Tcp(address) => {
                let stream = tcp(address).with_context(|| format!("cannot connect to {address}"))?;
                Ok(Opened::plain(stream.try_clone()?, stream))
            }
            Self::Serial(path, baud) => {
                let device = serial(path, *baud).with_context(|| format!("cannot use {}", path.display()))?;
                Ok(Opened::plain(device.try_clone()?, device))
            }
            Self::Ssh(host, command) => ssh(host, command),
        }
    }
}

fn tcp(address: &str) -> Result<TcpStream> {
    let mut last = None;
    for one in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&one, TCP) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) => Err(error.into()),
        None => bail!("the name has no address"),
    }
}

/// Raw mode, 8 bits, no parity, no flow control: the settings of sidecore's UARTs.
fn serial(path: &Path, baud: u32) -> Result<File> {
    // Without NONBLOCK the open would wait for a carrier, which a cable of three wires does not have.
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let device = rustix::fs::open(path, flags, Mode::empty())?;
    let mut settings = tcgetattr(&device).context("it is no serial device")?;
    settings.make_raw();
    settings.control_modes |= rustix::termios::ControlModes::CLOCAL | rustix::termios::ControlModes::CREAD;
    settings.set_speed(baud).with_context(|| format!("it has no speed of {baud} baud"))?;
    tcsetattr(&device, OptionalActions::Now, &settings)?;
    let flags = rustix::fs::fcntl_getfl(&device)?;
    rustix::fs::fcntl_setfl(&device, flags & !OFlags::NONBLOCK)?;
    Ok(File::from(device))
}

/// ssh, which ends with the connection.
struct Ssh(Child);

impl Drop for Ssh {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What ssh's process writes, and the process.
struct SshOutput(std::process::ChildStdout, #[allow(dead_code, reason = "it is ended with the connection")] Ssh);

impl Read for SshOutput {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(bytes)
    }
}

/// Runs ssh. It must not ask anything on the terminal, which shows the views. So it logs in by a key or not at all.
fn ssh(host: &str, command: &str) -> Result<Opened> {
    let mut child = Command::new("ssh")
        .args(["-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=10", "--", host, command])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run ssh")?;
    let (output, input, messages) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let child = Ssh(child);
    let (Some(output), Some(input), Some(messages)) = (output, input, messages) else { bail!("ssh has no pipes") };
    let said = Arc::new(Mutex::new(String::new()));
    let heard = said.clone();
    thread::spawn(move || {
        let mut messages = messages;
        let mut bytes = [0; 512];
        while let Ok(length @ 1..) = messages.read(&mut bytes) {
            let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
            let part = String::from_utf8_lossy(bytes.get(..length).unwrap_or_default());
            heard.push_str(&part);
            // Its last message says why it ends.
            let surplus = heard.ceil_char_boundary(heard.len().saturating_sub(MESSAGES));
            heard.drain(..surplus);
        }
    });
    let reason = move || {
        thread::sleep(LAST_MESSAGE);
        let said = said.lock().unwrap_or_else(PoisonError::into_inner);
        let last = said.lines().rev().find(|line| !line.trim().is_empty())?;
        Some(clean(last.trim(), LINE))
    };
    Ok(Opened { input: Box::new(SshOutput(input, child)), output: Box::new(output), reason: Box::new(reason) })
}
