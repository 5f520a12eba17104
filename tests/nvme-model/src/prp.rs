//! PRP entries and lists (NVMe Base 2.0, 4.1.1).

use crate::memory::Dma;
use crate::model::Model;

const PAGE: u64 = 4096;

impl Model {
    /// The pieces of memory that a command's data has. `None`: a list is not readable.
    pub(crate) fn pieces(&mut self, prp1: u64, prp2: u64, len: u64) -> Option<Vec<(u64, u64)>> {
        if !prp1.is_multiple_of(4) {
            self.wrong(format!("PRP1 is {prp1:#x}, which is not aligned to a dword"));
        }
        let first = len.min(PAGE - prp1 % PAGE);
        let (mut pieces, mut left) = (vec![(prp1, first)], len - first);
        if left == 0 {
            return Some(pieces);
        }
        if left <= PAGE {
            self.check_page(prp2);
            pieces.push((prp2, left));
            return Some(pieces);
        }
        if !prp2.is_multiple_of(8) {
            self.wrong(format!("PRP2 is {prp2:#x}, a list that is not aligned to 8 bytes"));
        }
        let mut at = prp2;
        while left != 0 {
            let entry = self.word(at)?;
            let last = at % PAGE == PAGE - 8;
            if last && left > PAGE {
                if !entry.is_multiple_of(PAGE) {
                    self.wrong(format!("a list goes on at {entry:#x}, which is no page"));
                }
                at = entry;
                continue;
            }
            self.check_page(entry);
            let bytes = left.min(PAGE);
            pieces.push((entry, bytes));
            left -= bytes;
            at += 8;
        }
        Some(pieces)
    }

    fn check_page(&mut self, entry: u64) {
        if !entry.is_multiple_of(PAGE) {
            self.wrong(format!("a PRP entry that is not the first is {entry:#x}, which is no page"));
        }
    }

    fn word(&mut self, at: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        if !self.memory.read(at, &mut bytes) {
            self.wrong(format!("a PRP list at {at:#x} is not in granted memory"));
            return None;
        }
        Some(u64::from_le_bytes(bytes))
    }

    /// Reads a command's data from memory.
    pub(crate) fn gather(&mut self, prp1: u64, prp2: u64, len: u64) -> Option<Vec<u8>> {
        let mut data = Vec::new();
        for (address, bytes) in self.pieces(prp1, prp2, len)? {
            let mut piece = vec![0; bytes as usize];
            if !self.memory.read(address, &mut piece) {
                self.wrong(format!("{bytes} bytes at {address:#x} are not granted for reading"));
                return None;
            }
            data.extend(piece);
        }
        Some(data)
    }

    /// Writes a command's data to memory.
    pub(crate) fn scatter(&mut self, prp1: u64, prp2: u64, data: &[u8]) -> bool {
        let Some(pieces) = self.pieces(prp1, prp2, data.len() as u64) else { return false };
        let mut rest = data;
        for (address, bytes) in pieces {
            let (now, later) = rest.split_at(bytes as usize);
            if !self.memory.write(address, now) {
                self.wrong(format!("{bytes} bytes at {address:#x} are not granted for writing"));
                return false;
            }
            rest = later;
        }
        true
    }
}
