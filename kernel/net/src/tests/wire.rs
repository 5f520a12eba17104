//! A hostile peer on the wire: frames of every malformed kind from an uplink. An oracle, which is written here anew, says at which
//! port each may arrive, as which bytes, and which counter says why it does not. Nothing else may happen.

use core::iter;

use proptest::prelude::*;

use super::LEAVING;
use crate::counters::UplinkCounters;
use crate::policy::Policy;
use crate::policy::stage::{Action, Rule, Stage};
use crate::policy::vlan::Membership;
use crate::testing::{BROADCAST, Guest};
use crate::tests::support::nic::{End, OUTSIDE, TestNic, with_uplinks};
use crate::tests::support::{Bench, cases};
use engine::control::Reply;
use virtio::counters::Counter;

/// The VLAN of an untagged frame from the wire, the VLANs whose tags the wire has besides, and one that only a guest has.
const NATIVE: u16 = 9;
const TAGGED: u16 = 7;
const INSIDE: u16 = 5;
/// PAUSE (IEEE 802.3 annex 31B), spanning tree, and the last group that no bridge forwards.
const PAUSE: [u8; 6] = [1, 0x80, 0xc2, 0, 0, 1];
const TREE: [u8; 6] = [1, 0x80, 0xc2, 0, 0, 0];
const LAST_RESERVED: [u8; 6] = [1, 0x80, 0xc2, 0, 0, 0xf];
/// The first group behind them.
const FREE_GROUP: [u8; 6] = [1, 0x80, 0xc2, 0, 0, 0x10];

/// Three guests: in the tagged VLAN, in both VLANs as a trunk, and in a VLAN that the uplink has not.
struct Network {
    bench: Bench<TestNic>,
    end: End,
    guests: [Guest; 3],
}

/// Where a frame goes: the bytes that arrive at each guest, or the counter of the uplink that says why it arrives nowhere.
#[derive(Debug, PartialEq)]
enum Verdict {
    Arrives([Option<Vec<u8>>; 3]),
    Malformed,
    Refused,
    OwnSource,
    NotOurs,
}

/// The counters by which the uplink says why a frame arrives nowhere.
fn reasons(c: &UplinkCounters) -> [u64; 4] {
    [&c.rx_malformed, &c.rx_refused, &c.rx_own_source, &c.rx_not_ours].map(Counter::get)
}

impl Network {
    /// `leave`: a stage at the guests' ports.
    fn new(leave: &[fn() -> Stage]) -> Self {
        let uplink = Policy { vlan: Membership::trunk([TAGGED, NATIVE], Some(NATIVE)), ..Policy::default() };
        let (mut bench, mut ends) = with_uplinks([Some(uplink)]);
        let memberships =
            [Membership::Access(TAGGED), Membership::trunk([TAGGED, NATIVE], None), Membership::Access(INSIDE)];
        let guests = [1, 2, 3].map(|number: u8| {
            let mut policy = Policy { vlan: memberships[usize::from(number) - 1].clone(), ..Policy::default() };
            leave.iter().for_each(|stage| policy.leave.push(stage()).expect("there is room"));
            Guest::with_rules(number, LEAVING, 256, 1500, Some(Box::leak(Box::new(policy))))
        });
        for (port, guest) in guests.iter().enumerate() {
            assert_eq!(bench.attach(port, guest), Reply::Attached);
        }
        Self { bench, end: ends.remove(0), guests }
    }

    /// Says what has to become of a frame.
    fn oracle(&self, frame: &[u8]) -> Verdict {
        // Without the EtherType behind it a tag is not whole.
        let tagged = frame.len() >= 18 && frame[12..14] == [0x81, 0];
        if frame.len() < 14 || frame[6] & 1 != 0 {
            return Verdict::Malformed;
        }
        let vlan = match tagged.then(|| u16::from_be_bytes([frame[14], frame[15]]) & 0xfff) {
            // The end of a tag that is cut off, or a service tag, is no tag that the uplink knows.
            None if frame[12..14] == [0x81, 0] || frame[12..14] == [0x88, 0xa8] => return Verdict::Refused,
            None => NATIVE,
            // A tag behind the tag would be the next switch's.
            Some(_) if frame[16..18] == [0x81, 0] || frame[16..18] == [0x88, 0xa8] => return Verdict::Refused,
            Some(TAGGED) => TAGGED,
            Some(_) => return Verdict::Refused,
        };
        if self.guests.iter().any(|guest| frame[6..12] == guest.mac) {
            return Verdict::OwnSource;
        }
        let bare = if tagged { [&frame[..12], &frame[16..]].concat() } else { frame.to_vec() };
        let tag = if tagged { frame[14..16].to_vec() } else { NATIVE.to_be_bytes().to_vec() };
        let with_tag = [&bare[..12], &[0x81, 0], &tag, &bare[12..]].concat();
        let arrives = [(vlan == TAGGED).then_some(bare), Some(with_tag), None];
        if frame[..5] == PAUSE[..5] && frame[5] < 0x10 {
            return Verdict::NotOurs;
        }
        if frame[0] & 1 != 0 {
            return Verdict::Arrives(arrives);
        }
        match self.guests.iter().position(|guest| frame[..6] == guest.mac) {
            Some(n) if arrives[n].is_some() => {
                let mut only = [None, None, None];
                only[n] = arrives.into_iter().nth(n).flatten();
                Verdict::Arrives(only)
            }
            _ => Verdict::NotOurs,
        }
    }

