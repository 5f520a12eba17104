//! The scheduler against queues that are numbers only, with a clock that only their work moves: all counts are exact.

use super::{Fine, Limits};
use crate::schedule::{GuestWeight, MAX_WEIGHT, Portion, QueueId, Schedule, Served};
use virtio::queue::Backlog;

const LIMITS: Limits = Limits { requests: 256, bytes: 1 << 20, quantum: 24_000, least: 16, stall: 2_000 };

/// What a visit has at its beginning.
const ALL: Portion = Portion { requests: LIMITS.requests, bytes: LIMITS.bytes };

/// Ticks that a frame costs, by its size.
const SMALL: u64 = 120;
const LARGE: u64 = 540;

/// A queue, and who fills it.
#[derive(Clone)]
struct Queue {
    /// Requests that wait.
    waiting: u32,
    /// Filled up again all the time, as fast as it is emptied: a stream.
    greedy: bool,
    cost: u64,
    index: u16,
    /// Requests and ticks so far.
    served: u64,
    ticks: u64,
}

struct World {
    fine: Fine<1024>,
    queues: Vec<Queue>,
    now: u64,
    /// Requests served in all, visits, and looks whether a queue is idle.
    total: u64,
    visits: u64,
    looks: u64,
    waiter: Option<Waiter>,
    /// Nothing is seen of the other queues.
    blind: bool,
}

/// A guest that offers a request, waits until it is served, pauses, and offers the next.
struct Waiter {
    queue: usize,
    /// Requests served by the world when it offers, or when it has offered.
    at: u64,
    pause: u64,
    /// For each of its requests, those that were served before it.
    ahead: Vec<u64>,
}

fn stream(cost: u64) -> Queue {
    Queue { waiting: 200, greedy: true, cost, index: 0, served: 0, ticks: 0 }
}

fn quiet() -> Queue {
    Queue { waiting: 0, greedy: false, cost: SMALL, index: 0, served: 0, ticks: 0 }
}

/// Queue number `i` of the world.
fn id(i: usize) -> QueueId {
    QueueId(i as u16)
}

impl World {
    /// Each queue belongs to a guest of its own with a weight.
    fn new(queues: Vec<Queue>, weights: &[u16]) -> Self {
        let mut fine = Fine::new(LIMITS);
        for i in 0..queues.len() {
            let weight = weights.get(i).copied().unwrap_or(1);
            fine.enter(id(i), GuestWeight { guest: i, weight }, false);
        }
        Self { fine, queues, now: 0, total: 0, visits: 0, looks: 0, waiter: None, blind: false }
    }

    /// A turn, as the engine does it.
    fn turn(&mut self) -> u32 {
        let mut moved = 0;
        while let Some(visit) = self.fine.next(|id| {
            self.looks += 1;
            self.queues[usize::from(id.0)].waiting == 0
        }) {
            self.visits += 1;
            let i = usize::from(visit.queue.0);
            let mut portion = Some(visit.portion);
            while let Some(p) = portion {
                let begin = self.now;
                let served = self.serve(i, &p);
                moved += served.requests;
                let (now, queues, blind) = (self.now, &self.queues, self.blind);
                portion = self.fine.go_on(served, now - begin, now, |other| {
                    let q = &queues[usize::from(other.0)];
                    (!blind).then_some(Backlog { index: q.index, waiting: q.waiting as u16 })
                });
            }
        }
        moved
    }

    fn serve(&mut self, i: usize, portion: &Portion) -> Served {
        let mut served = Served::default();
        while served.requests < portion.requests && served.bytes < portion.bytes && self.queues[i].waiting > 0 {
            let q = &mut self.queues[i];
            q.waiting -= 1;
            q.served += 1;
            q.ticks += q.cost;
            self.now += q.cost;
            self.total += 1;
            served.requests += 1;
            served.bytes += if self.queues[i].cost == SMALL { 60 } else { 1500 };
            for q in self.queues.iter_mut().filter(|q| q.greedy && q.waiting < 200) {
                q.waiting += 1;
                q.index = q.index.wrapping_add(1);
            }
            self.wait(i);
        }
        served
    }

    /// A request of queue `i` has been served.
    fn wait(&mut self, i: usize) {
        let Some(mut waiter) = self.waiter.take() else { return };
        if i == waiter.queue {
            waiter.ahead.push(self.total - 1 - waiter.at);
            // At any point of a visit, in no step with the rounds.
            waiter.at = self.total + waiter.pause + waiter.ahead.len() as u64 * 7919 % waiter.pause;
        } else if self.total == waiter.at {
            self.offer(waiter.queue);
        }
        self.waiter = Some(waiter);
    }

    fn offer(&mut self, i: usize) {
        self.queues[i].waiting += 1;
        self.queues[i].index = self.queues[i].index.wrapping_add(1);
    }

