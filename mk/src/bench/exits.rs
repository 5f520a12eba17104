//! `cargo mk bench exits`: what guests' I/O costs in exits, for every mode of requests and of completion that the
//! platform has. Each has its bounds. Counts are exact under emulation; times are the emulator's.
//!
//! The loads are those of ELVIS 4.3 and 4.7: requests and responses, one at a time, and a stream. The probe
//! (guest-drivers/probe), which has no timer and counts its own interrupts, runs them once, and Linux once.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use scenarios::costs::Costs;
use scenarios::guests::{Guest, server};
use scenarios::launch::Launch as _;
use scenarios::modes::{self, Completion, Requests};
use scenarios::platform::Platform;
use scenarios::probes::{self, Probe};
use scenarios::session::Session;
use scenarios::steady::{self, Steady};
use serde_json::{Map, Value, json};

use crate::emulator::Emulator;
use crate::ui;

const MINUTE: Duration = Duration::from_secs(60);

/// A run: the counts of one guest, and their bounds.
struct Run {
    requests: Requests,
    completion: Completion,
    load: &'static str,
    costs: Costs,
    gates: Vec<Gate>,
}

/// A number and its bound.
struct Gate {
    what: &'static str,
    value: f64,
    bound: Bound,
}

#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
    /// No bound: the number is only reported.
    None,
}

impl Gate {
    fn met(&self) -> bool {
        match self.bound {
            Bound::AtLeast(least) => self.value >= least,
            Bound::AtMost(most) => self.value <= most,
            Bound::None => true,
        }
    }

    fn shown(&self) -> String {
        let word = ui::verdict(if self.met() { "met" } else { "MISSED" }, self.met());
        let (what, value) = (self.what, self.value);
        match self.bound {
            Bound::AtLeast(least) => format!("{what} {value} (at least {least}: {word})"),
            Bound::AtMost(most) => format!("{what} {value} (at most {most}: {word})"),
            Bound::None => format!("{what} {value}"),
        }
    }
}

/// How much to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All loads, long enough for all bounds.
    Full,
    /// Only the probe's loads, and few requests: in a minute, on QEMU.
    Quick,
}

/// The size of the loads. If each request exits, they are smaller, because exits are slow and show soon.
struct Amount {
    requests: u64,
    frames: u64,
    udp: u64,
    tcp_seconds: u64,
}

impl Amount {
    fn of(platform: Platform, exits: bool, extent: Extent) -> Self {
        if extent == Extent::Quick {
            return Self { requests: 2_000, frames: 4_000, udp: 0, tcp_seconds: 0 };
        }
        // TCP runs so long that the exits for console output at its beginning and end do not matter.
        // Requests: more than 65,536, after which an index wraps. Each guest counts two packets for a request.
        const MANY: u64 = 70_000;
        match (platform, exits) {
            (Platform::Bochs, true) => Self { requests: 5_000, frames: 10_000, udp: 2_000, tcp_seconds: 2 },
            (Platform::Bochs, false) => Self { requests: MANY, frames: 10_000, udp: 5_000, tcp_seconds: 2 },
            (_, true) => Self { requests: 20_000, frames: 100_000, udp: 5_000, tcp_seconds: 10 },
            (_, false) => Self { requests: MANY, frames: 100_000, udp: 50_000, tcp_seconds: 10 },
        }
    }
}

/// The runs of all pairs of modes.
pub struct Results {
    platform: Platform,
    runs: Vec<Run>,
}

impl Results {
    /// Whether all bounds were met.
    pub fn good(&self) -> bool {
        self.runs.iter().flat_map(|run| &run.gates).all(Gate::met)
    }

    /// The results as JSON.
    pub fn to_json(&self) -> Value {
        let rows: Vec<Value> = self.runs.iter().map(to_json).collect();
        json!({ "bench": "exits", "platform": self.platform.to_string(), "runs": rows })
    }

    /// Prints a table of the runs, and the exits and the bounds of each.
    pub fn print(&self) {
        print(&self.runs);
    }
}

