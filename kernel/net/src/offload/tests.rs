//! Judged by a sum that is written the slow way, and by the `etherparse` crate: what is cut is put together again and
//! compared, and each segment is parsed and its checksums are computed by that crate.

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;

use super::samples::{ALL, Sent, header, read, sample, sent, slow_sum};
use super::segment::MAX_SEGMENTS;
use super::sum::Sum;
use super::{BadRequest, HEADER_BYTES, LEAST_MSS, MAX_FRONT, OffloadRequest, OffloadSupport, Segmentation, complete};
use crate::features::Features;

/// All segments of a frame, complete.
fn cut(cut: &Segmentation, frame: &[u8]) -> Vec<Vec<u8>> {
    let front = &frame[..usize::from(cut.headers)];
    let len = frame.len() as u32;
    let segment = |number| {
        let mut headers = [0; MAX_FRONT];
        let piece = cut.segment(front, len, number, &mut headers).expect("a segment");
        let payload = &frame[piece.at as usize..][..piece.len as usize];
        let mut rest = Sum::new();
        rest.add(payload);
        let headers = &mut headers[..front.len()];
        assert!(complete(headers, cut.checksum(), rest));
        [headers, payload].concat()
    };
    (0..cut.segments(len)).map(segment).collect()
}

proptest! {
    #[test]
    fn the_sum_is_that_of_single_words_however_the_bytes_are_divided(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        cuts in proptest::collection::vec(0usize..400, 0..5),
        number: u16,
    ) {
        let mut ends: Vec<usize> = cuts.into_iter().map(|c| c.min(bytes.len())).collect();
        ends.push(bytes.len());
        ends.sort_unstable();
        let (mut sum, mut start) = (Sum::new(), 0);
        sum.add_u16(number);
        for end in ends {
            sum.add(&bytes[start..end]);
            start = end;
        }
        let wanted = slow_sum(&[&number.to_be_bytes(), &bytes[..]].concat());
        prop_assert_eq!(u16::from_be_bytes(sum.field()), wanted);
        prop_assert_eq!(u16::from_be_bytes(sum.checksum()), if wanted == 0xffff { 0xffff } else { !wanted });
    }

    #[test]
    fn segments_put_together_again_are_the_frame(sent in sent()) {
        let frame = sent.frame();
        let request = read(&sent.header(), ALL, &frame).expect("a sound frame");
        prop_assert_eq!(request.front(), sent.headers());
        let plan = request.segmentation.expect("it is to be cut");
        prop_assert_eq!((usize::from(plan.ip), usize::from(plan.headers)), (sent.ip(), sent.headers()));
        let segments = cut(&plan, &frame);
        prop_assert_eq!(segments.len(), sent.payload.len().div_ceil(usize::from(sent.mss)));
        let mut payload = Vec::new();
        for (number, segment) in segments.iter().enumerate() {
            let last = number + 1 == segments.len();
            prop_assert!(segment.len() as u32 <= plan.longest(frame.len() as u32));
            prop_assert_eq!(&segment[..sent.ip()], &frame[..sent.ip()]);
            let parsed = SlicedPacket::from_ethernet(segment).expect("a frame");
            let Some(TransportSlice::Tcp(tcp)) = parsed.transport else { panic!("no TCP: {parsed:?}") };
            match parsed.net {
                Some(NetSlice::Ipv4(ip)) => {
                    let ip = ip.header().to_header();
                    prop_assert_eq!(usize::from(ip.total_len), segment.len() - sent.ip());
                    prop_assert_eq!(ip.identification, sent.identification.wrapping_add(number as u16));
                    prop_assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                    let sum = tcp.calc_checksum_ipv4(ip.source, ip.destination).unwrap();
                    prop_assert_eq!(nonzero(sum), tcp.checksum());
                }
                Some(NetSlice::Ipv6(ip)) => {
                    let ip = ip.header().to_header();
                    prop_assert_eq!(usize::from(ip.payload_length), segment.len() - sent.ip() - 40);
                    let sum = tcp.calc_checksum_ipv6(ip.source, ip.destination).unwrap();
                    prop_assert_eq!(nonzero(sum), tcp.checksum());
                }
                other => panic!("no IP: {other:?}"),
            }
            prop_assert_eq!(tcp.sequence_number(), sent.sequence.wrapping_add(payload.len() as u32));
            prop_assert_eq!(tcp.options(), vec![1; sent.options]);
            let mut flags = sent.flags;
            if !last {
                flags &= !(1 | 8);
            }
            if number != 0 {
                flags &= !0x80;
            }
            prop_assert_eq!(segment[sent.tcp() + 13], flags);
            prop_assert!(last || tcp.payload().len() == usize::from(sent.mss));
            payload.extend_from_slice(tcp.payload());
        }
        prop_assert_eq!(payload, sent.payload);
    }

    #[test]
    fn no_header_and_no_frame_makes_it_go_astray(
        header: [u8; HEADER_BYTES],
        // Near to something sound, so that the checks are passed one by one.
        near in any::<bool>(),
        sent in sent(),
        spoiled in proptest::collection::vec((0usize..100, any::<u8>()), 0..3),
        noise in proptest::collection::vec(any::<u8>(), 14..300),
    ) {
        let (mut frame, mut header) = if near { (sent.frame(), sent.header()) } else { (noise, header) };
        for (at, value) in spoiled {
            if at < HEADER_BYTES { header[at] = value } else if let Some(byte) = frame.get_mut(at) { *byte = value }
        }
        if let Ok(request) = read(&header, ALL, &frame) {
            prop_assert!(request.front() <= frame.len().min(MAX_FRONT));
            if let Some(plan) = request.segmentation {
                prop_assert!(plan.mss != 0 && usize::from(plan.headers) < frame.len());
                let segments = cut(&plan, &frame);
                prop_assert!(!segments.is_empty() && segments.len() <= MAX_SEGMENTS as usize);
            } else if let Some(checksum) = request.checksum {
                prop_assert!(complete(&mut frame, checksum, Sum::new()));
            }
        }
    }
}

