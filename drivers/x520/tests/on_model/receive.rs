//! Receive.

use x520::nic::{Checked, Filtered, Nic, ReceiveFilter, Unicast};
use x520::{Config, Device, Filter, Steering};
use x520_model::made::{OWN, frame, packet};
use x520_model::registers::Reg;

use crate::bench::{Bench, small};

#[test]
fn frames_come_in_order_also_around_the_end_of_the_ring() {
    let mut b = Bench::up(small());
    for round in 0..20u8 {
        let frames: Vec<_> = (0..37).map(|i| frame(60 + usize::from(i) * 40, round ^ i)).collect();
        frames.iter().for_each(|f| b.deliver(f));
        assert_eq!(b.received(0), frames);
    }
    assert_eq!(b.model.borrow_mut().read(Reg::Rxmpc.offset(0)), 0);
    b.clean();
}

#[test]
fn the_budget_is_kept_and_the_rest_waits() {
    let mut b = Bench::up(small());
    (0..10).for_each(|i| b.deliver(&frame(60, i)));
    b.run();
    let mut seen = Vec::new();
    assert_eq!(b.nic.receive(0, 4, |f| seen.push(f.pieces[0][20])), 4);
    assert_eq!(b.nic.receive(0, 100, |f| seen.push(f.pieces[0][20])), 6);
    assert_eq!(b.nic.receive(0, 100, |_| panic!("no more")), 0);
    assert_eq!(b.nic.receive(9, 100, |_| panic!("no such queue")), 0);
    assert_eq!(seen, (0..10).map(|i| frame(60, i)[20]).collect::<Vec<_>>());
    b.clean();
}

#[test]
fn a_burst_beyond_the_ring_waits_in_the_device() {
    let mut b = Bench::up(small());
    let frames: Vec<_> = (0..200).map(|i| frame(100, i as u8)).collect();
    frames.iter().for_each(|f| b.deliver(f));
    b.run();
    let mut seen = Vec::new();
    for _ in 0..20 {
        seen.extend(b.received(0));
    }
    assert_eq!(seen, frames);
    b.clean();
}

#[test]
fn the_tail_moves_once_for_each_batch_and_no_register_is_read() {
    let mut b = Bench::up(x520::Config::default());
    let before = b.model.borrow().accesses();
    for _ in 0..10 {
        (0..64).for_each(|i| b.deliver(&frame(60, i)));
        assert_eq!(b.received(0).len(), 64);
    }
    let after = b.model.borrow().accesses();
    assert_eq!((after.0 - before.0, after.1 - before.1), (0, 640 / 32));
    b.clean();
}

#[test]
fn a_jumbo_frame_comes_in_pieces_and_only_when_it_is_whole() {
    let mut b = Bench::up(x520::Config { max_frame: 9014, ..small() });
    let long = frame(9014, 3);
    for _ in 0..40 {
        b.deliver(&long);
        b.deliver(&frame(60, 1));
        assert_eq!(b.received(0), [long.clone(), frame(60, 1)]);
    }
    b.deliver(&frame(9015, 3));
    b.deliver(&frame(2048, 3));
    b.deliver(&frame(2049, 3));
    let lens: Vec<_> = b.received(0).iter().map(Vec::len).collect();
    assert_eq!(lens, [2048, 2049]);
    b.clean();
}

#[test]
fn tags_are_taken_out_on_wish() {
    for strip_vlan in [false, true] {
        let mut b = Bench::up(x520::Config { strip_vlan, ..small() });
        let plain = frame(1514, 5);
        let mut tagged = plain.clone();
        tagged.splice(12..12, [0x81, 0x00, 0x60, 0x64]);
        b.deliver(&tagged);
        b.deliver(&plain);
        b.run();
        let mut got = Vec::new();
        b.nic.receive(0, 2, |f| got.push((f.vlan, f.pieces.concat())));
        let first = if strip_vlan { (Some(0x6064), plain.clone()) } else { (None, tagged) };
        assert_eq!(got, [first, (None, plain)]);
        b.clean();
    }
}

