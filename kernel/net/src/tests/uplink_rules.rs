//! The rules of an uplink, with frames: its VLANs, its stages, and its limit of frames for many.

use super::LEAVING;
use crate::policy::Policy;
use crate::policy::limit::{Bucket, Rate};
use crate::policy::stage::{Action, Rule, Sink, Stage, Unit};
use crate::mac::Mac;
use crate::policy::vlan::Membership;
use crate::switch::PORT_LIMIT;
use crate::testing::{BROADCAST, Guest};
use crate::tests::support::Bench;
use crate::tests::support::nic::{End, OUTSIDE, TestNic, from_outside, with_uplinks};
use engine::control::Reply;

fn guest(number: u8, vlan: Membership) -> Guest {
    let policy: &Policy = Box::leak(Box::new(Policy { vlan, ..Policy::default() }));
    let mut guest = Guest::with_rules(number, LEAVING, 256, 1500, Some(policy));
    guest.post(32, &[1600]);
    guest
}

/// An engine with these guests, whose uplink has these rules.
fn bench(policy: Policy, guests: &[&Guest]) -> (Bench<TestNic>, End) {
    let (mut bench, mut ends) = with_uplinks([Some(policy)]);
    for (port, guest) in guests.iter().enumerate() {
        assert_eq!(bench.attach(port, guest), Reply::Attached);
    }
    (bench, ends.remove(0))
}

fn in_vlan(vlan: Membership) -> Policy {
    Policy { vlan, ..Policy::default() }
}

fn tagged(frame: &[u8], tag: u16) -> Vec<u8> {
    [&frame[..12], &[0x81, 0], &tag.to_be_bytes(), &frame[12..]].concat()
}

fn sent(end: &End) -> Vec<Vec<u8>> {
    std::mem::take(&mut end.wire.borrow_mut().sent)
}

fn received(guest: &mut Guest) -> Vec<Vec<u8>> {
    core::iter::from_fn(|| guest.receive()).collect()
}

/// Takes what has arrived, and posts as many buffers.
fn refill(guest: &mut Guest) {
    let count = received(guest).len();
    guest.post(count, &[1600]);
}

fn comes(end: &End, frame: &[u8]) {
    // In two pieces, the first of which ends within the addresses.
    end.wire.borrow_mut().inbox.push_back(vec![frame[..9].to_vec(), frame[9..].to_vec()]);
}

fn used(guest: &mut Guest) -> usize {
    core::iter::from_fn(|| guest.tx.take_used()).count()
}

#[test]
fn a_trunk_takes_and_gives_the_tags_that_it_lists() {
    let (mut a, mut b) = (guest(1, Membership::Access(7)), guest(2, Membership::trunk([7, 9], None)));
    let mut c = guest(3, Membership::Access(5));
    let (mut bench, end) = bench(in_vlan(Membership::trunk([7, 9], Some(9))), &[&a, &b, &c]);
    for len in [60, 300, 1500] {
        let (from_a, from_b, from_c) = (a.frame(OUTSIDE, len, 1), b.frame(OUTSIDE, len, 2), c.frame(OUTSIDE, len, 3));
        a.send(&from_a, &[12, 40]);
        b.send(&tagged(&from_b, 9), &[]);
        b.send(&tagged(&from_b, 0x6007), &[]);
        c.send(&from_c, &[]);
        bench.turn();
        let out = [tagged(&from_a, 7), from_b.clone(), tagged(&from_b, 0x6007)];
        assert_eq!(sent(&end), out, "with a tag, the native one without, with its priority; VLAN 5 stays here");
        // The NIC is done with them in the next turn.
        bench.turn();
        assert_eq!((used(&mut a), used(&mut b), used(&mut c)), (1, 2, 1));

        let (to_a, to_all) = (from_outside(a.mac, OUTSIDE, len), from_outside(BROADCAST, OUTSIDE, len));
        comes(&end, &tagged(&to_a, 0xe007));
        comes(&end, &tagged(&to_all, 7));
        comes(&end, &to_all);
        for tag in [5, 9, 8, 0] {
            comes(&end, &tagged(&to_all, tag));
        }
        bench.turn();
        assert_eq!(received(&mut a), [to_a, to_all.clone()]);
        assert_eq!(received(&mut b), [tagged(&to_all, 7), tagged(&to_all, 9)]);
        assert_eq!(received(&mut c), Vec::<Vec<u8>>::new());
    }
    let c = end.counters;
    assert_eq!((c.rx_packets.get(), c.rx_refused.get(), c.tx_packets.get()), (21, 12, 9));
}

