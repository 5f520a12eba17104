//! Where the interface to a management controller (BMC) is, as SMBIOS's type 38 ([`crate::smbios`]) and ACPI's SPMI
//! ([`crate::acpi::spmi`]) say it (IPMI 2.0, appendix C1 and C3).

use core::fmt;

/// Interface types, the same numbers in both tables.
const KCS: u8 = 1;

/// An interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// A keyboard controller style interface at I/O ports.
    Kcs {
        /// The port of data.
        data: u16,
        /// The port of status and commands.
        status: u16,
    },
    /// One at a physical address.
    KcsInMemory(u64),
    /// An interface of another type.
    Type(u8),
}

impl Interface {
    /// An interface of a type, at ports or at a physical address, with so many bytes from one register to the next.
    /// `None`: its ports cannot be any.
    pub(crate) fn new(kind: u8, in_memory: bool, address: u64, spacing: u16) -> Option<Self> {
        match kind {
            KCS if in_memory => Some(Self::KcsInMemory(address)),
            KCS => {
                let data = u16::try_from(address).ok().filter(|port| *port >= 0x100)?;
                Some(Self::Kcs { data, status: data.checked_add(spacing)? })
            }
            other => Some(Self::Type(other)),
        }
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kcs { data, .. } => write!(f, "KCS at port {data:#x}"),
            Self::KcsInMemory(at) => write!(f, "KCS in memory at {at:#x}"),
            Self::Type(2) => f.write_str("SMIC"),
            Self::Type(3) => f.write_str("BT"),
            Self::Type(4) => f.write_str("SSIF, behind an SMBus"),
            Self::Type(other) => write!(f, "an interface of type {other}"),
        }
    }
}
