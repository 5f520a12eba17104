//! The first bytes of a frame on the fast path, behind the virtio-net header that its receiver will get.
//!
//! ```text
//!  0            52        64                      128                      192
//!  ┌────────────┬─────────┬───────────────────────┬────────────────────────┐
//!  │   unused   │ header  │ frame, first 64 bytes │ next 64, if rules look │
//!  └────────────┴─────────┴───────────────────────┴────────────────────────┘
//! ```
//!
//! The copy routine reads them once, into host memory. They are checked there. Header and bytes are copied from there
//! to the receiver, so the receiver gets what was checked.
//!
//! This also makes the fewest stores to the receiver's memory. Stores to cache lines that come from another core wait
//! for each other, in order. They are the largest cost of a short frame.

use memory::copy::Copier;
use memory::span::Piece;

use crate::offload::HEADER_BYTES;

/// Offset of the frame in bytes: the second cache line.
const FRAME: usize = 64;
/// Bytes that are read if the rules do not look beyond them: a cache line.
pub(crate) const SHORT: usize = 64;
/// Most bytes that are read: two cache lines.
pub(crate) const LONG: usize = 128;

/// First bytes of a frame, behind a virtio-net header without an offload request and with `num_buffers` 1.
#[repr(C, align(64))]
pub(crate) struct FrameHead([u8; FRAME + LONG]);

impl FrameHead {
    /// No frame.
    pub(crate) const EMPTY: Self = {
        let mut bytes = [0; FRAME + LONG];
        // `num_buffers` is the last field of the header (5.1.6).
        bytes[FRAME - 2] = 1;
        Self(bytes)
    };

    /// Reads the first `most` bytes of a frame, at most [`LONG`], or all of a shorter one. Bytes of earlier frames may
    /// follow them.
    #[inline(always)]
    pub(crate) fn read(&mut self, body: Piece<'_>, most: usize, copier: Copier) {
        if let Some(into) = self.0.get_mut(FRAME..FRAME.saturating_add(most.min(LONG))) {
            body.read(copier, into);
        }
    }

    /// Returns the 64-bit little-endian number at byte `AT` of the frame.
    #[inline(always)]
    #[expect(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        reason = "the bytes are in the array; held by the assertion in it, which is evaluated when it is compiled"
    )]
    pub(crate) fn word<const AT: usize>(&self) -> u64 {
        const { assert!(AT + 8 <= LONG) };
        let mut word = [0; 8];
        word.copy_from_slice(&self.0[FRAME + AT..FRAME + AT + 8]);
        u64::from_le_bytes(word)
    }

    /// Writes header and frame to a buffer that has room for both. `whole` is the frame with its sender's header.
    /// `read` bytes of the frame were read, at most [`LONG`]. The bytes after them are copied from `whole`.
    /// `next` is the buffer that is written next. If bytes are copied from `whole`, as many cache lines of `next` are
    /// fetched.
    #[inline(always)]
    pub(crate) fn write(&self, buffer: Piece<'_>, whole: Piece<'_>, read: usize, copier: Copier, next: Piece<'_>) {
        let head = self.begin(read);
        if !buffer.copy_behind(copier, head, whole, next) {
            buffer.write(copier, head.get(..head.len().min(whole.len() as usize)).unwrap_or(head));
        }
    }

    /// [`FrameHead::write`] for a frame whose sender's header lies in another buffer, or for the first part of a frame.
    /// [`LONG`] bytes of `body` were read, or all if it is shorter.
    pub(crate) fn write_before(&self, buffer: Piece<'_>, body: Piece<'_>, copier: Copier) {
        let read = LONG.min(body.len() as usize);
        if let Some(rest) = body.skip(read as u32)
            && let Some(room) = buffer.skip(self.begin(read).len() as u32)
        {
            room.copy_from(copier, rest);
        }
        buffer.write(copier, self.begin(read));
    }

    /// Returns the first `read` bytes of the frame, at most [`LONG`].
    pub(crate) fn frame(&self, read: usize) -> &[u8] {
        self.0.get(FRAME..FRAME.saturating_add(read.min(LONG))).unwrap_or(&[])
    }

    /// Returns the virtio-net header, and the first `read` bytes of the frame, at most [`LONG`].
    #[inline(always)]
    fn begin(&self, read: usize) -> &[u8] {
        self.0.get(FRAME - HEADER_BYTES..FRAME.saturating_add(read.min(LONG))).unwrap_or(&[])
    }
}
