//! Follows the requests of some queues: how many wait, how long one takes, and how long its driver takes to see that it is done.
//!
//! The first [`FOLLOWED`] queues of a period that complete something are followed. Memory is fixed, so others are not.
//! No time is read for it: a visit has the time at which it begins, and a turn the time at which it ends.
//!
//! Of each queue one visit's requests and one publication are followed at a time. What is taken or published meanwhile is
//! not measured. A back-end that completes its requests at once is thus followed completely, a slow one by samples.

use alloc::boxed::Box;

use crate::bits::SetBits;
use crate::device::Device;
use crate::devices::{Devices, table};
use crate::observe::{Measured, Observer, QueueValue};
use crate::schedule::{QUEUES, QueueId};

/// Most queues that are followed at a time.
pub const FOLLOWED: usize = 14;
const _: () = assert!(FOLLOWED < 32, "there is a bit for each");

/// Requests of a visit that are not completed yet.
#[derive(Clone, Copy, Default)]
struct Arrived {
    /// The position after the last of them.
    until: u16,
    requests: u32,
    at: u64,
}

/// Completions that the driver has not taken yet, as far as is known.
#[derive(Clone, Copy, Default)]
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
    /// Valid if the place is among [`Follower::arrived`].
    arrived: Arrived,
    /// Valid if the place is among [`Follower::told`].
    told: Told,
}

impl Place {
    fn new(queue: QueueId, generation: u32) -> Self {
        Self { queue, generation, looked: 0, left: 0, arrived: Arrived::default(), told: Told::default() }
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
    /// The place of each queue plus 1, by [`QueueId::index`]. 0: it has none.
    index: Box<[u8; QUEUES]>,
    places: heapless::Vec<Place, FOLLOWED>,
    /// Places whose queue has requests that are not completed, one bit each.
    arrived: u32,
    /// Places whose queue has completions that its driver has not taken, one bit each.
    told: u32,
    /// Places whose queue has published something in this turn, one bit each.
    published: u32,
}

impl Follower {
    /// It follows no queue yet.
    pub(crate) fn new() -> Self {
        Self { period: 0, index: table(|| 0), places: heapless::Vec::new(), arrived: 0, told: 0, published: 0 }
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
        self.index.fill(0);
        self.places.clear();
        (self.arrived, self.told, self.published) = (0, 0, 0);
    }

    /// The place of a queue. It gets one if there is one left.
    #[inline]
    fn place_of(&mut self, queue: QueueId, generation: u32) -> Option<usize> {
        match self.index.get(queue.index())?.checked_sub(1) {
            Some(place) => Some(place.into()),
            None => self.add(queue, generation),
        }
    }

    /// Gives a queue a place, if there is one left.
    #[cold]
    fn add(&mut self, queue: QueueId, generation: u32) -> Option<usize> {
        let place = self.places.len();
        self.places.push(Place::new(queue, generation)).ok()?;
        // There are fewer than 32.
        *self.index.get_mut(queue.index())? = (place as u8).saturating_add(1);
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
        let bit = 1 << number;
        if place.generation != device.generation() {
            *place = Place::new(queue, device.generation());
            self.arrived &= !bit;
            self.told &= !bit;
        }
        if place.left == 0 {
            (place.looked, place.left) = (begun.at, begun.waiting);
        }
        let (at, until) = (place.looked, of.place());
        place.left = place.left.saturating_sub(of.distance(begun.position, until));
        if self.arrived & bit == 0 {
            place.arrived = Arrived { until, requests, at };
            self.arrived |= bit;
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
    #[inline]
    pub(crate) fn published(&mut self, slot: usize, queues: u16, generation: u32) {
        for queue in SetBits(queues.into()) {
            if let Some(number) = self.place_of(QueueId::new(slot, queue as u16), generation) {
                self.published |= 1 << number;
            }
        }
    }

    /// Looks at the queues whose requests are followed, at the end of a turn.
    pub(crate) fn turn_ends(&mut self, devices: &Devices, now: u64, observer: &impl Observer) {
        let published = core::mem::take(&mut self.published);
        let (mut arrived, mut told) = (self.arrived, self.told);
        for number in SetBits(arrived | told | published) {
            let Some(place) = self.places.get_mut(number) else { continue };
            let bit = 1 << number;
            let device = devices.get(place.queue.slot());
            let Some((device, queue)) = device.and_then(|device| Some((device, device.in_use(place.queue.queue())?)))
            else {
                *place = Place::new(place.queue, place.generation);
                arrived &= !bit;
                told &= !bit;
                continue;
            };
            if place.generation != device.generation() {
                *place = Place::new(place.queue, device.generation());
                arrived &= !bit;
                told &= !bit;
            }
            let value = |what, since: u64, count| QueueValue {
                queue: place.queue,
                period: self.period,
                place: number,
                what,
                value: now.wrapping_sub(since),
                count,
                at: now,
            };
            let visible = queue.published();
            if arrived & bit != 0 && queue.has_passed(visible, place.arrived.until) {
                observer.queue(&value(Measured::Arrival, place.arrived.at, place.arrived.requests));
                arrived &= !bit;
            }
            if told & bit != 0 && queue.is_taken(device.memory(), place.told.until, place.told.word) {
                observer.queue(&value(Measured::Taken, place.told.at, 1));
                told &= !bit;
            }
            if published & !told & bit != 0 {
                let word = queue.driver_word(device.memory());
                // A driver whose word is past them has taken them in this turn, or will not say when it does.
                if !queue.is_past(word, visible) {
                    place.told = Told { until: visible, word, at: now };
                    told |= bit;
                }
            }
        }
        (self.arrived, self.told) = (arrived, told);
    }
}
