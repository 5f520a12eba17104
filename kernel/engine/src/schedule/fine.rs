//! Fine-grained scheduling: one loop for many queues (ELVIS 3.1 and 3.2).
//!
//! ```text
//!   announced ──▶ work ──┐                        ┌── used up, or emptied ──▶ back of poll
//!                        ├─▶ visit, in portions ──┤
//!   entered ────▶ poll ──┘ (in turn)              └── another is stuck ─▶ front of poll; that one first
//! ```
//!
//! A queue that a driver has announced waits in `work`, all others that are to be visited in `poll`; the two are taken
//! from in turn. A visit goes on, in portions of a minimum of requests, until the queue is empty or has had its share of
//! time, requests or bytes; then it goes to the back. After each portion some of the waiting queues are glanced at. One
//! that holds a few requests is *stuck*, since somebody waits for a reply there, if it held no more than a few when it was
//! served last, or else, because it may be a stream's, if it has got no new one for a while. It is served at once, and the
//! visit that it interrupted goes on afterwards.
//!
//! Time is shared by deficit round robin in ticks of the clock, not in requests: in each round a guest may use a quantum
//! that its weight says, divided among its queues that hold work. What a portion takes beyond it is owed in the next
//! round. A queue that is served early, because it was announced or stuck, uses the same quantum, so neither helps it
//! to more than its share.

use super::{Glance, MANY, MAX_WEIGHT, Portion, QUEUES, QueueId, Schedule, Served, Share, Visit};
use crate::backend::MAX_PORTS;
use crate::ports::PortSet;

/// How long a visit may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests at most.
    pub requests: u32,
    /// Bytes at most; a visit ends after the request that reaches it.
    pub bytes: u64,
    /// Ticks of the clock that the guest of the greatest weight has in a round.
    pub quantum: u64,
    /// Requests before a visit is left early, up to [`MANY`]. A queue with as many waiting is no one that waits for a reply.
    pub least: u32,
    /// Ticks without new work after which a queue with a few requests is stuck, though it had many when it was served last.
    pub stuck: u64,
}

/// Bytes of a portion, at most: what 64 frames of 1,500 have. Of frames of 64 KiB two are a portion, and nobody who waits has
/// to wait for more of them.
const PORTION_BYTES: u64 = 96 << 10;
/// Queues glanced at after a portion: all of them are in turn, however many they are.
const GLANCES: usize = 8;
/// Quanta that a queue may owe. The least portion may be many quanta where requests are slow, as in an emulator, and a
/// pause of the whole machine must not be charged to whom it happened to hit.
const MOST_OWED: i64 = 64;

/// The end of a list.
const NONE: u16 = u16::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Not to be visited, or being visited.
    Out,
    Work,
    Poll,
}

#[derive(Clone, Copy)]
struct Entry {
    next: u16,
    previous: u16,
    place: Place,
    guest: u8,
    /// Its last visit found work.
    active: bool,
    /// Its last visit took all there was.
    emptied: bool,
    /// The last visit that found something took fewer than the least number of requests.
    few: bool,
    /// The round for which it has got its quantum.
    round: u32,
    /// Ticks it may still use; below zero, what it owes.
    deficit: i64,
    /// The driver's index when it was last seen to move, and when that was.
    index: u16,
    since: u64,
}

const UNKNOWN: Entry = Entry {
    next: NONE,
    previous: NONE,
    place: Place::Out,
    guest: 0,
    active: false,
    emptied: true,
    few: true,
    round: 0,
    deficit: 0,
    index: 0,
    since: 0,
};

#[derive(Clone, Copy)]
struct List {
    first: u16,
    last: u16,
    len: u16,
}

const EMPTY: List = List { first: NONE, last: NONE, len: 0 };

#[derive(Clone, Copy)]
struct Guest {
    weight: u16,
    /// Its queues that hold work, as far as is known.
    active: u16,
    /// The quantum of one of its queues, and what it follows from, which is never 0: its two divisions are done when that changes.
    quantum: i64,
    of: u64,
}

impl Guest {
    const UNKNOWN: Self = Self { weight: 1, active: 0, quantum: 0, of: 0 };
}

/// The visit that is under way.
#[derive(Clone, Copy)]
struct Current {
    id: u16,
    requests: u32,
    bytes: u64,
    portion: Portion,
}

