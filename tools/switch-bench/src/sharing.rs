//! Measures how a switch shares its time: the wait of a request among streams, and streams of several guests, whose
//! cycles the switch counts itself.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use vhost_front::{Options, Port};

use crate::{frame, process};
use switch_bench::clock::{millisecond, now, percentile};
use switch_bench::distance::{Distance, Rounds};

/// Milliseconds at the beginning of a round that are not counted.
const WARM_UP: u64 = 20;
/// Least time between two requests, in microseconds. A guest that waits for replies sends fewer requests.
const EVERY: u64 = 10;
/// Pairs of slices in a round: one with requests, one without.
const SLICES: u64 = 15;
/// Time for which only the request is watched, in microseconds. Then the streams get a turn, before their rings run
/// empty.
const PATIENCE: u64 = 10;
const SHORT: usize = 60;
const LONG: usize = 1500;

/// A guest that sends as much as it can, to the next guest.
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

    /// Prepares its frames: from guest `from` to guest `to`, `len` bytes each.
    fn fill(&mut self, to: u8, from: u8, len: usize) {
        frame::fill(&mut self.port.tx, to, from, len);
    }

    /// Counts the frames that the switch has taken. Returns the sum.
    fn look(&mut self) -> u64 {
        let taken = self.port.tx.taken();
        self.count += u64::from(taken.wrapping_sub(self.taken));
        self.taken = taken;
        self.count
    }

    /// Receives what has arrived. If it streams, offers as many frames as there is room for.
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

fn connect(sockets: &[PathBuf], options: &Options) -> Result<Vec<Stream>> {
    ensure!(sockets.len() > 1, "{} sockets: expected two or more", sockets.len());
    sockets.iter().map(|socket| Ok(Stream::new(Port::connect(socket, options)?))).collect()
}

/// Lets all streams send for some time. Returns the number of frames of each.
fn run(streams: &mut [Stream], milliseconds: u64) -> Vec<u64> {
    let before: Vec<u64> = streams.iter_mut().map(Stream::look).collect();
    let end = now() + milliseconds * millisecond();
    while now() < end {
        streams.iter_mut().for_each(|stream| stream.turn(true));
    }
    streams.iter_mut().zip(before).map(|(stream, before)| stream.look() - before).collect()
}

/// Waits until all offered frames are taken and received, so that frames can be rewritten.
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

/// Measurements of requests.
#[derive(Default)]
struct Requests {
    /// For each request: ticks from the offer until the switch has taken it.
    waits: Vec<u64>,
    /// For each request: the frames left in the stream that had the fewest, when the request was taken.
    left: Vec<f64>,
    /// Frames of all streams during the measurement, and its length in ticks.
    frames: u64,
    ticks: u64,
}

/// Results of a round.
struct Round {
    /// For each request: the frames ahead of it.
    ahead: Vec<f64>,
    /// As [`Requests::left`].
    left: Vec<f64>,
    /// Requests a second.
    a_second: f64,
    /// The loss of the streams, as a fraction of their frames without requests.
    lost: f64,
}

/// Measures requests while the other guests stream. The last guest sends one frame and watches until the switch has
/// taken it. It sends the next one at least [`EVERY`] after the last. With `alone`, it sends nothing and watches for
/// that many ticks, so that the streams show what they do without requests.
///
/// While the guest watches, the streams offer nothing new, so that it sees at once when its frame is taken. Their rings
/// hold enough frames for that time.
fn requests(streams: &mut [Stream], milliseconds: u64, alone: Option<u64>, met: &mut Requests) -> Result<()> {
    let microsecond = (millisecond() / 1000).max(1);
    let start = now();
    let end = start + milliseconds * millisecond();
    let sum = |streams: &mut [Stream]| streams.iter_mut().map(Stream::look).sum::<u64>();
    let (waiting, streams) = streams.split_last_mut().context("no guest that waits")?;
    let begin = sum(streams);
    let mut next = now();
    while now() < end {
        streams.iter_mut().for_each(|stream| stream.turn(true));
        waiting.turn(false);
        if now() < next {
            continue;
        }
        let since = now();
        if alone.is_none() {
            waiting.port.tx.offer(1);
        }
        next = since + EVERY * microsecond;
        let mut patience = since + PATIENCE * microsecond;
        while alone.map_or(waiting.port.tx.taken() != waiting.port.tx.offered(), |ticks| now() - since < ticks) {
            if now() > patience {
                streams.iter_mut().for_each(|stream| stream.turn(true));
                patience = now() + PATIENCE * microsecond;
                ensure!(now() < end + 10_000 * millisecond(), "a request is not taken in ten seconds");
            }
        }
        met.waits.push(now() - since);
        let left = streams.iter().map(|stream| stream.port.tx.offered().wrapping_sub(stream.port.tx.taken()));
        met.left.extend(left.min().map(f64::from));
    }
    met.frames += sum(streams) - begin;
    met.ticks += now() - start;
    Ok(())
}

