//! Checksums and segmentation in software, against sums of single words (RFC 1071) and the rules of TCP and IP. Frames of TCP over
//! IPv4 and IPv6 with tags and options, and their virtio-net headers, are damaged in any way. What is accepted lies within the frame.
//! Each segment has right lengths, checksums, flags and sequence numbers, and the segments together are the payload.

use net::features::Features;
use net::offload::sum::Sum;
use net::offload::{
    Front, HEADER_BYTES, LEAST_MSS, MAX_FRONT, OffloadRequest, OffloadSupport, Segmentation, complete, received_header,
};

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

/// A frame of TCP, the offsets of the IP and the TCP header, and whether it is IPv6.
fn build(input: &mut Input<'_>) -> (Vec<u8>, [usize; 2], bool) {
    let v6 = input.flag();
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for _ in 0..input.byte() % 3 {
        frame.extend([0x81, 0, 0, 5]);
    }
    let ip = frame.len() + 2;
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
    (frame, [ip, tcp], v6)
}

/// What the two sides of a device may request, by the table of virtio 1.3 5.1.3.1: a bit without those that it depends on has no
/// effect.
fn supports(input: &mut Input<'_>) {
    let bits = input.wide();
    let features = Features::from_bits_retain(bits);
    // Checksum, TCP over IPv4, TCP over IPv6, ECN.
    for (numbers, support) in
        [([0, 11, 12, 13], OffloadSupport::device(features)), ([1, 7, 8, 9], OffloadSupport::driver(features))]
    {
        let [checksum, tcp4, tcp6, ecn] = numbers.map(|number| bits >> number & 1 != 0);
        let expected = [checksum, checksum && tcp4, checksum && tcp6, checksum && (tcp4 || tcp6) && ecn];
        assert_eq!([support.checksum, support.tcp4, support.tcp6, support.ecn], expected, "{features:?}");
    }
}

/// A frame of UDP, of a tunnel, of a fragment or of something else, in the place of one of TCP: the protocol changes, with what
/// is found behind IP's headers.
fn other_protocol(frame: &mut [u8], ip: usize, v6: bool, input: &mut Input<'_>) -> u8 {
    let protocol = [17, 136, 4, 41, 47, 44, 50, 43][usize::from(input.byte() % 8)];
    // Only where there are no extension headers between.
    let at = if v6 { ip + 6 } else { ip + 9 };
    if frame.get(at) == Some(&6) {
        frame[at] = protocol;
        return protocol;
    }
    6
}

/// What a request says of itself agrees with its fields. `support`: what was negotiated.
fn fields(request: &OffloadRequest, support: OffloadSupport, len: u32, input: &mut Input<'_>) {
    assert!(support.accepts(request), "what may be requested is accepted by the same side");
    let nothing = OffloadSupport::default();
    assert_eq!(nothing.accepts(request), request.checksum.is_none(), "who supports nothing accepts only plain frames");
    let buffers = input.byte();
    let header = request.header(buffers.into());
    assert_eq!(header[10..], [buffers, 0]);
    assert_eq!(OffloadRequest::any(header[0], header[1]), request.checksum.is_some());
    let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let told = request.checksum.map_or((0, 0, 0), |c| (1, c.start, c.offset));
    assert_eq!((u16::from(header[0]), half(6), half(8)), told);
    let told = request.segmentation.map_or((0, 0, 0), |s| {
        let kind = if s.v6 { 4 } else { 1 } | if s.ecn { 0x80 } else { 0 };
        (kind, s.headers, s.mss)
    });
    assert_eq!((u16::from(header[1]), half(2), half(4)), told);
    let cut = request.segmentation.map_or(len, |s| len.min(u32::from(s.headers) + u32::from(s.mss)));
    assert_eq!(request.longest(len), cut);
    // A tag is added and removed.
    assert_eq!(request.shifted(4).shifted(-4), *request);
    assert_eq!(request.shifted(4).front(), request.front() + if request.checksum.is_some() { 4 } else { 0 });
    let of_nic = request.for_nic().map(|nic| (nic.checksum(), nic.mss(), nic.vlan()));
    let fits = request.checksum.is_none_or(|c| c.start < 256 && c.offset < 128);
    assert_eq!(of_nic, fits.then_some((request.checksum, request.segmentation.map(|s| s.mss), None)));
    let valid = input.flag();
    let mut expected = [0; HEADER_BYTES];
    (expected[0], expected[10]) = (2 * u8::from(valid), buffers);
    assert_eq!(received_header(valid, buffers.into()), expected);
}

/// Runs one input.
///
/// # Panics
/// An offload was done wrongly.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    sums(&mut input);
    supports(&mut input);
    let (mut frame, [ip, tcp], v6) = build(&mut input);
    let gso =
        if input.byte().is_multiple_of(4) { 0 } else { [1, 4][usize::from(v6)] | if input.flag() { 0x80 } else { 0 } };
    let mss = if input.flag() { input.within(1, 200) } else { input.within(1, 9000) } as u16;
    let mut header = [0; HEADER_BYTES];
    (header[0], header[1]) = (1, gso);
    header[4..6].copy_from_slice(&mss.to_le_bytes());
    header[6..8].copy_from_slice(&(tcp as u16).to_le_bytes());
    header[8] = 16;
    let damage = input.byte() % 8;
    let protocol = if input.byte().is_multiple_of(4) { other_protocol(&mut frame, ip, v6, &mut input) } else { 6 };
    if protocol != 6 {
        // A checksum of UDP, or one further behind.
        let start = tcp as u16 + if input.flag() { 0 } else { u16::from(input.byte() % 40) };
        header[6..8].copy_from_slice(&start.to_le_bytes());
        header[8] = if input.flag() { 6 } else { input.byte() };
    }
    if input.byte().is_multiple_of(8) {
        header[0] = 0;
    }
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
    let wanted = if input.byte() < 64 { input.byte() } else { 0xf };
    let [checksum, tcp4, tcp6, ecn] = [0, 1, 2, 3].map(|bit| wanted >> bit & 1 != 0);
    let support = OffloadSupport { checksum, tcp4, tcp6, ecn };
    let len = frame.len() as u32;
    let front = frame[..frame.len().min(MAX_FRONT)].to_vec();
    let read = OffloadRequest::read(&header, support, Front { bytes: &front, len });
    let Ok(request) = read else {
        let headers = tcp + usize::from(frame.get(tcp + 12).map_or(0, |byte| byte >> 4)) * 4;
        // Headers that are longer than what is copied are not cut.
        let refused = frame.len() <= headers || headers > MAX_FRONT || mss < LEAST_MSS;
        let is_plain = header[0] == 1 && protocol == 6 && wanted & 0xf == 0xf;
        assert!(damage > 4 || !is_plain || refused && gso != 0, "a good frame was refused");
        return;
    };
    fields(&request, support, len, &mut input);
    let Some(checksum) = request.checksum else { return };
    let (start, at) = (usize::from(checksum.start), usize::from(checksum.start) + usize::from(checksum.offset));
    // A fragment has no checksum of its own, and neither has what is no protocol of these. Over IPv6, 43 is a header with a protocol in it:
    // what was TCP's first byte.
    let bears = matches!(protocol, 6 | 17 | 136 | 4 | 41 | 47) || v6 && protocol == 43;
    assert!(damage > 4 || bears, "protocol {protocol} bears a checksum");
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
