//! One measurement, and the table of all.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::contest::Contestant;
use crate::driver::{HEADER, Memory, Ring, SIZE};
use crate::floor::{self, Side};
use crate::front::Front;

/// MRG_RXBUF, INDIRECT_DESC, EVENT_IDX, VERSION_1, CSUM, GUEST_CSUM, GUEST_TSO4/6, HOST_TSO4/6.
const WANTED: u64 = 1 << 15 | 1 << 28 | 1 << 29 | 1 << 32 | 0b11 | 0b11 << 7 | 0b11 << 11;
const MACS: [[u8; 6]; 2] = [[0x52, 0x54, 0, 0, 0, 1], [0x52, 0x54, 0, 0, 0, 2]];
const WARM_UP: Duration = Duration::from_millis(200);
const WINDOW: Duration = Duration::from_millis(1);

/// What is measured.
pub struct Case {
    /// Bytes of a frame.
    pub size: usize,
    /// One frame at a time, its time from store to sight, instead of as many as go.
    pub latency: bool,
    /// How long.
    pub millis: u64,
}

/// What came of it.
pub struct Result {
    contestant: Contestant,
    size: usize,
    latency: bool,
    round: usize,
    /// Frames a second in windows of 1 ms, or nanoseconds of each frame; sorted.
    samples: Vec<f64>,
    /// Features negotiated on each port.
    features: [u64; 2],
    /// Busy cycles a frame, where the contestant tells.
    cycles: Option<f64>,
}

impl Result {
    fn percentile(&self, p: f64) -> f64 {
        let last = self.samples.len().saturating_sub(1);
        self.samples.get((last as f64 * p).round() as usize).copied().unwrap_or(f64::NAN)
    }
}

fn frame(from: usize, to: usize, size: usize) -> Vec<u8> {
    let mut f = [&MACS[to][..], &MACS[from], &[0x88, 0xb5]].concat();
    f.resize(size, 0x5a);
    f
}

fn bind(cpus: &[usize]) -> anyhow::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("CPU {cpus:?}"))
}

/// Two guests: the first sends, the second receives.
struct Guests {
    tx: Ring,
    rx: Ring,
    /// For the frame the other way, by which a switch learns.
    back_tx: Ring,
    _back_rx: Ring,
}

/// Measures one contestant once.
///
/// # Errors
/// It cannot be started or does not switch.
pub fn run(contestant: Contestant, case: &Case, round: usize) -> anyhow::Result<Result> {
    let memories = [Memory::new()?, Memory::new()?];
    let [a, b] = &memories;
    let mut g = Guests {
        tx: Ring::new(a, 1, HEADER + case.size, false),
        _back_rx: Ring::new(a, 0, 2048, true),
        rx: Ring::new(b, 0, 2048, true),
        back_tx: Ring::new(b, 1, HEADER + 60, false),
    };
    g.tx.fill(&frame(0, 1, case.size));
    g.back_tx.fill(&frame(1, 0, 60));
    g.rx.offer(SIZE - 1);
    let dir = std::env::temp_dir();
    let name = |c: &str| dir.join(format!("sidecore-bench-{}-{c}.sock", std::process::id()));
    let sockets: [PathBuf; 2] = [name("a"), name("b")];
    let config = dir.join(format!("sidecore-bench-{}.toml", std::process::id()));
    let text: String = MACS.iter().fold(String::new(), |mut text, m| {
        let _ = writeln!(
            text,
            "[[port]]\nmac = '{:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}'\nmtu = 9000",
            m[0], m[1], m[2], m[3], m[4], m[5]
        );
        text
    });
    std::fs::write(&config, text)?;

    // The contestant inherits both; its own options bind it.
    bind(&[0, 1])?;
    let running = contestant.start(&sockets, &config)?;
    bind(&[0])?;
    let stop = Arc::new(AtomicBool::new(false));
    let (mut fronts, mut thread) = (Vec::new(), None);
    if running.is_some() {
        fronts.push(Front::connect(&sockets[0], a, &[&g._back_rx, &g.tx], WANTED)?);
        fronts.push(Front::connect(&sockets[1], b, &[&g.rx, &g.back_tx], WANTED)?);
        g.back_tx.offer(1);
    } else {
        let (from, to, stop) = (Side::new(a, &g.tx), Side::new(b, &g.rx), stop.clone());
        thread = Some(std::thread::spawn(move || bind(&[1]).map(|()| floor::run(from, to, &stop))));
    }
    first_frame(&mut g)?;
    let samples = if case.latency { latency(&mut g, case) } else { throughput(&mut g, case) };
    stop.store(true, Ordering::Relaxed);
    if let Some(thread) = thread {
        thread.join().map_err(|_| anyhow::anyhow!("the floor failed"))??;
    }
    let features = [0, 1].map(|i| fronts.get(i).map_or(0, |f| f.features));
    drop(fronts);
    let said = running.map(|r| r.end()).transpose()?.unwrap_or_default();
    for file in sockets.iter().chain([&config]) {
        let _ = std::fs::remove_file(file);
    }
    let mut samples = samples?;
    samples.sort_unstable_by(f64::total_cmp);
    Ok(Result { contestant, size: case.size, latency: case.latency, round, samples, features, cycles: cycles(&said) })
}

