//! Frames between guests and a NIC.

use super::LEAVING;
use crate::testing::{BROADCAST, Guest};
use crate::tests::support::Bench;
use crate::tests::support::nic::{OUTSIDE, Rig, TestNic, from_outside, rig};
use engine::control::{Command, Reply};
use nic::Statistics;
use virtio::phase::Phase;

#[test]
fn what_no_guest_has_goes_out_whole_and_its_buffers_come_back_when_the_nic_is_done() {
    let (mut a, mut b) = (Guest::new(1, LEAVING, 256, 1500), Guest::new(2, LEAVING, 256, 1500));
    let Rig { mut bench, wire, counters } = rig(&[&a, &b]);
    b.post(4, &[1526]);
    wire.borrow_mut().lets_go = false;
    let frames = [a.frame(OUTSIDE, 1514, 1), a.frame(OUTSIDE, 60, 2), a.frame(OUTSIDE, 14, 3)];
    for frame in &frames {
        assert!(a.send(frame, &[12, 30, 700]));
    }
    assert_eq!(bench.turn(), 3);
    assert_eq!(wire.borrow().sent, frames);
    assert!(wire.borrow().flushes >= 1);
    assert_eq!(b.receive(), None, "a frame for outside is nobody else's");
    assert_eq!(bench.interrupts.take(), [], "the NIC still reads the buffers");
    wire.borrow_mut().lets_go = true;
    assert_eq!(bench.turn(), 3);
    assert_eq!(bench.interrupts.take().len(), 1);
    assert_eq!((counters.tx_packets.get(), counters.tx_bytes.get()), (3, 1514 + 60 + 14));
}

#[test]
fn guests_reach_each_other_directly_and_multicast_reaches_both_sides() {
    let (mut a, mut b) = (Guest::new(1, LEAVING, 256, 1500), Guest::new(2, LEAVING, 256, 1500));
    let Rig { mut bench, wire, .. } = rig(&[&a, &b]);
    b.post(4, &[1526]);
    let (direct, all) = (a.frame(b.mac, 100, 1), a.frame(BROADCAST, 90, 2));
    a.send(&direct, &[]);
    a.send(&all, &[]);
    bench.turn();
    assert_eq!((b.receive(), b.receive()), (Some(direct), Some(all.clone())));
    assert_eq!(wire.borrow().sent, [all]);
}

#[test]
fn frames_from_the_wire_reach_the_guest_they_are_for_and_nobody_else() {
    let (mut a, mut b) = (Guest::new(1, LEAVING, 256, 1500), Guest::new(2, LEAVING, 256, 1500));
    let Rig { mut bench, wire, counters } = rig(&[&a, &b]);
    a.post(8, &[700]);
    b.post(8, &[1526]);
    let (for_a, for_all) = (from_outside(a.mac, OUTSIDE, 1514), from_outside(BROADCAST, OUTSIDE, 64));
    let pieces = for_a.chunks(600).map(<[u8]>::to_vec).collect();
    wire.borrow_mut().inbox.extend([
        pieces,
        vec![for_all.clone()],
        vec![from_outside([2, 9, 9, 9, 9, 9], OUTSIDE, 64)],
        vec![from_outside(a.mac, b.mac, 64)],
        vec![from_outside(a.mac, BROADCAST, 64)],
        vec![vec![0; 13]],
        vec![from_outside(a.mac, OUTSIDE, 4000)],
    ]);
    bench.turn();
    assert_eq!((a.receive(), a.receive(), a.receive()), (Some(for_a), Some(for_all.clone()), None));
    assert_eq!((b.receive(), b.receive()), (Some(for_all), None));
    let c = counters;
    assert_eq!((c.rx_packets.get(), c.rx_not_ours.get(), c.rx_own_source.get(), c.rx_malformed.get()), (7, 1, 1, 2));
    assert_eq!(a.counters().drops.rx_too_large.get(), 1);
}

