//! `cargo mk bench switch`: the engine as a process against DPDK's testpmd and Open vSwitch with DPDK. Each has one
//! core. `tools/switch-bench` drives all of them with the same rings in the same run. Ours has anti-spoofing and one
//! stage on. Every figure stands next to its aim.

pub mod disks;
mod guests_side;
mod peers;
mod results;
mod shares;
mod table;
mod virtio_user;

use std::env;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::emulator::vhost::build;
use crate::{fetch, tools, ui};
use guests_side::{Contest, Plan};
use peers::{HugePages, Open, Ours, Process, Testpmd, ours};
use results::{against, apart, by_distance, contestant, features, median, number, ratio, ratios, rounds};
use table::{Aim, Table};

const SHORT: Plan = Plan { rounds: 7, milliseconds: 300, frames: 10_000 };
const FULL: Plan = Plan { rounds: 25, milliseconds: 1000, frames: 50_000 };

/// Features without which a row of ours does not count.
const NEEDED: [&str; 9] = [
    "MRG_RXBUF",
    "EVENT_IDX",
    "INDIRECT_DESC",
    "CSUM",
    "GUEST_CSUM",
    "HOST_TSO4",
    "HOST_TSO6",
    "GUEST_TSO4",
    "GUEST_TSO6",
];

/// Idle ports. With the two busy ones, these are all ports that an engine may have.
const IDLE: usize = 126;

/// Weights of the guests in the second measurement of shares.
const WEIGHTS: [u16; 3] = [4, 2, 1];

/// Measures and prints the figures. Returns the results as JSON.
pub fn run(full: bool) -> Result<Value> {
    fetch::ensure_peers()?;
    let cores = two_processors(&tools::processors()?)?;
    let (vhost, bench) = (build("sidecore-vhost")?, build("switch-bench")?);
    let folder = env::temp_dir().join(format!("sidecore-contest-{}", std::process::id()));
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let huge = HugePages::reserve();
    let plan = if full { &FULL } else { &SHORT };
    let contest = Contest { folder, vhost, bench, cores, huge, plan };
    ui::step(
        "bench",
        &format!(
            "guests on processor {}, switches on {}, {} rounds, memory in {}",
            cores[0],
            cores[1],
            plan.rounds,
            if contest.huge.is_some() { "huge pages" } else { "small pages (no root, or no huge pages)" }
        ),
    );
    let mut table = Table::default();
    let mut results = Vec::new();
    for len in [60, 1500] {
        let result = contest.throughput(len)?;
        rates(&mut table, len, &result)?;
        results.push(result);
    }
    let mut packed = Vec::new();
    for len in [60, 1500] {
        let result = contest.packed(len)?;
        packed_rates(&mut table, len, &result)?;
        packed.push(result);
    }
    let driven = virtio_user::measure(&contest)?;
    virtio_user::figures(&mut table, &driven)?;
    let idle = contest.idle()?;
    let [alone, crowded] = ["ours", "crowded"].map(|name| contestant(&idle, name));
    let left =
        crowded.zip(alone).and_then(|(crowded, alone)| ratio(crowded, alone)).context("no result with idle ports")?;
    table.figure(&format!("60 B: throughput left with {IDLE} idle ports"), left, "", Aim::AtLeast(0.95));
    let latency = contest.latency()?;
    times(&mut table, &latency)?;
    let requests = contest.requests()?;
    requests_among_streams(&mut table, &requests)?;
    let even = contest.streams(&[1; 7])?;
    let weighted = contest.streams(&WEIGHTS)?;
    shares::figures(&mut table, &even, &weighted)?;
    for what in ["in the kernel image, in Bochs' ticks, against native", "1,000 idle queues of one engine"] {
        table.missing(what, "counted by --instructions");
    }
    print!("{table}");
    Ok(json!({
        "bench": "switch", "huge_pages": contest.huge.is_some(), "throughput": results, "packed": packed,
        "virtio_user": driven, "idle": idle, "latency": latency, "requests": requests, "even": even, "weighted": weighted,
        "figures": table.to_json(),
    }))
}

/// The first two processors of a list such as `0-3,6`.
fn two_processors(list: &str) -> Result<[usize; 2]> {
    let mut all = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.trim().parse::<usize>()?..=last.trim().parse::<usize>()?);
    }
    match all.as_slice() {
        [first, second, ..] => Ok([*first, *second]),
        _ => bail!("this needs two processors, one for the guests and one for the switch; there is {list}"),
    }
}

impl Contest {
    fn switch(name: &str, process: &Process, sockets: &[PathBuf]) -> String {
        let sockets: Vec<String> = sockets.iter().map(|socket| socket.display().to_string()).collect();
        format!("--switch={name},{},{}", process.id(), sockets.join(","))
    }