/// Busy cycles a frame from the last whole second that our own process has told of.
fn cycles(said: &str) -> Option<f64> {
    let line = said.lines().rev().find(|l| l.contains(r#""name":"engine""#))?;
    let value: Value = serde_json::from_str(line).ok()?;
    let counter = |name: &str| value["counters"][name].as_f64();
    let requests = counter("requests").filter(|&n| n > 0.0)?;
    Some(counter("busy_cycles")? / requests)
}

/// Sends until something arrives: a contestant may be slow to start. Sleeps meanwhile, as it may start on this CPU.
fn first_frame(g: &mut Guests) -> anyhow::Result<()> {
    let begin = Instant::now();
    loop {
        g.tx.reap();
        if g.tx.free() > SIZE / 2 {
            g.tx.offer(1);
        }
        let n = g.rx.reap();
        if n != 0 {
            // Those sent meanwhile are to be through as well.
            std::thread::sleep(Duration::from_millis(20));
            let more = g.rx.reap();
            g.rx.offer(n + more);
            g.tx.reap();
            return Ok(());
        }
        ensure!(begin.elapsed() < Duration::from_secs(20), "no frame arrives within 20 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends and receives as much as goes for `end`; how many were received in each window.
fn throughput(g: &mut Guests, case: &Case) -> anyhow::Result<Vec<f64>> {
    let mut samples = Vec::new();
    let mut sum = 0u64;
    let begin = Instant::now();
    let measured = begin + WARM_UP;
    let end = measured + Duration::from_millis(case.millis);
    let (mut window, mut count) = (begin, 0u64);
    loop {
        for _ in 0..16 {
            g.tx.reap();
            let n = g.tx.free();
            if n >= 32 {
                g.tx.touch_next(n, case.size);
                g.tx.offer(n);
            }
            let n = g.rx.reap();
            if n != 0 {
                sum = sum.wrapping_add(g.rx.touch_last(n, case.size));
                g.rx.offer(n);
                count += u64::from(n);
            }
        }
        let now = Instant::now();
        let spent = now - window;
        if spent >= WINDOW {
            // A window much longer than it should be is one in which this thread was not running.
            if now >= measured && spent < 2 * WINDOW {
                samples.push(count as f64 / spent.as_secs_f64());
            }
            (window, count) = (now, 0);
            if now >= end {
                break;
            }
        }
    }
    std::hint::black_box(sum);
    Ok(samples)
}

/// One frame at a time: from the store that offers it to the sight of it, in nanoseconds.
fn latency(g: &mut Guests, case: &Case) -> anyhow::Result<Vec<f64>> {
    let mut samples = Vec::new();
    let begin = Instant::now();
    let end = begin + WARM_UP + Duration::from_millis(case.millis);
    loop {
        let start = Instant::now();
        if start >= end {
            return Ok(samples);
        }
        g.tx.touch_next(1, case.size);
        g.tx.offer(1);
        let mut n = 0;
        while n == 0 {
            n = g.rx.reap();
            ensure!(start.elapsed() < Duration::from_secs(10), "no frame arrives");
        }
        let took = start.elapsed();
        std::hint::black_box(g.rx.touch_last(n, case.size));
        g.rx.offer(n);
        while g.tx.reap() == 0 {
            std::hint::spin_loop();
        }
        // A pause, so that the contestant has finished its turn: a lone frame, not a train of them.
        for _ in 0..200 {
            std::hint::spin_loop();
        }
        if start - begin >= WARM_UP {
            samples.push(took.as_secs_f64() * 1e9);
        }
    }
}

/// The table for people and the figures for scripts.
pub struct Report {
    /// The table.
    pub text: String,
    /// The figures.
    pub json: Value,
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_unstable_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Puts it all together.
pub fn report(cases: &[Case], contestants: &[Contestant], results: &[Result]) -> Report {
    let mut text = String::new();
    let mut rows = Vec::new();
    for case in cases {
        let of = |c: Contestant| {
            results.iter().filter(move |r| r.contestant == c && r.size == case.size && r.latency == case.latency)
        };
        let unit = if case.latency { "ns a lone frame" } else { "Mpps" };
        let scale = if case.latency { 1.0 } else { 1e6 };
        let _ = writeln!(text, "{} B, split, {unit}", case.size);
        for &c in contestants {
            let (p50, other) = (median(of(c).map(|r| r.percentile(0.5)).collect()), if case.latency { 0.99 } else { 0.95 });
            let tail = median(of(c).map(|r| r.percentile(other)).collect());
            let cycles = median(of(c).filter_map(|r| r.cycles).collect());
            let features = of(c).next().map_or([0; 2], |r| r.features);
            let _ = write!(text, "  {:8} p50 {:8.2}  p{:.0} {:8.2}", c.name(), p50 / scale, other * 100.0, tail / scale);
            if cycles.is_finite() {
                let _ = write!(text, "  {cycles:.0} busy cycles a frame");
            }
            let _ = writeln!(text, "  features {:#x} {:#x}", features[0], features[1]);
            rows.push(json!({
                "size": case.size, "latency": case.latency, "contestant": c.name(), "p50": p50, "tail": tail,
                "cycles": cycles.is_finite().then_some(cycles), "features": features,
            }));
        }
        for (other, aim, at_least) in aims(case) {
            if !contestants.contains(&other) || !contestants.contains(&Contestant::Ours) {
                continue;
            }
            for (what, p, aim) in aim {
                let ratios = of(Contestant::Ours).filter_map(|r| {
                    let peer = of(other).find(|o| o.round == r.round)?;
                    Some(r.percentile(p) / peer.percentile(p))
                });
                let ratio = median(ratios.collect());
                let met = if at_least { ratio >= aim } else { ratio <= aim };
                let word = if met { "met" } else { "MISSED" };
                let _ = writeln!(text, "  ours / {} {what}: {ratio:.2}, aim {aim}: {word}", other.name());
                rows.push(json!({
                    "size": case.size, "latency": case.latency, "against": other.name(), "what": what, "ratio": ratio,
                    "aim": aim, "met": met,
                }));
            }
        }
    }
    Report { text, json: Value::Array(rows) }
}

type Aim = (&'static str, f64, f64);

/// What is aimed at: against whom, at which percentile, how much, and whether that is the least or the most.
fn aims(case: &Case) -> Vec<(Contestant, Vec<Aim>, bool)> {
    match case {
        Case { latency: true, .. } => vec![
            (Contestant::Floor, vec![("p50", 0.5, 1.3), ("p99", 0.99, 2.0)], false),
            (Contestant::Testpmd, vec![("p50", 0.5, 1.0), ("p99", 0.99, 1.0)], false),
        ],
        Case { size, .. } if *size < 512 => {
            vec![(Contestant::Testpmd, vec![("p50", 0.5, 1.35)], true), (Contestant::Floor, vec![("p50", 0.5, 0.85)], true)]
        }
        Case { .. } => {
            vec![(Contestant::Testpmd, vec![("p50", 0.5, 1.25)], true), (Contestant::Floor, vec![("p50", 0.5, 0.94)], true)]
        }
    }
}
