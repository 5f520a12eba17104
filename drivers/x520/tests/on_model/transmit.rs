//! Transmit.

use x520::nic::{Nic, Offload, Outcome, PartialChecksum, Refused, Segment, Single};
use x520_model::made::{frame, packet};
use x520_model::memory::Access;

use crate::bench::{Bench, small};

#[test]
fn a_frame_is_header_and_segments_and_its_token_comes_back_when_it_is_sent() {
    let mut b = Bench::up(small());
    let f = frame(1000, 7);
    let parts = [b.payload(&f[64..300]), b.payload(&f[300..301]), b.payload(&f[301..])];
    b.send(&f[..64], &parts, 42).unwrap();
    assert_eq!(b.reclaim(), []);
    b.run();
    assert_eq!(b.model.borrow_mut().take_sent(), None, "not before the flush");
    assert_eq!(b.sent(), [f]);
    assert_eq!(b.reclaim(), [(42, Outcome::Sent)]);
    assert_eq!(b.reclaim(), []);
    b.clean();
}

#[test]
fn a_frame_may_be_all_header_or_all_segments() {
    let mut b = Bench::up(small());
    let f = frame(100, 7);
    let whole = b.payload(&f);
    b.send(&f, &[], 1).unwrap();
    b.send(&[], &[whole], 2).unwrap();
    assert_eq!(b.sent(), [f.clone(), f]);
    assert_eq!(b.reclaim(), [(1, Outcome::Sent), (2, Outcome::Sent)]);
    b.clean();
}

#[test]
fn a_short_frame_is_padded_by_the_device() {
    let mut b = Bench::up(small());
    b.send(&frame(17, 7), &[], 1).unwrap();
    let sent = b.sent();
    assert_eq!((sent[0].len(), &sent[0][..17]), (60, &frame(17, 7)[..]));
    b.clean();
}

#[test]
fn the_device_reads_a_segment_only_until_its_token_is_back() {
    let mut b = Bench::up(small());
    let f = frame(1000, 7);
    let part = b.payload(&f[64..]);
    b.send(&f[..64], &[part], 42).unwrap();
    assert_eq!(b.sent(), [f]);
    assert_eq!(b.reclaim().len(), 1);
    b.memory.revoke(part.address(), usize::from(part.len()));
    for i in 0..200 {
        b.send(&frame(60, 1), &[], i).unwrap();
        assert_eq!(b.sent().len(), 1);
        b.reclaim();
    }
    b.clean();
}

#[test]
fn the_ring_wraps_fills_and_empties_with_each_token_back_in_order() {
    let mut b = Bench::up(small());
    let (mut next, mut back) = (0, Vec::new());
    for round in 0..50 {
        let part = b.payload(&frame(40 + round, 1));
        loop {
            match b.send(&frame(60, 0)[..50], &[part; 3][..1 + round % 3], next) {
                Ok(()) => next += 1,
                Err(why) => break assert_eq!(why, Refused::Full),
            }
        }
        b.sent();
        back.extend(b.reclaim());
        assert_eq!(b.nic.outstanding(), 0);
    }
    assert!(next > 600, "{next}");
    assert_eq!(back, (0..next).map(|t| (t, Outcome::Sent)).collect::<Vec<_>>());
    b.clean();
}

#[test]
fn one_tail_write_shows_a_whole_batch_and_no_register_is_read() {
    let mut b = Bench::up(x520::Config::default());
    let before = b.model.borrow().accesses();
    for batch in 0..20 {
        for i in 0..32 {
            b.send(&frame(60, 0), &[], batch * 32 + i).unwrap();
        }
        assert_eq!(b.sent().len(), 32);
        assert_eq!(b.reclaim().len(), 32);
        b.nic.flush(0);
    }
    let after = b.model.borrow().accesses();
    assert_eq!((after.0 - before.0, after.1 - before.1), (0, 20));
    b.clean();
}

#[test]
fn what_cannot_be_sent_is_refused_and_leaves_nothing_behind() {
    let mut b = Bench::up(small());
    let (part, none) = (b.payload(&frame(1000, 1)), b.payload(&[]));
    let cases: [(&[u8], Vec<Segment>, Refused); 6] = [
        (&[1; 16], vec![], Refused::Length),
        (&[], vec![], Refused::Length),
        (&[1; 60], vec![none], Refused::Length),
        (&[1; 60], vec![part; 2], Refused::Length),
        (&[1; 129], vec![], Refused::Header),
        (&[1; 60], vec![part; 37], Refused::Segments),
    ];
    for (header, segments, why) in cases {
        assert_eq!(b.send(header, &segments, 9), Err(why));
    }
    assert_eq!(b.sent().len(), 0);
    assert_eq!((b.reclaim().len(), b.nic.outstanding()), (0, 0));
    let small = b.payload(&[7; 10]);
    b.send(&[2; 60], &[small; 36], 1).unwrap();
    assert_eq!(b.sent()[0].len(), 420);
    b.clean();
}

