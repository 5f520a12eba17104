//! Numbers in tables: little-endian, at any offset.

/// A byte. `None`: it is behind the end.
pub(super) fn byte(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied()
}

/// 32 bits. `None`: they are not all there.
pub(super) fn double(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// 64 bits. `None`: they are not all there.
pub(super) fn quad(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
