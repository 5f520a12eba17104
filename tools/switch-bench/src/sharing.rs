//! How a switch shares its time: what a request waits for among streams, and how even the streams are.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use vhost_front::{Options, Port};

use crate::clock::{millisecond, now, percentile};
use crate::frame;

/// Streams beside a guest that waits for replies.
const STREAMS: usize = 6;
const SHORT: usize = 60;
const LONG: usize = 1500;

/// A guest that sends all it can, to the guest after it.
struct Stream {
    port: Port,
    taken: u16,
    /// Frames that the switch has taken.
    count: u64,
}

impl Stream {
    fn new(port: Port) -> Self {
        Self { port, taken: 0, count: 0 }
    }

    /// From guest `from` to guest `to`, `len` bytes each.
    fn fill(&mut self, to: u8, from: u8, len: usize) {
        frame::fill(&mut self.port.tx, to, from, len);
    }

    /// Counts what was taken.
    fn look(&mut self) -> u64 {
        let taken = self.port.tx.taken();
        self.count += u64::from(taken.wrapping_sub(self.taken));
        self.taken = taken;
        self.count
    }

    /// Takes what has arrived and, if it streams, offers all that there is room for.
    fn turn(&mut self, streams: bool) {
        self.look();
        self.port.rx.poll(u16::MAX, |_| {});
        self.port.tx.reclaim();
        let room = self.port.tx.free();
        if streams && room != 0 {
            self.port.tx.offer(room);
        }
    }
}

/// Lets all send for some time: frames of each.
fn run(streams: &mut [Stream], milliseconds: u64) -> Vec<u64> {
    let warm = now() + 20 * millisecond();
    while now() < warm {
        streams.iter_mut().for_each(|stream| stream.turn(true));
    }
    let before: Vec<u64> = streams.iter_mut().map(Stream::look).collect();
    let end = now() + milliseconds * millisecond();
    while now() < end {
        streams.iter_mut().for_each(|stream| stream.turn(true));
    }
    streams.iter_mut().zip(before).map(|(stream, before)| stream.look() - before).collect()
}

/// Has all that was offered taken and read, so that frames can be written anew.
fn rest(streams: &mut [Stream]) -> Result<()> {
    let deadline = now() + 120_000 * millisecond();
    while streams.iter().any(|stream| stream.port.tx.free() < stream.port.tx.size()) {
        streams.iter_mut().for_each(|stream| stream.turn(false));
        ensure!(now() < deadline, "frames do not come back in two minutes");
    }
    Ok(())
}

fn fill(streams: &mut [Stream], len: impl Fn(usize) -> usize) {
    let all = streams.len();
    for (n, stream) in streams.iter_mut().enumerate() {
        stream.fill(((n + 1) % all) as u8 + 1, n as u8 + 1, len(n));
    }
}

/// A guest that sends one frame and waits for it to be taken, while the streams go on: how many of their frames were taken
/// before, for each of its own, and the frames of the streams meanwhile.
fn requests(streams: &mut [Stream], milliseconds: u64) -> Result<(Vec<f64>, u64)> {
    let mut ahead = Vec::new();
    let end = now() + milliseconds * millisecond();
    let sum = |streams: &mut [Stream]| streams.iter_mut().map(Stream::look).sum::<u64>();
    let (waiting, streams) = streams.split_last_mut().context("no guest that waits")?;
    let begin = sum(streams);
    let mut pause = 0;
    while now() < end {
        streams.iter_mut().for_each(|stream| stream.turn(true));
        waiting.turn(false);
        pause += 1;
        // So that requests come at any moment of the switch's round.
        if pause % 5 != 0 {
            continue;
        }
        let before = sum(streams);
        waiting.port.tx.offer(1);
        loop {
            let taken = waiting.port.tx.taken();
            // Whatever was taken before the request was.
            let now_taken = sum(streams);
            if taken == waiting.port.tx.offered() {
                ahead.push((now_taken - before) as f64);
                break;
            }
            streams.iter_mut().for_each(|stream| stream.turn(true));
            ensure!(now() < end + 120_000 * millisecond(), "a request is not taken in two minutes");
        }
    }
    let frames = sum(streams) - begin;
    Ok((ahead, frames))
}

/// Jain's index: 1 if all are the same.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

fn median(mut values: Vec<f64>) -> f64 {
    percentile(&mut values, 50)
}

/// Guests that share a switch, which knows their weights.
pub fn measure(sockets: &[PathBuf], options: &Options, milliseconds: u64, rounds: usize) -> Result<Value> {
    ensure!(sockets.len() > 1, "{} sockets: expected two or more", sockets.len());
    let mut streams: Vec<Stream> =
        sockets.iter().map(|socket| Ok(Stream::new(Port::connect(socket, options)?))).collect::<Result<_>>()?;
    let (mut ahead, mut lost, mut evenness, mut portions) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        if sockets.len() > STREAMS {
            // The streams alone, then with the one that waits: it loses what the requests cost beside their own work.
            fill(&mut streams, |_| SHORT);
            let alone: u64 = run(&mut streams[..STREAMS], milliseconds).iter().sum();
            let (waited, beside) = requests(&mut streams, milliseconds)?;
            lost.push(1.0 - beside as f64 / alone as f64);
            ahead.extend(waited);
            rest(&mut streams)?;
        }

        // What a frame of each size costs, while the switch has nothing but such to do.
        let per_frame = |frames: &[u64]| milliseconds as f64 * millisecond() as f64 / frames.iter().sum::<u64>() as f64;
        fill(&mut streams, |_| SHORT);
        let short = per_frame(&run(&mut streams, milliseconds));
        rest(&mut streams)?;
        fill(&mut streams, |_| LONG);
        let long = per_frame(&run(&mut streams, milliseconds));
        rest(&mut streams)?;
        let mixed = |n: usize| if n.is_multiple_of(2) { SHORT } else { LONG };
        fill(&mut streams, mixed);
        let frames = run(&mut streams, milliseconds);
        rest(&mut streams)?;
        let cycles: Vec<f64> = frames
            .iter()
            .enumerate()
            .map(|(n, &frames)| frames as f64 * if mixed(n) == SHORT { short } else { long })
            .collect();
        evenness.push(jain(&cycles));
        let total: f64 = cycles.iter().sum();
        portions.push(cycles.iter().map(|c| c / total).collect::<Vec<f64>>());
    }
    let portions: Vec<f64> =
        (0..sockets.len()).map(|n| median(portions.iter().filter_map(|p| p.get(n).copied()).collect())).collect();
    Ok(json!({
        "requests": ahead.len(),
        "ahead_p50": percentile(&mut ahead, 50), "ahead_p99": percentile(&mut ahead, 99),
        "streams_lose": median(lost), "jain": median(evenness), "portions": portions,
    }))
}

#[cfg(test)]
mod tests {
    use super::jain;

    #[test]
    fn the_index_is_one_for_equal_shares_and_less_for_others() {
        assert!((jain(&[2.0; 7]) - 1.0).abs() < 1e-12);
        assert!((jain(&[1.0, 0.0]) - 0.5).abs() < 1e-12);
    }
}
