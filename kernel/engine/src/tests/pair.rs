//! Two back-ends as one: who is called for what.

use std::cell::RefCell;

use virtio::config::{DeviceConfig, Features};
use virtio::phase::Phase;

use super::support::guest::{Guest, TX};
use super::support::late::Late;
use super::support::{Bench, per_device};
use crate::backend::Backend;
use crate::control::{Attachment, Command, Reply};
use crate::device::Device;
use crate::devices::Devices;
use crate::pair::{Half, Pair};
use crate::requests::{Requests, ServiceMode};
use crate::schedule::{Portion, Served};

/// A device of these tests completes out of order.
const FEATURES: Features = Features::all().difference(Features::IN_ORDER);

/// A call for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// With what the back-end was to know of the device.
    Attached(usize, u32),
    Detached(usize),
    Activated(usize, bool),
    ServiceMode(usize),
    Serve(usize),
    Cancel(usize),
}

/// Notes what it is called for, and serves as [`Late`] does.
#[derive(Default)]
struct Noting {
    calls: RefCell<Vec<Call>>,
    polls: u32,
    reclaims: u32,
    late: Late,
}

impl Noting {
    fn note(&self, call: Call) {
        self.calls.borrow_mut().push(call);
    }

    /// Its calls since the last time, each once.
    fn calls(&self) -> Vec<Call> {
        let mut calls = self.calls.take();
        calls.dedup();
        calls
    }
}

impl Backend for Noting {
    type Config = u32;

    fn attached(&mut self, slot: usize, _: &DeviceConfig, config: u32) {
        self.note(Call::Attached(slot, config));
    }

    fn detached(&mut self, slot: usize) {
        self.note(Call::Detached(slot));
    }

    fn activated(&mut self, slot: usize, _: &mut Device, resumed: bool) {
        self.note(Call::Activated(slot, resumed));
    }

    fn service_mode(&self, slot: usize, queue: u16) -> ServiceMode {
        self.note(Call::ServiceMode(slot));
        self.late.service_mode(slot, queue)
    }

    fn serve(&mut self, devices: &mut Devices, slot: usize, queue: u16, portion: &Portion, now: u64) -> Served {
        self.note(Call::Serve(slot));
        self.late.serve(devices, slot, queue, portion, now)
    }

    fn poll(&mut self, devices: &mut Devices, now: u64) -> u32 {
        self.polls += 1;
        self.late.poll(devices, now)
    }

    fn reclaim(&mut self, devices: &mut Devices) {
        self.reclaims += 1;
        self.late.reclaim(devices);
    }

    fn cancel(&mut self, devices: &mut Devices, slot: usize) -> bool {
        self.note(Call::Cancel(slot));
        self.late.cancel(devices, slot)
    }
}

type Two = Pair<Noting, Noting>;
type Config = Half<u32, u32>;

fn bench() -> Bench<Two> {
    Bench::new(Pair::new(Noting::default(), Noting::default()), per_device())
}

fn attach<B: Backend>(bench: &mut Bench<B>, guest: &Guest, config: B::Config) {
    assert_eq!(bench.command(Command::Attach(guest.attachment_with(guest.slot, config))), Reply::Attached);
}

/// Guests at slots 0 and 1, whose devices belong to the first and to the second half.
fn both() -> (Bench<Two>, [Guest; 2]) {
    let guests = [0, 1].map(|slot| Guest::new(slot, FEATURES, 16));
    let mut bench = bench();
    attach(&mut bench, &guests[0], Half::First(7));
    attach(&mut bench, &guests[1], Half::Second(9));
    bench.turn();
    calls(&bench);
    (bench, guests)
}

/// What each half was called for.
fn calls(bench: &Bench<Two>) -> [Vec<Call>; 2] {
    let pair = bench.engine.backend();
    [pair.first().calls(), pair.second().calls()]
}

fn offer(guest: &mut Guest) {
    let message = guest.message(0, 60, 0);
    assert!(guest.send(&message));
}

