//! Frames for the tests of this folder, made layer by layer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::headers::{ARP, ICMPV6, IPV4, IPV6};

pub const A: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const B: [u8; 6] = [2, 0, 0, 0, 0, 2];

pub fn v4(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
}

pub fn v6(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

/// From `A` to `B`.
pub fn ethernet(ether_type: u16, payload: &[u8]) -> Vec<u8> {
    [&B[..], &A, &ether_type.to_be_bytes(), payload].concat()
}

/// The same frame with a tag.
pub fn tagged(frame: &[u8], tci: u16) -> Vec<u8> {
    [&frame[..12], &[0x81, 0x00], &tci.to_be_bytes(), &frame[12..]].concat()
}

/// The same frame from somebody else.
pub fn from_mac(mut frame: Vec<u8>, mac: [u8; 6]) -> Vec<u8> {
    frame[6..12].copy_from_slice(&mac);
    frame
}

/// A packet in a frame; `fragment` is IPv4's field of that name, its flags and offset.
pub fn ipv4_fragment(source: &str, destination: &str, protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let total = 20 + payload.len() as u16;
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    packet[6..8].copy_from_slice(&fragment.to_be_bytes());
    packet.extend(v4(source).octets());
    packet.extend(v4(destination).octets());
    packet.extend(payload);
    ethernet(IPV4, &packet)
}

pub fn ip(source: &str, destination: &str, protocol: u8, payload: &[u8]) -> Vec<u8> {
    if source.parse::<IpAddr>().unwrap().is_ipv4() {
        return ipv4_fragment(source, destination, protocol, 0, payload);
    }
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, protocol, 255];
    packet[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
    packet.extend(v6(source).octets());
    packet.extend(v6(destination).octets());
    packet.extend(payload);
    ethernet(IPV6, &packet)
}

/// An extension header of `units` times eight bytes before `next`.
pub fn extension(next: u8, units: u8, rest: &[u8]) -> Vec<u8> {
    let mut header = vec![0; 8 * usize::from(units)];
    (header[0], header[1]) = (next, units - 1);
    header.extend(rest);
    header
}

pub const SYN: u8 = 0x02;
pub const ACK: u8 = 0x10;

pub fn tcp(source: u16, destination: u16, flags: u8) -> Vec<u8> {
    let mut header = vec![0; 20];
    header[..2].copy_from_slice(&source.to_be_bytes());
    header[2..4].copy_from_slice(&destination.to_be_bytes());
    (header[12], header[13]) = (0x50, flags);
    header
}

pub fn udp(source: u16, destination: u16) -> Vec<u8> {
    [&source.to_be_bytes()[..], &destination.to_be_bytes(), &[0, 8, 0, 0]].concat()
}

pub fn arp(operation: u16, sender: ([u8; 6], &str), target: &str) -> Vec<u8> {
    let fixed = [0, 1, 8, 0, 6, 4];
    let packet =
        [&fixed[..], &operation.to_be_bytes(), &sender.0, &v4(sender.1).octets(), &[0; 6], &v4(target).octets()];
    ethernet(ARP, &packet.concat())
}

/// A message of neighbour discovery with a target and an option with a link-layer address.
pub fn neighbour(kind: u8, source: &str, target: &str, option: Option<(u8, [u8; 6])>) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    match kind {
        133 => {}
        134 => message.extend([0; 8]),
        _ => message.extend(v6(target).octets()),
    }
    if kind == 137 {
        message.extend(v6("fd00::77").octets());
    }
    if let Some((number, mac)) = option {
        message.extend([number, 1]);
        message.extend(mac);
    }
    ip(source, "ff02::1", ICMPV6, &message)
}