/// All queues share the engine by time. `N` is how many there may be.
pub struct Fine<const N: usize = QUEUES> {
    limits: Limits,
    entries: [Entry; N],
    work: List,
    poll: List,
    guests: [Guest; MAX_PORTS],
    /// Guests that have queues that hold work, and how many such queues there are.
    busy: PortSet,
    active: u16,
    /// Requests were seen to wait in another queue than the one that is visited.
    somebody_waits: bool,
    round: u32,
    /// Queues of `poll` that are still to be taken in this round.
    round_left: u16,
    /// The greatest weight among guests with work, in this round.
    heaviest: u16,
    /// The queue in `poll` that is glanced at next.
    cursor: u16,
    /// Queues still to be taken in this turn; None between turns.
    turn_left: Option<u16>,
    /// A queue was passed over in this turn because it owes.
    passed_over: bool,
    /// The last visit was to a queue of `work`.
    worked: bool,
    /// A stuck queue, to be served next.
    urgent: bool,
    current: Option<Current>,
    productive: bool,
}

impl<const N: usize> Fine<N> {
    /// With no queue.
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        assert!(N < NONE as usize && limits.least <= MANY as u32);
        Self {
            limits,
            entries: [UNKNOWN; N],
            work: EMPTY,
            poll: EMPTY,
            guests: [Guest::UNKNOWN; MAX_PORTS],
            busy: PortSet::NONE,
            active: 0,
            somebody_waits: false,
            round: 1,
            round_left: 0,
            heaviest: 1,
            cursor: NONE,
            turn_left: None,
            passed_over: false,
            worked: false,
            urgent: false,
            current: None,
            productive: false,
        }
    }

    fn entry(&mut self, id: u16) -> Option<&mut Entry> {
        self.entries.get_mut(usize::from(id))
    }

    fn list(&mut self, place: Place) -> &mut List {
        if place == Place::Work { &mut self.work } else { &mut self.poll }
    }

    /// Puts an entry that is out at the end of a list, or at its beginning.
    fn put(&mut self, id: u16, place: Place, first: bool) {
        let list = *self.list(place);
        let (next, previous) = if first { (list.first, NONE) } else { (NONE, list.last) };
        let Some(entry) = self.entry(id) else { return };
        (entry.next, entry.previous, entry.place) = (next, previous, place);
        if let Some(after) = self.entry(next) {
            after.previous = id;
        }
        if let Some(before) = self.entry(previous) {
            before.next = id;
        }
        let list = self.list(place);
        list.len += 1;
        if next == NONE {
            list.last = id;
        }
        if previous == NONE {
            list.first = id;
        }
    }

    /// Takes an entry out of the list it is in.
    fn take(&mut self, id: u16) {
        let Some(entry) = self.entry(id) else { return };
        let Entry { next, previous, place, .. } = *entry;
        if place == Place::Out {
            return;
        }
        (entry.next, entry.previous, entry.place) = (NONE, NONE, Place::Out);
        if let Some(after) = self.entry(next) {
            after.previous = previous;
        }
        if let Some(before) = self.entry(previous) {
            before.next = next;
        }
        let list = self.list(place);
        list.len -= 1;
        if list.first == id {
            list.first = next;
        }
        if list.last == id {
            list.last = previous;
        }
        if self.cursor == id {
            self.cursor = next;
        }
    }

    fn set_active(&mut self, id: u16, active: bool) {
        let Some(entry) = self.entries.get_mut(usize::from(id)) else { return };
        if entry.active != active {
            entry.active = active;
            self.active = if active { self.active + 1 } else { self.active.saturating_sub(1) };
            if let Some(guest) = self.guests.get_mut(usize::from(entry.guest)) {
                guest.active = if active { guest.active + 1 } else { guest.active.saturating_sub(1) };
                match guest.active {
                    0 => self.busy.remove(entry.guest.into()),
                    _ => self.busy.insert(entry.guest.into()),
                }
            }
        }
    }

    /// The entry to be visited next, taken out of its list.
    fn pick(&mut self) -> Option<u16> {
        let from_work = self.work.first != NONE && (self.urgent || !self.worked || self.poll.first == NONE);
        self.urgent = false;
        self.worked = from_work;
        let id = if from_work { self.work.first } else { self.poll.first };
        if id == NONE {
            return None;
        }
        if !from_work {
            if self.round_left == 0 {
                self.begin_round();
            }
            self.round_left -= 1;
        }
        self.take(id);
        Some(id)
    }

    fn begin_round(&mut self) {
        self.round = self.round.wrapping_add(1);
        self.round_left = self.poll.len.max(1);
        let weights = self.busy.into_iter().filter_map(|guest| Some(self.guests.get(guest)?.weight));
        self.heaviest = weights.max().unwrap_or(1);
    }

    /// The ticks of one queue in a round.
    fn quantum(&mut self, id: u16) -> i64 {
        let Some(entry) = self.entries.get(usize::from(id)) else { return 1 };
        let Some(guest) = self.guests.get_mut(usize::from(entry.guest)) else { return 1 };
        let [weight, heaviest, active] = [guest.weight, self.heaviest, guest.active.max(1)].map(u64::from);
        let of = weight | heaviest << 16 | active << 32;
        if guest.of != of {
            let quantum = self.limits.quantum * weight.min(heaviest) / heaviest / active;
            guest.of = of;
            guest.quantum = i64::try_from(quantum).unwrap_or(i64::MAX).max(1);
        }
        guest.quantum
    }

    /// Gives an entry its quantum if it has not had it in this round. Whether it may be visited.
    fn grant(&mut self, id: u16) -> bool {
        let round = self.round;
        let Some(entry) = self.entries.get(usize::from(id)) else { return false };
        if entry.round == round {
            return entry.deficit > 0;
        }
        let quantum = self.quantum(id);
        let Some(entry) = self.entries.get_mut(usize::from(id)) else { return false };
        entry.round = round;
        // What a visit left over because it came to a limit is good for one more round. An empty queue saves nothing up.
        let left = if entry.emptied { entry.deficit.min(0) } else { entry.deficit };
        entry.deficit = left.saturating_add(quantum).min(2 * quantum);
        entry.deficit > 0
    }

    /// When nobody who may be visited has work: goes on by the rounds that the least debt is worth, less the last one, which
    /// [`Fine::grant`] gives. Round by round it would come to the same, but for visits to queues that are empty, many of
    /// them where a request takes many quanta.
    fn skip_rounds(&mut self) {
        let mut rounds = i64::MAX;
        let mut id = self.poll.first;
        while let Some(&Entry { deficit, next, .. }) = self.entries.get(usize::from(id)) {
            if deficit <= 0 {
                rounds = rounds.min(deficit.saturating_neg() / self.quantum(id));
            }
            id = next;
        }
        let mut id = self.poll.first;
        while let Some(&Entry { next, .. }) = self.entries.get(usize::from(id)) {
            let quantum = self.quantum(id);
            if let Some(entry) = self.entry(id)
                && entry.deficit <= 0
            {
                // No debt is paid to the full: this is the least of them, and of the others a part.
                entry.deficit += rounds.saturating_mul(quantum);
            }
            id = next;
        }
    }

    /// The next portion of a visit of which so much is left: the least number of requests, or four times as many while nobody
    /// else is known to have work.
    fn portion(&self, id: u16, left: Portion) -> Portion {
        let others = self.active - u16::from(self.entries.get(usize::from(id)).is_some_and(|entry| entry.active));
        let alone = others == 0 && !self.somebody_waits;
        let requests = if alone { self.limits.least.saturating_mul(4) } else { self.limits.least };
        Portion { requests: requests.min(left.requests), bytes: PORTION_BYTES.min(left.bytes) }
    }

    /// Glances at some waiting queues. One that is stuck is put first in `work`.
    fn find_stuck(&mut self, now: u64, mut glance: impl FnMut(QueueId) -> Option<Glance>) -> bool {
        self.somebody_waits = false;
        for _ in 0..GLANCES.min(usize::from(self.poll.len)) {
            if self.cursor == NONE {
                self.cursor = self.poll.first;
            }
            let id = self.cursor;
            let (round, limits) = (self.round, self.limits);
            let Some(entry) = self.entry(id) else { return false };
            let has_time = entry.round != round || entry.deficit > 0;
            let next = entry.next;
            let mut waits = false;
            let stuck = glance(QueueId(id)).is_some_and(|seen| {
                waits = seen.waiting != 0;
                if seen.index != entry.index {
                    (entry.index, entry.since) = (seen.index, now);
                }
                let few = seen.waiting != 0 && u32::from(seen.waiting) < limits.least;
                few && has_time && (entry.few || now.wrapping_sub(entry.since) >= limits.stuck)
            });
            self.cursor = next;
            self.somebody_waits |= waits;
            if stuck {
                self.take(id);
                self.put(id, Place::Work, true);
                self.urgent = true;
                return true;
            }
        }
        false
    }
}

