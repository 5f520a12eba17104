//! The beginning of a frame on its way from guest to guest by a run, as it is going to be at its receiver's.
//!
//! ```text
//!  0            52        64                      128                     192
//!  ┌────────────┬─────────┬───────────────────────┬───────────────────────┐
//!  │   unused   │ header  │ frame, first 64 bytes │ next 64, if looked at │
//!  └────────────┴─────────┴───────────────────────┴───────────────────────┘
//! ```
//!
//! It is read once, by the copy routine, into the host's own memory. What is looked at is looked at there, and from there it goes
//! to the receiver together with a virtio-net header, by few stores: what was checked is what is sent. Stores to lines that another core
//! had last wait for each other, in order; they are what a short frame costs most.

use memory::copy::Copier;
use memory::span::Piece;

use super::HEADER_BYTES;

/// Where the frame begins: a cache line.
const FRAME: usize = 64;
/// Bytes of a frame that are read if so many are enough: a cache line.
pub(super) const SHORT: usize = 64;
/// Bytes of a frame that are read at most.
pub(super) const LONG: usize = 128;

/// What was read of a frame, behind a header that says that it asks for nothing and takes one buffer.
#[repr(C, align(64))]
pub(super) struct Beginning([u8; FRAME + LONG]);

impl Beginning {
    /// Of no frame.
    pub(super) const EMPTY: Self = {
        let mut bytes = [0; FRAME + LONG];
        // The number of buffers is the header's last field (5.1.6).
        bytes[FRAME - 2] = 1;
        Self(bytes)
    };

    /// Reads the first `most` bytes of a frame, up to [`LONG`], or all, if it has fewer. What is behind them is of frames before.
    #[inline(always)]
    pub(super) fn read(&mut self, body: Piece<'_>, most: usize, copier: Copier) {
        body.read(copier, &mut self.0[FRAME..FRAME + most.min(LONG)]);
    }

    /// The little-endian number at byte `AT` of the frame.
    #[inline(always)]
    pub(super) fn word<const AT: usize>(&self) -> u64 {
        const { assert!(AT + 8 <= LONG) };
        let mut word = [0; 8];
        word.copy_from_slice(&self.0[FRAME + AT..FRAME + AT + 8]);
        u64::from_le_bytes(word)
    }

    /// Writes header and frame to the beginning of a buffer that has room for both. `whole` is the frame with its sender's header; `read`
    /// bytes of the frame were read, up to [`LONG`], and the rest is copied from there. If there is a rest, as many bytes of `next`,
    /// which is written to next, have their cache lines fetched.
    #[inline(always)]
    pub(super) fn write(&self, buffer: Piece<'_>, whole: Piece<'_>, read: usize, copier: Copier, next: Piece<'_>) {
        let head = &self.0[FRAME - HEADER_BYTES..FRAME + read.min(LONG)];
        if !buffer.copy_behind(copier, head, whole, next) {
            buffer.write(copier, &head[..head.len().min(whole.len() as usize)]);
        }
    }

    /// The same for a frame, or the first part of one, without its sender's header, of which as many bytes were read as there is room for.
    pub(super) fn write_before(&self, buffer: Piece<'_>, body: Piece<'_>, copier: Copier) {
        let read = LONG.min(body.len() as usize);
        if let Some(rest) = body.skip(read as u32)
            && let Some(room) = buffer.skip((HEADER_BYTES + read) as u32)
        {
            room.copy_from(copier, rest);
        }
        buffer.write(copier, &self.0[FRAME - HEADER_BYTES..FRAME + read]);
    }
}
