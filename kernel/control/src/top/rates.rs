//! What happened in a second: the difference of two readings of the counters.

use crate::utilisation::busy_permille;
use crate::{Block, Counters, Engine, Guest, Port};

/// Most different reasons of exits that are kept apart. The hypervisor knows fewer.
const REASONS: usize = 96;

/// Two readings of the counters.
#[derive(Clone, Copy)]
pub(crate) struct Rates<'a> {
    before: Option<&'a Counters>,
    pub now: &'a Counters,
}

/// A reason of exits, per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reason<'a> {
    pub name: &'a str,
    /// Exits.
    pub exits: u64,
    /// TSC cycles in the host.
    pub cycles: u64,
}

/// A guest, per second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GuestRates<'a> {
    /// Its number in the configuration.
    pub number: usize,
    /// Exits.
    pub exits: u64,
    /// The reason of most of them. Empty if there is none.
    pub reason: &'a str,
    /// The host's part of its vCPUs' time, in thousandths.
    pub host: u64,
    /// Frames to it and from it.
    pub rx: u64,
    pub tx: u64,
    /// Frames that were dropped.
    pub drops: u64,
    /// Requests of its disks.
    pub disk: u64,
}

/// An engine, per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EngineRates {
    /// The busy part of its time, in thousandths.
    pub busy: u64,
    pub busy_turns: u64,
    pub idle_turns: u64,
    pub long_turns: u64,
}

impl<'a> Rates<'a> {
    pub const fn new(before: Option<&'a Counters>, now: &'a Counters) -> Self {
        Self { before, now }
    }

    /// TSC ticks between the readings.
    fn ticks(&self) -> u64 {
        self.before.map_or(0, |before| self.now.tsc.saturating_sub(before.tsc))
    }

    /// How often a second something happened. A count that has become smaller began again from 0.
    pub fn per_second(&self, before: Option<u64>, now: u64) -> u64 {
        let Some(before) = before else { return 0 };
        let difference = now.checked_sub(before).unwrap_or(now);
        let product = u128::from(difference).saturating_mul(u128::from(self.now.tsc_hz));
        let rate = product.checked_div(u128::from(self.ticks())).unwrap_or(0);
        u64::try_from(rate).unwrap_or(u64::MAX)
    }

    fn guest_before(&self, guest: &Guest) -> Option<&'a Guest> {
        self.before.and_then(|before| before.guest(&guest.name))
    }

    /// The reasons of a guest's exits.
    pub fn reasons(&self, guest: &'a Guest) -> heapless::Vec<Reason<'a>, REASONS> {
        let mut reasons = heapless::Vec::<Reason<'_>, REASONS>::new();
        let Some(before) = self.guest_before(guest) else { return reasons };
        for (vcpu, now) in guest.vcpus.iter().enumerate() {
            let before = before.vcpus.get(vcpu).map_or([].as_slice(), |vcpu| &vcpu.exits);
            for exit in &now.exits {
                // Reasons that did not occur are left out.
                let (count, cycles) = before
                    .iter()
                    .find(|before| before.reason == exit.reason)
                    .map_or((0, 0), |before| (before.count, before.cycles));
                let exits = self.per_second(Some(count), exit.count);
                let cycles = self.per_second(Some(cycles), exit.cycles);
                match reasons.iter_mut().find(|reason| reason.name == exit.reason) {
                    Some(reason) => {
                        reason.exits = reason.exits.saturating_add(exits);
                        reason.cycles = reason.cycles.saturating_add(cycles);
                    }
                    None => _ = reasons.push(Reason { name: &exit.reason, exits, cycles }),
                }
            }
        }
        reasons
    }

    /// Thousandths of the time of a guest's vCPUs.
    pub fn share(&self, cycles: u64, guest: &Guest) -> u64 {
        let all = self.now.tsc_hz.saturating_mul(guest.vcpus.len() as u64);
        cycles.saturating_mul(1000).checked_div(all).unwrap_or(0).min(1000)
    }

    pub fn guest(&self, number: usize, guest: &'a Guest) -> GuestRates<'a> {
        let mut rates = GuestRates { number, ..GuestRates::default() };
        let reasons = self.reasons(guest);
        let sum = |part: fn(&Reason<'_>) -> u64| reasons.iter().map(part).fold(0, u64::saturating_add);
        rates.exits = sum(|reason| reason.exits);
        rates.host = self.share(sum(|reason| reason.cycles), guest);
        let most = reasons.iter().filter(|reason| reason.exits > 0).max_by_key(|reason| reason.exits);
        rates.reason = most.map_or("", |reason| reason.name);
        for (number, port) in guest.ports.iter().enumerate() {
            let [rx, tx, drops] = self.port(guest, number, port);
            rates.rx = rates.rx.saturating_add(rx);
            rates.tx = rates.tx.saturating_add(tx);
            rates.drops = rates.drops.saturating_add(drops);
        }
        for (number, disk) in guest.blocks.iter().enumerate() {
            rates.disk = rates.disk.saturating_add(self.disk(guest, number, disk));
        }
        rates
    }

    /// Frames to the guest, frames from it, and frames that were dropped.
    pub fn port(&self, guest: &Guest, number: usize, now: &Port) -> [u64; 3] {
        let before = self.guest_before(guest).and_then(|guest| guest.ports.get(number));
        let drops = |port: &Port| port.drops.iter().map(|drop| drop.count).fold(0, u64::saturating_add);
        [
            self.per_second(before.map(|port| port.rx_packets), now.rx_packets),
            self.per_second(before.map(|port| port.tx_packets), now.tx_packets),
            self.per_second(before.map(drops), drops(now)),
        ]
    }

    /// Requests of a disk.
    pub fn disk(&self, guest: &Guest, number: usize, now: &Block) -> u64 {
        let before = self.guest_before(guest).and_then(|guest| guest.blocks.get(number));
        let requests = |disk: &Block| disk.count("reads").saturating_add(disk.count("writes"));
        self.per_second(before.map(requests), requests(now))
    }

    pub fn engine(&self, now: &Engine) -> EngineRates {
        let before = self.before.and_then(|before| before.engines.iter().find(|engine| engine.core == now.core));
        let rate = |part: fn(&Engine) -> u64| self.per_second(before.map(part), part(now));
        let busy = busy_permille(rate(|engine| engine.busy_cycles), rate(|engine| engine.idle_cycles));
        EngineRates {
            busy: busy.unwrap_or(0),
            busy_turns: rate(|engine| engine.busy_turns),
            idle_turns: rate(|engine| engine.idle_turns),
            long_turns: rate(|engine| engine.long_turns),
        }
    }
}
