//! Devices that come and go, and what they are when they go on elsewhere.

use super::{ALL, PACKED};
use crate::control::{Attachment, Command, Control, Reply};
use crate::maps::Maps;
use crate::engine::Engine;
use crate::requests::Requests;
use crate::schedule::{GuestWeight, PerDevice, Portion, QueueId, Schedule, Served, Visit};
use crate::slots::MAX_SLOTS;
use crate::testing::Recorder;
use crate::tests::support::guest::{Guest, TX};
use crate::tests::support::relay::Relay;
use crate::tests::support::{Bench, per_device};
use virtio::fault::Fault;
use virtio::queue::Backlog;
use virtio::state::BadState;

use std::sync::Mutex;

/// A map that notes its calls, each with the guest.
struct Noted {
    calls: Mutex<Vec<(&'static str, usize)>>,
    control: &'static Control<()>,
}

impl Noted {
    fn take(&self) -> Vec<(&'static str, usize)> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }
}

impl Maps for Noted {
    fn map(&self, guest: usize) {
        self.calls.lock().unwrap().push(("map", guest));
    }

    fn unmap(&self, guest: usize) {
        assert_eq!(self.control.reply(), None, "the memory is unmapped before the control core is told");
        self.calls.lock().unwrap().push(("unmap", guest));
    }
}

#[test]
fn a_guests_memory_is_mapped_for_each_device_that_the_engine_has_and_for_no_other() {
    let (a, b) = (Guest::new(0, ALL, 64), Guest::new(1, ALL, 64));
    let mut bench = Bench::new(Relay::default(), per_device());
    let maps: &Noted =
        Box::leak(Box::new(Noted { calls: Mutex::default(), control: bench.engine.control() }));
    bench.engine.set_maps(maps);
    let of = |guest, slot: usize, device: &Guest| {
        Command::Attach(Attachment { share: GuestWeight::of_guest(guest), ..device.attachment(slot) })
    };
    assert_eq!(bench.command(of(7, 0, &a)), Reply::Attached);
    assert_eq!(maps.take(), [("map", 7)]);
    assert_eq!((bench.command(of(5, 0, &b)), maps.take()), (Reply::Occupied, vec![]));
    assert_eq!((bench.command(of(5, MAX_SLOTS, &b)), maps.take()), (Reply::NoSuchSlot, vec![]));
    assert_eq!(bench.command(of(7, 1, &b)), Reply::Attached);
    assert_eq!(maps.take(), [("map", 7)], "once for each device");
    assert_eq!((bench.command(Command::Detach { slot: 3 }), maps.take()), (Reply::Vacant, vec![]));
    let Reply::Detached(Some(mut state)) = bench.command(Command::Detach { slot: 1 }) else { panic!("no state") };
    assert_eq!(maps.take(), [("unmap", 7)]);
    assert!(matches!(bench.command(Command::Detach { slot: 0 }), Reply::Detached(_)));
    assert_eq!(maps.take(), [("unmap", 7)]);
    b.shared.restart();
    state.version = 2;
    let attachment = Attachment { share: GuestWeight::of_guest(4), state: Some(state), ..b.attachment(1) };
    assert_eq!(bench.command(Command::Attach(attachment)), Reply::BadState(BadState::Version(2)));
    assert_eq!(maps.take(), [("map", 4), ("unmap", 4)]);
}

#[test]
fn slots_come_and_go_by_command_only_when_they_can() {
    let a = Guest::new(0, ALL, 64);
    let mut bench = Bench::with(&[&a]);
    assert_eq!(bench.attach(0, &a), Reply::Occupied);
    assert_eq!(bench.attach(MAX_SLOTS, &a), Reply::NoSuchSlot);
    assert_eq!(bench.command(Command::Detach { slot: MAX_SLOTS }), Reply::NoSuchSlot);
    assert_eq!(bench.command(Command::Detach { slot: 3 }), Reply::Vacant);
    let control = bench.engine.control();
    control.submit(Command::Detach { slot: 3 }).unwrap();
    assert!(control.submit(Command::Detach { slot: 0 }).is_err(), "one at a time");
    assert_eq!(control.reply(), None, "not before a turn");
}

#[test]
fn a_weight_is_changed_by_command_and_service_goes_on() {
    let (mut a, mut b) = (Guest::new(0, ALL, 64), Guest::new(1, ALL, 64));
    let mut bench = Bench::with(&[&a, &b]);
    b.post(60, 1526);
    for (i, guest) in [0, 1, 5, MAX_SLOTS, usize::MAX].into_iter().enumerate() {
        assert_eq!(bench.command(Command::Reweigh(GuestWeight { guest, weight: 7 })), Reply::Reweighed);
        let message = a.message(b.slot, 60, i as u8);
        a.send(&message);
        bench.turn();
        assert_eq!(b.receive(), Some(message));
    }
    assert!(matches!(bench.command(Command::Detach { slot: 1 }), Reply::Detached(Some(_))));
}

/// A schedule that notes with which weights queues come into it.
struct Weighed {
    schedule: PerDevice,
    weights: &'static Mutex<Vec<(usize, GuestWeight)>>,
}

impl Schedule for Weighed {
    fn enter(&mut self, queue: QueueId, share: GuestWeight, announced: bool) {
        self.weights.lock().unwrap().push((queue.slot(), share));
        self.schedule.enter(queue, share, announced);
    }

