//! How a switch shares its time: what a request waits for among streams, and streams for which it says itself what they cost it.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use vhost_front::{Options, Port};

use crate::clock::{millisecond, now, percentile};
use crate::distance::{Distance, Rounds};
use crate::{frame, process};

/// Milliseconds at the beginning of a round that are not counted.
const WARM_UP: u64 = 20;
/// From one request to the next at least, in microseconds: more of them than a guest has that waits for replies.
const EVERY: u64 = 10;
/// How often streams with requests and without are measured in a round, one after the other.
const SLICES: u64 = 15;
/// How long a request is watched before the streams go on meanwhile, in microseconds: they have not yet run dry.
const PATIENCE: u64 = 10;
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

fn connect(sockets: &[PathBuf], options: &Options) -> Result<Vec<Stream>> {
    ensure!(sockets.len() > 1, "{} sockets: expected two or more", sockets.len());
    sockets.iter().map(|socket| Ok(Stream::new(Port::connect(socket, options)?))).collect()
}

/// Lets all send for some time: frames of each.
fn run(streams: &mut [Stream], milliseconds: u64) -> Vec<u64> {
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

/// What requests met.
#[derive(Default)]
struct Requests {
    /// Ticks from each one's being offered to its being taken.
    waits: Vec<u64>,
    /// For each, how many frames there still were to be taken of the stream that had the fewest, when it was taken.
    left: Vec<f64>,
    /// Frames of the streams in all that time, and how many ticks that was.
    frames: u64,
    ticks: u64,
}

/// What a round has measured.
struct Round {
    /// What each request had ahead of it, in frames.
    ahead: Vec<f64>,
    /// As [`Requests::left`].
    left: Vec<f64>,
    /// Requests a second.
    a_second: f64,
    /// What the streams lose, as a part of what they have without requests.
    lost: f64,
}

/// A guest that sends one frame, watches until it is taken, and sends the next one [`EVERY`] after the last, or when it sees that so
/// much time has gone by, while the streams go on. With `alone`, it sends none and watches for so many ticks: what the streams do then
/// is what they would do without requests.
///
/// While it watches, the streams offer nothing new, so that it sees at once when its frame is taken; they have enough in their rings.
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

/// What requests meet among streams. The switch's process is stopped while nothing is measured of it.
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
        // By turns, because the machine is not the same from one moment to the next.
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
        // What the switch shows at the end of a visit it may have done long before, so that frames cannot be counted one by one: a wait
        // is as many of them as it takes when nobody waits.
        let ahead = beside.waits.iter().map(|&ticks| ticks as f64 * rate(&alone)).collect();
        let a_second = beside.waits.len() as f64 * 1000.0 * millisecond() as f64 / beside.ticks as f64;
        let lost = 1.0 - rate(&beside) / rate(&alone);
        Ok(Round { ahead, left: beside.left, a_second, lost })
    });
    // Whoever has started it ends it, for which it has to run.
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

/// Greedy streams, every other one of long frames: frames that were taken of each. What they cost the switch, it has to say itself.
pub fn streams(sockets: &[PathBuf], options: &Options, milliseconds: u64) -> Result<Value> {
    let mut streams = connect(sockets, options)?;
    fill(&mut streams, |n| if n.is_multiple_of(2) { SHORT } else { LONG });
    let frames = run(&mut streams, milliseconds);
    rest(&mut streams)?;
    Ok(json!({ "frames": frames }))
}