#[test]
fn a_tagged_frame_may_be_longer_by_its_tag() {
    let mut b = Bench::up(small());
    let mut f = frame(1514, 1);
    f.splice(12..12, [0x81, 0, 0, 5]);
    let part = b.payload(&f[64..]);
    b.send(&f[..64], &[part], 1).unwrap();
    assert_eq!(b.sent(), [f]);
    b.clean();
}

#[test]
fn queues_do_not_mix() {
    let mut b = Bench::up(x520::Config { transmit_queues: 4, ..small() });
    for q in 0..4u16 {
        let f = frame(60, q as u8);
        let out = x520::nic::Outgoing { header: &f, segments: &[], offload: Default::default() };
        b.nic.transmit(q, &out, u64::from(q)).unwrap();
        b.nic.flush(q);
    }
    let f = frame(60, 0);
    let out = x520::nic::Outgoing { header: &f, segments: &[], offload: Default::default() };
    assert_eq!(b.nic.transmit(4, &out, 5), Err((Refused::Queue, 5)));
    b.run();
    for q in 0..4 {
        let mut back = Vec::new();
        b.nic.reclaim(q, |t, _| back.push(t));
        assert_eq!(back, [u64::from(q)]);
    }
    b.pass(1_000_001);
    assert_eq!((b.nic.statistics().sent, b.nic.statistics().sent_bytes), (4, 256));
    b.clean();
}

#[test]
fn a_segment_is_only_ever_read() {
    let mut b = Bench::up(small());
    let block = b.memory.allocate(4096, 4096);
    b.memory.grant(block.bus, 4096, Access::Read);
    // SAFETY: the segment is test data, and nothing frees it.
    let part = unsafe { Segment::new(block.bus, 1000) };
    for i in 0..100 {
        b.send(&frame(60, 1), &[part], i).unwrap();
        b.sent();
        b.reclaim();
    }
    b.clean();
}

/// Sends frames in one call. Each entry is a frame, the length of its header, and its request. Tokens count from
/// `first`.
fn send_all(b: &mut Bench, frames: &[(Vec<u8>, usize, Offload)], first: u64) -> (usize, Option<Refused>) {
    let rests: Vec<_> = frames
        .iter()
        .map(|(f, header, _)| if *header < f.len() { b.payload(&f[*header..]) } else { Segment::EMPTY })
        .collect();
    let items: Vec<_> = frames.iter().zip(rests).zip(first..).collect();
    let (taken, refused) = b.nic.transmit_all(0, &items, |(((f, header, offload), rest), token), room| {
        let len = (*header).min(room.len());
        room[..len].copy_from_slice(&f[..len]);
        Some(Single { header: *header, rest: *rest, offload: *offload, token: *token })
    });
    let refused = refused.map(|(why, token)| {
        assert_eq!(token, first + taken as u64);
        why
    });
    (taken, refused)
}

#[test]
fn many_frames_by_one_call_leave_as_they_would_one_by_one() {
    let (mut b, mut alone) = (Bench::up(small()), Bench::up(small()));
    let ask = |start, offset| Offload::of_checksum(PartialChecksum { start, offset }).unwrap();
    // Requests, and headers that fit them: IPv4 or IPv6, TCP or UDP.
    let kinds = [
        (ask(34, 16), (true, true)),
        (ask(34, 16), (true, true)),
        (ask(34, 6), (true, false)),
        (ask(54, 16), (false, true)),
        (ask(54, 6).with_vlan(3), (false, false)),
        (ask(34, 16).with_vlan(5), (true, true)),
        (ask(34, 16).with_mss(300), (true, true)),
        (ask(54, 16).with_mss(300).with_vlan(6), (false, true)),
    ];
    let (mut next, mut wrapped, mut back) = (0, 0, Vec::new());
    for round in 0..400u64 {
        let mut frames = Vec::new();
        for i in 0..1 + round % 23 {
            // Longer and shorter runs of frames with the same request, and frames without a request between them.
            let kind = (round / 3 + i / (1 + round % 6)) % 12;
            let f = frame(200 + i as usize, round as u8);
            frames.push(match (kind, kinds.get(kind as usize)) {
                (_, Some(&(asked, (v4, tcp)))) => {
                    let len = if i % 5 == 0 { 0 } else { 400 };
                    let f = packet(
                        v4,
                        tcp,
                        (1, 2),
                        &vec![round as u8; len.max(usize::from(asked.mss().unwrap_or(0)))],
                        true,
                    );
                    let headers = usize::from(asked.checksum().unwrap().start) + if tcp { 20 } else { 8 };
                    let header = if i % 7 == 0 { f.len().min(128) } else { headers };
                    (f, header, asked)
                }
                (8, _) => (f.clone(), f.len().min(128), Offload::NOTHING),
                (9, _) => (f[..60].to_vec(), 60, Offload::NOTHING),
                (10, _) => (f, 14, Offload::NOTHING),
                _ => (f, 54, Offload::NOTHING),
            });
        }
        let before = [&b, &alone].map(|b| b.model.borrow().transactions());
        assert_eq!(send_all(&mut b, &frames, next), (frames.len(), None), "round {round}");
        for (token, (f, header, asked)) in (next..).zip(&frames) {
            let rest = if *header < f.len() { vec![alone.payload(&f[*header..])] } else { vec![] };
            alone.send_with(&f[..*header], &rest, *asked, token).unwrap();
        }
        wrapped += u32::from(b.nic.outstanding() > 0);
        next += frames.len() as u64;
        let sent = b.sent();
        assert!(sent.len() >= frames.len());
        assert_eq!(sent, alone.sent(), "round {round}");
        let [one, other] = [&b, &alone].map(|b| b.model.borrow().transactions());
        assert_eq!(one - before[0], other - before[1], "as many descriptors, contexts among them, in round {round}");
        back.extend(b.reclaim());
        alone.reclaim();
    }
    assert!(next > 4_000 && wrapped > 0);
    assert_eq!(back, (0..next).map(|t| (t, Outcome::Sent)).collect::<Vec<_>>());
    b.clean();
    alone.clean();
}