/// Our way to write a checksum of zero, which means the same.
fn nonzero(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}

#[test]
fn a_checksum_is_completed_as_others_compute_it() {
    for v6 in [false, true] {
        let sent = sample(v6);
        let mut frame = sent.frame();
        let request = read(&header(1, 0, 0, sent.tcp() as u16, 16), ALL, &frame).unwrap();
        assert_eq!((request.segmentation, request.front()), (None, sent.tcp() + 18));
        // An odd front, as a checksum anywhere may make it.
        let (front, rest) = frame.split_at_mut(sent.tcp() + 19);
        let mut sum = Sum::new();
        sum.add(rest);
        assert!(complete(front, request.checksum.unwrap(), sum));
        let parsed = SlicedPacket::from_ethernet(&frame).unwrap();
        let (Some(TransportSlice::Tcp(tcp)), Some(net)) = (parsed.transport, parsed.net) else { panic!("no TCP") };
        let wanted = match net {
            NetSlice::Ipv4(ip) => tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination()),
            NetSlice::Ipv6(ip) => tcp.calc_checksum_ipv6(ip.header().source(), ip.header().destination()),
            NetSlice::Arp(_) => panic!("no IP"),
        };
        assert_eq!(tcp.checksum(), nonzero(wanted.unwrap()));
    }
}

#[test]
fn an_ip_header_whose_checksum_is_zero_says_zero() {
    let checksum_of = |identification| {
        let sent = Sent { identification, ..sample(false) };
        let frame = sent.frame();
        let plan = read(&sent.header(), ALL, &frame).unwrap().segmentation.unwrap();
        let segments = cut(&plan, &frame);
        let parsed = SlicedPacket::from_ethernet(&segments[0]).unwrap();
        let Some(NetSlice::Ipv4(ip)) = parsed.net else { panic!("no IPv4") };
        let ip = ip.header().to_header();
        assert_eq!(ip.header_checksum, ip.calc_header_checksum());
        ip.header_checksum
    };
    // With what is missing to 0xffff as identification, the sum of all words is 0xffff.
    assert_eq!(checksum_of(checksum_of(0)), 0);
}

#[test]
fn a_datagram_whose_sum_is_zero_does_not_say_that_it_has_none() {
    let mut frame = [0; 60];
    frame[40] = 0xff;
    frame[41] = 0xff;
    let checksum = nic::PartialChecksum { start: 34, offset: 6 };
    assert!(complete(&mut frame, checksum, Sum::new()));
    assert_eq!(frame[40..42], [0xff, 0xff]);
}