    fn run(&mut self, requests: u64) {
        let end = self.total + requests;
        while self.total < end {
            assert_ne!(self.turn(), 0, "there is work");
        }
    }
}

/// Jain's index: 1 if all are equal, 1/n if one has everything.
fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(s, q), x| (s + x, q + x * x));
    sum * sum / (shares.len() as f64 * squares)
}

#[test]
fn seven_greedy_streams_of_mixed_frames_get_the_same_time() {
    let queues = [SMALL, LARGE, SMALL, LARGE, LARGE, SMALL, LARGE].map(stream).to_vec();
    let mut w = World::new(queues, &[]);
    w.run(200_000);
    let ticks: Vec<_> = w.queues.iter().map(|q| q.ticks as f64).collect();
    assert!(jain(&ticks) >= 0.999, "{}: {ticks:?}", jain(&ticks));
    // Not by leaving each after the least of requests: a visit is worth its way.
    assert!(w.total / w.visits >= 40, "{} requests a visit", w.total / w.visits);
}

#[test]
fn weights_of_4_2_1_are_shares_of_4_2_1() {
    for costs in [[SMALL; 3], [LARGE, SMALL, LARGE], [SMALL, LARGE, SMALL]] {
        let mut w = World::new(costs.map(stream).to_vec(), &[4, 2, 1]);
        w.run(200_000);
        let all: u64 = w.queues.iter().map(|q| q.ticks).sum();
        for (q, weight) in w.queues.iter().zip([4.0, 2.0, 1.0]) {
            let share = q.ticks as f64 / all as f64 / (weight / 7.0);
            assert!((share - 1.0).abs() <= 0.03, "{costs:?}: weight {weight} has {share} of its share");
        }
    }
}

#[test]
fn a_weight_that_is_changed_counts_for_the_work_that_is_there() {
    let mut w = World::new([SMALL, LARGE, SMALL].map(stream).to_vec(), &[4, 2, 1]);
    w.run(50_000);
    for weights in [[1, 1, 1], [1, 16, 4], [16, 1, 1], [4, 2, 1]] {
        for (guest, weight) in weights.into_iter().enumerate() {
            w.fine.reweigh(GuestWeight { guest, weight });
        }
        let before: Vec<u64> = w.queues.iter().map(|q| q.ticks).collect();
        w.run(200_000);
        let ticks: Vec<u64> = w.queues.iter().zip(before).map(|(q, before)| q.ticks - before).collect();
        let (all, sum) = (ticks.iter().sum::<u64>() as f64, f64::from(weights.iter().sum::<u16>()));
        for (ticks, weight) in ticks.into_iter().zip(weights) {
            let share = ticks as f64 / all / (f64::from(weight) / sum);
            assert!((share - 1.0).abs() <= 0.03, "{weights:?}: weight {weight} has {share} of its share");
        }
    }
}

#[test]
fn the_extremes_of_weights_hold_too() {
    let mut w = World::new([LARGE, SMALL].map(stream).to_vec(), &[1, MAX_WEIGHT]);
    w.run(400_000);
    let ratio = w.queues[1].ticks as f64 / w.queues[0].ticks as f64 / f64::from(MAX_WEIGHT);
    assert!((ratio - 1.0).abs() <= 0.03, "{ratio}");
}

#[test]
fn a_guest_gets_no_more_by_having_more_queues_and_no_less_by_having_idle_ones() {
    let mut fine = Fine::new(LIMITS);
    // Guest 0: four streams and four idle queues. Guest 1: one stream.
    for i in 0..9 {
        fine.enter(id(i), GuestWeight { guest: usize::from(i == 8), weight: 1 }, false);
    }
    let mut queues = vec![stream(SMALL); 4];
    queues.extend(vec![quiet(); 4]);
    queues.push(stream(LARGE));
    let mut w = World { fine, queues, now: 0, total: 0, visits: 0, looks: 0, waiter: None, blind: false };
    w.run(200_000);
    let first: u64 = w.queues[..8].iter().map(|q| q.ticks).sum();
    let ratio = first as f64 / w.queues[8].ticks as f64;
    assert!((ratio - 1.0).abs() <= 0.03, "{ratio}");
    let four: Vec<_> = w.queues[..4].iter().map(|q| q.ticks as f64).collect();
    assert!(jain(&four) >= 0.999, "{four:?}");
}

/// Six streams, and a guest that waits for its replies: the requests ahead of each of its own, in ascending order.
fn ahead_of_a_waiter(streams: [u64; 6], blind: bool) -> (Vec<u64>, World) {
    let mut queues = streams.map(stream).to_vec();
    queues.push(quiet());
    let mut w = World { blind, ..World::new(queues, &[]) };
    w.waiter = Some(Waiter { queue: 6, at: 1000, pause: 300, ahead: Vec::new() });
    w.run(1_000_000);
    let mut ahead = w.waiter.take().unwrap().ahead;
    assert!(ahead.len() >= 500, "{}", ahead.len());
    ahead.sort_unstable();
    (ahead, w)
}

