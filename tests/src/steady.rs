//! Two Linux guests under a steady load, and what it costs them.
//!
//! A window is counted twice. From standing still to standing still: so what the guest says of itself, its
//! interrupts for one, can be compared exactly. And within the load, from when it is under way to the last reading before
//! anything was on the guest's console: what a guest says of its results costs exits too, and none of them is I/O's.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use control::{Counters, Event};
use serde_json::Value;

use crate::costs::Costs;
use crate::guests::Guest;
use crate::probes::{go, ready};
use crate::scenario::seconds;
use crate::session::{Session, guest_result};

/// Packets of the guest that asks after which its load is under way.
const UNDER_WAY: u64 = 200;
/// Readings of the counters while it lasts: one each quarter of a second, for ten minutes at most.
const BETWEEN_READINGS: Duration = Duration::from_millis(250);
const READINGS: u32 = 2400;

/// The guests, and the way of completion of each: a does these one after another (`udp:COUNT`, `iperf:SECONDS`), and b answers.
pub fn guests(requests: &str, completions: [&str; 2], actions: &[String]) -> [Guest; 2] {
    let make = |number: usize, peer| {
        let guest = Guest::new(number).full().peer(peer).kernel_option("ipv6.disable=1");
        let completion = completions[number - 1];
        let guest = guest.completion(completion).requests(requests);
        // On Bochs a frame of 64 KiB takes the engine 0.8 ms of the guests' time, longer than it may be late with a
        // timer: what costs an exit then is the emulator's slowness.
        if completion == "posted" { guest.net("offloads = \"none\"") } else { guest }
    };
    let serves = make(2, 1).then("still").then("udp-server").then("iperf-server").then("wait");
    let asks = make(1, 2).then("still").then("ready").then("interrupts").then("ready");
    let asks = actions.iter().fold(asks, |guest, action| guest.then(action).then("interrupts").then("ready"));
    [asks.then("wait"), serves]
}

/// What was counted of one load.
#[derive(Debug)]
pub struct Window {
    /// The guest's own result.
    pub said: Value,
    /// Interrupts of its network device that guest a took, by its own account.
    pub taken: u64,
    /// From standing still to standing still.
    pub whole: [Counters; 2],
    /// While the load was under way and nothing was on a console.
    pub steady: [Counters; 2],
}

impl Window {
    /// What guest `name` cost from standing still to standing still.
    pub fn whole(&self, name: &str) -> Result<Costs> {
        Costs::between(&self.whole, name)
    }

    /// What it cost while the load was under way.
    pub fn steady(&self, name: &str) -> Result<Costs> {
        Costs::between(&self.steady, name)
    }
}

/// Leads guest a through its loads.
pub struct Steady {
    /// The server.
    pub session: Session,
    /// While guest a stands still: interrupts that it has taken, and the counters.
    standing: (u64, Counters),
}

impl Steady {
    /// Takes over a server with [`guests`], and waits until both are up.
    pub fn begin(mut session: Session) -> Result<Self> {
        session.result("b", "iperf-server", seconds(240))?;
        // b is silent from here on: what it sent before is not to fall between a's own count and the engine's.
        ready(&mut session, "a")?;
        go(&mut session, "a")?;
        let standing = standing(&mut session)?;
        Ok(Self { session, standing })
    }

    /// Has guest a do the next of its actions.
    pub fn act(&mut self, action: &str) -> Result<Window> {
        let quiet = Costs::of(&self.standing.1, "a")?;
        go(&mut self.session, "a")?;
        let (mut first, mut last): (Option<Counters>, Option<Counters>) = (None, None);
        for _ in 0..READINGS {
            let now = self.session.counters()?;
            match &first {
                None if Costs::of(&now, "a")?.since(&quiet).packets >= UNDER_WAY => first = Some(now),
                Some(first) if silent(first, &now)? => last = Some(now),
                _ => {}
            }
            if self.session.unread().iter().any(|event| is_result(event, action)) {
                break;
            }
            thread::sleep(BETWEEN_READINGS);
        }
        let said = self.session.result("a", action, seconds(10))?;
        let (taken, still) = standing(&mut self.session)?;
        let whole = [self.standing.1.clone(), still.clone()];
        let taken_meanwhile = taken - self.standing.0;
        self.standing = (taken, still);
        let steady = [first, last].map(|reading| reading.context("the load was over before it could be looked at"));
        let [first, last] = steady;
        Ok(Window { said, taken: taken_meanwhile, whole, steady: [first?, last?] })
    }
}

/// Whether nothing was on the consoles of the guests in between: a word on them begins with an access to the UART.
fn silent(before: &Counters, after: &Counters) -> Result<bool> {
    let uart = |counters, name| Ok::<_, anyhow::Error>(Costs::of(counters, name)?.exits_for("io-uart"));
    Ok(uart(before, "a")? == uart(after, "a")? && uart(before, "b")? == uart(after, "b")?)
}

fn is_result(event: &Event, action: &str) -> bool {
    guest_result(event).is_some_and(|(guest, result)| guest == "a" && result["do"] == action)
}

/// What guest a has taken by its own account, and the counters, while it stands still.
fn standing(session: &mut Session) -> Result<(u64, Counters)> {
    let said = session.result("a", "interrupts", seconds(240))?;
    let taken = said["eth0"].as_u64().with_context(|| format!("no number of interrupts in {said}"))?;
    ensure!(taken > 0, "the guest has taken no interrupt of its network device: {said}");
    Ok((taken, ready(session, "a")?))
}
