//! Transmit.

use x520::nic::{Nic, Outcome, Refused, Segment};
use x520_model::memory::Access;

use crate::bench::{Bench, frame, small};

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
    // SAFETY: test data that stays where it is.
    let part = unsafe { Segment::new(block.bus, 1000) };
    for i in 0..100 {
        b.send(&frame(60, 1), &[part], i).unwrap();
        b.sent();
        b.reclaim();
    }
    b.clean();
}