    fn leave(&mut self, queue: QueueId) {
        self.schedule.leave(queue);
    }

    fn reweigh(&mut self, share: GuestWeight) {
        self.weights.lock().unwrap().push((MAX_SLOTS, share));
    }

    fn next(&mut self, is_idle: impl FnMut(QueueId) -> bool) -> Option<Visit> {
        self.schedule.next(is_idle)
    }

    fn one_visit_a_turn(&self) -> bool {
        self.schedule.one_visit_a_turn()
    }

    fn charge(&mut self, queue: QueueId, ticks: u64) {
        self.schedule.charge(queue, ticks);
    }

    fn go_on(
        &mut self,
        served: Served,
        spent: u64,
        now: u64,
        backlog: impl FnMut(QueueId) -> Option<Backlog>,
    ) -> Option<Portion> {
        self.schedule.go_on(served, spent, now, backlog)
    }
}

#[test]
fn a_queue_that_is_notified_later_has_its_guest_s_new_weight() {
    let mut guests = [0, 1, 2].map(|slot| Guest::new(slot, ALL, 64));
    let weights: &Mutex<Vec<(usize, GuestWeight)>> = Box::leak(Box::default());
    let control: &Control<()> = Box::leak(Box::new(Control::new()));
    let interrupts: &Recorder = Box::leak(Box::default());
    let schedule = Weighed { schedule: PerDevice::new(64), weights };
    let mut engine = Box::new(Engine::new(control, Relay::default(), schedule, interrupts));
    let mut now = 0;
    let mut command = |command| {
        assert!(control.submit(command).is_ok());
        now += 1;
        engine.turn(now);
        control.reply()
    };
    // The first two are of one guest.
    for (guest, number) in guests.iter().zip([7, 7, 8]) {
        let share = GuestWeight::of_guest(number);
        let attachment = Attachment { requests: Requests::Notify, share, ..guest.attachment(guest.slot) };
        assert_eq!(command(Command::Attach(attachment)), Some(Reply::Attached));
    }
    weights.lock().unwrap().clear();
    let new = GuestWeight { guest: 7, weight: 5 };
    assert_eq!(command(Command::Reweigh(new)), Some(Reply::Reweighed));
    for guest in &mut guests {
        let message = guest.message(guest.slot, 60, 0);
        assert!(guest.send(&message));
        guest.shared.kick(TX);
    }
    engine.turn(100);
    let noted = weights.lock().unwrap().clone();
    assert_eq!(noted, [(MAX_SLOTS, new), (0, new), (1, new), (2, GuestWeight::of_guest(8))]);
}

#[test]
fn a_device_moves_to_another_engine_and_goes_on_where_it_was() {
    let (mut a, mut b) = (Guest::new(0, ALL, 64), Guest::new(1, ALL, 64));
    let mut bench = Bench::with(&[&a, &b]);
    b.post(60, 1526);
    for i in 0..20 {
        let message = a.message(b.slot, 60, i);
        a.send(&message);
        bench.turn();
        assert_eq!(b.receive(), Some(message));
    }
    let Reply::Detached(Some(state)) = bench.command(Command::Detach { slot: 1 }) else { panic!("no state") };
    let at = if PACKED { 1 << 15 | 20 } else { 20 };
    assert_eq!((state.queues[0].avail, state.queues[0].used), (at, at));
    assert_eq!(bench.command(Command::Detach { slot: 1 }), Reply::Vacant);
    let message = a.message(b.slot, 60, 0);
    a.send(&message);
    bench.turn();
    assert_eq!((b.receive(), b.rx.used_index()), (None, 20), "nothing touches it any more");

    b.shared.restart();
    let mut other = Bench::new(Relay::default(), per_device());
    let mut c = Guest::new(2, ALL, 64);
    other.attach(0, &c);
    let attach = |state| Command::Attach(Attachment { state: Some(state), ..b.attachment(7) });
    let mut bad = state;
    bad.version = 2;
    assert_eq!(other.command(attach(bad)), Reply::BadState(BadState::Version(2)));
    bad = state;
    bad.queues[1].config.used = u64::MAX - 3;
    assert_eq!(other.command(attach(bad)), Reply::BadState(BadState::Queue(Fault::RingAddress)));
    assert_eq!(other.command(attach(state)), Reply::Attached);
    b.rx.enable_interrupts();
    let message = c.message(7, 600, 77);
    c.send(&message);
    other.turn();
    assert_eq!(b.receive(), Some(message));
    assert!(other.interrupts.take().contains(&(7, b.vector(1))), "with its MSI-X table");
}

#[test]
fn a_queue_that_is_re_addressed_while_live_stays_where_it_was() {
    let (mut a, mut b) = (Guest::new(0, ALL, 64), Guest::new(1, ALL, 64));
    let mut bench = Bench::with(&[&a, &b]);
    b.post(8, 1526);
    let mut moved = b.rx.config;
    moved.desc = u64::MAX;
    assert!(!b.shared.configure_queue(0, &moved));
    let message = a.message(b.slot, 60, 0);
    a.send(&message);
    bench.turn();
    assert_eq!(b.receive(), Some(message));
    assert_eq!(b.shared.counters().faults.get(), 0);
}
