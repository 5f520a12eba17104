//! ACPI's generic address structure: where a register is that a table names (ACPI 6.5, 5.2.3.2).

/// Bytes of the structure.
pub const BYTES: usize = 12;

/// An address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Physical memory.
    Memory,
    /// I/O ports.
    Ports,
}

/// A register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// Its address space.
    pub space: Space,
    /// Its address there.
    pub address: u64,
    /// Bytes of an access: 1, 2, 4 or 8.
    pub bytes: u8,
    /// The lowest bit of its field.
    pub bit: u8,
}

impl Register {
    /// Reads the structure. `None`: it is in another space, its access has no width, it is at 0, behind the end of its
    /// space, or its field begins behind the register's end.
    #[must_use]
    pub fn new(structure: &[u8; BYTES]) -> Option<Self> {
        let [space, bits, bit, access, address @ ..] = *structure;
        let space = match space {
            0 => Space::Memory,
            1 => Space::Ports,
            _ => return None,
        };
        // Some firmware leaves the size of an access out; then it is that of the field.
        let bytes: u8 = match access {
            1..=4 => 1 << access.saturating_sub(1),
            0 => Some(bits.div_ceil(8)).filter(|bytes| matches!(bytes, 1 | 2 | 4 | 8))?,
            _ => return None,
        };
        let address = u64::from_le_bytes(address);
        let last = address.checked_add(bytes.into())?.checked_sub(1)?;
        let reachable = address != 0 && (space == Space::Memory || last <= u16::MAX.into());
        let has_field = u32::from(bit) < u32::from(bytes).saturating_mul(8);
        (reachable && has_field).then_some(Self { space, address, bytes, bit })
    }

    /// The address behind it.
    #[must_use]
    pub fn end(self) -> u64 {
        self.address.saturating_add(self.bytes.into())
    }
}

impl core::fmt::Display for Register {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let space = match self.space {
            Space::Memory => "memory",
            Space::Ports => "port",
        };
        write!(f, "{space} {:#x}, {} bytes", self.address, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn structure(space: u8, bits: u8, bit: u8, access: u8, address: u64) -> [u8; BYTES] {
        let mut all = [space, bits, bit, access, 0, 0, 0, 0, 0, 0, 0, 0];
        all[4..].copy_from_slice(&address.to_le_bytes());
        all
    }

    #[test]
    fn the_width_of_an_access_is_that_of_the_field_where_it_is_left_out() {
        let register = |space, bytes, bit, address| Some(Register { space, address, bytes, bit });
        assert_eq!(Register::new(&structure(1, 16, 3, 2, 0x468)), register(Space::Ports, 2, 3, 0x468));
        assert_eq!(Register::new(&structure(0, 32, 0, 0, 0xfed0_0000)), register(Space::Memory, 4, 0, 0xfed0_0000));
        assert_eq!(Register::new(&structure(1, 1, 7, 0, 0xffff)), register(Space::Ports, 1, 7, 0xffff));
    }

    #[test]
    fn what_cannot_be_reached_is_none() {
        for (space, bits, bit, access, address) in [
            (2, 8, 0, 1, 0x468),
            (1, 24, 0, 0, 0x468),
            (1, 8, 0, 5, 0x468),
            (1, 8, 0, 1, 0),
            (1, 16, 0, 2, 0xffff),
            (1, 8, 8, 1, 0x468),
            (0, 32, 0, 3, u64::MAX - 2),
        ] {
            assert_eq!(Register::new(&structure(space, bits, bit, access, address)), None, "{space} {address:#x}");
        }
    }
}
