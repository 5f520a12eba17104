//! Floods of an engine and of the console, each until a line is typed. They report what became of them. `least`: after so many
//! frames, or lines, they say `enough`, and go on.

use bare::console;
use bare::memory::{self, ARENA};
use bare::virtio_pci::Parts;

use crate::device::{HEADER, Mac, TX};
use crate::raw::{BUFFERS, INDIRECT_DESC, Raw};
use crate::report::say;
use crate::time;

/// Address of the indirect tables: one with a chain that the queue may have, and one that is too long.
const TABLES: [u64; 2] = [ARENA + 0x1_0000, ARENA + 0x2_0000];
/// Buffers of the two chains, one byte each.
const CHAINS: [u16; 2] = [256, 1000];
/// Frames of a round.
const FRAMES: u16 = 64;
/// VIRTIO_NET_F_CSUM and VIRTIO_NET_F_HOST_TSO4.
const OFFLOADS: u32 = 1 | 1 << 11;

/// Says that it begins, and calls `round` until a line is typed. `round` returns how much it has done so far. Says `enough`, once,
/// when that is `least`, unless that is 0. Returns the number of rounds.
pub fn until_line(least: u64, mut round: impl FnMut() -> Result<u64, &'static str>) -> Result<u64, &'static str> {
    let (mut rounds, mut waits) = (0, least != 0);
    say!("\"do\":\"begins\"");
    while console::typed() != Some(b'\n') {
        let done = round()?;
        rounds += 1;
        if waits && done >= least {
            say!("\"do\":\"enough\"");
            waits = false;
        }
    }
    Ok(rounds)
}

/// Writes a frame of `length` bytes with its header: to `to`, and of a local experimental type.
fn frame(to: Mac, from: Mac, length: usize) {
    memory::clear(BUFFERS, 0x800);
    let head = to.0.into_iter().chain(from.0).chain([0x88, 0xb5]);
    for (at, byte) in (BUFFERS + HEADER as u64..).zip(head.take(length)) {
        memory::write8(at, byte);
    }
}

/// The device's own address.
fn address(parts: &Parts) -> Mac {
    let mut bytes = [0; 6];
    (parts.device..).zip(&mut bytes).for_each(|(at, byte)| *byte = memory::read8(at));
    Mac(bytes)
}

/// Sends frames in chains of 256 buffers of one byte, which is as many as the queue has descriptors. Then one of a thousand. The
/// device must refuse that one and ask for a reset.
pub fn chains(parts: Parts, peer: Mac, least: u64) -> Result<(), &'static str> {
    frame(peer, address(&parts), usize::from(CHAINS[0]) - HEADER);
    for (table, count) in TABLES.into_iter().zip(CHAINS) {
        for n in 0..count {
            Raw::describe(table, n, &[(BUFFERS + u64::from(n), 1, false)]);
            if n + 1 < count {
                memory::write16(table + u64::from(n) * 16 + 12, crate::raw::NEXT);
            }
        }
    }
    let mut frames = 0;
    let rounds = until_line(least, || {
        let mut queue = Raw::open(parts, TX, INDIRECT_DESC)?;
        for n in 0..FRAMES {
            queue.indirect(n, TABLES[0], CHAINS[0].into());
            queue.offer(n);
        }
        queue.ring();
        queue.finish()?;
        queue.indirect(FRAMES, TABLES[1], CHAINS[1].into());
        queue.offer(FRAMES);
        queue.ring();
        if !time::wait(|| queue.needs_reset()) {
            return Err("the device took a chain that is longer than its queue");
        }
        frames += u64::from(FRAMES);
        Ok(frames)
    })?;
    say!("\"do\":\"chains\",\"frames\":{frames},\"refused\":{rounds}");
    Ok(())
}

/// Sends TCP that asks to be cut into segments of one byte.
pub fn small_mss(parts: Parts, peer: Mac, least: u64) -> Result<(), &'static str> {
    const PAYLOAD: u16 = 1400;
    frame(peer, address(&parts), 14);
    // NEEDS_CSUM, TCPV4, hdr_len 54, gso_size 1, csum_start 34, csum_offset 16 (virtio 1.3 5.1.6).
    let header = [1, 1, 54, 0, 1, 0, 34, 0, 16, 0, 0, 0];
    let [high, low] = (40 + PAYLOAD).to_be_bytes();
    let ip = [0x45, 0, high, low, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let tcp = [0, 80, 0, 81, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0];
    let packet = [8, 0].into_iter().chain(ip).chain(tcp);
    (BUFFERS..).zip(header).for_each(|(at, byte)| memory::write8(at, byte));
    (BUFFERS + HEADER as u64 + 12..).zip(packet).for_each(|(at, byte)| memory::write8(at, byte));
    let mut queue = Raw::open(parts, TX, OFFLOADS)?;
    queue.chain(0, &[(BUFFERS, HEADER as u32 + 54 + u32::from(PAYLOAD), false)]);
    let mut frames = 0;
    until_line(least, || {
        (0..FRAMES).for_each(|_| queue.offer(0));
        queue.ring();
        queue.finish()?;
        frames += u64::from(FRAMES);
        Ok(frames)
    })?;
    say!("\"do\":\"small-mss\",\"frames\":{frames}");
    Ok(())
}

/// Writes lines to the console: sequences that a terminal obeys, and the text of an event of sidecore's.
pub fn babble(least: u64) -> Result<(), &'static str> {
    let mut lines = 0;
    until_line(least, || {
        console::line(format_args!(
            "\x1b[2J\x1b[H\x1b[c\x1b]0;title\x07\x1b[?1049h\x1b[0;7msidecore>\x1b[0m \
             {{\"event\":\"guest\",\"guest\":\"a\",\"state\":\"stopped\"}}"
        ));
        lines += 1;
        Ok(lines)
    })?;
    // Lines that wait for COM2 go first.
    time::spin_us(500_000);
    say!("\"do\":\"babble\",\"lines\":{lines}");
    Ok(())
}
