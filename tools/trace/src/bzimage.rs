//! Takes the kernel out of a bzImage.
//!
//! A bzImage is a loader with a compressed `vmlinux` in it. Follows Documentation/arch/x86/boot.rst (`payload_offset`,
//! `payload_length`) and scripts/Makefile.lib, which puts the length of the kernel behind what it compresses.
//!
//! The image may be hostile: what it unpacks to is 512 MiB at most, whatever it says of itself.

use std::io::Read;

use anyhow::{Context as _, Result, bail, ensure};

/// The setup header's mark, and where it is.
const MARK: (usize, &[u8]) = (0x202, b"HdrS");
/// Offset of the number of setup sectors.
const SETUP_SECTORS: usize = 0x1f1;
/// Offset of `payload_offset`, from the end of the setup sectors.
const PAYLOAD_OFFSET: usize = 0x248;
/// Offset of `payload_length`.
const PAYLOAD_LENGTH: usize = 0x24c;
/// Most bytes of a kernel. Debian's with everything in it has 80 MiB.
const LONGEST: u32 = 512 << 20;
/// Most memory in KiB that unpacking xz and lzma takes beside the kernel. `xz -9` takes 64 MiB.
const UNPACKER_KIB: u32 = 192 << 10;

/// Whether these bytes begin like a bzImage.
#[must_use]
pub fn is_one(file: &[u8]) -> bool {
    let (at, mark) = MARK;
    file.get(at..).is_some_and(|rest| rest.starts_with(mark))
}

/// Returns the kernel in a bzImage, an ELF file.
///
/// # Errors
/// It is no bzImage, it is cut off, it is compressed in a way that this program does not know, or it is damaged.
pub fn kernel(file: &[u8]) -> Result<Vec<u8>> {
    ensure!(is_one(file), "it has no setup header, so it is no bzImage");
    let payload = payload(file).context("the bzImage is cut off")?;
    // For gzip this is the format's own field, for the others Linux's.
    let (packed, length) = payload.split_last_chunk().context("there is no kernel in the bzImage")?;
    let length = u32::from_le_bytes(*length);
    ensure!(length <= LONGEST, "the bzImage says that its kernel has {length} bytes; {LONGEST} are taken");
    let reader: Box<dyn Read + '_> = match packed {
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(ruzstd::decoding::StreamingDecoder::new(packed)?),
        [0x1f, 0x8b, ..] => Box::new(flate2::read::GzDecoder::new(payload)),
        [0x02, 0x21, 0x4c, 0x18, ..] => Box::new(lz4_flex::frame::FrameDecoder::new(packed)),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
            Box::new(lzma_rust2::XzReader::new_mem_limit(packed, false, UNPACKER_KIB))
        }
        [0x5d, 0, 0, ..] => Box::new(lzma_rust2::LzmaReader::new_mem_limit(packed, UNPACKER_KIB, None)?),
        [b'B', b'Z', b'h', ..] => Box::new(bzip2::read::BzDecoder::new(packed)),
        _ => bail!("the kernel in the bzImage is compressed by none of zstd, gzip, lz4, xz, lzma and bzip2"),
    };
    let mut kernel = Vec::new();
    let read = reader.take(u64::from(length)).read_to_end(&mut kernel);
    read.context("the kernel in the bzImage is damaged")?;
    ensure!(kernel.len() as u64 == u64::from(length), "the kernel in the bzImage is shorter than the image says");
    Ok(kernel)
}

/// The compressed kernel and its length behind it.
fn payload(file: &[u8]) -> Option<&[u8]> {
    let sectors = match file.get(SETUP_SECTORS)? {
        // The boot protocol's meaning of 0.
        0 => 4,
        &sectors => usize::from(sectors),
    };
    let setup = sectors.checked_add(1)?.checked_mul(512)?;
    let start = setup.checked_add(number(file, PAYLOAD_OFFSET)?)?;
    file.get(start..)?.get(..number(file, PAYLOAD_LENGTH)?)
}

fn number(file: &[u8], at: usize) -> Option<usize> {
    let bytes = file.get(at..)?.first_chunk()?;
    usize::try_from(u32::from_le_bytes(*bytes)).ok()
}

#[cfg(test)]
#[expect(missing_docs, reason = "tests")]
pub mod tests {
    use std::io::Write as _;
    use std::sync::LazyLock;

    use lzma_rust2::{LzmaOptions, LzmaWriter, XzOptions, XzWriter};
    use proptest::prelude::*;

    use super::*;

