//! The rules of ports in a whole engine: who gets a frame, in which form, and where it is counted that somebody does not.

use proptest::prelude::*;

use super::{ALL, PACKED};
use crate::mac::Mac;
use crate::offload::HEADER_BYTES;
use crate::policy::Policy;
use crate::policy::claims::{Claims, Owner};
use crate::policy::guard::Guard;
use crate::policy::headers::{TCP, UDP};
use crate::policy::limit::{Bucket, Rate};
use crate::policy::stage::{Action, Rule, Sink, Stage, Unit};
use crate::policy::vlan::{Tagging, Membership, PLAIN, Vlan};
use crate::testing::{BROADCAST, Guest};
use crate::tests::support::Bench;

fn guest(number: u8, policy: Policy) -> Guest {
    let guest = Guest::with_rules(number, ALL, 256, 1500, Some(Box::leak(Box::new(policy))));
    post(guest)
}

fn post(mut guest: Guest) -> Guest {
    guest.post(64, &[1600]);
    guest
}

fn in_vlan(vlan: Membership) -> Policy {
    Policy { vlan, ..Policy::default() }
}

fn own(number: u8) -> Policy {
    Policy { guard: Guard::new(&[Mac::new([2, 0, 0, 0, 0, number])], &[]).unwrap(), ..Policy::default() }
}

fn tagged(frame: &[u8], tag: u16) -> Vec<u8> {
    [&frame[..12], &[0x81, 0], &tag.to_be_bytes(), &frame[12..]].concat()
}

/// An IPv4 packet to a UDP port.
fn udp(from: &Guest, to: [u8; 6], port: u16, len: usize) -> Vec<u8> {
    let mut frame =
        [&to[..], &from.mac, &[8, 0, 0x45, 0, 0, 0], &[0; 4], &[64, 17, 0, 0], &[10, 0, 0, 1, 10, 0, 0, 2]].concat();
    frame.extend([&1000u16.to_be_bytes()[..], &port.to_be_bytes(), &[0, 8, 0, 0]].concat());
    frame.extend((frame.len()..len).map(|i| i as u8));
    let total = frame.len() as u16 - 14;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame
}

fn received(guest: &mut Guest) -> Vec<Vec<u8>> {
    core::iter::from_fn(|| guest.receive()).collect()
}

fn counted(guest: &Guest) -> Vec<(&'static str, u64)> {
    let of_rules = |name: &str| {
        ["spoofed", "unreadable", "vlan", "denied", "limited", "storm"].iter().any(|cause| name.contains(cause))
    };
    guest.counted().into_iter().filter(|&(name, n)| n != 0 && of_rules(name)).collect()
}

#[test]
fn a_frame_stays_in_its_vlan_and_has_a_tag_where_one_is_wanted() {
    let mut a = guest(1, in_vlan(Membership::Access(7)));
    let mut b = guest(2, in_vlan(Membership::trunk([7, 9], None)));
    let mut c = guest(3, in_vlan(Membership::Access(9)));
    let mut d = post(Guest::new(4, ALL, 256, 1500));
    let mut bench = Bench::with(&[&a, &b, &c, &d]);
    for (len, cuts) in [(60, &[][..]), (14, &[12, 20]), (200, &[13, 100, 160]), (1514, &[12])] {
        let from_a = a.frame(BROADCAST, len, 1);
        a.send(&from_a, cuts);
        bench.turn();
        assert_eq!((received(&mut b), received(&mut c), received(&mut d)), (vec![tagged(&from_a, 7)], vec![], vec![]));
        let from_b = b.frame(c.mac, len, 2);
        b.send(&tagged(&from_b, 0x6009), cuts);
        b.send(&tagged(&from_b, 7), cuts);
        b.send(&from_b, cuts);
        bench.turn();
        // In VLAN 7 it is known that nobody has that address there.
        assert_eq!((received(&mut a), received(&mut c), received(&mut d)), (vec![], vec![from_b], vec![]));
    }
    assert_eq!(counted(&b), [("tx_vlan", 4)]);
    a.send(&tagged(&a.frame(b.mac, 60, 3), 7), &[]);
    bench.turn();
    assert_eq!((counted(&a), received(&mut b)), (vec![("tx_vlan", 1)], vec![]));
}

