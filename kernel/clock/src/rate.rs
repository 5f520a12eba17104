//! The rate of a counter, measured against a clock whose rate is known: the ACPI PM timer or the PIT.
//!
//! Both are read at nearly the same moment, again and again, some milliseconds apart. From one such reading to the next, both
//! have gone on, whatever the core did meanwhile: an interruption between two readings does no harm. One in the middle of a
//! reading does: the two are then of different moments. So
//!
//! - a reading says how long it took, and the shortest of several is used ([`Reading::shortest`]);
//! - each time between two readings gives a rate of its own, and only those are used that agree with the median ([`rate`]).

/// Readings from which a rate is found.
pub const READINGS: usize = 8;
/// How far a rate may be from the median to agree with it, as a part of the median: a thousandth.
const AGREE: u64 = 1000;
/// Rates that must agree.
const LEAST: usize = 4;

/// A clock whose rate is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Its ticks in a second.
    pub hz: u64,
    /// The bits that it counts in, all ones. It counts up. Between two readings it passes this number once at most.
    pub mask: u32,
}

/// The ACPI PM timer (ACPI 4.8.3.3). It has 24 bits at least.
pub const PM_TIMER: Reference = Reference { hz: 3_579_545, mask: 0xff_ffff };
/// Channel 2 of the PIT, with its count inverted: it counts down.
pub const PIT: Reference = Reference { hz: 1_193_182, mask: 0xffff };

/// The two counters, and the clock, at nearly the same moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The TSC.
    pub tsc: u64,
    /// The other counter: ticks that the local APIC's timer has made.
    pub apic: u64,
    /// The clock, within its mask.
    pub clock: u32,
    /// TSC ticks that the reading took.
    pub took: u64,
}

impl Reading {
    /// The one that took the shortest time of `tries`.
    pub fn shortest(tries: usize, mut read: impl FnMut() -> Self) -> Self {
        let first = read();
        (1..tries).map(|_| read()).fold(first, |best, next| if next.took < best.took { next } else { best })
    }
}

/// A rate that was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Ticks in a second.
    pub hz: u64,
    /// How many of the times between two readings agree.
    pub agreed: usize,
    /// The smallest and the largest of all rates, also of those that do not agree.
    pub range: (u64, u64),
}

impl Rate {
    /// Whether so many agree that the rate is to be believed.
    #[must_use]
    pub const fn is_certain(&self) -> bool {
        self.agreed >= LEAST
    }
}

/// Returns the rate of a counter. `of` takes it from a reading. Readings are in their order. Returns `None` if the clock stands
/// still.
#[must_use]
pub fn rate(clock: Reference, readings: &[Reading; READINGS], of: impl Fn(&Reading) -> u64) -> Option<Rate> {
    // Ticks of the counter and of the clock between two readings.
    let mut spans = [(0_u64, 0_u64); READINGS - 1];
    for (span, pair) in spans.iter_mut().zip(readings.windows(2)) {
        let [before, after] = pair else { continue };
        *span = (of(after).wrapping_sub(of(before)), u64::from(after.clock.wrapping_sub(before.clock) & clock.mask));
    }
    let mut rates = spans.map(|(counted, ticks)| hz(clock, counted, ticks));
    rates.sort_unstable();
    let median = *rates.get(rates.len() / 2)?;
    let range = (*rates.first()?, *rates.last()?);
    let agrees = |rate: u64| rate.abs_diff(median) <= median / AGREE;
    let (mut all, mut agreed) = ((0_u64, 0_u64), 0_usize);
    for (counted, ticks) in spans.into_iter().filter(|&(counted, ticks)| agrees(hz(clock, counted, ticks))) {
        all = (all.0.saturating_add(counted), all.1.saturating_add(ticks));
        agreed = agreed.saturating_add(1);
    }
    let hz = hz(clock, all.0, all.1);
    (hz != 0).then_some(Rate { hz, agreed, range })
}

