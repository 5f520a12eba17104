//! Where a machine's COM2 is: QEMU's UNIX socket, a TCP port, a serial device, or standard input.

use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Write, stdin};
use std::net::TcpStream;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{Mode, OFlags};
use rustix::termios::{self, OptionalActions};

/// The speed of sidecore's COM2, in baud.
const BAUD: u32 = 115_200;

/// Where COM2 is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Standard input. Nothing can be sent.
    Stdin,
    /// `unix:PATH`: a socket on which something listens, such as QEMU's `-serial unix:PATH,server=on,wait=off`.
    Unix(PathBuf),
    /// `tcp:HOST:PORT`: a terminal server, or QEMU.
    Tcp(String),
    /// `serial:DEVICE[@BAUD]`: a serial device of this machine.
    Serial(PathBuf, u32),
    /// `file:PATH`: what COM2 said before. Nothing can be sent.
    File(PathBuf),
}

/// Both directions of a source. `to`: None if nothing can be sent.
pub struct Connection {
    /// What the machine says.
    pub from: Box<dyn Read + Send>,
    /// What is said to it.
    pub to: Option<Box<dyn Write + Send>>,
}

impl FromStr for Source {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == "-" {
            return Ok(Self::Stdin);
        }
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Self::Unix(path.into()));
        }
        if let Some(path) = text.strip_prefix("file:") {
            return Ok(Self::File(path.into()));
        }
        if let Some(address) = text.strip_prefix("tcp:") {
            ensure!(address.contains(':'), "`{text}`: expected tcp:HOST:PORT");
            return Ok(Self::Tcp(address.to_owned()));
        }
        if let Some(device) = text.strip_prefix("serial:") {
            let Some((path, baud)) = device.rsplit_once('@') else { return Ok(Self::Serial(device.into(), BAUD)) };
            let baud = baud.parse().with_context(|| format!("`{baud}` is no speed in baud"))?;
            return Ok(Self::Serial(path.into(), baud));
        }
        Self::of_path(Path::new(text))
    }
}

impl Source {
    /// What a path without a word before it is, by what is there.
    fn of_path(path: &Path) -> Result<Self> {
        let Ok(there) = fs::metadata(path) else {
            bail!(
                "`{}` is not there. Expected unix:PATH, tcp:HOST:PORT, serial:DEVICE[@BAUD], file:PATH, a path, or -",
                path.display()
            );
        };
        let kind = there.file_type();
        if kind.is_socket() {
            Ok(Self::Unix(path.into()))
        } else if kind.is_char_device() {
            Ok(Self::Serial(path.into(), BAUD))
        } else if kind.is_file() || kind.is_fifo() {
            Ok(Self::File(path.into()))
        } else {
            bail!("`{}` is no socket, no serial device and no file", path.display())
        }
    }

    /// Connects.
    ///
    /// # Errors
    /// It is not there, or may not be used; the sentence names it.
    pub fn open(&self) -> Result<Connection> {
        let what = || format!("cannot open {self}");
        match self {
            Self::Stdin => Ok(Connection { from: Box::new(stdin()), to: None }),
            Self::File(path) => Ok(Connection { from: Box::new(File::open(path).with_context(what)?), to: None }),
            Self::Unix(path) => {
                let stream = UnixStream::connect(path).with_context(what)?;
                let to = stream.try_clone().with_context(what)?;
                Ok(Connection { from: Box::new(stream), to: Some(Box::new(to)) })
            }
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address).with_context(what)?;
                let to = stream.try_clone().with_context(what)?;
                Ok(Connection { from: Box::new(stream), to: Some(Box::new(to)) })
            }
            Self::Serial(path, baud) => {
                let device = serial(path, *baud).with_context(what)?;
                let to = device.try_clone().with_context(what)?;
                Ok(Connection { from: Box::new(device), to: Some(Box::new(to)) })
            }
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdin => write!(f, "standard input"),
            Self::Unix(path) => write!(f, "the socket {}", path.display()),
            Self::Tcp(address) => write!(f, "the TCP port {address}"),
            Self::Serial(path, baud) => write!(f, "the serial device {} at {baud} baud", path.display()),
            Self::File(path) => write!(f, "the file {}", path.display()),
        }
    }
}

