//! Rates from two readings of the counters, by the clock of the machine that counted.

use control::{Count, Counters, Engine, ExitCount, Guest, VcpuCounters};

/// Most reasons of a guest's exits that are kept apart, and most counts of any other list. The hypervisor has about 60 reasons.
/// The list must be short, because it is searched for each exit.
pub const MAX_REASONS: usize = 200;

/// Two readings of the counters, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    /// The newest reading.
    pub now: &'a Counters,
    /// The reading before, if the two can be compared.
    before: Option<&'a Counters>,
    /// TSC cycles between the two. 0 without a reading before.
    cycles: u64,
}

impl<'a> Pair<'a> {
    /// Makes a pair. If the TSC did not move on or its frequency changed, these are not readings of one machine, and there are no rates.
    #[must_use]
    pub fn new(now: &'a Counters, before: Option<&'a Counters>) -> Self {
        let before = before.filter(|before| before.tsc < now.tsc && before.tsc_hz == now.tsc_hz && now.tsc_hz > 0);
        Self { now, before, cycles: before.map_or(0, |before| now.tsc.saturating_sub(before.tsc)) }
    }

    /// Seconds between the two readings. `None` if they cannot be compared.
    #[must_use]
    pub fn seconds(&self) -> Option<f64> {
        self.before.map(|_| self.cycles as f64 / self.now.tsc_hz as f64)
    }

    /// How much a counter grew in a second. `None` if there is no value to compare with, or if it went backwards.
    #[must_use]
    pub fn rate(&self, now: u64, before: Option<u64>) -> Option<f64> {
        Some(delta(now, before)? as f64 / self.seconds()?)
    }

    /// How much of the time a counter of cycles stands for, from 0 to 1 for one core. `None` as for [`rate`](Self::rate).
    #[must_use]
    pub fn share(&self, now: u64, before: Option<u64>) -> Option<f64> {
        let cycles = delta(now, before)?;
        (self.cycles > 0).then(|| cycles as f64 / self.cycles as f64)
    }

    /// The reading before of the same engine.
    #[must_use]
    pub fn engine(&self, engine: &Engine) -> Option<&'a Engine> {
        self.before?.engines.iter().find(|before| before.id == engine.id && before.core == engine.core)
    }

    /// The reading before of the same life of the same guest.
    #[must_use]
    pub fn guest(&self, guest: &Guest) -> Option<&'a Guest> {
        self.before?.guests.iter().find(|before| before.name == guest.name && before.starts == guest.starts)
    }
}

/// The name of a counter, and a function that reads it.
pub type Named<T> = (&'static str, fn(&T) -> u64);

/// Cycles of each of `count` things, from two rates. `None` if a rate is not known, or nothing was counted.
#[must_use]
pub fn each(cycles: Option<f64>, count: Option<f64>) -> Option<f64> {
    Some(cycles? / count.filter(|count| *count > 0.0)?)
}

/// How much a counter grew. `None` without a value before, or if it went backwards.
fn delta(now: u64, before: Option<u64>) -> Option<u64> {
    now.checked_sub(before?)
}

/// The count of that kind. Kinds that never happened are not in a list, so it is 0 without an entry.
#[must_use]
pub fn count(counts: &[Count], kind: &str) -> u64 {
    counts.iter().find(|count| count.kind == kind).map_or(0, |count| count.count)
}

/// The sum of all counts.
#[must_use]
pub fn total(counts: &[Count]) -> u64 {
    counts.iter().fold(0, |sum, count| sum.saturating_add(count.count))
}

/// Exits of a vCPU for all reasons, and their cycles.
#[must_use]
pub fn exits(vcpu: &VcpuCounters) -> (u64, u64) {
    vcpu.exits.iter().map(|exit| (exit.count, exit.cycles)).fold((0, 0), add)
}

/// Exits of all vCPUs of a guest for all reasons, and their cycles.
#[must_use]
pub fn guest_exits(guest: &Guest) -> (u64, u64) {
    guest.vcpus.iter().map(exits).fold((0, 0), add)
}

/// Exits of all vCPUs of a guest for each reason, in the order of their first appearance.
#[must_use]
pub fn by_reason(guest: &Guest) -> Vec<ExitCount> {
    let mut reasons: Vec<ExitCount> = Vec::new();
    for exit in guest.vcpus.iter().flat_map(|vcpu| &vcpu.exits) {
        let room = reasons.len() < MAX_REASONS;
        match reasons.iter_mut().find(|known| known.reason == exit.reason) {
            Some(known) => {
                (known.count, known.cycles) = add((known.count, known.cycles), (exit.count, exit.cycles));
            }
            None if room => reasons.push(exit.clone()),
            None => {}
        }
    }
    reasons
}

const fn add(a: (u64, u64), b: (u64, u64)) -> (u64, u64) {
    (a.0.saturating_add(b.0), a.1.saturating_add(b.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(tsc: u64, starts: u64) -> Counters {
        let text = format!(
            r#"{{"tsc":{tsc},"tsc_hz":1000,"hypervisor":{{"memory":0,"memory_without_guests":0}},
                "guests":[{{"name":"a","state":"running","starts":{starts},"memory":0,"kept":0,"vcpus":[],"refusals":[],"ports":[]}}],
                "engines":[{{"core":1,"busy_turns":0,"idle_turns":0,"busy_cycles":0,"idle_cycles":0,"long_turns":0}}]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn rates_are_by_the_machines_own_clock() {
        let (before, now) = (reading(1000, 1), reading(3000, 1));
        let pair = Pair::new(&now, Some(&before));
        assert_eq!(pair.seconds(), Some(2.0));
        assert_eq!(pair.rate(50, Some(10)), Some(20.0));
        assert_eq!(pair.share(600, Some(100)), Some(0.25));
        assert!(pair.guest(&now.guests[0]).is_some() && pair.engine(&now.engines[0]).is_some());
    }

    #[test]
    fn there_is_no_rate_where_two_values_cannot_be_compared() {
        let (before, now) = (reading(1000, 1), reading(3000, 2));
        let pair = Pair::new(&now, Some(&before));
        assert!(pair.guest(&now.guests[0]).is_none(), "it was started again in between");
        assert_eq!(pair.rate(9, Some(10)), None);
        assert_eq!(pair.rate(9, None), None);
        assert_eq!(pair.share(9, Some(10)), None);

        // The machine was started again, or it lies.
        for (before, now) in [(reading(3000, 1), reading(1000, 1)), (reading(3000, 1), reading(3000, 1))] {
            let pair = Pair::new(&now, Some(&before));
            assert_eq!((pair.seconds(), pair.rate(2, Some(1)), pair.share(2, Some(1))), (None, None, None));
        }
        let (before, mut now) = (reading(1000, 1), reading(3000, 1));
        now.tsc_hz = 0;
        assert_eq!(Pair::new(&now, Some(&before)).seconds(), None);
    }

    #[test]
    fn reasons_of_all_vcpus_are_added_up() {
        let exit = |reason: &'static str, count| ExitCount { reason: reason.into(), count, cycles: count };
        let mut guest = reading(1, 1).guests.remove(0);
        guest.vcpus = vec![
            VcpuCounters { core: 1, exits: vec![exit("hlt", 3), exit("cpuid", 1)] },
            VcpuCounters { core: 2, exits: vec![exit("hlt", u64::MAX)] },
        ];
        assert_eq!(by_reason(&guest), [exit("hlt", u64::MAX), exit("cpuid", 1)]);
        assert_eq!(guest_exits(&guest).0, u64::MAX);
    }
}