    /// Has a frame come, in pieces of `piece` bytes. `stripped`: the NIC takes its tag out. Returns what arrived at each guest.
    fn comes(&mut self, frame: &[u8], piece: usize, stripped: bool) -> [Option<Vec<u8>>; 3] {
        let (mut bytes, mut tag) = (frame.to_vec(), None);
        if stripped && frame.len() >= 16 && frame[12..14] == [0x81, 0] {
            tag = Some(u16::from_be_bytes([frame[14], frame[15]]));
            bytes.drain(12..16);
        }
        {
            let mut wire = self.end.wire.borrow_mut();
            wire.stripped = tag;
            wire.inbox.push_back(bytes.chunks(piece).map(<[u8]>::to_vec).collect());
        }
        for guest in &mut self.guests {
            guest.post(2, &[1600]);
        }
        self.bench.turn();
        assert!(self.end.wire.borrow().sent.is_empty(), "nothing goes back to the wire");
        self.guests.each_mut().map(|guest| {
            let mut all: Vec<_> = iter::from_fn(|| guest.receive()).collect();
            assert!(all.len() <= 1, "one frame arrives once");
            all.pop()
        })
    }

    /// Has a frame come, and compares with the oracle.
    fn check(&mut self, frame: &[u8], piece: usize, stripped: bool) {
        let before = reasons(self.end.counters);
        let expected = self.oracle(frame);
        let got = self.comes(frame, piece, stripped);
        let after = reasons(self.end.counters);
        let counted: Vec<_> = (0..4).filter(|&n| after[n] != before[n]).map(|n| after[n] - before[n] + n as u64).collect();
        let verdict = match counted[..] {
            [] => Verdict::Arrives(got),
            [1] => Verdict::Malformed,
            [2] => Verdict::Refused,
            [3] => Verdict::OwnSource,
            [4] => Verdict::NotOurs,
            _ => panic!("{counted:?} for {frame:02x?}"),
        };
        assert_eq!(verdict, expected, "{frame:02x?}, stripped: {stripped}");
    }
}

