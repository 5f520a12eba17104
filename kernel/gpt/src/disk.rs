//! The trait by which blocks are read.

use alloc::string::String;

/// The shape of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of a block: 512 or 4,096.
    pub block_bytes: u32,
    /// Number of blocks.
    pub blocks: u64,
}

/// Bytes that are read at a time: whole blocks and whole entries of every allowed size.
pub(crate) const CHUNK: usize = 4096;

/// A disk whose blocks can be read.
pub trait Blocks {
    /// Fills `into`, which has up to 4,096 bytes of whole blocks, with the blocks from `first` on.
    ///
    /// # Errors
    /// They cannot be read. The text says why.
    fn read(&mut self, first: u64, into: &mut [u8]) -> Result<(), String>;
}

/// Reads the `N` bytes at an offset. Zeroes beyond the end.
pub(crate) fn field<const N: usize>(data: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    if let Some(from) = data.get(at..at.saturating_add(N)) {
        bytes.copy_from_slice(from);
    }
    bytes
}