#[test]
fn the_priority_of_a_tag_goes_from_trunk_to_trunk() {
    let mut a = guest(1, in_vlan(Membership::trunk([7], None)));
    let mut b = guest(2, in_vlan(Membership::trunk([7], Some(8))));
    let mut bench = Bench::with(&[&a, &b]);
    let frame = tagged(&a.frame(b.mac, 1514, 1), 0xa007);
    a.send(&frame, &[12]);
    bench.turn();
    assert_eq!(received(&mut b), [frame]);
}

#[test]
fn a_guest_cannot_speak_as_another_and_is_not_found_where_it_claims_to_be() {
    let (mut a, mut b, mut c) = (guest(1, own(1)), guest(2, own(2)), post(Guest::new(3, ALL, 256, 1500)));
    let mut bench = Bench::with(&[&a, &b, &c]);
    let stranger = [2, 0, 0, 0, 0, 77];
    for source in [b.mac, stranger] {
        let mut lie = a.frame(c.mac, 60, 1);
        lie[6..12].copy_from_slice(&source);
        a.send(&lie, &[]);
    }
    let truth = a.frame(c.mac, 60, 2);
    a.send(&truth, &[]);
    bench.turn();
    assert_eq!((received(&mut c), counted(&a)), (vec![truth], vec![("tx_spoofed_mac", 2)]));
    c.send(&c.frame(stranger, 60, 3), &[]);
    bench.turn();
    assert_eq!((received(&mut a).len(), received(&mut b).len()), (1, 1), "nobody is known to have that address");
}

/// A guest's default rules. Its own address is checked if `guarded`.
fn default_rules(number: u8, guarded: bool, others: &[Owner]) -> Policy {
    let policy = if guarded { own(number) } else { Policy::default() };
    Policy { vlan: Membership::Untagged, claims: Claims::new(others), ..policy }
}

fn owner(number: u8) -> Owner {
    let (macs, addresses) = (vec![Mac::new([2, 0, 0, 0, 0, number])], vec![[10, 0, 0, number].into()]);
    Owner { vlan: Membership::Plain, macs, addresses }
}

/// An ARP reply: `sender` is 10.0.0.`last`, at the address that the frame comes from.
fn arp_reply(from: &Guest, to: [u8; 6], last: u8) -> Vec<u8> {
    let mut frame = [&to[..], &from.mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2], &from.mac, &[10, 0, 0, last]].concat();
    frame.resize(60, 0);
    frame
}

#[test]
fn without_anti_spoofing_a_guest_has_any_address_but_those_of_others() {
    let (mut a, mut b) = (guest(1, default_rules(1, false, &[owner(2)])), guest(2, own(2)));
    let mut c = guest(3, default_rules(3, true, &[owner(2)]));
    let mut bench = Bench::with(&[&a, &b, &c]);
    let from = |mac: [u8; 6], mut frame: Vec<u8>| {
        frame[6..12].copy_from_slice(&mac);
        frame
    };
    for to in [c.mac, BROADCAST] {
        // A batch of one flow, of which the middle lies.
        for source in [[2, 0, 0, 0, 0, 77], b.mac, b.mac, a.mac] {
            a.send(&from(source, a.frame(to, 60, 1)), &[]);
        }
        bench.turn();
        assert_eq!(received(&mut c).len(), 2);
        assert_eq!(received(&mut b).len(), if to == BROADCAST { 2 } else { 0 });
    }
    assert_eq!(counted(&a), [("tx_spoofed_mac", 4)]);
    a.send(&a.frame(b.mac, 60, 9), &[]);
    c.send(&c.frame(b.mac, 60, 9), &[]);
    bench.turn();
    assert_eq!(received(&mut b).len(), 2, "b is still where it is");
}

