//! The frames that guests send: UDP packets of IPv4 (RFC 791, 768). Guest n sends from 02:00:00:00:00:0n and 10.0.0.n.

use vhost_front::ring::Transmit;

/// Offset of a frame's serial number: the first word after the headers.
pub const SERIAL: usize = 48;
/// Bytes of Ethernet's header.
const ETHERNET: usize = 14;
/// Bytes of IPv4's header.
const IPV4: usize = 20;
/// Bytes of all headers, up to the end of UDP's.
const HEADERS: usize = ETHERNET + IPV4 + 8;
/// The UDP port of the receiver: discard.
const PORT: u8 = 9;

/// The headers of a frame of `len` bytes, padded with zeros to whole words.
pub fn headers(to: u8, from: u8, len: usize) -> [u8; SERIAL] {
    let mut frame = [0; SERIAL];
    let [total, udp] = [ETHERNET, ETHERNET + IPV4].map(|before| ((len - before) as u16).to_be_bytes());
    frame[..ETHERNET].copy_from_slice(&[2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 8, 0]);
    let ip = [0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, from, 10, 0, 0, to];
    frame[ETHERNET..ETHERNET + IPV4].copy_from_slice(&ip);
    let [high, low] = checksum(&ip).to_be_bytes();
    (frame[ETHERNET + 10], frame[ETHERNET + 11]) = (high, low);
    frame[ETHERNET + IPV4..HEADERS].copy_from_slice(&[3, 232, 0, PORT, udp[0], udp[1], 0, 0]);
    frame
}

/// The checksum of a header whose checksum field is 0 (RFC 1071).
fn checksum(header: &[u8]) -> u16 {
    let sum: u32 = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

/// Writes these headers to all free frames, once and for all.
pub fn fill(tx: &mut Transmit, to: u8, from: u8, len: usize) {
    let headers = headers(to, from, len);
    for ahead in 0..tx.free() {
        tx.set_len(ahead, len);
        for (n, word) in headers.chunks_exact(8).enumerate() {
            tx.write_word(ahead, 8 * n, word.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_checksum_are_right() {
        let frame = headers(2, 1, 60);
        assert_eq!((&frame[16..18], &frame[38..40]), (&[0, 46][..], &[0, 26][..]));
        assert_eq!(checksum(&frame[14..34]), 0, "with its checksum a header adds up to nothing");
        assert_eq!(headers(1, 2, 1500)[16..18], [5, 206]);
    }
}
