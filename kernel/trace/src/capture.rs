//! A captured frame: when it passed a port, which way, what became of it, and its first bytes.
//!
//! Layout in a saved trace, all numbers little-endian:
//!
//! | offset | bytes | field | meaning |
//! |---|---|---|---|
//! | 0 | 8 | `tsc` | TSC when the frame was taken from the port, or given to it |
//! | 8 | 8 | `number` | its number among the frames of its port that the filter takes, from 0 |
//! | 16 | 2 | `slot` | the port: the engine's slot of the device |
//! | 18 | 1 | `marks` | bit 0: given to the port, not taken from it; bit 1: dropped |
//! | 19 | 1 | `cause` | of a drop, by the header's table |
//! | 20 | 1 | `guest` | number of the guest, or [`NO_GUEST`](crate::record::NO_GUEST) |
//! | 21 | 1 | `taken` | bytes of the frame that follow, at most [`MOST_BYTES`] |
//! | 22 | 2 | `one_of` | the filter takes one of so many frames |
//! | 24 | 4 | `len` | bytes of the frame, without FCS and virtio-net header |
//! | 28 | 4 | | zero |
//! | 32 | ... | | the first bytes of the frame, with zeroes up to a multiple of 8 |
//!
//! The numbers of a port have a gap where frames were lost on the way to the reader.

pub mod filter;

/// Most bytes of a frame that are kept.
pub const MOST_BYTES: usize = 128;
/// Fewest bytes that a filter may want of a frame.
pub const LEAST_BYTES: usize = 64;
/// Bytes before those of the frame.
pub const HEAD_BYTES: usize = 32;
/// Words in which a ring keeps a captured frame.
pub const WORDS: usize = (HEAD_BYTES + MOST_BYTES) / 8;
/// Words before those of the frame's bytes.
const HEAD_WORDS: usize = HEAD_BYTES / 8;

/// Which way a frame goes, as the switch sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The guest has sent it.
    In,
    /// It is for the guest.
    Out,
}

/// A captured frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Captured {
    /// TSC when it was taken from the port, or given to it.
    pub tsc: u64,
    /// Its number among the frames of its port that the filter takes.
    pub number: u64,
    /// The engine's slot of the device.
    pub slot: u16,
    /// Which way it goes.
    pub way: Way,
    /// The cause, if it was dropped at this port.
    pub dropped: Option<u8>,
    /// Number of the guest.
    pub guest: u8,
    /// The filter takes one of so many frames.
    pub one_of: u16,
    /// Bytes of the frame.
    pub len: u32,
    /// How many of its first bytes are kept.
    taken: u8,
    /// Its first bytes. Zeroes follow.
    bytes: [u8; MOST_BYTES],
}

impl Captured {
    /// Sets the first bytes of the frame: as many as there are, at most [`MOST_BYTES`] and `len`.
    #[must_use]
    pub fn with_bytes(mut self, bytes: &[u8]) -> Self {
        let taken = bytes.len().min(MOST_BYTES).min(self.len as usize);
        self.bytes = [0; MOST_BYTES];
        for (to, from) in self.bytes.iter_mut().zip(bytes).take(taken) {
            *to = *from;
        }
        // It is at most MOST_BYTES.
        self.taken = taken as u8;
        self
    }

    /// A frame of `len` bytes at a port, of which no byte is kept.
    #[must_use]
    pub const fn new(tsc: u64, slot: u16, way: Way, len: u32) -> Self {
        Self {
            tsc,
            number: 0,
            slot,
            way,
            dropped: None,
            guest: crate::record::NO_GUEST,
            one_of: 1,
            len,
            taken: 0,
            bytes: [0; MOST_BYTES],
        }
    }

    /// The first bytes of the frame.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.taken)).unwrap_or(&self.bytes)
    }

    /// As words, in which a ring keeps it.
    #[must_use]
    pub fn to_words(&self) -> [u64; WORDS] {
        let marks = u8::from(self.way == Way::Out) | u8::from(self.dropped.is_some()) << 1;
        let [slot, one_of] = [self.slot, self.one_of].map(u16::to_le_bytes);
        let fields = [slot[0], slot[1], marks, self.dropped.unwrap_or(0), self.guest, self.taken, one_of[0], one_of[1]];
        let mut words = [0; WORDS];
        let head = [self.tsc, self.number, u64::from_le_bytes(fields), self.len.into()];
        for (word, value) in words.iter_mut().zip(head) {
            *word = value;
        }
        for (word, bytes) in words.iter_mut().skip(HEAD_WORDS).zip(self.bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        words
    }

    /// The frame of these words. Any words are a frame.
    #[must_use]
    pub fn from_words(words: &[u64; WORDS]) -> Self {
        let [tsc, number, fields, len, rest @ ..] = words;
        let [slot0, slot1, marks, cause, guest, taken, one0, one1] = fields.to_le_bytes();
        let mut bytes = [0; MOST_BYTES];
        for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(rest) {
            *to = word.to_le_bytes();
        }
        Self {
            tsc: *tsc,
            number: *number,
            slot: u16::from_le_bytes([slot0, slot1]),
            way: if marks & 1 == 0 { Way::In } else { Way::Out },
            dropped: (marks & 2 != 0).then_some(cause),
            guest,
            one_of: u16::from_le_bytes([one0, one1]),
            // The upper half is zero in what `to_words` makes.
            len: *len as u32,
            taken: taken.min(MOST_BYTES as u8),
            bytes,
        }
    }

    /// Bytes of it in a saved trace.
    #[must_use]
    pub const fn stored(&self) -> usize {
        // `taken` is at most MOST_BYTES, or what a reader has checked.
        HEAD_BYTES.saturating_add((self.taken as usize).next_multiple_of(8))
    }

    /// As the bytes of a saved trace, of which the first [`Captured::stored`] are stored.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HEAD_BYTES + MOST_BYTES] {
        let mut bytes = [0; HEAD_BYTES + MOST_BYTES];
        for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(self.to_words()) {
            *to = word.to_le_bytes();
        }
        bytes
    }

    /// Reads the frame at the beginning of bytes of a saved trace. Returns it, and how many bytes it has. `None`: they are
    /// too few, or name more bytes than a frame has here.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<(Self, usize)> {
        let (head, rest) = bytes.split_at_checked(HEAD_BYTES)?;
        let taken = usize::from(*head.get(21)?);
        if taken > MOST_BYTES {
            return None;
        }
        let body = rest.get(..taken.next_multiple_of(8))?;
        let mut words = [0; WORDS];
        for (word, from) in words.iter_mut().zip(head.as_chunks().0.iter().chain(body.as_chunks().0)) {
            *word = u64::from_le_bytes(*from);
        }
        let captured = Self::from_words(&words);
        Some((captured, captured.stored()))
    }
}

#[cfg(test)]
mod tests;
