//! Measures how many frames arrive in a millisecond.

use anyhow::Result;
use serde_json::{Value, json};
use vhost_front::Options;

use crate::frame::SERIAL;
use crate::pair::{Floor, Pair, Switch, all, in_turn};
use switch_bench::clock::{millisecond, now, percentile};
use switch_bench::distance::Distance;

/// Most frames taken or offered at once.
const BATCH: u16 = 64;
/// Milliseconds at the beginning of a turn that are not counted.
const WARM_UP: u64 = 20;

/// Sends as fast as possible. Writes and reads every line of every frame. Returns the frames a second in each window of
/// a millisecond.
fn windows(pair: &mut Pair, len: usize, milliseconds: u64) -> Vec<f64> {
    let window = millisecond();
    let mut rates = Vec::with_capacity(milliseconds as usize);
    let begin = now() + WARM_UP * window;
    let end = begin + milliseconds * window;
    let (mut arrived, mut since, mut serial) = (0u64, now(), 0u64);
    loop {
        pair.tx.reclaim();
        let room = pair.tx.free().min(BATCH);
        for ahead in 0..room {
            serial += 1;
            pair.tx.write_word(ahead, SERIAL, serial);
            for line in (64..len).step_by(64) {
                pair.tx.write_word(ahead, line, serial);
            }
        }
        if room != 0 {
            pair.tx.offer(room);
        }
        arrived += u64::from(pair.rx.poll(BATCH, |frame| frame.touch()).0);
        let time = now();
        if time - since < window {
            continue;
        }
        // A window that is much longer was interrupted by something else.
        if since >= begin && time - since < 2 * window {
            rates.push(arrived as f64 * 1000.0 * window as f64 / (time - since) as f64);
        }
        (arrived, since) = (0, time);
        if time > end {
            return rates;
        }
    }
}

/// Rounds of all switches and the copy loop, one after the other.
pub fn measure(
    switches: &[Switch],
    (floor, distance): (&Floor, &Distance),
    options: &Options,
    len: usize,
    milliseconds: u64,
    rounds: usize,
) -> Result<Value> {
    let mut pairs = all(switches, floor, options)?;
    let mut rounds = in_turn(&mut pairs, distance, rounds, len, |pair| Ok(windows(pair, len, milliseconds)))?;
    let contestants: Vec<Value> = pairs
        .iter()
        .enumerate()
        .map(|(n, pair)| {
            let mut rounds: Vec<Vec<f64>> =
                rounds.results.iter_mut().map(|round| std::mem::take(&mut round[n])).collect();
            let of_rounds: Vec<f64> = rounds.iter_mut().map(|round| percentile(round, 50)).collect();
            let mut pooled: Vec<f64> = rounds.iter().flatten().copied().collect();
            json!({
                "name": pair.name, "features": pair.features, "windows": pooled.len(), "rounds": of_rounds,
                "p50": percentile(&mut pooled, 50), "p95": percentile(&mut pooled, 95),
            })
        })
        .collect();
    Ok(json!({
        "len": len, "contestants": contestants, "distances": rounds.distances, "left_out": rounds.left_out,
    }))
}
