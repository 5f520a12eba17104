//! The notes of an ELF file: finds the PVH entry, XEN_ELFNOTE_PHYS32_ENTRY (Xen, public/elfnote.h; gABI 4.1, "Note
//! Section").

use super::error::Error;

/// XEN_ELFNOTE_PHYS32_ENTRY.
const PHYS32_ENTRY: u32 = 18;
const OWNER: &[u8] = b"Xen\0";
/// Bytes of a note's three length and type fields.
const HEAD: usize = 12;

/// A note of the right owner and type that has no entry. `offset` is that of the note among the notes.
pub(super) enum BadNote {
    /// The descriptor has another length than 4 or 8 bytes.
    Size { offset: u64, value: u64 },
    /// The entry is at or above 4 GiB.
    High { offset: u64, value: u64 },
}

impl BadNote {
    /// Returns the error for notes that begin at byte `start` of the file.
    pub(super) fn at(self, start: u64) -> Error {
        let (name, offset, value, expected) = match self {
            Self::Size { offset, value } => ("a PVH note's descsz", offset.saturating_add(4), value, "4 or 8 bytes"),
            Self::High { offset, value } => ("a PVH note's entry", offset, value, "an address below 4 GiB"),
        };
        Error::Field { name, offset: start.saturating_add(offset), value, expected }
    }
}

/// Returns the PVH entries of some notes. `align` is the segment's: 8 if its notes are padded to 8 bytes, otherwise they
/// are padded to 4. A note that is cut off ends the list, as it does for every reader of notes.
pub(super) fn entries(notes: &[u8], align: u64) -> impl Iterator<Item = Result<u32, BadNote>> + '_ {
    let align = if align == 8 { 8 } else { 4 };
    let mut at = 0;
    core::iter::from_fn(move || {
        loop {
            let here = at;
            let rest = notes.get(here..).filter(|rest| rest.len() >= HEAD)?;
            let word =
                |i: usize| rest.get(i..).and_then(|rest| rest.first_chunk()).map_or(0, |b| u32::from_le_bytes(*b));
            let (name_size, size, kind) = (word(0) as usize, word(4) as usize, word(8));
            let descriptor = (HEAD.checked_add(name_size)?).checked_next_multiple_of(align)?;
            let end = descriptor.checked_add(size)?;
            let (name, value) = (rest.get(HEAD..HEAD.checked_add(name_size)?)?, rest.get(descriptor..end)?);
            at = here.checked_add(end.checked_next_multiple_of(align)?)?;
            if kind == PHYS32_ENTRY && name == OWNER {
                let offset = here as u64;
                let number = value.iter().take(8).rev().fold(0, |v: u64, b| v << 8 | u64::from(*b));
                return Some(match size {
                    4 | 8 => u32::try_from(number)
                        .map_err(|_| BadNote::High { offset: offset.saturating_add(descriptor as u64), value: number }),
                    _ => Err(BadNote::Size { offset, value: size as u64 }),
                });
            }
        }
    })
}