#[test]
fn checksums_are_good_bad_or_unknown() {
    let mut b = Bench::up(small());
    let mut cases = Vec::new();
    for v4 in [true, false] {
        let tcp = packet(v4, true, (1, 2), b"some bytes of payload", false);
        let mut wrong = tcp.clone();
        *wrong.last_mut().unwrap() ^= 1;
        let udp = packet(v4, false, (1, 2), b"some bytes of payload", false);
        let mut none = udp.clone();
        let at = if v4 { 40 } else { 60 };
        none[at..at + 2].fill(0);
        cases.extend([(tcp, Checked::Good), (wrong, Checked::Bad), (udp, Checked::Good), (none, Checked::Unknown)]);
    }
    let mut ip = packet(true, true, (1, 2), b"some bytes of payload", false);
    ip[24] ^= 1;
    cases.extend([(ip, Checked::Bad), (frame(60, 1), Checked::Unknown)]);
    cases.iter().for_each(|(f, _)| b.deliver(f));
    b.run();
    let mut got = Vec::new();
    b.nic.receive(0, 100, |f| got.push(f.checked));
    assert_eq!(got, cases.iter().map(|c| c.1).collect::<Vec<_>>());
    b.clean();
}

#[test]
fn flows_are_spread_over_queues_and_each_keeps_to_its_own() {
    let mut b = Bench::up(x520::Config { receive_queues: 4, ..small() });
    let mut counts = [0; 4];
    for port in 0..64 {
        let f = packet(true, true, (1000 + port, 80), b"some bytes of payload", false);
        b.deliver(&f);
        b.deliver(&f);
        b.run();
        let mut hashes = Vec::new();
        for queue in 0..4 {
            let n = b.nic.receive(queue, 10, |f| hashes.push((queue, f.hash)));
            counts[usize::from(queue)] += n;
        }
        assert_eq!(hashes.len(), 2);
        assert!(hashes[0] == hashes[1] && hashes[0].1 != 0, "{hashes:x?}");
        assert_eq!(u32::from(hashes[0].0), (hashes[0].1 & 0x7f) % 4);
    }
    assert!(counts.iter().all(|c| *c > 12), "{counts:?}");
    b.deliver(&frame(60, 1));
    assert_eq!(b.received(0).len(), 1, "what is no IP goes to queue 0");
    b.clean();
}

#[test]
fn a_queue_that_nobody_empties_does_not_hold_up_the_others() {
    let mut b = Bench::up(x520::Config { receive_queues: 2, ..small() });
    let of = |queue: u32, b: &mut Bench| {
        (1..).find_map(|port| {
            let f = packet(true, true, (port, 80), b"some bytes of payload", false);
            b.deliver(&f);
            b.run();
            let mut hit = None;
            for q in 0..2 {
                b.nic.receive(q, 10, |_| hit = Some(u32::from(q)));
            }
            (hit == Some(queue)).then_some(f)
        })
    };
    let (first, second) = (of(0, &mut b).unwrap(), of(1, &mut b).unwrap());
    for _ in 0..100 {
        b.deliver(&first);
    }
    b.deliver(&second);
    assert_eq!(b.received(1), [second]);
    b.pass(1_100_000);
    let s = b.nic.statistics();
    assert!(s.no_buffer >= 100 - 63 && s.no_buffer <= 100 - 63 + 16, "{s:?}");
    b.clean();
}

/// Filter entries for these addresses. Their frames arrive on queue 0.
fn plain(addresses: &[[u8; 6]]) -> Vec<Unicast> {
    addresses.iter().map(|address| Unicast { address: *address, queue: 0 }).collect()
}

/// Sets a filter for unicasts to these addresses and all multicasts. Returns whether the device drops other unicasts.
fn set_receive_filter(b: &mut Bench, unicasts: &[[u8; 6]]) -> bool {
    let unicasts = plain(unicasts);
    let left_out =
        b.nic.set_receive_filter(&ReceiveFilter { unicasts: &unicasts, all_groups: true, ..ReceiveFilter::default() });
    assert!(!left_out.groups);
    left_out.unicasts
}

