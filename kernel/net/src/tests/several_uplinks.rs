//! Several uplinks: which frames leave and come by which, and that none goes round.

use super::LEAVING;
use crate::mac::Mac;
use crate::policy::Policy;
use crate::policy::guard::Guard;
use crate::policy::stage::{Action, Rule, Sink, Stage};
use crate::policy::vlan::Membership;
use crate::testing::{BROADCAST, Guest};
use crate::tests::support::Bench;
use crate::tests::support::nic::{End, OUTSIDE, TestNic, Wire, add_uplink, from_outside, with_uplinks};
use crate::uplink::MAX_UPLINKS;
use engine::control::{Command, Reply};
use virtio::phase::Phase;

/// A guest whose port is kept to an uplink, or to none, with buffers posted.
fn behind(number: u8, vlan: Membership, uplink: Option<u8>) -> Guest {
    let policy: &Policy = Box::leak(Box::new(Policy { vlan, ..Policy::default() }));
    let mut guest = Guest::behind(number, LEAVING, 256, 1500, Some(policy), uplink);
    guest.post(32, &[1600]);
    guest
}

fn plain(number: u8, uplink: Option<u8>) -> Guest {
    behind(number, Membership::Plain, uplink)
}

fn attach(bench: &mut Bench<TestNic>, guests: &[&Guest]) {
    for (port, guest) in guests.iter().enumerate() {
        assert_eq!(bench.attach(port, guest), Reply::Attached);
    }
}

fn sent(end: &End) -> Vec<Vec<u8>> {
    std::mem::take(&mut end.wire.borrow_mut().sent)
}

fn received(guest: &mut Guest) -> Vec<Vec<u8>> {
    core::iter::from_fn(|| guest.receive()).collect()
}

fn comes(end: &End, frame: Vec<u8>) {
    end.wire.borrow_mut().inbox.push_back(vec![frame]);
}

#[test]
fn a_guest_sends_by_the_uplink_that_it_is_kept_to_and_by_the_first_otherwise() {
    let (mut a, mut b, mut c) = (plain(1, Some(1)), plain(2, None), plain(3, Some(2)));
    let (mut bench, ends) = with_uplinks([None, None, None]);
    attach(&mut bench, &[&a, &b, &c]);
    for (guest, end) in [(&mut a, 1), (&mut b, 0), (&mut c, 2)] {
        let frames = [guest.frame(OUTSIDE, 200, 1), guest.frame(BROADCAST, 90, 2)];
        frames.iter().for_each(|frame| assert!(guest.send(frame, &[])));
        bench.turn();
        for (n, other) in ends.iter().enumerate() {
            assert_eq!(sent(other), if n == end { frames.to_vec() } else { vec![] }, "by uplink {n}");
        }
        assert_eq!(ends[end].counters.tx_packets.get(), 2);
    }
    let seen = [received(&mut a), received(&mut b), received(&mut c)].map(|frames| frames.len());
    assert_eq!(seen, [2; 3], "guests are in one network, whatever their uplinks are: broadcasts of both others");
}

#[test]
fn what_comes_reaches_the_guests_of_that_uplink_and_leaves_by_no_other() {
    let (mut a, mut b) = (plain(1, None), plain(2, Some(1)));
    let (mut bench, ends) = with_uplinks([None, None]);
    attach(&mut bench, &[&a, &b]);
    for (n, to_all) in [(0, 60), (1, 70)] {
        comes(&ends[n], from_outside(BROADCAST, OUTSIDE, to_all));
        comes(&ends[n], from_outside(a.mac, OUTSIDE, 61));
        comes(&ends[n], from_outside(b.mac, OUTSIDE, 62));
        comes(&ends[n], from_outside([2, 9, 9, 9, 9, 9], OUTSIDE, 63));
    }
    bench.turn();
    let lengths = |guest: &mut Guest| received(guest).iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!((lengths(&mut a), lengths(&mut b)), (vec![60, 61], vec![70, 62]));
    for end in &ends {
        assert_eq!(sent(end), Vec::<Vec<u8>>::new(), "an uplink is no way through");
        let c = end.counters;
        assert_eq!((c.rx_packets.get(), c.rx_not_ours.get(), c.tx_packets.get()), (4, 2, 0));
    }
}

