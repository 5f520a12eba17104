//! Files that zstd might have written, with contents that are known, and damage to them.

use unpack::{Bad, MAX_WINDOW, header, is_packed, unpack};

use crate::input::Input;
use crate::planted::planted;

const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Smallest window that the files here have. No block is longer.
const WINDOW: usize = 4096;
/// What is in the buffer behind the contents.
const UNTOUCHED: u8 = 0xa5;

/// Bases and bits of the codes of lengths of literals, and of matches, from the first with bits on (RFC 8878, 3.1.1.3.2.1.1).
const LITERALS: [(usize, u32); 10] =
    [(16, 1), (18, 1), (20, 1), (22, 1), (24, 2), (28, 2), (32, 3), (40, 3), (48, 4), (64, 6)];
const MATCHES: [(usize, u32); 11] =
    [(35, 1), (37, 1), (39, 1), (41, 1), (43, 2), (47, 2), (51, 3), (59, 3), (67, 4), (83, 4), (99, 5)];

/// XXH64 with seed 0.
fn xxh64(bytes: &[u8]) -> u64 {
    const P: [u64; 5] = [
        0x9e37_79b1_85eb_ca87,
        0xc2b2_ae3d_27d4_eb4f,
        0x1656_67b1_9e37_79f9,
        0x85eb_ca77_c2b2_ae63,
        0x27d4_eb2f_1656_67c5,
    ];
    let quad = |bytes: &[u8]| u64::from_le_bytes(std::array::from_fn(|n| bytes[n]));
    let round = |lane: u64, input: u64| lane.wrapping_add(input.wrapping_mul(P[1])).rotate_left(31).wrapping_mul(P[0]);
    let stripes = bytes.chunks_exact(32);
    let mut rest = stripes.remainder();
    let mut hash = if bytes.len() < 32 {
        P[4]
    } else {
        let mut lanes = [P[0].wrapping_add(P[1]), P[1], 0, 0_u64.wrapping_sub(P[0])];
        for stripe in stripes {
            lanes.iter_mut().zip(stripe.chunks(8)).for_each(|(lane, input)| *lane = round(*lane, quad(input)));
        }
        let rotated = lanes.iter().zip([1, 7, 12, 18]).map(|(lane, by)| lane.rotate_left(by));
        let hash = rotated.fold(0, u64::wrapping_add);
        lanes.iter().fold(hash, |hash, &lane| (hash ^ round(0, lane)).wrapping_mul(P[0]).wrapping_add(P[3]))
    };
    hash = hash.wrapping_add(bytes.len() as u64);
    while rest.len() >= 8 {
        hash = (hash ^ round(0, quad(rest))).rotate_left(27).wrapping_mul(P[0]).wrapping_add(P[3]);
        rest = &rest[8..];
    }
    if rest.len() >= 4 {
        let word = u64::from(u32::from_le_bytes(std::array::from_fn(|n| rest[n])));
        hash = (hash ^ word.wrapping_mul(P[0])).rotate_left(23).wrapping_mul(P[1]).wrapping_add(P[2]);
        rest = &rest[4..];
    }
    for &byte in rest {
        hash = (hash ^ u64::from(byte).wrapping_mul(P[4])).rotate_left(11).wrapping_mul(P[0]);
    }
    hash = (hash ^ hash >> 33).wrapping_mul(P[1]);
    hash = (hash ^ hash >> 29).wrapping_mul(P[2]);
    hash ^ hash >> 32
}

/// The head of a block with so many bytes.
fn block(kind: usize, len: usize) -> [u8; 3] {
    let [a, b, c, _] = ((kind << 1 | len << 3) as u32).to_le_bytes();
    [a, b, c]
}

/// A frame in the making.
struct Frame {
    content: Vec<u8>,
    bytes: Vec<u8>,
    /// The last three offsets.
    repeated: [usize; 3],
}

