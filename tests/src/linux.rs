//! A machine that runs plain Linux on an 82599, without sidecore: its driver judges the device model.
//!
//! Its first process is the guests' `guest/init`, which obeys: one action a line on the console, one answer. The wire of
//! two machines joins them.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read, Write};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use x520_model::pcap;

use crate::machine::Machine;

/// What a machine is started with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Names its folder of logs within the scenario's.
    pub name: &'static str,
    /// From 1: the last byte of its MAC and IP addresses.
    pub number: u8,
    /// Logical processors: the driver makes a queue for each.
    pub cpus: u32,
    /// Words on the kernel's command line.
    pub options: &'static str,
}

impl Setup {
    /// The address of its NIC.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        [0x02, 0x1b, 0x21, 0, 0, self.number]
    }

    /// The kernel's command line. There is no IPv6, so that nothing is on the wire that nobody asked for.
    #[must_use]
    pub fn cmdline(&self) -> String {
        let peer = if self.number == 1 { 2 } else { 1 };
        format!(
            "console=ttyS0 quiet loglevel=3 panic=-1 ipv6.disable=1 {} sc.ip=10.0.0.{}/24 sc.peer=10.0.0.{peer} sc.do=obey",
            self.options, self.number
        )
    }
}

/// The parts of a machine that runs, as `mk` has started it.
pub struct Parts {
    /// The emulator.
    pub machine: Box<dyn Machine>,
    /// The process that serves the device.
    pub server: Box<dyn Machine>,
    /// The console's two directions.
    pub output: Box<dyn Read + Send>,
    /// See above.
    pub input: Box<dyn Write + Send>,
    /// What the device's server is told.
    pub commands: Box<dyn Write + Send>,
    /// What the device's server has to say against the driver.
    pub complaints: PathBuf,
    /// What passed on the wire.
    pub capture: PathBuf,
}

/// A machine that runs. Dropping it ends the emulator and the device.
pub struct Linux {
    parts: Parts,
    name: &'static str,
    answers: Receiver<Value>,
}

impl Linux {
    /// Takes over a machine.
    #[must_use]
    pub fn new(name: &'static str, mut parts: Parts) -> Self {
        let (sender, answers) = mpsc::channel();
        let output = std::mem::replace(&mut parts.output, Box::new(std::io::empty()));
        thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(std::result::Result::ok) {
                let line = String::from_utf8_lossy(&line);
                let answer = line.trim().strip_prefix("SC ").and_then(|text| serde_json::from_str(text).ok());
                if answer.is_some_and(|answer| sender.send(answer).is_err()) {
                    return;
                }
            }
        });
        Self { parts, name, answers }
    }

    /// Waits for the answer to an action.
    pub fn answer(&mut self, action: &str, limit: Duration) -> Result<Value> {
        let deadline = Instant::now() + limit;
        loop {
            match self.answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(answer) if answer["do"] == action => {
                    if let Some(error) = answer["error"].as_str() {
                        bail!("{}: {action}: {error}", self.name);
                    }
                    return Ok(answer);
                }
                // It says more than what is asked.
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    bail!("{}: waited {} s for {action}\n{}", self.name, limit.as_secs(), self.last_words())
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("{}: the emulator ended while waiting for {action}\n{}", self.name, self.last_words())
                }
            }
        }
    }

    /// Has it do something (`ping:20`) and waits for the answer.
    pub fn ask(&mut self, action: &str, limit: Duration) -> Result<Value> {
        writeln!(self.parts.input, "{action}").with_context(|| format!("{}: cannot ask for {action}", self.name))?;
        self.answer(action.split(':').next().unwrap_or(action), limit)
    }

    /// A number of an answer.
    pub fn number(&mut self, action: &str, field: &str, limit: Duration) -> Result<f64> {
        let answer = self.ask(action, limit)?;
        answer[field].as_f64().with_context(|| format!("{}: {action}: no {field} in {answer}", self.name))
    }

    /// Pulls the cable, or puts it in.
    pub fn cable(&mut self, present: bool) -> Result<()> {
        writeln!(self.parts.commands, "cable {}", if present { "in" } else { "out" }).context("the device has ended")
    }

    /// What passed on the wire so far.
    pub fn wire(&self) -> Result<Vec<pcap::Frame>> {
        let path = &self.parts.capture;
        File::open(path).and_then(pcap::read).with_context(|| format!("cannot read {}", path.display()))
    }

    /// What the device has to say against the driver so far.
    pub fn complaints(&self) -> Result<Vec<String>> {
        Ok(fs::read_to_string(&self.parts.complaints)?.lines().map(str::to_owned).collect())
    }

    fn last_words(&self) -> String {
        let console = self.parts.machine.console().unwrap_or_default();
        let lines: Vec<&str> = console.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

impl Drop for Linux {
    fn drop(&mut self) {
        self.parts.machine.kill();
        self.parts.server.kill();
    }
}
