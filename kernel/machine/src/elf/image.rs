//! For tests: builds ELF files with segments and notes, of both classes. The caller can then damage them.

use std::vec::Vec;

/// An ELF file to build.
#[derive(Clone, Debug)]
pub struct Image {
    /// ELF64, otherwise ELF32.
    pub wide: bool,
    /// e_machine.
    pub machine: u16,
    /// Segments: address, size in memory, bytes.
    pub segments: Vec<(u64, u64, Vec<u8>)>,
    /// The content of a segment of notes, and its alignment.
    pub notes: (Vec<u8>, u64),
}

impl Image {
    /// Makes a file with one segment of 16 bytes at 1 MiB, 0x1000 in memory, which starts at `entry`.
    #[must_use]
    pub fn new(wide: bool, entry: u32) -> Self {
        Self {
            wide,
            machine: if wide { 62 } else { 3 },
            segments: std::vec![(0x10_0000, 0x1000, b"sixteen bytes!!!".to_vec())],
            notes: (note(b"Xen\0", 18, &entry.to_le_bytes(), 4), 4),
        }
    }

    /// Returns the file.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let (header, entry) = if self.wide { (64, 56) } else { (52, 32) };
        let count = self.segments.len() + 1;
        let mut file = std::vec![0; header];
        let mut data: Vec<u8> = Vec::new();
        let start = header + count * entry;
        let (notes, align) = &self.notes;
        let note = [(4_u32, 0, notes.len() as u64, notes, *align)].into_iter();
        let load = self.segments.iter().map(|(address, size, bytes)| (1, *address, *size, bytes, 4096));
        for (kind, address, size, bytes, align) in note.chain(load) {
            let (offset, len) = ((start + data.len()) as u64, bytes.len() as u64);
            file.extend(kind.to_le_bytes());
            if self.wide {
                file.extend(5_u32.to_le_bytes());
                file.extend([offset, address, address, len, size, align].into_iter().flat_map(u64::to_le_bytes));
            } else {
                let words = [offset, address, address, len, size].map(|n| n as u32);
                file.extend(words.into_iter().chain([5, align as u32]).flat_map(u32::to_le_bytes));
            }
            data.extend(bytes);
        }
        file.extend(data);
        let mut set = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
        set(0, b"\x7fELF");
        set(4, &[if self.wide { 2 } else { 1 }, 1, 1]);
        set(16, &2_u16.to_le_bytes());
        set(18, &self.machine.to_le_bytes());
        set(20, &1_u32.to_le_bytes());
        set(if self.wide { 32 } else { 28 }, &[header as u8]);
        set(if self.wide { 54 } else { 42 }, &[entry as u8]);
        set(if self.wide { 56 } else { 44 }, &[count as u8]);
        file
    }
}

/// Returns a note, padded to `align` bytes.
#[must_use]
pub fn note(owner: &[u8], kind: u32, descriptor: &[u8], align: usize) -> Vec<u8> {
    let mut note = Vec::new();
    for number in [owner.len() as u32, descriptor.len() as u32, kind] {
        note.extend(number.to_le_bytes());
    }
    note.extend(owner);
    note.resize(note.len().next_multiple_of(align), 0);
    note.extend(descriptor);
    note.resize(note.len().next_multiple_of(align), 0);
    note
}
