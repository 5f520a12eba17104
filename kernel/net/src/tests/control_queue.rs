//! The control queue end to end: what a driver sets, the results that it reads, and the frames that it receives.

use nic::Nic;

use super::ALL;
use crate::policy::Policy;
use crate::policy::stage::{Action, Rule, Sink, Stage};
use crate::testing::{BROADCAST, BUFFERS, DriverQueue, Guest};
use crate::tests::support::Bench;
use crate::tests::support::nic::with_uplinks;
use crate::uplink::Held;
use engine::control::{Command, Reply};
use engine::requests::Requests;
use virtio::fault::Fault;

/// With one pair.
const CONTROL: u16 = 2;
const AT: u64 = BUFFERS + 0x20_0000;
const GROUP: [u8; 6] = [1, 0, 0x5e, 0, 0, 9];

/// A guest whose driver has set its control queue up too.
struct Controlled {
    guest: Guest,
    control: DriverQueue,
}

impl Controlled {
    fn new<N: Nic<Token = Held>>(number: u8, bench: &mut Bench<N>, port: usize) -> Self {
        Self::of(Guest::new(number, ALL, 64, 1500), bench, port)
    }

    fn of<N: Nic<Token = Held>>(guest: Guest, bench: &mut Bench<N>, port: usize) -> Self {
        assert_eq!(bench.attach_with(port, &guest, Requests::Poll), Reply::Attached);
        let mut this = Self { control: DriverQueue::new(&guest.memory, CONTROL, 64, ALL.ring()), guest };
        this.start(bench);
        this.guest.post(60, &[1526]);
        this
    }

    fn start<N: Nic<Token = Held>>(&mut self, bench: &mut Bench<N>) {
        let Self { guest, control } = self;
        guest.shared.request_reset();
        bench.turn();
        *control = DriverQueue::new(&guest.memory, CONTROL, 64, ALL.ring());
        // Before `start` makes the device run.
        assert!(guest.shared.configure_queue(CONTROL, &control.config));
        guest.start();
        bench.turn();
        bench.turn();
    }

    /// The answer to a command that is in one buffer, or in one and its last `tail` bytes in another.
    fn ask<N: Nic<Token = Held>>(&mut self, bench: &mut Bench<N>, command: &[u8], tail: usize) -> u8 {
        let memory = self.guest.memory.clone();
        memory.write(AT, command).unwrap();
        memory.write(AT + 0xff0, &[0xee]).unwrap();
        let cut = (command.len() - tail) as u32;
        let mut buffers = vec![(AT, cut, false), (AT + u64::from(cut), tail as u32, false), (AT + 0xff0, 1, true)];
        buffers.retain(|&(_, len, _)| len != 0);
        self.control.add(&buffers).unwrap();
        assert!(self.control.kick_prepare(), "a control queue is never polled");
        self.guest.shared.kick(CONTROL);
        bench.turn();
        let (_, written) = self.control.take_used().expect("obeyed within a turn of the kick");
        assert_eq!(written, 1);
        bench.turn();
        memory.read_u8(AT + 0xff0).unwrap()
    }

    /// How many of the frames that have arrived.
    fn arrived(&mut self) -> usize {
        std::iter::from_fn(|| self.guest.receive()).count()
    }
}

#[test]
fn frames_that_a_driver_does_not_want_are_not_given_to_it() {
    let mut bench = Bench::new();
    let mut a = Controlled::new(1, &mut bench, 0);
    let mut b = Controlled::new(2, &mut bench, 1);
    let mut send = |bench: &mut Bench, b: &mut Controlled, to, tagged: bool| {
        let mut frame = a.guest.frame(to, 100, 1);
        if tagged {
            frame[12..16].copy_from_slice(&[0x81, 0, 0, 5]);
        }
        assert!(a.guest.send(&frame, &[]));
        bench.turn();
        b.arrived()
    };
    let own = b.guest.mac;
    for to in [own, BROADCAST, GROUP, [6; 6]] {
        assert_eq!(send(&mut bench, &mut b, to, false), 1, "promiscuous at first");
    }
    assert_eq!(b.ask(&mut bench, &[0, 0, 0], 1), 0);
    for (to, wanted) in [(own, 1), (BROADCAST, 1), (GROUP, 0), ([6; 6], 0)] {
        assert_eq!(send(&mut bench, &mut b, to, false), wanted);
    }
    assert_eq!(b.guest.counters().frames.rx_not_wanted.get(), 2);
    let table = [&[1, 0][..], &[0; 4], &[1, 0, 0, 0], &GROUP].concat();
    assert_eq!(b.ask(&mut bench, &table, 10), 0);
    assert_eq!(send(&mut bench, &mut b, GROUP, false), 1);
    // VLANs: none was asked for.
    assert_eq!((send(&mut bench, &mut b, own, true), send(&mut bench, &mut b, BROADCAST, true)), (0, 0));
    assert_eq!(b.ask(&mut bench, &[2, 0, 5, 0], 2), 0);
    assert_eq!((send(&mut bench, &mut b, own, true), send(&mut bench, &mut b, BROADCAST, true)), (1, 1));
    assert_eq!(b.ask(&mut bench, &[2, 9, 5, 0], 2), 1, "no such command");
    // A reset forgets it all.
    b.start(&mut bench);
    b.guest.post(60, &[1526]);
    assert_eq!(send(&mut bench, &mut b, [6; 6], false), 1);
}

