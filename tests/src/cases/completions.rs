//! Every way of completion, each by itself: traffic, two virtual CPUs, a guest that is switched off and on under load, and what
//! a steady load costs in exits.

use anyhow::{Context as _, Result, ensure};
use control::{Command, Count, Counters, GuestState};

use super::network::{file_arrived, number};
use super::requests::notify_exits;
use crate::costs::Costs;
use crate::guests::{Guest, server};
use crate::machine::Platform;
use crate::modes::{self, Completion};
use crate::scenario::{Context, EVERYWHERE, Scenario, seconds};
use crate::session::Session;
use crate::steady::{self, Steady, Window};

const BOCHS: &[Platform] = &[Platform::Bochs];
/// Times a guest is switched off and on under load: in the platform's best mode, and in each with `--full`.
const LIVES: u64 = 10;
/// The same in another mode. What is different there, `probe-restarts` does ten times in each.
const FEWER_LIVES: u64 = 3;
/// Exits of a loaded guest in a second of its time, at most: I/O causes none of them.
const EACH_SECOND: f64 = 50.0;
/// An NMI that was to wake a vCPU from a HLT that has exited, and found it awake.
const LATE_WAKE: &str = "late-wake";

/// These scenarios.
pub fn list() -> Vec<Scenario> {
    const TRAFFIC: &str = "1,000 pings, TCP both ways, and a file of 32 MiB that arrives intact";
    const SMP: &str = "two virtual CPUs: both at work, one goes offline and comes back";
    const RESTARTS: &str = "a guest is killed and started again and again under load; its neighbour is unharmed";
    const EXITLESS: &str =
        "UDP requests and a TCP stream between Linux guests: no exit for I/O, an interrupt for each request";
    const BETWEEN: &str =
        "the same between a guest in `eli`, which asks, and one in `direct`: no exit of either for I/O or a timer";
    const EXITS: &str =
        "the contrast, every request notified and every completion injected: more than an exit a packet";
    vec![
        scenario("inject-traffic", TRAFFIC, EVERYWHERE, |c| traffic(c, "inject")),
        scenario("eli-traffic", TRAFFIC, EVERYWHERE, |c| traffic(c, "eli")),
        scenario("direct-traffic", TRAFFIC, EVERYWHERE, |c| traffic(c, "direct")),
        scenario("posted-traffic", TRAFFIC, BOCHS, |c| traffic(c, "posted")),
        scenario("inject-smp", SMP, EVERYWHERE, |c| smp_in(c, "inject")),
        scenario("eli-smp", SMP, EVERYWHERE, |c| smp_in(c, "eli")),
        scenario("direct-smp", SMP, EVERYWHERE, |c| smp_in(c, "direct")),
        scenario("posted-smp", SMP, BOCHS, |c| smp_in(c, "posted")),
        scenario("inject-restarts", RESTARTS, EVERYWHERE, |c| restarts(c, "inject")),
        scenario("eli-restarts", RESTARTS, EVERYWHERE, |c| restarts(c, "eli")),
        scenario("direct-restarts", RESTARTS, EVERYWHERE, |c| restarts(c, "direct")),
        scenario("posted-restarts", RESTARTS, BOCHS, |c| restarts(c, "posted")),
        scenario("inject-steady", EXITS, EVERYWHERE, |c| steady(c, "inject-steady", "notify", ["inject"; 2])),
        scenario("eli-steady", EXITLESS, EVERYWHERE, |c| steady(c, "eli-steady", "poll", ["eli"; 2])),
        scenario("direct-steady", EXITLESS, EVERYWHERE, |c| steady(c, "direct-steady", "poll", ["direct"; 2])),
        scenario("posted-steady", EXITLESS, BOCHS, |c| steady(c, "posted-steady", "poll", ["posted"; 2])),
        scenario("eli-direct-steady", BETWEEN, BOCHS, |c| steady(c, "eli-direct-steady", "poll", ["eli", "direct"])),
    ]
    .into_iter()
    // The gates hold in the short run, too; on Bochs in as few runs as there can be.
    .map(|scenario| {
        let short = ["posted-steady", "eli-direct-steady"].contains(&scenario.name);
        Scenario { slow_on_bochs: !short, ..scenario }
    })
    .collect()
}

