//! Ethernet addresses.

/// An Ethernet address as a number, first byte lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub(crate) u64);

impl Mac {
    /// No address.
    pub const NONE: Self = Self(0);
    /// The broadcast address.
    pub const BROADCAST: Self = Self(0xffff_ffff_ffff);

    /// Makes an address from its bytes as they are sent.
    #[must_use]
    pub const fn new(b: [u8; 6]) -> Self {
        Self(u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], 0, 0]))
    }

    /// Returns the bytes as they are sent.
    #[must_use]
    pub const fn bytes(self) -> [u8; 6] {
        let [a, b, c, d, e, f, ..] = self.0.to_le_bytes();
        [a, b, c, d, e, f]
    }

    /// Makes an address from its bytes as a number, the first byte lowest. The upper 16 bits must be 0.
    #[must_use]
    pub(crate) const fn of_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns whether this is a multicast or broadcast address.
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.0 & 1 != 0
    }

    /// Returns whether this is one of the 16 groups that no bridge forwards, 01-80-C2-00-00-00 to -0F (IEEE 802.1Q 8.6.3). Among
    /// them are PAUSE, spanning tree and link aggregation, which concern one wire only.
    #[must_use]
    pub const fn is_reserved(self) -> bool {
        self.0 & 0xf0ff_ffff_ffff == 0xc2_8001
    }
}
