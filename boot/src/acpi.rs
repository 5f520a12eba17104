//! Reads the machine's ACPI tables (ACPI 6.5 ch. 5.2): cores, PCI configuration space, timer, reset register, power,
//! the firmware's console, DMA remapping units, the interface to a management controller.
//!
//! The firmware wrote the tables. They are trusted, but firmware has mistakes. So nothing is read outside what a table
//! says it has, and every loop ends, whatever the lengths are.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

mod fadt;
mod hpet;
mod mcfg;
mod remapping;
mod spcr;
mod spmi;
pub(crate) mod structures;

use crate::words::{byte, double, quad};
pub use fadt::{Fadt, Register};
pub use hpet::hpet;
pub use mcfg::{EcamWindow, ecam};
pub use remapping::{Maker, RemappingUnit, dmar, ivrs};
pub use spcr::{Spcr, spcr};
pub use spmi::spmi;
use structures::entries;

/// Bytes of the header that each table but the RSDP begins with (5.2.6).
const HEADER: usize = 36;
/// Offset of a MADT's first entry (5.2.12).
const MADT_ENTRIES: usize = HEADER + 8;
/// Longest table in bytes. The longest ones are DSDTs, of up to a megabyte.
const MOST_BYTES: u64 = 4 << 20;
/// Most cores that are returned.
const MOST_CORES: usize = 4096;

/// Physical memory in which tables lie.
pub trait Memory {
    /// Returns `len` bytes at a physical address. `None`: not all of them can be read.
    fn bytes(&self, address: u64, len: u64) -> Option<&[u8]>;
}

/// Why there are no tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoTables {
    /// The RSDP is cut off, or has another signature.
    NoRsdp,
    /// The sum of the RSDP's bytes is not 0.
    RsdpChecksum,
    /// There is no RSDT or XSDT at this address, or it is damaged.
    NoRoot(u64),
}

impl core::fmt::Display for NoTables {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NoRsdp => f.write_str("the RSDP is none"),
            Self::RsdpChecksum => f.write_str("the RSDP's checksum is wrong"),
            Self::NoRoot(at) => write!(f, "there is no RSDT or XSDT at {at:#x}, or its checksum is wrong"),
        }
    }
}

/// The machine's tables.
#[derive(Debug)]
pub struct Tables<'a, M> {
    /// RSDT or XSDT.
    root: &'a [u8],
    /// Bytes of each of its entries.
    entry: usize,
    memory: &'a M,
}

impl<'a, M: Memory> Tables<'a, M> {
    /// Finds the root of the tables. `rsdp` is a copy of the RSDP (5.2.5.3), as long as it is known to be.
    ///
    /// # Errors
    /// There are no tables that can be read.
    pub fn new(rsdp: &[u8], memory: &'a M) -> Result<Self, NoTables> {
        let first = rsdp.first_chunk::<20>().filter(|first| first.starts_with(b"RSD PTR ")).ok_or(NoTables::NoRsdp)?;
        if sum(first) != 0 {
            return Err(NoTables::RsdpChecksum);
        }
        let old = (*b"RSDT", 4, double(rsdp, 16).unwrap_or(0).into());
        let new = match (double(rsdp, 20), quad(rsdp, 24)) {
            (Some(len), Some(xsdt)) if first[15] >= 2 && xsdt != 0 => {
                let whole = rsdp.get(..len as usize).filter(|whole| whole.len() >= HEADER).ok_or(NoTables::NoRsdp)?;
                if sum(whole) != 0 {
                    return Err(NoTables::RsdpChecksum);
                }
                Some((*b"XSDT", 8, xsdt))
            }
            _ => None,
        };
        let (signature, entry, address) = new.unwrap_or(old);
        let root = table(memory, address, signature).ok_or(NoTables::NoRoot(address))?;
        Ok(Self { root, entry, memory })
    }