/// Completes so many requests of each half in the next turn: how many were moved.
fn release(bench: &mut Bench<Two>, counts: [usize; 2]) -> u32 {
    let pair = bench.engine.backend_mut();
    pair.first_mut().late.release = counts[0];
    pair.second_mut().late.release = counts[1];
    bench.turn()
}

#[test]
fn each_call_is_for_the_half_whose_device_it_is() {
    let mut bench = bench();
    let mut guests = [3, 1, 2, 127].map(|slot| Guest::new(slot, FEATURES, 16));
    let halves: [Config; 4] = [Half::First(30), Half::Second(10), Half::First(20), Half::Second(127)];
    for (guest, config) in guests.iter().zip(halves) {
        attach(&mut bench, guest, config);
        let slot = guest.slot;
        // A turn attaches it, activates it, and visits its queue for the first time. Of the others there are visits alone.
        let all = calls(&bench).map(|mut calls| {
            calls.retain(|call| !matches!(call, Call::Serve(other) if *other != slot));
            calls
        });
        let own = |config| {
            vec![Call::Attached(slot, config), Call::Activated(slot, false), Call::ServiceMode(slot), Call::Serve(slot)]
        };
        assert_eq!(
            all,
            match config {
                Half::First(config) => [own(config), vec![]],
                Half::Second(config) => [vec![], own(config)],
            }
        );
    }
    for n in 0..4 {
        offer(&mut guests[n]);
        assert_eq!(bench.turn(), 1);
        let held = |half: &Noting| half.late.held.iter().map(|(slot, _)| *slot).collect::<Vec<_>>();
        let pair = bench.engine.backend();
        let (first, second): (&[usize], &[usize]) =
            [(&[3][..], &[][..]), (&[3], &[1]), (&[3, 2], &[1]), (&[3, 2], &[1, 127])][n];
        assert_eq!((held(pair.first()), held(pair.second())), (first.to_vec(), second.to_vec()));
    }
    for (half, served) in calls(&bench).into_iter().zip([[2, 3], [1, 127]]) {
        assert!(half.iter().all(|call| served.iter().any(|slot| *call == Call::Serve(*slot))), "{half:?}");
    }
    guests[1].shared.request_reset();
    bench.turn();
    assert!(guests[1].shared.reset_done());
    for slot in [3, 127] {
        assert!(matches!(bench.command(Command::Detach { slot }), Reply::Detached(None)));
    }
    let [first, second] = calls(&bench).map(|mut calls| {
        calls.retain(|call| !matches!(call, Call::Serve(_)));
        calls
    });
    assert_eq!(first, [Call::Cancel(3), Call::Detached(3)]);
    assert_eq!(second, [Call::Cancel(1), Call::Cancel(127), Call::Detached(127)]);
}

#[test]
fn a_slot_is_attached_anew_with_a_device_of_the_other_half() {
    let (mut bench, [old, _other]) = both();
    for round in 0..3 {
        let Reply::Detached(Some(state)) = bench.command(Command::Detach { slot: 0 }) else { panic!("no state") };
        old.shared.restart();
        calls(&bench);
        let first = round % 2 == 1;
        let config = if first { Half::First(round) } else { Half::Second(round) };
        let attachment = Attachment { state: Some(state), ..old.attachment_with(0, config) };
        assert_eq!(bench.command(Command::Attach(attachment)), Reply::Attached);
        bench.turn();
        let [mut own, mut others] = calls(&bench);
        if !first {
            core::mem::swap(&mut own, &mut others);
        }
        assert_eq!(own[..3], [Call::Attached(0, round), Call::Activated(0, true), Call::ServiceMode(0)]);
        assert!(own.contains(&Call::Serve(0)));
        assert!(!others.iter().any(|call| matches!(call, Call::Serve(0))), "{others:?}");
    }
}