/// Opens a serial device: bytes as they are, no echo, 8N1, modem lines ignored.
fn serial(path: &Path, baud: u32) -> Result<File> {
    // NONBLOCK: without it, opening waits for a carrier on some devices.
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let device = rustix::fs::open(path, flags, Mode::empty())?;
    let mut settings = termios::tcgetattr(&device).context("it is no serial device")?;
    settings.make_raw();
    settings.control_modes |= termios::ControlModes::CLOCAL | termios::ControlModes::CREAD;
    settings.set_speed(baud).with_context(|| format!("{baud} baud is no speed"))?;
    termios::tcsetattr(&device, OptionalActions::Now, &settings).context("it refuses these settings")?;
    rustix::fs::fcntl_setfl(&device, OFlags::empty())?;
    Ok(File::from(device))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;
    use std::thread;

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    use super::*;

    /// Sends a line to the other end, which answers with the same in capital letters.
    fn talks(source: &Source) {
        let Connection { from, to } = source.open().unwrap();
        to.unwrap().write_all(b"hello\r\n").unwrap();
        let mut line = String::new();
        BufReader::new(from).read_line(&mut line).unwrap();
        assert_eq!(line, "HELLO\r\n");
    }

    fn answer(mut stream: impl Read + Write) {
        let mut line = [0; 7];
        stream.read_exact(&mut line).unwrap();
        stream.write_all(&line.to_ascii_uppercase()).unwrap();
    }

    #[test]
    fn words_say_what_kind_of_place_it_is() {
        let of = |text: &str| text.parse::<Source>().unwrap();
        assert_eq!(of("-"), Source::Stdin);
        assert_eq!(of("unix:/tmp/com2"), Source::Unix("/tmp/com2".into()));
        assert_eq!(of("tcp:127.0.0.1:4001"), Source::Tcp("127.0.0.1:4001".into()));
        assert_eq!(of("serial:/dev/ttyUSB0"), Source::Serial("/dev/ttyUSB0".into(), 115_200));
        assert_eq!(of("serial:/dev/ttyS1@9600"), Source::Serial("/dev/ttyS1".into(), 9_600));
        assert_eq!(of("/dev/null"), Source::Serial("/dev/null".into(), 115_200), "a path is looked at");
        for wrong in ["tcp:there", "serial:/dev/ttyS0@fast", "/nowhere/at/all", "/"] {
            assert!(wrong.parse::<Source>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_unix_socket_talks_both_ways() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("com2");
        let listener = UnixListener::bind(&path).unwrap();
        let other = thread::spawn(move || answer(listener.accept().unwrap().0));
        talks(&path.to_str().unwrap().parse().unwrap());
        other.join().unwrap();
    }

    #[test]
    fn a_tcp_port_talks_both_ways() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let source = Source::Tcp(listener.local_addr().unwrap().to_string());
        let other = thread::spawn(move || answer(listener.accept().unwrap().0));
        talks(&source);
        other.join().unwrap();
    }

    #[test]
    fn a_serial_device_passes_bytes_as_they_are() {
        let end = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&end).unwrap();
        unlockpt(&end).unwrap();
        let name = ptsname(&end, Vec::new()).unwrap().into_string().unwrap();
        let source: Source = name.parse().unwrap();
        assert_eq!(source, Source::Serial(name.into(), 115_200));
        // This end stays open until the answer was read: closing it throws away what was not.
        let end = File::from(end);
        let copy = end.try_clone().unwrap();
        let other = thread::spawn(move || answer(copy));
        talks(&source);
        other.join().unwrap();
    }

    #[test]
    fn what_is_no_serial_device_is_refused_by_name() {
        let error = Source::Serial("/dev/null".into(), BAUD).open().err().unwrap();
        assert!(format!("{error:#}").contains("/dev/null") && format!("{error:#}").contains("no serial device"));
    }
}
