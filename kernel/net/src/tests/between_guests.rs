//! Frames between guests.

use proptest::prelude::*;

use super::ALL;
use crate::features::Features;
use crate::testing::{BROADCAST, Guest};
use crate::tests::support::Bench;
use crate::work;
use engine::control::{Command, Reply};

#[test]
fn a_frame_arrives_whole_and_once_with_one_interrupt_each_side() {
    let (mut a, mut b) = (Guest::new(1, ALL, 256, 1500), Guest::new(2, ALL, 256, 1500));
    let mut bench = Bench::with(&[&a, &b]);
    b.post(8, &[1526]);
    let frames: Vec<_> = (0..3).map(|i| a.frame(b.mac, 60 + 700 * i, i as u8)).collect();
    for frame in &frames {
        assert!(a.send(frame, &[]));
    }
    assert_eq!(bench.turn(), 3);
    for frame in &frames {
        assert_eq!(b.receive().as_ref(), Some(frame));
    }
    assert_eq!(b.receive(), None);
    let mut sent = bench.interrupts.take();
    sent.sort_unstable();
    assert_eq!(sent, [(100, a.vector(2)), (101, b.vector(1))], "one for each queue, whatever the number of frames");
    assert_eq!(bench.turn(), 0);
    assert_eq!(bench.interrupts.take(), []);
    let (ca, cb) = (a.shared.counters(), b.shared.counters());
    let (fa, fb) = (&a.counters().frames, &b.counters().frames);
    assert_eq!((fa.tx_packets.get(), fa.tx_bytes.get(), ca.interrupts.get()), (3, 60 + 760 + 1460, 1));
    assert_eq!((fb.rx_packets.get(), fb.rx_bytes.get(), cb.interrupts.get()), (3, 60 + 760 + 1460, 1));
}

#[test]
fn a_frame_is_spread_over_buffers_with_mrg_rxbuf_and_dropped_without() {
    for (features, arrives) in [(ALL, true), (ALL.difference(Features::NET_MRG_RXBUF), false)] {
        let (mut a, mut b) = (Guest::new(1, ALL, 256, 1500), Guest::new(2, features, 256, 1500));
        let mut bench = Bench::with(&[&a, &b]);
        b.post(10, &[128, 72]);
        let frame = a.frame(b.mac, 1514, 9);
        a.send(&frame, &[12]);
        let small = a.frame(b.mac, 188, 5);
        a.send(&small, &[12]);
        bench.turn();
        if arrives {
            assert_eq!(b.receive(), Some(frame));
        } else {
            assert_eq!(b.counters().drops.rx_too_large.get(), 1);
        }
        assert_eq!(b.receive(), Some(small), "the buffers of a frame that did not fit are still there");
        assert_eq!(b.counters().drops.rx_no_buffer.get(), 0);
    }
}

#[test]
fn buffers_that_are_too_small_are_remembered_until_one_is_added_or_a_smaller_frame_comes() {
    let (mut a, mut b) = (Guest::new(1, ALL, 256, 1500), Guest::new(2, ALL, 256, 1500));
    let mut bench = Bench::with(&[&a, &b]);
    let (long, short) = (a.frame(b.mac, 1500, 9), a.frame(b.mac, 60, 5));
    let mut lost = 0;
    // More rounds than the ring has entries, so that all positions are used again.
    for _ in 0..100 {
        b.post(5, &[100]);
        for _ in 0..3 {
            a.send(&long, &[]);
            bench.turn();
            lost += 1;
        }
        assert_eq!((b.receive(), b.counters().drops.rx_no_buffer.get()), (None, lost));
        a.send(&short, &[]);
        a.send(&long, &[]);
        bench.turn();
        lost += 1;
        assert_eq!((b.receive(), b.receive()), (Some(short.clone()), None));
        b.post(1, &[1400]);
        a.send(&long, &[]);
        bench.turn();
        assert_eq!((b.receive(), b.counters().drops.rx_no_buffer.get()), (Some(long.clone()), lost));
    }
}

#[test]
fn a_frame_takes_no_more_descriptors_than_some() {
    let (mut a, mut b) = (Guest::new(1, ALL, 256, 1500), Guest::new(2, ALL, 256, 1500));
    let mut bench = Bench::with(&[&a, &b]);
    b.post(250, &[1; 3]);
    for _ in 0..2 {
        a.send(&a.frame(b.mac, 150, 1), &[]);
        bench.turn();
    }
    assert_eq!((b.receive(), b.counters().drops.rx_too_large.get()), (None, 2), "54 buffers with 162 descriptors");
    let frame = a.frame(b.mac, 115, 1);
    a.send(&frame, &[]);
    bench.turn();
    assert_eq!(b.receive(), Some(frame), "43 buffers with 129 descriptors");
}

