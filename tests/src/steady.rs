//! Two Linux guests under a steady load, and its costs.
//!
//! Each load is counted in two windows:
//! - `whole`: both guests stand still at the beginning and the end. The guest's own counts, for example of interrupts,
//!   can be compared exactly.
//! - `steady`: within the load, from when it is under way to the last reading before console output. The output of
//!   results costs exits too, which I/O does not cause.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use control::{Counters, Event};
use serde_json::Value;

use crate::costs::Costs;
use crate::guests::Guest;
use crate::scenario::seconds;
use crate::session::{Session, guest_result};

/// The load is under way after this number of packets of the guest that asks.
const UNDER_WAY: u64 = 200;
/// Time between two readings of the counters during a load.
const BETWEEN_READINGS: Duration = Duration::from_millis(250);
/// Most readings of a load, which is ten minutes.
const READINGS: u32 = 2400;

/// Two guests with these numbers and modes of completion. The first asks and the second answers.
pub fn guests(requests: &str, completions: [&str; 2], numbers: [usize; 2]) -> [Guest; 2] {
    let make = |this: usize| {
        let guest = Guest::new(numbers[this]).full().peer(numbers[1 - this]).kernel_option("ipv6.disable=1");
        let completion = completions[this];
        let guest = guest.completion(completion).requests(requests).then("obey");
        // On Bochs a frame of 64 KiB takes the engine 0.8 ms of the guests' time. Timers would be late by that, and
        // cost exits only because the emulator is slow.
        if completion == "posted" { guest.net("offloads = \"none\"") } else { guest }
    };
    [make(0), make(1)]
}

/// The counts of one load.
#[derive(Debug)]
pub struct Window {
    /// The guest's own result.
    pub said: Value,
    /// Interrupts of the network device that the guest that asks took, by its own count.
    pub taken: u64,
    /// Counters before and after the load, while the guests stand still.
    pub whole: [Counters; 2],
    /// Counters of two readings during the load, without console output between them.
    pub steady: [Counters; 2],
}

impl Window {
    /// The costs of guest `name` in the window `whole`.
    pub fn whole(&self, name: &str) -> Result<Costs> {
        Costs::between(&self.whole, name)
    }

    /// The costs of guest `name` in the window `steady`.
    pub fn steady(&self, name: &str) -> Result<Costs> {
        Costs::between(&self.steady, name)
    }
}

/// Leads the guest that asks through its loads.
pub struct Steady<'a> {
    session: &'a mut Session,
    /// The guest that asks, and the one that answers.
    guests: [&'static str; 2],
    /// Read while the guests stand still: the interrupts that the guest that asks has taken, and the counters.
    standing: (u64, Counters),
}

impl<'a> Steady<'a> {
    /// Takes over two of [`guests`], the one that asks and the one that answers. Both must obey already.
    pub fn begin(session: &'a mut Session, guests: [&'static str; 2]) -> Result<Self> {
        let [asks, serves] = guests;
        // The guests learn each other's address, so that no ARP comes between the guest's own count and the engine's.
        session.tell(serves, "still")?;
        session.act(serves, "udp-server", seconds(240))?;
        session.act(serves, "iperf-server", seconds(240))?;
        session.tell(asks, "still")?;
        let standing = standing(session, asks)?;
        Ok(Self { session, guests, standing })
    }

    /// The guest that asks.
    pub fn asks(&self) -> &'static str {
        self.guests[0]
    }

    /// The guest that answers.
    pub fn serves(&self) -> &'static str {
        self.guests[1]
    }

    /// Runs a load of the guest that asks: `udp:COUNT` or `iperf:SECONDS`.
    pub fn act(&mut self, action: &str) -> Result<Window> {
        let asks = self.asks();
        let name = action.split(':').next().unwrap_or(action);
        let quiet = Costs::of(&self.standing.1, asks)?;
        self.session.tell(asks, action)?;
        let (mut first, mut last): (Option<Counters>, Option<Counters>) = (None, None);
        for _ in 0..READINGS {
            let now = self.session.counters()?;
            match &first {
                None if Costs::of(&now, asks)?.since(&quiet).packets >= UNDER_WAY => first = Some(now),
                Some(first) if silent(first, &now, &self.guests)? => last = Some(now),
                _ => {}
            }
            if self.session.unread().iter().any(|event| is_result(event, asks, name)) {
                break;
            }
            thread::sleep(BETWEEN_READINGS);
        }
        let said = self.session.result(asks, name, seconds(10))?;
        let (taken, still) = standing(self.session, asks)?;
        let whole = [self.standing.1.clone(), still.clone()];
        let taken_meanwhile = taken - self.standing.0;
        self.standing = (taken, still);
        let steady = [first, last].map(|reading| reading.context("the load was over before it could be looked at"));
        let [first, last] = steady;
        Ok(Window { said, taken: taken_meanwhile, whole, steady: [first?, last?] })
    }
}

/// Whether these guests wrote nothing to their consoles between two readings. Output begins with an access to the UART.
fn silent(before: &Counters, after: &Counters, guests: &[&str]) -> Result<bool> {
    let uart = |counters, name| Ok::<_, anyhow::Error>(Costs::of(counters, name)?.exits_for("io-uart"));
    guests.iter().try_fold(true, |silent, name| Ok(silent && uart(before, name)? == uart(after, name)?))
}

fn is_result(event: &Event, name: &str, action: &str) -> bool {
    guest_result(event).is_some_and(|(guest, result)| guest == name && result["do"] == action)
}

/// Waits until the guest that asks stands still. Returns the interrupts that it has taken by its own count, and the
/// counters.
fn standing(session: &mut Session, asks: &str) -> Result<(u64, Counters)> {
    let said = session.act(asks, "interrupts", seconds(240))?;
    let taken = said["eth0"].as_u64().with_context(|| format!("no number of interrupts in {said}"))?;
    ensure!(taken > 0, "the guest has taken no interrupt of its network device: {said}");
    Ok((taken, session.counters()?))
}