#[test]
fn two_uplinks_into_the_same_network_make_no_loop_and_nobody_gets_a_frame_twice() {
    let (mut a, mut b) = (plain(1, Some(0)), plain(2, Some(1)));
    let (mut bench, ends) = with_uplinks([None, None]);
    attach(&mut bench, &[&a, &b]);
    let shout = a.frame(BROADCAST, 80, 1);
    a.send(&shout, &[]);
    let outside = from_outside(BROADCAST, OUTSIDE, 64);
    ends.iter().for_each(|end| comes(end, outside.clone()));
    for _ in 0..10 {
        bench.turn();
        // The network: what leaves by one comes by the other.
        let out = [sent(&ends[0]), sent(&ends[1])];
        out[0].iter().for_each(|frame| comes(&ends[1], frame.clone()));
        out[1].iter().for_each(|frame| comes(&ends[0], frame.clone()));
    }
    assert_eq!(received(&mut a), std::slice::from_ref(&outside));
    let mut got = received(&mut b);
    got.sort();
    assert_eq!(got, [shout, outside], "each once: from the switch, and from outside");
    assert_eq!((ends[0].counters.tx_packets.get(), ends[1].counters.tx_packets.get()), (1, 0));
    assert_eq!((ends[0].counters.rx_own_source.get(), ends[1].counters.rx_own_source.get()), (0, 1));
}

#[test]
fn each_vlan_leaves_by_the_first_uplink_that_is_in_it() {
    let tagged = |frame: &[u8], id: u8| [&frame[..12], &[0x81, 0, 0, id], &frame[12..]].concat();
    let mut a = behind(1, Membership::trunk([7, 8, 9, 10], None), None);
    let mut bound = behind(2, Membership::trunk([7, 9], None), Some(2));
    let vlans = [Membership::Access(7), Membership::trunk([7, 8], None), Membership::trunk([7, 9], None)];
    let (mut bench, ends) = with_uplinks(vlans.map(|vlan| Some(Policy { vlan, ..Policy::default() })));
    attach(&mut bench, &[&a, &bound]);
    for (id, end) in [(7, 0), (8, 1), (9, 2)] {
        let frame = a.frame(OUTSIDE, 100, id);
        a.send(&tagged(&frame, id), &[]);
        bench.turn();
        for (n, other) in ends.iter().enumerate() {
            let form = if n == 0 { frame.clone() } else { tagged(&frame, id) };
            assert_eq!(sent(other), if n == end { vec![form] } else { vec![] }, "VLAN {id} by uplink {n}");
        }
    }
    let (nowhere, seven) = (a.frame(OUTSIDE, 100, 10), bound.frame(OUTSIDE, 100, 7));
    a.send(&tagged(&nowhere, 10), &[]);
    bound.send(&tagged(&seven, 7), &[]);
    bound.send(&tagged(&seven, 8), &[]);
    bench.turn();
    assert_eq!(ends.iter().map(sent).collect::<Vec<_>>(), [vec![], vec![], vec![tagged(&seven, 7)]]);
    received(&mut a);
    // VLAN 7 comes to one from the first uplink alone, and to the other from the third.
    for (n, end) in ends.iter().enumerate() {
        let frame = from_outside(BROADCAST, OUTSIDE, 60 + n);
        comes(end, if n == 0 { frame } else { tagged(&frame, 7) });
    }
    bench.turn();
    let (of_a, of_bound) = (received(&mut a), received(&mut bound));
    assert_eq!((of_a.len(), of_a[0].len(), of_bound.len(), of_bound[0].len()), (1, 64, 1, 66));
}

#[test]
fn a_lost_link_is_told_to_its_guests_and_turns_nobody_to_another_network() {
    let (mut a, mut b, own) = (plain(1, None), plain(2, Some(1)), behind(3, Membership::Access(5), None));
    let (mut bench, ends) = with_uplinks([None, None]);
    attach(&mut bench, &[&a, &b, &own]);
    ends[0].wire.borrow_mut().up = false;
    bench.now += 1000;
    bench.turn();
    let status = [&a, &b, &own].map(|guest| guest.shared.read_config(6, 2) & 1);
    assert_eq!(status, [0, 1, 1], "who has no uplink is told of none");
    for guest in [&mut a, &mut b] {
        let frame = guest.frame(OUTSIDE, 60, 0);
        guest.send(&frame, &[]);
    }
    bench.turn();
    assert_eq!((sent(&ends[0]).len(), sent(&ends[1]).len()), (0, 1));
}