/// What is behind the addresses of a frame: an EtherType and a payload, well formed or not.
fn bodies(guest: [u8; 6]) -> Vec<Vec<u8>> {
    let ip4 = |first: u8, length: u16, fragment: u16, protocol: u8, rest: &[u8]| {
        let head = [first, 0, (length >> 8) as u8, length as u8, 0, 7, (fragment >> 8) as u8, fragment as u8];
        [&[8, 0][..], &head, &[64, protocol, 0, 0, 10, 0, 0, 9, 10, 0, 0, 1], rest].concat()
    };
    let ip6 = |length: u16, next: u8, rest: &[u8]| {
        let head = [0x60, 0, 0, 0, (length >> 8) as u8, length as u8, next, 255];
        [&[0x86, 0xdd][..], &head, &[0xfe; 16], &[0xff; 16], rest].concat()
    };
    let udp = [0, 7, 0, 7, 0, 12, 0, 0, 1, 2, 3, 4];
    let arp = |operation: u8, mac: [u8; 6], address: [u8; 4]| {
        [&[8, 6, 0, 1, 8, 0, 6, 4, 0, operation][..], &mac, &address, &[0; 6], &[10, 0, 0, 1]].concat()
    };
    // A neighbour advertisement that says that the guest's address is the peer's.
    let advertisement = [&[136, 0, 0, 0, 0x60, 0, 0, 0][..], &[0xfe; 16], &[2, 1], &guest].concat();
    let hops = |count: usize, last: u8| {
        let mut chain: Vec<u8> = (0..count).flat_map(|n| [if n + 1 < count { 0 } else { last }, 0, 1, 4, 0, 0, 0, 0]).collect();
        chain.extend(udp);
        chain
    };
    vec![
        vec![8, 0],
        ip4(0x45, 32, 0, 17, &udp),
        ip4(0x45, 0xffff, 0, 17, &udp),
        ip4(0x45, 0, 0, 17, &udp),
        ip4(0x4f, 32, 0, 17, &udp),
        ip4(0x40, 32, 0, 6, &udp),
        ip4(0x65, 32, 0, 17, &udp),
        ip4(0x45, 32, 0x2000, 17, &udp),
        ip4(0x45, 32, 0x3fff, 17, &udp),
        ip6(12, 17, &udp),
        ip6(0xffff, 17, &udp),
        ip6(0, 17, &udp),
        ip6(20, 0, &hops(1, 17)),
        ip6(76, 0, &hops(8, 17)),
        ip6(140, 0, &hops(16, 17)),
        ip6(20, 44, &[&[17, 0, 0, 1, 0, 0, 0, 9][..], &udp].concat()),
        ip6(20, 44, &[&[17, 0, 0xff, 0xf9, 0, 0, 0, 9][..], &udp].concat()),
        ip6(20, 43, &[&[17, 255, 0, 0, 0, 0, 0, 0][..], &udp].concat()),
        ip6(32, 58, &advertisement),
        arp(1, OUTSIDE, [10, 0, 0, 9]),
        arp(2, OUTSIDE, [10, 0, 0, 1]),
        arp(2, guest, [10, 0, 0, 1]),
        [&[8, 6, 0, 1, 8, 0, 200, 200, 0, 1][..], &[0xa5; 20]].concat(),
        // A length instead of a type, too long, and types that nobody has.
        [&[0, 46, 0x42, 0x42, 3][..], &[0; 43]].concat(),
        [&[5, 0xdc, 0xaa, 0xaa][..], &[0; 8]].concat(),
        [&[0, 0][..], &[0; 46]].concat(),
        [&[0xff, 0xff][..], &[0xff; 46]].concat(),
        // PAUSE.
        [&[0x88, 8, 0, 1, 0xff, 0xff][..], &[0; 42]].concat(),
    ]
}

/// Tags before the EtherType: none, of each VLAN, with a priority, without a VLAN, of the reserved VLAN, two, and service tags.
const TAGS: [&[u8]; 12] = [
    &[],
    &[0x81, 0, 0, 7],
    &[0x81, 0, 0, 9],
    &[0x81, 0, 0, 5],
    &[0x81, 0, 0xf0, 7],
    &[0x81, 0, 0, 0],
    &[0x81, 0, 0xe0, 0],
    &[0x81, 0, 0xf, 0xff],
    &[0x81, 0, 0, 7, 0x81, 0, 0, 5],
    &[0x81, 0, 0, 9, 0x81, 0, 0, 7],
    &[0x88, 0xa8, 0, 7],
    &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 7],
];

#[test]
fn a_frame_of_any_form_from_the_wire_arrives_where_it_may_or_is_counted() {
    let mut network = Network::new(&[]);
    let [a, b, c] = network.guests.each_ref().map(|guest| guest.mac);
    let stranger = [2, 9, 9, 9, 9, 9];
    let destinations = [a, b, c, BROADCAST, [1, 0, 0x5e, 0, 0, 1], FREE_GROUP, stranger, PAUSE, TREE, LAST_RESERVED, [0; 6]];
    let sources = [OUTSIDE, a, c, BROADCAST, [0; 6]];
    let bodies = bodies(a);
    let bodies = if cfg!(miri) { &bodies[..1] } else { &bodies[..] };
    for (n, to) in destinations.iter().enumerate() {
        for (m, from) in sources.iter().enumerate() {
            for tags in TAGS {
                for body in bodies {
                    let frame = [&to[..], from, tags, body].concat();
                    network.check(&frame, 9 + n * 7, n % 2 == m % 2);
                }
            }
        }
    }
}

#[test]
fn a_frame_that_is_cut_off_at_any_byte_arrives_as_it_is_or_is_counted() {
    let mut network = Network::new(&[]);
    let [a, b, _] = network.guests.each_ref().map(|guest| guest.mac);
    let bodies = bodies(a);
    let bodies = if cfg!(miri) { &bodies[..1] } else { &bodies[..] };
    for (n, to) in [a, b, BROADCAST, PAUSE].into_iter().enumerate() {
        for tags in TAGS.into_iter().skip(n % 2).step_by(2) {
            for body in bodies {
                let frame = [&to[..], &OUTSIDE, tags, body].concat();
                for end in (0..frame.len()).filter(|end| *end < 60 || end % 7 == 0) {
                    network.check(&frame[..end], 5, false);
                }
            }
        }
    }
}

