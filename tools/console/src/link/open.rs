//! Opens a way to a machine: a UNIX socket, TCP, a serial device, or the system's ssh.

use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::fs::{Mode, OFlags};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

use super::ssh::{Ssh, Started, start};

/// Time for a TCP connection.
const TCP: Duration = Duration::from_secs(10);

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

/// Runs ssh with a command that passes the lines on.
fn ssh(host: &str, command: &str) -> Result<Opened> {
    let Started { process, mut input, output, said } = start(host, command, Stdio::piped())?;
    let requests = input.take().context("ssh has no pipes")?;
    let input = Box::new(SshOutput(output, process));
    Ok(Opened { input, output: Box::new(requests), reason: Box::new(move || said.last()) })
}

/// What ssh's process writes, and the process.
struct SshOutput(ChildStdout, #[allow(dead_code, reason = "it is ended with the connection")] Ssh);

impl Read for SshOutput {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(bytes)
    }
}
