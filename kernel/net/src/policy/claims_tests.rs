//! What a port without addresses of its own may announce, and what it may not.

use super::*;
use crate::policy::frames::{A, B, arp, ethernet, extension, ip, neighbour, tcp};
use crate::policy::headers::{LOOKED_AT, TCP};
use crate::policy::vlan::PLAIN;

const GATEWAY: [u8; 6] = [2, 0, 0, 0, 0, 9];
const STRANGER: [u8; 6] = [2, 0, 0, 0, 0, 77];
/// The link-local address that follows from `B`.
const B_LOCAL: &str = "fe80::ff:fe00:2";

fn owner(vlan: Membership, mac: [u8; 6], addresses: &[&str]) -> Owner {
    let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
    Owner { vlan, macs: vec![Mac::new(mac)], addresses }
}

/// B has two addresses, and there is a gateway. A's own MAC address is checked if `own`.
fn check(frame: &[u8], own: bool, vlan: Vlan) -> Result<(), Spoof> {
    let others = [
        owner(Membership::Untagged, B, &["10.0.0.2", "fd00::2"]),
        owner(Membership::Plain, GATEWAY, &["10.0.0.9", "fe80::9"]),
        owner(Membership::Access(7), [2, 0, 0, 0, 0, 7], &["10.0.0.7"]),
    ];
    let guard = if own { Guard::new(&[Mac::new(A)], &[]).unwrap() } else { Guard::default() };
    let headers = Headers::parse(&frame[..frame.len().min(LOOKED_AT)], true, true).unwrap();
    Claims::new(&others).check(&guard, &headers, vlan)
}

#[test]
fn arp_does_not_claim_what_another_port_or_the_gateway_has() {
    for (operation, sender, target, expected) in [
        (1, (A, "10.0.0.1"), "10.0.0.2", Ok(())),
        (2, (A, "10.0.0.1"), "10.0.0.2", Ok(())),
        (2, (A, "10.0.0.2"), "10.0.0.3", Err(Spoof::Address)),
        // A request, and an announcement, say who sends them too.
        (1, (A, "10.0.0.2"), "10.0.0.3", Err(Spoof::Address)),
        (1, (A, "10.0.0.9"), "10.0.0.9", Err(Spoof::Address)),
        (1, (A, "0.0.0.0"), "10.0.0.2", Err(Spoof::Address)),
        (1, (A, "0.0.0.0"), "10.0.0.3", Ok(())),
        (2, (B, "10.0.0.1"), "10.0.0.3", Err(Spoof::Mac)),
        (2, (GATEWAY, "10.0.0.1"), "10.0.0.3", Err(Spoof::Mac)),
    ] {
        for own in [true, false] {
            let found = check(&arp(operation, sender, target), own, PLAIN);
            assert_eq!(found, expected, "{operation} {sender:?} {target}, own {own}");
        }
    }
    // A MAC address is its port's in all VLANs, as for the sources of frames.
    let elsewhere = arp(2, ([2, 0, 0, 0, 0, 7], "10.0.0.1"), "10.0.0.3");
    assert_eq!([PLAIN, 7, 8].map(|vlan| check(&elsewhere, false, vlan)), [Err(Spoof::Mac); 3]);
    let stranger = arp(2, (STRANGER, "10.0.0.1"), "10.0.0.3");
    assert_eq!((check(&stranger, true, PLAIN), check(&stranger, false, PLAIN)), (Err(Spoof::Mac), Ok(())));
    assert_eq!(check(&arp(2, (A, "10.0.0.1"), "10.0.0.2")[..40], true, PLAIN), Err(Spoof::Unreadable));
}

#[test]
fn an_address_is_its_owners_in_the_owners_vlans_only() {
    let claim = |address| arp(2, (A, address), "10.0.0.3");
    for (address, vlan, expected) in [
        ("10.0.0.7", PLAIN, Ok(())),
        ("10.0.0.7", 7, Err(Spoof::Address)),
        ("10.0.0.2", 7, Ok(())),
        ("10.0.0.9", 8, Ok(())),
    ] {
        assert_eq!(check(&claim(address), true, vlan), expected, "{address} in {vlan}");
    }
}