#[test]
fn a_frame_for_many_is_cut_short_where_its_work_is_too_much() {
    const PIECES: u32 = 240;
    let mut g: Vec<_> = (1..=12).map(|n| Guest::new(n, ALL, 256, 1500)).collect();
    let mut bench = Bench::with(&g.iter().collect::<Vec<_>>());
    g.iter_mut().for_each(|guest| _ = guest.post(4, &[1526]));
    let frame = g[0].frame(BROADCAST, 1000, 3);
    let mut send = |cuts: &[usize]| {
        g[0].send(&frame, cuts);
        bench.turn();
        let received = g[1..].iter_mut().filter_map(Guest::receive).inspect(|copy| assert_eq!(*copy, frame)).count();
        (received as u32, g[0].counters().drops.tx_cut_short.get())
    };
    let cuts: Vec<_> = (500..).take(PIECES as usize).collect();
    let (received, cut_short) = send(&cuts);
    assert!((1..=work::MOST.div_ceil(PIECES * work::PIECE)).contains(&received), "{received}");
    assert_eq!(cut_short, 1);
    assert_eq!(send(&[]), (11, 1), "in one piece it reaches all");
}

#[test]
fn a_frame_without_enough_buffers_is_dropped_counted_and_leaves_them() {
    let (mut a, mut b) = (Guest::new(1, ALL, 256, 1500), Guest::new(2, ALL, 256, 1500));
    let mut bench = Bench::with(&[&a, &b]);
    let frame = a.frame(b.mac, 1000, 1);
    a.send(&frame, &[]);
    bench.turn();
    assert_eq!(b.counters().drops.rx_no_buffer.get(), 1);
    b.post(3, &[300]);
    a.send(&frame, &[]);
    bench.turn();
    assert_eq!(b.counters().drops.rx_no_buffer.get(), 2);
    b.post(1, &[300]);
    a.send(&frame, &[]);
    bench.turn();
    assert_eq!(b.receive(), Some(frame));
    assert_eq!(a.tx.used_index(), 3, "the sender gets its buffers back either way");
}

#[test]
fn unknown_and_group_addresses_are_flooded_but_never_back() {
    let mut g: Vec<_> = (1..=4).map(|n| Guest::new(n, ALL, 64, 1500)).collect();
    let mut bench = Bench::with(&g.iter().collect::<Vec<_>>());
    for guest in &mut g {
        guest.post(16, &[1526]);
    }
    for to in [BROADCAST, [0x01, 0, 0x5e, 0, 0, 1], [2, 9, 9, 9, 9, 9]] {
        let frame = g[1].frame(to, 80, 3);
        g[1].send(&frame, &[]);
        bench.turn();
        for (i, guest) in g.iter_mut().enumerate() {
            assert_eq!(guest.receive(), (i != 1).then(|| frame.clone()), "{to:?} at port {i}");
        }
    }
    // An address that was learned goes to its port alone.
    let mut reply = g[3].frame(g[0].mac, 80, 4);
    reply[6..12].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
    g[3].send(&reply, &[]);
    bench.turn();
    assert_eq!(g[0].receive(), Some(reply));
    let frame = g[1].frame([2, 9, 9, 9, 9, 9], 80, 5);
    g[1].send(&frame, &[]);
    bench.turn();
    let got: Vec<_> = g.iter_mut().map(|g| g.receive().is_some()).collect();
    assert_eq!(got, [false, false, false, true]);
}

#[test]
fn a_frame_to_oneself_or_to_an_empty_switch_goes_nowhere() {
    let mut a = Guest::new(1, ALL, 64, 1500);
    let mut bench = Bench::with(&[&a]);
    a.post(4, &[1526]);
    for to in [a.mac, BROADCAST, [2, 3, 4, 5, 6, 7]] {
        let frame = a.frame(to, 64, 0);
        a.send(&frame, &[]);
    }
    bench.turn();
    assert_eq!(a.receive(), None);
    assert_eq!(a.counters().drops.tx_no_destination.get(), 3);
    assert_eq!(a.tx.used_index(), 3);
}