#[test]
fn of_frames_that_name_one_request_each_header_is_looked_at() {
    let mut b = Bench::up(small());
    let asked = Offload::of_checksum(PartialChecksum { start: 34, offset: 16 }).unwrap();
    let good = packet(true, true, (1, 2), &[7; 100], true);
    let change = |at: usize, to: u8| {
        let mut f = good.clone();
        f[at] = to;
        f
    };
    let whole = packet(true, true, (1, 2), &[7; 100], false);
    // Headers that do not fit: not IP; with options, which a header of this length has no room for; too short for the
    // checksum.
    let cases = [
        (change(13, 6), 54, Refused::Offload),
        (change(14, 0x46), 54, Refused::Offload),
        (good[..51].to_vec(), 40, Refused::Offload),
        (good[..51].to_vec(), 51, Refused::Offload),
    ];
    for (bad, header, why) in cases {
        let frames = [(good.clone(), 54, asked), (good.clone(), 54, asked), (bad, header, asked)];
        assert_eq!(send_all(&mut b, &frames, 0), (2, Some(why)));
        assert_eq!(b.sent(), [&*whole, &*whole]);
        b.reclaim();
    }
    b.clean();
}

#[test]
fn a_call_for_many_frames_takes_what_there_is_room_for() {
    let mut b = Bench::up(small());
    let frames: Vec<_> = (0..1000).map(|i| (frame(300, i as u8), 54, Offload::NOTHING)).collect();
    let mut sent = 0;
    for round in 0..10 {
        let (taken, refused) = send_all(&mut b, &frames[sent..], sent as u64);
        assert!(
            refused.is_none() && (20..64).contains(&taken),
            "{taken} of {} descriptors",
            small().transmit_descriptors
        );
        assert_eq!(send_all(&mut b, &frames[sent + taken..], 0), (0, None), "full in round {round}");
        let left = b.sent();
        assert!(left.iter().eq(frames[sent..sent + taken].iter().map(|(f, ..)| f)));
        assert_eq!(b.reclaim().len(), taken);
        sent += taken;
    }
    b.clean();
}

#[test]
fn of_many_frames_those_before_a_refused_one_are_taken() {
    let mut b = Bench::up(small());
    let good = || (frame(300, 1), 54, Offload::NOTHING);
    let odd = Offload::NOTHING.with_mss(100);
    let cases = [
        ((frame(1515, 1), 54, Offload::NOTHING), Refused::Length),
        ((frame(16, 1), 16, Offload::NOTHING), Refused::Length),
        ((frame(300, 1), 129, Offload::NOTHING), Refused::Header),
        ((frame(300, 1), 54, odd), Refused::Offload),
    ];
    for (bad, why) in cases {
        assert_eq!(send_all(&mut b, &[good(), good(), bad, good()], 5), (2, Some(why)));
        assert_eq!(b.sent(), [good().0, good().0]);
        assert_eq!(b.reclaim(), [(5, Outcome::Sent), (6, Outcome::Sent)]);
    }
    let (all, none) = (b.payload(&frame(300, 1)), |_: &u64, _: &mut _| None::<Single<u64>>);
    assert_eq!(b.nic.transmit_all(0, &[1, 2], none), (0, None));
    let whole =
        |token: &u64, _: &mut _| Some(Single { header: 0, rest: all, offload: Offload::NOTHING, token: *token });
    assert_eq!(b.nic.transmit_all(0, &[7], whole), (1, None), "a frame without a header");
    assert_eq!(b.sent(), [frame(300, 1)]);
    assert_eq!(b.nic.transmit_all(9, &[7], whole), (0, None), "there is no such queue");
    assert_eq!(b.reclaim(), [(7, Outcome::Sent)]);
    b.model.borrow_mut().set_cable(false);
    b.pass(1_000);
    assert_eq!(b.nic.transmit_all(0, &[8], whole), (0, None), "there is no link");
    assert_eq!(b.send(&frame(60, 1), &[], 9), Err(Refused::LinkDown));
    b.clean();
}
