//! Checksums and segmentation in software, against sums of single words (RFC 1071) and the rules of TCP and IP. Frames of TCP over
//! IPv4 and IPv6 with tags and options, and their virtio-net headers, are damaged in any way. What is accepted lies within the frame.
//! Each segment has right lengths, checksums, flags and sequence numbers, and the segments together are the payload.

use net::offload::sum::Sum;
use net::offload::{Front, HEADER_BYTES, LEAST_MSS, MAX_FRONT, OffloadRequest, OffloadSupport, Segmentation, complete};

use crate::input::Input;
use crate::planted::planted;

/// RFC 1071, word by word.
fn slow_sum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let words = bytes.chunks(2).map(|word| u64::from(word[0]) << 8 | word.get(1).map_or(0, |low| u64::from(*low)));
    let mut sum: u64 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// A frame of TCP, the offset of the TCP header, and whether it is IPv6.
fn build(input: &mut Input<'_>) -> (Vec<u8>, usize, bool) {
    let v6 = input.flag();
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for _ in 0..input.byte() % 3 {
        frame.extend([0x81, 0, 0, 5]);
    }
    let (ip_options, tcp_options) = (usize::from(input.byte() % 11), usize::from(input.byte() % 11));
    let payload = match input.byte() % 8 {
        0 => input.within(0, 60_000),
        _ => input.within(0, 2000),
    } as usize;
    let tcp_bytes = 20 + 4 * tcp_options;
    if v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        let extensions = usize::from(input.byte() % 3);
        let length = 8 * extensions + tcp_bytes + payload;
        frame.extend((length as u16).to_be_bytes());
        frame.extend([if extensions == 0 { 6 } else { 0 }, 64]);
        frame.extend((0..32).map(|_| input.byte()));
        for left in (0..extensions).rev() {
            frame.extend([if left == 0 { 6 } else { 60 }, 0, 1, 4, 0, 0, 0, 0]);
        }
    } else {
        frame.extend([8, 0, 0x45 + ip_options as u8, 0]);
        frame.extend(((20 + 4 * ip_options + tcp_bytes + payload) as u16).to_be_bytes());
        frame.extend([input.byte(), input.byte(), 0x40, 0, 64, 6, 0, 0]);
        frame.extend((0..8).map(|_| input.byte()));
        frame.extend(std::iter::repeat_n(1, 4 * ip_options));
    }
    let tcp = frame.len();
    frame.extend((0..12).map(|_| input.byte()));
    frame.extend([(tcp_bytes as u8 / 4) << 4, input.byte(), 0xff, 0xff, input.byte(), input.byte(), 0, 0]);
    frame.extend(std::iter::repeat_n(1, 4 * tcp_options));
    let seed = input.byte();
    frame.extend((0..payload).map(|n| (n as u8).wrapping_mul(37) ^ seed));
    (frame, tcp, v6)
}

/// Runs one input.
///
/// # Panics
/// An offload was done wrongly.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    sums(&mut input);
    let (mut frame, tcp, v6) = build(&mut input);
    let gso =
        if input.byte().is_multiple_of(4) { 0 } else { [1, 4][usize::from(v6)] | if input.flag() { 0x80 } else { 0 } };
    let mss = if input.flag() { input.within(1, 200) } else { input.within(1, 9000) } as u16;
    let mut header = [0; HEADER_BYTES];
    (header[0], header[1]) = (1, gso);
    header[4..6].copy_from_slice(&mss.to_le_bytes());
    header[6..8].copy_from_slice(&(tcp as u16).to_le_bytes());
    header[8] = 16;
    let damage = input.byte() % 8;
    for _ in 0..damage.saturating_sub(4) {
        let (at, value) = (input.within(0, 120) as usize, input.byte());
        match frame.get_mut(at) {
            Some(byte) if input.flag() => *byte = value,
            _ => header[at % HEADER_BYTES] = value,
        }
    }
    if damage == 7 {
        frame.truncate(input.within(1, 200) as usize);
    }
    let support = OffloadSupport { checksum: true, tcp4: true, tcp6: true, ecn: true };
    let len = frame.len() as u32;
    let front = frame[..frame.len().min(MAX_FRONT)].to_vec();
    let read = OffloadRequest::read(&header, support, Front { bytes: &front, len });
    let Ok(request) = read else {
        let headers = tcp + usize::from(frame.get(tcp + 12).map_or(0, |byte| byte >> 4)) * 4;
        // Headers that are longer than what is copied are not cut.
        let refused = frame.len() <= headers || headers > MAX_FRONT || mss < LEAST_MSS;
        assert!(damage > 4 || refused && gso != 0, "a good frame was refused");
        return;
    };
    let Some(checksum) = request.checksum else { return };
    let (start, at) = (usize::from(checksum.start), usize::from(checksum.start) + usize::from(checksum.offset));
    assert!(start > 14 && at + 2 <= front.len() && request.front() <= front.len(), "{request:?}");
    match request.segmentation {
        Some(segmentation) => segments(&frame, &front, &segmentation),
        None => {
            let mut completed = front.clone();
            let mut rest = Sum::new();
            rest.add(&frame[front.len()..]);
            // The bytes after the front begin at an even offset from the start, or not.
            assert!(complete(&mut completed, checksum, rest));
            let mut expected = front.clone();
            let sum = !slow_sum(&[&frame[start..]]);
            expected[at..at + 2].copy_from_slice(&(if sum == 0 { 0xffff } else { sum }).to_be_bytes());
            if planted() {
                completed[0] ^= 1;
            }
            assert_eq!(completed, expected);
        }
    }
}

