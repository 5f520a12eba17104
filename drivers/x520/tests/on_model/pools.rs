//! Receive queues for addresses.

use x520::nic::{Nic, ReceiveFilter, Unicast};
use x520::{Config, Device, Filter, Steering};
use x520_model::made::{OWN, frame, packet};

use crate::bench::{Bench, small};

fn guest(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 1, n]
}

fn to(address: [u8; 6], tag: Option<u8>) -> Vec<u8> {
    let mut f = packet(true, true, (1, 2), &[address[5]; 20], false);
    f[..6].copy_from_slice(&address);
    if let Some(tag) = tag {
        f.splice(12..12, [0x81, 0, 0x20, tag]);
    }
    f
}

/// Addresses of guests. Guest `n` has queue `n`; queue 0 is for the rest.
fn steered(guests: u8) -> Vec<Unicast> {
    (1..=guests).map(|n| Unicast { address: guest(n), queue: n.into() }).collect()
}

fn up(queues: u16, filter: Filter) -> Bench {
    let config = Config { receive_queues: queues, steering: Steering::Addresses, ..small() };
    let mut b = Bench::with(config, filter, x520_model::Config::default());
    b.until_up();
    b
}

/// Delivers a frame and returns the queue on which it arrived. It must arrive only once.
#[track_caller]
fn queue_of(b: &mut Bench, f: &[u8]) -> Option<u16> {
    b.deliver(f);
    b.run();
    let mut came = Vec::new();
    for queue in 0..b.nic.limits().receive_queues {
        b.nic.receive(queue, 10, |got| {
            assert_eq!((got.pieces.concat(), got.hash), (f.to_vec(), 0));
            came.push(queue);
        });
    }
    assert!(came.len() <= 1, "{came:?}");
    came.pop()
}

#[test]
fn each_address_has_its_queue_and_the_rest_comes_by_the_first() {
    let group = [1, 0, 0x5e, 1, 2, 3];
    let filter =
        Filter { promiscuous: true, broadcast: true, groups: vec![group], addresses: steered(31), ..Filter::default() };
    let mut b = up(32, filter.clone());
    for _ in 0..2 {
        for n in 1..32 {
            for port in 0..5 {
                let mut f = to(guest(n), None);
                // Another flow, whose checksum nobody looks at here.
                f[35] = port;
                assert_eq!(queue_of(&mut b, &f), Some(n.into()), "guest {n}");
            }
        }
        for address in [OWN, group, [0xff; 6], guest(99)] {
            assert_eq!(queue_of(&mut b, &to(address, None)), Some(0), "{address:x?}");
        }
        assert_eq!(queue_of(&mut b, &to([1, 0, 0x5e, 9, 9, 9], None)), None, "of no group");
        // All of it is kept over a reset.
        let now = b.now;
        b.nic.restart(now);
        b.until_up();
    }
    b.nic.set_filter(Filter { all_multicast: true, ..filter });
    assert_eq!(queue_of(&mut b, &to([1, 0, 0x5e, 9, 9, 9], None)), Some(0));
    b.clean();
}

#[test]
fn addresses_come_and_go_while_the_device_runs() {
    let mut b = up(4, Filter { addresses: steered(2), ..Filter::default() });
    assert_eq!(queue_of(&mut b, &to(guest(3), None)), None);
    b.nic.set_filter(Filter { addresses: steered(3), ..Filter::default() });
    assert_eq!(queue_of(&mut b, &to(guest(3), None)), Some(3));
    let moved = [(2, 0), (3, 1), (4, 4)].map(|(n, queue)| Unicast { address: guest(n), queue });
    b.nic.set_filter(Filter { addresses: moved.to_vec(), ..Filter::default() });
    assert_eq!([1, 2, 3, 4].map(|n| queue_of(&mut b, &to(guest(n), None))), [None, Some(0), Some(1), Some(0)]);
    let many = (0..128).map(|n| Unicast { address: guest(n), queue: 1 }).collect();
    b.nic.set_filter(Filter { addresses: many, ..Filter::default() });
    assert_eq!(queue_of(&mut b, &to(guest(1), None)), Some(0), "too many: all come by the first");
    b.clean();
}

#[test]
fn tagged_frames_are_steered_in_the_vlans_that_are_let_in_by_name() {
    let mut b = up(4, Filter { addresses: steered(3), vlans: Some(vec![5, 6]), ..Filter::default() });
    for tag in [Some(5), Some(6), None] {
        assert_eq!(queue_of(&mut b, &to(guest(2), tag)), Some(2));
    }
    assert_eq!(queue_of(&mut b, &to(guest(2), Some(7))), None);
    b.nic.set_filter(Filter { addresses: steered(3), ..Filter::default() });
    assert_eq!(queue_of(&mut b, &to(guest(2), Some(7))), Some(0), "let in, and the switch knows what to do");
    b.clean();
}