#[test]
fn what_was_not_negotiated_or_is_not_there_is_refused() {
    let sent = sample(false);
    let frame = sent.frame();
    let (tcp, good) = (sent.tcp() as u16, sent.header());
    assert!(read(&good, ALL, &frame).is_ok());
    let without = |f: fn(&mut OffloadSupport)| {
        let mut support = ALL;
        f(&mut support);
        support
    };
    for support in [OffloadSupport::default(), without(|c| c.tcp4 = false), without(|c| c.checksum = false)] {
        assert_eq!(read(&good, support, &frame), Err(BadRequest::Header), "{support:?}");
    }
    let mut ecn = good;
    ecn[1] |= 0x80;
    assert_eq!(read(&ecn, without(|c| c.ecn = false), &frame), Err(BadRequest::Header));
    assert!(read(&ecn, ALL, &frame).unwrap().segmentation.unwrap().ecn);
    for bad in [
        header(0, 1, 1448, tcp, 16),
        header(1, 4, 1448, tcp, 16),
        header(1, 3, 1448, tcp, 16),
        header(1, 0x80, 1448, tcp, 16),
        header(1, 1, 0, tcp, 16),
        header(1, 1, 1448, tcp, 6),
        header(1, 1, 1448, tcp - 4, 16),
        header(1, 1, 1448, tcp + 1, 16),
        header(1, 0, 0, 13, 16),
        header(1, 0, 0, MAX_FRONT as u16 - 17, 16),
        header(1, 0, 0, u16::MAX, u16::MAX),
        header(1, 0, 0, u16::MAX - 1, 1),
    ] {
        assert_eq!(read(&bad, ALL, &frame), Err(BadRequest::Header), "{bad:?}");
    }
    // A checksum that is not needed is not looked at.
    assert_eq!(read(&header(0, 0, 9, u16::MAX, u16::MAX), ALL, &frame), Ok(OffloadRequest::NOTHING));
    assert_eq!(read(&header(1, 0, 0, 34, 16), ALL, &frame[..51]), Err(BadRequest::Header));
}

#[test]
fn a_checksum_is_put_nowhere_but_where_the_packet_has_one_or_what_it_carries() {
    let frame = sample(false).frame();
    for start in 14..80 {
        for offset in 0..40 {
            let good = read(&header(1, 0, 0, start, offset), ALL, &frame).is_ok();
            assert_eq!(good, (start, offset) == (34, 16), "TCP, {start} and {offset}");
        }
    }
    for (protocol, own, inner) in [(17, Some(6), 8), (47, None, 4), (4, None, 4), (1, None, 100)] {
        let mut other = frame.clone();
        other[23] = protocol;
        for (start, offset) in (14..120).flat_map(|start| (0..40).map(move |offset| (start, offset))) {
            let good = read(&header(1, 0, 0, start, offset), ALL, &other).is_ok();
            let wanted = start >= 34 + inner || (start == 34 && own == Some(offset));
            assert_eq!(good, wanted, "protocol {protocol}, {start} and {offset}");
        }
        // A fragment has none, and neither has what is no packet.
        for (at, value) in [(20, 0x20), (21, 1), (12, 0x88)] {
            let mut odd = other.clone();
            odd[at] = value;
            assert_eq!(read(&header(1, 0, 0, 60, 6), ALL, &odd), Err(BadRequest::Header));
        }
    }
}

#[test]
fn what_is_asked_moves_with_a_tag() {
    let sent = sample(true);
    let request = read(&sent.header(), ALL, &sent.frame()).unwrap();
    let tagged = Sent { tags: 1, ..sent };
    let there = read(&tagged.header(), ALL, &tagged.frame()).unwrap();
    assert_eq!((request.shifted(4), there.shifted(-4), request.shifted(0)), (there, request, request));
}

#[test]
fn a_frame_that_is_not_what_its_type_says_is_not_cut() {
    for v6 in [false, true] {
        let sent = sample(v6);
        let (ip, tcp) = (sent.ip(), sent.tcp());
        let mut spoilers = vec![(12, 0x09), (ip, 0x55), (tcp + 12, 0x40), (tcp + 12, 0x00)];
        if v6 {
            spoilers.extend([(ip + 4, 0), (ip + 5, 0), (ip + 6, 17), (ip + 6, 0), (ip + 6, 44)]);
        } else {
            spoilers.extend([
                (ip, 0x44),
                (ip, 0x46),
                (ip + 2, 0),
                (ip + 3, 0),
                (ip + 6, 0x20),
                (ip + 7, 1),
                (ip + 9, 17),
            ]);
        }
        for (at, value) in spoilers {
            let mut frame = sent.frame();
            frame[at] = value;
            assert_eq!(read(&sent.header(), ALL, &frame), Err(BadRequest::Header), "v6 {v6}, byte {at} is {value:#x}");
        }
        let mut frame = sent.frame();
        frame.truncate(sent.headers());
        assert_eq!(read(&sent.header(), ALL, &frame), Err(BadRequest::Header), "no payload");
        frame = sent.frame();
        frame.push(0);
        assert_eq!(read(&sent.header(), ALL, &frame), Err(BadRequest::Header), "longer than IP says");
    }
}

