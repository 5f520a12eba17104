//! What a guest may say that it is, and what it may not.

use super::*;
use crate::policy::frames::{A, B, arp, ethernet, extension, from_mac, ip, neighbour, tagged, tcp, udp};
use crate::policy::headers::{ICMP, LOOKED_AT, TCP};

/// The link-local address that follows from `A`.
const A_LOCAL: &str = "fe80::ff:fe00:1";

fn guard(addresses: &[&str]) -> Guard {
    let addresses: std::vec::Vec<IpAddr> = addresses.iter().map(|a| a.parse().unwrap()).collect();
    Guard::new(&[Mac::new(A)], &addresses).unwrap()
}

fn check(guard: &Guard, frame: &[u8]) -> Result<(), Spoof> {
    guard.check(&Headers::parse(&frame[..frame.len().min(LOOKED_AT)], true, guard.reads_packets()).unwrap())
}

#[test]
fn a_frame_from_another_mac_address_is_refused_and_what_is_in_it_is_its_own_business() {
    let guard = guard(&[]);
    for frame in [ethernet(0x88b5, &[1]), arp(1, (B, "10.0.0.9"), "10.0.0.2"), ethernet(0x0800, &[0; 3])] {
        assert_eq!(check(&guard, &frame), Ok(()));
        assert_eq!(check(&guard, &tagged(&from_mac(frame, B), 7)), Err(Spoof::Mac));
    }
    assert!(Guard::default().permits(Mac::new(B)), "nothing is configured");
    let both = Guard::new(&[Mac::new(A), Mac::new(B)], &[]).unwrap();
    assert!(both.permits(Mac::new(B)) && !both.permits(Mac::new([2; 6])));
}

#[test]
fn packets_come_from_configured_addresses_only() {
    let guard = guard(&["10.0.0.1", "fd00::1"]);
    for own in ["10.0.0.1", "fd00::1", A_LOCAL] {
        let peer = if own.contains(':') { "fd00::2" } else { "10.0.0.2" };
        assert_eq!(check(&guard, &ip(own, peer, TCP, &tcp(1, 2, 0))), Ok(()), "{own}");
    }
    for other in ["10.0.0.2", "0.0.0.0", "255.255.255.255", "fd00::2", "fe80::1", "::", "::ffff:10.0.0.1"] {
        let peer = if other.contains(':') { "fd00::2" } else { "10.0.0.3" };
        let frame = ip(other, peer, TCP, &tcp(1, 2, 0));
        assert_eq!(check(&guard, &frame), Err(Spoof::Address), "{other}");
        assert_eq!(check(&guard, &tagged(&frame, 7)), Err(Spoof::Address), "{other}");
    }
    let frame = ip("10.0.0.1", "10.0.0.2", ICMP, &[8, 0, 0, 0]);
    assert_eq!(check(&guard, &from_mac(frame, B)), Err(Spoof::Mac));
}

#[test]
fn arp_tells_the_truth() {
    let guard = guard(&["10.0.0.1"]);
    for (operation, sender, target, expected) in [
        (1, (A, "10.0.0.1"), "10.0.0.2", Ok(())),
        (2, (A, "10.0.0.1"), "10.0.0.2", Ok(())),
        (1, (A, "10.0.0.1"), "10.0.0.1", Ok(())),
        (1, (A, "0.0.0.0"), "10.0.0.1", Ok(())),
        (1, (A, "0.0.0.0"), "10.0.0.2", Err(Spoof::Address)),
        (2, (A, "0.0.0.0"), "10.0.0.1", Err(Spoof::Address)),
        (2, (A, "10.0.0.2"), "10.0.0.3", Err(Spoof::Address)),
        (1, (A, "10.0.0.2"), "10.0.0.2", Err(Spoof::Address)),
        (2, (B, "10.0.0.1"), "10.0.0.2", Err(Spoof::Mac)),
    ] {
        assert_eq!(check(&guard, &arp(operation, sender, target)), expected, "{operation} {sender:?} {target}");
    }
    assert_eq!(check(&guard, &arp(1, (A, "10.0.0.1"), "10.0.0.2")[..40]), Err(Spoof::Unreadable));
}

