//! What an observer sees of a loop at work.

use std::cell::RefCell;

use virtio::config::Features;

use super::support::guest::{Guest, RX, TX};
use super::support::late::Late;
use super::support::relay::Relay;
use super::support::{Bench, fine, per_device, two};
use crate::backend::Backend;
use crate::control::{Command, Control, Reply};
use crate::observe::{Completion, Notification, Observer, Turn, Visit};
use crate::requests::Requests;
use crate::schedule::{Chosen, Fine, Limits, QueueId};

const SPLIT: Features = Features::all().difference(Features::RING_PACKED);
/// The same, completed in any order.
const OUT_OF_ORDER: Features = SPLIT.difference(Features::IN_ORDER);

/// Something that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Turn(Turn),
    Visit(Visit),
    Completion(Completion),
}

/// Keeps all it sees.
#[derive(Default)]
struct Keeping(RefCell<Vec<Seen>>);

impl Observer for Keeping {
    fn turn(&self, turn: &Turn) {
        self.0.borrow_mut().push(Seen::Turn(*turn));
    }

    fn visit(&self, visit: &Visit) {
        self.0.borrow_mut().push(Seen::Visit(*visit));
    }

    fn completion(&self, completion: &Completion) {
        self.0.borrow_mut().push(Seen::Completion(*completion));
    }
}

/// A turn at time 10 by a clock that says 20 when it is first looked at, then 30, and so on.
fn turn<B: Backend>(bench: &mut Bench<B>, observer: &impl Observer) {
    let time = std::cell::Cell::new(10);
    let clock = || {
        time.set(time.get() + 10);
        time.get()
    };
    bench.engine.counted_turn(10, &clock, observer);
}

fn send(from: &mut Guest, to: &Guest, len: usize) {
    let message = from.message(to.slot, len, 1);
    assert!(from.send(&message));
}

const FROM: QueueId = QueueId::new(0, TX);
const TO: QueueId = QueueId::new(1, RX);
const BACK: QueueId = QueueId::new(1, TX);

#[test]
fn a_turn_its_visits_and_its_completions_are_seen_once_each_and_in_this_order() {
    let (mut a, mut b) = (Guest::new(0, SPLIT, 64), Guest::new(1, SPLIT, 64));
    let mut bench = Bench::with(&[&a, &b]);
    bench.engine.control().observe(true);
    b.post(8, 100);
    b.rx.disable_interrupts();
    for len in [60, 70] {
        send(&mut a, &b, len);
    }
    let observer = Keeping::default();
    turn(&mut bench, &observer);
    let visit = |queue, begin, end, requests, bytes| Seen::Visit(Visit { queue, begin, end, requests, bytes });
    let completion = |queue, notification| Seen::Completion(Completion { queue, notification });
    let mut seen = observer.0.take();
    // Each turn begins with another slot.
    let mut visits: Vec<_> = seen.drain(..2).collect();
    visits.sort_by_key(|seen| if let Seen::Visit(visit) = seen { visit.queue.slot() } else { usize::MAX });
    assert_eq!(visits[0], visit(FROM, 10, 20, 2, 130));
    let Seen::Visit(idle) = visits[1] else { panic!("{visits:?}") };
    assert_eq!((idle.queue, idle.begin == idle.end, idle.requests, idle.bytes), (BACK, true, 0, 0));
    assert_eq!(
        seen,
        [
            completion(FROM, Notification::Interrupt),
            completion(TO, Notification::Suppressed),
            Seen::Turn(Turn { begin: 10, end: 30, requests: 2 }),
        ]
    );
    assert_eq!(bench.interrupts.take(), [(100, a.vector(2))]);
    turn(&mut bench, &observer);
    let seen = observer.0.take();
    let idle = Seen::Turn(Turn { begin: 10, end: 20, requests: 0 });
    assert_eq!((seen.len(), seen[2]), (3, idle), "two visits that find nothing, and the turn: {seen:?}");
    assert!(seen[..2].iter().all(|seen| matches!(seen, Seen::Visit(Visit { requests: 0, .. }))));
}