#[test]
fn a_nic_that_is_not_there_keeps_its_place() {
    let (mut a, mut b, mut c) = (plain(1, None), plain(2, Some(1)), plain(3, Some(3)));
    let (mut bench, ends) = with_uplinks([]);
    assert!(ends.is_empty());
    assert!(bench.engine.backend_mut().add_missing_uplink(None));
    let end = add_uplink(&mut bench, Wire::default(), None);
    attach(&mut bench, &[&a, &b, &c]);
    bench.now += 1000;
    for guest in [&mut a, &mut b, &mut c] {
        let frame = guest.frame(OUTSIDE, 60, 0);
        guest.send(&frame, &[]);
    }
    bench.turn();
    assert_eq!(sent(&end).iter().map(|frame| frame[11]).collect::<Vec<_>>(), [2]);
    assert_eq!([&a, &b, &c].map(|guest| guest.shared.read_config(6, 2) & 1), [1; 3], "guests reach each other");
}

#[test]
fn a_reset_waits_for_every_nic_that_reads_the_guests_memory() {
    let mut a = behind(1, Membership::trunk([7, 9], None), None);
    let vlans = [7, 9].map(|id| Some(Policy { vlan: Membership::Access(id), ..Policy::default() }));
    let (mut bench, ends) = with_uplinks(vlans);
    attach(&mut bench, &[&a]);
    for (id, end) in [(7, 0), (9, 1)] {
        ends[end].wire.borrow_mut().lets_go = false;
        let mut frame = a.frame(OUTSIDE, 1000, 0);
        frame.splice(12..12, [0x81, 0, 0, id]);
        a.send(&frame, &[]);
    }
    bench.turn();
    assert_eq!((sent(&ends[0]).len(), sent(&ends[1]).len()), (1, 1));
    a.shared.request_reset();
    for end in &ends {
        bench.turn();
        assert_eq!(a.shared.phase(), Phase::Resetting);
        end.wire.borrow_mut().lets_go = true;
    }
    bench.turn();
    assert_eq!(a.shared.phase(), Phase::Idle);
}

#[test]
fn there_are_no_more_than_there_can_be_and_a_port_forgets_its_choice() {
    let (mut bench, ends) = with_uplinks([const { None }; MAX_UPLINKS]);
    assert!(!bench.engine.backend_mut().add_missing_uplink(None));
    let (kept, mut free) = (plain(1, Some(3)), plain(2, None));
    assert_eq!(bench.attach(0, &kept), Reply::Attached);
    assert!(matches!(bench.command(Command::Detach { slot: 0 }), Reply::Detached(_)));
    assert_eq!(bench.attach(0, &free), Reply::Attached);
    let frame = free.frame(OUTSIDE, 60, 0);
    free.send(&frame, &[]);
    bench.turn();
    assert_eq!(ends.iter().map(|end| sent(end).len()).collect::<Vec<_>>(), [1, 0, 0, 0]);
}

/// A guest that may send under its own address and these only.
fn guarded(number: u8, others: &[u8], uplink: Option<u8>) -> Guest {
    let mac = |n: &u8| Mac::new([2, 0, 0, 0, 0, *n]);
    let fixed = others.iter().map(mac).collect();
    let macs: Vec<Mac> = others.iter().chain([&number]).map(mac).collect();
    let policy = Policy { guard: Guard::new(&macs, &[]).expect("there is room"), fixed, ..Policy::default() };
    Guest::behind(number, LEAVING, 256, 1500, Some(Box::leak(Box::new(policy))), uplink)
}

/// For whom a NIC was last told to let unicasts in, by the last byte; None: for everybody.
fn wanted(end: &End) -> Option<Vec<u8>> {
    let wire = end.wire.borrow();
    let last = wire.set_receive_filter.last().expect("it was told").as_ref();
    assert_eq!(end.counters.nic_promiscuous.get(), u64::from(last.is_none()));
    last.map(|addresses| {
        let mut numbers: Vec<u8> = addresses.iter().map(|address| address[5]).collect();
        numbers.sort_unstable();
        numbers
    })
}