#[test]
fn neighbour_discovery_tells_the_truth() {
    let guard = guard(&["fd00::1"]);
    for (kind, source, target, option, expected) in [
        (136, "fd00::1", "fd00::1", Some((2, A)), Ok(())),
        (136, A_LOCAL, A_LOCAL, Some((2, A)), Ok(())),
        (136, "fd00::1", "fd00::2", Some((2, A)), Err(Spoof::Address)),
        (136, "fd00::1", "fd00::1", Some((2, B)), Err(Spoof::Mac)),
        (135, "fd00::1", "fd00::2", Some((1, A)), Ok(())),
        (135, "fd00::1", "fd00::2", Some((1, B)), Err(Spoof::Mac)),
        (135, "fd00::2", "fd00::3", Some((1, A)), Err(Spoof::Address)),
        // Is my address free? That may be asked for one's own only, and without saying who asks.
        (135, "::", "fd00::1", None, Ok(())),
        (135, "::", A_LOCAL, None, Ok(())),
        (135, "::", "fd00::2", None, Err(Spoof::Address)),
        (135, "::", "fd00::1", Some((1, A)), Err(Spoof::Address)),
        // Routers.
        (134, "fd00::1", "::", None, Err(Spoof::Address)),
        (137, "fd00::1", "fd00::9", None, Err(Spoof::Address)),
    ] {
        let found = check(&guard, &neighbour(kind, source, target, option));
        assert_eq!(found, expected, "{kind} {source} {target} {option:?}");
    }
}

#[test]
fn who_has_no_address_yet_may_ask_for_one_and_nothing_else() {
    let guard = guard(&["10.0.0.1", "fd00::1"]);
    assert_eq!(check(&guard, &ip("0.0.0.0", "255.255.255.255", UDP, &udp(68, 67))), Ok(()));
    assert_eq!(check(&guard, &ip("0.0.0.0", "255.255.255.255", UDP, &udp(68, 68))), Err(Spoof::Address));
    assert_eq!(check(&guard, &ip("0.0.0.0", "255.255.255.255", TCP, &tcp(68, 67, 0))), Err(Spoof::Address));
    let listener = extension(ICMPV6, 1, &[143, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(check(&guard, &ip("::", "ff02::16", 0, &listener)), Ok(()));
    assert_eq!(check(&guard, &ip("::", "ff02::2", ICMPV6, &[133, 0, 0, 0, 0, 0, 0, 0])), Ok(()));
    assert_eq!(check(&guard, &ip("::", "fd00::2", ICMPV6, &[128, 0, 0, 0])), Err(Spoof::Address));
}

#[test]
fn what_cannot_be_read_and_what_nobody_checks_is_refused_of_a_port_with_addresses() {
    let guard = guard(&["10.0.0.1", "fd00::1"]);
    for (ether_type, expected) in
        [(0x88b5, Spoof::Address), (0x8035, Spoof::Address), (0x0800, Spoof::Unreadable), (0x86dd, Spoof::Unreadable)]
    {
        assert_eq!(check(&guard, &ethernet(ether_type, &[0; 10])), Err(expected), "{ether_type:#x}");
    }
    let inner = tagged(&tagged(&ip("10.0.0.9", "10.0.0.2", UDP, &udp(1, 2)), 9), 7);
    assert_eq!(check(&guard, &inner), Err(Spoof::Address), "a packet behind a second tag");
    // An advertisement far behind others' headers, and one of which the option is out of sight.
    let advertisement = neighbour(136, "fd00::1", "fd00::2", Some((2, B)))[14 + 40..].to_vec();
    let far = ip("fd00::1", "ff02::1", 0, &extension(ICMPV6, 12, &advertisement));
    assert_eq!(check(&guard, &far), Err(Spoof::Unreadable));
    let padded = [&advertisement[..24], &[14, 9], &[0; 70][..], &advertisement[24..]].concat();
    let near = ip("fd00::1", "ff02::1", ICMPV6, &padded);
    assert_eq!(check(&guard, &near), Err(Spoof::Unreadable));
}

#[test]
fn more_addresses_than_there_is_room_for_are_refused_before_they_are_used() {
    assert!(Guard::new(&[Mac::new(A); MAX_MACS + 1], &[]).is_err());
    assert!(Guard::new(&[], &["10.0.0.1".parse().unwrap(); MAX_ADDRESSES + 1]).is_err());
}
