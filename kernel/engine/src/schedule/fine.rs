//! Fine-grained scheduling: one loop for many queues (ELVIS 3.1 and 3.2).
//!
//! ```text
//!   announced ──▶ work ──┐                        ┌── used up, or emptied ──▶ back of poll
//!                        ├─▶ visit, in portions ──┤
//!   entered ────▶ poll ──┘ (in turn)              └── a client waits elsewhere ─▶ front of poll; that one first
//! ```
//!
//! A queue whose driver has notified is in the list `work`. All other visited queues are in the list `poll`. The
//! schedule alternates between the two. A visit goes on, in portions, until the queue is empty or has used its limit of
//! time, requests or bytes. Then the queue goes to the back of `poll`.
//!
//! After each portion the schedule reads the backlog of some waiting queues. A queue with a short backlog probably has
//! a client that waits for a reply. The schedule serves it next if its last visit was short too. If its last visit was
//! long, it may be a stream that is still filling its queue. Then the schedule serves it once it has got no new request
//! for a while. Afterwards the interrupted visit goes on.
//!
//! Time is shared by deficit round robin, in ticks of the clock and not in requests. In each round a guest gets a
//! quantum according to its weight. The quantum is divided among the guest's queues that hold work. If a portion takes
//! longer than the rest of the quantum, the excess is a debt for the next round. A queue that is served early, because
//! it was announced or has a waiting client, uses the same quantum. So it gets no more than its share.

use virtio::queue::{Backlog, INEXACT_BACKLOG};

use super::visit::{GuestWeight, MAX_WEIGHT, Portion, QUEUES, QueueId, Schedule, Served, Visit};
use crate::slots::{MAX_SLOTS, SlotSet};

/// The limits of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most requests.
    pub requests: u32,
    /// Most bytes. A visit ends after the request that reaches it.
    pub bytes: u64,
    /// The quantum in ticks: what the guest with the largest weight gets in a round.
    pub quantum: u64,
    /// Most requests of a portion. At most [`INEXACT_BACKLOG`]. While no other queue holds work, a portion has four
    /// times as many. A visit may be interrupted after a portion. A queue with fewer waiting requests than this is
    /// short. A longer queue is a stream, not a request-response client.
    pub least: u32,
    /// Ticks without a new request, after which a short queue is served early even if its last visit was long.
    pub stall: u64,
}

/// Most bytes of a portion: 64 frames of 1,500 bytes. A portion ends after the frame that reaches them. So a client
/// waits for at most two frames of 64 KiB.
const PORTION_BYTES: u64 = 96 << 10;
/// Queues whose backlog is read after a portion. The cursor moves on, so every queue has its turn.
const BACKLOGS_READ: usize = 8;
/// Most quanta that a queue may owe. The limit is high because one portion may take many quanta where requests are
/// slow, as in an emulator. There is a limit because a pause of the whole machine must not be charged to the queue that
/// it hits.
const MOST_OWED: i64 = 64;

/// The end of a list.
const NONE: u16 = u16::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Not in a list: it is not visited, or is being visited now.
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
    /// The last visit that found something took fewer requests than a portion.
    short: bool,
    /// The last round in which it got its quantum.
    round: u32,
    /// Ticks that it may still use. Negative: its debt.
    deficit: i64,
    /// The driver's index when it was last read.
    index: u16,
    /// When a change of `index` was last seen.
    since: u64,
}

const UNKNOWN: Entry = Entry {
    next: NONE,
    previous: NONE,
    place: Place::Out,
    guest: 0,
    active: false,
    emptied: true,
    short: true,
    round: 0,
    deficit: 0,
    index: 0,
    since: 0,
};

#[derive(Clone, Copy)]
struct List {
    first: u16,
    last: u16,
    /// Its queues. A queue is in one list at most, so neither this nor the sum of both lists wraps.
    len: u16,
}

const EMPTY: List = List { first: NONE, last: NONE, len: 0 };

#[derive(Clone, Copy)]
struct Guest {
    weight: u16,
    /// Its queues that hold work, as far as known.
    active: u16,
    /// The quantum of each of its queues, in ticks. Computing it takes two divisions, so it is kept until `weight`, `active` or
    /// [`Fine::heaviest`] changes. 0: not computed yet.
    quantum: i64,
}

impl Guest {
    const UNKNOWN: Self = Self { weight: 1, active: 0, quantum: 0 };
}

/// The current visit.
#[derive(Clone, Copy)]
struct Current {
    id: u16,
    requests: u32,
    bytes: u64,
    portion: Portion,
}

