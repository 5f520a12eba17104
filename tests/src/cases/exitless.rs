//! I/O without exits: what a guest that owns its cores' local APICs leaves guest mode for, and what one that does not.

use anyhow::{Context as _, Result, ensure};
use control::{Command, Count, Counters, GuestState};

use crate::cases::network::number;
use crate::costs::Costs;
use crate::guests::{Guest, server};
use crate::scenario::{Context, EVERYWHERE, QEMU, Scenario, seconds};
use crate::session::Session;

/// Exits that I/O causes: requests, completions and their end-of-interrupt, and the timer.
const IO: [&str; 10] = [
    "io-virtio-notify",
    "external-interrupt",
    "interrupt-window",
    "nmi",
    "msr-apic-eoi",
    "msr-apic-timer",
    "msr-apic-icr",
    "msr-apic-other",
    "hlt",
    "cr8",
];

/// Pings in the window: each is a packet either way for either guest, and an interrupt for each.
pub(super) const PINGS: u64 = 1000;
/// Times a guest is switched off and on under load.
const LIVES: u64 = 10;

/// These scenarios.
pub fn list() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "exitless",
            about: "1,000 requests and replies: with `direct` no exit for I/O or timer, with `inject` more than one each",
            platforms: EVERYWHERE,
            slow_on_bochs: true,
            run: exitless,
        },
        Scenario {
            name: "inject-restarts",
            about: "a guest is killed and started ten times under load; its neighbour is unharmed",
            platforms: QEMU,
            slow_on_bochs: false,
            run: |context| restarts(context, "inject").map(drop),
        },
        Scenario {
            name: "direct-smp",
            about: "two virtual CPUs that own their local APICs: both at work, one goes offline and comes back",
            platforms: QEMU,
            slow_on_bochs: false,
            run: |context| smp(context, "direct").map(drop),
        },
        Scenario {
            name: "direct-restarts",
            about: "a guest that owns its local APIC is killed and started ten times under load; its neighbour is unharmed",
            platforms: QEMU,
            slow_on_bochs: false,
            run: |context| restarts(context, "direct").map(drop),
        },
    ]
}

/// What was counted of one guest in a window.
pub(super) struct Window {
    /// What it cost.
    pub costs: Costs,
    /// Of its shadow IDT, before and after the window.
    pub shadow_before: Vec<Count>,
    /// As `shadow_before`.
    pub shadow_after: Vec<Count>,
}

impl Window {
    /// Exits for I/O and the timer.
    pub fn io_exits(&self) -> u64 {
        self.costs.exits_for_any(&IO)
    }
}

/// Boots two guests, and counts over a window of [`PINGS`] pings in steady state.
pub(super) fn window(context: &mut Context<'_>, completion: &str) -> Result<[Window; 2]> {
    let pinging = Guest::new(1).peer(2).then("ping:10").then("sleep:3").then(format!("ping:{PINGS}"));
    let guests = [pinging.then("ping:10").then("wait"), Guest::new(2).then("wait")].map(|g| g.completion(completion));
    let mut session = context.boot(&server(&format!("exitless-{completion}"), &guests))?;
    session.result("a", "ping", seconds(240))?;
    let before = session.counters()?;
    let ping = session.result("a", "ping", seconds(240))?;
    let after = session.counters()?;
    // Busybox's ping gives the last replies one second. A slow test machine may stall a guest for longer, so a few may
    // come too late. An interrupt that is lost is something else: the driver waits for it for ever, and no ping after it
    // is answered.
    let answered = number(&ping, "received")?;
    context.figures.at_least(&format!("{completion}: pings answered in time"), answered, PINGS - PINGS / 50)?;
    let afterwards = number(&session.result("a", "ping", seconds(240))?, "received")?;
    context.figures.exactly(&format!("{completion}: pings answered afterwards"), afterwards, 10)?;
    session.shut_down()?;
    let counters = [before, after];
    let between = |name| -> Result<Window> {
        let shadow = |counters: &Counters| counters.guest(name).map(|g| g.shadow_idt.clone()).unwrap_or_default();
        let [before, after] = &counters;
        let costs = Costs::between(&counters, name)?;
        Ok(Window { costs, shadow_before: shadow(before), shadow_after: shadow(after) })
    };
    Ok([between("a")?, between("b")?])
}

