//! Numbers in the firmware's tables: little-endian, at any offset.

/// A byte. `None`: it is behind the end.
pub(crate) fn byte(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied()
}

/// 16 bits. `None`: they are not all there.
pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// 32 bits. `None`: they are not all there.
pub(crate) fn double(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// 64 bits. `None`: they are not all there.
pub(crate) fn quad(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
