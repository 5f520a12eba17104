//! A scenario's handle of the process that serves a machine's 82599 (`tests/x520-model`, `x520-server`).

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read, Write};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use x520_model::pcap;

use crate::machine::Machine;

/// The parts of a running server, which `mk` has started.
pub struct Parts {
    /// The process.
    pub server: Box<dyn Machine>,
    /// Its standard input: commands.
    pub commands: Box<dyn Write + Send>,
    /// Its standard output: answers.
    pub answers: Box<dyn Read + Send>,
    /// The file with its diagnostics: mistakes of the driver.
    pub complaints: PathBuf,
    /// The capture of the wire, if there is one.
    pub capture: Option<PathBuf>,
}

/// The server of a device. Dropping it ends the process.
pub struct Nic {
    server: Box<dyn Machine>,
    commands: Box<dyn Write + Send>,
    answers: Receiver<String>,
    /// Whether the device masters the bus, by the server's last message.
    master: bool,
    complaints: PathBuf,
    capture: Option<PathBuf>,
}

impl Nic {
    /// Takes over a server.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let (sender, answers) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(parts.answers).lines().map_while(std::result::Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let Parts { server, commands, complaints, capture, .. } = parts;
        Self { server, commands, answers, master: false, complaints, capture }
    }

    fn tell(&mut self, command: &str) -> Result<()> {
        writeln!(self.commands, "{command}").context("the device has ended")
    }

    /// Waits for the next answer to a command. Records messages that are no answer. `None`: such a message made `heard`
    /// true.
    fn answer(&mut self, limit: Duration, heard: impl Fn(&Self) -> bool) -> Result<Option<String>> {
        let deadline = Instant::now() + limit;
        while !heard(self) {
            match self.answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => match line.strip_prefix("bus-master ") {
                    Some(state) => self.master = state == "on",
                    None => return Ok(Some(line)),
                },
                Err(RecvTimeoutError::Timeout) => bail!("waited {} s for a word of the device", limit.as_secs()),
                Err(RecvTimeoutError::Disconnected) => bail!("the device has ended"),
            }
        }
        Ok(None)
    }

    /// Pulls the cable, or puts it in.
    pub fn cable(&mut self, present: bool) -> Result<()> {
        self.tell(if present { "cable in" } else { "cable out" })
    }

    /// Waits until the device masters the bus (`on`), or no longer does.
    pub fn bus_master(&mut self, on: bool, limit: Duration) -> Result<()> {
        let unasked = self.answer(limit, |nic| nic.master == on);
        let unasked = unasked.with_context(|| format!("bus mastering {}", if on { "on" } else { "off" }))?;
        unasked.map_or(Ok(()), |line| bail!("the device says {line:?}"))
    }

    /// Puts a module into the SFP+ cage: a name of `x520_model::sfp`, or `none`. The other end of the wire has that rate in
    /// Mb/s, 1,000 or 10,000.
    pub fn module(&mut self, name: &str, rate: u32) -> Result<()> {
        self.tell(&format!("partner {rate}"))?;
        self.tell(&format!("module {name}"))
    }

    /// What a backplane's other end offers from now on, of `kr`, `kx4`, `kx`.
    pub fn offers(&mut self, offers: &str) -> Result<()> {
        self.tell(&format!("offers {offers}"))
    }

    /// The register of the device's lights.
    pub fn lights(&mut self) -> Result<u32> {
        self.tell("lights")?;
        let answer = self.answer(Duration::from_secs(60), |_| false)?.context("no answer")?;
        let lights = answer.strip_prefix("lights ").and_then(|rest| u32::from_str_radix(rest, 16).ok());
        lights.with_context(|| format!("no register in {answer:?}"))
    }

    /// Makes the device fail from now on: `gone`, `receive-stalled` or `transmit-stalled`; `module-silent`, `module-bad` or
    /// `module-slow`. `nothing`: it works again.
    pub fn fail(&mut self, how: &str) -> Result<()> {
        self.tell(&format!("fail {how}"))
    }

    /// Starts a count of the device's accesses to these bytes of the machine's memory.
    pub fn watch(&mut self, start: u64, bytes: u64) -> Result<()> {
        self.tell(&format!("watch {start} {bytes}"))
    }

    /// The count of accesses, reads and writes, to the watched bytes.
    pub fn touched(&mut self) -> Result<u64> {
        self.tell("touched")?;
        let answer = self.answer(Duration::from_secs(60), |_| false)?.context("no answer")?;
        let counts = answer.strip_prefix("touched ").map(|rest| rest.split(' ').map(str::parse::<u64>));
        let counts = counts.with_context(|| format!("no counts in {answer:?}"))?;
        Ok(counts.sum::<Result<_, _>>()?)
    }

    /// The frames on the wire so far.
    pub fn wire(&self) -> Result<Vec<pcap::Frame>> {
        let path = self.capture.as_ref().context("the wire of this device is not recorded")?;
        File::open(path).and_then(pcap::read).with_context(|| format!("cannot read {}", path.display()))
    }

    /// The device's diagnostics about the driver so far.
    pub fn complaints(&self) -> Result<Vec<String>> {
        Ok(fs::read_to_string(&self.complaints)?.lines().map(str::to_owned).collect())
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        self.server.kill();
    }
}