    fn throughput(&self, len: usize) -> Result<Value> {
        ui::step("bench", &format!("frames of {len} bytes: ours, testpmd, Open vSwitch, and a bare copy loop"));
        let ours = ours(&self.vhost, &self.folder, self.cores[1], &[1, 1], 0)?;
        let testpmd = Testpmd::start(&self.folder, self.cores, self.huge.is_some())?;
        let open = Open::start(&self.folder, self.cores, self.huge.is_some());
        let mut arguments = vec![
            "throughput".to_owned(),
            format!("--len={len}"),
            format!("--milliseconds={}", self.plan.milliseconds),
            Self::switch("ours", &ours.process, &ours.sockets),
            Self::switch("testpmd", &testpmd.process, &testpmd.sockets),
        ];
        match &open {
            Ok(open) => arguments.push(Self::switch("ovs", &open.process, &open.sockets)),
            Err(error) => ui::error(&format!("Open vSwitch takes no part: {error:#}")),
        }
        let mut result = self.drive(&arguments)?;
        let engine = &ours.end()?["engine"];
        let (busy, requests) = (engine["busy_cycles"].as_f64(), engine["requests"].as_f64());
        if let (Some(busy), Some(requests), Some(result)) = (busy, requests, result.as_object_mut()) {
            result.insert("busy_cycles_per_packet".to_owned(), json!(busy / requests.max(1.0)));
        }
        Ok(result)
    }

    /// The same with packed rings, which Open vSwitch does not offer.
    fn packed(&self, len: usize) -> Result<Value> {
        ui::step("bench", &format!("frames of {len} bytes in packed rings: ours, testpmd"));
        let ours = ours(&self.vhost, &self.folder, self.cores[1], &[1, 1], 0)?;
        let testpmd = Testpmd::start(&self.folder, self.cores, self.huge.is_some())?;
        self.drive(&[
            "throughput".to_owned(),
            "--packed".to_owned(),
            format!("--len={len}"),
            format!("--milliseconds={}", self.plan.milliseconds),
            Self::switch("ours", &ours.process, &ours.sockets),
            Self::switch("testpmd", &testpmd.process, &testpmd.sockets),
        ])
    }

    /// Throughput of ours with idle ports and without.
    fn idle(&self) -> Result<Value> {
        ui::step("bench", &format!("frames of 60 bytes: ours, with {IDLE} idle ports and without"));
        let alone = ours(&self.vhost, &self.folder, self.cores[1], &[1, 1], 0)?;
        let crowded = ours(&self.vhost, &self.folder, self.cores[1], &[1, 1], IDLE)?;
        self.drive(&[
            "throughput".to_owned(),
            "--len=60".to_owned(),
            format!("--milliseconds={}", self.plan.milliseconds),
            Self::switch("ours", &alone.process, &alone.sockets),
            Self::switch("crowded", &crowded.process, &crowded.sockets),
        ])
    }

    fn latency(&self) -> Result<Value> {
        ui::step("bench", "a lone frame of 60 bytes: ours, testpmd, and a bare copy loop");
        let ours = ours(&self.vhost, &self.folder, self.cores[1], &[1, 1], 0)?;
        let testpmd = Testpmd::start(&self.folder, self.cores, self.huge.is_some())?;
        self.drive(&[
            "latency".to_owned(),
            format!("--frames={}", self.plan.frames),
            Self::switch("ours", &ours.process, &ours.sockets),
            Self::switch("testpmd", &testpmd.process, &testpmd.sockets),
        ])
    }

    /// Arguments for the measurement `what`, with a guest at each socket.
    fn guests(&self, what: &str, ours: &Ours) -> Vec<String> {
        let mut arguments = vec![what.to_owned(), format!("--milliseconds={}", self.plan.milliseconds)];
        arguments.extend(ours.sockets.iter().map(|socket| format!("--socket={}", socket.display())));
        arguments
    }

    /// Six guests that send as fast as they can, and one that sends a request now and then.
    fn requests(&self) -> Result<Value> {
        ui::step("bench", "one guest's requests among six streams on our engine");
        let ours = ours(&self.vhost, &self.folder, self.cores[1], &[1; 7], 0)?;
        let mut arguments = self.guests("requests", &ours);
        arguments.push(format!("--process={}", ours.process.id()));
        self.drive(&arguments)
    }

    /// Runs guests with these weights on our engine, several times. All send as fast as they can. Returns the engine's
    /// cycles for each guest.
    fn streams(&self, weights: &[u16]) -> Result<Value> {
        ui::step("bench", &format!("guests of the weights {weights:?} share our engine"));
        let mut times = Vec::new();
        for _ in 0..self.plan.rounds {
            let ours = ours(&self.vhost, &self.folder, self.cores[1], weights, 0)?;
            self.drive(&self.guests("streams", &ours))?;
            times.push(shares::cycles(&ours.end()?, weights.len())?);
        }
        Ok(json!({ "weights": weights, "engine_cycles": times }))
    }
}

