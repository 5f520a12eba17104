//! Frames and commands of the hostile guest's making.

use net::offload::HEADER_BYTES;

use crate::input::Input;

/// Sum of 16-bit words, for a header that is to be right.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// TCP, UDP or ICMP over IPv4 of so many bytes at least, from Ethernet's type on.
fn ipv4(input: &mut Input<'_>, len: usize) -> Vec<u8> {
    let protocol = [6, 6, 6, 6, 17, 17, 1, 47][usize::from(input.byte() % 8)];
    let (source, destination) = (10 * u32::from(input.flag()), input.byte());
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
    if input.byte().is_multiple_of(8) {
        // A fragment, the first one or a later one.
        packet[6..8].copy_from_slice(&[0x20 | input.byte() & 1, input.byte() & 3]);
    }
    packet.extend([source as u8, 0, 0, 1 + input.byte() % 3, 10, 0, 0, destination % 4]);
    packet.extend(ports(input, protocol));
    packet.resize(len.max(packet.len()), 0x33);
    let total = (packet.len() as u16).to_be_bytes();
    packet[2..4].copy_from_slice(&total);
    let sum = checksum(&packet[..20]).to_be_bytes();
    packet[10..12].copy_from_slice(&sum);
    [&[8, 0], &packet[..]].concat()
}

/// The same over IPv6, perhaps with extension headers or a neighbour's message.
fn ipv6(input: &mut Input<'_>, len: usize) -> Vec<u8> {
    let protocol = [6, 6, 6, 6, 17, 58, 58, 59][usize::from(input.byte() % 8)];
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, protocol, 255];
    let address = |last: u8| [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    packet.extend(address(1 + input.byte() % 3));
    packet.extend(address(input.byte() % 4));
    if input.byte().is_multiple_of(4) {
        packet[6] = [0, 43, 44, 60][usize::from(input.byte() % 4)];
        packet.extend([protocol, 0, 0, 0, 0, 0, 0, 0]);
    }
    if protocol == 58 {
        let kind = [133, 134, 135, 136, 128][usize::from(input.byte() % 5)];
        packet.extend([kind, 0, 0, 0, 0x60, 0, 0, 0]);
        packet.extend(address(input.byte() % 4));
        packet.extend([1 + input.byte() % 2, 1, 2, 0, 0, 0, 0, 1 + input.byte() % 3]);
    } else {
        packet.extend(ports(input, protocol));
    }
    packet.resize(len.max(packet.len()), 0x44);
    let payload = (packet.len() as u16 - 40).to_be_bytes();
    packet[4..6].copy_from_slice(&payload);
    [&[0x86, 0xdd], &packet[..]].concat()
}

fn ports(input: &mut Input<'_>, protocol: u8) -> Vec<u8> {
    let mut all = [1000_u16.to_be_bytes(), [0, [7, 8, 9, 80][usize::from(input.byte() % 4)]]].concat();
    match protocol {
        6 => all.extend([
            0,
            0,
            0,
            1,
            0,
            0,
            0,
            1,
            0x50,
            [2, 0x10, 0x12, 0x18][usize::from(input.byte() % 4)],
            1,
            0,
            0,
            0,
            0,
            0,
        ]),
        17 => all.extend([0, 8, 0, 0]),
        1 => (all[0], all[1]) = (input.byte() % 16, 0),
        _ => (),
    }
    all
}

fn arp(input: &mut Input<'_>, from: [u8; 6]) -> Vec<u8> {
    let mut packet = vec![8, 6, 0, 1, 8, 0, 6, 4, 0, 1 + input.byte() % 2];
    packet.extend(from);
    packet.extend([10, 0, 0, 1 + input.byte() % 3, 2, 0, 0, 0, 0, 1 + input.byte() % 3, 10, 0, 0, input.byte() % 4]);
    packet
}

/// A frame, and the header before it. `macs`: addresses that exist.
pub fn frame(input: &mut Input<'_>, macs: &[[u8; 6]]) -> ([u8; HEADER_BYTES], Vec<u8>) {
    let mut mac = || macs[usize::from(input.byte()) % macs.len()];
    let (to, from) = (mac(), mac());
    let len = match input.byte() % 4 {
        0 => input.within(0, 70),
        1 => input.within(0, 4000),
        _ => input.within(46, 1500),
    } as usize;
    let mut frame = [to, from].concat();
    if input.byte().is_multiple_of(4) {
        let tag = [3, 5, 7, 9, 0x6005, 0][usize::from(input.byte() % 6)] as u16;
        let ether_type = if input.byte().is_multiple_of(8) { 0x88a8_u16 } else { 0x8100 };
        frame.extend([ether_type.to_be_bytes(), tag.to_be_bytes()].concat());
    }
    let start = frame.len() + 2;
    let (mut ip, mut v4) = (false, false);
    match input.byte() % 8 {
        0..3 => {
            frame.extend(ipv4(input, len));
            (ip, v4) = (true, true);
        }
        3 | 4 => {
            frame.extend(ipv6(input, len));
            ip = true;
        }
        5 => frame.extend(arp(input, from)),
        _ => {
            frame.extend([0x88, 0xb5]);
            frame.extend((0..len).map(|i| i as u8));
        }
    }
    for _ in 0..(input.byte() % 16).saturating_sub(8) {
        let at = input.within(0, frame.len() as u64) as usize;
        frame[at] = input.byte();
    }
    let mut header = [0; HEADER_BYTES];
    match input.byte() % 8 {
        0 => header.fill_with(|| input.byte()),
        1..6 if ip => {
            // A checksum, and perhaps segments, as drivers ask for them.
            let transport = (start + if v4 { 20 } else { 40 }) as u8;
            let size = input.within(0, 1500) as u16;
            let kind =
                [0, if v4 { 1 } else { 4 }][usize::from(input.flag())] | if input.byte() == 0 { 0x80 } else { 0 };
            let front = transport + if input.flag() { 20 } else { 0 };
            header[..10].copy_from_slice(&[1, kind, front, 0, size as u8, (size >> 8) as u8, transport, 0, 16, 0]);
        }
        _ => (),
    }
    (header, frame)
}

/// A command of a control queue, without the byte for the result.
pub fn command(input: &mut Input<'_>, macs: &[[u8; 6]]) -> Vec<u8> {
    let class = input.byte() % 6;
    let mut command = vec![class, if input.flag() { 0 } else { input.byte() % 7 }];
    match class {
        0 => command.push(input.byte() % 3),
        1 => {
            for _ in 0..2 {
                let count = input.byte() % 20;
                let said = if input.byte().is_multiple_of(16) { input.wide() as u32 } else { u32::from(count) };
                command.extend(said.to_le_bytes());
                for _ in 0..count {
                    let mut mac = macs[usize::from(input.byte()) % macs.len()];
                    mac[0] |= input.byte() & 1;
                    command.extend(mac);
                }
            }
        }
        2 => command.extend([input.byte(), input.byte() % 18]),
        4 => command.extend([input.byte() % 4, 0]),
        _ => (),
    }
    if input.byte().is_multiple_of(8) {
        command.resize(input.within(0, 2200) as usize, 0);
    }
    command
}
