//! Makes an ELF file with a PVH entry out of a guest of `guest-drivers`, which is a flat bzImage. Then it can start as firmware.
//!
//! Follows Documentation/arch/x86/boot.rst (setup header) and Xen's docs/misc/pvh.pandoc (the note). The entry is the first
//! byte of the protected-mode part.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

/// XEN_ELFNOTE_PHYS32_ENTRY.
const PHYS32_ENTRY: u32 = 18;
/// Bytes of the ELF header, and of a program header.
const HEADERS: [u64; 2] = [64, 56];
/// Offset of the note in the file, behind two program headers.
const NOTE: u64 = HEADERS[0] + 2 * HEADERS[1];
/// Offset of the content.
const CONTENT: u64 = 0x1000;

/// Returns the path of the ELF file, in `folder`.
pub fn of(image: &Path, folder: &Path) -> Result<PathBuf> {
    let file = fs::read(image).with_context(|| format!("cannot read {}", image.display()))?;
    let elf = wrap(&file).with_context(|| format!("{} is no bzImage", image.display()))?;
    let place = folder.join("probe.elf");
    fs::write(&place, elf).with_context(|| format!("cannot write {}", place.display()))?;
    Ok(place)
}

fn wrap(file: &[u8]) -> Result<Vec<u8>> {
    ensure!(file.get(0x202..0x206) == Some(b"HdrS"), "it has no setup header");
    let number = |at: usize, bytes: usize| -> Result<u64> {
        let field = file.get(at..at + bytes).context("it is too short")?;
        Ok(field.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    let (sectors, address, size) = (number(0x1f1, 1)?, number(0x258, 8)?, number(0x260, 4)?);
    let content = file.get((sectors as usize + 1) * 512..).context("it has no protected-mode part")?;
    let length = content.len() as u64;
    let mut note = Vec::new();
    for word in [4, 4, PHYS32_ENTRY, u32::from_le_bytes(*b"Xen\0"), u32::try_from(address)?] {
        note.extend(word.to_le_bytes());
    }
    // ELFCLASS64, ELFDATA2LSB, version 1; ET_EXEC, EM_X86_64.
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
    for word in [address, HEADERS[0], 0] {
        elf.extend(word.to_le_bytes());
    }
    // Flags; the sizes of the headers, two program headers, no section headers.
    elf.extend([0; 4]);
    for half in [HEADERS[0] as u16, HEADERS[1] as u16, 2, 0, 0, 0] {
        elf.extend(half.to_le_bytes());
    }
    // PT_LOAD and PT_NOTE: type, flags, offset, two addresses, size in the file, size in memory, alignment.
    let load = [1 | 7 << 32, CONTENT, address, address, length, size.max(length), CONTENT];
    let notes = [4 | 4 << 32, NOTE, 0, 0, note.len() as u64, note.len() as u64, 4];
    for word in load.into_iter().chain(notes) {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(note);
    elf.resize(CONTENT as usize, 0);
    elf.extend(content);
    Ok(elf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_protected_mode_part_is_loaded_where_its_header_says() {
        let mut image = vec![0; 0x400];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x258..0x25c].copy_from_slice(&0x100_0000_u32.to_le_bytes());
        image[0x260..0x264].copy_from_slice(&0x5000_u32.to_le_bytes());
        image.extend([0xfa; 16]);
        let elf = wrap(&image).unwrap();
        let word = |at: usize| u64::from_le_bytes(elf[at..at + 8].try_into().unwrap());
        // The first program header begins at 64.
        assert_eq!([72, 88, 96, 104].map(word), [CONTENT, 0x100_0000, 16, 0x5000]);
        assert_eq!(elf[CONTENT as usize..], [0xfa; 16]);
        assert_eq!(elf[NOTE as usize..][..20], *b"\x04\0\0\0\x04\0\0\0\x12\0\0\0Xen\0\0\0\0\x01");
        assert!(wrap(&image[..0x300]).is_err() && wrap(&[0; 0x400]).is_err());
    }
}
