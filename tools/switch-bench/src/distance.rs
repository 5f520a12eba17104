//! Measures the distance of the two processors: the time that a cache line takes from one to the other and back.
//!
//! On a virtual machine the distance changes. The host may move the processors between cores that share a cache and
//! cores that do not, where communication of two threads takes five times as long. So a round counts only if the
//! distance stayed the same from its beginning to its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::clock::{millisecond, now, percentile};
use crate::process;

/// Largest ratio of the greatest to the least distance in a round that counts.
const SAME: f64 = 1.4;
/// Most rounds that are tried for each round that is wanted.
const TRIES: usize = 3;

/// A number in a cache line of its own. 128 bytes, because the CPU fetches the neighbouring line too.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU32);

#[derive(Default)]
struct Lines {
    there: Line,
    back: Line,
    asked: AtomicBool,
    end: AtomicBool,
}

/// A thread on the other processor that answers.
pub struct Distance {
    lines: Arc<Lines>,
    thread: Option<JoinHandle<()>>,
}

impl Distance {
    /// Starts the thread on a processor. It waits there.
    pub fn start(core: usize) -> Self {
        let lines = Arc::new(Lines::default());
        let theirs = Arc::clone(&lines);
        let thread = thread::spawn(move || {
            if let Err(error) = process::pin(core) {
                eprintln!("switch-bench: how far the processors are apart: {error:#}");
            }
            answer(&theirs);
        });
        Self { lines, thread: Some(thread) }
    }

    /// Measures the distance now, in nanoseconds there and back. Nobody else may use the other processor meanwhile.
    pub fn measure(&self) -> f64 {
        const EACH: u32 = 200;
        self.lines.asked.store(true, Ordering::Release);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
        let mut number = self.lines.there.0.load(Ordering::Relaxed);
        let mut turn = || {
            number = number.wrapping_add(1);
            self.lines.there.0.store(number, Ordering::Release);
            while self.lines.back.0.load(Ordering::Acquire) != number {
                std::hint::spin_loop();
            }
        };
        // The first answer comes when the other thread has woken.
        turn();
        let mut times: Vec<f64> = (0..20)
            .map(|_| {
                let begin = now();
                (0..EACH).for_each(|_| turn());
                (now() - begin) as f64 * 1e6 / millisecond() as f64 / f64::from(EACH)
            })
            .collect();
        self.lines.asked.store(false, Ordering::Release);
        percentile(&mut times, 50)
    }

    /// Calls `round` until `wanted` rounds count. `round` gets a function that measures the distance. It has to call it
    /// before its first measurement, between measurements and after the last one, while nothing runs on the other
    /// processor.
    pub fn rounds<T>(&self, wanted: usize, mut round: impl FnMut(&mut dyn FnMut()) -> Result<T>) -> Result<Rounds<T>> {
        let mut rounds = Rounds { results: Vec::new(), distances: Vec::new(), left_out: 0 };
        for _ in 0..TRIES * wanted {
            let mut seen = Vec::new();
            let result = round(&mut || seen.push(self.measure()))?;
            if is_same(&seen) {
                rounds.results.push(result);
                rounds.distances.push(percentile(&mut seen, 50));
            } else {
                rounds.left_out += 1;
            }
            if rounds.results.len() == wanted {
                break;
            }
        }
        ensure!(
            !rounds.results.is_empty(),
            "in none of {} rounds did the processors stay as far apart as they were: on a virtual machine, have its host keep \
             each of them on a core",
            rounds.left_out
        );
        Ok(rounds)
    }
}

/// The rounds that count.
pub struct Rounds<T> {
    /// The result of each round.
    pub results: Vec<T>,
    /// The distance of the processors in each round, in nanoseconds there and back.
    pub distances: Vec<f64>,
    /// The number of rounds that did not count.
    pub left_out: usize,
}

fn is_same(seen: &[f64]) -> bool {
    let (least, most) = seen.iter().fold((f64::MAX, 0.0_f64), |(least, most), &one| (least.min(one), most.max(one)));
    most <= least * SAME
}

fn answer(lines: &Lines) {
    while !lines.end.load(Ordering::Acquire) {
        if !lines.asked.load(Ordering::Acquire) {
            thread::park_timeout(Duration::from_millis(100));
            continue;
        }
        let number = lines.there.0.load(Ordering::Acquire);
        lines.back.0.store(number, Ordering::Release);
    }
}

impl Drop for Distance {
    fn drop(&mut self) {
        self.lines.end.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread returns nothing.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_count_if_the_distance_stayed_the_same() {
        assert!(is_same(&[100.0, 110.0, 95.0]) && is_same(&[100.0]) && is_same(&[]));
        assert!(!is_same(&[100.0, 100.0, 480.0]) && !is_same(&[480.0, 100.0]));
    }

    #[test]
    fn as_many_rounds_are_made_as_are_wanted_or_as_there_is_patience_for() {
        let distance = Distance::start(0);
        let mut made = 0;
        let rounds = distance.rounds(2, |_| {
            made += 1;
            Ok(made)
        });
        assert_eq!(rounds.unwrap().results, [1, 2]);
        assert!(distance.measure() > 0.0);
    }
}
