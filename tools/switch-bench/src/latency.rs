//! How long a lone frame of 60 bytes takes, from the store that offers it to its being visible at the other port.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use vhost_front::Options;

use crate::clock::{millisecond, now, percentile};
use crate::frame::SERIAL;
use crate::pair::{Floor, Pair, Switch, all};

/// Between two frames, in microseconds: the switch has long gone back to looking.
const PAUSE: u64 = 2;
/// Milliseconds that a round may take on a machine that is busy with something else.
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
pub fn measure(switches: &[Switch], floor: &Floor, options: &Options, frames: usize, rounds: usize) -> Result<Value> {
    let mut pairs = all(switches, floor, options)?;
    let mut pooled: Vec<Vec<f64>> = vec![Vec::new(); pairs.len()];
    for _ in 0..rounds {
        for (pair, pooled) in pairs.iter_mut().zip(&mut pooled) {
            pair.begin(60)?;
            pooled.extend(times(pair, frames)?);
            pair.end()?;
        }
    }
    let contestants: Vec<Value> = pairs
        .iter()
        .zip(&mut pooled)
        .map(|(pair, times)| {
            json!({ "name": pair.name, "frames": times.len(), "p50": percentile(times, 50), "p99": percentile(times, 99) })
        })
        .collect();
    Ok(json!({ "contestants": contestants }))
}