impl<const N: usize> Schedule for Fine<N> {
    fn enter(&mut self, queue: QueueId, share: Share, announced: bool) {
        let id = queue.0;
        let Some(entry) = self.entry(id) else { return };
        if entry.place != Place::Out {
            return;
        }
        entry.guest = share.guest.min(MAX_PORTS - 1) as u8;
        let guest = usize::from(entry.guest);
        if let Some(guest) = self.guests.get_mut(guest) {
            guest.weight = share.weight.clamp(1, MAX_WEIGHT);
        }
        self.put(id, if announced { Place::Work } else { Place::Poll }, false);
    }

    fn leave(&mut self, queue: QueueId) {
        self.set_active(queue.0, false);
        self.take(queue.0);
    }

    fn next(&mut self, mut is_idle: impl FnMut(QueueId) -> bool) -> Option<Visit> {
        // A turn ends after a visit that found something, so that what it completed is published at once.
        if core::mem::take(&mut self.productive) {
            self.turn_left = None;
            return None;
        }
        let mut left = self.turn_left.unwrap_or(self.work.len + self.poll.len);
        loop {
            if left == 0 {
                if !core::mem::take(&mut self.passed_over) {
                    self.turn_left = None;
                    return None;
                }
                // Those who owe get nearer to their turn with each round.
                self.skip_rounds();
                left = self.work.len + self.poll.len;
            }
            left = left.saturating_sub(1);
            let Some(id) = self.pick() else { continue };
            // Who owes has to be granted something in each round all the same.
            if self.entry(id).is_some_and(|entry| entry.deficit > 0) && is_idle(QueueId(id)) {
                self.set_active(id, false);
                if let Some(entry) = self.entry(id) {
                    entry.emptied = true;
                }
                self.put(id, Place::Poll, false);
                continue;
            }
            if !self.grant(id) {
                self.passed_over = true;
                self.put(id, Place::Poll, false);
                continue;
            }
            self.turn_left = Some(left);
            let portion = self.portion(id, Portion { requests: self.limits.requests, bytes: self.limits.bytes });
            self.current = Some(Current { id, requests: 0, bytes: 0, portion });
            return Some(Visit { queue: QueueId(id), portion });
        }
    }