#[test]
fn an_access_uplink_has_untagged_frames_of_its_vlan_only() {
    let (mut a, mut b) = (guest(1, Membership::trunk([7, 9], None)), guest(2, Membership::Plain));
    let (mut bench, end) = bench(in_vlan(Membership::Access(7)), &[&a, &b]);
    let (from_a, from_b) = (a.frame(OUTSIDE, 90, 1), b.frame(OUTSIDE, 90, 1));
    a.send(&tagged(&from_a, 7), &[]);
    a.send(&tagged(&from_a, 9), &[]);
    b.send(&from_b, &[]);
    bench.turn();
    assert_eq!(sent(&end), [from_a]);
    let to_all = from_outside(BROADCAST, OUTSIDE, 90);
    comes(&end, &to_all);
    comes(&end, &tagged(&to_all, 7));
    comes(&end, &from_outside(b.mac, OUTSIDE, 90));
    bench.turn();
    assert_eq!((received(&mut a), received(&mut b)), (vec![tagged(&to_all, 7)], vec![]));
    assert_eq!((end.counters.rx_refused.get(), end.counters.rx_not_ours.get()), (1, 1));
}

#[test]
fn a_tag_that_the_nic_has_taken_out_counts_as_one_in_the_frame() {
    let (mut a, mut b) = (guest(1, Membership::Access(7)), guest(2, Membership::trunk([7], None)));
    let (mut bench, end) = bench(in_vlan(Membership::trunk([7], None)), &[&a, &b]);
    let to_all = from_outside(BROADCAST, OUTSIDE, 700);
    end.wire.borrow_mut().stripped = Some(0x2007);
    comes(&end, &to_all);
    bench.turn();
    assert_eq!((received(&mut a), received(&mut b)), (vec![to_all.clone()], vec![tagged(&to_all, 0x2007)]));
    end.wire.borrow_mut().stripped = Some(8);
    comes(&end, &to_all);
    bench.turn();
    assert_eq!((received(&mut a), received(&mut b), end.counters.rx_refused.get()), (vec![], vec![], 1));
}

fn of_type(ether_type: u16) -> Rule {
    Rule { ether_type: Some(ether_type), ..Rule::default() }
}

/// A frame of that type.
fn typed(mut frame: Vec<u8>, ether_type: u16) -> Vec<u8> {
    frame[12..14].copy_from_slice(&ether_type.to_be_bytes());
    frame
}

