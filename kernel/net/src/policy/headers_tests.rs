//! What is read from well-formed frames, from frames that hide something, and from anything at all.

use proptest::prelude::*;

use super::*;
use crate::policy::frames::{
    A, ACK, B, SYN, arp, ethernet, extension, ip, ipv4_fragment, neighbour, tagged, tcp, udp, v4, v6,
};

fn read(frame: &[u8]) -> Headers {
    Headers::parse(frame, true, true).unwrap()
}

fn packet(frame: &[u8]) -> Packet {
    match read(frame).network {
        Network::Ip(packet) => packet,
        other => panic!("{other:?}"),
    }
}

#[test]
fn tcp_over_ipv4_and_ipv6_with_and_without_a_tag() {
    for (source, destination) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
        let frame = ip(source, destination, TCP, &tcp(1234, 80, SYN));
        for (frame, tag) in [(frame.clone(), None), (tagged(&frame, 0xe007), Some(0xe007))] {
            let headers = read(&frame);
            assert_eq!((headers.source, headers.destination, headers.tag), (Mac::new(A), Mac::new(B), tag));
            let packet = packet(&frame);
            assert_eq!((packet.source, packet.destination), (source.parse().unwrap(), destination.parse().unwrap()));
            assert_eq!((packet.protocol, packet.fragment), (Some(TCP), false));
            assert_eq!(packet.transport, Transport::Ports { source: 1234, destination: 80, flags: SYN });
        }
    }
}

#[test]
fn what_looks_like_a_tag_is_payload_where_tags_are_none() {
    let frame = tagged(&ip("10.0.0.1", "10.0.0.2", UDP, &udp(1, 2)), 7);
    let headers = Headers::parse(&frame, false, true).unwrap();
    assert_eq!((headers.tag, headers.ether_type, headers.network), (None, TAGGED, Network::Other));
    assert!(headers.has_inner_tag());
    assert!(read(&tagged(&frame, 9)).has_inner_tag());
    assert_eq!(Headers::parse(&frame, true, false).unwrap().network, Network::Other, "not asked for");
}

#[test]
fn options_and_extension_headers_are_stepped_over() {
    let mut frame = ip("10.0.0.1", "10.0.0.2", TCP, &[vec![1; 40], tcp(5, 6, ACK)].concat());
    frame[14] = 0x4f;
    assert_eq!(packet(&frame).transport, Transport::Ports { source: 5, destination: 6, flags: ACK });
    let udp = udp(7, 8);
    let payload = extension(60, 1, &extension(43, 2, &extension(UDP, 1, &udp)));
    let packet = packet(&ip("fd00::1", "fd00::2", 0, &payload));
    assert_eq!(packet.protocol, Some(UDP));
    assert_eq!(packet.transport, Transport::Ports { source: 7, destination: 8, flags: 0 });
}

#[test]
fn a_header_that_is_out_of_sight_is_hidden_and_never_guessed() {
    // More extension headers than are followed.
    let many = (0..20).fold(udp(1, 2), |rest, n| extension(if n == 0 { UDP } else { 60 }, 1, &rest));
    let deep = packet(&ip("fd00::1", "fd00::2", 60, &many));
    assert_eq!((deep.protocol, deep.transport), (None, Transport::Hidden));
    // One that is longer than what is at hand, and one that leads out of the packet.
    let frame = ip("fd00::1", "fd00::2", 0, &extension(UDP, 20, &udp(1, 2)));
    assert_eq!(packet(&frame[..LOOKED_AT]).transport, Transport::Hidden);
    let mut frame = ip("fd00::1", "fd00::2", 0, &extension(UDP, 1, &udp(1, 2)));
    frame[14 + 40 + 1] = 9;
    assert_eq!(packet(&frame).transport, Transport::Hidden);
    // A TCP header that is cut off, by the frame's end or by what IP says.
    let frame = ip("10.0.0.1", "10.0.0.2", TCP, &tcp(1, 2, SYN));
    assert_eq!(packet(&frame[..14 + 20 + 13]).transport, Transport::Hidden);
    let mut short = frame.clone();
    short[17] = 20 + 8;
    assert_eq!(packet(&short).transport, Transport::Hidden, "what follows is padding");
}

