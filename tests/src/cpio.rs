//! A cpio archive in the "newc" form, as the Linux kernel unpacks it at boot
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeSet;
use std::path::Path;

/// An archive being written. Entries are owned by root, and their time is 0, so that equal content gives equal bytes.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

/// Type bits of the mode, as in `stat(2)`.
const DIRECTORY: u32 = 0o040_000;
const CHARACTER: u32 = 0o020_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

impl Archive {
    /// An empty archive.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a directory; its parents must have been added before.
    pub fn directory(&mut self, path: &str) {
        self.entry(path, DIRECTORY | 0o755, (0, 0), &[]);
    }

    /// Adds the folders of files with these paths, each before what is in it.
    pub fn folders_of<'a>(&mut self, paths: impl Iterator<Item = &'a str>) {
        let folders = paths.flat_map(|path| Path::new(path).ancestors().skip(1)).filter_map(Path::to_str);
        for folder in folders.filter(|folder| !folder.is_empty()).collect::<BTreeSet<_>>() {
            self.directory(folder);
        }
    }

    /// Adds a file with the given permission bits.
    pub fn file(&mut self, path: &str, permissions: u32, content: &[u8]) {
        self.entry(path, REGULAR | permissions, (0, 0), content);
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.entry(path, LINK | 0o777, (0, 0), target.as_bytes());
    }

    /// Adds a character device.
    pub fn character_device(&mut self, path: &str, major: u32, minor: u32) {
        self.entry(path, CHARACTER | 0o600, (major, minor), &[]);
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.inode = 0;
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, (major, minor): (u32, u32), content: &[u8]) {
        self.inode += 1;
        let name = path.trim_start_matches('/');
        let fields = [
            self.inode,
            mode,
            0,
            0,
            1,
            0,
            u32::try_from(content.len()).expect("a file of an initramfs is under 4 GiB"),
            0,
            0,
            major,
            minor,
            u32::try_from(name.len() + 1).expect("a path is under 4 GiB"),
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_begin_at_multiples_of_four_and_carry_their_length() {
        let mut archive = Archive::new();
        archive.file("/init", 0o755, b"hello");
        let bytes = archive.finish();
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[6 + 8 * 6..6 + 8 * 7], b"00000005");
        let content = (110 + 5usize).next_multiple_of(4);
        assert_eq!(&bytes[110..116], b"init\0\0");
        assert_eq!(&bytes[content..content + 5], b"hello");
        assert_eq!(&bytes[content + 8..content + 14], b"070701");
        assert!(bytes.windows(10).any(|w| w == b"TRAILER!!!"));
        assert_eq!(bytes.len() % 4, 0);
    }

    #[test]
    fn a_device_carries_its_numbers() {
        let mut archive = Archive::new();
        archive.character_device("dev/console", 5, 1);
        let bytes = archive.finish();
        assert_eq!(&bytes[6 + 8 * 9..6 + 8 * 11], b"0000000500000001");
        assert_eq!(&bytes[6 + 8..6 + 16], b"00002180");
    }
}