#[test]
fn a_visit_is_seen_once_with_all_of_its_portions() {
    let (mut a, mut b) = (Guest::new(0, SPLIT, 256), Guest::new(1, SPLIT, 256));
    let limits = Limits { requests: 64, bytes: 1 << 20, quantum: 1 << 40, least: 8, stall: 1 << 40 };
    let mut bench = Bench::by(Chosen::Fine(Fine::new(limits)), &[&a, &b], Requests::Poll);
    bench.engine.control().observe(true);
    b.post(64, 100);
    (0..64).for_each(|_| send(&mut a, &b, 60));
    let observer = Keeping::default();
    turn(&mut bench, &observer);
    assert_eq!(bench.engine.backend().portions, 2);
    let mut seen = observer.0.take();
    seen.retain(|seen| matches!(seen, Seen::Visit(_)));
    assert_eq!(seen, [Seen::Visit(Visit { queue: FROM, begin: 10, end: 30, requests: 64, bytes: 64 * 60 })]);
}

#[test]
fn what_is_seen_is_what_the_counters_count() {
    for schedule in [per_device, fine] {
        let (mut a, mut b) = (Guest::new(0, SPLIT, 64), Guest::new(1, SPLIT, 64));
        let mut bench = Bench::by(schedule(), &[&a, &b], Requests::Poll);
        let control = bench.engine.control();
        let engine = || {
            let c = &control.counters;
            [c.busy_turns.get() + c.idle_turns.get(), c.visits.get(), c.requests.get()]
        };
        let told = |guests: [&Guest; 2]| {
            let sum = |count: fn(&virtio::counters::DeviceCounters) -> u64| {
                guests.iter().map(|guest| count(guest.shared.counters())).sum::<u64>()
            };
            [sum(|c| c.interrupts.get()), sum(|c| c.interrupts_suppressed.get())]
        };
        control.observe(true);
        let (engine_before, told_before) = (engine(), told([&a, &b]));
        let observer = Keeping::default();
        // The last ones send nothing: what is left then is taken.
        for round in 0..210u32 {
            let sends = round < 200;
            a.post(4, 100);
            b.post(4, 100);
            (0..round % 3).filter(|_| sends).for_each(|_| send(&mut a, &b, 60));
            (0..round % 2).filter(|_| sends).for_each(|_| send(&mut b, &a, 61));
            if round % 5 == 0 {
                b.rx.disable_interrupts()
            } else {
                b.rx.enable_interrupts()
            }
            turn(&mut bench, &observer);
            while a.receive().is_some() || b.receive().is_some() {}
        }
        let (mut turns, mut visits, mut requests, mut visited, mut bytes, mut interrupts, mut suppressed) =
            (0, 0, 0, 0, 0, 0, 0);
        for seen in observer.0.take() {
            match seen {
                Seen::Turn(turn) => (turns, requests) = (turns + 1, requests + u64::from(turn.requests)),
                Seen::Visit(visit) => {
                    (visits, visited) = (visits + 1, visited + u64::from(visit.requests));
                    bytes += visit.bytes;
                }
                Seen::Completion(Completion { notification: Notification::Interrupt, .. }) => interrupts += 1,
                Seen::Completion(Completion { notification: Notification::Suppressed, .. }) => suppressed += 1,
            }
        }
        let grown: Vec<_> = engine().iter().zip(engine_before).map(|(now, before)| now - before).collect();
        assert_eq!(grown, [turns, visits, requests]);
        let grown: Vec<_> = told([&a, &b]).iter().zip(told_before).map(|(now, before)| now - before).collect();
        assert_eq!(grown, [interrupts, suppressed]);
        assert_eq!((turns, visited), (210, requests), "a request is taken in a visit");
        assert_eq!((requests, bytes), (199 + 100, 199 * 60 + 100 * 61));
        assert!(suppressed != 0 && interrupts != 0);
    }
}

