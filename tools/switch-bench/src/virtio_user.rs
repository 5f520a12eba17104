//! Measures switches with DPDK's virtio-user ports as guests. Each switch has a testpmd, in which frames go round for
//! ever: testpmd sends a frame that arrives at one port by the other port. Each crossing of the switch counts.
//!
//! testpmd takes commands from its standard input. It counts frames, and the cycles that it spends on them. It buffers
//! its output, so the output is read after testpmd has ended.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use vhost_front::features;

use switch_bench::clock::percentile;
use switch_bench::distance::Distance;
use switch_bench::process;

/// Bursts of 32 frames that each port sends at first. Those of both ports fill half of a ring, so that no frame is
/// dropped.
const BURSTS: usize = 8;
/// Time until ports are connected and links are up.
const SETTLE: Duration = Duration::from_secs(3);
/// Time until testpmd has carried out a command. Its command thread shares a processor with its forwarding thread.
const OBEY: Duration = Duration::from_millis(60);
const LIMIT: Duration = Duration::from_secs(60);

/// A switch, and the testpmd at its ports.
#[derive(Clone, Debug)]
pub struct Driver {
    name: String,
    switch: i32,
    testpmd: i32,
    /// The file with testpmd's standard output.
    said: PathBuf,
    /// The file with its standard error.
    words: PathBuf,
}

impl Driver {
    /// From NAME,SWITCH,TESTPMD,OUTPUT,ERRORS: the numbers of two processes, and files.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(',').collect();
        let [name, switch, testpmd, said, words] = parts.as_slice() else {
            return Err("expected NAME,SWITCH,TESTPMD,OUTPUT,ERRORS".to_owned());
        };
        let number = |text: &str| text.parse().map_err(|_| format!("{text}: expected the number of a process"));
        Ok(Self {
            name: (*name).to_owned(),
            switch: number(switch)?,
            testpmd: number(testpmd)?,
            said: said.into(),
            words: words.into(),
        })
    }

    fn tell(&self, command: &str) -> Result<()> {
        // testpmd's standard input is a pipe. This opens another writing end of it.
        let input = format!("/proc/{}/fd/0", self.testpmd);
        let mut input = OpenOptions::new().write(true).open(&input).with_context(|| input.clone())?;
        writeln!(input, "{command}").with_context(|| format!("{}: cannot tell testpmd anything", self.name))
    }

    fn resume(&self) -> Result<()> {
        process::resume(self.switch)?;
        process::resume(self.testpmd)
    }

    fn stop(&self) -> Result<()> {
        process::stop(self.testpmd)?;
        process::stop(self.switch)
    }

    /// Tells testpmd to print its counters.
    fn count(&self) -> Result<()> {
        self.tell("show port stats all\nshow fwd stats all")?;
        thread::sleep(OBEY);
        Ok(())
    }

    fn round(&self, milliseconds: u64) -> Result<()> {
        self.resume()?;
        thread::sleep(OBEY);
        self.count()?;
        thread::sleep(Duration::from_millis(milliseconds));
        self.count()?;
        self.stop()
    }

    /// Ends testpmd. Returns its whole output.
    fn end(&self) -> Result<String> {
        self.resume()?;
        self.tell("stop\nquit")?;
        let deadline = Instant::now() + LIMIT;
        loop {
            let said = fs::read_to_string(&self.said)?;
            if said.contains("Bye...") {
                process::stop(self.switch)?;
                return Ok(said);
            }
            ensure!(Instant::now() < deadline, "{}: testpmd does not end", self.name);
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn features(&self) -> Result<u64> {
        let words = fs::read_to_string(&self.words)?;
        let found = words.split("features after negotiate = ").nth(1).and_then(|rest| rest.split_whitespace().next());
        let found = found.with_context(|| format!("{}: testpmd does not say what was negotiated", self.name))?;
        Ok(u64::from_str_radix(found, 16)?)
    }
}

/// One print of testpmd's counters.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Count {
    /// Frames a second of all ports since the print before.
    rate: f64,
    /// Cycles spent on frames since testpmd began; `frames` is the number of these frames.
    busy: f64,
    frames: f64,
    /// Cycles a second.
    clock: f64,
}