#[test]
fn stages_on_the_way_in_and_out_drop_what_they_name_and_buffers_come_back() {
    let mut a = guest(1, Membership::Access(7));
    let mut policy = in_vlan(Membership::trunk([7], None));
    policy.enter.push(Stage::new(of_type(0x88b5), Action::Deny)).expect("there is room");
    policy.leave.push(Stage::new(of_type(0x88b6), Action::Deny)).expect("there is room");
    let (mut bench, end) = bench(policy, &[&a]);
    let kinds = [0x88b5, 0x88b6, 0x88b7];
    let out = kinds.map(|kind| typed(a.frame(OUTSIDE, 200, 1), kind));
    out.iter().for_each(|frame| assert!(a.send(frame, &[100])));
    let come = kinds.map(|kind| typed(from_outside(a.mac, OUTSIDE, 150), kind));
    come.iter().for_each(|frame| comes(&end, &tagged(frame, 7)));
    bench.turn();
    bench.turn();
    assert_eq!(sent(&end), [tagged(&out[0], 7), tagged(&out[2], 7)]);
    assert_eq!(received(&mut a), [come[1].clone(), come[2].clone()]);
    assert_eq!(used(&mut a), 3, "a frame that is denied gives its buffers back");
    let c = end.counters;
    assert_eq!((c.tx_denied.get(), c.rx_refused.get(), c.tx_packets.get(), c.rx_packets.get()), (1, 1, 2, 3));
    assert_eq!(a.counters().drops.tx_denied.get(), 0, "it is the uplink's rule, not the guest's");
}

#[test]
fn an_uplinks_stages_concern_no_frame_between_guests() {
    let (mut a, mut b) = (guest(1, Membership::Plain), guest(2, Membership::Plain));
    let mut policy = Policy::default();
    policy.enter.push(Stage::new(Rule::default(), Action::Deny)).expect("there is room");
    policy.leave.push(Stage::new(Rule::default(), Action::Deny)).expect("there is room");
    let (mut bench, end) = bench(policy, &[&a, &b]);
    let (direct, all) = (a.frame(b.mac, 100, 1), a.frame(BROADCAST, 100, 2));
    a.send(&direct, &[]);
    a.send(&all, &[]);
    comes(&end, &from_outside(b.mac, OUTSIDE, 100));
    bench.turn();
    assert_eq!(received(&mut b), [direct, all]);
    assert_eq!(sent(&end), Vec::<Vec<u8>>::new());
    assert_eq!((end.counters.tx_denied.get(), end.counters.rx_refused.get()), (1, 1));
}

#[test]
fn limits_count_frames_of_each_way_by_themselves() {
    let mut a = guest(1, Membership::Plain);
    let limited = |burst| {
        let rate = Rate { units: 1, burst };
        Stage::new(Rule::default(), Action::Limit(Bucket::new(rate, 1_000_000), Unit::Frames))
    };
    let mut policy = Policy::default();
    policy.enter.push(limited(3)).expect("there is room");
    policy.leave.push(limited(5)).expect("there is room");
    let (mut bench, end) = bench(policy, &[&a]);
    for _ in 0..8 {
        let frame = a.frame(OUTSIDE, 60, 0);
        a.send(&frame, &[]);
        comes(&end, &from_outside(a.mac, OUTSIDE, 60));
    }
    bench.turn();
    assert_eq!((sent(&end).len(), received(&mut a).len()), (5, 3));
    assert_eq!((end.counters.tx_denied.get(), end.counters.rx_refused.get()), (3, 5));
    bench.now += 1_000_000;
    let frame = a.frame(OUTSIDE, 60, 0);
    a.send(&frame, &[]);
    bench.turn();
    assert_eq!(sent(&end).len(), 1, "one more after its time");
}

#[test]
fn a_mirror_sees_both_ways_even_what_is_dropped_behind_it() {
    let (mut a, mut watcher) = (guest(1, Membership::Access(7)), guest(2, Membership::Plain));
    let mut policy = in_vlan(Membership::trunk([7], None));
    for chain in [&mut policy.enter, &mut policy.leave] {
        chain.push(Stage::new(Rule::default(), Action::Mirror(Sink::Port(1)))).expect("there is room");
        chain.push(Stage::new(of_type(0x88b5), Action::Deny)).expect("there is room");
    }
    let (mut bench, end) = bench(policy, &[&a, &watcher]);
    let out = [0x88b5, 0x88b6].map(|kind| typed(a.frame(OUTSIDE, 80, 1), kind));
    out.iter().for_each(|frame| assert!(a.send(frame, &[])));
    bench.turn();
    let seen = received(&mut watcher);
    assert_eq!((sent(&end), seen.len()), (vec![tagged(&out[1], 7)], 2));
    let come = [0x88b5, 0x88b6].map(|kind| typed(from_outside(a.mac, OUTSIDE, 70), kind));
    come.iter().for_each(|frame| comes(&end, &tagged(frame, 7)));
    bench.turn();
    assert_eq!(received(&mut a), [come[1].clone()]);
    assert_eq!(received(&mut watcher), come.map(|frame| tagged(&frame, 7)), "as they came");
}

