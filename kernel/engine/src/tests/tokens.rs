//! The token contract, with a back-end that completes late and out of order.

use super::{OUT_OF_ORDER, PACKED};
use crate::control::{Command, Control, Reply};
use crate::engine::Engine;
use crate::order::Track;
use crate::schedule::PerDevice;
use crate::testing::Recorder;
use crate::tests::support::guest::Guest;
use crate::tests::support::late::Late;
use virtio::phase::Phase;
use virtio::testing::BUFFERS;

struct Lab {
    engine: Engine<Late, PerDevice, Recorder>,
    guest: Guest,
    control: &'static Control<()>,
}

fn lab() -> Lab {
    let control: &Control<()> = Box::leak(Box::default());
    let mut engine = Engine::new(control, Late::default(), PerDevice::new(64), Recorder::default());
    let guest = Guest::new(0, OUT_OF_ORDER, 16);
    attach(control, &guest);
    engine.turn(0);
    assert_eq!(control.reply(), Some(Reply::Attached));
    Lab { engine, guest, control }
}

fn attach(control: &Control<()>, guest: &Guest) {
    control.submit(Command::Attach(guest.attachment(0))).unwrap();
}

impl Lab {
    fn offer(&mut self, n: u16) -> Vec<u16> {
        (0..n).map(|_| self.guest.tx.add(&[(BUFFERS, 100, false)]).unwrap()).collect()
    }

    fn release(&mut self, n: usize) -> u32 {
        self.engine.backend_mut().release = n;
        self.engine.turn(0)
    }

    /// Sends a command, and returns the reply, which comes in the same turn.
    fn ask(&mut self, command: Command<()>) -> Option<Reply> {
        self.control.submit(command).unwrap();
        self.engine.turn(0);
        self.control.reply()
    }

    fn detach(&mut self) -> Option<Reply> {
        self.ask(Command::Detach { slot: 0 })
    }
}

#[test]
fn requests_complete_in_another_turn_and_in_any_order() {
    let mut lab = lab();
    let heads = lab.offer(4);
    assert_eq!(lab.engine.turn(0), 4);
    assert_eq!(lab.guest.tx.used_index(), 0);
    assert_eq!(lab.release(3), 3);
    for head in [heads[3], heads[2], heads[1]] {
        assert_eq!(lab.guest.tx.take_used(), Some((head, 7)));
    }
    assert_eq!(lab.release(1), 1);
    assert_eq!(lab.guest.tx.take_used(), Some((heads[0], 7)));
}

#[test]
fn a_device_that_is_drained_takes_nothing_more_and_completes_what_it_has() {
    let mut lab = lab();
    let heads = lab.offer(3);
    lab.engine.turn(0);
    assert_eq!(lab.ask(Command::Drain { slot: 0 }), Some(Reply::Detaching), "all are in flight");
    lab.offer(2);
    for released in [1, 1] {
        lab.release(released);
        lab.engine.turn(0);
        assert_eq!(lab.ask(Command::Drain { slot: 0 }), Some(Reply::Detaching), "a request is in flight");
    }
    lab.release(1);
    let Some(Reply::Detached(Some(state))) = lab.ask(Command::Drain { slot: 0 }) else { panic!("a saved state") };
    let used: Vec<_> = std::iter::from_fn(|| lab.guest.tx.take_used()).map(|(head, _)| head).collect();
    assert_eq!(used.len(), 3);
    assert!(heads.iter().all(|head| used.contains(head)));
    // In a packed ring, the highest bit is the wrap counter.
    let position = |n: u16| n & 0x7fff;
    let queues = state.queues.iter().map(|queue| (position(queue.avail), position(queue.used)));
    let taken: Vec<_> = queues.filter(|n| *n != (0, 0)).collect();
    assert_eq!(taken, [(3, 3)], "two requests are still to be taken");
    assert_eq!(lab.guest.shared.counters().stale_tokens.get(), 0);
}

#[test]
fn devices_are_drained_beside_each_other_and_attached_anew() {
    let mut lab = lab();
    let mut other = Guest::new(3, OUT_OF_ORDER, 16);
    lab.control.submit(Command::Attach(other.attachment(3))).unwrap();
    lab.engine.turn(0);
    assert_eq!(lab.control.reply(), Some(Reply::Attached));
    lab.offer(1);
    lab.engine.turn(0);
    assert_eq!(lab.ask(Command::Drain { slot: 0 }), Some(Reply::Detaching));
    // The other one has no request in flight, and does not wait for the first one's.
    assert!(matches!(lab.ask(Command::Drain { slot: 3 }), Some(Reply::Detached(Some(_)))));
    assert_eq!(lab.ask(Command::Drain { slot: 3 }), Some(Reply::Vacant));
    other = Guest::new(3, OUT_OF_ORDER, 16);
    lab.control.submit(Command::Attach(other.attachment(3))).unwrap();
    lab.engine.turn(0);
    assert_eq!(lab.control.reply(), Some(Reply::Attached));
    other.tx.add(&[(BUFFERS, 100, false)]).unwrap();
    assert_eq!(lab.engine.turn(0), 1, "it is served while the first one drains");
    assert_eq!(lab.ask(Command::Drain { slot: 0 }), Some(Reply::Detaching));
    lab.release(2);
    assert!(matches!(lab.ask(Command::Drain { slot: 0 }), Some(Reply::Detached(Some(_)))));
    assert!(matches!(lab.ask(Command::Drain { slot: 3 }), Some(Reply::Detached(Some(_)))));
}