    /// A bzImage with this payload.
    pub fn image_of(payload: &[u8]) -> Vec<u8> {
        // Two setup sectors, and eight bytes of the loader before the payload.
        let mut image = vec![0; 3 * 512 + 8];
        image[SETUP_SECTORS] = 2;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].copy_from_slice(&8_u32.to_le_bytes());
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        image.extend(payload);
        image.extend(b"the rest of the loader");
        image
    }

    /// A bzImage of this kernel, compressed by gzip.
    pub fn gzip(kernel: &[u8]) -> Vec<u8> {
        let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        writer.write_all(kernel).unwrap();
        image_of(&writer.finish().unwrap())
    }

    fn with_length(mut packed: Vec<u8>, kernel: &[u8]) -> Vec<u8> {
        packed.extend((kernel.len() as u32).to_le_bytes());
        image_of(&packed)
    }

    /// The same kernel in all ways of compression.
    fn images(kernel: &[u8]) -> Vec<Vec<u8>> {
        // Linux has the format of lz4's first versions, in one block here.
        let block = lz4_flex::block::compress(kernel);
        let lz4 = [&[2, 0x21, 0x4c, 0x18][..], &(block.len() as u32).to_le_bytes(), &block].concat();
        let mut bzip2 = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        bzip2.write_all(kernel).unwrap();
        let mut xz = XzWriter::new(Vec::new(), XzOptions::with_preset(0)).unwrap();
        xz.write_all(kernel).unwrap();
        let mut lzma = LzmaWriter::new_use_header(Vec::new(), &LzmaOptions::with_preset(0), None).unwrap();
        lzma.write_all(kernel).unwrap();
        let zstd = ruzstd::encoding::compress_to_vec(kernel, ruzstd::encoding::CompressionLevel::Fastest);
        let packed = [zstd, lz4, bzip2.finish().unwrap(), xz.finish().unwrap(), lzma.finish().unwrap()];
        packed.into_iter().map(|packed| with_length(packed, kernel)).chain([gzip(kernel)]).collect()
    }

    fn text() -> Vec<u8> {
        (0_u32..9_000).flat_map(|number| (number / 7).to_le_bytes()).collect()
    }

    #[test]
    fn a_kernel_comes_out_of_each_compression() {
        for image in images(&text()) {
            let start = &image[3 * 512 + 8..][..4];
            assert_eq!(kernel(&image).ok(), Some(text()), "{start:x?}");
        }
    }

    #[test]
    fn an_image_that_unpacks_to_more_or_less_than_it_says_is_bounded_or_refused() {
        let packed = |said: u32| {
            let mut image = images(&text()).swap_remove(0);
            let end = image.len() - b"the rest of the loader".len();
            image[end - 4..end].copy_from_slice(&said.to_le_bytes());
            kernel(&image)
        };
        assert_eq!(packed(100).unwrap(), text()[..100], "no byte more than it says");
        assert!(packed(36_001).unwrap_err().to_string().contains("shorter"));
        assert!(packed(u32::MAX).unwrap_err().to_string().contains("4294967295 bytes"));
    }

    #[test]
    fn what_is_no_bzimage_is_refused_with_the_reason() {
        let reason = |file: &[u8]| kernel(file).unwrap_err().to_string();
        assert!(reason(b"\x7fELF").contains("no setup header"));
        assert!(reason(&image_of(b"")).contains("no kernel"));
        assert!(reason(&image_of(b"LZO.\x10\0\0\0")).contains("none of zstd"));
        let mut cut = gzip(&text());
        cut.truncate(2_000);
        assert!(reason(&cut).contains("cut off"));
    }

    proptest! {
        #[test]
        fn a_damaged_image_never_panics(which in 0..6_usize, at: prop::sample::Index, byte: u8) {
            static IMAGES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| images(&text()));
            let mut image = IMAGES[which].clone();
            let at = at.index(image.len());
            image[at] = byte;
            if let Ok(kernel) = kernel(&image) {
                prop_assert!(kernel.len() <= LONGEST as usize);
            }
        }

        #[test]
        fn any_payload_never_panics(start in 0..7_usize, rest: Vec<u8>) {
            let starts: [&[u8]; 7] = [
                &[0x28, 0xb5, 0x2f, 0xfd], &[0x1f, 0x8b, 8], &[2, 0x21, 0x4c, 0x18], b"\xfd7zXZ\0", &[0x5d, 0, 0], b"BZh9", b"",
            ];
            // The kernel's length in the last bytes is one that is not refused at once.
            let payload = [starts[start], &rest, &1_000_u32.to_le_bytes()].concat();
            drop(kernel(&image_of(&payload)));
        }
    }
}