#[test]
fn multicasts_that_nobody_asked_for_are_left_out_and_counted_in_queues_of_either_kind() {
    let group = |n: u8| [1, 0, 0x5e, 1, n, 0x80];
    for steering in [Steering::Flows, Steering::Addresses] {
        let config = Config { receive_queues: 2, steering, ..small() };
        let mut b =
            Bench::with(config, Filter { groups: vec![group(9)], ..Filter::all() }, x520_model::Config::default());
        b.until_up();
        let came = |b: &mut Bench| {
            for n in 0..5 {
                let mut f = frame(60, 1);
                f[..6].copy_from_slice(&group(n << 4));
                b.deliver(&f);
            }
            [0, 1].map(|queue| b.received(queue)).concat().iter().map(|f| f[4] >> 4).collect::<Vec<_>>()
        };
        assert_eq!(came(&mut b), [0, 1, 2, 3, 4], "told nothing");
        let mut left_out = 0;
        for wanted in [&[1, 3][..], &[3], &[3, 4, 0], &[], &[2, 2]] {
            let groups: Vec<_> = wanted.iter().map(|n| group(n << 4)).collect();
            let said = b.nic.set_receive_filter(&ReceiveFilter { groups: &groups, ..ReceiveFilter::default() });
            assert_eq!(said, Filtered { unicasts: true, groups: true });
            let mut here = wanted.to_vec();
            here.sort_unstable();
            here.dedup();
            assert_eq!(came(&mut b), here);
            left_out += 5 - here.len() as u64;
        }
        b.pass(1_000_000);
        assert_eq!(b.nic.statistics().filtered, left_out);
        b.nic.restart(b.now);
        b.until_up();
        assert_eq!(came(&mut b), [2], "a reset changes nothing");
        let many = vec![group(0); x520::MAX_GROUPS + 1];
        for wanted in [
            ReceiveFilter { all_groups: true, ..ReceiveFilter::default() },
            ReceiveFilter { groups: &many, ..ReceiveFilter::default() },
        ] {
            assert!(!b.nic.set_receive_filter(&wanted).groups);
            assert_eq!(came(&mut b), [0, 1, 2, 3, 4]);
        }
        assert!(b.nic.set_receive_filter(&ReceiveFilter { groups: &many[1..], ..ReceiveFilter::default() }).groups);
        assert_eq!(came(&mut b), [0]);
        b.clean();
    }
}

#[test]
fn unicasts_for_others_are_left_out_and_counted_once_it_is_known_who_is_here() {
    let mut b = Bench::with(small(), Filter::all(), x520_model::Config::default());
    let guest = |n: u8| [2, 9, 9, 9, 9, n];
    // A filter that was set before the device runs is valid when it runs.
    assert!(set_receive_filter(&mut b, &[guest(1), guest(2)]));
    b.until_up();
    let came = |b: &mut Bench| {
        for to in [OWN, guest(1), guest(2), guest(3), guest(4), [1, 0, 0x5e, 1, 2, 3], [0xff; 6]] {
            let mut f = frame(60, 1);
            f[..6].copy_from_slice(&to);
            b.deliver(&f);
        }
        b.received(0).iter().map(|f| (f[0], f[5])).collect::<Vec<_>>()
    };
    let (own, group, all) = ((OWN[0], OWN[5]), (1, 3), (0xff, 0xff));
    let with = |guests: &[u8]| {
        let guests = guests.iter().map(|n| (2, *n));
        core::iter::once(own).chain(guests).chain([group, all]).collect::<Vec<_>>()
    };
    assert_eq!(came(&mut b), with(&[1, 2]));
    for (wanted, here) in [
        (vec![2, 3], vec![2, 3]),
        (vec![3, 2, 2], vec![2, 3]),
        (vec![], vec![]),
        (vec![4, 3, 2, 1], vec![1, 2, 3, 4]),
        (vec![1, 4], vec![1, 4]),
    ] {
        let wanted: Vec<_> = wanted.into_iter().map(guest).collect();
        assert!(set_receive_filter(&mut b, &wanted));
        assert_eq!(came(&mut b), with(&here), "{wanted:?}");
    }
    b.nic.restart(b.now);
    b.until_up();
    assert_eq!(came(&mut b), with(&[1, 4]), "a reset changes nothing");
    b.pass(1_000_000);
    let left_out = 2 + 2 + 2 + 4 + 2 + 2;
    // The driver did not read what the device had counted before its reset.
    assert!((1..=left_out).contains(&b.nic.statistics().filtered), "{:?}", b.nic.statistics());
    let before = b.nic.statistics();
    came(&mut b);
    b.pass(1_000_000);
    let now = b.nic.statistics();
    assert_eq!((now.filtered - before.filtered, now.received - before.received), (2, 5));
    for (addresses, exact) in [
        (None, false),
        (Some(vec![guest(1)]), true),
        (Some((0..128).map(|n| [2, 0, 0, 0, 1, n]).collect()), false),
        (Some((0..127).map(|n| [2, 0, 0, 0, 1, n]).collect()), true),
        (Some(vec![guest(1)]), true),
    ] {
        let addresses: Option<Vec<[u8; 6]>> = addresses;
        let unicasts = plain(addresses.as_deref().unwrap_or_default());
        let wanted = ReceiveFilter {
            unicasts: &unicasts,
            promiscuous: addresses.is_none(),
            all_groups: true,
            ..ReceiveFilter::default()
        };
        assert_eq!(b.nic.set_receive_filter(&wanted).unicasts, exact);
        let here = match &addresses {
            _ if !exact => vec![1, 2, 3, 4],
            Some(addresses) if addresses.len() == 1 => vec![1],
            _ => vec![],
        };
        assert_eq!(came(&mut b), with(&here));
    }
    b.clean();
}