/// Shares the engine's time among all queues. `N` is the number of queues that it has room for.
pub struct Fine<const N: usize = QUEUES> {
    limits: Limits,
    entries: [Entry; N],
    work: List,
    poll: List,
    guests: [Guest; MAX_SLOTS],
    /// Guests whose queues hold work.
    busy: SlotSet,
    /// Number of queues that hold work: those whose entry is active. So it does not wrap.
    active: u16,
    /// A queue other than the visited one holds requests.
    somebody_waits: bool,
    round: u32,
    /// Queues of `poll` still to visit in this round.
    round_left: u16,
    /// The largest weight of a guest with work, in this round.
    heaviest: u16,
    /// A guest's weight, or whether a guest has work, may have changed since `heaviest` was computed.
    reweighed: bool,
    /// The queue in `poll` whose backlog is read next.
    cursor: u16,
    /// Queues still to visit in this turn. `None` between turns.
    turn_left: Option<u16>,
    /// A queue was skipped in this turn because it has a debt.
    passed_over: bool,
    /// The last visit was to a queue of `work`.
    worked: bool,
    /// The first queue of `work` has a waiting client and is served next.
    urgent: bool,
    current: Option<Current>,
    /// The last visit found a request, so the turn ends.
    productive: bool,
}

impl<const N: usize> Fine<N> {
    /// A schedule without queues.
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        assert!(N < NONE as usize && limits.least <= INEXACT_BACKLOG as u32);
        Self {
            limits,
            entries: [UNKNOWN; N],
            work: EMPTY,
            poll: EMPTY,
            guests: [Guest::UNKNOWN; MAX_SLOTS],
            busy: SlotSet::NONE,
            active: 0,
            somebody_waits: false,
            round: 1,
            round_left: 0,
            heaviest: 1,
            reweighed: false,
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

    /// Inserts an entry at the end of a list, or at its start if `first`. It must be in no list.
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
        list.len = list.len.wrapping_add(1);
        if next == NONE {
            list.last = id;
        }
        if previous == NONE {
            list.first = id;
        }
    }

    /// Removes an entry from its list.
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
        list.len = list.len.wrapping_sub(1);
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

    /// Moves the first entry of a list, which was not visited, to the end of `poll`. There must be one.
    fn put_back(&mut self, place: Place) {
        if place == Place::Work {
            let id = self.work.first;
            self.take(id);
            self.put(id, Place::Poll, false);
            return;
        }
        let List { first: id, last, .. } = self.poll;
        if id == last {
            return;
        }
        let Some(entry) = self.entry(id) else { return };
        let next = entry.next;
        (entry.next, entry.previous) = (NONE, last);
        if let Some(after) = self.entry(next) {
            after.previous = NONE;
        }
        if let Some(before) = self.entry(last) {
            before.next = id;
        }
        (self.poll.first, self.poll.last) = (next, id);
        if self.cursor == id {
            self.cursor = next;
        }
    }

    fn set_active(&mut self, id: u16, active: bool) {
        let Some(entry) = self.entries.get_mut(usize::from(id)) else { return };
        if entry.active != active {
            entry.active = active;
            self.active = if active { self.active.wrapping_add(1) } else { self.active.saturating_sub(1) };
            if let Some(guest) = self.guests.get_mut(usize::from(entry.guest)) {
                guest.active = if active { guest.active.wrapping_add(1) } else { guest.active.saturating_sub(1) };
                match guest.active {
                    0 => self.busy.remove(entry.guest.into()),
                    _ => self.busy.insert(entry.guest.into()),
                }
                guest.quantum = 0;
                self.reweighed = true;
            }
        }
    }

