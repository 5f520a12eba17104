//! Unpacks boot modules that are compressed with zstd (RFC 8878). The decoder is the crate `ruzstd`.
//!
//! The output is bounded by the buffer that it goes to, the decoder's memory by [`MAX_WINDOW`]. Contents with a checksum are
//! checked against it.

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

extern crate alloc;

mod bad;

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use ruzstd::io::Read as _;

pub use bad::{Bad, MAX_WINDOW};

/// First bytes of a frame (RFC 8878, 3.1.1).
const MAGIC: u32 = 0xfd2f_b528;
/// First bytes of a frame to be skipped, without the lowest four bits (3.1.2). Some compressors begin with one.
const SKIPPABLE: u32 = 0x184d_2a50;

/// Whether bytes begin like a compressed file. No disk image or file system begins like that.
#[must_use]
pub fn is_packed(bytes: &[u8]) -> bool {
    let Some(first) = bytes.first_chunk::<4>() else { return false };
    let first = u32::from_le_bytes(*first);
    first == MAGIC || first & !0xf == SKIPPABLE
}

/// What a compressed file says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of its contents, if it says. A file of several frames has more.
    pub content: Option<u64>,
    /// The window in bytes, up to [`MAX_WINDOW`]: the largest of its frames.
    pub window: u64,
}

impl Header {
    /// Most bytes of the heap that [`unpack`] needs: the decoder's buffer holds a window and two blocks. While it grows, the
    /// old one is there too, and sizes are rounded up to powers of two.
    #[must_use]
    pub const fn heap(&self) -> u64 {
        self.window.next_power_of_two().saturating_mul(3).saturating_add(4 << 20)
    }
}

/// Reads what a compressed file says of itself.
///
/// # Errors
/// It cannot be unpacked.
pub fn header(bytes: &[u8]) -> Result<Header, Bad> {
    let mut input = bytes;
    let Some(first) = frame(&mut input)? else { return Err(Bad::Empty) };
    let (mut frame_now, mut window) = (first, first.window);
    // What is damaged ends this here, and `unpack` at the same place.
    while behind_blocks(&mut input, frame_now.has_checksum).is_some()
        && let Ok(Some(next)) = frame(&mut input)
    {
        (frame_now, window) = (next, window.max(next.window));
    }
    Ok(Header { content: Some(first.content).filter(|bytes| *bytes != 0), window })
}

/// What the header of a frame says.
#[derive(Clone, Copy)]
struct Frame {
    /// Bytes of its contents; 0 if it does not say.
    content: u64,
    window: u64,
    has_checksum: bool,
}

/// Reads the header of the next frame. `None`: there is none.
fn frame(input: &mut &[u8]) -> Result<Option<Frame>, Bad> {
    /// In the descriptor, the byte behind the first four: a checksum follows the blocks.
    const CHECKSUM: u8 = 1 << 2;
    let mut decoder = FrameDecoder::new();
    // The window is told by the refusal of it.
    decoder.set_max_window_size(0);
    skip(input)?;
    let has_checksum = input.get(4).is_some_and(|descriptor| descriptor & CHECKSUM != 0);
    let mut once = *input;
    let window = match begin(&mut decoder, &mut once) {
        Err(Bad::Window(window)) => window,
        Err(bad) => return Err(bad),
        Ok(_) => 0,
    };
    if window > MAX_WINDOW {
        return Err(Bad::Window(window));
    }
    decoder.set_max_window_size(MAX_WINDOW);
    Ok(begin(&mut decoder, input)?.then(|| Frame { content: decoder.content_size(), window, has_checksum }))
}

/// Goes behind the blocks of a frame (RFC 8878, 3.1.1.2), and behind its checksum. `None`: it is cut off.
fn behind_blocks(input: &mut &[u8], has_checksum: bool) -> Option<()> {
    /// A block of one byte that is repeated.
    const REPEATED: u32 = 1;
    loop {
        let (&[low, middle, high], rest) = input.split_first_chunk()?;
        let head = u32::from_le_bytes([low, middle, high, 0]);
        let bytes = if head >> 1 & 3 == REPEATED { 1 } else { head >> 3 };
        *input = rest.get(bytes as usize..)?;
        if head & 1 != 0 {
            break;
        }
    }
    if has_checksum {
        *input = input.get(4..)?;
    }
    Some(())
}

/// Unpacks a file to the beginning of `into`. Returns its bytes.
///
/// # Errors
/// It is damaged, longer than `into`, or needs a larger window. Some of `into` is overwritten.
pub fn unpack(bytes: &[u8], into: &mut [u8]) -> Result<usize, Bad> {
    let room = into.len();
    let mut decoder = FrameDecoder::new();
    decoder.set_max_window_size(MAX_WINDOW);
    let mut input = bytes;
    let mut len = 0_usize;
    while begin(&mut decoder, &mut input)? {
        loop {
            let has_ended =
                decoder.decode_blocks(&mut input, BlockDecodingStrategy::UptoBlocks(1)).map_err(Bad::from)?;
            let rest = into.get_mut(len..).unwrap_or_default();
            len = len.saturating_add(decoder.read(rest).map_err(|error| Bad::damaged(&error))?);
            if decoder.can_collect() != 0 {
                return Err(Bad::TooLong(room as u64));
            }
            if has_ended {
                break;
            }
        }
        match (decoder.get_checksum_from_data(), decoder.get_calculated_checksum()) {
            (Some(said), Some(is)) if said != is => return Err(Bad::Checksum { said, is }),
            _ => {}
        }
    }
    Ok(len)
}

/// Begins the next frame. Returns false if there is none.
fn begin(decoder: &mut FrameDecoder, input: &mut &[u8]) -> Result<bool, Bad> {
    skip(input)?;
    if input.is_empty() {
        return Ok(false);
    }
    decoder.init(&mut *input)?;
    Ok(true)
}

/// Goes behind the frames to be skipped that come next (RFC 8878, 3.1.2): four bytes with their length follow the first four.
fn skip(input: &mut &[u8]) -> Result<(), Bad> {
    while let Some((&[a, b, c, d, e, f, g, h], rest)) = input.split_first_chunk()
        && u32::from_le_bytes([a, b, c, d]) & !0xf == SKIPPABLE
    {
        *input = rest.get(u32::from_le_bytes([e, f, g, h]) as usize..).ok_or(Bad::Short)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
