//! The Service Processor Management Interface table (IPMI 2.0, appendix C3): where the interface to a management
//! controller is.

use crate::ipmi::Interface;
use crate::words::{byte, quad};

/// Address spaces (ACPI 6.5, 5.2.3.2).
const MEMORY: u8 = 0;
const PORTS: u8 = 1;

/// Reads the table, with its header. `None`: it is cut off, or names nothing that can be there.
#[must_use]
pub fn spmi(table: &[u8]) -> Option<Interface> {
    let (kind, space, bits, address) = (byte(table, 36)?, byte(table, 52)?, byte(table, 53)?, quad(table, 56)?);
    if !matches!(space, MEMORY | PORTS) {
        // An address on an SMBus.
        return Interface::new(kind.max(4), false, address, 1);
    }
    // The width says how far the registers are apart. Old firmware leaves it out.
    let spacing = match bits {
        0 | 8 => 1,
        32 => 4,
        128 => 16,
        _ => return None,
    };
    Interface::new(kind, space == MEMORY, address, spacing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(kind: u8, space: u8, bits: u8, address: u64) -> Vec<u8> {
        let mut table = vec![0; 65];
        table[..4].copy_from_slice(b"SPMI");
        (table[36], table[37], table[52], table[53]) = (kind, 1, space, bits);
        table[56..64].copy_from_slice(&address.to_le_bytes());
        table
    }

    #[test]
    fn ports_and_their_distance_are_read() {
        assert_eq!(spmi(&table(1, PORTS, 8, 0xca2)), Some(Interface::Kcs { data: 0xca2, status: 0xca3 }));
        assert_eq!(spmi(&table(1, PORTS, 0, 0xca8)), Some(Interface::Kcs { data: 0xca8, status: 0xca9 }));
        assert_eq!(spmi(&table(1, PORTS, 32, 0xca0)), Some(Interface::Kcs { data: 0xca0, status: 0xca4 }));
        assert_eq!(spmi(&table(1, MEMORY, 8, 0xfe00_0000)), Some(Interface::KcsInMemory(0xfe00_0000)));
        assert_eq!(spmi(&table(3, PORTS, 8, 0xe4)), Some(Interface::Type(3)));
        assert_eq!(spmi(&table(4, 4, 0, 0x10)), Some(Interface::Type(4)));
    }

    #[test]
    fn what_cannot_be_is_not_believed() {
        for (space, bits, address) in [
            (PORTS, 8, 0),
            (PORTS, 8, 0xff),
            (PORTS, 8, 0xffff),
            (PORTS, 8, 0x1_0000),
            (PORTS, 7, 0xca2),
            (PORTS, 128, 0xfff8),
        ] {
            assert_eq!(spmi(&table(1, space, bits, address)), None, "{bits} {address:#x}");
        }
        let whole = table(1, PORTS, 8, 0xca2);
        for len in 0..64 {
            assert_eq!(spmi(&whole[..len]), None, "{len}");
        }
    }
}
