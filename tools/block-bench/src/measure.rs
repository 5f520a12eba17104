//! Random reads of 4 KiB, with a number of requests in flight. Several disks take turns in each round. A back-end that
//! has not its turn is stopped.

use std::hint::spin_loop;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde_json::{Value, json};
use switch_bench::clock::{millisecond, now, percentile};
use switch_bench::distance::Distance;
use switch_bench::process;

use crate::disk::{Ask, Disk};

/// Milliseconds at the beginning of a turn that are not counted.
const WARM_UP: u64 = 20;
/// Longest time for an answer, in milliseconds.
const LIMIT: u64 = 60_000;

/// What is measured, and how.
#[derive(Args)]
pub struct Plan {
    /// A disk and the process that serves it: NAME,PROCESS,SOCKET.
    #[arg(long = "disk", value_parser = Contestant::parse, required = true)]
    disks: Vec<Contestant>,
    /// Requests in flight.
    #[arg(long, default_value_t = 32)]
    depth: usize,
    /// Milliseconds of a disk's turn.
    #[arg(long, default_value_t = 300)]
    milliseconds: u64,
    /// Rounds.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// The processor of this program.
    #[arg(long, default_value_t = 0)]
    core: usize,
    /// The processor of the back-ends.
    #[arg(long, default_value_t = 1)]
    disk_core: usize,
}

/// A disk that takes part.
#[derive(Clone, Debug)]
pub struct Contestant {
    name: String,
    process: i32,
    socket: PathBuf,
}

impl Contestant {
    fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.splitn(3, ',').collect();
        let [name, process, socket] = parts.as_slice() else { return Err("expected NAME,PROCESS,SOCKET".to_owned()) };
        let process = process.parse().map_err(|_| format!("{process}: expected the number of a process"))?;
        Ok(Self { name: (*name).to_owned(), process, socket: PathBuf::from(socket) })
    }
}

/// Pseudo-random numbers (xorshift64*), the same in every run.
pub struct Random(u64);

impl Random {
    /// Starts from a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// A number below `end`.
    pub const fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d);
        // The upper half times the range; its upper half is below `end`, which has at most 32 bits.
        ((number >> 32) * end) >> 32
    }
}

/// A disk with its requests in flight.
struct Reader {
    disk: Disk,
    random: Random,
    depth: usize,
    /// Ticks in which it had nothing to do: all requests were submitted, and none had ended.
    waited: u64,
}

/// A disk's turn.
#[derive(Default)]
struct Turn {
    /// Requests a second in each window of a millisecond.
    rates: Vec<f64>,
    /// Part of the time in which the front-end had nothing to do.
    waited: f64,
}

impl Reader {
    fn connect(socket: &Path, depth: usize) -> Result<Self> {
        let disk = Disk::connect(socket, depth, true)?;
        Ok(Self { random: Random::new(disk.blocks()), disk, depth, waited: 0 })
    }

    fn start(&mut self) {
        for slot in 0..self.depth {
            self.disk.ask(slot, Ask::Read(self.random.below(self.disk.blocks())));
        }
    }

    /// Takes completions, and replaces each by a new request. Returns their number.
    fn go_on(&mut self) -> Result<usize> {
        let mut slots = [0; 64];
        let mut count = 0;
        let mut take = || {
            self.disk.take(0, |slot| {
                slots[count] = slot;
                count += 1;
            })
        };
        // The first call submits. If a later one finds nothing, there was nothing to do until its end.
        if take()? == 0 {
            let begin = now();
            let mut nothing_until = begin;
            while take()? == 0 {
                spin_loop();
                nothing_until = now();
                ensure!(nothing_until - begin < LIMIT * millisecond(), "no answer for {} seconds", LIMIT / 1000);
            }
            self.waited += nothing_until - begin;
        }
        for slot in &slots[..count] {
            self.disk.ask(*slot, Ask::Read(self.random.below(self.disk.blocks())));
        }
        Ok(count)
    }

    /// Waits until nothing is in flight.
    fn stop(&mut self) -> Result<()> {
        let mut left = self.depth;
        while left != 0 {
            left -= self.disk.take(1, |_| {})?;
        }
        Ok(())
    }

