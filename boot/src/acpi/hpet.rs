//! The table of the HPET (IA-PC HPET Specification 1.0a, 3.2.4): where its registers are.

use crate::words::{byte, quad};

/// Address space of registers in memory (ACPI 6.5, 5.2.3.2).
const MEMORY: u8 = 0;

/// Reads the table, with its header. Returns the physical address of the registers. `None`: it is cut off, or names an
/// address at which there can be none.
#[must_use]
pub fn hpet(table: &[u8]) -> Option<u64> {
    let (space, address) = (byte(table, 40)?, quad(table, 44)?);
    (space == MEMORY && address != 0 && address.is_multiple_of(8)).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(space: u8, address: u64) -> Vec<u8> {
        let mut table = vec![0; 56];
        table[..4].copy_from_slice(b"HPET");
        table[40] = space;
        table[44..52].copy_from_slice(&address.to_le_bytes());
        table
    }

    #[test]
    fn the_address_is_read_and_what_cannot_be_is_not_believed() {
        assert_eq!(hpet(&table(MEMORY, 0xfed0_0000)), Some(0xfed0_0000));
        for (space, address) in [(1, 0xfed0_0000), (MEMORY, 0), (MEMORY, 0xfed0_0004)] {
            assert_eq!(hpet(&table(space, address)), None, "{space} {address:#x}");
        }
        let whole = table(MEMORY, 0xfed0_0000);
        assert!((0..52).all(|len| hpet(&whole[..len]).is_none()));
    }
}
