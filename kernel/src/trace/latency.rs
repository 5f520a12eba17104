//! How long exits, turns, visits and the control core's ticks take: histograms that each core keeps of its own work, and the control core reads.
//!
//! A guest's core has a histogram for each reason of an exit, an engine's core one for each of [`Time`], and three for each queue
//! that it follows, and the control core one for its ticks. They are recorded while the class `histograms` is on. Each time that it
//! is switched on, a new period begins at zero.

use ::control::Durations;
use ::trace::{
    histogram::{Histogram, Totals},
    queues::{QueueHistograms, What},
};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use engine::observe::{Measured, QueueValue};
use machine::reason::Reason;

/// The number of the period. Only the control core changes it.
static PERIOD: AtomicU64 = AtomicU64::new(0);

/// A bit of [`QueueValue::period`], so that it is not 0 before the first period of histograms.
pub const FOLLOWED: u64 = 1 << 63;

/// What takes time on an engine's core or on the control core.
#[derive(Clone, Copy)]
pub enum Time {
    /// A turn that moved requests.
    BusyTurn,
    /// A turn that moved none.
    IdleTurn,
    /// A visit to a queue.
    Visit,
    /// A tick of the control core.
    Tick,
}

impl Time {
    /// All of them, by number.
    pub const ALL: [Self; 4] = [Self::BusyTurn, Self::IdleTurn, Self::Visit, Self::Tick];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BusyTurn => "busy-turn",
            Self::IdleTurn => "idle-turn",
            Self::Visit => "visit",
            Self::Tick => "tick",
        }
    }
}

/// Histograms of a core: of a guest's if `is_guest`, otherwise of the control core or an engine's.
pub const fn histograms(is_guest: bool) -> u64 {
    if is_guest { Reason::ALL.len() as u64 } else { Time::ALL.len() as u64 }
}

/// Begins a period: everything is recorded anew.
pub fn begin() {
    PERIOD.store(PERIOD.load(Relaxed).wrapping_add(1).max(1), Relaxed);
}

/// The number of the period.
pub fn period() -> u64 {
    PERIOD.load(Relaxed)
}

/// Records a value of a queue, in its histograms.
pub fn record_queue(place: &QueueHistograms, value: &QueueValue) {
    let what = match value.what {
        Measured::Arrival => What::Arrival,
        Measured::Taken => What::Taken,
        Measured::Occupancy => What::Occupancy,
    };
    // A device has fewer than 2^16 queues, and an engine fewer slots.
    let queue = (value.queue.slot() as u16, value.queue.queue());
    place.record(value.period & !FOLLOWED, queue, what, value.value, value.count);
}

/// What the histograms of a queue have of this period.
pub fn of_queue(place: &QueueHistograms) -> [Option<Durations>; 3] {
    let times = |histogram| {
        let mut totals = Totals::default();
        totals.add(histogram, period());
        totals
    };
    let mut waiting = Totals::default();
    waiting.add(&place.occupancy, period());
    [
        Durations::of("arrival", &times(&place.arrival)),
        Durations::of("taken", &times(&place.taken)),
        Durations::of(::control::OCCUPANCY, &waiting),
    ]
}

/// Records how many ticks something took, in the histogram with this number.
#[inline]
pub fn record(histograms: &[Histogram], number: usize, ticks: u64) {
    if let Some(histogram) = histograms.get(number) {
        histogram.record(PERIOD.load(Relaxed), ticks);
    }
}

/// Adds up what the histograms with this number have recorded in this period.
pub fn totals<'h>(cores: impl Iterator<Item = &'h [Histogram]>, number: usize) -> Totals {
    let period = PERIOD.load(Relaxed);
    let mut totals: Totals = Totals::default();
    cores.filter_map(|histograms| histograms.get(number)).for_each(|histogram| totals.add(histogram, period));
    totals
}