impl Frame {
    /// Adds a compressed block: literals and matches, whose codes are the same for all sequences of the block.
    fn compressed(&mut self, input: &mut Input<'_>) {
        let begin = self.content.len();
        let codes @ [literal_code, offset_code, match_code] =
            [input.within(0, 26) as usize, input.within(0, 12) as usize, input.within(0, 43) as usize];
        let all: Vec<u8> = (0..input.within(0, 400)).map(|n| (n as u8).wrapping_mul(37) ^ input.byte()).collect();
        let is_run = input.flag();
        let all = if is_run { vec![all.first().copied().unwrap_or(7); all.len().max(1)] } else { all };
        let mut literals = &all[..];
        // Values and numbers of bits, in the order in which they are read.
        let (mut fields, mut count) = (Vec::new(), 0);
        for _ in 0..input.byte() % 24 {
            let (base, literal_bits) = if literal_code < 16 { (literal_code, 0) } else { LITERALS[literal_code - 16] };
            let literal_more = usize::from(input.byte()) & ((1 << literal_bits) - 1);
            let (match_base, match_bits) = if match_code < 32 { (match_code + 3, 0) } else { MATCHES[match_code - 32] };
            let match_more = usize::from(input.byte()) & ((1 << match_bits) - 1);
            let offset_more = input.wide() as usize & ((1 << offset_code) - 1);
            let (literal_len, match_len) = (base + literal_more, match_base + match_more);
            let value = (1 << offset_code) + offset_more;
            let [a, b, c] = self.repeated;
            // An offset of before, or a new one (3.1.1.5).
            let (offset, repeated) = match value + usize::from(literal_len == 0) {
                _ if value > 3 => (value - 3, [value - 3, a, b]),
                1 => (a, [a, b, c]),
                2 => (b, [b, a, c]),
                3 => (c, [c, a, b]),
                _ => (a.wrapping_sub(1), [a.wrapping_sub(1), a, b]),
            };
            let there = self.content.len() + literal_len;
            let fits = there + match_len - begin + literals.len() <= WINDOW;
            if literals.len() < literal_len || offset == 0 || offset > there || offset > WINDOW || !fits {
                break;
            }
            let (now, later) = literals.split_at(literal_len);
            self.content.extend_from_slice(now);
            literals = later;
            (0..match_len).for_each(|_| self.content.push(self.content[self.content.len() - offset]));
            self.repeated = repeated;
            fields.extend([(offset_more, offset_code as u32), (match_more, match_bits), (literal_more, literal_bits)]);
            count += 1;
        }
        self.content.extend_from_slice(literals);
        let (kind, form) = (usize::from(is_run), if input.flag() { 1 } else { 3 });
        let head = (kind | form << 2 | all.len() << 4).to_le_bytes();
        let mut bytes = head[..if form == 1 { 2 } else { 3 }].to_vec();
        bytes.extend_from_slice(if is_run { &all[..1] } else { &all });
        bytes.push(count);
        if count > 0 {
            // The code of each kind is the same for all sequences.
            bytes.push(0b01_01_01_00);
            bytes.extend(codes.map(|code| code as u8));
            bytes.extend(backwards(&fields));
        }
        self.bytes.extend(block(2, bytes.len()));
        self.bytes.extend(bytes);
    }

    fn block(&mut self, input: &mut Input<'_>) {
        match input.byte() % 4 {
            0 => {
                let raw: Vec<u8> = (0..input.byte() % 64).map(|_| input.byte()).collect();
                self.bytes.extend(block(0, raw.len()));
                self.bytes.extend(&raw);
                self.content.extend(raw);
            }
            1 => {
                let (byte, len) = (input.byte(), input.within(0, WINDOW as u64) as usize);
                self.bytes.extend(block(1, len));
                self.bytes.push(byte);
                self.content.extend(vec![byte; len]);
            }
            _ => self.compressed(input),
        }
    }
}

/// A stream of bits that is read from its end on (RFC 8878, 4.1).
fn backwards(fields: &[(usize, u32)]) -> Vec<u8> {
    let mut bits: Vec<bool> = Vec::new();
    for &(value, count) in fields.iter().rev() {
        bits.extend((0..count).map(|bit| value >> bit & 1 == 1));
    }
    bits.push(true);
    bits.chunks(8).map(|byte| byte.iter().enumerate().map(|(n, &bit)| u8::from(bit) << n).sum()).collect()
}

/// What the first frame says of itself.
struct Says {
    content: Option<u64>,
    window: u64,
}

