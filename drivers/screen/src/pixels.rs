//! A linear framebuffer: where a pixel is and how its colour is written (multiboot2 specification 3.6.12), and glyphs.

use core::fmt;

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster};

use crate::{grid::Cell, memory::Memory};

/// Pixels from one character to the next. A glyph has 7; the last pixel of a cell is empty.
pub const GLYPH_WIDTH: usize = 8;
/// Pixels from one row to the next.
pub const GLYPH_HEIGHT: usize = 16;

/// Most bytes of a pixel.
const MOST_PIXEL: usize = 4;
/// Most bytes of a framebuffer. A screen of 7,680 by 4,320 pixels has half of it.
const MOST_BYTES: usize = 256 << 20;

/// Brightness of plain text. 255 is white.
const PLAIN: u32 = 190;
const BOLD: u32 = 255;

/// The bits of a colour in a pixel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    /// The lowest bit.
    pub position: u8,
    /// The number of bits.
    pub size: u8,
}

impl Channel {
    /// A brightness of 0 to 255 as the bits of a pixel.
    fn of(self, brightness: u32) -> u32 {
        let most = 1_u32.checked_shl(self.size.into()).unwrap_or(0).wrapping_sub(1);
        let scaled = u64::from(brightness).saturating_mul(most.into()) / 255;
        (scaled as u32).checked_shl(self.position.into()).unwrap_or(0)
    }

    fn fits(self, bits: u8) -> bool {
        self.size != 0 && self.position.checked_add(self.size).is_some_and(|end| end <= bits)
    }
}

/// Why there can be no text on a framebuffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// A pixel has so many bits, not 24 or 32.
    Bits(u8),
    /// The bits of a colour are not all within a pixel.
    Colours,
    /// A line has more pixels than bytes for them, there are no pixels, or the whole is too large.
    Size,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bits(bits) => write!(f, "it has {bits} bits a pixel; 24 and 32 are supported"),
            Self::Colours => f.write_str("its colours are not within its pixels"),
            Self::Size => f.write_str("its size makes no sense"),
        }
    }
}

/// A framebuffer whose numbers make sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pixels {
    width: usize,
    height: usize,
    /// Bytes from one line to the next.
    pitch: usize,
    /// Bytes of a pixel, 3 or 4.
    bytes: usize,
    /// Red, green, blue.
    colours: [Channel; 3],
}

impl Pixels {
    /// A framebuffer of `width` by `height` pixels of `bits` bits, with `pitch` bytes from one line to the next. `colours`:
    /// red, green, blue.
    ///
    /// # Errors
    /// The numbers make no sense, or such pixels are not supported.
    pub fn new(width: u32, height: u32, pitch: u32, bits: u8, colours: [Channel; 3]) -> Result<Self, Unusable> {
        let bytes = match bits {
            24 => 3,
            32 => 4,
            _ => return Err(Unusable::Bits(bits)),
        };
        if !colours.iter().all(|colour| colour.fits(bits)) {
            return Err(Unusable::Colours);
        }
        let [width, height, pitch] = [width, height, pitch].map(|number| number as usize);
        let line = width.checked_mul(bytes).filter(|line| *line <= pitch);
        let whole = pitch.checked_mul(height).filter(|whole| *whole <= MOST_BYTES);
        if line.is_none() || whole.is_none() || width < GLYPH_WIDTH || height < GLYPH_HEIGHT {
            return Err(Unusable::Size);
        }
        Ok(Self { width, height, pitch, bytes, colours })
    }

    /// Columns and rows of characters that fit.
    #[must_use]
    pub const fn cells(&self) -> (usize, usize) {
        (self.width / GLYPH_WIDTH, self.height / GLYPH_HEIGHT)
    }

    /// Pixels of a line, lines, and bits of a pixel.
    #[must_use]
    pub const fn mode(&self) -> (usize, usize, usize) {
        (self.width, self.height, self.bytes.saturating_mul(8))
    }

    /// Bytes of its memory.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.pitch.saturating_mul(self.height)
    }

    /// Makes it black.
    pub(crate) fn clear(&self, memory: &mut impl Memory) {
        const RUN: [u8; 256] = [0; 256];
        let line = self.width.saturating_mul(self.bytes);
        for y in 0..self.height {
            let start = y.saturating_mul(self.pitch);
            for at in (0..line).step_by(RUN.len()) {
                let len = line.saturating_sub(at).min(RUN.len());
                memory.write(start.saturating_add(at), RUN.get(..len).unwrap_or_default());
            }
        }
    }

    /// Draws a cell's glyph, whole lines of it at once.
    pub(crate) fn draw(&self, memory: &mut impl Memory, column: usize, row: usize, cell: Cell) {
        let glyph = get_raster(char::from(cell.byte), FontWeight::Regular, RasterHeight::Size16);
        let x = column.saturating_mul(GLYPH_WIDTH).saturating_mul(self.bytes);
        let y = row.saturating_mul(GLYPH_HEIGHT);
        let most = if cell.is_bold() { BOLD } else { PLAIN };
        for line in 0..GLYPH_HEIGHT {
            let mut bytes = [0; MOST_PIXEL * GLYPH_WIDTH];
            for (at, pixel) in bytes.chunks_exact_mut(self.bytes).take(GLYPH_WIDTH).enumerate() {
                let ink = glyph.and_then(|glyph| glyph.pixel(at, line)).unwrap_or(0);
                let ink = u32::from(if cell.is_reversed() { u8::MAX.saturating_sub(ink) } else { ink });
                let brightness = ink.saturating_mul(most) / 255;
                let colour = self.colours.iter().fold(0, |pixel, colour| pixel | colour.of(brightness));
                for (byte, value) in pixel.iter_mut().zip(colour.to_le_bytes()) {
                    *byte = value;
                }
            }
            let offset = y.saturating_add(line).saturating_mul(self.pitch).saturating_add(x);
            memory.write(offset, bytes.get(..self.bytes.saturating_mul(GLYPH_WIDTH)).unwrap_or_default());
        }
    }
}