#[test]
fn arp_neighbour_discovery_and_tags_are_checked_among_frames_of_a_flow() {
    let (mut a, mut b) = (guest(1, default_rules(1, true, &[owner(3)])), guest(2, own(2)));
    let mut bench = Bench::with(&[&a, &b]);
    let neighbour = |target: u8| {
        let address = |last| [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
        let link_local = |last| [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, last];
        let head = [&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, 58, 255][..], &address(1), &address(2)].concat();
        [&b.mac[..], &a.mac, &head, &[136, 0, 0, 0, 0, 0, 0, 0], &link_local(target), &[2, 1], &a.mac].concat()
    };
    let mut v6 = neighbour(1);
    v6[20] = TCP;
    let mut service = a.frame(b.mac, 60, 1);
    service[12..14].copy_from_slice(&[0x88, 0xa8]);
    let truths = [arp_reply(&a, b.mac, 1), v6.clone(), v6.clone(), neighbour(1), a.frame(b.mac, 60, 1)];
    let lies = [arp_reply(&a, b.mac, 3), neighbour(3), service.clone(), service, tagged(&a.frame(b.mac, 60, 1), 7)];
    for (truth, lie) in truths.iter().zip(&lies) {
        // Before, among and after frames of the same addresses.
        for frame in [truth, truth, lie, truth, lie, lie, truth] {
            assert!(a.send(frame, &[]));
        }
        bench.turn();
        assert_eq!(received(&mut b), vec![truth.clone(); 4]);
    }
    assert_eq!(counted(&a), [("tx_spoofed_address", 6), ("tx_vlan", 9)]);
}

/// A frame lies where the engine itself writes while it copies the run: in the used ring of its queue. In a packed ring the
/// first descriptors are the end of the frame.
#[test]
fn what_the_rules_have_seen_is_what_arrives_whatever_is_written_there_meanwhile() {
    let udp_port = Rule { protocol: Some(UDP), destination_port: Some(80..=80), ..Rule::default() };
    let opening = Rule { protocol: Some(TCP), opening: Some(true), ..Rule::default() };
    let ether_type = Rule { ether_type: Some(0x800), ..Rule::default() };
    for (rule, six, protocol, looked_at) in [
        (ether_type, false, UDP, 14),
        (udp_port.clone(), false, UDP, 38),
        (opening.clone(), false, TCP, 38),
        (udp_port, true, UDP, 58),
        (opening, true, TCP, 58),
    ] {
        let mut policy = in_vlan(Membership::Access(7));
        policy.enter.push(Stage::new(rule, Action::Allow)).unwrap();
        policy.enter.push(Stage::new(Rule::default(), Action::Deny)).unwrap();
        let (mut a, mut b) = (guest(1, policy), guest(2, in_vlan(Membership::Access(7))));
        let mut bench = Bench::with(&[&a, &b]);
        let mut frame = udp(&a, b.mac, 80, 160);
        frame[23] = protocol;
        if six {
            let packet = [&[0x60, 0, 0, 0, 0, 106, protocol, 64][..], &[0xfd; 32], &frame[34..140]].concat();
            frame.splice(14.., packet);
            frame[12..14].copy_from_slice(&[0x86, 0xdd]);
        }
        let flags = if six { 67 } else { 47 };
        frame[flags] = 2;
        let looked_at = |frame: &[u8]| (frame[..looked_at].to_vec(), (protocol == TCP).then_some(frame[flags]));
        for _ in 0..19 {
            assert!(a.send(&frame, &[]));
        }
        let at = if PACKED { a.tx.config.desc - 80 } else { a.tx.config.used + 4 };
        let mut last = frame.clone();
        if PACKED {
            a.memory.read(at + 80, &mut last[68..]).unwrap();
        }
        a.memory.write(at, &[&[0; HEADER_BYTES], &last[..]].concat()).unwrap();
        a.tx.add(&[(at, (HEADER_BYTES + frame.len()) as u32, false)]).unwrap();
        bench.turn();
        let frames = received(&mut b);
        assert_eq!((frames.len(), &frames[18]), (20, &frame));
        assert_eq!(looked_at(&frames[19]), looked_at(&frame));
        // Behind what is read at once.
        assert_ne!(frames[19][132..148], last[132..148], "the used ring");
    }
}

