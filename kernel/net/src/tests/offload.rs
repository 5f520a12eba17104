//! Frames that ask for offloads, between guests that negotiated more or less of them, and to and from a NIC.

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use nic::{Offload, Refused};
use proptest::prelude::*;

use super::ALL;
use crate::features::Features;
use crate::offload::samples::{self as frames, Sent, sample};
use crate::policy::Policy;
use crate::policy::vlan::Membership;
use crate::testing::{BROADCAST, Guest};
use crate::tests::support::Bench;
use crate::tests::support::nic::{OUTSIDE, Rig, from_outside, rig};
use virtio::phase::Phase;

const MTU: u16 = 1500;

/// All but what a driver does not take.
fn without(features: &[Features]) -> Features {
    features.iter().fold(ALL, |all, bit| all.difference(*bit))
}

fn plain() -> Features {
    without(&[Features::NET_CHECKSUM, Features::NET_SEGMENTATION])
}

/// The frame, addressed.
fn addressed(sent: &Sent, from: &Guest, to: [u8; 6]) -> Vec<u8> {
    let mut frame = sent.frame();
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from.mac);
    frame
}

/// Payload and sequence number of a frame whose checksums are right as another computes them.
fn payload(frame: &[u8]) -> (Vec<u8>, u32) {
    let parsed = SlicedPacket::from_ethernet(frame).expect("a frame");
    let (Some(net), Some(TransportSlice::Tcp(tcp))) = (parsed.net, parsed.transport) else { panic!("no TCP") };
    let sum = match net {
        NetSlice::Ipv4(ip) => {
            let h = ip.header().to_header();
            assert_eq!(h.header_checksum, h.calc_header_checksum());
            tcp.calc_checksum_ipv4(h.source, h.destination)
        }
        NetSlice::Ipv6(ip) => tcp.calc_checksum_ipv6(ip.header().source(), ip.header().destination()),
        NetSlice::Arp(_) => panic!("no IP"),
    };
    let sum = match sum.expect("a length") {
        0 => 0xffff,
        sum => sum,
    };
    assert_eq!(sum, tcp.checksum());
    (tcp.payload().to_vec(), tcp.sequence_number())
}

/// Puts segments together again, as they came.
fn together<'f>(frames: impl IntoIterator<Item = &'f Vec<u8>>, first: u32) -> Vec<u8> {
    let mut all = Vec::new();
    for frame in frames {
        assert!(frame.len() <= usize::from(MTU) + 18);
        let (bytes, sequence) = payload(frame);
        assert_eq!(sequence, first.wrapping_add(all.len() as u32));
        all.extend(bytes);
    }
    all
}

/// What a receiver finds.
fn received(guest: &mut Guest) -> Vec<([u8; 10], Vec<u8>)> {
    std::iter::from_fn(|| guest.receive_with()).collect()
}

#[test]
fn tcp_stays_whole_for_who_can_take_it_and_is_cut_and_summed_for_who_cannot() {
    for v6 in [false, true] {
        let sent = Sent { payload: (0..60_000u32).map(|i| (i * 7) as u8).collect(), ..sample(v6) };
        let segments = 60_000usize.div_ceil(usize::from(sent.mss));
        let mut a = Guest::new(1, ALL, 256, MTU);
        let mut able = Guest::new(2, ALL, 256, MTU);
        let mut sums = Guest::new(3, without(&[Features::NET_GUEST_TSO4, Features::NET_GUEST_TSO6]), 256, MTU);
        let mut bare = Guest::new(4, plain(), 256, MTU);
        let mut bench = Bench::with(&[&a, &able, &sums, &bare]);
        for guest in [&mut able, &mut sums, &mut bare] {
            guest.post(120, &[1526]);
        }
        let frame = addressed(&sent, &a, BROADCAST);
        assert!(a.send_with(&sent.header(), &frame, &[12, 70, 5000, 30_001]));
        bench.turn();

        let whole = received(&mut able);
        assert_eq!(whole.len(), 1);
        let [flags, kind, h0, h1, rest @ ..] = whole[0].0;
        assert_eq!((flags, kind, u16::from_le_bytes([h0, h1])), (1, if v6 { 4 } else { 1 }, sent.headers() as u16));
        assert_eq!(rest, sent.header()[4..10]);
        assert_eq!(whole[0].1, frame);

        let mut partial = received(&mut sums);
        assert_eq!(partial.len(), segments);
        for (header, bytes) in &mut partial {
            let mut wanted = frames::header(1, 0, 0, sent.tcp() as u16, 16);
            wanted[2..4].fill(0);
            assert_eq!(header[..], wanted[..10]);
            let asked = frames::read(&wanted, frames::ALL, bytes).expect("what the header says");
            assert!(crate::offload::complete(bytes, asked.checksum.unwrap(), crate::offload::sum::Sum::new()));
        }
        assert_eq!(together(partial.iter().map(|f| &f.1), sent.sequence), sent.payload);

        let complete = received(&mut bare);
        assert_eq!(complete.len(), segments);
        assert!(complete.iter().all(|(header, _)| *header == [0; 10]));
        assert_eq!(together(complete.iter().map(|f| &f.1), sent.sequence), sent.payload);

        assert_eq!((a.tx.used_index(), a.counters().frames.tx_packets.get()), (1, 1));
        let (ca, cs, cb) = (&able.counters().frames, &sums.counters().frames, &bare.counters().frames);
        assert_eq!((ca.rx_packets.get(), ca.rx_segments.get()), (1, 0));
        assert_eq!((cs.rx_packets.get(), cs.rx_segments.get()), (segments as u64, segments as u64));
        assert_eq!(cb.rx_bytes.get(), (60_000 + segments * sent.headers()) as u64);
        assert_eq!(cb.rx_packets.get(), segments as u64);
    }
}

