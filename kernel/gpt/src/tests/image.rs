//! A disk in memory, from the rows of 16 bytes that are not zeroes. The fuzz target uses it too.

use std::string::String;
use std::vec::Vec;
use std::{format, vec};

use crc::{CRC_32_ISO_HDLC, Crc};

use gpt::{Blocks, Refusal, Shape, Table, read};

/// Blocks of 512 bytes, partitions 1 and 3.
pub const SGDISK_512: &str = include_str!("sgdisk-512.hex");
/// Blocks of 4,096 bytes, partitions 1 and 2.
pub const FDISK_4096: &str = include_str!("fdisk-4096.hex");

/// A disk in memory. A block in `bad` cannot be read.
#[derive(Clone)]
pub struct Image {
    pub bytes: Vec<u8>,
    pub block: usize,
    pub bad: Vec<u64>,
}

impl Image {
    pub fn load(text: &str, block: usize) -> Self {
        let mut bytes = Vec::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (at, row) = line.split_once(' ').expect("two words");
            if at == "size" {
                bytes = vec![0; row.parse().expect("a number")];
                continue;
            }
            let at = usize::from_str_radix(at, 16).expect("an offset");
            for (n, byte) in bytes[at..at + 16].iter_mut().enumerate() {
                *byte = u8::from_str_radix(&row[2 * n..2 * n + 2], 16).expect("a byte");
            }
        }
        Self { bytes, block, bad: Vec::new() }
    }

    pub fn shape(&self) -> Shape {
        Shape { block_bytes: self.block as u32, blocks: (self.bytes.len() / self.block) as u64 }
    }

    pub fn read(&mut self) -> Result<Table, Refusal> {
        let shape = self.shape();
        read(self, shape)
    }

    /// The bytes of a block.
    pub fn at(&mut self, block: u64) -> &mut [u8] {
        let at = block as usize * self.block;
        &mut self.bytes[at..at + self.block]
    }

    pub fn last(&self) -> u64 {
        self.shape().blocks - 1
    }

    /// Changes a header, and makes its checksums right again.
    pub fn change(&mut self, header: u64, change: impl FnOnce(&mut [u8])) {
        change(self.at(header));
        let crc = Crc::<u32>::new(&CRC_32_ISO_HDLC);
        let number = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four")) as usize;
        let block = self.at(header).to_vec();
        let array = number(&block, 72).saturating_mul(self.block);
        let end = array.saturating_add(number(&block, 80).saturating_mul(number(&block, 84)));
        if let Some(entries) = self.bytes.get(array..end) {
            let sum = crc.checksum(entries);
            self.at(header)[88..92].copy_from_slice(&sum.to_le_bytes());
        }
        self.at(header)[16..20].fill(0);
        let size = number(&block, 12).min(self.block);
        let sum = crc.checksum(&self.at(header)[..size]);
        self.at(header)[16..20].copy_from_slice(&sum.to_le_bytes());
    }

    /// Changes both copies of an entry, from 0, and the checksums.
    pub fn change_entry(&mut self, number: usize, change: impl Fn(&mut [u8])) {
        for header in [1, self.last()] {
            let array = self.at(header)[72..80].try_into().map(u64::from_le_bytes).expect("eight");
            let at = array as usize * self.block + 128 * number;
            change(&mut self.bytes[at..at + 128]);
            self.change(header, |_| {});
        }
    }
}

impl Blocks for Image {
    fn read(&mut self, first: u64, into: &mut [u8]) -> Result<(), String> {
        assert!(
            !into.is_empty() && into.len() <= 4096 && into.len().is_multiple_of(self.block),
            "{} bytes",
            into.len()
        );
        let blocks = first..first + (into.len() / self.block) as u64;
        assert!(blocks.end <= self.shape().blocks, "block {first} of {}", self.shape().blocks);
        if let Some(bad) = self.bad.iter().find(|bad| blocks.contains(bad)) {
            return Err(format!("medium error at {bad}"));
        }
        let at = first as usize * self.block;
        into.copy_from_slice(&self.bytes[at..at + into.len()]);
        Ok(())
    }
}

/// Both disks.
pub fn both() -> [Image; 2] {
    [Image::load(SGDISK_512, 512), Image::load(FDISK_4096, 4096)]
}