#[test]
fn addresses_behind_a_port_are_found_there_before_they_speak() {
    let stranger = [2, 0, 0, 0, 0, 77];
    let mut policy = own(2);
    policy.fixed.push(Mac::new(stranger)).unwrap();
    let (mut a, mut b, mut c) = (guest(1, own(1)), guest(2, policy), guest(3, own(3)));
    let mut bench = Bench::with(&[&a, &b, &c]);
    a.send(&a.frame(stranger, 60, 3), &[]);
    bench.turn();
    assert_eq!((received(&mut b).len(), received(&mut c).len()), (1, 0));
}

#[test]
fn stages_of_both_ports_are_asked_and_what_they_do_is_counted_where_they_are() {
    let to = |port| Rule { destination_port: Some(port..=port), ..Rule::default() };
    let (mut sender, mut receiver) = (own(1), own(2));
    sender.enter.push(Stage::new(to(1), Action::Deny)).unwrap();
    sender.enter.push(Stage::new(to(3), Action::Mirror(Sink::Port(2)))).unwrap();
    receiver.leave.push(Stage::new(to(2), Action::Deny)).unwrap();
    let bucket = Bucket::new(Rate { units: 1, burst: 2 }, 1 << 40);
    receiver.leave.push(Stage::new(to(4), Action::Limit(bucket, Unit::Frames))).unwrap();
    let (mut a, mut b, mut watcher) = (guest(1, sender), guest(2, receiver), guest(3, in_vlan(Membership::Access(5))));
    let mut bench = Bench::with(&[&a, &b, &watcher]);
    for port in [1, 2, 3, 4, 4, 4] {
        a.send(&udp(&a, b.mac, port, 300), &[]);
    }
    bench.turn();
    let to_b = b.mac;
    let frames = |ports: &[u16]| ports.iter().map(|&port| udp(&a, to_b, port, 300)).collect::<Vec<_>>();
    assert_eq!((received(&mut b), received(&mut watcher)), (frames(&[3, 4, 4]), frames(&[3])));
    assert_eq!(counted(&a), [("tx_denied", 1)]);
    assert_eq!(counted(&b), [("rx_denied", 1), ("rx_limited", 1)]);
    // A mirror does not cross over to what the watcher may send, nor is it cut where the front ends.
    let c = &watcher.counters().frames;
    assert_eq!((c.rx_packets.get(), c.rx_bytes.get()), (1, 300));
    watcher.send(&udp(&watcher, a.mac, 9, 60), &[]);
    bench.turn();
    assert_eq!(received(&mut a).len(), 0);
}

#[test]
fn a_mirror_sees_frames_as_they_are_on_their_own_side() {
    let mut trunk = in_vlan(Membership::trunk([7], None));
    trunk.enter.push(Stage::new(Rule { vlan: Some(7), ..Rule::default() }, Action::Mirror(Sink::Port(2)))).unwrap();
    let mut access = in_vlan(Membership::Access(7));
    access.leave.push(Stage::new(Rule::default(), Action::Mirror(Sink::Port(2)))).unwrap();
    let (mut a, mut b, mut watcher) = (guest(1, trunk), guest(2, access), guest(3, Policy::default()));
    let mut bench = Bench::with(&[&a, &b, &watcher]);
    let frame = a.frame(b.mac, 500, 1);
    a.send(&tagged(&frame, 7), &[100]);
    bench.turn();
    assert_eq!((received(&mut b), received(&mut watcher)), (vec![frame.clone()], vec![tagged(&frame, 7), frame]));
}

#[test]
fn a_storm_is_cut_off_and_other_frames_are_not() {
    let storm = Some(Bucket::new(Rate { units: 1, burst: 3 }, 1 << 40));
    let (mut a, mut b) = (guest(1, Policy { storm, ..own(1) }), guest(2, own(2)));
    let mut bench = Bench::with(&[&a, &b]);
    for to in [BROADCAST, [1, 0, 0x5e, 0, 0, 1], [2, 9, 9, 9, 9, 9], BROADCAST, b.mac, BROADCAST] {
        a.send(&a.frame(to, 60, 0), &[]);
    }
    bench.turn();
    assert_eq!((received(&mut b).len(), counted(&a)), (4, vec![("tx_storm", 2)]));
}

