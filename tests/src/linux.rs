//! A machine that runs plain Linux with an 82599, without sidecore. Linux's driver tests the device model.
//!
//! Its first process is the guests' `guest/init` in the mode `obey`: it reads one action a line from the console and
//! answers each. A wire can join two machines.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::machine::Machine;
use crate::nic::Nic;

/// The setup of a machine.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its name, and that of its folder of logs within the scenario's.
    pub name: &'static str,
    /// Its number, from 1: the last byte of its MAC and IP addresses.
    pub number: u8,
    /// Logical processors. The driver makes a queue for each.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Whether it starts again after a reboot. If not, the emulator ends.
    pub reboots: bool,
    /// Words at the end of the kernel's command line, where they win over the same ones before.
    pub options: &'static str,
    /// Its NIC is a card for a backplane.
    pub backplane: bool,
}

impl Setup {
    /// The address of its NIC.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        [0x02, 0x1b, 0x21, 0, 0, self.number]
    }

    /// The kernel's command line. IPv6 is off, so that Linux sends nothing by itself.
    #[must_use]
    pub fn cmdline(&self) -> String {
        let peer = if self.number == 1 { 2 } else { 1 };
        format!(
            "console=ttyS0 quiet loglevel=3 panic=-1 ipv6.disable=1 sc.ip=10.0.0.{}/24 sc.peer=10.0.0.{peer} sc.do=obey {}",
            self.number, self.options
        )
    }
}

/// The parts of a running machine, which `mk` has started.
pub struct Parts<N = Nic> {
    /// The emulator.
    pub machine: Box<dyn Machine>,
    /// What the machine writes to its console.
    pub output: Box<dyn Read + Send>,
    /// What the machine reads from its console.
    pub input: Box<dyn Write + Send>,
    /// Its device, if a process beside the emulator serves it.
    pub nic: N,
}

/// A running machine. Dropping it ends the emulator and the device.
pub struct Linux<N = Nic> {
    machine: Box<dyn Machine>,
    input: Box<dyn Write + Send>,
    /// Its device.
    pub nic: N,
    name: &'static str,
    answers: Receiver<Value>,
}

impl<N> Linux<N> {
    /// Takes over a machine.
    #[must_use]
    pub fn new(name: &'static str, parts: Parts<N>) -> Self {
        let Parts { machine, output, input, nic } = parts;
        let (sender, answers) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(std::result::Result::ok) {
                let line = String::from_utf8_lossy(&line);
                let answer = line.trim().strip_prefix("SC ").and_then(|text| serde_json::from_str(text).ok());
                if answer.is_some_and(|answer| sender.send(answer).is_err()) {
                    return;
                }
            }
        });
        Self { machine, input, nic, name, answers }
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
                // The console has other lines too.
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

    /// Sends it an action (`ping:20`).
    pub fn tell(&mut self, action: &str) -> Result<()> {
        writeln!(self.input, "{action}").with_context(|| format!("{}: cannot ask for {action}", self.name))
    }

    /// Sends it an action and waits for the answer.
    pub fn ask(&mut self, action: &str, limit: Duration) -> Result<Value> {
        self.tell(action)?;
        self.answer(action.split(':').next().unwrap_or(action), limit)
    }

    /// Sends it an action and returns a number of the answer.
    pub fn number(&mut self, action: &str, field: &str, limit: Duration) -> Result<f64> {
        let answer = self.ask(action, limit)?;
        answer[field].as_f64().with_context(|| format!("{}: {action}: no {field} in {answer}", self.name))
    }

    fn last_words(&self) -> String {
        let console = self.machine.console().unwrap_or_default();
        let lines: Vec<&str> = console.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

impl<N> Drop for Linux<N> {
    fn drop(&mut self) {
        self.machine.kill();
    }
}
