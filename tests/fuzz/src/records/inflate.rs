//! A decoder of DEFLATE (RFC 1951), a bit at a time: the judge of what compressed logs are. It is as strict as zlib,
//! but for blocks that cannot end.

/// What a stream is.
pub enum Unpacked {
    /// It is whole.
    Whole(Vec<u8>),
    /// It is longer than the room. As much as fits.
    More(Vec<u8>),
    /// It is damaged or cut off. What came before.
    Bad(Vec<u8>),
}

/// Why decoding ends early.
enum End {
    Full,
    Bad,
}

const LENGTHS: [(u16, u8); 29] = [
    (3, 0),
    (4, 0),
    (5, 0),
    (6, 0),
    (7, 0),
    (8, 0),
    (9, 0),
    (10, 0),
    (11, 1),
    (13, 1),
    (15, 1),
    (17, 1),
    (19, 2),
    (23, 2),
    (27, 2),
    (31, 2),
    (35, 3),
    (43, 3),
    (51, 3),
    (59, 3),
    (67, 4),
    (83, 4),
    (99, 4),
    (115, 4),
    (131, 5),
    (163, 5),
    (195, 5),
    (227, 5),
    (258, 0),
];
const DISTANCES: [(u16, u8); 30] = [
    (1, 0),
    (2, 0),
    (3, 0),
    (4, 0),
    (5, 1),
    (7, 1),
    (9, 2),
    (13, 2),
    (17, 3),
    (25, 3),
    (33, 4),
    (49, 4),
    (65, 5),
    (97, 5),
    (129, 6),
    (193, 6),
    (257, 7),
    (385, 7),
    (513, 8),
    (769, 8),
    (1025, 9),
    (1537, 9),
    (2049, 10),
    (3073, 10),
    (4097, 11),
    (6145, 11),
    (8193, 12),
    (12289, 12),
    (16385, 13),
    (24577, 13),
];
/// The order of the lengths of the codes of lengths (3.2.7).
const ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/// A Huffman code: how many codes have each length, and the symbols in their order.
struct Code {
    counts: [u16; 16],
    symbols: Vec<u16>,
}

impl Code {
    /// `may_be_incomplete`: a code of one bit, or none at all, is allowed.
    fn new(lengths: &[u8], may_be_incomplete: bool) -> Result<Self, End> {
        let mut counts = [0; 16];
        lengths.iter().for_each(|&len| counts[usize::from(len)] += 1);
        let mut left = 1_i32;
        for &count in &counts[1..] {
            left = left * 2 - i32::from(count);
            if left < 0 {
                return Err(End::Bad);
            }
        }
        let longest = (1..16).rev().find(|&len| counts[len] > 0).unwrap_or(0);
        if left > 0 && !(may_be_incomplete && longest <= 1) {
            return Err(End::Bad);
        }
        let of_length = |len| (0..lengths.len()).filter(move |&n| usize::from(lengths[n]) == len).map(|n| n as u16);
        Ok(Self { counts, symbols: (1..16).flat_map(of_length).collect() })
    }
}

struct Decoder<'a> {
    input: &'a [u8],
    /// The next bit.
    at: usize,
    out: Vec<u8>,
    room: usize,
}