/// Ticks in a second of a counter that has counted so many in so many ticks of the clock; 0 if the clock stood still.
fn hz(clock: Reference, counted: u64, ticks: u64) -> u64 {
    let scaled = u128::from(counted).saturating_mul(clock.hz.into());
    scaled.checked_div(ticks.into()).unwrap_or(0).min(u64::MAX.into()) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TSC: u64 = 2_400_000_000;

    /// Readings of a machine at these moments, in nanoseconds. `late`: what the core loses in the middle of a reading.
    fn readings(moments: [u64; READINGS], late: [u64; READINGS], start: u32) -> [Reading; READINGS] {
        std::array::from_fn(|n| {
            let ticks = |at: u64, hz: u64| (u128::from(at) * u128::from(hz) / 1_000_000_000) as u64;
            let (clock, tsc) = (moments[n], moments[n] + late[n]);
            Reading {
                tsc: ticks(tsc, TSC),
                apic: ticks(tsc, 62_500_000),
                clock: (ticks(clock, PM_TIMER.hz) as u32).wrapping_add(start) & PM_TIMER.mask,
                took: 0,
            }
        })
    }

    fn every(milliseconds: u64) -> [u64; READINGS] {
        std::array::from_fn(|n| n as u64 * milliseconds * 1_000_000)
    }

    fn off(rate: u64, right: u64) -> f64 {
        rate.abs_diff(right) as f64 / right as f64
    }

    #[test]
    fn a_quiet_machine_is_measured_to_a_few_parts_in_a_hundred_thousand() {
        for start in [0, 0xff_ffff, 0xff_0000] {
            let readings = readings(every(8), [0; READINGS], start);
            let rate = rate(PM_TIMER, &readings, |reading| reading.tsc).unwrap();
            assert!(off(rate.hz, TSC) < 1e-4 && rate.is_certain() && rate.agreed == READINGS - 1, "{rate:?}");
            let apic = super::rate(PM_TIMER, &readings, |reading| reading.apic).unwrap();
            assert!(off(apic.hz, 62_500_000) < 1e-4, "{apic:?}");
        }
    }

    #[test]
    fn an_interruption_of_30_milliseconds_does_no_harm_wherever_it_is() {
        for n in 0..READINGS {
            // Between two readings: the later ones are later.
            let moments = std::array::from_fn(|i| every(8)[i] + if i > n { 30_000_000 } else { 0 });
            let found = rate(PM_TIMER, &readings(moments, [0; READINGS], 5), |reading| reading.tsc).unwrap();
            assert!(off(found.hz, TSC) < 1e-3 && found.is_certain(), "{found:?}");
            // In the middle of a reading.
            let late = std::array::from_fn(|i| if i == n { 30_000_000 } else { 0 });
            let moments = std::array::from_fn(|i| every(8)[i] + if i > n { 30_000_000 } else { 0 });
            let found = rate(PM_TIMER, &readings(moments, late, 5), |reading| reading.tsc).unwrap();
            assert!(off(found.hz, TSC) < 1e-3 && found.is_certain(), "{found:?}");
        }
    }

    #[test]
    fn rates_that_do_not_agree_are_not_certain() {
        let late = [0, 100_000, 50_000, 400_000, 0, 300_000, 900_000, 200_000];
        let found = rate(PM_TIMER, &readings(every(8), late, 0), |reading| reading.tsc).unwrap();
        assert!(!found.is_certain() && found.range.0 < found.hz && found.hz < found.range.1, "{found:?}");
    }

    #[test]
    fn a_clock_that_stands_still_has_no_rate() {
        let mut readings = readings(every(8), [0; READINGS], 0);
        readings.iter_mut().for_each(|reading| reading.clock = 7);
        assert_eq!(rate(PM_TIMER, &readings, |reading| reading.tsc), None);
        assert_eq!(rate(PM_TIMER, &[Reading::default(); READINGS], |reading| reading.tsc), None);
    }

    #[test]
    fn the_shortest_of_several_readings_is_taken() {
        let mut took = [900, 40, 39, 500].into_iter();
        let reading = Reading::shortest(4, || Reading { took: took.next().unwrap(), ..Reading::default() });
        assert_eq!((reading.took, took.next()), (39, None));
    }

    proptest! {
        /// Whatever happens in two readings that follow each other, the rate is right, and certain.
        #[test]
        fn two_bad_readings_do_no_harm(
            late in proptest::array::uniform2(0_u64..40_000_000),
            first in 0..READINGS - 1,
            start in any::<u32>(),
        ) {
            let all = std::array::from_fn(|n| if n == first { late[0] } else if n == first + 1 { late[1] } else { 0 });
            let found = rate(PM_TIMER, &readings(every(8), all, start), |reading| reading.tsc).unwrap();
            prop_assert!(off(found.hz, TSC) < 1.1e-3 && found.is_certain(), "{found:?}");
        }

        /// Any readings give a rate or none.
        #[test]
        fn any_readings_are_allowed(values in proptest::collection::vec(any::<(u64, u32)>(), READINGS)) {
            let readings = std::array::from_fn(|n| Reading { tsc: values[n].0, clock: values[n].1, ..Reading::default() });
            let found = rate(PM_TIMER, &readings, |reading| reading.tsc);
            prop_assert!(found.is_none_or(|found| found.hz != 0));
        }
    }
}