#[test]
fn fragments_are_told_apart() {
    let first = ipv4_fragment("10.0.0.1", "10.0.0.2", UDP, 0x2000, &udp(1, 2));
    assert_eq!(packet(&first).transport, Transport::Ports { source: 1, destination: 2, flags: 0 });
    let later = ipv4_fragment("10.0.0.1", "10.0.0.2", UDP, 0x0001, &udp(1, 2));
    assert_eq!((packet(&later).transport, packet(&later).protocol), (Transport::Later, Some(UDP)));
    let header = |offset: u16| [&[UDP, 0][..], &offset.to_be_bytes(), &[0, 0, 0, 9], &udp(3, 4)].concat();
    let first = packet(&ip("fd00::1", "fd00::2", 44, &header(1)));
    assert_eq!(first.transport, Transport::Ports { source: 3, destination: 4, flags: 0 });
    let later = packet(&ip("fd00::1", "fd00::2", 44, &header(8)));
    assert!(first.fragment && later.fragment);
    assert_eq!((later.protocol, later.transport), (Some(UDP), Transport::Later));
}

#[test]
fn what_is_not_in_its_own_form_is_broken() {
    let good = ip("10.0.0.1", "10.0.0.2", UDP, &udp(1, 2));
    for (at, value) in [(14, 0x65), (14, 0x44), (17, 19)] {
        let mut bad = good.clone();
        bad[at] = value;
        assert_eq!(read(&bad).network, Network::Broken, "{at}");
    }
    assert_eq!(read(&good[..30]).network, Network::Broken);
    let mut six = ip("fd00::1", "fd00::2", UDP, &udp(1, 2));
    six[14] = 0x45;
    assert_eq!(read(&six).network, Network::Broken);
    let mut other = arp(1, (A, "10.0.0.1"), "10.0.0.2");
    other[14 + 4] = 8;
    assert_eq!(read(&other).network, Network::Broken, "an address of eight bytes");
    assert_eq!(Headers::parse(&[0; 13], true, true), None);
    assert_eq!(Headers::parse(&tagged(&ethernet(IPV4, &[]), 7)[..17], true, true), None);
}

#[test]
fn arp_says_who_asks_for_whom() {
    let Network::Arp(found) = read(&arp(1, (A, "10.0.0.1"), "10.0.0.2")).network else { panic!() };
    let (sender, target) = (v4("10.0.0.1"), v4("10.0.0.2"));
    assert_eq!(found, Arp { request: true, sender_mac: Mac::new(A), sender, target });
    let Network::Arp(reply) = read(&arp(2, (B, "10.0.0.9"), "10.0.0.2")).network else { panic!() };
    assert_eq!((reply.request, reply.sender_mac, reply.sender), (false, Mac::new(B), v4("10.0.0.9")));
}

fn says(frame: &[u8]) -> Neighbour {
    match packet(frame).transport {
        Transport::Icmp { neighbour, .. } => neighbour,
        other => panic!("{other:?}"),
    }
}