/// Runs every pair of modes, or those with this `requests` or `completion`.
pub fn run(platform: Platform, requests: Option<&str>, completion: Option<&str>, extent: Extent) -> Result<Results> {
    let wanted = |wanted: Option<&str>, name: &str| wanted.is_none_or(|wanted| wanted == name);
    let asks = modes::requests().filter(|mode| wanted(requests, mode.name));
    let pairs: Vec<_> = asks
        .flat_map(|asks| modes::completions(platform).map(move |completes| (asks, completes)))
        .filter(|(_, completes)| wanted(completion, completes.name))
        .collect();
    ensure!(!pairs.is_empty(), "{platform} has no such pair of requests and completion");
    let mut runs = Vec::new();
    for (requests, completion) in pairs {
        ui::step("bench", &format!("{} requests, {} completions", requests.name, completion.name));
        let mut pair = Pair::new(platform, requests, completion, extent, &mut runs);
        pair.probes()?;
        if extent == Extent::Full {
            pair.linux()?;
        }
    }
    Ok(Results { platform, runs })
}

/// One mode of requests and one of completion.
struct Pair<'a> {
    platform: Platform,
    requests: Requests,
    completion: Completion,
    amount: Amount,
    runs: &'a mut Vec<Run>,
}

impl<'a> Pair<'a> {
    fn name(&self, load: &str) -> String {
        format!("bench-exits-{load}-{}-{}", self.requests.name, self.completion.name)
    }

    fn new(
        platform: Platform,
        requests: Requests,
        completion: Completion,
        extent: Extent,
        runs: &'a mut Vec<Run>,
    ) -> Self {
        let amount = Amount::of(platform, requests.exits == Some(true) || completion.exits, extent);
        Self { platform, requests, completion, amount, runs }
    }

    /// Whether neither requests nor completions exit.
    fn exitless(&self) -> bool {
        self.requests.exits == Some(false) && !self.completion.exits
    }

    /// Whether to run all loads: if both requests and completions exit, or neither does.
    fn is_corner(&self) -> bool {
        self.exitless() || self.requests.exits == Some(true) && self.completion.exits
    }

    fn add(&mut self, load: &'static str, costs: Costs, mut gates: Vec<Gate>) {
        // For an answered request a guest counts two packets: its request and the answer.
        let (asks, ends) = (self.requests.exits == Some(true), self.completion.exits);
        let one_by_one = matches!(load, "probe requests" | "linux udp");
        let answered = (costs.packets / 2) as f64;
        if one_by_one && asks {
            // While the engine still looks at a queue, a request needs no notification. On a busy machine that may be
            // most of the time. One notification for twenty requests shows that they are requested and counted.
            let value = costs.exits_for("io-virtio-notify") as f64;
            gates.push(Gate { what: "notifications", value, bound: Bound::AtLeast((answered / 20.0).ceil()) });
        }
        let bound = match one_by_one {
            _ if self.exitless() => Bound::AtMost(0.0),
            // One completion in ten may reach a vCPU that is just entering the guest, without an exit.
            true if ends => Bound::AtLeast((answered * 0.9).ceil()),
            _ => Bound::None,
        };
        if one_by_one && asks && ends {
            // The costs that the other modes avoid.
            let value = costs.all_exits() as f64 / costs.packets.max(1) as f64;
            gates.push(Gate { what: "exits per packet", value: round(value), bound: Bound::AtLeast(1.0) });
        }
        gates.push(Gate { what: "exits for I/O", value: costs.io_exits() as f64, bound });
        if self.exitless() && !self.completion.owns_apic {
            // If HLT exits, somebody has to wake the vCPU, which may have woken by itself just before.
            let (late, halts) = (costs.exits_for("late-wake") as f64, costs.exits_for("hlt") as f64);
            gates.push(Gate { what: "wakes that came late", value: late, bound: Bound::AtMost(halts) });
        }
        // A guest with its own timer programs it without an exit. With posted interrupts, programming the timer exits,
        // but the timer's end does not.
        let (what, timer) = if self.completion.owns_apic {
            ("exits of the timer", costs.timer_exits())
        } else {
            ("exits of the timer when it is due", costs.exits_for("deadline"))
        };
        let most = if self.completion.owns_apic { 0 } else { costs.exits_for("msr-apic-timer") / 10 };
        let bound = if self.completion.exits { Bound::None } else { Bound::AtMost(most as f64) };
        gates.push(Gate { what, value: timer as f64, bound });
        self.runs.push(Run { requests: self.requests, completion: self.completion, load, costs, gates });
    }