#[test]
fn the_filter_lets_in_what_it_was_told_and_can_change() {
    let mut b = Bench::up(small());
    let to = |a: [u8; 6]| {
        let mut f = frame(60, 1);
        f[..6].copy_from_slice(&a);
        f
    };
    let (guest, group, all) = ([2, 9, 9, 9, 9, 9], [1, 0, 0x5e, 1, 2, 3], [0xff; 6]);
    let came = |b: &mut Bench| {
        [OWN, guest, group, all].iter().for_each(|a| b.deliver(&to(*a)));
        b.received(0).iter().map(|f| f[0]).collect::<Vec<_>>()
    };
    assert_eq!(came(&mut b), [2, 0xff]);
    b.nic.set_filter(Filter { addresses: plain(&[guest]), groups: vec![group], ..Filter::default() });
    assert_eq!(came(&mut b), [2, 2, 1]);
    b.nic.set_filter(Filter::all());
    assert_eq!(came(&mut b), [2, 2, 1, 0xff]);
    b.nic.set_filter(Filter { addresses: plain(&[[2, 0, 0, 0, 0, 0]; 128]), ..Filter::default() });
    assert_eq!(came(&mut b), [2, 2], "too many addresses: promiscuous");
    b.nic.set_filter(Filter { vlans: Some(vec![5]), ..Filter::default() });
    for id in [5, 6] {
        let mut f = to(OWN);
        f.splice(12..12, [0x81, 0, 0, id]);
        b.deliver(&f);
    }
    assert_eq!(b.received(0).iter().map(|f| f[15]).collect::<Vec<_>>(), [5]);
    let now = b.now;
    b.nic.restart(now);
    b.until_up();
    assert_eq!(came(&mut b), [2], "it is kept over a reset");
    b.clean();
}

#[test]
fn damaged_short_and_missed_frames_are_counted_and_none_come() {
    let mut b = Bench::up(small());
    b.model.borrow_mut().deliver_damaged(&frame(60, 1));
    b.deliver(&frame(59, 1));
    b.deliver(&frame(1515, 1));
    assert_eq!(b.received(0).len(), 0);
    (0..20_000u32).for_each(|_| b.deliver(&frame(60, 1)));
    assert!(!b.received(0).is_empty());
    b.pass(1_000_001);
    let s = b.nic.statistics();
    assert_eq!((s.crc_errors, s.length_errors, s.recoveries), (1, 2, 0));
    assert_eq!(s.received, 20_000, "with those that were missed");
    assert!((1..20_000).contains(&s.missed));
    b.clean();
}

#[test]
fn statistics_are_read_before_they_stick_and_add_up() {
    let mut b = Bench::up(small());
    for second in 1..=3 {
        (0..10).for_each(|_| b.deliver(&frame(60, 1)));
        assert_eq!(b.received(0).len(), 10);
        b.pass(1_000_001);
        let s = b.nic.statistics();
        assert_eq!((s.received, s.received_bytes), (second * 10, second * 640));
    }
    assert_eq!(b.model.borrow_mut().read(Reg::Gprc.offset(0)), 0);
    b.clean();
}