#[test]
fn rules_go_with_the_device_that_has_them() {
    let mut a = guest(1, in_vlan(Membership::Access(7)));
    let mut b = guest(2, in_vlan(Membership::Access(7)));
    let mut bench = Bench::with(&[&a, &b]);
    assert!(matches!(
        bench.command(engine::control::Command::Detach { slot: 1 }),
        engine::control::Reply::Detached(Some(_))
    ));
    let mut c = post(Guest::new(3, ALL, 256, 1500));
    assert_eq!(bench.attach(1, &c), engine::control::Reply::Attached);
    a.send(&a.frame(BROADCAST, 60, 0), &[]);
    c.send(&c.frame(BROADCAST, 60, 0), &[]);
    bench.turn();
    assert_eq!((received(&mut a), received(&mut b), received(&mut c)), (vec![], vec![], vec![]));
}

fn membership() -> impl Strategy<Value = Membership> {
    prop_oneof![
        Just(Membership::Plain),
        (1..4u16).prop_map(Membership::Access),
        (proptest::collection::vec(1..4u16, 1..3), proptest::option::of(1..4u16))
            .prop_map(|(vlans, native)| Membership::trunk(vlans, native)),
    ]
}

/// A frame's VLAN, by its sender's rules.
fn vlan_of(sender: &Membership, tag: Option<u16>) -> Option<Vlan> {
    sender.admit(tag)
}

proptest! {
    #![proptest_config(crate::tests::support::cases(64))]

    /// Each frame arrives whole at all ports of its VLAN that it is for, in the form of that port, and nowhere else.
    #[test]
    fn no_frame_crosses_into_another_vlan(
        ports in proptest::collection::vec((membership(), any::<bool>()), 4),
        frames in proptest::collection::vec(
            (0usize..4, 0usize..5, proptest::option::of(0u16..5), any::<bool>(), 14usize..1500, 0usize..400),
            1..40,
        ),
    ) {
        let mut guests: Vec<Guest> = ports
            .iter()
            .zip(1..)
            .map(|((vlan, guarded), number)| {
                guest(number, Policy { vlan: vlan.clone(), ..if *guarded { own(number) } else { Policy::default() } })
            })
            .collect();
        let mut bench = Bench::with(&guests.iter().collect::<Vec<_>>());
        for (from, to, tag, lie, len, cut) in frames {
            let destination = guests.get(to).map_or(BROADCAST, |guest| guest.mac);
            let mut frame = guests[from].frame(destination, len, cut as u8);
            if lie {
                frame[11] = 0x77;
            }
            let sent = tag.map_or_else(|| frame.clone(), |tag| tagged(&frame, tag));
            prop_assert!(guests[from].send(&sent, &[cut]));
            bench.turn();
            let (membership, guarded) = &ports[from];
            let vlan = vlan_of(membership, tag).filter(|_| !(lie && *guarded));
            for (at, guest) in guests.iter_mut().enumerate() {
                let here = vlan.and_then(|vlan| ports[at].0.carries(vlan).map(|form| (vlan, form)));
                let wanted = match here {
                    _ if at == from || (to != at && to < 4) => None,
                    Some((_, Tagging::Unchanged)) => Some(sent.clone()),
                    Some((_, Tagging::Untagged)) => Some(frame.clone()),
                    Some((vlan, Tagging::Tagged)) => Some(tagged(&frame, vlan)),
                    None => None,
                };
                prop_assert_eq!(received(guest), Vec::from_iter(wanted), "port {} of VLAN {:?}", at, vlan);
                guest.post(4, &[1600]);
            }
            if vlan == Some(PLAIN) {
                prop_assert_eq!(membership, &Membership::Plain);
            }
        }
    }
}
