//! Follows the requests of some queues: how many wait, how long one takes, and how long its driver takes to see that it is done.
//!
//! The first [`FOLLOWED`] queues of a period that complete something are followed. Memory is fixed, so others are not.
//! No time is read for it: a visit has the time at which it begins, and a turn the time at which it ends.
//!
//! Of each queue one visit's requests and one publication are followed at a time. What is taken or published meanwhile is
//! not measured. A back-end that completes its requests at once is thus followed completely, a slow one by samples.

use alloc::boxed::Box;

use virtio::config::MAX_QUEUES;

use crate::bits::SetBits;
use crate::device::Device;
use crate::devices::{Devices, table};
use crate::observe::{Measured, Observer, QueueValue};
use crate::schedule::QueueId;
use crate::slots::MAX_SLOTS;

/// Most queues that are followed at a time.
pub const FOLLOWED: usize = 14;
const _: () = assert!(FOLLOWED < 32, "there is a bit for each");

/// Requests of a visit that are not completed yet.
#[derive(Clone, Copy)]
struct Arrived {
    /// The position after the last of them.
    until: u16,
    requests: u32,
    at: u64,
}

/// Completions that the driver has not taken yet, as far as is known.
#[derive(Clone, Copy)]
struct Told {
    /// The position after the last of them.
    until: u16,
    /// What the driver said of interrupts then.
    word: u32,
    at: u64,
}

/// A queue that is followed.
#[derive(Clone, Copy)]
struct Place {
    queue: QueueId,
    /// That of its device. In another one all positions have begun anew.
    generation: u32,
    /// When requests were last looked for, and how many of those that were seen then are not taken yet.
    looked: u64,
    left: u16,
    arrived: Option<Arrived>,
    told: Option<Told>,
}

impl Place {
    const fn new(queue: QueueId, generation: u32) -> Self {
        Self { queue, generation, looked: 0, left: 0, arrived: None, told: None }
    }

    /// Forgets what was followed if the device was activated anew.
    fn renew(&mut self, generation: u32) {
        if self.generation != generation {
            *self = Self::new(self.queue, generation);
        }
    }
}

/// A visit that has begun.
#[derive(Clone, Copy)]
pub(crate) struct Begun {
    /// Requests that waited.
    waiting: u16,
    /// The position of the first of them.
    position: u16,
    at: u64,
}

/// The queues that are followed.
pub(crate) struct Follower {
    /// As [`Observer::period`].
    period: u64,
    /// The place of each queue plus 1. 0: it has none.
    index: Box<[[u8; MAX_QUEUES]; MAX_SLOTS]>,
    places: heapless::Vec<Place, FOLLOWED>,
    /// Places whose queue has something that is not finished, one bit each.
    waiting: u32,
    /// Places whose queue has published something in this turn, one bit each.
    published: u32,
}

impl Follower {
    /// It follows no queue yet.
    pub(crate) fn new() -> Self {
        Self { period: 0, index: table(|| [0; MAX_QUEUES]), places: heapless::Vec::new(), waiting: 0, published: 0 }
    }

    /// Begins a period if the observer has begun one. Returns whether queues are followed.
    #[inline]
    pub(crate) fn begin(&mut self, observer: &impl Observer) -> bool {
        let period = observer.period();
        if period != 0 && period != self.period {
            self.forget(period);
        }
        period != 0
    }

    #[cold]
    fn forget(&mut self, period: u64) {
        self.period = period;
        self.index.fill([0; MAX_QUEUES]);
        self.places.clear();
        (self.waiting, self.published) = (0, 0);
    }

    /// The place of a queue. It gets one if there is one left.
    fn place_of(&mut self, queue: QueueId, generation: u32) -> Option<usize> {
        let index = self.index.get_mut(queue.slot())?.get_mut(usize::from(queue.queue()))?;
        if let Some(place) = index.checked_sub(1) {
            return Some(place.into());
        }
        let place = self.places.len();
        self.places.push(Place::new(queue, generation)).ok()?;
        // There are fewer than 32.
        *index = (place as u8).saturating_add(1);
        Some(place)
    }

    /// Notes that a visit begins at `at`. `None`: the queue is not in use.
    #[inline]
    pub(crate) fn visit_begins(&self, device: &Device, queue: u16, at: u64) -> Option<Begun> {
        let of = device.in_use(queue)?;
        Some(Begun { waiting: of.backlog().waiting, position: of.place(), at })
    }

    /// Notes that the visit has taken so many requests, 1 or more.
    pub(crate) fn visited(
        &mut self,
        device: &Device,
        queue: QueueId,
        begun: Begun,
        requests: u32,
        observer: &impl Observer,
    ) {
        let Some(number) = self.place_of(queue, device.generation()) else { return };
        let (Some(place), Some(of)) = (self.places.get_mut(number), device.in_use(queue.queue())) else { return };
        place.renew(device.generation());
        if place.left == 0 {
            (place.looked, place.left) = (begun.at, begun.waiting);
        }
        let (at, until) = (place.looked, of.place());
        place.left = place.left.saturating_sub(of.distance(begun.position, until));
        if place.arrived.is_none() {
            place.arrived = Some(Arrived { until, requests, at });
            self.waiting |= 1 << number;
        }
        let value = QueueValue {
            queue,
            period: self.period,
            place: number,
            what: Measured::Occupancy,
            value: begun.waiting.into(),
            count: 1,
            at: begun.at,
        };
        observer.queue(&value);
    }

    /// Notes that queues of a slot, one bit each, have published completions in this turn.
    pub(crate) fn published(&mut self, slot: usize, queues: u16, generation: u32) {
        for queue in SetBits(queues.into()) {
            if let Some(number) = self.place_of(QueueId::new(slot, queue as u16), generation) {
                self.published |= 1 << number;
            }
        }
    }

    /// Looks at the queues whose requests are followed, at the end of a turn.
    pub(crate) fn turn_ends(&mut self, devices: &Devices, now: u64, observer: &impl Observer) {
        let (published, period) = (core::mem::take(&mut self.published), self.period);
        for number in SetBits(self.waiting | published) {
            let Some(place) = self.places.get_mut(number) else { continue };
            let bit = 1 << number;
            let of = |place: &Place| {
                let device = devices.get(place.queue.slot())?;
                Some((device, device.in_use(place.queue.queue())?))
            };
            let Some((device, queue)) = of(place) else {
                *place = Place::new(place.queue, place.generation);
                self.waiting &= !bit;
                continue;
            };
            place.renew(device.generation());
            let value = |what, since: u64, count| QueueValue {
                queue: place.queue,
                period,
                place: number,
                what,
                value: now.wrapping_sub(since),
                count,
                at: now,
            };
            let visible = queue.published();
            if let Some(Arrived { until, requests, at }) = place.arrived
                && queue.has_passed(visible, until)
            {
                observer.queue(&value(Measured::Arrival, at, requests));
                place.arrived = None;
            }
            if let Some(Told { until, word, at }) = place.told
                && queue.is_taken(device.memory(), until, word)
            {
                observer.queue(&value(Measured::Taken, at, 1));
                place.told = None;
            }
            if place.told.is_none() && published & bit != 0 {
                let word = queue.driver_word(device.memory());
                // A driver whose word is past them has taken them in this turn, or will not say when it does.
                place.told = (!queue.is_past(word, visible)).then_some(Told { until: visible, word, at: now });
            }
            if place.arrived.is_none() && place.told.is_none() {
                self.waiting &= !bit;
            } else {
                self.waiting |= bit;
            }
        }
    }
}
