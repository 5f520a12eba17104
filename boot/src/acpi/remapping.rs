//! The tables of DMA remapping units: Intel's DMAR (VT-d 4.1, chapter 8) and AMD's IVRS (48882 revision 3.08, chapter 5).

use alloc::vec::Vec;

use super::structures::structures;
use crate::words::quad;

/// Offset of the first structure in either table.
const STRUCTURES: usize = 48;
/// Most units that are returned. A server has one for each host bridge.
const MOST_UNITS: usize = 64;

/// The type of a remapping hardware unit definition (DRHD, 8.3).
const DRHD: u16 = 0;
/// The types of an I/O virtualization hardware definition (IVHD, 5.2.2): one, and two with more in them. Firmware lists each
/// unit once by each type that it knows.
const IVHD: [u16; 3] = [0x10, 0x11, 0x40];

/// Who made a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// Intel: VT-d.
    Intel,
    /// AMD.
    Amd,
}

/// A DMA remapping unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemappingUnit {
    /// Who made it.
    pub maker: Maker,
    /// Physical address of its registers, a multiple of 4096.
    pub registers: u64,
}

/// Returns the units of a DMAR, each once, in its order. At most 64 are returned. One whose address is 0 or no multiple of 4096
/// is left out.
#[must_use]
pub fn dmar(table: &[u8]) -> Vec<RemappingUnit> {
    let head = |bytes: &[u8]| {
        let &[kind, kind_high, len, len_high] = bytes.first_chunk()?;
        Some((u16::from_le_bytes([kind, kind_high]), u16::from_le_bytes([len, len_high]).into()))
    };
    units(table, Maker::Intel, head, &[DRHD])
}

/// Returns the units of an IVRS. See [`dmar`].
#[must_use]
pub fn ivrs(table: &[u8]) -> Vec<RemappingUnit> {
    let head = |bytes: &[u8]| {
        let &[kind, _, len, len_high] = bytes.first_chunk()?;
        Some((kind.into(), u16::from_le_bytes([len, len_high]).into()))
    };
    units(table, Maker::Amd, head, &IVHD)
}

/// The units of a table, whose structures have the head that `head` reads. A structure of one of the types `wanted` has the address at
/// its offset 8.
fn units(
    table: &[u8],
    maker: Maker,
    head: impl Fn(&[u8]) -> Option<(u16, usize)>,
    wanted: &[u16],
) -> Vec<RemappingUnit> {
    let mut units = Vec::new();
    let all = structures(table.get(STRUCTURES..).unwrap_or_default(), 4, head);
    let addresses = all.filter(|(kind, _)| wanted.contains(kind)).filter_map(|(_, structure)| quad(structure, 8));
    for registers in addresses.filter(|at| *at != 0 && at.is_multiple_of(4096)) {
        let unit = RemappingUnit { maker, registers };
        if units.len() < MOST_UNITS && !units.contains(&unit) {
            units.push(unit);
        }
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(structures: &[Vec<u8>]) -> Vec<u8> {
        [vec![0; STRUCTURES], structures.concat()].concat()
    }

    fn drhd(flags: u8, registers: u64, devices: &[u8]) -> Vec<u8> {
        let len = 16 + devices.len() as u16;
        [&[0, 0][..], &len.to_le_bytes(), &[flags, 0, 0, 0], &registers.to_le_bytes(), devices].concat()
    }

    fn ivhd(kind: u8, registers: u64, more: usize) -> Vec<u8> {
        let len = 24 + more as u16;
        [&[kind, 0xb0][..], &len.to_le_bytes(), &[2, 0, 0x40, 0], &registers.to_le_bytes(), &vec![0; 8 + more]].concat()
    }

    fn addresses(units: &[RemappingUnit]) -> Vec<u64> {
        units.iter().map(|unit| unit.registers).collect()
    }

    #[test]
    fn each_unit_of_a_server_with_four_host_bridges_is_found() {
        // As a server with two sockets lists them: reserved memory (type 1) and ATS (type 2) are between and behind, and the last
        // unit has all devices that no other names.
        let scope = [1, 8, 0, 0, 0, 0x16, 0, 0];
        let dmar = table(&[
            drhd(0, 0xd37f_c000, &scope),
            drhd(0, 0xe0ff_c000, &scope),
            vec![1, 0, 24, 0, 0, 0, 0, 0, 0, 0x40, 0x34, 0x6f, 0, 0, 0, 0, 0xff, 0x5f, 0x35, 0x6f, 0, 0, 0, 0],
            drhd(0, 0xee7f_c000, &[]),
            drhd(1, 0xfbff_c000, &scope),
            vec![2, 0, 8, 0, 0, 0, 0, 0],
        ]);
        let units = super::dmar(&dmar);
        assert_eq!(addresses(&units), [0xd37f_c000, 0xe0ff_c000, 0xee7f_c000, 0xfbff_c000]);
        assert!(units.iter().all(|unit| unit.maker == Maker::Intel));
    }

    #[test]
    fn a_unit_that_the_ivrs_lists_by_several_types_is_one() {
        // As servers of AMD's list them: each unit by the types 10h, 11h and 40h, with memory definitions (20h) between.
        let memory = [&[0x20, 0x08, 0x20, 0][..], &[0; 28]].concat();
        let table = table(&[
            ivhd(0x10, 0xfd20_0000, 44),
            memory,
            ivhd(0x11, 0xfd20_0000, 60),
            ivhd(0x40, 0xfd20_0000, 60),
            ivhd(0x10, 0xb510_0000, 8),
            ivhd(0x41, 0xdead_0000, 8),
        ]);
        let units = ivrs(&table);
        assert_eq!(addresses(&units), [0xfd20_0000, 0xb510_0000]);
        assert!(units.iter().all(|unit| unit.maker == Maker::Amd));
    }

    #[test]
    fn a_damaged_table_ends_and_addresses_that_make_no_sense_are_left_out() {
        for (read, good) in
            [(dmar as fn(&[u8]) -> Vec<RemappingUnit>, drhd(0, 0x1000, &[])), (ivrs, ivhd(0x10, 0x1000, 0))]
        {
            let first = good.clone();
            for len in [0_u16, 3, 0xffff] {
                let mut wrong = good.clone();
                wrong[8..16].copy_from_slice(&0x2000_u64.to_le_bytes());
                wrong[2..4].copy_from_slice(&len.to_le_bytes());
                assert_eq!(addresses(&read(&table(&[first.clone(), wrong, good.clone()]))), [0x1000]);
            }
            for address in [0, 0x1001, u64::MAX] {
                let mut wrong = good.clone();
                wrong[8..16].copy_from_slice(&address.to_le_bytes());
                assert_eq!(addresses(&read(&table(&[wrong, first.clone()]))), [0x1000]);
            }
            let whole = table(&[good.clone(), good.clone()]);
            for len in 0..whole.len() {
                assert!(read(&whole[..len]).len() <= 1);
            }
            let many: Vec<Vec<u8>> = (1..=100_u64)
                .map(|n| {
                    let mut one = good.clone();
                    one[8..16].copy_from_slice(&(n << 12).to_le_bytes());
                    one
                })
                .collect();
            assert_eq!(read(&table(&many)).len(), MOST_UNITS);
        }
    }
}