    /// Runs two probes: requests that are answered, and a stream.
    fn probes(&mut self) -> Result<()> {
        let Amount { requests, frames, .. } = self.amount;
        let corner = format!("requests:{requests},singles:{requests},stream:{frames}");
        let actions = if self.is_corner() { corner } else { format!("requests:{requests}") };
        let asks = Probe::new(1, self.completion.name, &actions).peer(2).requests(self.requests.name);
        let serves = Probe::new(2, self.completion.name, "serve").requests(self.requests.name);
        let setup = probes::server(&self.name("probe"), &[asks, serves]);
        let mut session = Emulator::new(self.platform).launch(&setup)?;
        session.result("p2", "serve", MINUTE)?;
        let loads = [("probe requests", "requests"), ("probe singles", "singles"), ("probe stream", "stream")];
        for (load, action) in loads.into_iter().take(if self.is_corner() { 3 } else { 1 }) {
            let (said, counters) = probes::act(&mut session, "p1", action)?;
            let costs = Costs::between(&counters, "p1")?;
            let value = |name: &str| said[name].as_f64().with_context(|| format!("no number {name:?} in {said}"));
            let mut gates = Vec::new();
            if action != "stream" {
                let sent = costs.interrupts as f64;
                let exactly = (value("interrupts")? - sent).abs();
                gates.push(Gate {
                    what: "woken by their own completion",
                    value: value("woken")?,
                    bound: Bound::AtLeast(requests as f64),
                });
                gates.push(Gate { what: "interrupts sent and not taken", value: exactly, bound: Bound::AtMost(0.0) });
                if self.exitless() && action == "requests" {
                    // Each answered request is two packets.
                    let least = Bound::AtLeast((requests * 10 / 7) as f64);
                    gates.push(Gate { what: "packets", value: costs.packets as f64, bound: least });
                }
            }
            self.add(load, costs, gates);
        }
        // Neither probe ends by itself.
        end(&mut session)
    }

    /// Runs two Linux guests: UDP requests that are answered, and a TCP stream.
    fn linux(&mut self) -> Result<()> {
        let Amount { udp, tcp_seconds, .. } = self.amount;
        let actions = [format!("udp:{udp}"), format!("iperf:{tcp_seconds}")];
        let loads = &["linux udp", "linux stream"][..if self.is_corner() { 2 } else { 1 }];
        let guests = steady::guests(self.requests.name, [self.completion.name; 2], [1, 2]);
        let mut session = Emulator::new(self.platform).launch(&server(&self.name("linux"), &guests))?;
        session.all_obey(guests.iter().map(Guest::name))?;
        let mut load_of = Steady::begin(&mut session, ["a", "b"])?;
        for (&load, action) in loads.iter().zip(&actions) {
            let window = load_of.act(action)?;
            // The steady window has no exits for console output. The whole one, between standstills, has exact
            // interrupt counts.
            let (costs, whole) = (window.steady("a")?, window.whole("a")?);
            // With posted interrupts each programming of the timer is an exit, which the guest causes itself.
            let apart = costs.exits_for_any(&["hlt", "late-wake", "msr-apic-timer"]);
            let each_second = costs.all_exits().saturating_sub(apart) as f64 / costs.seconds();
            let bound = if self.exitless() { Bound::AtMost(50.0) } else { Bound::None };
            let what = "exits per second, HLT and timer programmings apart";
            let mut gates = vec![Gate { what, value: round(each_second), bound }];
            // If two interrupts for one vector meet in the IRR, the guest takes one. With one request at a time they
            // cannot meet.
            gates.push(Gate {
                what: "interrupts sent and not in /proc/interrupts",
                value: whole.interrupts.abs_diff(window.taken) as f64,
                bound: if load == "linux udp" { Bound::AtMost(0.0) } else { Bound::None },
            });
            if load == "linux udp" {
                let said = &window.said;
                let again = said["again"].as_f64().with_context(|| format!("no number of repetitions in {said}"))?;
                gates.push(Gate { what: "requests repeated", value: again, bound: Bound::AtMost(0.0) });
                gates.push(Gate {
                    what: "interrupts per request",
                    value: round(whole.interrupts as f64 / udp as f64),
                    bound: Bound::AtLeast(1.0),
                });
                // Each guest counts two packets for a request and its answer. A window with less than a quarter of them
                // says little.
                let least = (udp / 2) as f64;
                gates.push(Gate { what: "packets", value: costs.packets as f64, bound: Bound::AtLeast(least) });
            }
            self.add(load, costs, gates);
        }
        end(&mut session)
    }
}

/// Checks that no guest has reported an error. The machine then ends without a shutdown, because the figures are there
/// already.
fn end(session: &mut Session) -> Result<()> {
    for event in session.unread() {
        if let control::Event::Console { line, .. } = event
            && line.contains("\"error\"")
        {
            anyhow::bail!("a guest says: {line}");
        }
    }
    Ok(())
}

fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn print(runs: &[Run]) {
    println!(
        "{:<10}{:<10}{:<16}{:>10}{:>10}{:>10}{:>12}{:>12}{:>10}{:>12}",
        "requests", "complete", "load", "packets", "exits", "for I/O", "per 1,000", "per second", "HLT", "irq/packet"
    );
    for Run { requests, completion, load, costs, .. } in runs {
        let exits = costs.all_exits() as f64;
        println!(
            "{:<10}{:<10}{load:<16}{:>10}{exits:>10}{:>10}{:>12.2}{:>12.1}{:>10}{:>12.3}",
            requests.name,
            completion.name,
            costs.packets,
            costs.io_exits(),
            exits * 1000.0 / costs.packets.max(1) as f64,
            exits / costs.seconds(),
            costs.exits_for("hlt"),
            costs.interrupts as f64 / costs.packets.max(1) as f64,
        );
    }
    for run in runs {
        println!("\n{} {}, {}", run.requests.name, run.completion.name, run.load);
        let mut exits: Vec<_> = run.costs.exits.iter().collect();
        exits.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let exits: Vec<String> = exits.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        println!("    exits: {}", if exits.is_empty() { "none".to_owned() } else { exits.join(", ") });
        for gate in &run.gates {
            println!("    {}", gate.shown());
        }
    }
}

fn to_json(run: &Run) -> Value {
    let Run { requests, completion, load, costs, gates } = run;
    let per = |count: u64, of: f64| round(count as f64 / of.max(f64::MIN_POSITIVE));
    let packets = costs.packets as f64;
    let by_reason: Map<String, Value> =
        costs.exits.iter().map(|(reason, count)| (reason.clone(), json!(per(count * 1000, packets)))).collect();
    let gates: Map<String, Value> = gates
        .iter()
        .map(|gate| {
            let (least, most) = match gate.bound {
                Bound::AtLeast(least) => (Some(least), None),
                Bound::AtMost(most) => (None, Some(most)),
                Bound::None => (None, None),
            };
            (
                gate.what.to_owned(),
                json!({ "value": gate.value, "at_least": least, "at_most": most, "met": gate.met() }),
            )
        })
        .collect();
    json!({
        "requests": requests.name,
        "completion": completion.name,
        "load": load,
        "packets": costs.packets,
        "interrupts": costs.interrupts,
        "kicks": costs.kicks,
        "seconds": round(costs.seconds()),
        "exits": costs.exits,
        "exits_for_io": costs.io_exits(),
        "exits_per_1000_packets": per(costs.all_exits() * 1000, packets),
        "exits_per_1000_packets_by_reason": by_reason,
        "exits_per_second": per(costs.all_exits(), costs.seconds()),
        "interrupts_per_packet": per(costs.interrupts, packets),
        "microseconds_per_packet": round(costs.seconds() * 1e6 / packets.max(1.0)),
        "gates": gates,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_bound_is_missed_on_its_far_side_only() {
        let gate = |value, bound| Gate { what: "x", value, bound }.met();
        assert!(gate(0.0, Bound::AtMost(0.0)) && !gate(1.0, Bound::AtMost(0.0)));
        assert!(gate(5.0, Bound::AtLeast(5.0)) && !gate(4.0, Bound::AtLeast(5.0)));
        assert!(gate(f64::MAX, Bound::None));
    }

    #[test]
    fn whoever_exits_is_held_to_exits_and_whoever_does_not_to_none() {
        let completion = |name| modes::completions(Platform::Qemu).find(|mode| mode.name == name).unwrap();
        let mut runs = Vec::new();
        for (requests, name) in [("poll", "direct"), ("poll", "inject"), ("notify", "inject")] {
            let requests = modes::requests().find(|mode| mode.name == requests).unwrap();
            let exits = BTreeMap::from([("msr-apic-eoi".to_owned(), 5)]);
            let costs = Costs { packets: 10, exits, ..Costs::default() };
            Pair::new(Platform::Qemu, requests, completion(name), Extent::Full, &mut runs).add(
                "probe requests",
                costs,
                Vec::new(),
            );
        }
        let met: Vec<bool> = runs.iter().flat_map(|run| &run.gates).map(Gate::met).collect();
        // The third run misses: no notification, and five exits for five requests, which is less than one a packet. The
        // last gate of each run is for the timer, which did nothing here.
        let expected = [[false, true].as_slice(), &[true, true], &[false, false, true, true]].concat();
        assert_eq!(met, expected);
    }
}