#[test]
fn frames_of_bad_length_header_or_source_are_dropped_and_counted() {
    let (mut a, mut b) = (Guest::new(1, ALL, 64, 1500), Guest::new(2, ALL, 64, 1500));
    let mut bench = Bench::with(&[&a, &b]);
    b.post(32, &[2048]);
    let good = a.frame(b.mac, 1518, 0);
    a.send(&good[..13], &[]);
    a.send(&[], &[]);
    a.send_with(&[0; 11], &[], &[]);
    a.send(&a.frame(b.mac, 1519, 0), &[]);
    a.send_with(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &good, &[]);
    a.send_with(&[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &good, &[]);
    let mut group = good.clone();
    group[6] = 3;
    a.send(&group, &[]);
    bench.turn();
    assert_eq!(b.receive(), None);
    a.send_with(&[0x82, 0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7], &good, &[1, 12, 20]);
    a.send(&good[..14], &[3]);
    bench.turn();
    assert_eq!(b.receive().as_ref(), Some(&good), "fields without a meaning here do not come through");
    assert_eq!(b.receive().as_deref(), Some(&good[..14]));
    let drops = &a.counters().drops;
    assert_eq!((drops.tx_bad_length.get(), drops.tx_bad_header.get(), drops.tx_bad_source.get()), (4, 2, 1));
    assert_eq!(a.shared.counters().faults.get(), 0);
}

#[test]
fn a_frame_larger_than_the_receivers_mtu_is_dropped_there() {
    let (mut a, mut b) = (Guest::new(1, ALL, 64, 9000), Guest::new(2, ALL, 64, 1500));
    let mut bench = Bench::with(&[&a, &b]);
    b.post(32, &[2048]);
    a.post(32, &[1024]);
    let jumbo = a.frame(b.mac, 9014, 0);
    a.send(&jumbo[..4000], &[]);
    bench.turn();
    assert_eq!((b.receive(), b.counters().drops.rx_too_large.get()), (None, 1));
}

#[test]
fn a_device_that_is_not_running_gets_nothing_and_costs_nobody_anything() {
    let (mut a, mut b) = (Guest::new(1, ALL, 64, 1500), Guest::new(2, ALL, 64, 1500));
    let mut bench = Bench::with(&[&a, &b]);
    b.post(8, &[1526]);
    b.shared.request_reset();
    assert!(!b.shared.reset_done());
    bench.turn();
    assert!(b.shared.reset_done());
    let frame = a.frame(b.mac, 60, 0);
    a.send(&frame, &[]);
    a.send(&a.frame(BROADCAST, 60, 0), &[]);
    bench.turn();
    assert_eq!(b.counters().drops.rx_not_running.get(), 1);
    assert_eq!(b.rx.used_index(), 0);
    b.start();
    b.post(8, &[1526]);
    bench.turn();
    a.send(&frame, &[]);
    bench.turn();
    assert_eq!(b.receive(), Some(frame), "and it runs again afterwards");
}

#[test]
fn what_was_learned_on_a_port_goes_with_its_guest() {
    let mut g: Vec<_> = (1..=3).map(|n| Guest::new(n, ALL, 64, 1500)).collect();
    let mut bench = Bench::with(&g.iter().collect::<Vec<_>>());
    let old = [2, 7, 7, 7, 7, 7];
    let mut frame = g[1].frame(g[0].mac, 60, 0);
    frame[6..12].copy_from_slice(&old);
    g[1].send(&frame, &[]);
    bench.turn();
    assert!(matches!(bench.command(Command::Detach { slot: 1 }), Reply::Detached(Some(_))));
    g[1] = Guest::new(9, ALL, 64, 1500);
    assert_eq!(bench.attach(1, &g[1]), Reply::Attached);
    g[2].post(4, &[1526]);
    let frame = g[0].frame(old, 60, 1);
    g[0].send(&frame, &[]);
    bench.turn();
    assert_eq!(g[2].receive(), Some(frame), "the address may be anywhere now");
}

proptest! {
    #[test]
    fn any_frame_in_any_layout_arrives_byte_for_byte(
        len in 14usize..1519,
        cuts in proptest::collection::vec(1usize..1530, 0..6),
        // The driver's duty (5.1.6.3.1): a buffer has room for a header at least.
        first in 12u32..700,
        rest in proptest::collection::vec(1u32..700, 0..4),
        bits in 0u8..8,
        tag: u8,
    ) {
        let pieces = [&[first][..], &rest].concat();
        let mut features = ALL;
        features.set(Features::NET_MRG_RXBUF, bits & 1 != 0);
        features.set(Features::EVENT_IDX, bits & 2 != 0);
        features.set(Features::INDIRECT_DESC, bits & 4 != 0);
        let (mut a, mut b) = (Guest::new(1, features, 256, 1500), Guest::new(2, features, 256, 1500));
        let mut bench = Bench::with(&[&a, &b]);
        let posted = b.post(60, &pieces) as u32;
        let room = pieces.iter().sum::<u32>() * if bits & 1 != 0 { posted } else { 1 };
        let frame = a.frame(b.mac, len, tag);
        prop_assert!(a.send(&frame, &cuts));
        bench.turn();
        let wanted = (room as usize >= len + 12).then_some(frame);
        prop_assert_eq!(b.receive(), wanted);
        prop_assert_eq!(b.receive(), None);
        prop_assert_eq!(a.shared.counters().faults.get() + b.shared.counters().faults.get(), 0);
        prop_assert_eq!(a.tx.used_index(), 1);
    }
}