#[test]
fn a_full_nic_costs_the_frame_and_not_the_buffer() {
    let mut a = Guest::new(1, LEAVING, 256, 1500);
    let Rig { mut bench, wire, counters } = rig(&[&a]);
    wire.borrow_mut().room = 1;
    for _ in 0..3 {
        let frame = a.frame(OUTSIDE, 60, 0);
        a.send(&frame, &[]);
    }
    bench.turn();
    bench.turn();
    assert_eq!((counters.tx_packets.get(), counters.tx_refused.get()), (1, 2));
    assert_eq!((0..4).filter(|_| a.tx.take_used().is_some()).count(), 3, "every buffer came back");
}

#[test]
fn without_a_link_guests_flood_among_themselves() {
    let (mut a, mut b) = (Guest::new(1, LEAVING, 256, 1500), Guest::new(2, LEAVING, 256, 1500));
    let Rig { mut bench, wire, .. } = rig(&[&a, &b]);
    wire.borrow_mut().up = false;
    b.post(2, &[1526]);
    let frame = a.frame(OUTSIDE, 60, 0);
    a.send(&frame, &[]);
    bench.turn();
    assert_eq!(b.receive(), Some(frame));
    assert!(wire.borrow().sent.is_empty());
}

#[test]
fn neither_reset_nor_detachment_is_done_while_the_nic_reads_the_guests_memory() {
    let mut a = Guest::new(1, LEAVING, 256, 1500);
    let Rig { mut bench, wire, .. } = rig(&[&a]);
    wire.borrow_mut().lets_go = false;
    let frame = a.frame(OUTSIDE, 1000, 0);
    a.send(&frame, &[]);
    bench.turn();
    a.shared.request_reset();
    bench.turn();
    bench.turn();
    assert_eq!(a.shared.phase(), Phase::Resetting, "the driver must not have its memory back");
    wire.borrow_mut().lets_go = true;
    bench.turn();
    assert_eq!(a.shared.phase(), Phase::Idle);

    a.start();
    bench.turn();
    wire.borrow_mut().lets_go = false;
    a.send(&frame, &[]);
    bench.turn();
    for _ in 0..3 {
        assert_eq!(bench.command(Command::Detach { slot: 0 }), Reply::Detaching);
        bench.turn();
    }
    wire.borrow_mut().lets_go = true;
    bench.turn();
    assert!(matches!(bench.command(Command::Detach { slot: 0 }), Reply::Detached(_)));
}

#[test]
fn the_guests_are_told_of_the_link_and_of_its_loss() {
    let a = Guest::new(1, LEAVING, 256, 1500);
    let Rig { mut bench, wire, counters } = rig(&[&a]);
    let turn = |bench: &mut Bench<TestNic>| {
        bench.now += 1000;
        bench.turn();
        bench.interrupts.take().len()
    };
    assert_eq!((turn(&mut bench), a.shared.read_config(6, 2)), (0, 1), "nothing has changed");
    for (up, status, speed) in [(false, 0, 0), (true, 1, 10_000)] {
        wire.borrow_mut().up = up;
        let before = a.shared.config_generation();
        assert_eq!(turn(&mut bench), 1);
        assert_eq!((a.shared.read_config(6, 2), counters.link_mbits.get()), (status, speed));
        assert_ne!(a.shared.config_generation(), before);
        assert_eq!(turn(&mut bench), 0, "told once");
    }
    wire.borrow_mut().up = false;
    turn(&mut bench);
    a.shared.request_reset();
    assert_eq!((turn(&mut bench), a.shared.read_config(6, 2)), (0, 0), "a driver that is set up anew reads how it is");
}

#[test]
fn what_the_nic_has_counted_can_be_read_beside_it() {
    let Rig { mut bench, wire, counters } = rig(&[]);
    wire.borrow_mut().statistics = Statistics { received: 7, missed: 3, recoveries: 1, ..Statistics::default() };
    bench.now += 1000;
    bench.turn();
    let all: Vec<_> = counters.iter().filter(|&(name, n)| name.starts_with("nic_") && n != 0).collect();
    assert_eq!(all, [("nic_rx_packets", 7), ("nic_rx_missed", 3), ("nic_recoveries", 1)]);
}