/// Sums of parts are the sum of the whole.
fn sums(input: &mut Input<'_>) {
    let parts: Vec<Vec<u8>> =
        (0..input.byte() % 4).map(|_| (0..input.byte() % 80).map(|_| input.byte()).collect()).collect();
    let (mut one, mut other) = (Sum::new(), Sum::new());
    for part in &parts {
        one.add(part);
        let mut own = Sum::new();
        own.add(part);
        other.append(own);
    }
    let whole = slow_sum(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>());
    for sum in [one, other] {
        // 0 and 0xffff are the same number.
        assert_eq!(u16::from_be_bytes(sum.field()) % 0xffff, whole % 0xffff);
    }
}

fn segments(frame: &[u8], front: &[u8], s: &Segmentation) {
    let len = frame.len() as u32;
    let (ip, tcp, headers) = (usize::from(s.ip), usize::from(s.tcp), usize::from(s.headers));
    let count = s.segments(len);
    let sequence = |bytes: &[u8]| u32::from_be_bytes([bytes[tcp + 4], bytes[tcp + 5], bytes[tcp + 6], bytes[tcp + 7]]);
    let mut done = headers;
    for number in 0..count {
        let mut buffer = [0; MAX_FRONT];
        let piece = s.segment(front, len, number, &mut buffer).expect("there is such a segment");
        assert_eq!(piece.at as usize, done, "one after the other");
        assert!(piece.len > 0 && piece.len <= u32::from(s.mss), "{piece:?}");
        let payload = &frame[done..done + piece.len as usize];
        done += payload.len();
        let mut segment = buffer[..headers].to_vec();
        let mut rest = Sum::new();
        rest.add(payload);
        assert!(complete(&mut segment, s.checksum(), rest));
        if planted() {
            segment[tcp] ^= 1;
        }
        let length = (headers - ip + payload.len()) as u16;
        let tcp_length = (headers - tcp + payload.len()) as u16;
        let (addresses, changed) = if s.v6 {
            assert_eq!(word(&segment, ip + 4), length - 40);
            (ip + 8..ip + 40, [4..6, 4..6])
        } else {
            assert_eq!(word(&segment, ip + 2), length);
            assert_eq!(word(&segment, ip + 4), word(frame, ip + 4).wrapping_add(number as u16));
            assert_eq!(slow_sum(&[&segment[ip..tcp]]), 0xffff, "the checksum of the IP header");
            (ip + 12..ip + 20, [2..6, 10..12])
        };
        let pseudo = [&tcp_length.to_be_bytes()[..], &[0, 6]].concat();
        let sum = slow_sum(&[&segment[addresses], &pseudo, &segment[tcp..], payload]);
        assert_eq!(sum, 0xffff, "the checksum of segment {number} of {s:?}");
        assert_eq!(sequence(&segment), sequence(frame).wrapping_add(piece.at - u32::from(s.headers)));
        let last = done == frame.len();
        let gone = if last { 0 } else { 0x09 } | if number == 0 { 0 } else { 0x80 };
        assert_eq!(segment[tcp + 13], frame[tcp + 13] & !gone, "flags of segment {number} of {count}");
        // The other bytes are those of the frame.
        let in_tcp = [4..8, 13..14, 16..18].map(|range| tcp - ip + range.start..tcp - ip + range.end);
        for (at, (new, old)) in segment.iter().zip(frame).enumerate() {
            let may = at >= ip && changed.iter().chain(&in_tcp).any(|range| range.contains(&(at - ip)));
            assert!(may || new == old, "byte {at} of segment {number} of {s:?}");
        }
    }
    assert!(done == frame.len() || count == net::offload::segment::MAX_SEGMENTS, "the whole payload");
    assert!(count == 0 || s.segment(front, len, u32::MAX, &mut [0; MAX_FRONT]).is_none());
}

crate::planted::tests!(offloads_are_done_as_by_hand, 512, 100..400);
