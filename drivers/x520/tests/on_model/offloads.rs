//! Checksums, segmentation and VLAN tags of sent frames, checked on the wire.

use x520::Device;
use x520::nic::{Offload, Outcome, PartialChecksum, Refused};
use x520_model::made::packet;
use x520_model::packet::{ip_checksum_good, parse, transport_checksum_good};

use crate::bench::{Bench, small};

fn good(frame: &[u8]) -> bool {
    let h = parse(frame, 0x8100);
    let (ip, t) = (h.ip.expect("IP"), h.transport.expect("a transport"));
    (!ip.v4 || ip_checksum_good(frame, &ip)) && transport_checksum_good(frame, &ip, &t)
}

fn request(v4: bool, tcp: bool) -> Offload {
    let start = if v4 { 34 } else { 54 };
    Offload::of_checksum(PartialChecksum { start, offset: if tcp { 16 } else { 6 } }).unwrap()
}

#[test]
fn checksums_are_put_in_for_tcp_and_udp_over_both_ips() {
    let mut b = Bench::up(small());
    for v4 in [true, false] {
        for tcp in [true, false] {
            for len in [0, 1, 777] {
                let payload = vec![0x5a; len];
                let f = packet(v4, tcp, (5, 6), &payload, true);
                let cut = f.len().min(54);
                let parts = if cut < f.len() { vec![b.payload(&f[cut..])] } else { vec![] };
                b.send_with(&f[..cut], &parts, request(v4, tcp), 1).unwrap();
                let sent = b.sent();
                let end = f.len();
                assert_eq!(sent[0][..end], packet(v4, tcp, (5, 6), &payload, false)[..], "{v4} {tcp} {len}");
            }
        }
    }
    b.clean();
}

#[test]
fn a_large_send_is_cut_and_every_segment_is_right() {
    let mut b = Bench::up(small());
    for v4 in [true, false] {
        let payload: Vec<u8> = (0..40_000u32).map(|i| (i / 7) as u8).collect();
        let f = packet(v4, true, (5, 6), &payload, true);
        let at = if v4 { 54 } else { 74 };
        let part = b.payload(&f[at..]);
        let offload = request(v4, true).with_mss(1400);
        b.send_with(&f[..at], &[part], offload, 3).unwrap();
        let sent = b.sent();
        assert_eq!(sent.len(), 40_000usize.div_ceil(1400));
        assert!(sent.iter().all(|f| good(f)));
        assert_eq!(sent.iter().flat_map(|f| f[at..].to_vec()).collect::<Vec<_>>(), payload);
        assert_eq!(b.reclaim(), [(3, Outcome::Sent)]);
    }
    b.clean();
}

#[test]
fn a_tag_is_put_in_also_into_segments() {
    let mut b = Bench::up(small());
    let f = packet(true, true, (5, 6), &[9; 2000], true);
    let part = b.payload(&f[54..]);
    let offload = request(true, true).with_mss(1000).with_vlan(0x2005);
    b.send_with(&f[..54], &[part], offload, 1).unwrap();
    let plain = packet(true, true, (5, 6), &[9; 10], false);
    b.send_with(&plain, &[], Offload::NOTHING.with_vlan(7), 2).unwrap();
    let sent = b.sent();
    assert_eq!(sent.iter().map(|f| parse(f, 0x8100).tag).collect::<Vec<_>>(), [Some(0x2005), Some(0x2005), Some(7)]);
    assert!(sent.iter().all(|f| good(f)));
    b.clean();
}

#[test]
fn a_frame_that_carries_its_tag_itself_is_offloaded_too() {
    let mut b = Bench::up(small());
    let mut f = packet(true, true, (5, 6), &[9; 3000], true);
    f.splice(12..12, [0x81, 0, 0, 5]);
    let part = b.payload(&f[58..]);
    let asked = Offload::of_checksum(PartialChecksum { start: 38, offset: 16 }).unwrap().with_mss(1460);
    b.send_with(&f[..58], &[part], asked, 1).unwrap();
    let sent = b.sent();
    assert_eq!(sent.iter().map(Vec::len).collect::<Vec<_>>(), [1518, 1518, 138]);
    assert!(sent.iter().all(|f| good(f)));
    b.clean();
}

#[test]
fn contexts_are_sent_once_and_kept_two_at_a_time() {
    let mut b = Bench::up(small());
    let mut cost = |kinds: &[(bool, bool)]| {
        let before = b.model.borrow().transactions();
        for (v4, tcp) in kinds {
            let f = packet(*v4, *tcp, (5, 6), &[1; 9], true);
            b.send_with(&f, &[], request(*v4, *tcp), 1).unwrap();
        }
        assert!(b.sent().iter().all(|f| good(f)));
        b.reclaim();
        // A descriptor and its data for each frame, a report for the batch; the rest are contexts.
        b.model.borrow().transactions() - before - 2 * kinds.len() as u64 - 1
    };
    let (a, c, d) = ((true, true), (false, true), (true, false));
    assert_eq!(cost(&[a, a, a]), 1);
    assert_eq!(cost(&[a, c, a, c, a]), 1, "a is known already");
    assert_eq!(cost(&[d, c, d]), 1, "d replaces a, which is older");
    assert_eq!(cost(&[a, d]), 1, "a replaces c");
    let now = b.now;
    b.nic.restart(now);
    b.until_up();
    let f = packet(true, true, (5, 6), &[1; 9], true);
    b.send_with(&f, &[], request(true, true), 1).unwrap();
    assert!(good(&b.sent()[0]), "after a reset the device knows none");
    b.clean();
}

#[test]
fn what_the_device_cannot_do_is_refused_for_software_to_do() {
    let mut b = Bench::up(small());
    let f = packet(true, false, (5, 6), &[1; 3000], true);
    let part = b.payload(&f[54..]);
    let odd = Offload::of_checksum(PartialChecksum { start: 34, offset: 4 }).unwrap();
    assert_eq!(b.send_with(&f[..54], &[], odd, 1), Err(Refused::Offload));
    let udp = request(true, false).with_mss(1000);
    assert_eq!(b.send_with(&f[..54], &[part], udp, 1), Err(Refused::Offload), "UDP is not cut");
    let tcp = packet(true, true, (5, 6), &[1; 3000], true);
    let large = request(true, true).with_mss(1461);
    assert_eq!(b.send_with(&tcp[..54], &[part], large, 1), Err(Refused::Length));
    assert_eq!(b.nic.outstanding(), 0);
    b.clean();
}