#[test]
fn what_is_asked_for_stays_at_its_place_when_a_tag_comes_or_goes() {
    let in_vlan = |number, features, vlan| {
        let policy = Box::leak(Box::new(Policy { vlan, ..Policy::default() }));
        let mut guest = Guest::with_rules(number, features, 64, MTU, Some(policy));
        guest.post(32, &[1600]);
        guest
    };
    let trunk = || Membership::trunk([7], None);
    for sender in [trunk(), Membership::Access(7)] {
        let tags = usize::from(matches!(sender, Membership::Trunk { .. }));
        let sent = Sent { tags, ..sample(false) };
        let mut frame = sent.frame();
        if tags == 1 {
            frame[14..16].copy_from_slice(&7u16.to_be_bytes());
        }
        let mut a = in_vlan(1, ALL, sender);
        let mut others = [
            (in_vlan(2, ALL, Membership::Access(7)), 0),
            (in_vlan(3, ALL, trunk()), 1),
            (in_vlan(4, plain(), Membership::Access(7)), 0),
            (in_vlan(5, plain(), trunk()), 1),
        ];
        let mut bench = Bench::with(&[&a, &others[0].0, &others[1].0, &others[2].0, &others[3].0]);
        frame[..6].copy_from_slice(&BROADCAST);
        frame[6..12].copy_from_slice(&a.mac);
        a.send_with(&sent.header(), &frame, &[50, 60]);
        bench.turn();
        for (i, (guest, tags)) in others.iter_mut().enumerate() {
            let got = received(guest);
            let wanted = Sent { tags: *tags, ..sent.clone() };
            assert!(got.iter().all(|(_, f)| (f[12..16] == [0x81, 0, 0, 7]) == (*tags == 1)));
            if i < 2 {
                assert_eq!(got.len(), 1);
                assert_eq!(got[0].0[4..], wanted.header()[4..10]);
                assert_eq!(usize::from(u16::from_le_bytes([got[0].0[2], got[0].0[3]])), wanted.headers());
                assert_eq!(got[0].1.len(), frame.len() + 4 * wanted.tags - 4 * sent.tags);
            } else {
                assert_eq!(together(got.iter().map(|f| &f.1), sent.sequence), sent.payload);
            }
        }
    }
}

#[test]
fn a_checksum_stays_open_for_who_takes_it_so_and_is_completed_for_who_does_not() {
    let sent = Sent { payload: vec![0x5a; 1001], ..sample(false) };
    let (mut a, mut b, mut c) =
        (Guest::new(1, ALL, 64, MTU), Guest::new(2, ALL, 64, MTU), Guest::new(3, plain(), 64, MTU));
    let mut bench = Bench::with(&[&a, &b, &c]);
    b.post(4, &[1526]);
    c.post(8, &[200]);
    let frame = addressed(&sent, &a, BROADCAST);
    a.send_with(&frames::header(1, 0, 0, sent.tcp() as u16, 16), &frame, &[40, 41]);
    bench.turn();
    let mut wanted = frames::header(1, 0, 0, sent.tcp() as u16, 16);
    wanted[2..4].fill(0);
    assert_eq!(received(&mut b), [(*wanted.first_chunk().unwrap(), frame)]);
    assert_eq!(c.receive().map(|f| payload(&f).0), Some(sent.payload));
    assert_eq!((b.counters().frames.rx_checksums.get(), c.counters().frames.rx_checksums.get()), (0, 1));
}

