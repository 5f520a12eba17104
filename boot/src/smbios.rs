//! Finds the structures of SMBIOS (DSP0134 3.7) and reads what one of them says: type 38, where the interface to a
//! management controller is.
//!
//! ```text
//!  BIOS: an entry point in 0xf0000 to 0xfffff ────────────────┐
//!  UEFI: EFI system table ─ configuration table ─ entry point ┴▶ structures ─▶ type 38 ─▶ ipmi::Interface
//! ```
//!
//! Firmware wrote all of it, and firmware has mistakes: nothing is read outside what an entry point names, and every
//! loop ends.

use crate::acpi::Memory;
use crate::ipmi::Interface;
use crate::words::{double, quad, word};

/// Where a BIOS has the entry point, at a multiple of 16 (5.2).
const BIOS: u64 = 0xf_0000;
const BIOS_BYTES: u64 = 0x1_0000;
/// Most bytes of structures that are read. Servers have some ten thousand.
const MOST_BYTES: u64 = 1 << 20;
/// Most entries of EFI's configuration table that are read. Machines have about twenty.
const MOST_TABLES: u64 = 256;

/// The GUIDs of the entry points in EFI's configuration table, as they are in memory: that of 64 bits and that of 32.
const SMBIOS3: [u8; 16] =
    [0x44, 0x15, 0xfd, 0xf2, 0x94, 0x97, 0x2c, 0x4a, 0x99, 0x2e, 0xe5, 0xbb, 0xcf, 0x20, 0xe3, 0x94];
const SMBIOS: [u8; 16] =
    [0x31, 0x2d, 0x9d, 0xeb, 0x88, 0x2d, 0xd3, 0x11, 0x9a, 0x16, 0x00, 0x90, 0x27, 0x3f, 0xc1, 0x4d];

/// The type of the last structure, and of an IPMI device information.
const END: u8 = 127;
const IPMI: u8 = 38;

/// Returns the structures. `efi`: physical address of EFI's system table, if the machine has booted by UEFI.
pub fn find<M: Memory>(memory: &M, efi: Option<u64>) -> Option<&[u8]> {
    let (address, len) = match efi {
        Some(system_table) => by_efi(memory, system_table)?,
        None => {
            let area = memory.bytes(BIOS, BIOS_BYTES)?;
            (0..area.len()).step_by(16).find_map(|at| entry_point(area.get(at..)?))?
        }
    };
    memory.bytes(address, len.min(MOST_BYTES))
}

/// Reads an entry point at the beginning of these bytes (5.2.1, 5.2.2): the structures' physical address, and their
/// length at most.
fn entry_point(bytes: &[u8]) -> Option<(u64, u64)> {
    let whole = |len: u8, least: u8| {
        let entry = bytes.get(..len.into()).filter(|_| len >= least)?;
        (entry.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)) == 0).then_some(entry)
    };
    if bytes.starts_with(b"_SM3_") {
        let entry = whole(*bytes.get(6)?, 0x18)?;
        Some((quad(entry, 0x10)?, double(entry, 0x0c)?.into()))
    } else if bytes.starts_with(b"_SM_") {
        let entry = whole(*bytes.get(5)?, 0x1e)?;
        Some((double(entry, 0x18)?.into(), word(entry, 0x16)?.into()))
    } else {
        None
    }
}

/// Finds an entry point by EFI's system table (UEFI 2.10, 4.3 and 4.6), and reads it. That of 64 bits counts if there
/// are both.
fn by_efi(memory: &impl Memory, system_table: u64) -> Option<(u64, u64)> {
    const BYTES: u64 = 120;
    const ENTRY: u64 = 24;
    let table = memory.bytes(system_table, BYTES)?;
    if !table.starts_with(b"IBI SYST") {
        return None;
    }
    let (count, at) = (quad(table, 104)?.min(MOST_TABLES), quad(table, 112)?);
    let tables = memory.bytes(at, count.checked_mul(ENTRY)?)?;
    let named = |guid: [u8; 16]| {
        let entry = tables.chunks_exact(ENTRY as usize).find(|entry| entry.starts_with(&guid))?;
        let at = quad(entry, 16)?;
        // The entry point of 64 bits may be shorter.
        memory.bytes(at, 0x1f).or_else(|| memory.bytes(at, 0x18)).and_then(entry_point)
    };
    named(SMBIOS3).or_else(|| named(SMBIOS))
}

/// Returns the interface to a management controller that the structures name (7.39).
#[must_use]
pub fn ipmi(structures: &[u8]) -> Option<Interface> {
    let mut rest = structures;
    loop {
        let &[kind, len, ..] = rest else { return None };
        let (structure, strings) = rest.split_at_checked(len.into()).filter(|_| len >= 4)?;
        match kind {
            END => return None,
            IPMI => return device(structure),
            _ => {}
        }
        // The strings behind it end with two zeroes.
        let end = strings.windows(2).position(|pair| pair == [0, 0])?;
        rest = strings.get(end.checked_add(2)?..)?;
    }
}

