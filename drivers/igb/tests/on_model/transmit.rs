use igb::nic::{Nic, Offload, Outcome, PartialChecksum, Refused, Segment, Single};
use igb::{Config, Kind};
use igb_model::made::{frame, sum};

use crate::bench::{Bench, KINDS, packet, small};

fn checksum(start: u16, offset: u16) -> Offload {
    Offload::of_checksum(PartialChecksum { start, offset }).expect("within a header")
}

#[test]
fn frames_go_out_whole_in_order_and_their_tokens_come_back() {
    for kind in KINDS {
        let mut b = Bench::up(kind, small());
        let mut token = 0;
        for round in 0..20_u8 {
            let mut expected = Vec::new();
            for n in 0..10_u8 {
                let whole = frame(60 + 17 * usize::from(n), n ^ round);
                let rest = b.payload(&whole[50..]);
                b.send(&whole[..50], &[rest], token).expect("room");
                token += 1;
                expected.push(whole);
            }
            assert_eq!(b.sent(), expected);
            let done: Vec<_> = (token - 10..token).map(|t| (t, Outcome::Sent)).collect();
            assert_eq!(b.reclaim(), done);
        }
        b.pass(1_100_000);
        assert_eq!(b.nic.statistics().sent, 200);
        b.clean();
    }
}

#[test]
fn batches_go_out_as_frames_alone_do() {
    let mut b = Bench::up(Kind::I82576, small());
    let whole = packet(true, &[7; 200], true);
    let (header, rest) = (54, b.payload(&whole[54..]));
    let asked = checksum(34, 16);
    let items: Vec<_> = [Offload::NOTHING, asked, asked, asked.with_vlan(7), Offload::NOTHING].into();
    let (taken, refused) = b.nic.transmit_all(0, &items, |offload, room| {
        room[..header].copy_from_slice(&whole[..header]);
        Some(Single { header, rest, offload: *offload, token: 1 })
    });
    assert_eq!((taken, refused.is_none()), (5, true));
    let sent = b.sent();
    assert_eq!(sent[0], whole);
    assert_eq!(sent[1], packet(true, &[7; 200], false));
    assert_eq!(sent[2], sent[1]);
    let mut tagged = sent[1].clone();
    tagged.splice(12..12, [0x81, 0, 0, 7]);
    assert_eq!(sent[3], tagged);
    assert_eq!(sent[4], whole);
    assert_eq!(b.reclaim().len(), 5);
    b.clean();
}

#[test]
fn the_device_computes_checksums_of_tcp_and_udp() {
    for kind in KINDS {
        let mut b = Bench::up(kind, small());
        for (tcp, offset) in [(true, 16), (false, 6)] {
            let partial = packet(tcp, &[9; 333], true);
            let rest = b.payload(&partial[60..]);
            b.send_with(&partial[..60], &[rest], checksum(34, offset), 5).expect("room");
            let sent = b.sent();
            assert_eq!(sent, [packet(tcp, &[9; 333], false)]);
            assert_eq!(sum(&sent[0][14..34]), 0xffff);
            b.reclaim();
        }
        b.clean();
    }
}

#[test]
fn short_frames_are_padded_and_what_the_device_cannot_send_is_refused() {
    let mut b = Bench::up(Kind::I82576, Config { max_frame: 1514, ..small() });
    b.send(&frame(42, 1), &[], 1).expect("room");
    assert_eq!(b.sent(), [[frame(42, 1), vec![0; 18]].concat()]);
    let one = b.payload(&[1; 64]);
    assert_eq!(b.send(&frame(60, 0), &[one; 19], 2), Err(Refused::Segments));
    assert_eq!(b.send(&frame(60, 0), &[one; 18], 2), Ok(()));
    assert_eq!(b.send(&frame(129, 0), &[], 2), Err(Refused::Header));
    assert_eq!(b.send(&frame(10, 0), &[], 2), Err(Refused::Length));
    let long = b.payload(&[0; 1500]);
    assert_eq!(b.send(&frame(60, 0), &[long], 2), Err(Refused::Length));
    assert_eq!(b.send(&frame(60, 0), &[Segment::EMPTY], 2), Err(Refused::Length));
    let (other, _) = b
        .nic
        .transmit(1, &igb::nic::Outgoing { header: &[0; 60], segments: &[], offload: Offload::NOTHING }, 3)
        .expect_err("one queue");
    assert_eq!(other, Refused::Queue);
    assert_eq!(b.nic.limits().transmit_queues, 1);
    b.sent();
    b.clean();
}

#[test]
fn a_full_queue_says_so_and_has_room_again() {
    let mut b = Bench::up(Kind::I350, small());
    let mut taken = 0;
    while b.send(&frame(60, 0), &[], taken) != Err(Refused::Full) {
        taken += 1;
    }
    assert!((30..64).contains(&taken), "{taken}");
    assert_eq!(b.sent().len() as u64, taken);
    assert_eq!(b.reclaim().len() as u64, taken);
    assert_eq!(b.send(&frame(60, 0), &[], 99), Ok(()));
    b.clean();
}