#[test]
fn what_is_completed_between_visits_and_what_is_shown_early_is_seen_once_too() {
    // A lone message under a schedule with one visit a turn is shown before the turn ends.
    let (mut a, b, mut bench) = two(SPLIT, Requests::Poll);
    bench.engine.control().observe(true);
    send(&mut a, &b, 60);
    let observer = Keeping::default();
    turn(&mut bench, &observer);
    turn(&mut bench, &observer);
    let completions = |observer: &Keeping| {
        let completion = |seen| if let Seen::Completion(completion) = seen { Some(completion.queue) } else { None };
        observer.0.take().into_iter().filter_map(completion).collect::<Vec<_>>()
    };
    assert_eq!(completions(&observer), [FROM, TO]);

    let guest = &mut Guest::new(0, OUT_OF_ORDER, 64);
    let mut bench = Bench::new(Late::default(), per_device());
    assert_eq!(bench.command(Command::Attach(guest.attachment(0))), Reply::Attached);
    bench.engine.control().observe(true);
    for _ in 0..3 {
        let message = guest.message(0, 60, 1);
        assert!(guest.send(&message));
    }
    turn(&mut bench, &observer);
    assert_eq!(completions(&observer), [], "taken, and not completed");
    for (release, wanted) in [(2, &[FROM][..]), (0, &[]), (1, &[FROM]), (1, &[])] {
        bench.engine.backend_mut().release = release;
        turn(&mut bench, &observer);
        assert_eq!(completions(&observer), wanted);
    }
}

#[test]
fn nothing_is_seen_while_observing_is_off() {
    let (mut a, mut b, mut bench) = two(SPLIT, Requests::Poll);
    let control = bench.engine.control();
    let observer = Keeping::default();
    assert!(!control.observed(), "off at first");
    for on in [false, true, false, true] {
        control.observe(on);
        assert_eq!(control.observed(), on);
        send(&mut a, &b, 60);
        turn(&mut bench, &observer);
        assert_eq!(observer.0.take().len(), if on { 4 } else { 0 }, "a visit, two completions, and the turn");
        assert!(b.receive().is_some());
    }
    // A turn that nobody asks the control core about.
    send(&mut a, &b, 60);
    bench.turn();
    assert_eq!(observer.0.take(), []);
}

/// Has itself switched off, or on, at the first visit that it sees.
struct Switching<'a> {
    control: &'a Control<()>,
    keeping: Keeping,
}

impl Observer for Switching<'_> {
    fn turn(&self, turn: &Turn) {
        self.keeping.turn(turn);
    }

    fn visit(&self, visit: &Visit) {
        self.control.observe(false);
        self.keeping.visit(visit);
    }

    fn completion(&self, completion: &Completion) {
        self.keeping.completion(completion);
    }
}

#[test]
fn a_turn_is_seen_whole_or_not_at_all() {
    let (mut a, b, mut bench) = two(SPLIT, Requests::Poll);
    let control = bench.engine.control();
    let observer = Switching { control, keeping: Keeping::default() };
    control.observe(true);
    for wanted in [4, 0, 0] {
        send(&mut a, &b, 60);
        turn(&mut bench, &observer);
        assert_eq!(observer.keeping.0.take().len(), wanted);
    }
    // Switched on within a turn: from the next one on.
    let late = || {
        control.observe(true);
        20
    };
    send(&mut a, &b, 60);
    bench.engine.counted_turn(10, &late, &observer);
    assert_eq!(observer.keeping.0.take(), []);
    send(&mut a, &b, 60);
    turn(&mut bench, &observer);
    assert_eq!(observer.keeping.0.take().len(), 4);
}

#[test]
fn an_observer_changes_nothing_that_a_driver_sees() {
    let seen = [false, true].map(|on| {
        let (mut a, mut b) = (Guest::new(0, SPLIT, 64), Guest::new(1, SPLIT, 64));
        let mut bench: Bench<Relay> = Bench::by(fine(), &[&a, &b], Requests::Notify);
        bench.engine.control().observe(on);
        b.post(60, 100);
        let mut seen = Vec::new();
        for round in 0..50 {
            send(&mut a, &b, 60 + round);
            if a.tx.kick_prepare() {
                a.shared.kick(TX);
            }
            turn(&mut bench, &Keeping::default());
            seen.push((bench.interrupts.take(), a.tx.used_index(), b.rx.used_index(), b.receive()));
        }
        (seen, a.shared.counters().iter().collect::<Vec<_>>(), b.shared.counters().iter().collect::<Vec<_>>())
    });
    assert_eq!(seen[0], seen[1]);
}