/// The number after `words` in the text.
fn number(text: &str, words: &str) -> Option<f64> {
    let (_, rest) = text.split_once(words)?;
    rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// All counts in testpmd's output.
fn counts(said: &str) -> Option<Vec<Count>> {
    // Prompts and echoed commands are not buffered, so they may stand in the middle of the other output. They are
    // removed.
    let mut text = String::new();
    for (n, part) in said.split("testpmd> ").enumerate() {
        text.push_str(if n == 0 { part } else { part.split_once('\n').map_or("", |(_, rest)| rest) });
    }
    let each = text.split("NIC statistics for port 0").skip(1);
    each.map(|count| {
        let rates = count.split("Rx-pps:").skip(1).map(|rest| number(rest, ""));
        Some(Count {
            rate: rates.sum::<Option<f64>>()?,
            busy: number(count, "busy cycles=")?,
            frames: number(count, "total io packets=")?,
            clock: number(count, ") at ")? * 1e6,
        })
    })
    .collect()
}

/// Whether the time between two counts is as long as was asked for, or a little longer.
fn in_time([begin, end]: &[Count; 2], milliseconds: u64) -> bool {
    let lasted = 1e3 * (end.frames - begin.frames) / end.rate;
    (0.9 * milliseconds as f64..milliseconds as f64 + 3.0 * OBEY.as_millis() as f64).contains(&lasted)
}

/// The values of the rounds that are good.
fn kept<T: Copy>(all: &[T], good: &[bool]) -> Vec<T> {
    all.iter().zip(good).filter(|(_, good)| **good).map(|(one, _)| *one).collect()
}

/// Runs rounds in which the switches have their turns one after another.
pub fn measure(drivers: &[Driver], distance: &Distance, milliseconds: u64, rounds: usize) -> Result<Value> {
    thread::sleep(SETTLE);
    drivers.iter().try_for_each(Driver::stop)?;
    for driver in drivers {
        driver.resume()?;
        driver.tell(&format!("start tx_first {BURSTS}"))?;
        thread::sleep(SETTLE / 10);
        driver.stop()?;
    }
    let mut made = 0;
    let rounds = distance.rounds(rounds, |look| {
        look();
        for driver in drivers {
            driver.round(milliseconds)?;
            look();
        }
        made += 1;
        Ok(made - 1)
    });
    let said: Vec<String> = drivers.iter().map(Driver::end).collect::<Result<_>>()?;
    // The process that started the switches ends them. Stopped ones could not end.
    drivers.iter().try_for_each(|driver| process::resume(driver.switch))?;
    let rounds = rounds?;
    let mut all = Vec::new();
    for (driver, said) in drivers.iter().zip(&said) {
        let Some(counts) = counts(said).filter(|counts| counts.len() == 2 * made) else {
            bail!("{}: no frame came round, or testpmd says it in other words:\n{said}", driver.name);
        };
        let windows: Vec<[Count; 2]> = rounds.results.iter().map(|&n| [counts[2 * n], counts[2 * n + 1]]).collect();
        all.push(windows);
    }
    // A round counts only if no testpmd stood still between its two counts.
    let good: Vec<bool> =
        (0..rounds.results.len()).map(|n| all.iter().all(|windows| in_time(&windows[n], milliseconds))).collect();
    let left_out = rounds.left_out + good.iter().filter(|&&good| !good).count();
    ensure!(
        good.contains(&true),
        "testpmd says what it has counted too late: is the machine busy with something else?"
    );
    let distances: Vec<f64> = kept(&rounds.distances, &good);
    let mut contestants = Vec::new();
    for (driver, windows) in drivers.iter().zip(&all) {
        let windows = kept(windows, &good);
        let rates: Vec<f64> = windows.iter().map(|[_, end]| end.rate).collect();
        let busy =
            |[begin, end]: &[Count; 2]| (end.busy - begin.busy) / (end.frames - begin.frames) * end.rate / end.clock;
        let mut busy: Vec<f64> = windows.iter().map(busy).collect();
        contestants.push(json!({
            "name": driver.name, "features": features::names(driver.features()?), "rounds": rates,
            "p50": percentile(&mut rates.clone(), 50), "driver_busy": percentile(&mut busy, 50),
        }));
    }
    Ok(json!({ "contestants": contestants, "distances": distances, "left_out": left_out }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_though_prompts_stand_in_the_middle() {
        let said = "testpmd> start tx_first 8\ntestpmd> show port stats all\ntestpmd> show fwd stats all\n\
                    ### NIC statistics for port 0 ###\n  RX-packets: 9\n  Rx-pps:  0  Rx-bps: 7\n\
                    ### NIC statistics for port 1 ###\n  Rx-pps:  0  Rx-bps: 7\n\
                    CPU cycles/packet=50.0 (busy cycles=1000 / total io packets=20) at 2596 MHz Clock\n\
                    ### NIC statistics for port 0 ###\n  Rx-pps:  30testpmd> stop\ntestpmd> quit\n00  Rx-bps: 7\n\
                    ### NIC statistics for port 1 ###\n  Rx-pps:  500  Rx-bps: 7\n\
                    CPU cycles/packet=50.0 (busy cycles=3000 / total io packets=60) at 2596 MHz Clock\nBye...";
        let count = |rate, busy, frames| Count { rate, busy, frames, clock: 2596e6 };
        assert_eq!(counts(said), Some(vec![count(0.0, 1000.0, 20.0), count(3500.0, 3000.0, 60.0)]));
        assert_eq!(counts("### NIC statistics for port 0 ###\n  Rx-pps: 1\n"), None, "nothing came round");
    }

    #[test]
    fn a_window_in_which_it_stood_still_does_not_count() {
        let count = |rate, frames| Count { rate, busy: 0.0, frames, clock: 1e9 };
        let window = |rate| [count(0.0, 0.0), count(rate, 300_000.0)];
        assert!(in_time(&window(1e6), 300) && in_time(&window(0.9e6), 300));
        assert!(!in_time(&window(0.3e6), 300) && !in_time(&window(2e6), 300) && !in_time(&window(0.0), 300));
        assert_eq!(kept(&[1, 2, 3], &[true, false, true]), [1, 3]);
    }

    #[test]
    fn a_driver_is_named_with_two_processes_and_two_files() {
        let driver = Driver::parse("ours,12,13,/a,/b").unwrap();
        assert_eq!((driver.name.as_str(), driver.switch, driver.testpmd), ("ours", 12, 13));
        assert!(Driver::parse("ours,12,x,/a,/b").is_err() && Driver::parse("ours,12,13,/a").is_err());
    }
}