#[test]
fn frames_that_are_longer_than_a_port_takes_are_counted_there() {
    let mut network = Network::new(&[]);
    let a = network.guests[0].mac;
    // A port has room for a tag, whether there is one or not.
    for payload in [1486, 1500, 1504, 1505, 1600, 9000, 16_000] {
        let mut frame = [&a[..], &OUTSIDE, TAGS[1], &[0x88, 0xb5]].concat();
        frame.resize(18 + payload, 7);
        let before = network.guests[0].counters().drops.rx_too_large.get();
        let got = network.comes(&frame, 2048, false);
        let dropped = network.guests[0].counters().drops.rx_too_large.get() - before;
        assert_eq!((got[0].is_some(), dropped), (payload <= 1504, u64::from(payload > 1504)), "{payload}");
        assert_eq!(got[1..], [None, None]);
    }
    assert_eq!(reasons(network.end.counters), [0; 4]);
}

#[test]
fn groups_that_no_bridge_forwards_stay_where_a_guest_sends_them() {
    let mut network = Network::new(&[]);
    let sent = [PAUSE, TREE, LAST_RESERVED, FREE_GROUP].map(|group| {
        let frame = network.guests[0].frame(group, 60, 1);
        network.guests[1].post(1, &[1600]);
        assert!(network.guests[0].send(&frame, &[]));
        network.bench.turn();
        let out = core::mem::take(&mut network.end.wire.borrow_mut().sent).len();
        (out, network.guests[1].receive().is_some())
    });
    assert_eq!(sent, [(0, false), (0, false), (0, false), (1, true)]);
    assert_eq!(network.guests[0].counters().drops.tx_no_destination.get(), 3);
}

#[test]
fn addresses_that_the_wire_makes_up_take_nothing_from_the_guests() {
    let mut network = Network::new(&[]);
    let a = network.guests[0].mac;
    let body = [0x88, 0xb5, 1, 2, 3, 4];
    for n in 0..if cfg!(miri) { 10 } else { 10_000_u32 } {
        let [p, q, r, s] = n.to_be_bytes();
        let frame = [&[2, 0x77, p, q, r, s][..], &[2, 0x66, s, r, q, p], TAGS[n as usize % 3], &body].concat();
        network.check(&frame, 64, false);
    }
    network.check(&[&a[..], &OUTSIDE, TAGS[1], &body].concat(), 64, false);
    // The guests can still reach each other: whom they send to is known.
    let b = network.guests[1].mac;
    let frame = [&b[..], &a, &body].concat();
    network.guests[1].post(1, &[1600]);
    network.guests[0].send(&frame, &[]);
    network.bench.turn();
    assert_eq!(network.guests[1].receive(), Some([&b[..], &a, TAGS[1], &body].concat()));
}

/// Stages that look at every header that there is.
const LOOKING: [fn() -> Stage; 4] = [
    || Stage::new(Rule { ether_type: Some(0x0806), opening: None, ..Rule::default() }, Action::Deny),
    || Stage::new(Rule { destination_port: Some(7..=7), ..Rule::default() }, Action::Deny),
    || Stage::new(Rule { opening: Some(true), ..Rule::default() }, Action::Deny),
    || Stage::new(Rule { icmp: Some(136), ..Rule::default() }, Action::Deny),
];

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn random_frames_pass_rules_or_are_counted_once(
        to in 0_usize..8,
        tags in 0_usize..TAGS.len(),
        body in 0_usize..28,
        changes in proptest::collection::vec((12_usize..120, any::<u8>()), 0..6),
        end in 0_usize..200,
        piece in 1_usize..80,
        stripped in any::<bool>(),
    ) {
        let mut network = Network::new(&LOOKING);
        let [a, b, c] = network.guests.each_ref().map(|guest| guest.mac);
        let to = [a, b, c, BROADCAST, PAUSE, FREE_GROUP, OUTSIDE, a][to];
        let mut frame = [&to[..], &OUTSIDE, TAGS[tags], &bodies(a)[body]].concat();
        for (at, value) in changes {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        frame.truncate(end);
        let expected = network.oracle(&frame);
        let got = network.comes(&frame, piece, stripped);
        let counted: u64 = reasons(network.end.counters).iter().sum();
        let Verdict::Arrives(may) = expected else {
            prop_assert_eq!((got, counted), ([None, None, None], 1));
            return Ok(());
        };
        prop_assert_eq!(counted, 0);
        for ((guest, got), may) in network.guests.iter().zip(got).zip(may) {
            let drops = &guest.counters().drops;
            let dropped = drops.rx_denied.get() + drops.rx_unreadable.get();
            prop_assert_eq!(u64::from(got.is_some()) + dropped, u64::from(may.is_some()));
            prop_assert!(got.is_none() || got == may);
        }
    }
}
