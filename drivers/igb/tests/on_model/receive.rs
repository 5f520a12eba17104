use igb::nic::{Checked, Nic};
use igb::{Config, Kind};
use igb_model::made::frame;

use crate::bench::{Bench, KINDS, packet, small};

#[test]
fn frames_come_whole_and_in_order_however_often_the_ring_wraps() {
    for kind in KINDS {
        let mut b = Bench::up(kind, small());
        for round in 0..20 {
            let sent: Vec<_> = (0..40).map(|n| frame(60 + 31 * n, (n + round) as u8)).collect();
            sent.iter().for_each(|f| b.deliver(f));
            assert_eq!(b.received(), sent);
        }
        b.pass(1_100_000);
        let statistics = b.nic.statistics();
        assert_eq!((statistics.received, statistics.missed, statistics.malformed), (800, 0, 0));
        b.clean();
    }
}

#[test]
fn a_long_frame_lies_in_several_buffers_and_one_that_is_too_long_is_counted() {
    let mut b = Bench::up(Kind::I82576, Config { max_frame: 9014, ..small() });
    for len in [1514, 2048, 2049, 4096, 9014] {
        b.deliver(&frame(len, 3));
        assert_eq!(b.received(), [frame(len, 3)]);
    }
    b.deliver(&frame(9014 + 5, 3));
    assert_eq!(b.received(), Vec::<Vec<u8>>::new());
    b.pass(1_100_000);
    assert_eq!(b.nic.statistics().length_errors, 1);
    b.clean();
}

#[test]
fn checksums_are_believed_but_for_a_bad_one_of_udp() {
    for kind in KINDS {
        let mut b = Bench::up(kind, small());
        let mut verdict = |mut f: Vec<u8>, flip: Option<usize>| {
            if let Some(at) = flip {
                f[at] ^= 1;
            }
            b.deliver(&f);
            let mut all = Vec::new();
            b.nic.receive(0, 10, |f| all.push(f.checked));
            assert_eq!(all.len(), 1);
            all[0]
        };
        let (tcp, udp) = (packet(true, &[7; 100], false), packet(false, &[7; 100], false));
        assert_eq!(verdict(tcp.clone(), None), Checked::Good);
        assert_eq!(verdict(udp.clone(), None), Checked::Good);
        assert_eq!(verdict(frame(60, 0), None), Checked::Unknown);
        assert_eq!(verdict(tcp.clone(), Some(60)), Checked::Bad, "TCP");
        assert_eq!(verdict(udp.clone(), Some(60)), Checked::Unknown, "UDP");
        assert_eq!(verdict(udp, Some(24)), Checked::Bad, "IPv4");
        assert_eq!(verdict(tcp, Some(24)), Checked::Bad, "IPv4");
        b.clean();
    }
}

#[test]
fn a_tag_is_taken_out_and_given_apart() {
    let mut b = Bench::up(Kind::I350, small());
    let mut tagged = frame(100, 5);
    tagged.splice(12..12, [0x81, 0, 0x20, 0x07]);
    b.deliver(&tagged);
    let mut seen = Vec::new();
    b.nic.receive(0, 10, |f| seen.push((f.pieces.concat(), f.vlan)));
    assert_eq!(seen, [(frame(100, 5), Some(0x2007))]);
}

#[test]
fn write_backs_that_make_no_sense_cost_frames_and_are_counted() {
    let mut b = Bench::up(Kind::I82576, small());
    b.model.borrow_mut().faults.bad_write_back = true;
    (0..20).for_each(|n| b.deliver(&frame(60, n)));
    assert_eq!(b.received(), Vec::<Vec<u8>>::new());
    b.model.borrow_mut().faults.bad_write_back = false;
    for n in 0..100 {
        b.deliver(&frame(60, n));
        b.nic.receive(0, 100, |_| {});
    }
    b.pass(1_100_000);
    assert!(b.nic.statistics().malformed > 0);
    b.until_up();
    b.deliver(&frame(60, 9));
    assert_eq!(b.received(), [frame(60, 9)]);
}

#[test]
fn a_ring_full_of_frames_that_never_end_is_given_back_to_the_device() {
    let mut b = Bench::up(Kind::I82576, small());
    b.model.borrow_mut().faults.bad_write_back = true;
    // More than there are descriptors: the device has written all that it knows of.
    (0..1000).for_each(|n| b.deliver(&frame(60, n as u8)));
    b.model.borrow_mut().faults.bad_write_back = false;
    assert_eq!(b.received(), Vec::<Vec<u8>>::new());
    b.deliver(&frame(60, 9));
    assert_eq!(b.received(), [frame(60, 9)]);
    b.pass(1_100_000);
    assert_eq!(b.nic.statistics().malformed, 1);
}

#[test]
fn the_devices_counters_are_read_before_they_are_lost() {
    let mut b = Bench::up(Kind::I82576, small());
    let other = [&[2, 9, 9, 9, 9, 9][..], &frame(100, 0)[6..]].concat();
    for _ in 0..3 {
        b.deliver(&frame(100, 0));
        b.deliver(&other);
        b.model.borrow_mut().deliver_damaged(&frame(100, 0));
        b.deliver(&[&[0xff; 6][..], &frame(100, 0)[6..]].concat());
        b.received();
        b.pass(1_100_000);
    }
    let s = b.nic.statistics();
    assert_eq!((s.received, s.received_bytes, s.received_broadcast), (6, 6 * 104, 3));
    assert_eq!((s.crc_errors, s.filtered), (3, 3));
    b.clean();
}
