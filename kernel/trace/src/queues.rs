//! The histograms of a queue: how long its requests take, how long its driver takes, and how many wait.
//!
//! An engine's core has a fixed number of them. Which queue has which is written with the values, anew in each period.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::histogram::{Histogram, buckets};

/// Times of a queue: in quarters of a power of two, below 2^36 ticks.
pub type Times = Histogram<2, { buckets(2, 36) }>;
/// Requests that wait: in quarters of a power of two, below 2^15.
pub type Waiting = Histogram<2, { buckets(2, 15) }>;

/// The histograms of one queue. One core writes them, any core reads them. All zero is a good first state.
#[derive(Debug, Default)]
pub struct QueueHistograms {
    queue: AtomicU64,
    /// Ticks from a request's arrival to its completion.
    pub arrival: Times,
    /// Ticks from the publication of completions to when the driver was seen to have taken them.
    pub taken: Times,
    /// Requests that wait when a visit begins that takes some.
    pub occupancy: Waiting,
}

/// What is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// For [`QueueHistograms::arrival`].
    Arrival,
    /// For [`QueueHistograms::taken`].
    Taken,
    /// For [`QueueHistograms::occupancy`].
    Occupancy,
}

impl QueueHistograms {
    /// Counts a value `times` times in a period, which is not 0, for this queue of the device in this slot. In another period
    /// they may belong to another queue. Only one core may call it.
    #[inline]
    pub fn record(&self, period: u64, (slot, queue): (u16, u16), what: What, value: u64, times: u32) {
        let number = u64::from(slot) << 16 | u64::from(queue);
        // A histogram is of its period only after this: see `Histogram::record`.
        if self.queue.load(Relaxed) != number {
            self.queue.store(number, Relaxed);
        }
        match what {
            What::Arrival => self.arrival.record_many(period, value, times),
            What::Taken => self.taken.record_many(period, value, times),
            What::Occupancy => self.occupancy.record_many(period, value, times),
        }
    }

    /// The slot and the number of the queue that it belongs to. Read it after a histogram that has something of the present
    /// period.
    #[must_use]
    pub fn queue(&self) -> (u16, u16) {
        let number = self.queue.load(Relaxed);
        ((number >> 16) as u16, number as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::Totals;

    #[test]
    fn a_place_belongs_to_the_queue_of_its_period() {
        let place = QueueHistograms::default();
        place.record(1, (3, 1), What::Arrival, 900, 4);
        place.record(1, (3, 1), What::Occupancy, 4, 1);
        let (mut arrival, mut waiting) = (Totals::default(), Totals::default());
        arrival.add(&place.arrival, 1);
        waiting.add(&place.occupancy, 1);
        assert_eq!((place.queue(), arrival.count(), waiting.most()), ((3, 1), 4, 4));
        place.record(2, (9, 0), What::Taken, 5, 1);
        let mut later = Totals::default();
        later.add(&place.arrival, 2);
        assert_eq!((place.queue(), later.count()), ((9, 0), 0), "what the other queue had is no more");
    }

    #[test]
    fn fourteen_queues_are_less_than_40_kib() {
        assert!(14 * size_of::<QueueHistograms>() < 40 << 10, "{}", size_of::<QueueHistograms>());
    }
}
