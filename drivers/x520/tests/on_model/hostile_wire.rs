//! A hostile peer at the other end of the wire: PAUSE for ever, frames that are too short or too long, frames with a wrong FCS.

use x520::Filter;
use x520::nic::{Nic, Outcome, ReceiveFilter, Refused};
use x520_model::made::frame;
use x520_model::registers::Reg;

use crate::bench::{Bench, small};

/// MFLCN.RFCE: the device obeys PAUSE (8.2.3.22.34).
const RFCE: u32 = 1 << 3;

/// PAUSE for so many times 512 bits (IEEE 802.3 annex 31B).
fn pause(quanta: u16) -> Vec<u8> {
    let mut f = vec![1, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x88, 8, 0, 1];
    f.extend(quanta.to_be_bytes());
    f.resize(60, 0);
    f
}

#[test]
fn a_storm_of_pause_frames_neither_stops_what_is_sent_nor_reaches_anybody() {
    let mut b = Bench::up(small());
    b.nic.set_receive_filter(&ReceiveFilter::default());
    for i in 0..2_000 {
        (0..20).for_each(|n| b.deliver(&pause(if n % 5 == 4 { 0 } else { 0xffff })));
        b.deliver(&frame(60, i as u8));
        b.send(&frame(60, i as u8), &[], i).unwrap();
        assert_eq!(b.sent(), [frame(60, i as u8)]);
        assert_eq!(b.reclaim(), [(i, Outcome::Sent)]);
        assert_eq!(b.received(0), [frame(60, i as u8)]);
        b.pass(5_000);
    }
    b.pass(1_100_000);
    let s = b.nic.statistics();
    assert_eq!((s.recoveries, s.sent), (0, 2_000));
    assert!(s.filtered >= 39_000, "they are counted: {s:?}");
    b.clean();
}

#[test]
fn a_device_that_obeys_pause_is_reset_if_the_other_side_never_lets_it_send_and_nothing_is_lost() {
    // The packet buffer fills, and then the device fetches no more.
    let device = x520_model::Config { transmit_buffer: 32 << 10, ..x520_model::Config::default() };
    let mut b = Bench::with(small(), Filter::all(), device);
    b.until_up();
    // The driver leaves it off. Firmware, or a fault, might not.
    let obeys = b.model.borrow_mut().read(Reg::Mflcn.offset(0));
    assert_eq!(obeys & RFCE, 0);
    b.model.borrow_mut().write(Reg::Mflcn.offset(0), obeys | RFCE);
    let (head, rest) = (frame(60, 1), b.payload(&frame(1400, 1)));
    let (mut next, mut back) = (0, Vec::new());
    // A pause that ends costs nothing.
    b.deliver(&pause(0xffff));
    b.send(&head, &[rest], next).unwrap();
    next += 1;
    assert_eq!(b.sent().len(), 0);
    b.pass(4_000);
    assert_eq!((b.sent().len(), b.nic.statistics().recoveries), (1, 0));
    back.extend(b.reclaim());
    let mut full = false;
    while b.nic.statistics().recoveries == 0 {
        assert!(b.now < 60_000_000, "the driver does not notice");
        b.deliver(&pause(0xffff));
        b.deliver(&frame(60, 2));
        match b.send(&head, &[rest], next) {
            Ok(()) => next += 1,
            Err(why) => {
                assert_eq!(why, Refused::Full);
                full = true;
            }
        }
        assert_eq!(b.sent().len(), 0, "the other side has said so");
        assert_eq!(b.received(0), [frame(60, 2)], "receiving goes on");
        back.extend(b.reclaim());
        b.pass(2_000);
    }
    assert!(full, "the device was full before it counted as hung");
    // The reset has the device obey no more.
    b.until_up();
    b.deliver(&pause(0xffff));
    back.extend(b.reclaim());
    b.send(&frame(60, 3), &[], next).unwrap();
    // What was in the model's packet buffer leaves first.
    let sent = [b.sent(), b.sent()].concat();
    assert!(sent.last() == Some(&frame(60, 3)), "{} frames", sent.len());
    back.extend(b.reclaim());
    let tokens: Vec<_> = back.iter().map(|(token, _)| *token).collect();
    assert_eq!(tokens, (0..=next).collect::<Vec<_>>(), "each comes back once");
    assert_eq!(b.nic.statistics().recoveries, 1);
    b.clean();
}

#[test]
fn runts_giants_and_damaged_frames_are_counted_and_not_delivered() {
    for max_frame in [1514_u32, 9014] {
        let mut b = Bench::up(x520::Config { max_frame, ..small() });
        let longest = max_frame as usize;
        let (mut odd, mut damaged) = (0, 0);
        for len in (1..60).chain([longest + 1, longest + 4, longest + 5, 10_000, 15_000]) {
            let mut f = frame(len.max(12), 1);
            f.truncate(len);
            b.deliver(&f);
            odd += 1;
        }
        for len in [60, 61, 1000, longest] {
            b.model.borrow_mut().deliver_damaged(&frame(len, 1));
            damaged += 1;
        }
        assert_eq!(b.received(0), Vec::<Vec<u8>>::new());
        b.deliver(&frame(60, 2));
        b.deliver(&frame(longest, 2));
        assert_eq!(b.received(0), [frame(60, 2), frame(longest, 2)]);
        b.pass(1_100_000);
        let s = b.nic.statistics();
        assert_eq!((s.length_errors, s.crc_errors, s.received, s.malformed), (odd, damaged, 2, 0), "{max_frame}");
        b.clean();
    }
}