impl Decoder<'_> {
    fn bits(&mut self, count: u8) -> Result<usize, End> {
        (0..count).try_fold(0, |all, n| {
            let byte = self.input.get(self.at / 8).ok_or(End::Bad)?;
            let bit = usize::from(byte >> (self.at % 8) & 1);
            self.at += 1;
            Ok(all | bit << n)
        })
    }

    fn symbol(&mut self, code: &Code) -> Result<usize, End> {
        let (mut word, mut first, mut index) = (0_usize, 0_usize, 0_usize);
        for &count in &code.counts[1..] {
            word = word << 1 | self.bits(1)?;
            let count = usize::from(count);
            if word < first + count {
                return Ok(code.symbols[index + word - first].into());
            }
            (index, first) = (index + count, (first + count) << 1);
        }
        Err(End::Bad)
    }

    fn put(&mut self, byte: u8) -> Result<(), End> {
        if self.out.len() == self.room {
            return Err(End::Full);
        }
        self.out.push(byte);
        Ok(())
    }

    fn stored(&mut self) -> Result<(), End> {
        self.at = self.at.next_multiple_of(8);
        let (len, not_len) = (self.bits(16)?, self.bits(16)?);
        if len != !not_len & 0xffff {
            return Err(End::Bad);
        }
        for _ in 0..len {
            let byte = self.bits(8)?;
            self.put(byte as u8)?;
        }
        Ok(())
    }

    fn codes(&mut self, literals: &Code, distances: &Code) -> Result<(), End> {
        loop {
            let symbol = self.symbol(literals)?;
            match symbol {
                0..256 => self.put(symbol as u8)?,
                256 => return Ok(()),
                _ => {
                    let &(base, extra) = LENGTHS.get(symbol - 257).ok_or(End::Bad)?;
                    let len = usize::from(base) + self.bits(extra)?;
                    let symbol = self.symbol(distances)?;
                    let &(base, extra) = DISTANCES.get(symbol).ok_or(End::Bad)?;
                    let distance = usize::from(base) + self.bits(extra)?;
                    for _ in 0..len {
                        let from = self.out.len().checked_sub(distance).ok_or(End::Bad)?;
                        self.put(self.out[from])?;
                    }
                }
            }
        }
    }

    fn dynamic(&mut self) -> Result<(), End> {
        let (literals, distances, lengths) = (self.bits(5)? + 257, self.bits(5)? + 1, self.bits(4)? + 4);
        if literals > 286 || distances > 30 {
            return Err(End::Bad);
        }
        let mut of_lengths = [0; 19];
        for &place in &ORDER[..lengths] {
            of_lengths[place] = self.bits(3)? as u8;
        }
        let code = Code::new(&of_lengths, false)?;
        let mut all: Vec<u8> = Vec::new();
        while all.len() < literals + distances {
            let (value, times) = match self.symbol(&code)? {
                16 => (*all.last().ok_or(End::Bad)?, 3 + self.bits(2)?),
                17 => (0, 3 + self.bits(3)?),
                18 => (0, 11 + self.bits(7)?),
                len => (len as u8, 1),
            };
            all.extend(std::iter::repeat_n(value, times));
        }
        // A block may have no end: zlib refuses that at once, others when the stream is over.
        if all.len() > literals + distances {
            return Err(End::Bad);
        }
        let (literals, distances) = (Code::new(&all[..literals], true)?, Code::new(&all[literals..], true)?);
        self.codes(&literals, &distances)
    }

    fn blocks(&mut self) -> Result<(), End> {
        loop {
            let is_last = self.bits(1)? == 1;
            match self.bits(2)? {
                0 => self.stored()?,
                1 => {
                    let mut lengths = [8; 288];
                    lengths[144..256].fill(9);
                    lengths[256..280].fill(7);
                    let (literals, distances) = (Code::new(&lengths, false)?, Code::new(&[5; 32], false)?);
                    self.codes(&literals, &distances)?;
                }
                2 => self.dynamic()?,
                _ => return Err(End::Bad),
            }
            if is_last {
                return Ok(());
            }
        }
    }
}

/// Decodes a stream, as far as there is room.
pub fn inflate(input: &[u8], room: usize) -> Unpacked {
    let mut decoder = Decoder { input, at: 0, out: Vec::new(), room };
    let end = decoder.blocks();
    match end {
        Ok(()) => Unpacked::Whole(decoder.out),
        Err(End::Full) => Unpacked::More(decoder.out),
        Err(End::Bad) => Unpacked::Bad(decoder.out),
    }
}