#[test]
fn a_drained_device_that_broke_a_rule_stays_until_its_buffers_are_free() {
    let mut lab = lab();
    lab.offer(1);
    lab.engine.turn(0);
    lab.engine.backend_mut().dma = true;
    // A buffer outside the guest's memory.
    lab.guest.tx.add(&[(1 << 60, 100, false)]).unwrap();
    lab.engine.turn(0);
    assert!(lab.guest.shared.needs_reset());
    (0..3).for_each(|_| assert_eq!(lab.ask(Command::Drain { slot: 0 }), Some(Reply::Detaching)));
    lab.release(1);
    assert!(matches!(lab.ask(Command::Drain { slot: 0 }), Some(Reply::Detached(Some(_)))));
}

#[test]
fn a_reset_waits_for_requests_that_cannot_be_cancelled() {
    let mut lab = lab();
    lab.offer(3);
    lab.engine.turn(0);
    lab.engine.backend_mut().dma = true;
    lab.guest.shared.request_reset();
    for _ in 0..5 {
        lab.engine.turn(0);
        assert!(!lab.guest.shared.reset_done());
    }
    lab.release(2);
    assert!(!lab.guest.shared.reset_done());
    lab.release(1);
    lab.engine.turn(0);
    assert!(lab.guest.shared.reset_done());
    assert_eq!(lab.guest.tx.used_index(), 0, "nothing is completed after a reset was asked for");
    assert_eq!(lab.guest.shared.counters().stale_tokens.get(), 3);
}

#[test]
fn a_queue_is_reset_only_when_its_requests_are_back_and_the_others_go_on() {
    let mut lab = lab();
    lab.offer(3);
    lab.engine.turn(0);
    lab.offer(1);
    assert!(lab.guest.shared.reset_queue(1));
    for _ in 0..5 {
        assert_eq!(lab.engine.turn(0), 0, "nothing more is taken");
        assert!(!lab.guest.shared.queue_reset_done(1));
    }
    lab.release(2);
    assert_eq!(lab.guest.tx.used_index(), 2, "the driver may see what is completed meanwhile");
    assert!(!lab.guest.shared.queue_reset_done(1));
    lab.release(1);
    assert!(lab.guest.shared.queue_reset_done(1));
    assert_eq!(lab.guest.shared.counters().stale_tokens.get(), 0);
    assert_eq!(lab.guest.shared.phase(), Phase::Running);
}

#[test]
fn a_token_of_an_earlier_life_completes_nothing() {
    for detach in [false, true] {
        let mut lab = lab();
        lab.offer(2);
        lab.engine.turn(0);
        // A back-end that breaks its promise and keeps them.
        let kept = std::mem::take(&mut lab.engine.backend_mut().held);
        lab.guest.shared.request_reset();
        lab.engine.turn(0);
        assert!(lab.guest.shared.reset_done());
        if detach {
            assert!(matches!(lab.detach(), Some(Reply::Detached(Some(_)))));
            lab.guest.shared.restart();
            attach(lab.control, &lab.guest);
            lab.engine.turn(0);
        }
        lab.guest.start();
        let heads = lab.offer(2);
        lab.engine.turn(0);
        lab.engine.backend_mut().held.extend(kept);
        assert_eq!(lab.release(2), 0, "stale");
        assert_eq!(lab.guest.tx.used_index(), 0);
        assert_eq!(lab.release(2), 2);
        assert_eq!(lab.guest.tx.take_used(), Some((heads[1], 7)));
    }
}

#[test]
fn detaching_waits_for_the_back_end_and_gives_the_state_only_if_nothing_was_dropped() {
    let mut lab = lab();
    lab.offer(2);
    lab.engine.turn(0);
    lab.engine.backend_mut().dma = true;
    assert_eq!(lab.detach(), Some(Reply::Detaching));
    lab.offer(1);
    assert_eq!(lab.release(2), 2, "what is out comes back, nothing new is taken");
    let Some(Reply::Detached(Some(state))) = lab.detach() else { panic!("no state") };
    let at = if PACKED { 1 << 15 | 2 } else { 2 };
    assert_eq!((state.queues[1].avail, state.queues[1].used), (at, at));
    assert_eq!(lab.guest.tx.used_index(), 2);

    let mut lab = self::lab();
    lab.offer(2);
    lab.engine.turn(0);
    assert_eq!(lab.detach(), Some(Reply::Detached(None)));
}