/// Measures requests among streams. The switch's process is stopped between measurements.
pub fn requests_among_streams(
    sockets: &[PathBuf],
    process: i32,
    distance: &Distance,
    options: &Options,
    milliseconds: u64,
    rounds: usize,
) -> Result<Value> {
    let mut streams = connect(sockets, options)?;
    fill(&mut streams, |_| SHORT);
    process::stop(process)?;
    let measured = distance.rounds(rounds, |look| {
        look();
        process::resume(process)?;
        if let Some((_, streams)) = streams.split_last_mut() {
            run(streams, WARM_UP);
        }
        let (mut beside, mut alone) = (Requests::default(), Requests::default());
        // Slices with and without requests alternate, because the machine's speed changes over time.
        for _ in 0..SLICES {
            requests(&mut streams, milliseconds.div_ceil(SLICES), None, &mut beside)?;
            let ticks = beside.waits.iter().sum::<u64>() / (beside.waits.len() as u64).max(1);
            requests(&mut streams, milliseconds.div_ceil(SLICES), Some(ticks), &mut alone)?;
        }
        rest(&mut streams)?;
        process::stop(process)?;
        look();
        ensure!(alone.frames != 0, "the streams stand still");
        let rate = |met: &Requests| met.frames as f64 / met.ticks as f64;
        // The switch publishes the frames of a visit at its end, so those ahead of a request cannot be counted one by
        // one. A wait is converted: into the frames that the switch takes in that time when nobody sends requests.
        let ahead = beside.waits.iter().map(|&ticks| ticks as f64 * rate(&alone)).collect();
        let a_second = beside.waits.len() as f64 * 1000.0 * millisecond() as f64 / beside.ticks as f64;
        let lost = 1.0 - rate(&beside) / rate(&alone);
        Ok(Round { ahead, left: beside.left, a_second, lost })
    });
    // The process that started the switch ends it. A stopped switch could not end.
    process::resume(process)?;
    let Rounds { results, distances, left_out } = measured?;
    let of_rounds = |what: fn(&Round) -> f64| percentile(&mut results.iter().map(what).collect::<Vec<f64>>(), 50);
    let (a_second, lost) = (of_rounds(|round| round.a_second), of_rounds(|round| round.lost));
    let (mut ahead, mut left) = (Vec::new(), Vec::new());
    for round in results {
        ahead.extend(round.ahead);
        left.extend(round.left);
    }
    Ok(json!({
        "requests": ahead.len(), "requests_a_second": a_second, "left_p1": percentile(&mut left, 1),
        "ahead_p50": percentile(&mut ahead, 50), "ahead_p99": percentile(&mut ahead, 99), "streams_lose": lost,
        "distances": distances, "left_out": left_out,
    }))
}

/// Runs greedy streams, every other one with long frames. Returns the number of frames taken from each. The switch
/// itself counts the cycles that they cost.
pub fn streams(sockets: &[PathBuf], options: &Options, milliseconds: u64) -> Result<Value> {
    let mut streams = connect(sockets, options)?;
    fill(&mut streams, |n| if n.is_multiple_of(2) { SHORT } else { LONG });
    let frames = run(&mut streams, milliseconds);
    rest(&mut streams)?;
    Ok(json!({ "frames": frames }))
}