#[test]
fn every_queue_of_a_nic_is_looked_at_in_each_turn_and_none_gets_more_of_it_than_another() {
    const FLOOD: usize = 1000;
    let (mut bench, _) = with_uplinks([]);
    let end = add_uplink(&mut bench, Wire::of(4), None);
    let (mut a, mut b) = (plain(1, None), plain(2, None));
    attach(&mut bench, &[&a, &b]);
    let queue = |number: usize, frame: Vec<u8>| end.wire.borrow_mut().more[number - 1].push_back(vec![frame]);
    (0..FLOOD).for_each(|_| queue(1, from_outside(a.mac, OUTSIDE, 60)));
    queue(2, from_outside(b.mac, OUTSIDE, 61));
    // The switch says whose a frame is, not the queue.
    queue(3, from_outside(a.mac, OUTSIDE, 62));
    end.wire.borrow_mut().inbox.push_back(vec![from_outside(BROADCAST, OUTSIDE, 63)]);
    assert_eq!(bench.turn(), 16 + 3, "a quarter of the turn's 64 for each");
    let lengths = |guest: &mut Guest| received(guest).iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(lengths(&mut b), [63, 61]);
    assert_eq!(lengths(&mut a), [&[63][..], &[60; 16], &[62]].concat());
    assert_eq!((end.counters.rx_packets.get(), end.counters.rx_steered.get()), (19, 18));
}

#[test]
fn each_port_behind_a_nic_has_a_queue_for_all_of_its_addresses() {
    let guests = [guarded(1, &[41], None), guarded(2, &[], None)];
    let (mut bench, ends) = with_uplinks([None]);
    attach(&mut bench, &[&guests[0], &guests[1]]);
    let open = plain(4, None);
    assert_eq!(bench.attach(7, &open), Reply::Attached);
    pass(&mut bench);
    let wire = ends[0].wire.borrow();
    let mut queues: Vec<_> = wire.queues.iter().map(|unicast| (unicast.address[5], unicast.queue)).collect();
    queues.sort_unstable();
    assert_eq!(
        (wanted(&ends[0]), queues),
        (None, vec![(1, 1), (2, 2), (41, 1)]),
        "though one may send under any address"
    );
}

/// A turn in which NICs are looked after.
fn pass(bench: &mut Bench<TestNic>) {
    bench.now += 1000;
    bench.turn();
}

#[test]
fn a_nic_is_told_whose_unicasts_are_wanted_and_told_anew_when_that_changes() {
    let guests = [guarded(1, &[41, 42], None), guarded(2, &[], Some(1)), guarded(3, &[43], Some(0))];
    let (mut bench, ends) = with_uplinks([None, None]);
    let told = |bench: &mut Bench<TestNic>| {
        pass(bench);
        (wanted(&ends[0]), wanted(&ends[1]))
    };
    assert_eq!(told(&mut bench), (Some(vec![]), Some(vec![])));
    attach(&mut bench, &[&guests[0], &guests[1], &guests[2]]);
    assert_eq!(told(&mut bench), (Some(vec![1, 3, 41, 42, 43]), Some(vec![2])));
    let times = ends[0].wire.borrow().set_receive_filter.len();
    (0..100).for_each(|_| drop(told(&mut bench)));
    assert_eq!(ends[0].wire.borrow().set_receive_filter.len(), times, "told once");

    let open = plain(4, None);
    assert_eq!(bench.attach(3, &open), Reply::Attached);
    assert_eq!(told(&mut bench), (None, Some(vec![2])), "it may send under any address");
    assert!(matches!(bench.command(Command::Detach { slot: 3 }), Reply::Detached(_)));
    assert!(matches!(bench.command(Command::Detach { slot: 0 }), Reply::Detached(_)));
    assert_eq!(told(&mut bench), (Some(vec![3, 43]), Some(vec![2])));
}

#[test]
fn everything_is_let_in_where_it_is_watched_or_where_there_are_too_many_addresses() {
    let mut watched = Policy::default();
    watched.enter.push(Stage::new(Rule::default(), Action::Mirror(Sink::Port(0)))).expect("there is room");
    let (mut bench, ends) = with_uplinks([Some(watched), None]);
    let a = guarded(1, &[], None);
    assert_eq!(bench.attach(0, &a), Reply::Attached);
    pass(&mut bench);
    assert_eq!((wanted(&ends[0]), wanted(&ends[1])), (None, Some(vec![])));
    for number in 0..9u8 {
        let others: Vec<u8> = (0..15).map(|n| 20 + number * 15 + n).collect();
        let guest = guarded(2 + number, &others, Some(1));
        assert_eq!(bench.attach(usize::from(number) + 1, &guest), Reply::Attached);
        pass(&mut bench);
        let known = 16 * (usize::from(number) + 1);
        assert_eq!(wanted(&ends[1]).map(|all| all.len()), (known <= 127).then_some(known));
    }
}