    /// Returns the first table with this signature whose checksum is right.
    #[must_use]
    pub fn find(&self, signature: [u8; 4]) -> Option<&'a [u8]> {
        self.root.get(HEADER..)?.chunks_exact(self.entry).find_map(|entry| {
            let address = quad(entry, 0).or_else(|| double(entry, 0).map(u64::from))?;
            table(self.memory, address, signature)
        })
    }

    /// Returns the AML of the DSDT that the FADT names.
    #[must_use]
    pub fn dsdt(&self, fadt: &Fadt<'_>) -> Option<&'a [u8]> {
        table(self.memory, fadt.dsdt()?, *b"DSDT")?.get(HEADER..)
    }
}

/// The sum of bytes, which is 0 over a whole table.
fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}

fn table<M: Memory>(memory: &M, address: u64, signature: [u8; 4]) -> Option<&[u8]> {
    let header = memory.bytes(address, HEADER as u64)?;
    if !header.starts_with(&signature) {
        return None;
    }
    let len = double(header, 4).map(u64::from).filter(|len| (HEADER as u64..=MOST_BYTES).contains(len))?;
    memory.bytes(address, len).filter(|table| sum(table) == 0)
}

/// The cores that a MADT lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cores {
    /// APIC IDs of the enabled ones, in the table's order, each once. At most 4,096.
    pub enabled: Vec<u32>,
    /// APIC IDs of those that are not enabled, each once.
    pub offline: Vec<u32>,
    /// How many of these the firmware may enable while the machine runs ("online capable").
    pub addable: usize,
}

/// Returns the cores of a MADT (5.2.12): local APICs (type 0) and local x2APICs (type 9).
///
/// Entries are read until one is cut off or is shorter than 2 bytes. What follows such an entry is ignored. An ID by which all
/// cores are meant (0xff in type 0, 0xffff_ffff in type 9) is nobody's: firmware fills unused entries with it. A core that is
/// listed as enabled anywhere is enabled.
#[must_use]
pub fn cores(madt: &[u8]) -> Cores {
    const ENABLED: u32 = 1;
    const ONLINE_CAPABLE: u32 = 2;
    let (mut enabled, mut known, mut offline) = (Vec::new(), BTreeSet::new(), BTreeMap::<u32, bool>::new());
    for (kind, entry) in entries(madt, MADT_ENTRIES) {
        if enabled.len() >= MOST_CORES || offline.len() >= MOST_CORES {
            break;
        }
        let found = match kind {
            // Local APIC (5.2.12.2), and local x2APIC (5.2.12.12).
            0 => byte(entry, 3).filter(|&id| id != 0xff).map(u32::from).zip(double(entry, 4)),
            9 => double(entry, 4).filter(|&id| id != u32::MAX).zip(double(entry, 8)),
            _ => None,
        };
        let Some((id, flags)) = found else { continue };
        if flags & ENABLED == 0 {
            *offline.entry(id).or_default() |= flags & ONLINE_CAPABLE != 0;
        } else if known.insert(id) {
            enabled.push(id);
        }
    }
    offline.retain(|id, _| !known.contains(id));
    Cores {
        enabled,
        addable: offline.values().filter(|&&capable| capable).count(),
        offline: offline.into_keys().collect(),
    }
}

/// Returns the physical addresses of the I/O APICs of a MADT (type 1, 5.2.12.3), each once. At most 128 are returned. Entries are
/// read as for [`cores`].
#[must_use]
pub fn io_apics(madt: &[u8]) -> Vec<u32> {
    const MOST: usize = 128;
    let mut found = Vec::new();
    for address in entries(madt, MADT_ENTRIES).filter_map(|(kind, entry)| double(entry, 4).filter(|_| kind == 1)) {
        if found.len() < MOST && !found.contains(&address) {
            found.push(address);
        }
    }
    found
}

#[cfg(test)]
mod published;
#[cfg(test)]
mod tests;
