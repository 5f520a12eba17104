//! Takes the ELF file `vmlinux` out of a bzImage. It has a PVH entry if the kernel was built with CONFIG_PVH.
//!
//! Follows Documentation/arch/x86/boot.rst (payload_offset, payload_length). Debian compresses the payload with zstd.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use ruzstd::decoding::StreamingDecoder;

/// First bytes of a zstd frame.
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// The last bytes of the payload are the length of `vmlinux`.
const LENGTH: usize = 4;

/// Returns the path of the `vmlinux` of a bzImage, in `folder`. Unpacks it once for each kernel. Scenarios that run side by
/// side wait for each other here, and the file gets its name when it is whole: otherwise one would boot half a kernel.
pub fn of(kernel: &Path, folder: &Path) -> Result<PathBuf> {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let name = kernel.file_name().map(|name| name.to_string_lossy().replacen("vmlinuz", "vmlinux", 1));
    let place = folder.join(name.with_context(|| format!("{} names no file", kernel.display()))?);
    let file = fs::read(kernel).with_context(|| format!("cannot read {}", kernel.display()))?;
    let payload = payload(&file).with_context(|| format!("{} is no bzImage", kernel.display()))?;
    let (frame, length) = payload.split_at(payload.len() - LENGTH);
    let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize;
    if fs::metadata(&place).is_ok_and(|there| there.len() == length as u64) {
        return Ok(place);
    }
    ensure!(frame.starts_with(ZSTD), "the payload of {} is not compressed with zstd", kernel.display());
    let vmlinux = unpack(frame, length).with_context(|| format!("cannot unpack {}", kernel.display()))?;
    let unfinished = place.with_added_extension("unfinished");
    fs::write(&unfinished, vmlinux)?;
    fs::rename(&unfinished, &place)?;
    Ok(place)
}

/// Returns the payload of a bzImage: the compressed kernel, and its length.
fn payload(file: &[u8]) -> Result<&[u8]> {
    let number = |at: usize| -> Result<usize> {
        let bytes = file.get(at..at + 4).context("it is too short")?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize)
    };
    ensure!(file.get(0x202..0x206) == Some(b"HdrS"), "it has no setup header");
    let sectors = match file[0x1f1] {
        0 => 4,
        n => usize::from(n),
    };
    let start = (sectors + 1) * 512 + number(0x248)?;
    let payload =
        file.get(start..).and_then(|rest| rest.get(..number(0x24c).ok()?)).context("its payload is cut off")?;
    ensure!(payload.len() > LENGTH, "its payload is empty");
    Ok(payload)
}

fn unpack(frame: &[u8], length: usize) -> Result<Vec<u8>> {
    let mut decoder = StreamingDecoder::new(frame)?;
    let mut vmlinux = Vec::with_capacity(length);
    decoder.read_to_end(&mut vmlinux)?;
    ensure!(vmlinux.len() == length, "{} bytes; expected {length}", vmlinux.len());
    ensure!(vmlinux.starts_with(b"\x7fELF"), "the payload is no ELF file");
    Ok(vmlinux)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bzImage of one setup sector with this payload at offset 16 of the protected-mode part.
    fn image(payload: &[u8]) -> Vec<u8> {
        let mut file = vec![0; 1024 + 16];
        file[0x1f1] = 1;
        file[0x202..0x206].copy_from_slice(b"HdrS");
        file[0x248] = 16;
        file[0x24c] = payload.len() as u8;
        file.extend(payload);
        file
    }

    #[test]
    fn the_payload_is_where_the_header_says() {
        assert_eq!(payload(&image(b"payload")).unwrap(), b"payload");
        let cut = image(b"payload");
        assert!(payload(&cut[..cut.len() - 1]).is_err());
        assert!(payload(&image(b"four")).is_err());
        assert!(payload(b"no kernel").is_err());
    }

    #[test]
    fn a_payload_that_is_not_what_the_header_says_is_refused() {
        // A frame with one raw block: the ELF magic number.
        let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x20, 4, 0x21, 0, 0, 0x7f, b'E', b'L', b'F'];
        assert_eq!(unpack(&frame, 4).unwrap(), b"\x7fELF");
        assert!(unpack(&frame, 5).is_err());
        assert!(unpack(&frame[..9], 4).is_err());
    }
}