#[test]
fn a_reset_and_a_detachment_wait_for_the_half_that_holds_requests_and_for_no_other() {
    let (mut bench, mut guests) = both();
    guests.iter_mut().for_each(offer);
    assert_eq!(bench.turn(), 2);
    bench.engine.backend_mut().second_mut().late.dma = true;
    guests.iter().for_each(|guest| guest.shared.request_reset());
    for _ in 0..3 {
        bench.turn();
        assert_eq!(guests.each_ref().map(|guest| guest.shared.phase()), [Phase::Idle, Phase::Resetting]);
    }
    release(&mut bench, [0, 1]);
    bench.turn();
    assert_eq!(guests[1].shared.phase(), Phase::Idle);
    assert_eq!(guests.each_ref().map(|guest| guest.shared.counters().stale_tokens.get()), [0, 1]);

    let [first, second] = &mut guests;
    for guest in [&mut *first, &mut *second] {
        guest.start();
        bench.turn();
        offer(guest);
        bench.turn();
    }
    assert!(matches!(bench.command(Command::Detach { slot: 0 }), Reply::Detached(None)), "its request is dropped");
    assert_eq!(bench.command(Command::Detach { slot: 1 }), Reply::Detaching);
    assert_eq!(release(&mut bench, [0, 1]), 1);
    assert!(matches!(bench.command(Command::Detach { slot: 1 }), Reply::Detached(Some(_))), "its request came back");
}

#[test]
fn both_halves_are_polled_once_a_turn_and_what_they_completed_is_added() {
    let (mut bench, mut guests) = both();
    for _ in 0..3 {
        guests.iter_mut().for_each(offer);
    }
    bench.turn();
    let polls = |bench: &Bench<Two>| (bench.engine.backend().first().polls, bench.engine.backend().second().polls);
    let before = polls(&bench);
    for (counts, moved, used) in [([1, 0], 1, [1, 0]), ([0, 2], 2, [1, 2]), ([2, 1], 3, [3, 3]), ([1, 1], 0, [3, 3])] {
        assert_eq!(release(&mut bench, counts), moved);
        assert_eq!(guests.each_ref().map(|guest| guest.tx.used_index()), used);
    }
    assert_eq!(polls(&bench), (before.0 + 4, before.1 + 4));
}

#[test]
fn both_halves_are_asked_for_the_requests_that_a_queue_waits_for() {
    let (mut bench, mut guests) = both();
    guests.iter_mut().for_each(offer);
    bench.turn();
    for (n, guest) in guests.iter().enumerate() {
        let before = [bench.engine.backend().first().reclaims, bench.engine.backend().second().reclaims];
        assert!(guest.shared.reset_queue(TX));
        bench.turn();
        assert!(!guest.shared.queue_reset_done(TX));
        release(&mut bench, if n == 0 { [1, 0] } else { [0, 1] });
        assert!(guest.shared.queue_reset_done(TX));
        let after = [bench.engine.backend().first().reclaims, bench.engine.backend().second().reclaims];
        assert_eq!([after[0] - before[0], after[1] - before[1]], [2; 2], "both, as long as one waits");
    }
}

#[test]
fn three_are_a_pair_of_which_one_half_is_a_pair() {
    let guests = [0, 1, 2].map(|slot| Guest::new(slot, FEATURES, 16));
    let three = Pair::new(Noting::default(), Pair::new(Noting::default(), Noting::default()));
    let mut bench = Bench::new(three, per_device());
    let halves = [Half::Second(Half::Second(2)), Half::First(0), Half::Second(Half::First(1))];
    for (guest, config) in guests.iter().zip(halves) {
        let attachment = Attachment { requests: Requests::Notify, ..guest.attachment_with(guest.slot, config) };
        assert_eq!(bench.command(Command::Attach(attachment)), Reply::Attached);
    }
    let pair = bench.engine.backend();
    let attached = [pair.first(), pair.second().first(), pair.second().second()].map(|third| third.calls()[0]);
    assert_eq!(attached, [Call::Attached(1, 0), Call::Attached(2, 1), Call::Attached(0, 2)]);
}