    fn one_visit_a_turn(&self) -> bool {
        true
    }

    fn go_on(
        &mut self,
        served: Served,
        spent: u64,
        now: u64,
        glance: impl FnMut(QueueId) -> Option<Glance>,
    ) -> Option<Portion> {
        let Current { id, requests, bytes, portion } = self.current.take()?;
        let (requests, bytes) = (requests + served.requests, bytes + served.bytes);
        let limits = self.limits;
        self.set_active(id, requests != 0);
        let emptied = served.emptied(&portion);
        let entry = self.entry(id)?;
        entry.emptied = emptied;
        if served.requests != 0 {
            entry.deficit = entry.deficit.saturating_sub_unsigned(spent);
            entry.few = requests < limits.least;
        }
        let deficit = entry.deficit;
        if deficit < 0 {
            let most_owed = self.quantum(id).saturating_mul(MOST_OWED);
            self.entry(id)?.deficit = deficit.max(-most_owed);
        }
        let used_up = deficit <= 0 || requests >= limits.requests || bytes >= limits.bytes;
        self.productive |= requests != 0;
        if emptied || used_up {
            self.put(id, Place::Poll, false);
            return None;
        }
        if self.find_stuck(now, glance) {
            self.put(id, Place::Poll, true);
            // It is taken once more in this round.
            self.round_left += 1;
            return None;
        }
        let left = Portion { requests: limits.requests - requests, bytes: limits.bytes - bytes };
        let portion = self.portion(id, left);
        self.current = Some(Current { id, requests, bytes, portion });
        Some(portion)
    }
}

#[cfg(test)]
mod tests;