fn rates(table: &mut Table, len: usize, result: &Value) -> Result<()> {
    let ours = contestant(result, "ours").context("no result of ours")?;
    for name in ["ours", "testpmd", "ovs", "floor"] {
        let Some(one) = contestant(result, name) else { continue };
        let features = features(one);
        table.note(&format!(
            "{len:>5} B {name:<8} p50 {:>6.2}  p95 {:>6.2} Mpps   {}",
            number(one, "p50")? / 1e6,
            number(one, "p95")? / 1e6,
            features.join(" ")
        ));
        if name == "ours" {
            let missing: Vec<&str> = NEEDED.into_iter().filter(|needed| !features.contains(needed)).collect();
            if !missing.is_empty() {
                table.note(&format!("        this row does not count yet: without {}", missing.join(" ")));
            }
        }
    }
    table.note(&format!("{len:>5} B ours: {:.0} busy cycles a packet", number(result, "busy_cycles_per_packet")?));
    apart(table, &format!("{len:>5} B"), result);
    by_distance(table, &format!("{len:>5} B"), result, ours);
    let (against_testpmd, against_open, share) = if len == 60 { (1.35, 1.7, 0.85) } else { (1.25, 1.25, 0.94) };
    for (name, aim, what) in [
        ("testpmd", against_testpmd, "testpmd mac"),
        ("ovs", against_open, "OVS-DPDK NORMAL"),
        ("floor", share, "a bare copy loop"),
    ] {
        let what = format!("{len} B split: ours against {what}, median of rounds");
        against(table, result, ours, name, (&what, aim));
    }
    Ok(())
}

fn packed_rates(table: &mut Table, len: usize, result: &Value) -> Result<()> {
    let both = ["ours", "testpmd"].map(|name| contestant(result, name));
    let [Some(ours), Some(testpmd)] = both else { bail!("packed rings: not both took part") };
    for (name, one) in [("ours", ours), ("testpmd", testpmd)] {
        ensure!(features(one).contains(&"RING_PACKED"), "{name}: rings are not packed");
        let (p50, p95) = (number(one, "p50")? / 1e6, number(one, "p95")? / 1e6);
        table.note(&format!("{len:>5} B packed {name:<8} p50 {p50:>6.2}  p95 {p95:>6.2} Mpps"));
    }
    apart(table, &format!("{len:>5} B packed"), result);
    by_distance(table, &format!("{len:>5} B packed"), result, ours);
    let ratio = ratio(ours, testpmd).context("no rounds of packed rings")?;
    table.figure(
        &format!("{len} B packed: ours against testpmd packed, median of rounds"),
        ratio,
        "",
        Aim::AtLeast(1.2),
    );
    Ok(())
}

fn times(table: &mut Table, result: &Value) -> Result<()> {
    let of = |name: &str| contestant(result, name).with_context(|| format!("no result of {name}"));
    for name in ["ours", "testpmd", "floor"] {
        let one = of(name)?;
        let (p50, p99) = (median(rounds(one, "p50")), median(rounds(one, "p99")));
        table.note(&format!("a lone frame, {name:<8} p50 {p50:>5.0} ns  p99 {p99:>5.0} ns"));
    }
    apart(table, "a lone frame", result);
    for (percent, aim) in [("p50", 1.3), ("p99", 2.0)] {
        for (name, what, aim) in [("floor", "a bare copy loop", aim), ("testpmd", "testpmd", 1.0)] {
            let what = format!("a lone frame, {percent}: against {what}, median of rounds");
            table.figure(&what, median(ratios(of("ours")?, of(name)?, percent)), "", Aim::AtMost(aim));
        }
    }
    Ok(())
}

fn requests_among_streams(table: &mut Table, result: &Value) -> Result<()> {
    apart(table, "6 streams, 1 request", result);
    table.note(&format!(
        "6 streams, 1 request: {:.0} requests a second; work ahead of each, p50: {:.0} packets; in 99 % no stream had fewer than {:.0} left",
        number(result, "requests_a_second")?,
        number(result, "ahead_p50")?,
        number(result, "left_p1")?
    ));
    let ahead = number(result, "ahead_p99")?;
    // The request's wait, in packets that the switch takes in that time when nobody sends requests.
    table.figure("6 streams, 1 request: work ahead of it, p99", ahead, "packets", Aim::AtMost(64.0));
    table.figure("6 streams, 1 request: what the streams lose", number(result, "streams_lose")?, "", Aim::AtMost(0.05));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_processors_are_found_in_any_list() {
        assert_eq!(two_processors("0-1").unwrap(), [0, 1]);
        assert_eq!(two_processors("3,6-9").unwrap(), [3, 6]);
        assert!(two_processors("2").is_err());
    }
}
