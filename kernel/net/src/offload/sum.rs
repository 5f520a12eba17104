//! The Internet checksum (RFC 1071): a one's complement sum of 16-bit words.
//!
//! Words are added in the byte order of the CPU, 64 bits at a time, with the carry added at the low end. The sum of
//! bytes that start at an odd offset is the same with its two bytes swapped.

/// A sum of the bytes added so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// The sum of little-endian words, modulo 2^64 - 1.
    total: u64,
    /// An odd number of bytes was added.
    odd: bool,
}

#[inline(always)]
const fn add(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    // Does not wrap: after a carry the sum is less than the greatest number.
    sum.wrapping_add(carry as u64)
}

impl Sum {
    /// Returns the sum of no bytes.
    #[must_use]
    pub const fn new() -> Self {
        Self { total: 0, odd: false }
    }

    /// Adds the next bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        // Two independent sums: their carries do not wait for each other.
        let (mut a, mut b) = (0, 0);
        let (fours, _) = bytes.as_chunks::<8>().0.as_chunks::<4>();
        let (_, rest) = bytes.as_chunks::<32>();
        for four in fours {
            let [w, x, y, z] = four.map(u64::from_le_bytes);
            (a, b) = (add(add(a, w), y), add(add(b, x), z));
        }
        for part in rest.chunks(8) {
            let mut word = [0; 8];
            if let Some(start) = word.get_mut(..part.len()) {
                start.copy_from_slice(part);
            }
            a = add(a, u64::from_le_bytes(word));
        }
        self.append(Self { total: add(a, b), odd: bytes.len() % 2 == 1 });
    }

    /// Adds the next bytes, whose sum is `next`.
    pub fn append(&mut self, next: Self) {
        let total = if self.odd { next.total.rotate_left(8) } else { next.total };
        self.total = add(self.total, total);
        self.odd ^= next.odd;
    }

    /// Adds a 16-bit number at an even offset.
    pub fn add_u16(&mut self, number: u16) {
        self.total = add(self.total, u64::from(u16::from_le_bytes(number.to_be_bytes())));
    }

    /// Returns the sum in the byte order of a frame.
    #[must_use]
    pub const fn field(self) -> [u8; 2] {
        // No sum has more than 34 bits.
        let sum = (self.total & 0xffff_ffff).wrapping_add(self.total >> 32);
        let sum = (sum & 0xffff).wrapping_add(sum >> 16 & 0xffff).wrapping_add(sum >> 32);
        let sum = (sum & 0xffff).wrapping_add(sum >> 16);
        let sum = (sum & 0xffff).wrapping_add(sum >> 16);
        (sum as u16).to_le_bytes()
    }

    /// Returns its complement: the checksum of TCP or UDP in the byte order of a frame. Never 0, which means "no
    /// checksum" in UDP; 0xffff is equivalent in TCP.
    #[must_use]
    pub const fn checksum(self) -> [u8; 2] {
        match u16::from_ne_bytes(self.field()) {
            0xffff => [0xff; 2],
            sum => (!sum).to_ne_bytes(),
        }
    }
}