    /// Returns the entry to visit next, which is the first of its list, and that list.
    fn pick(&mut self) -> Option<(u16, Place)> {
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
            // A round has at least one.
            self.round_left = self.round_left.wrapping_sub(1);
        }
        Some((id, if from_work { Place::Work } else { Place::Poll }))
    }

    fn begin_round(&mut self) {
        self.round = self.round.wrapping_add(1);
        self.round_left = self.poll.len.max(1);
        if core::mem::take(&mut self.reweighed) {
            self.weigh();
        }
    }

    /// Finds the largest weight of a guest with work.
    #[cold]
    fn weigh(&mut self) {
        let weights = self.busy.into_iter().filter_map(|guest| Some(self.guests.get(guest)?.weight));
        let heaviest = weights.max().unwrap_or(1);
        if self.heaviest != heaviest {
            self.heaviest = heaviest;
            self.guests.iter_mut().for_each(|guest| guest.quantum = 0);
        }
    }

    /// Returns a queue's quantum in a round, in ticks.
    fn quantum(&mut self, id: u16) -> i64 {
        let Some(entry) = self.entries.get(usize::from(id)) else { return 1 };
        let Some(guest) = self.guests.get_mut(usize::from(entry.guest)) else { return 1 };
        if guest.quantum == 0 {
            let [weight, heaviest, active] = [guest.weight, self.heaviest, guest.active.max(1)].map(u64::from);
            let all = self.limits.quantum.saturating_mul(weight.min(heaviest));
            let quantum = all.checked_div(heaviest.saturating_mul(active)).unwrap_or(1);
            guest.quantum = i64::try_from(quantum).unwrap_or(i64::MAX).max(1);
        }
        guest.quantum
    }

    /// Gives an entry its quantum, once a round. Returns whether it may be visited.
    fn grant(&mut self, id: u16) -> bool {
        let round = self.round;
        let Some(entry) = self.entries.get(usize::from(id)) else { return false };
        if entry.round == round {
            return entry.deficit > 0;
        }
        let quantum = self.quantum(id);
        let Some(entry) = self.entries.get_mut(usize::from(id)) else { return false };
        entry.round = round;
        // If the last visit ended at a limit, the unused rest of the quantum is kept for one more round. An empty queue
        // keeps nothing.
        let left = if entry.emptied { entry.deficit.min(0) } else { entry.deficit };
        entry.deficit = left.saturating_add(quantum).min(quantum.saturating_mul(2));
        entry.deficit > 0
    }

    /// Limits what an entry owes, which has used more than it had.
    #[cold]
    fn limit_debt(&mut self, id: u16) {
        let most_owed = self.quantum(id).saturating_mul(MOST_OWED);
        if let Some(entry) = self.entry(id) {
            entry.deficit = entry.deficit.max(most_owed.saturating_neg());
        }
    }

    /// Skips rounds if only queues with a debt hold work. Skips as many rounds as the smallest debt needs, except
    /// the last one, which [`Fine::grant`] adds. The result is the same as without skipping. Without it, where one
    /// request takes many quanta, there would be many visits to empty queues.
    fn skip_rounds(&mut self) {
        let mut rounds = i64::MAX;
        let mut id = self.poll.first;
        while let Some(&Entry { deficit, next, .. }) = self.entries.get(usize::from(id)) {
            if deficit <= 0 {
                let needed = deficit.saturating_neg().checked_div(self.quantum(id));
                rounds = rounds.min(needed.unwrap_or(0));
            }
            id = next;
        }
        let mut id = self.poll.first;
        while let Some(&Entry { next, .. }) = self.entries.get(usize::from(id)) {
            let quantum = self.quantum(id);
            if let Some(entry) = self.entry(id)
                && entry.deficit <= 0
            {
                // No deficit becomes positive here: the last round of the smallest debt is not skipped.
                entry.deficit = entry.deficit.saturating_add(rounds.saturating_mul(quantum));
            }
            id = next;
        }
    }

    /// Returns the next portion of a visit, at most `left`. It has `least` requests, or four times as many while no
    /// other queue is known to hold work.
    fn portion(&self, id: u16, left: Portion) -> Portion {
        let own = self.entries.get(usize::from(id)).is_some_and(|entry| entry.active);
        let others = self.active.wrapping_sub(own.into());
        let alone = others == 0 && !self.somebody_waits;
        let requests = if alone { self.limits.least.saturating_mul(4) } else { self.limits.least };
        Portion { requests: requests.min(left.requests), bytes: PORTION_BYTES.min(left.bytes) }
    }

    /// Reads the backlog of some waiting queues. Moves the first one with a waiting client to the front of `work`.
    /// Returns whether there is one.
    fn find_waiting_client(&mut self, now: u64, mut backlog: impl FnMut(QueueId) -> Option<Backlog>) -> bool {
        self.somebody_waits = false;
        for _ in 0..BACKLOGS_READ.min(usize::from(self.poll.len)) {
            if self.cursor == NONE {
                self.cursor = self.poll.first;
            }
            let id = self.cursor;
            let (round, limits) = (self.round, self.limits);
            let Some(entry) = self.entry(id) else { return false };
            let has_time = entry.round != round || entry.deficit > 0;
            let next = entry.next;
            let mut waits = false;
            let waits_for_reply = backlog(QueueId(id)).is_some_and(|seen| {
                waits = seen.waiting != 0;
                if seen.index != entry.index {
                    (entry.index, entry.since) = (seen.index, now);
                }
                let short = seen.waiting != 0 && u32::from(seen.waiting) < limits.least;
                short && has_time && (entry.short || now.wrapping_sub(entry.since) >= limits.stall)
            });
            self.cursor = next;
            self.somebody_waits |= waits;
            if waits_for_reply {
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
    fn enter(&mut self, queue: QueueId, share: GuestWeight, announced: bool) {
        let id = queue.0;
        let Some(entry) = self.entry(id) else { return };
        if entry.place != Place::Out {
            return;
        }
        entry.guest = share.guest.min(MAX_SLOTS - 1) as u8;
        self.reweigh(share);
        self.put(id, if announced { Place::Work } else { Place::Poll }, false);
    }

    fn leave(&mut self, queue: QueueId) {
        self.set_active(queue.0, false);
        self.take(queue.0);
    }

    fn reweigh(&mut self, share: GuestWeight) {
        if let Some(guest) = self.guests.get_mut(share.guest.min(MAX_SLOTS - 1)) {
            guest.weight = share.weight.clamp(1, MAX_WEIGHT);
            guest.quantum = 0;
            self.reweighed = true;
        }
    }

    fn next(&mut self, mut is_idle: impl FnMut(QueueId) -> bool) -> Option<Visit> {
        // A turn ends after a visit that found something. Its completions are then published at once.
        if core::mem::take(&mut self.productive) {
            self.turn_left = None;
            return None;
        }
        let mut left = self.turn_left.unwrap_or(self.work.len.wrapping_add(self.poll.len));
        loop {
            if left == 0 {
                if !core::mem::take(&mut self.passed_over) {
                    self.turn_left = None;
                    return None;
                }
                // Each skipped round reduces the debts.
                self.skip_rounds();
                left = self.work.len.wrapping_add(self.poll.len);
            }
            left = left.saturating_sub(1);
            let Some((id, place)) = self.pick() else { continue };
            // A queue with a debt needs its grant in each round, so it is not skipped as idle.
            if self.entry(id).is_some_and(|entry| entry.deficit > 0) && is_idle(QueueId(id)) {
                self.set_active(id, false);
                if let Some(entry) = self.entry(id) {
                    entry.emptied = true;
                }
                self.put_back(place);
                continue;
            }
            if !self.grant(id) {
                self.passed_over = true;
                self.put_back(place);
                continue;
            }
            self.take(id);
            self.turn_left = Some(left);
            let all = Portion { requests: self.limits.requests, bytes: self.limits.bytes };
            let portion = self.portion(id, all);
            self.current = Some(Current { id, requests: 0, bytes: 0, portion });
            return Some(Visit { queue: QueueId(id), portion });
        }
    }

    fn one_visit_a_turn(&self) -> bool {
        true
    }

    fn charge(&mut self, queue: QueueId, ticks: u64) {
        let Some(entry) = self.entry(queue.0) else { return };
        entry.deficit = entry.deficit.saturating_sub_unsigned(ticks);
        if entry.deficit < 0 {
            self.limit_debt(queue.0);
        }
    }

    fn go_on(
        &mut self,
        served: Served,
        spent: u64,
        now: u64,
        backlog: impl FnMut(QueueId) -> Option<Backlog>,
    ) -> Option<Portion> {
        let Current { id, requests, bytes, portion } = self.current.take()?;
        // Both were below their limits before this portion.
        let (requests, bytes) = (requests.wrapping_add(served.requests), bytes.wrapping_add(served.bytes));
        let limits = self.limits;
        self.set_active(id, requests != 0);
        let emptied = served.emptied(&portion);
        let entry = self.entry(id)?;
        entry.emptied = emptied;
        if served.requests != 0 {
            entry.deficit = entry.deficit.saturating_sub_unsigned(spent);
            entry.short = requests < limits.least;
        }
        let deficit = entry.deficit;
        if deficit < 0 {
            self.limit_debt(id);
        }
        let used_up = deficit <= 0 || requests >= limits.requests || bytes >= limits.bytes;
        self.productive |= requests != 0;
        if emptied || used_up {
            self.put(id, Place::Poll, false);
            return None;
        }
        if self.find_waiting_client(now, backlog) {
            self.put(id, Place::Poll, true);
            // It is visited once more in this round.
            self.round_left = self.round_left.saturating_add(1);
            return None;
        }
        let all = Portion { requests: limits.requests, bytes: limits.bytes };
        let left = all.after(&Served::new(requests, bytes));
        let portion = self.portion(id, left);
        self.current = Some(Current { id, requests, bytes, portion });
        Some(portion)
    }
}

#[cfg(test)]
mod tests;