/// Makes a frame. Returns its bytes, its contents, what it says, and whether its checksum is wrong.
fn frame(input: &mut Input<'_>) -> (Vec<u8>, Vec<u8>, Says, bool) {
    let mut frame = Frame { content: Vec::new(), bytes: Vec::new(), repeated: [1, 4, 8] };
    for _ in 0..input.byte() % 4 {
        frame.block(input);
    }
    // The last one is empty: its bit in the head says so.
    frame.bytes.extend([1, 0, 0]);
    let (single, sized, checked) = (input.byte() < 64, input.flag(), input.flag());
    let len = frame.content.len();
    // A single segment has its contents as its window, and no block may be longer.
    let single = single && len >= WINDOW;
    let sized = sized || single;
    let mut bytes = MAGIC.to_vec();
    bytes.push(u8::from(sized) << 7 | u8::from(single) << 5 | u8::from(checked) << 2);
    let exponent = 2 + input.byte() % 4;
    if !single {
        bytes.push(exponent << 3);
    }
    if sized {
        bytes.extend((len as u32).to_le_bytes());
    }
    bytes.extend(&frame.bytes);
    let is_wrong = checked && input.byte() < 32;
    if checked {
        let check = xxh64(&frame.content) as u32;
        bytes.extend(if is_wrong { check ^ 1 } else { check }.to_le_bytes());
    }
    let window = if single { len as u64 } else { 1 << (10 + exponent) };
    (bytes, frame.content, Says { content: (sized && len > 0).then_some(len as u64), window }, is_wrong)
}

fn skipped(input: &mut Input<'_>) -> Vec<u8> {
    let len = input.byte() % 8;
    [&[0x50 | input.byte() & 0xf, 0x2a, 0x4d, 0x18, len, 0, 0, 0][..], &vec![0xee; len.into()]].concat()
}

/// Any bytes: nothing leaves the buffer, and a refusal is a sentence.
fn any(bytes: &[u8], room: usize) {
    if let Err(why) = header(bytes) {
        crate::is_line(&why.to_string());
    }
    let mut into = vec![UNTOUCHED; room];
    match unpack(bytes, &mut into) {
        Ok(len) => {
            assert!(len <= room);
            assert!(into[len..].iter().all(|&byte| byte == UNTOUCHED), "written behind the contents");
        }
        Err(why) => crate::is_line(&why.to_string()),
    }
}

/// Runs one input.
pub fn run(input: &mut Input<'_>) {
    let kind = input.byte();
    let room = input.within(0, 20_000) as usize;
    if kind < 48 {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(std::iter::from_fn(|| (!input.is_empty()).then(|| input.byte())));
        return any(&bytes, room);
    }
    let (mut bytes, mut content, mut first, mut wrong) = (Vec::new(), Vec::new(), None, false);
    // The decoder takes memory for the largest window of all frames.
    let mut window = 0;
    for _ in 0..1 + input.byte() % 3 {
        if input.byte() < 32 {
            bytes.extend(skipped(input));
        }
        let (more, of_it, says, is_wrong) = frame(input);
        bytes.extend(more);
        content.extend(of_it);
        window = says.window.max(window);
        first = first.or(Some(says.content));
        wrong |= is_wrong;
    }
    if kind < 112 {
        for _ in 0..1 + input.byte() % 4 {
            let at = input.within(0, bytes.len() as u64) as usize;
            bytes[at] = if input.flag() { bytes[at] ^ 1 << (input.byte() % 8) } else { input.byte() };
        }
        if input.byte() < 48 {
            bytes.truncate(input.within(0, bytes.len() as u64) as usize);
        }
        return any(&bytes, room);
    }
    let said = first.expect("there is a frame");
    assert!(is_packed(&bytes));
    let head = header(&bytes).expect("a good file");
    assert_eq!((head.content, head.window), (said, window));
    assert!(window <= MAX_WINDOW && head.heap() <= 28 << 20);
    let room = if input.byte() < 128 { content.len() } else { room };
    let mut into = vec![UNTOUCHED; room];
    let unpacked = unpack(&bytes, &mut into);
    if planted() {
        content.push(0);
    }
    match unpacked {
        Err(Bad::Checksum { .. }) => assert!(wrong, "its checksum is right"),
        Err(Bad::TooLong(most)) => assert!(most == room as u64 && content.len() > room, "it fits"),
        Err(why) => panic!("a good file: {why}"),
        Ok(len) => {
            assert!(!wrong, "its checksum is wrong");
            assert!(into[..len] == content, "the contents of a good file");
            assert!(into[len..].iter().all(|&byte| byte == UNTOUCHED), "written behind the contents");
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_checksum_is_the_known_one() {
        // Of the reference implementation.
        assert_eq!(super::xxh64(b""), 0xef46_db37_51d8_e999);
        assert_eq!(super::xxh64(b"Nobody inspects the spammish repetition"), 0xfbce_a83c_8a37_8bf1);
    }
}