fn scenario(
    name: &'static str,
    about: &'static str,
    platforms: &'static [Platform],
    run: fn(&mut Context<'_>) -> Result<()>,
) -> Scenario {
    Scenario { name, about, platforms, slow_on_bochs: true, run }
}

fn traffic(context: &mut Context<'_>, mode: &str) -> Result<()> {
    let (pings, mib) = (context.times(1000, 100), context.times(32, 2));
    let (seconds_each, bytes) = (context.times(2, 1), context.times(4_000_000, 400_000));
    let a = Guest::new(1).full().then("iperf-server").then(format!("serve:{mib}")).then("wait");
    let b = Guest::new(2).full().peer(1).then(format!("ping:{pings}")).then(format!("iperf:{seconds_each}"));
    let b = b.then(format!("iperf:{seconds_each}:reverse")).then("fetch");
    let guests = [a, b].map(|guest| guest.completion(mode).memory_mib(256));
    let mut session = context.boot(&server(&format!("{mode}-traffic"), &guests))?;
    let ping = session.result("b", "ping", seconds(240))?;
    // busybox waits one second for the last answers, which a busy machine may take; a lost interrupt loses them all.
    context.figures.at_least("pings answered", number(&ping, "received")?, pings - pings / 50)?;
    for direction in ["out", "in"] {
        let iperf = session.result("b", "iperf", seconds(240))?;
        ensure!(iperf["direction"] == direction, "expected the result for {direction:?}, got {iperf}");
        context.figures.at_least(&format!("iperf bytes, {direction}"), number(&iperf, "bytes")?, bytes)?;
    }
    file_arrived(context, &mut session, mib)?;
    session.shut_down()?;
    Ok(())
}

/// A guest of two virtual CPUs, in one mode or in the one that is chosen by itself; the counters at the end.
pub(super) fn smp(context: &mut Context<'_>, name: &str, mode: Option<&str>) -> Result<Counters> {
    let guest = Guest::new(1).vcpus(2).then("smp:2").then("wait");
    let guest = mode.into_iter().fold(guest, Guest::completion);
    let mut session = context.boot(&server(name, &[guest]))?;
    for (step, cpus) in [("both", 2), ("offline", 1), ("online", 2)] {
        let smp = session.result("a", "smp", seconds(240))?;
        ensure!(smp["step"] == step, "expected step {step}, got {smp}");
        context.figures.exactly(&format!("{step}: CPUs"), number(&smp, "cpus")?, cpus)?;
        let ticks = smp["ticks"].as_array().with_context(|| format!("no ticks in {smp}"))?;
        context.figures.exactly(&format!("{step}: CPUs with a count"), ticks.len(), cpus)?;
        let least = ticks.iter().filter_map(serde_json::Value::as_u64).min().unwrap_or(0);
        context.figures.at_least(&format!("{step}: clock ticks of work on the least busy CPU"), least, 20)?;
    }
    let counters = session.counters()?;
    session.shut_down()?;
    Ok(counters)
}

fn smp_in(context: &mut Context<'_>, mode: &str) -> Result<()> {
    let counters = smp(context, &format!("{mode}-smp"), Some(mode))?;
    if mode == "eli" {
        let counts = shadow(&counters, "a");
        context.figures.at_least("virtual CPUs that came to rely on the shadow", count(counts, "shadowed"), 2)?;
        let through = count(counts, "host-interrupts");
        context.figures.at_least("interrupts of the host's through the shadow", through, 2)?;
    }
    Ok(())
}

/// A guest killed and started under load.
fn restarts(context: &mut Context<'_>, mode: &str) -> Result<()> {
    let all = context.full || mode == modes::best(context.platform()).name;
    let lives = if all { LIVES } else { FEWER_LIVES };
    // b floods a for as long as it lives.
    let flood = Guest::new(2).peer(1).then("ping:3").then("ping:100000").completion(mode);
    let quiet = Guest::new(1).then("wait").completion(mode);
    let mut session = context.boot(&server(&format!("{mode}-restarts"), &[quiet, flood]))?;
    session.state("b", GuestState::Running, seconds(60))?;
    for _ in 0..lives {
        restart_under_load(&mut session)?;
    }
    session.result("b", "ping", seconds(240))?;
    let counters = session.counters()?;
    let starts = |name: &str| counters.guest(name).map_or(0, |g| g.starts);
    context.figures.exactly("lives of b", starts("b"), lives + 1)?;
    context.figures.exactly("lives of a", starts("a"), 1)?;
    let errors: u64 = counters.guests.iter().flat_map(|g| &g.ports).map(|p| p.ring_errors).sum();
    context.figures.exactly("ring errors", errors, 0)?;
    if mode == "eli" {
        for name in ["a", "b"] {
            let through = count(shadow(&counters, name), "host-interrupts");
            context.figures.at_least(&format!("interrupts of the host's through {name}'s shadow"), through, 1)?;
        }
    }
    session.shut_down()?;
    Ok(())
}

fn restart_under_load(session: &mut Session) -> Result<()> {
    // It is up and has been answered: interrupts are on their way when it is killed.
    session.result("b", "ping", seconds(240))?;
    session.ask(Command::Restart("b".into()), seconds(30))?;
    session.state("b", GuestState::Stopped, seconds(60))?;
    session.state("b", GuestState::Running, seconds(60))?;
    Ok(())
}

/// Requests that are answered one by one, and a stream; the way of completion of the guest that asks, and of the other one.
fn steady(context: &mut Context<'_>, name: &str, requests: &str, completions: [&str; 2]) -> Result<()> {
    let modes = completions.map(modes::named);
    // A reading of the counters takes a fifth of a second of Bochs's time, and several have to fall into the load.
    let transactions = if modes[0].exits { 2_000 } else { context.times(10_000, 4_000) };
    let tcp_seconds = context.times(5, 2);
    let actions = [format!("udp:{transactions}"), format!("iperf:{tcp_seconds}")];
    let guests = steady::guests(requests, completions, &actions);
    let mut load = Steady::begin(context.boot(&server(name, &guests))?)?;

    let udp = load.act("udp")?;
    let whole = udp.whole("a")?;
    let figures = &mut context.figures;
    // A busy machine may hold an answer back for longer than the guest waits for it.
    figures.note("udp: requests repeated", number(&udp.said, "again")?);
    figures.at_least("udp: interrupts of a", whole.interrupts, transactions)?;
    figures.exactly("udp: of these in its /proc/interrupts", udp.taken, whole.interrupts)?;
    held(context, "udp", &udp, modes, transactions / 2)?;

    let tcp = load.act("iperf")?;
    context.figures.at_least("tcp: bytes", number(&tcp.said, "bytes")?, context.times(2_000_000, 400_000))?;
    held(context, "tcp", &tcp, modes, 100)?;
    load.session.shut_down()?;
    Ok(())
}

/// Holds each guest under a load to what its mode promises. In what could be looked at of it, each has at least so many packets.
fn held(context: &mut Context<'_>, load: &str, window: &Window, modes: [Completion; 2], packets: u64) -> Result<()> {
    for (name, mode) in ["a", "b"].into_iter().zip(modes) {
        let of = |what: &str| format!("{load}: {what} of {name}");
        let costs = window.steady(name)?;
        let figures = &mut context.figures;
        figures.at_least(&of("packets"), costs.packets, packets)?;
        figures.note(&of("exits, all"), costs.all_exits());
        figures.note(&of("exits for HLT"), costs.exits_for("hlt"));
        if mode.exits {
            // The contrast is what shows that the counts can be anything but 0. A stream is batched.
            if load == "udp" {
                figures.at_least(&of("exits"), costs.all_exits(), costs.packets)?;
                let kicks = notify_exits(&window.steady[1], name) - notify_exits(&window.steady[0], name);
                // An engine that has not yet turned away from the queue needs none.
                figures.at_least(&of("of these for notifications"), kicks, costs.packets / 20)?;
            }
            continue;
        }
        figures.exactly(&of("exits for I/O"), costs.io_exits(), 0)?;
        // Where HLT exits somebody has to wake the vCPU, and it may have woken by itself just before.
        figures.at_most(&of("wakes that came late"), costs.exits_for(LATE_WAKE), costs.exits_for("hlt") as f64)?;
        figures.at_most(
            &of("exits in a second, HLT and timer programmings apart"),
            each_second(&costs),
            EACH_SECOND,
        )?;
        if mode.owns_apic {
            figures.exactly(&of("exits for the timer"), costs.timer_exits(), 0)?;
            figures.exactly(&of("exits for HLT"), costs.exits_for("hlt"), 0)?;
        }
        if mode.name == "eli" {
            // All of this was said of a guest whose IDT was shadowed, by a shadow that had been tried.
            let [before, after] = [0, 1].map(|at| shadow(&window.steady[at], name));
            figures.at_least(&of("times the IDT was shadowed before"), count(before, "shadowed"), 1)?;
            let through = count(before, "host-interrupts");
            figures.at_least(&of("interrupts of the host's through the shadow before"), through, 1)?;
            for kind in ["idt-written", "idt-moved", "vectors-moved", "injected", "host-interrupts-by-exit"] {
                let meanwhile = count(after, kind) - count(before, kind);
                figures.exactly(&of(&format!("{kind}, meanwhile,")), meanwhile, 0)?;
            }
        }
    }
    Ok(())
}

/// Exits in a second of the guest's time. HLT with its wakes and, with posted interrupts, the programming of the timer are
/// apart.
fn each_second(costs: &Costs) -> f64 {
    let apart = costs.exits_for_any(&["hlt", LATE_WAKE, "msr-apic-timer"]);
    costs.all_exits().saturating_sub(apart) as f64 / costs.seconds()
}

/// What was counted of a guest's shadow IDT.
pub(super) fn shadow<'a>(counters: &'a Counters, name: &str) -> &'a [Count] {
    counters.guest(name).map_or(&[], |g| &g.shadow_idt)
}

/// One of these counts.
pub(super) fn count(counts: &[Count], kind: &str) -> u64 {
    counts.iter().find(|c| c.kind == kind).map_or(0, |c| c.count)
}
