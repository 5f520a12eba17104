//! The work that a frame causes, in instructions of the engine. The schedule gets it as bytes ([`charged`]), so a portion of
//! a visit ends after few frames if these are copied to many ports. Frames that a fast path forwards are not here: their
//! number and their bytes say what they cost.
//!
//! The figures were counted (README, "What a frame causes"). `cargo mk bench switch --instructions` compares the sum with
//! the instructions of loads that are made to cost much.

use engine::schedule::INSTRUCTION_BYTES;

/// A frame on a fast path that is dropped.
pub(crate) const FAST_DROP: u32 = 160;
/// A frame that a fast path has looked at in vain.
pub(crate) const LOOKED_AT: u32 = 45;
/// A frame on the slow path, until it is known where it goes. Its first descriptor is not included.
pub(crate) const SLOW_FRAME: u32 = 1450;
/// Rules of the sender's port that look at packets.
pub(crate) const RULES: u32 = 1350;
/// Rules of a receiver's port.
pub(crate) const LEAVING_RULES: u32 = 300;
/// A port that a frame may go to, with its part in what a turn publishes.
pub(crate) const PORT: u32 = 255;
/// A copy for a port, without its bytes and its descriptors.
pub(crate) const COPY: u32 = 715;
/// A copy for a port that is dropped.
pub(crate) const REFUSED_COPY: u32 = 220;
/// A segment that is made here, whether there is room for it or not.
pub(crate) const SEGMENT: u32 = 638;
/// A checksum that is computed here, without its bytes.
pub(crate) const CHECKSUM: u32 = 178;
/// A frame or segment that is handed to a NIC on the slow path.
pub(crate) const SENT: u32 = 300;
/// A descriptor of a chain that is walked.
pub(crate) const DESCRIPTOR: u32 = 89;
/// A piece of memory that the first bytes of a frame are read from, after the first piece.
pub(crate) const FIRST_PIECE: u32 = 80;
/// A piece of memory that bytes are copied from or to.
pub(crate) const PIECE: u32 = 143;

/// Most work that one frame may cause: 128 segments, or a copy for each port. What would come after that is not done, and
/// the frame is counted (`tx_cut_short`). This bounds how long others wait for one frame. A chain has fewer than 2^15
/// descriptors, so no sum of work comes near 2^32.
pub(crate) const MOST: u32 = 256 << 10;

/// Returns the work of `pieces` pieces of memory or descriptors of a chain, `each` of which takes so much.
#[inline(always)]
pub(crate) const fn times(pieces: u32, each: u32) -> u32 {
    pieces.wrapping_mul(each)
}

/// Returns so many instructions as bytes, for the schedule.
pub(crate) const fn charged(work: u32) -> u64 {
    (work as u64).saturating_mul(INSTRUCTION_BYTES)
}

/// Copying so many bytes.
pub(crate) const fn copied(bytes: u32) -> u32 {
    bytes / 6
}

/// Summing so many bytes for a checksum, and copying them.
pub(crate) const fn summed(bytes: u32) -> u32 {
    bytes / 4
}
