//! Measures the time of a lone frame of 60 bytes, from the store that offers it until it is visible at the other port.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use vhost_front::Options;

use crate::frame::SERIAL;
use crate::pair::{Floor, Pair, Switch, all, in_turn};
use switch_bench::clock::{millisecond, now, percentile};
use switch_bench::distance::Distance;

/// Microseconds between two frames. By then the switch polls again.
const PAUSE: u64 = 2;
/// Most milliseconds of a round. A busy machine would need longer for all frames.
const LIMIT: u64 = 2000;

fn times(pair: &mut Pair, frames: usize) -> Result<Vec<f64>> {
    let microsecond = (millisecond() / 1000).max(1);
    let mut times = Vec::with_capacity(frames);
    let limit = now() + LIMIT * millisecond();
    for serial in 0..frames as u64 {
        let resume = now() + PAUSE * microsecond;
        while now() < resume {
            std::hint::spin_loop();
        }
        pair.tx.reclaim();
        pair.tx.write_word(0, SERIAL, serial);
        let begin = now();
        pair.tx.offer(1);
        while !pair.rx.ready() {
            ensure!(now() - begin < 1000 * millisecond(), "{}: a lone frame does not arrive in a second", pair.name);
        }
        let end = now();
        let mut arrived = 0;
        pair.rx.poll(1, |frame| arrived = frame.word(SERIAL));
        ensure!(arrived == serial, "{}: frame {arrived} in place of {serial}", pair.name);
        times.push((end - begin) as f64 * 1e6 / millisecond() as f64);
        if end > limit {
            break;
        }
    }
    Ok(times)
}

/// Rounds of all switches and the copy loop, one after the other.
pub fn measure(
    switches: &[Switch],
    (floor, distance): (&Floor, &Distance),
    options: &Options,
    frames: usize,
    rounds: usize,
) -> Result<Value> {
    let mut pairs = all(switches, floor, options)?;
    let mut rounds = in_turn(&mut pairs, distance, rounds, 60, |pair| times(pair, frames))?;
    let contestants: Vec<Value> = pairs
        .iter()
        .enumerate()
        .map(|(n, pair)| {
            // Percentiles are of single rounds, because the distance of the processors may differ between rounds.
            let mut each: Vec<&mut Vec<f64>> = rounds.results.iter_mut().map(|round| &mut round[n]).collect();
            let frames: usize = each.iter().map(|times| times.len()).sum();
            let mut of = |percent| -> Vec<f64> { each.iter_mut().map(|times| percentile(times, percent)).collect() };
            json!({ "name": pair.name, "frames": frames, "p50": of(50), "p99": of(99) })
        })
        .collect();
    Ok(json!({ "contestants": contestants, "distances": rounds.distances, "left_out": rounds.left_out }))
}