#[test]
fn neighbour_discovery_says_for_whom_it_speaks() {
    let advertisement = neighbour(136, "fd00::1", "fd00::1", Some((2, A)));
    let all = Neighbour::Says { target: Some(v6("fd00::1")), address: Some(Mac::new(A)) };
    assert_eq!(says(&advertisement), all);
    // The option of the other message, or an unknown one: not an address of this one.
    let none = Neighbour::Says { target: Some(v6("fd00::1")), address: None };
    assert_eq!(says(&neighbour(136, "fd00::1", "fd00::1", Some((1, A)))), none);
    let ask = Neighbour::Says { target: Some(v6("fd00::2")), address: Some(Mac::new(B)) };
    assert_eq!(says(&neighbour(135, "fd00::1", "fd00::2", Some((1, B)))), ask);
    let router = |target, address: Option<_>| Neighbour::Router { target, address: address.map(Mac::new) };
    assert_eq!(says(&neighbour(134, "fe80::1", "::", None)), router(None, None));
    assert_eq!(says(&neighbour(134, "fe80::1", "::", Some((1, A)))), router(None, Some(A)));
    assert_eq!(says(&neighbour(137, "fe80::1", "fd00::9", None)), router(Some(v6("fd00::9")), None));
    assert_eq!(says(&neighbour(137, "fe80::1", "fd00::9", Some((2, B)))), router(Some(v6("fd00::9")), Some(B)));
    assert_eq!(says(&neighbour(128, "fd00::1", "::", None)), Neighbour::None, "an echo request");
}

#[test]
fn neighbour_discovery_that_cannot_be_read_to_its_end_is_broken() {
    let advertisement = neighbour(136, "fd00::1", "fd00::1", Some((2, A)));
    assert_eq!(says(&advertisement[..advertisement.len() - 1]), Neighbour::Broken, "cut off");
    let mut endless = advertisement.clone();
    endless[14 + 40 + 25] = 0;
    assert_eq!(says(&endless), Neighbour::Broken, "an option of no length");
    let message = |rest: &[u8]| [&advertisement[14 + 40..], rest].concat();
    assert_eq!(says(&ip("fd00::1", "ff02::1", ICMPV6, &message(&[2, 1, 2, 2, 2, 2, 2, 2]))), Neighbour::Broken, "two");
    let mut fragment = vec![ICMPV6, 0, 0, 1, 0, 0, 0, 0];
    fragment.extend(message(&[]));
    assert_eq!(says(&ip("fd00::1", "ff02::1", 44, &fragment)), Neighbour::Broken, "in a fragment");
}

proptest! {
    #[test]
    fn nothing_panics_and_no_byte_beyond_what_is_read_matters(
        mut bytes in prop::collection::vec(any::<u8>(), 0..160),
        kind in prop::sample::select(vec![IPV4, IPV6, ARP, TAGGED, 0x88b5]),
        first in prop::sample::select(vec![0x45u8, 0x46, 0x4f, 0x60, 0x6f]),
        next in prop::sample::select(vec![0u8, 43, 44, 51, 60, ICMPV6, TCP, UDP]),
        tags: bool,
    ) {
        for (at, value) in [(12, (kind >> 8) as u8), (13, kind as u8), (14, first), (20, next)] {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        let front = &bytes[..bytes.len().min(LOOKED_AT)];
        let headers = Headers::parse(front, tags, true);
        prop_assert_eq!(headers.is_some(), front.len() >= if tags && kind == TAGGED { 18 } else { 14 });
        prop_assert_eq!(headers, Headers::parse(front, tags, true));
    }

    /// What is cut off may turn what was read into something that is not to be seen, but never into something else.
    #[test]
    fn a_shorter_look_sees_less_but_nothing_different(
        source in 0u16..4, destination in 0u16..4, extensions in 0u8..3, cut in 14usize..140, four: bool,
    ) {
        let tcp = tcp(source, destination, SYN);
        let whole = if four {
            ip("10.0.0.1", "10.0.0.2", TCP, &tcp)
        } else {
            let rest = (0..extensions).fold(tcp, |rest, n| extension(if n == 0 { TCP } else { 60 }, 1, &rest));
            ip("fd00::1", "fd00::2", if extensions == 0 { TCP } else { 60 }, &rest)
        };
        let seen = read(&whole[..cut.min(whole.len())]);
        match seen.network {
            Network::Broken => {}
            Network::Ip(p) => prop_assert!(
                p.transport == Transport::Hidden
                    || p.transport == Transport::Ports { source, destination, flags: SYN },
                "{p:?}"
            ),
            other => prop_assert!(false, "{other:?}"),
        }
    }
}