fn p99(sorted: &[u64]) -> u64 {
    sorted[sorted.len() * 99 / 100]
}

#[test]
fn who_waits_for_a_reply_has_at_most_two_portions_ahead_of_it() {
    for streams in [[SMALL; 6], [LARGE; 6], [SMALL, LARGE, SMALL, LARGE, SMALL, LARGE]] {
        let (ahead, w) = ahead_of_a_waiter(streams, false);
        assert!(p99(&ahead) <= 2 * u64::from(LIMITS.least), "{streams:?}: {}", p99(&ahead));
        // The streams share what is left equally, and lose nothing but what the replies cost.
        let ticks: Vec<_> = w.queues[..6].iter().map(|q| q.ticks as f64).collect();
        assert!(jain(&ticks) >= 0.999, "{ticks:?}");
        assert!(w.queues[6].ticks * 20 < w.now);
        // Reading the backlog of other queues makes the difference.
        let (blind, _) = ahead_of_a_waiter(streams, true);
        assert!(p99(&blind) > 200, "{streams:?}: {}", p99(&blind));
    }
}

#[test]
fn a_stream_that_holds_a_few_is_stuck_when_it_has_got_no_new_one_for_a_while() {
    // What is served of the first queue before the second is, which had `before` and then got 3 more.
    let served_before = |before: u32, limits: Limits| {
        let mut w = World::new(vec![stream(SMALL), quiet()], &[]);
        w.fine = Fine::new(limits);
        (0..2).for_each(|i| w.fine.enter(id(i), GuestWeight::of_guest(i), false));
        w.queues[1].waiting = before;
        // The first, the second, and the first again after that.
        while w.queues[1].served < u64::from(before) {
            w.turn();
        }
        let begin = w.queues[0].served;
        w.queues[1].waiting += 3;
        w.queues[1].index += 3;
        while w.queues[1].served < u64::from(before) + 3 {
            w.turn();
        }
        w.queues[0].served - begin
    };
    let (few, many) = (LIMITS.least - 1, LIMITS.least);
    let portion = u64::from(LIMITS.least);
    assert_eq!(served_before(few, LIMITS), portion, "at the first backlog");
    // Seen at the first backlog; LIMITS.stall is a little more than one portion takes.
    assert_eq!(served_before(many, LIMITS), 3 * portion);
    assert_eq!(served_before(many, Limits { stall: 0, ..LIMITS }), portion);
    // The quantum is 12.5 portions, and the first round took 13.
    assert_eq!(served_before(many, Limits { stall: u64::MAX, ..LIMITS }), 12 * portion, "in turn");
}

#[test]
fn a_visit_ends_at_each_of_its_limits() {
    for (limits, wanted) in [
        (Limits { quantum: 10 * SMALL, ..LIMITS }, 16),
        (Limits { quantum: 20 * SMALL, ..LIMITS }, 32),
        (Limits { requests: 40, ..LIMITS }, 40),
        (Limits { bytes: 60 * 50, ..LIMITS }, 50),
        (Limits { bytes: 1, ..LIMITS }, 1),
    ] {
        let mut w = World::new(vec![stream(SMALL); 2], &[]);
        w.fine = Fine::new(limits);
        (0..2).for_each(|i| w.fine.enter(id(i), GuestWeight::of_guest(i), false));
        // Of what the first holds, nobody knows before the second is visited.
        w.fine.somebody_waits = true;
        assert_eq!(w.turn(), wanted, "{limits:?}");
        assert_eq!((w.queues[0].served, w.queues[1].served), (u64::from(wanted), 0));
        w.turn();
        assert_eq!(w.queues[1].served, u64::from(wanted), "then the other's");
    }
}

#[test]
fn portions_are_four_times_as_long_while_nobody_else_has_work() {
    let portions = |queues: Vec<Queue>| {
        let mut w = World::new(queues, &[]);
        w.run(100_000);
        let first = w.fine.next(|_| false).map(|visit| visit.portion.requests);
        (first, w.fine.portion(0, ALL).requests)
    };
    assert_eq!(portions(vec![stream(SMALL), quiet()]).1, 4 * LIMITS.least);
    assert_eq!(portions(vec![stream(SMALL); 2]).0, Some(LIMITS.least));
}

#[test]
fn a_portion_has_as_many_bytes_as_64_frames_of_1500_and_no_more_than_are_left() {
    let fine = World::new(vec![stream(LARGE)], &[]).fine;
    let (large, rest) = (fine.portion(0, ALL), fine.portion(0, Portion { bytes: 1000, ..ALL }));
    assert!(large.bytes >= 64 * 1500 && large.bytes < 128 << 10, "{large:?}");
    assert_eq!(rest.bytes, 1000);
}