#[test]
fn the_gateway_and_the_nic_are_nobody_here_and_strangers_fill_no_table() {
    const GATEWAY: [u8; 6] = [2, 0xaa, 0, 0, 0, 1];
    /// The test's NIC has this address.
    const NIC: [u8; 6] = [2, 0, 0, 0, 0, 0xff];
    let (mut a, mut b) = (guest(1, Membership::Untagged), guest(2, Membership::Untagged));
    let mut policy = Policy::default();
    policy.fixed.push(Mac::new(GATEWAY)).expect("there is room");
    let (mut bench, end) = bench(policy, &[&a, &b]);
    // To outside by the fast path and, because it is split in three, by the slow path.
    for cuts in [&[][..], &[20, 40]] {
        for source in [GATEWAY, NIC, b.mac, a.mac] {
            let mut frame = a.frame(OUTSIDE, 80, 1);
            frame[6..12].copy_from_slice(&source);
            a.send(&frame, cuts);
        }
    }
    bench.turn();
    assert_eq!(sent(&end).len(), 2, "a's own frames");
    assert_eq!(a.counters().drops.tx_spoofed_mac.get(), 6);
    // Frames to the gateway leave, and frames from it arrive.
    let to_gateway = a.frame(GATEWAY, 80, 1);
    a.send(&to_gateway, &[]);
    comes(&end, &from_outside(a.mac, GATEWAY, 80));
    bench.turn();
    assert_eq!((sent(&end), received(&mut a).len()), (vec![to_gateway], 1));
    for n in 0..4_000u16 {
        let mut frame = from_outside(if n % 2 == 0 { BROADCAST } else { a.mac }, OUTSIDE, 60);
        frame[8..10].copy_from_slice(&n.to_be_bytes());
        comes(&end, &frame);
        if n % 32 == 31 {
            bench.turn();
            refill(&mut a);
            refill(&mut b);
        }
    }
    assert_eq!(end.counters.rx_packets.get(), 4_001);
    // A guest still gets all the addresses that it may have.
    for n in 0..PORT_LIMIT {
        let mut frame = a.frame(b.mac, 60, 1);
        frame[6..12].copy_from_slice(&[6, 0, 0, 0, 0, n as u8]);
        a.send(&frame, &[]);
        bench.turn();
        b.send(&b.frame([6, 0, 0, 0, 0, n as u8], 60, 1), &[]);
        bench.turn();
        refill(&mut a);
        refill(&mut b);
    }
    assert_eq!(sent(&end), Vec::<Vec<u8>>::new(), "each address of a is known to be a's");
}

#[test]
fn frames_for_many_from_outside_are_limited_and_those_for_one_are_not() {
    let (mut a, mut b) = (guest(1, Membership::Plain), guest(2, Membership::Plain));
    let policy = Policy { storm: Some(Bucket::new(Rate { units: 1, burst: 4 }, 1_000_000)), ..Policy::default() };
    let (mut bench, end) = bench(policy, &[&a, &b]);
    for _ in 0..10 {
        comes(&end, &from_outside(BROADCAST, OUTSIDE, 60));
        comes(&end, &from_outside(a.mac, OUTSIDE, 60));
    }
    bench.turn();
    assert_eq!((received(&mut a).len(), received(&mut b).len()), (14, 4));
    assert_eq!(end.counters.rx_refused.get(), 6);
}
