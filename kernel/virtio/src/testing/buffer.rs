//! The buffers of a test driver's requests.

/// A buffer of a request: address, length, and whether the device writes it.
pub type Buffer = (u64, u32, bool);

/// Bytes of the indirect table of one head or id.
pub const TABLE_BYTES: u64 = 0x400;