#[test]
fn a_row_of_segments_ends_where_the_buffers_do_and_what_is_too_long_is_dropped() {
    let sent = Sent { payload: vec![1; 14_480], ..sample(false) };
    let (mut a, mut b) = (Guest::new(1, ALL, 64, MTU), Guest::new(2, plain(), 64, MTU));
    let mut bench = Bench::with(&[&a, &b]);
    b.post(3, &[1526]);
    let frame = addressed(&sent, &a, b.mac);
    a.send_with(&sent.header(), &frame, &[]);
    bench.turn();
    let got = received(&mut b);
    assert_eq!(together(got.iter().map(|f| &f.1), sent.sequence), vec![1; 3 * 1448]);
    assert_eq!((b.counters().frames.rx_packets.get(), b.counters().drops.rx_no_buffer.get()), (3, 7));

    // Segments longer than the sender's or the receiver's MTU.
    let long = Sent { mss: 4000, ..sent };
    let (mut a, mut b) = (Guest::new(1, ALL, 64, MTU), Guest::new(2, ALL, 64, 9000));
    let mut bench = Bench::with(&[&a, &b]);
    for guest in [&mut a, &mut b] {
        guest.post(32, &[2048]);
    }
    for (from, to) in [(&mut a, [2, 0, 0, 0, 0, 2]), (&mut b, [2, 0, 0, 0, 0, 1])] {
        let frame = addressed(&long, from, to);
        from.send_with(&long.header(), &frame, &[]);
    }
    bench.turn();
    assert_eq!((received(&mut a).len(), received(&mut b).len()), (0, 0));
    assert_eq!(a.counters().drops.tx_bad_length.get(), 1);
    assert_eq!(a.counters().drops.rx_too_large.get(), 1);
}

#[test]
fn what_was_not_negotiated_is_refused() {
    let sent = sample(false);
    for (features, good) in [(plain(), false), (without(&[Features::NET_HOST_TSO4]), false), (ALL, true)] {
        let (mut a, mut b) = (Guest::new(1, features, 64, MTU), Guest::new(2, ALL, 64, MTU));
        let mut bench = Bench::with(&[&a, &b]);
        b.post(8, &[1526]);
        let frame = addressed(&sent, &a, b.mac);
        a.send_with(&sent.header(), &frame, &[]);
        bench.turn();
        assert_eq!(received(&mut b).len(), usize::from(good));
        assert_eq!(a.counters().drops.tx_bad_header.get(), u64::from(!good));
    }
}

#[test]
fn a_nic_that_can_do_it_is_left_to_do_it() {
    let sent = sample(true);
    let mut a = Guest::new(1, ALL, 64, MTU);
    let Rig { mut bench, wire, counters } = rig(&[&a]);
    wire.borrow_mut().offloads = true;
    let frame = addressed(&sent, &a, OUTSIDE);
    a.send_with(&sent.header(), &frame, &[100]);
    a.send_with(&frames::header(1, 0, 0, sent.tcp() as u16, 16), &frame[..1000], &[]);
    bench.turn();
    let wire = wire.borrow();
    assert_eq!(wire.sent, [frame.clone(), frame[..1000].to_vec()]);
    let plain = Offload::of_checksum(nic::PartialChecksum { start: sent.tcp() as u16, offset: 16 }).unwrap();
    assert_eq!(wire.asked, [plain.with_mss(sent.mss), plain]);
    assert_eq!((counters.tx_packets.get(), counters.tx_segments.get(), counters.tx_checksums.get()), (2, 0, 0));
}

#[test]
fn what_a_nic_cannot_do_is_done_for_it() {
    for refuses in [None, Some(Refused::Offload), Some(Refused::Length)] {
        let sent = sample(false);
        let mut a = Guest::new(1, ALL, 64, MTU);
        let Rig { mut bench, wire, counters } = rig(&[&a]);
        {
            let mut wire = wire.borrow_mut();
            (wire.offloads, wire.refuses, wire.lets_go) = (refuses.is_some(), refuses, false);
        }
        let frame = addressed(&sent, &a, OUTSIDE);
        a.send_with(&sent.header(), &frame, &[3, 90, 2000]);
        let single = Sent { payload: vec![3; 99], ..sample(true) };
        let other = addressed(&single, &a, OUTSIDE);
        a.send_with(&frames::header(1, 0, 0, single.tcp() as u16, 16), &other, &[]);
        bench.turn();
        {
            let wire = wire.borrow();
            assert_eq!(wire.sent.len(), 4);
            assert!(wire.asked.iter().all(|asked| asked.is_none()));
            assert_eq!(together(&wire.sent[..3], sent.sequence), sent.payload);
            assert_eq!(payload(&wire.sent[3]).0, single.payload);
        }
        assert_eq!((counters.tx_packets.get(), counters.tx_segments.get(), counters.tx_checksums.get()), (4, 3, 1));
        assert_eq!(a.tx.used_index(), 0, "the NIC still reads the buffers");
        wire.borrow_mut().lets_go = true;
        assert_eq!(bench.turn(), 4);
        assert_eq!(a.tx.used_index(), 2, "each request comes back once");
    }
}