#[test]
fn an_announced_queue_comes_next_and_one_that_announces_all_the_time_gets_its_share_and_no_more() {
    let mut w = World::new([LARGE, LARGE, LARGE, SMALL].map(stream).to_vec(), &[]);
    w.run(10_000);
    let before: Vec<_> = w.queues.iter().map(|q| q.ticks).collect();
    for _ in 0..4_000 {
        // As a kick does it, before each turn.
        w.fine.leave(id(3));
        w.fine.enter(id(3), GuestWeight::of_guest(3), true);
        w.turn();
    }
    let gained: Vec<_> = w.queues.iter().zip(before).map(|(q, b)| (q.ticks - b) as f64).collect();
    assert!(jain(&gained) >= 0.999, "{gained:?}");
    // One that has been idle is served in the turn after its announcement, or the one after that.
    let mut w = World::new(vec![stream(SMALL); 6], &[]);
    w.queues.push(quiet());
    w.run(5_000);
    for _ in 0..100 {
        w.offer(6);
        w.fine.enter(id(6), GuestWeight::of_guest(6), true);
        let served = w.queues[6].served;
        w.turn();
        w.turn();
        assert_eq!(w.queues[6].served, served + 1);
        w.fine.leave(id(6));
        w.run(500);
    }
}

#[test]
fn a_thousand_queues_that_have_left_cost_nothing_and_a_thousand_idle_ones_one_look_each() {
    let mut w = World::new(vec![quiet(); 1001], &[]);
    w.queues[1000] = stream(SMALL);
    assert!((0..1000).all(|_| w.turn() != 0));
    (w.visits, w.looks) = (0, 0);
    w.run(100_000);
    let (visits, looks) = (w.visits, w.looks);
    assert!(
        (1000 * (visits - 1)..=1001 * (visits + 1)).contains(&looks),
        "{looks} looks in {visits} visits to the busy one"
    );
    for i in 0..1000 {
        w.fine.leave(id(i));
    }
    (w.visits, w.looks, w.now) = (0, 0, 0);
    w.run(100_000);
    assert!(w.looks <= w.visits, "{} looks in {} visits", w.looks, w.visits);
    // The first goes on to the end of a portion, and what it took too much is missing from a later one.
    let full = 100_000_u64.div_ceil(24_000 / SMALL);
    assert!((full..=full + 1).contains(&w.visits), "full visits to the one that is busy, and no other: {}", w.visits);
}

#[test]
fn a_queue_that_owes_much_is_not_forgotten() {
    let mut w = World::new(vec![stream(SMALL), stream(1_000_000_000)], &[]);
    w.run(40_000);
    // A portion of the second takes 16 s of ticks; the most that it may owe for that is 64 quanta.
    assert!(w.queues[1].served >= 16, "{}", w.queues[1].served);
    let mut w = World::new(vec![stream(1_000_000_000)], &[]);
    w.run(64);
    assert_eq!(w.queues[0].served, 64, "alone it is served all the time, whatever it owes");
}

#[test]
fn a_debt_that_keeps_nobody_waiting_costs_no_visits_to_empty_queues() {
    // Requests of 50 quanta each, one at a time, as of guests that wait for each other in an emulator.
    let mut w = World::new(vec![quiet(); 4], &[1, 2, 4, 16]);
    for i in 0..4 {
        w.queues[i].cost = 50 * LIMITS.quantum;
    }
    for request in 0..100 {
        w.offer(request % 2);
        w.visits = 0;
        assert_eq!(w.turn(), 1);
        assert!(w.visits <= 3 * 4, "{} visits for one request", w.visits);
    }
}

#[test]
fn queues_come_and_go_in_any_order() {
    let mut w = World::new(vec![stream(SMALL); 20], &[]);
    let mut present = [true; 20];
    let mut rng = 1u64;
    for _ in 0..20_000 {
        rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let i = (rng >> 40) as usize % 20;
        if (rng >> 33) & 1 == 0 {
            w.fine.leave(id(i));
            present[i] = false;
        } else {
            w.fine.enter(id(i), GuestWeight::of_guest(i % 7), (rng >> 34) & 1 == 0);
            present[i] = true;
        }
        let before: Vec<_> = w.queues.iter().map(|q| q.served).collect();
        let moved = w.turn();
        assert_eq!(moved != 0, present.contains(&true));
        for (i, q) in w.queues.iter().enumerate() {
            assert!(present[i] || q.served == before[i], "queue {i} has left");
        }
    }
    let listed = usize::from(w.fine.work.len + w.fine.poll.len);
    assert_eq!(listed, present.iter().filter(|p| **p).count());
}
