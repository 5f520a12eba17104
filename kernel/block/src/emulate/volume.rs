//! A volume with emulated blocks.

use crate::storage::{Geometry, SECTOR};

/// Bytes of a block beneath.
pub const BLOCK: u32 = 4096;
/// Sectors of a block beneath.
pub const PER_BLOCK: u32 = BLOCK / SECTOR as u32;
/// The same, for numbers of sectors.
pub const PER_BLOCK_WIDE: u64 = PER_BLOCK as u64;

virtio::counters! {
    /// Requests of a device with emulated blocks. Only the engine's core writes these counters.
    EmulationCounters {
        /// Blocks of the disk that were read, because less than a block was to be read.
        partial_reads,
        /// Blocks of the disk that were read, changed and written, because less than a block was to be written.
        partial_writes,
        /// Times that a request waited for another one that changes some of the same blocks.
        overlaps,
    }
}

/// A volume, with emulated blocks or as it is.
#[derive(Clone, Copy)]
pub struct Emulated<V> {
    /// The volume.
    pub volume: V,
    /// If it has blocks of 4,096 bytes, it is shown with blocks of 512, and these are counted.
    pub counters: Option<&'static EmulationCounters>,
}

impl<V> Emulated<V> {
    /// Returns its shape, from the shape of the volume.
    #[must_use]
    pub const fn geometry(&self, beneath: &Geometry) -> Geometry {
        if self.counters.is_none() || beneath.block_bytes != BLOCK {
            return *beneath;
        }
        Geometry {
            block_bytes: SECTOR as u32,
            blocks: beneath.blocks.saturating_mul(PER_BLOCK as u64),
            max_discard: beneath.max_discard.saturating_mul(PER_BLOCK),
            max_zeroes: beneath.max_zeroes.saturating_mul(PER_BLOCK),
            ..*beneath
        }
    }
}
