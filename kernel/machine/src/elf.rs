//! Reads an ELF file that starts by the PVH entry: a kernel such as Linux's `vmlinux`, or firmware.
//!
//! Follows the ELF specification (gABI 4.1, ch. 4 and 5) and Xen's PVH start ABI (docs/misc/pvh.pandoc). The file comes
//! from the operator, but is treated as hostile: every offset is checked, and each error names the value and its place.
//!
//! This file knows nothing of memory. [`crate::pvh`] checks the segments against the guest's memory and loads them.

use heapless::Vec;

mod error;
mod fields;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "for tests")]
pub mod image;
mod note;

pub use error::{Error, MAX_SEGMENTS};
pub use fields::{Segment, is_elf};

use fields::{Fields, LOAD, NOTE};

/// A file that starts by the PVH entry.
#[derive(Clone, Debug)]
pub struct Elf<'a> {
    file: &'a [u8],
    /// Segments to load, in the order of the file. At least one.
    pub segments: Vec<Segment, MAX_SEGMENTS>,
    /// Physical address of the 32-bit entry.
    pub entry: u32,
}

impl<'a> Elf<'a> {
    /// Reads the headers and the note.
    ///
    /// # Errors
    /// The file is not an executable ELF file for x86, is damaged, or has no PVH entry.
    pub fn parse(file: &'a [u8]) -> Result<Self, Error> {
        let fields = Fields::new(file)?;
        let headers = fields.program_headers()?;
        let mut segments = Vec::new();
        let mut entry = None;
        for number in 0..headers.count {
            let header = fields.program_header(&headers, number)?;
            match header.kind {
                LOAD if header.size != 0 => {
                    segments.push(header.segment()).map_err(|_| Error::TooManySegments)?;
                }
                NOTE => {
                    for found in note::entries(fields.bytes(header.offset, header.file_size), header.align) {
                        let found = found.map_err(|error| error.at(header.offset))?;
                        match entry {
                            Some(first) if first != found => {
                                return Err(Error::TwoEntries { first: u64::from(first), second: u64::from(found) });
                            }
                            _ => entry = Some(found),
                        }
                    }
                }
                _ => {}
            }
        }
        if segments.is_empty() {
            return Err(Error::NoSegments);
        }
        Ok(Self { file, segments, entry: entry.ok_or(Error::NoEntry)? })
    }

    /// Returns a segment's bytes in the file.
    #[must_use]
    pub fn bytes(&self, segment: &Segment) -> &'a [u8] {
        let from = segment.offset as usize;
        self.file.get(from..).and_then(|rest| rest.get(..segment.file_size as usize)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