#[test]
fn a_nic_that_is_full_within_a_row_keeps_the_buffers_it_reads() {
    let sent = sample(false);
    let mut a = Guest::new(1, ALL, 64, MTU);
    let Rig { mut bench, wire, counters } = rig(&[&a]);
    (wire.borrow_mut().room, wire.borrow_mut().lets_go) = (2, false);
    let frame = addressed(&sent, &a, OUTSIDE);
    for _ in 0..2 {
        a.send_with(&sent.header(), &frame, &[]);
    }
    bench.turn();
    assert_eq!((counters.tx_segments.get(), a.tx.used_index()), (2, 1), "the second found no room at all");
    a.shared.request_reset();
    bench.turn();
    assert_eq!(a.shared.phase(), Phase::Resetting);
    wire.borrow_mut().lets_go = true;
    bench.turn();
    assert_eq!(a.shared.phase(), Phase::Idle);

    // And no row is lost: more of them than there is room for, one after another.
    a.start();
    bench.turn();
    for _ in 0..200 {
        wire.borrow_mut().room = 2;
        assert!(a.send_with(&sent.header(), &frame, &[]));
        bench.turn();
    }
    assert_eq!(counters.tx_segments.get(), 2 + 400);
}

#[test]
fn checksums_that_a_nic_found_right_are_told_to_who_wants_to_know() {
    for (features, good, flags) in [(ALL, true, 2), (ALL, false, 0), (plain(), true, 0)] {
        let mut a = Guest::new(1, features, 64, MTU);
        let Rig { mut bench, wire, .. } = rig(&[&a]);
        a.post(2, &[1526]);
        wire.borrow_mut().good = good;
        let frame = from_outside(a.mac, OUTSIDE, 100);
        wire.borrow_mut().inbox.push_back(vec![frame.clone()]);
        bench.turn();
        assert_eq!(received(&mut a), [([flags, 0, 0, 0, 0, 0, 0, 0, 0, 0], frame)]);
    }
}

proptest! {
    #[test]
    fn whatever_a_guest_asks_for_it_gets_its_buffers_back_and_its_neighbours_lose_nothing(
        sent in frames::sent(),
        spoiled in proptest::collection::vec((0usize..110, any::<u8>()), 0..4),
        cuts in proptest::collection::vec(1usize..9000, 0..6),
        bits: u8,
    ) {
        let mut features = ALL;
        for (i, bit) in [Features::NET_GUEST_CSUM, Features::NET_GUEST_TSO4, Features::NET_GUEST_TSO6,
            Features::NET_MRG_RXBUF, Features::NET_GUEST_ECN].into_iter().enumerate() {
            features.set(bit, bits & 1 << i != 0);
        }
        let (mut a, mut b) = (Guest::new(1, ALL, 256, 9000), Guest::new(2, features, 256, 9000));
        let mut honest = Guest::new(3, ALL, 64, MTU);
        let mut bench = Bench::with(&[&a, &b, &honest]);
        b.post(250, &[4096]);
        let mut frame = addressed(&sent, &a, b.mac);
        let mut header = sent.header();
        for (at, value) in spoiled {
            match at.checked_sub(12) {
                None => header[at] = value,
                Some(at) => if let Some(byte) = frame.get_mut(at).filter(|_| at >= 12) { *byte = value },
            }
        }
        prop_assert!(a.send_with(&header, &frame, &cuts));
        let other = honest.frame(b.mac, 60, 1);
        honest.send(&other, &[]);
        bench.turn();
        prop_assert_eq!((a.tx.used_index(), honest.tx.used_index()), (1, 1));
        let got = received(&mut b);
        prop_assert!(got.last().is_some_and(|f| f.1 == other) || b.counters().drops.rx_no_buffer.get() != 0);
        let faults = [&a, &b, &honest].map(|g| g.shared.counters().faults.get());
        prop_assert_eq!(faults, [0; 3]);
        let bytes: usize = got.iter().map(|f| f.1.len()).sum();
        prop_assert_eq!(b.counters().frames.rx_bytes.get(), bytes as u64);
    }
}