/// A command that sets the table of multicast addresses, for the groups with these numbers.
fn groups(numbers: impl IntoIterator<Item = u8>) -> Vec<u8> {
    let groups: Vec<[u8; 6]> = numbers.into_iter().map(|n| [1, 0, 0x5e, 0, 0, n]).collect();
    [&[1, 0, 0, 0, 0, 0][..], &(groups.len() as u32).to_le_bytes(), &groups.concat()].concat()
}

#[test]
fn a_nic_lets_in_the_multicasts_that_drivers_ask_for_and_all_where_one_wants_all_or_they_are_too_many() {
    let (mut bench, ends) = with_uplinks([None]);
    let (wire, counters) = (&ends[0].wire, ends[0].counters);
    // The last byte of each; None: all.
    let told = |bench: &mut Bench<_>| {
        bench.now += 1000;
        bench.turn();
        let last = wire.borrow().groups.last().expect("it was told").clone();
        assert_eq!(counters.nic_all_multicast.get(), u64::from(last.is_none()));
        last.map(|all| all.iter().map(|group| group[5]).collect::<Vec<_>>())
    };
    assert_eq!(told(&mut bench), Some(vec![]), "nobody is there");
    let mut a = Controlled::new(1, &mut bench, 0);
    let mut b = Controlled::new(2, &mut bench, 1);
    assert_eq!(told(&mut bench), None, "they have said nothing");
    for guest in [&mut a, &mut b] {
        assert_eq!(guest.ask(&mut bench, &[0, 0, 0], 1), 0);
    }
    assert_eq!(told(&mut bench), Some(vec![]));
    assert_eq!(a.ask(&mut bench, &groups([9, 5]), 0), 0);
    assert_eq!(b.ask(&mut bench, &groups([7, 9]), 0), 0);
    assert_eq!(told(&mut bench), Some(vec![9, 5, 7]));
    assert_eq!(b.ask(&mut bench, &[0, 1, 1], 0), 0, "all multicasts");
    assert_eq!(told(&mut bench), None);
    assert_eq!(b.ask(&mut bench, &[0, 1, 0], 0), 0);
    assert_eq!(b.ask(&mut bench, &groups(0..17), 0), 0, "more than are told apart");
    assert_eq!(told(&mut bench), None);
    let times = wire.borrow().groups.len();
    for n in 0..200 {
        assert_eq!(b.ask(&mut bench, &groups([n]), 0), 0);
    }
    assert_eq!(wire.borrow().groups.len(), times, "not before the NIC is looked after again");
    assert_eq!(told(&mut bench), Some(vec![9, 5, 199]));
    // A driver that has let go of its device wants nothing.
    b.guest.shared.request_reset();
    bench.turn();
    assert_eq!(a.ask(&mut bench, &groups([5]), 0), 0);
    assert_eq!(told(&mut bench), Some(vec![5]));
}

#[test]
fn a_nic_lets_in_all_multicasts_where_what_comes_for_a_guest_is_shown_to_another() {
    let (mut bench, ends) = with_uplinks([None]);
    let mut watched = Policy::default();
    watched.leave.push(Stage::new(Rule::default(), Action::Mirror(Sink::Port(1)))).expect("there is room");
    let guest = Guest::behind(1, ALL, 64, 1500, Some(Box::leak(Box::new(watched))), None);
    let mut a = Controlled::of(guest, &mut bench, 0);
    assert_eq!(a.ask(&mut bench, &[0, 0, 0], 1), 0);
    bench.now += 1000;
    bench.turn();
    assert_eq!(ends[0].wire.borrow().groups.last(), Some(&None));
}

#[test]
fn a_command_that_is_too_long_is_refused_and_one_without_room_for_an_answer_breaks_the_device() {
    let mut bench = <Bench>::new();
    let mut a = Controlled::new(1, &mut bench, 0);
    assert_eq!(a.ask(&mut bench, &[0; 2049], 0), 1);
    assert_eq!(a.ask(&mut bench, &[0; 1], 0), 1);
    a.control.add(&[(AT, 3, false)]).unwrap();
    a.guest.shared.kick(CONTROL);
    bench.turn();
    assert!(a.guest.shared.needs_reset());
    assert_eq!(a.guest.shared.faults().filter(|&(_, n)| n != 0).collect::<Vec<_>>(), [(Fault::Direction, 1)]);
}

#[test]
fn a_driver_that_goes_on_from_a_saved_state_is_asked_to_announce_itself() {
    let mut bench = <Bench>::new();
    let mut a = Controlled::new(1, &mut bench, 0);
    let status = |a: &Controlled| a.guest.shared.read_config(6, 2);
    assert_eq!(status(&a), 1);
    let Reply::Detached(Some(state)) = bench.command(Command::Detach { slot: 0 }) else { panic!("a saved state") };
    bench.interrupts.take();
    let attachment = engine::control::Attachment { state: Some(state), ..a.guest.attachment(0) };
    assert_eq!(bench.command(Command::Attach(attachment)), Reply::Attached);
    bench.turn();
    assert_eq!(status(&a), 3, "link up, announce");
    assert!(bench.interrupts.take().iter().any(|&(_, vector)| vector == a.guest.vector(0)));
    for (up, with) in [(false, 2), (true, 3)] {
        assert!(crate::status::set(a.guest.shared, crate::status::LINK_UP, up));
        assert_eq!(status(&a), with, "the link's change leaves the wish to announce alone");
    }
    assert_eq!(a.ask(&mut bench, &[3, 0], 0), 0);
    assert_eq!(status(&a), 1);
}