/// Reads a structure of type 38.
fn device(structure: &[u8]) -> Option<Interface> {
    let (kind, base) = (*structure.get(4)?, quad(structure, 8)?);
    // Older structures end here. Their registers are beside one another.
    let modifier = structure.get(16).copied().unwrap_or_default();
    let spacing = match modifier >> 6 {
        0 => 1,
        1 => 4,
        2 => 16,
        _ => return None,
    };
    // Bit 0 of the base says that it is a port. Bit 0 of the address is in the modifier.
    let address = base & !1 | u64::from(modifier >> 4 & 1);
    Interface::new(kind, base & 1 == 0, address, spacing)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory with pieces at addresses.
    struct Pieces(Vec<(u64, Vec<u8>)>);

    impl Memory for Pieces {
        fn bytes(&self, address: u64, len: u64) -> Option<&[u8]> {
            self.0.iter().find_map(|(start, bytes)| {
                let from = usize::try_from(address.checked_sub(*start)?).ok()?;
                bytes.get(from..from.checked_add(usize::try_from(len).ok()?)?)
            })
        }
    }

    fn summed(mut entry: Vec<u8>, at: usize) -> Vec<u8> {
        entry[at] = entry.iter().fold(0_u8, |sum, byte| sum.wrapping_sub(*byte));
        entry
    }

    fn entry_32(address: u32, len: u16) -> Vec<u8> {
        let mut entry = vec![0; 0x1f];
        entry[..4].copy_from_slice(b"_SM_");
        (entry[5], entry[6], entry[7]) = (0x1f, 2, 8);
        entry[0x10..0x15].copy_from_slice(b"_DMI_");
        entry[0x16..0x18].copy_from_slice(&len.to_le_bytes());
        entry[0x18..0x1c].copy_from_slice(&address.to_le_bytes());
        summed(entry, 4)
    }

    fn entry_64(address: u64, len: u32) -> Vec<u8> {
        let mut entry = vec![0; 0x18];
        entry[..5].copy_from_slice(b"_SM3_");
        (entry[6], entry[7]) = (0x18, 3);
        entry[0x0c..0x10].copy_from_slice(&len.to_le_bytes());
        entry[0x10..0x18].copy_from_slice(&address.to_le_bytes());
        summed(entry, 5)
    }

    fn kcs(base: u64, modifier: u8) -> Vec<u8> {
        [&[38, 18, 0, 0x30, 1, 0x20, 0x20, 0xff][..], &base.to_le_bytes(), &[modifier, 0], &[0, 0]].concat()
    }

    /// The structures before: one with two strings, and one without any.
    fn structures(ipmi: &[u8]) -> Vec<u8> {
        let bios = b"\x00\x05\x00\x00\x01QEMU\x00rel-1\x00\x00";
        [&bios[..], &[32, 4, 1, 0, 0, 0], ipmi, &[127, 4, 2, 0, 0, 0]].concat()
    }

    #[test]
    fn a_bios_has_it_in_its_own_memory() {
        let structures = structures(&kcs(0xca3, 0));
        for entry in [entry_32(0x9000, structures.len() as u16), entry_64(0x9000, structures.len() as u32)] {
            let mut area = vec![0; BIOS_BYTES as usize];
            area[0x5a60..0x5a60 + entry.len()].copy_from_slice(&entry);
            // One whose sum is wrong comes first.
            area[0x10..0x15].copy_from_slice(b"_SM3_");
            let memory = Pieces(vec![(BIOS, area), (0x9000, structures.clone())]);
            let found = find(&memory, None).and_then(ipmi);
            assert_eq!(found, Some(Interface::Kcs { data: 0xca2, status: 0xca3 }));
        }
    }

    #[test]
    fn efi_has_it_in_its_configuration_table() {
        let structures = structures(&kcs(0xca3, 0));
        let mut system = vec![0; 120];
        system[..8].copy_from_slice(b"IBI SYST");
        system[104..112].copy_from_slice(&2_u64.to_le_bytes());
        system[112..120].copy_from_slice(&0x2000_u64.to_le_bytes());
        let tables = [&[9; 24][..], &SMBIOS3, &0x3000_u64.to_le_bytes()].concat();
        let entry = entry_64(0x1_0000_0000, structures.len() as u32);
        let memory = Pieces(vec![(0x1000, system), (0x2000, tables), (0x3000, entry), (0x1_0000_0000, structures)]);
        assert!(find(&memory, Some(0x1000)).and_then(ipmi).is_some());
        assert_eq!([find(&memory, Some(0x2000)), find(&memory, Some(0x9999)), find(&memory, None)], [None, None, None]);
    }

    #[test]
    fn ports_and_their_distance_are_read() {
        for (base, modifier, expected) in [
            (0xca3, 0, Some(Interface::Kcs { data: 0xca2, status: 0xca3 })),
            (0xca9, 0x10, Some(Interface::Kcs { data: 0xca9, status: 0xcaa })),
            (0xca1, 0x40, Some(Interface::Kcs { data: 0xca0, status: 0xca4 })),
            (0xca1, 0x80, Some(Interface::Kcs { data: 0xca0, status: 0xcb0 })),
            (0xfe00_0000, 0, Some(Interface::KcsInMemory(0xfe00_0000))),
            (0xca3, 0xc0, None),
            (1, 0, None),
            (0x1_0001, 0, None),
        ] {
            assert_eq!(ipmi(&structures(&kcs(base, modifier))), expected, "{base:#x} {modifier:#x}");
        }
    }

    #[test]
    fn damaged_structures_end() {
        let whole = structures(&kcs(0xca3, 0));
        let found = ipmi(&whole);
        for len in 0..whole.len() {
            assert!([None, found].contains(&ipmi(&whole[..len])), "{len}");
        }
        for at in 0..whole.len() {
            for value in [0, 1, 3, 127, 255] {
                let mut wrong = whole.clone();
                wrong[at] = value;
                let _ = ipmi(&wrong);
            }
        }
        assert_eq!(ipmi(&structures(&[])), None, "no controller");
        assert_eq!(ipmi(&[127, 4, 0, 0, 0, 0, 38, 18, 0, 0, 1]), None, "nothing is read behind the end");
    }
}