    /// Reads for so many milliseconds.
    fn turn(&mut self, milliseconds: u64) -> Result<Turn> {
        let window = millisecond();
        let mut rates = Vec::with_capacity(milliseconds as usize);
        self.start();
        let begin = now() + WARM_UP * window;
        let end = begin + milliseconds * window;
        let (mut ended, mut since) = (0, now());
        let (first, waited) = (since, self.waited);
        loop {
            ended += self.go_on()?;
            let time = now();
            if time - since < window {
                continue;
            }
            // A window that is much longer was interrupted by something else.
            if since >= begin && time - since < 2 * window {
                rates.push(ended as f64 * 1000.0 * window as f64 / (time - since) as f64);
            }
            (ended, since) = (0, time);
            if time > end {
                break;
            }
        }
        let waited = (self.waited - waited) as f64 / (since - first).max(1) as f64;
        self.stop()?;
        Ok(Turn { rates, waited })
    }
}

/// Measures all disks.
pub fn measure(plan: &Plan) -> Result<Value> {
    process::pin(plan.core).context("cannot keep this thread on its processor")?;
    let distance = Distance::start(plan.disk_core);
    let mut readers = Vec::new();
    for Contestant { name, process, socket } in &plan.disks {
        readers.push(Reader::connect(socket, plan.depth).with_context(|| name.clone())?);
        process::stop(*process)?;
    }
    let mut rounds = distance.rounds(plan.rounds, |look| {
        look();
        let mut each = Vec::new();
        for (reader, disk) in readers.iter_mut().zip(&plan.disks) {
            process::resume(disk.process)?;
            each.push(reader.turn(plan.milliseconds).with_context(|| disk.name.clone())?);
            process::stop(disk.process)?;
            look();
        }
        Ok(each)
    });
    for disk in &plan.disks {
        // The process that started the back-end ends it. A stopped one could not end.
        process::resume(disk.process)?;
    }
    let rounds = rounds.as_mut().map_err(|error| anyhow::anyhow!("{error:#}"))?;
    let contestants: Vec<Value> = plan
        .disks
        .iter()
        .enumerate()
        .map(|(n, disk)| {
            let mut turns: Vec<Turn> = rounds.results.iter_mut().map(|round| std::mem::take(&mut round[n])).collect();
            let of_rounds: Vec<f64> = turns.iter_mut().map(|turn| percentile(&mut turn.rates, 50)).collect();
            let mut pooled: Vec<f64> = turns.iter().flat_map(|turn| &turn.rates).copied().collect();
            let mut waited: Vec<f64> = turns.iter().map(|turn| turn.waited).collect();
            json!({
                "name": disk.name, "windows": pooled.len(), "rounds": of_rounds, "waited": percentile(&mut waited, 50),
                "p50": percentile(&mut pooled, 50), "p95": percentile(&mut pooled, 95),
            })
        })
        .collect();
    Ok(json!({
        "depth": plan.depth, "contestants": contestants, "distances": rounds.distances, "left_out": rounds.left_out,
    }))
}

/// Reads `requests` blocks of a disk, in batches of `depth`: the next batch is submitted when all of one have ended.
/// Stays connected for `hold` milliseconds more.
/// The back-end's process is stopped while a batch is offered. Otherwise it would find parts of it, depending on the
/// speed of the two, and its count would be another one in each run.
pub fn count(socket: &Path, process: i32, requests: u64, depth: usize, hold: u64) -> Result<()> {
    let mut reader = Reader::connect(socket, depth)?;
    let mut left = requests;
    while left >= depth as u64 {
        process::stop_all(process)?;
        reader.start();
        process::resume(process)?;
        reader.stop()?;
        left -= depth as u64;
    }
    thread::sleep(Duration::from_millis(hold));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_reach_the_whole_range_and_nothing_else() {
        let mut random = Random::new(7);
        let mut seen = [0; 10];
        (0..1000).for_each(|_| seen[random.below(10) as usize] += 1);
        assert!(seen.iter().all(|count| (50..200).contains(count)), "{seen:?}");
    }

    #[test]
    fn a_disk_is_named_with_its_process_and_socket() {
        let disk = Contestant::parse("ours,12,/a,b").unwrap();
        assert_eq!((disk.name.as_str(), disk.process, disk.socket), ("ours", 12, PathBuf::from("/a,b")));
        assert!(Contestant::parse("ours,x,/a").is_err() && Contestant::parse("ours,1").is_err());
    }
}