#[test]
fn segments_of_few_bytes_are_refused() {
    for v6 in [false, true] {
        let asked = |mss| {
            let sent = Sent { mss, ..sample(v6) };
            read(&sent.header(), ALL, &sent.frame()).map(|request| request.segmentation.map(|s| s.mss))
        };
        assert_eq!(asked(LEAST_MSS), Ok(Some(LEAST_MSS)));
        for mss in 1..LEAST_MSS {
            assert_eq!(asked(mss), Err(BadRequest::SmallMss));
        }
        assert_eq!(asked(0), Err(BadRequest::Header));
    }
}

#[test]
fn a_frame_of_very_many_segments_is_cut_short() {
    let sent = Sent { mss: LEAST_MSS, payload: vec![1; 10_000], ..sample(false) };
    let frame = sent.frame();
    let plan = read(&sent.header(), ALL, &frame).unwrap().segmentation.unwrap();
    let segments = cut(&plan, &frame);
    assert_eq!(segments.len(), MAX_SEGMENTS as usize);
    assert!(segments.iter().all(|s| s[sent.tcp() + 13] & 1 == 0), "the last one is not among them");
}

#[test]
fn bits_that_rest_on_another_mean_nothing_without_it() {
    let f = |bits: &[Features]| bits.iter().fold(Features::VERSION_1, |all, bit| all | *bit);
    let tso = f(&[Features::NET_HOST_TSO4, Features::NET_HOST_ECN, Features::NET_GUEST_TSO6, Features::NET_GUEST_ECN]);
    assert_eq!(
        (OffloadSupport::device(tso), OffloadSupport::driver(tso)),
        (OffloadSupport::default(), OffloadSupport::default())
    );
    let device = OffloadSupport::device(tso | Features::NET_CSUM);
    assert_eq!(device, OffloadSupport { checksum: true, tcp4: true, tcp6: false, ecn: true });
    let driver = OffloadSupport::driver(tso | Features::NET_GUEST_CSUM);
    assert_eq!(driver, OffloadSupport { checksum: true, tcp4: false, tcp6: true, ecn: true });
    let ecn = f(&[Features::NET_CSUM, Features::NET_HOST_ECN]);
    assert_eq!(OffloadSupport::device(ecn), OffloadSupport { checksum: true, ..OffloadSupport::default() });
}

#[test]
fn a_receiver_that_can_take_it_gets_what_was_checked_and_nothing_else() {
    let sent = sample(true);
    let mut header = sent.header();
    header[0] |= 0xfe;
    header[1] |= 0x80;
    let request = read(&header, ALL, &sent.frame()).unwrap();
    let [.., b0, b1] = request.header(0x203);
    let headers = (sent.headers() as u16).to_le_bytes();
    assert_eq!(request.header(0x203)[..10], [&[1, 0x84], &headers[..], &header[4..10]].concat());
    assert_eq!([b0, b1], [3, 2]);
    assert!(
        ALL.accepts(&request)
            && !OffloadSupport { ecn: false, ..ALL }.accepts(&request)
            && !OffloadSupport { tcp6: false, ..ALL }.accepts(&request)
    );
    let checksum = OffloadRequest { segmentation: None, ..request };
    assert!(
        OffloadSupport { checksum: true, ..OffloadSupport::default() }.accepts(&checksum)
            && !OffloadSupport::default().accepts(&checksum)
    );
    assert!(OffloadSupport::default().accepts(&OffloadRequest::NOTHING));
    let told = request.for_nic().unwrap();
    assert_eq!((told.checksum(), told.mss(), told.vlan()), (request.checksum, Some(1428), None));
    assert_eq!(super::received_header(true, 1), [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
}
