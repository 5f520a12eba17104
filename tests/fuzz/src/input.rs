//! Numbers out of the bytes that a target is given.

/// What is left of the input. All numbers are 0 when it has ended.
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// All of it.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether it has ended.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// One thing or the other.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// From `low` up to, not including, `high`; the two are less than 2^47 apart.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        let value = u64::from(u16::from_le_bytes([self.byte(), self.byte()]));
        low + value * (high - low) / 0x1_0000
    }

    /// Any 64 bits.
    pub fn wide(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }
}