#[test]
fn while_a_device_cannot_be_detached_every_other_command_is_answered_in_its_turn() {
    let mut lab = lab();
    let (mut second, third) = (Guest::new(1, OUT_OF_ORDER, 16), Guest::new(2, OUT_OF_ORDER, 16));
    assert_eq!(lab.ask(Command::Attach(second.attachment(1))), Some(Reply::Attached));
    lab.offer(2);
    lab.engine.turn(0);
    lab.engine.backend_mut().dma = true;
    for _ in 0..3 {
        assert_eq!(lab.detach(), Some(Reply::Detaching));
        assert_eq!(lab.ask(Command::Attach(third.attachment(2))), Some(Reply::Attached));
        assert!(matches!(lab.ask(Command::Detach { slot: 2 }), Some(Reply::Detached(Some(_)))));
    }
    // Its place stays taken.
    assert_eq!(lab.ask(Command::Attach(third.attachment(0))), Some(Reply::Occupied));
    // Two wait at a time, and neither holds the other up.
    second.tx.add(&[(BUFFERS, 100, false)]).unwrap();
    assert_eq!(lab.engine.turn(0), 1);
    let detach_second = || Command::Detach { slot: 1 };
    assert_eq!(lab.ask(detach_second()), Some(Reply::Detaching));
    assert_eq!(lab.detach(), Some(Reply::Detaching));
    lab.engine.backend_mut().dma = false;
    assert_eq!(lab.ask(detach_second()), Some(Reply::Detached(None)));
    assert_eq!(lab.detach(), Some(Reply::Detached(None)));
}

#[test]
fn a_device_that_was_to_be_drained_can_be_detached_at_once() {
    let mut lab = lab();
    lab.offer(2);
    lab.engine.turn(0);
    assert_eq!(lab.ask(Command::Drain { slot: 0 }), Some(Reply::Detaching));
    assert_eq!(lab.detach(), Some(Reply::Detached(None)), "its requests are dropped");
    attach(lab.control, &lab.guest);
    lab.guest.shared.restart();
    lab.engine.turn(0);
    assert_eq!(lab.control.reply(), Some(Reply::Attached));
    assert!(matches!(lab.detach(), Some(Reply::Detached(Some(_)))), "nothing of the former wish is left");
}

/// Completions as a [`Track`] is told of them: whether they are visible, and their positions.
#[derive(Default)]
struct Told(std::sync::Mutex<Vec<(bool, u16, u16)>>);

impl Track for Told {
    fn completing(&self, queue: u16, from: u16, to: u16) {
        assert_eq!(queue, 1);
        self.0.lock().unwrap().push((false, from, to));
    }

    fn completed(&self, _: u16, from: u16, to: u16) {
        self.0.lock().unwrap().push((true, from, to));
    }
}

fn ordered() -> (Lab, &'static Told) {
    let control: &Control<()> = Box::leak(Box::default());
    let told: &'static Told = Box::leak(Box::default());
    let mut late = Late::default();
    late.track = Some(told);
    let mut engine = Engine::new(control, late, PerDevice::new(64), Recorder::default());
    let guest = Guest::new(0, OUT_OF_ORDER, 16);
    attach(control, &guest);
    engine.turn(0);
    assert_eq!(control.reply(), Some(Reply::Attached));
    (Lab { engine, guest, control }, told)
}

#[test]
fn requests_in_order_wait_for_those_before_them() {
    let (mut lab, told) = ordered();
    let heads = lab.offer(4);
    assert_eq!(lab.engine.turn(0), 4);
    // The newest end first, and nothing is completed.
    lab.release(3);
    assert!(lab.guest.tx.take_used().is_none() && told.0.lock().unwrap().is_empty());
    lab.release(1);
    for head in heads {
        assert_eq!(lab.guest.tx.take_used(), Some((head, 7)));
    }
    let told = told.0.lock().unwrap();
    assert_eq!(told.len(), 8, "before and after each");
    for (n, pair) in told.chunks_exact(2).enumerate() {
        let [(false, from, to), (true, again, end)] = pair else { panic!("{pair:?}") };
        assert_eq!((from & 0x7fff, from, to), (n as u16, again, end));
        assert_eq!(to & 0x7fff, n as u16 + 1);
    }
}

#[test]
fn a_reset_forgets_the_order() {
    let (mut lab, _) = ordered();
    lab.offer(3);
    lab.engine.turn(0);
    lab.engine.backend_mut().dma = true;
    lab.guest.shared.request_reset();
    lab.engine.turn(0);
    assert!(!lab.guest.shared.reset_done());
    // What the back-end held on to ends after the reset was asked for.
    lab.release(3);
    lab.engine.turn(0);
    assert!(lab.guest.shared.reset_done());
    assert_eq!(lab.guest.shared.counters().stale_tokens.get(), 3);
    assert_eq!(lab.guest.tx.used_index(), 0);
}