fn exitless(context: &mut Context<'_>) -> Result<()> {
    for completion in ["inject", "direct"] {
        for (name, w) in ["a", "b"].into_iter().zip(window(context, completion)?) {
            let of = |what: &str| format!("{completion}: {what} of {name}");
            let figures = &mut context.figures;
            figures.at_least(&of("packets"), w.costs.packets, 2 * PINGS)?;
            // Each request and each reply was announced by an interrupt of its own: no driver that polls wins this.
            figures.at_least(&of("interrupts"), w.costs.interrupts, PINGS)?;
            figures.note(&of("exits, all"), w.costs.all_exits());
            if completion == "direct" {
                figures.exactly(&of("exits for I/O and timer"), w.io_exits(), 0)?;
            } else {
                // The contrast is what shows that the count can be anything but 0.
                figures.at_least(&of("exits for I/O and timer"), w.io_exits(), w.costs.packets)?;
            }
        }
    }
    Ok(())
}

/// A guest of two virtual CPUs.
pub(super) fn smp(context: &mut Context<'_>, completion: &str) -> Result<Counters> {
    let guest = Guest::new(1).vcpus(2).completion(completion).then("smp:3").then("wait");
    let mut session = context.boot(&server(&format!("{completion}-smp"), &[guest]))?;
    for (step, cpus) in [("both", 2), ("offline", 1), ("online", 2)] {
        let smp = session.result("a", "smp", seconds(240))?;
        ensure!(smp["step"] == step, "expected step {step}, got {smp}");
        context.figures.exactly(&format!("{step}: CPUs"), number(&smp, "cpus")?, cpus)?;
        let ticks = smp["ticks"].as_array().with_context(|| format!("no ticks in {smp}"))?;
        let least = ticks.iter().filter_map(serde_json::Value::as_u64).min().unwrap_or(0);
        context.figures.at_least(&format!("{step}: clock ticks of work on the least busy CPU"), least, 20)?;
    }
    let counters = session.counters()?;
    session.shut_down()?;
    Ok(counters)
}

fn restart_under_load(session: &mut Session) -> Result<()> {
    // It is up and has been answered: interrupts are on their way when it is killed.
    session.result("b", "ping", seconds(240))?;
    session.ask(Command::Restart("b".into()), seconds(30))?;
    session.state("b", GuestState::Stopped, seconds(60))?;
    session.state("b", GuestState::Running, seconds(60))?;
    Ok(())
}

/// A guest killed and started [`LIVES`] times under load.
pub(super) fn restarts(context: &mut Context<'_>, completion: &str) -> Result<Counters> {
    // b floods a for as long as it lives.
    let flood = Guest::new(2).peer(1).then("ping:3").then("ping:100000").completion(completion);
    let quiet = Guest::new(1).then("wait").completion(completion);
    let mut session = context.boot(&server(&format!("{completion}-restarts"), &[quiet, flood]))?;
    session.state("b", GuestState::Running, seconds(60))?;
    for _ in 0..LIVES {
        restart_under_load(&mut session)?;
    }
    session.result("b", "ping", seconds(240))?;
    let counters = session.counters()?;
    let starts = |name: &str| counters.guest(name).map_or(0, |g| g.starts);
    context.figures.exactly("lives of b", starts("b"), LIVES + 1)?;
    context.figures.exactly("lives of a", starts("a"), 1)?;
    let errors: u64 = counters.guests.iter().flat_map(|g| &g.ports).map(|p| p.ring_errors).sum();
    context.figures.exactly("ring errors", errors, 0)?;
    session.shut_down()?;
    Ok(counters)
}