#[test]
fn a_queue_that_nobody_empties_does_not_hold_up_the_others() {
    let mut b = up(3, Filter { addresses: steered(2), ..Filter::default() });
    (0..100).for_each(|_| b.deliver(&to(guest(1), None)));
    assert_eq!(queue_of_second(&mut b), 1);
    b.pass(1_100_000);
    assert_eq!((b.nic.statistics().no_buffer, b.nic.statistics().recoveries), (100 - 63, 0));
    assert_eq!(b.received(1).len(), 63);
    b.clean();
}

/// Delivers, in each round, 100 frames for the first guest and one for the second, and polls few of them. Returns how
/// many of the second guest's frames arrived.
fn arriving_beside_a_flood(config: Config, rounds: u8) -> (Bench, usize) {
    let mut b = Bench::with(config, Filter::default(), x520_model::Config::default());
    let unicasts = [1, 2].map(|n| Unicast { address: guest(n), queue: n.into() });
    assert!(b.nic.set_receive_filter(&ReceiveFilter { unicasts: &unicasts, ..ReceiveFilter::default() }).unicasts);
    b.until_up();
    let mut arrived = Vec::new();
    for round in 0..rounds {
        (0..100).for_each(|_| b.deliver(&to(guest(1), None)));
        let mut other = to(guest(2), None);
        other[11] = round;
        b.deliver(&other);
        b.run();
        for queue in 0..b.nic.limits().receive_queues {
            b.nic.receive(queue, 8, |got| {
                let f = got.pieces.concat();
                if f[..6] == guest(2) {
                    arrived.push(f[11]);
                }
            });
        }
    }
    assert!(arrived.is_sorted(), "in their order: {arrived:?}");
    (b, arrived.len())
}

#[test]
fn a_flood_for_one_guest_is_dropped_from_its_own_pool_and_the_other_guests_frames_all_arrive() {
    const ROUNDS: u8 = 50;
    let steered = Config { receive_queues: 3, steering: Steering::Addresses, ..small() };
    let (mut b, arrived) = arriving_beside_a_flood(steered, ROUNDS);
    assert_eq!(arrived, usize::from(ROUNDS));
    b.pass(1_100_000);
    let (came, held) = (u64::from(ROUNDS) * 8, b.received(1).len() as u64);
    assert_eq!(b.nic.statistics().no_buffer, u64::from(ROUNDS) * 100 - came - held);
    assert_eq!((b.nic.statistics().missed, b.nic.statistics().recoveries), (0, 0));
    b.clean();
    // With one queue, the second guest's frames wait behind the flood.
    let (b, arrived) = arriving_beside_a_flood(Config { receive_queues: 1, ..small() }, ROUNDS);
    assert!(arrived < usize::from(ROUNDS) / 4, "{arrived}");
    b.clean();
}

#[test]
fn an_address_changes_its_queue_without_being_left_out() {
    let mut b = up(4, Filter::default());
    for queue in [3, 1, 0, 2, 9] {
        let unicasts = [(1, queue), (2, 3)].map(|(n, queue)| Unicast { address: guest(n), queue });
        b.nic.set_receive_filter(&ReceiveFilter { unicasts: &unicasts, ..ReceiveFilter::default() });
        let expected = if queue < 4 { queue } else { 0 };
        assert_eq!([1, 2].map(|n| queue_of(&mut b, &to(guest(n), None))), [Some(expected), Some(3)]);
    }
    // In promiscuous mode the addresses keep their queues.
    let unicasts = [Unicast { address: guest(2), queue: 3 }];
    b.nic.set_receive_filter(&ReceiveFilter { unicasts: &unicasts, promiscuous: true, ..ReceiveFilter::default() });
    assert_eq!([1, 2].map(|n| queue_of(&mut b, &to(guest(n), None))), [Some(0), Some(3)]);
    b.clean();
}

fn queue_of_second(b: &mut Bench) -> usize {
    b.deliver(&to(guest(2), None));
    b.received(2).len()
}

#[test]
fn frames_leave_by_all_queues_too() {
    let config = Config { receive_queues: 2, steering: Steering::Addresses, transmit_queues: 4, ..small() };
    let mut b = Bench::with(config, Filter::default(), x520_model::Config::default());
    b.until_up();
    for queue in 0..4 {
        let f = frame(60, queue as u8);
        b.nic
            .transmit(queue, &x520::nic::Outgoing { header: &f, segments: &[], offload: Default::default() }, 1)
            .unwrap();
        b.nic.flush(queue);
    }
    b.run();
    assert_eq!(core::iter::from_fn(|| b.model.borrow_mut().take_sent()).count(), 4);
    b.clean();
}
