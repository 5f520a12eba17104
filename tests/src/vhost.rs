//! A scenario's handles of `sidecore-vhost`, and of DPDK's testpmd at its ports.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::machine::Machine;

/// The parts of a running process, which `mk` has started.
pub struct Parts {
    /// The process.
    pub process: Box<dyn Machine>,
    /// Its output.
    pub output: Box<dyn Read + Send>,
    /// Its input.
    pub input: Box<dyn Write + Send>,
    /// Sends it SIGTERM.
    pub terminate: Box<dyn Fn() -> Result<()>>,
    /// Starts another one in its place, after its end.
    pub again: Box<dyn Fn() -> Result<Self>>,
}

/// A running `sidecore-vhost --stats --json`. Dropping it ends the process.
pub struct Vhost {
    process: Box<dyn Machine>,
    terminate: Box<dyn Fn() -> Result<()>>,
    again: Box<dyn Fn() -> Result<Parts>>,
    counters: Receiver<Value>,
    /// The process before it, which was killed. It keeps the sockets until the end.
    before: Option<Box<Self>>,
}

impl Vhost {
    /// Takes over a process.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let (sender, counters) = mpsc::channel();
        let output = parts.output;
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(std::result::Result::ok) {
                if serde_json::from_str(&line).is_ok_and(|value| sender.send(value).is_err()) {
                    return;
                }
            }
        });
        let Parts { process, terminate, again, .. } = parts;
        Self { process, terminate, again, counters, before: None }
    }

    /// Kills it in the middle of whatever it does, and starts it again at the same sockets.
    pub fn kill_and_start(&mut self) -> Result<()> {
        self.process.kill();
        let next = Self::new((self.again)()?);
        self.before = Some(Box::new(std::mem::replace(self, next)));
        Ok(())
    }

    /// Waits for the counters of the next second.
    pub fn counters(&mut self, limit: Duration) -> Result<Value> {
        match self.counters.recv_timeout(limit) {
            Ok(counters) => Ok(counters),
            Err(RecvTimeoutError::Timeout) => bail!("sidecore-vhost gave no counters in {} s", limit.as_secs()),
            Err(RecvTimeoutError::Disconnected) => {
                bail!("sidecore-vhost has ended\n{}", self.process.console().unwrap_or_default())
            }
        }
    }

    /// The counters of the next second from now on. Those of the seconds before are dropped.
    pub fn counters_now(&mut self, limit: Duration) -> Result<Value> {
        while self.counters.try_recv().is_ok() {}
        self.counters(limit)
    }

    /// Waits until `holds` accepts the counters, at most for `limit`.
    pub fn until(&mut self, limit: Duration, mut holds: impl FnMut(&Value) -> Result<bool>) -> Result<Value> {
        let deadline = Instant::now() + limit;
        loop {
            let counters = self.counters(limit)?;
            if holds(&counters)? {
                return Ok(counters);
            }
            ensure!(Instant::now() < deadline, "waited {} s, the counters are {counters}", limit.as_secs());
        }
    }

    /// Ends it by a signal. Returns its last counters.
    pub fn end(self, limit: Duration) -> Result<Value> {
        (self.terminate)()?;
        let deadline = Instant::now() + limit;
        let mut last = None;
        loop {
            match self.counters.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(counters) => last = Some(counters),
                Err(RecvTimeoutError::Disconnected) => {
                    return last.context("sidecore-vhost ended without its counters");
                }
                Err(RecvTimeoutError::Timeout) => bail!("sidecore-vhost has not ended in {} s", limit.as_secs()),
            }
        }
    }
}

impl Drop for Vhost {
    fn drop(&mut self) {
        self.process.kill();
    }
}

/// A counter of a port.
pub fn port(counters: &Value, port: usize, name: &str) -> Result<u64> {
    counters["ports"][port][name].as_u64().with_context(|| format!("no {name} of port {port} in {counters}"))
}

/// A counter of a disk.
pub fn disk(counters: &Value, disk: usize, name: &str) -> Result<u64> {
    counters["disks"][disk][name].as_u64().with_context(|| format!("no {name} of disk {disk} in {counters}"))
}

/// A counter, summed over all ports.
pub fn all(counters: &Value, name: &str) -> Result<u64> {
    let ports = counters["ports"].as_array().with_context(|| format!("no ports in {counters}"))?;
    (0..ports.len()).map(|n| port(counters, n, name)).sum()
}

/// testpmd with virtio-user ports, at its prompt. Its output comes only at its end, because it buffers it.
pub struct Testpmd {
    process: Box<dyn Machine>,
    input: Box<dyn Write + Send>,
    said: Option<JoinHandle<String>>,
}

impl Testpmd {
    /// Takes over a process.
    #[must_use]
    pub fn new(mut parts: Parts) -> Self {
        let said = thread::spawn(move || {
            let mut text = Vec::new();
            // After an error, the output until then is used.
            let _ = parts.output.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        Self { process: parts.process, input: parts.input, said: Some(said) }
    }

    /// Fails if it has ended by itself.
    pub fn lives(&mut self) -> Result<()> {
        if self.process.ended()? {
            bail!("testpmd has ended:\n{}{}", self.process.console()?, self.words());
        }
        Ok(())
    }

    /// Sends it a command.
    pub fn tell(&mut self, command: &str) -> Result<()> {
        self.lives()?;
        writeln!(self.input, "{command}").context("cannot tell testpmd anything")
    }

    /// Tells it to quit, and waits for its end. Returns its whole output.
    pub fn quit(mut self) -> Result<String> {
        self.tell("quit")?;
        Ok(self.words())
    }

    fn words(&mut self) -> String {
        self.said.take().and_then(|said| said.join().ok()).unwrap_or_default()
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        self.process.kill();
    }
}

/// The counts in testpmd's output of `show port stats all`: frames received and sent by each port.
pub fn testpmd_counts(said: &str) -> Result<Vec<(u64, u64)>> {
    let mut counts = Vec::new();
    let mut received = None;
    let number = |line: &str, name: &str| -> Option<u64> {
        line.trim().strip_prefix(name)?.split_whitespace().next()?.parse().ok()
    };
    for line in said.split("NIC statistics for port").skip(1).flat_map(str::lines) {
        received = number(line, "RX-packets:").or(received);
        if let (Some(sent), Some(received)) = (number(line, "TX-packets:"), received) {
            counts.push((received, sent));
        }
    }
    ensure!(!counts.is_empty(), "testpmd has shown no statistics:\n{said}");
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statistics_of_each_port_are_read() {
        let said = "testpmd> stop\n  RX-packets: 9 RX-dropped: 0\n  TX-packets: 9\n\
                    ### NIC statistics for port 0  ###\n  RX-packets: 20976      RX-missed: 0  RX-bytes:  1342464\n\
                    RX-errors: 0\n  TX-packets: 22624      TX-errors: 0\n ###\n\
                    ### NIC statistics for port 1  ###\n  RX-packets: 22496  \n  TX-packets: 21104  \n";
        assert_eq!(testpmd_counts(said).unwrap(), [(20976, 22624), (22496, 21104)]);
        assert!(testpmd_counts("nothing").is_err());
    }

    #[test]
    fn counters_are_found_by_port_and_summed() {
        let counters = serde_json::json!({"ports": [{"rx": 1}, {"rx": 2}]});
        assert_eq!((port(&counters, 1, "rx").unwrap(), all(&counters, "rx").unwrap()), (2, 3));
        assert!(port(&counters, 2, "rx").is_err() && all(&counters, "tx").is_err());
    }
}