#[test]
fn neighbour_discovery_does_not_claim_either() {
    for (kind, source, target, option, expected) in [
        (136, "fd00::1", "fd00::1", Some((2, A)), Ok(())),
        (136, "fd00::1", "fd00::2", Some((2, A)), Err(Spoof::Address)),
        (136, "fd00::1", B_LOCAL, Some((2, A)), Err(Spoof::Address)),
        (136, "fd00::1", "fd00::1", Some((2, B)), Err(Spoof::Mac)),
        (135, "fd00::1", "fd00::2", Some((1, A)), Ok(())),
        (135, "fd00::1", "fd00::2", Some((1, B)), Err(Spoof::Mac)),
        (135, "fd00::2", "fd00::3", Some((1, A)), Err(Spoof::Address)),
        (135, "::", "fd00::2", None, Err(Spoof::Address)),
        (135, "::", "fd00::1", None, Ok(())),
        // Only a router says it is one; the gateway's word is the gateway's.
        (134, "fe80::1", "::", None, Ok(())),
        (134, "fe80::9", "::", None, Err(Spoof::Address)),
        (134, "fe80::1", "::", Some((1, A)), Ok(())),
        (134, "fe80::1", "::", Some((1, B)), Err(Spoof::Mac)),
        (134, "fe80::1", "::", Some((1, STRANGER)), Err(Spoof::Mac)),
        (137, B_LOCAL, "fd00::9", None, Err(Spoof::Address)),
        // Without the option a redirect says nothing of where its target is.
        (137, "fe80::1", "fd00::2", None, Ok(())),
        (137, "fe80::1", "fd00::5", Some((2, STRANGER)), Ok(())),
        (137, "fe80::1", "fd00::2", Some((2, A)), Err(Spoof::Address)),
        (137, "fe80::1", "fd00::2", Some((2, STRANGER)), Err(Spoof::Address)),
        (137, "fe80::1", "fd00::5", Some((2, B)), Err(Spoof::Mac)),
        (137, "fe80::1", "fd00::5", Some((2, GATEWAY)), Err(Spoof::Mac)),
    ] {
        let found = check(&neighbour(kind, source, target, option), true, PLAIN);
        assert_eq!(found, expected, "{kind} {source} {target} {option:?}");
    }
    for (kind, option, expected) in [(134, (1, A), Ok(())), (137, (2, STRANGER), Err(Spoof::Unreadable))] {
        let mut message = neighbour(kind, "fe80::1", "fd00::5", Some(option))[14 + 40..].to_vec();
        // Prefixes, servers of names, or the packet that is redirected.
        message.extend([4, 12].into_iter().chain([0; 94]));
        let long = ip("fe80::1", "ff02::1", ICMPV6, &message);
        assert_eq!(check(&long, true, PLAIN), expected, "{kind} with more options than are copied");
    }
    let advertisement = neighbour(136, "fd00::1", "fd00::2", Some((2, A)))[14 + 40..].to_vec();
    let far = ip("fd00::1", "ff02::1", 0, &extension(ICMPV6, 12, &advertisement));
    assert_eq!(check(&far, true, PLAIN), Err(Spoof::Unreadable), "beyond the copied bytes");
    let behind = ip("fd00::1", "ff02::1", 0, &extension(ICMPV6, 1, &advertisement));
    assert_eq!(check(&behind, true, PLAIN), Err(Spoof::Address), "behind other headers");
}

#[test]
fn other_packets_are_not_looked_at() {
    for frame in [
        ip("10.0.0.2", "10.0.0.3", TCP, &tcp(1, 2, 0)),
        ip("fd00::2", "fd00::3", TCP, &tcp(1, 2, 0)),
        ethernet(0x0800, &[0; 3]),
        ethernet(0x88b5, &[0; 3]),
    ] {
        assert_eq!(check(&frame, true, PLAIN), Ok(()));
    }
    assert_eq!(check(&ethernet(0x86dd, &[0; 3]), true, PLAIN), Err(Spoof::Unreadable));
    let nobody = Claims::new([]);
    let headers = Headers::parse(&arp(2, (B, "10.0.0.2"), "10.0.0.3"), true, true).unwrap();
    assert_eq!(nobody.check(&Guard::default(), &headers, PLAIN), Ok(()));
}
