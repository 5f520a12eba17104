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
    /// For each, how many frames of the streams were taken between its being offered and its being taken.
    ahead: Vec<f64>,
    /// Frames of the streams in all that time.
    frames: u64,
    /// How often was looked whether a request had been taken.
    looks: u64,
}

/// A guest that sends one frame and waits for it to be taken, while the streams go on. With `looks`, it sends none, and as often
/// as that is looked for nothing: what the streams do then is what they would do without requests.
fn requests(streams: &mut [Stream], milliseconds: u64, looks: Option<u64>) -> Result<Requests> {
    let mut met = Requests::default();
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
        if looks.is_none() {
            waiting.port.tx.offer(1);
        }
        for n in 1.. {
            let taken = waiting.port.tx.taken();
            // Whatever was taken before the request was.
            let now_taken = sum(streams);
            met.looks += 1;
            if looks.map_or(taken == waiting.port.tx.offered(), |looks| n >= looks) {
                met.ahead.push((now_taken - before) as f64);
                break;
            }
            streams.iter_mut().for_each(|stream| stream.turn(true));
            ensure!(now() < end + 10_000 * millisecond(), "a request is not taken in ten seconds");
        }
    }
    met.frames = sum(streams) - begin;
    Ok(met)
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
        process::go_on(process)?;
        if let Some((_, streams)) = streams.split_last_mut() {
            run(streams, WARM_UP);
        }
        let beside = requests(&mut streams, milliseconds, None)?;
        let looks = beside.looks / (beside.ahead.len() as u64).max(1);
        let alone = requests(&mut streams, milliseconds, Some(looks))?;
        rest(&mut streams)?;
        process::stop(process)?;
        look();
        Ok((beside.ahead, 1.0 - beside.frames as f64 / alone.frames as f64))
    });
    // Whoever has started it ends it, for which it has to run.
    process::go_on(process)?;
    let Rounds { results, distances, left_out } = measured?;
    let (ahead, mut lost): (Vec<_>, Vec<_>) = results.into_iter().unzip();
    let mut ahead: Vec<f64> = ahead.into_iter().flatten().collect();
    Ok(json!({
        "requests": ahead.len(), "ahead_p50": percentile(&mut ahead, 50), "ahead_p99": percentile(&mut ahead, 99),
        "streams_lose": percentile(&mut lost, 50), "distances": distances, "left_out": left_out,
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
