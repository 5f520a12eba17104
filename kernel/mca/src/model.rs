//! What a CPU says about its errors, and where the address of one is.

use crate::{GlobalCapabilities, Status};

/// The page size, in bytes. Memory is withheld in pages.
const PAGE: u64 = 4096;
/// Least significant valid bit of an address, at most. Beyond 2 MiB nobody can say whose memory it is.
const MAX_LSB: u64 = 21;
/// Physical addresses have 52 bits at most. AMD has other fields above.
const ADDRESS: u64 = (1 << 52) - 1;
/// Address mode of a bank's further register: a physical address (SDM vol. 3B 16.3.2.4).
const PHYSICAL: u64 = 2;

/// How a bank's status has to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// With MCG_SER_P: S and AR say what is to be done.
    Recovery,
    /// Without MCG_SER_P, not AMD: nothing says that an uncorrected error is contained.
    Plain,
    /// AMD.
    Amd {
        /// Uncorrected errors are contained, and reported before their data is used (CPUID 8000_0007h EBX bit 1).
        containment: bool,
        /// An overflow does not lose what decides (CPUID 8000_0007h EBX bit 0).
        overflow_recovery: bool,
    },
}

/// What a CPU says about its errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// How the status is read.
    pub format: Format,
    /// The status counts corrected errors.
    pub counts: bool,
}

impl Model {
    /// Makes the model. `amd`: EBX of CPUID leaf 8000_0007h on a CPU of AMD's. What MCG_CAP promises counts first, because
    /// an emulator may promise software recovery with any vendor's name.
    #[must_use]
    pub fn new(capabilities: GlobalCapabilities, amd: Option<u32>) -> Self {
        let format = match amd {
            _ if capabilities.software_recovery() => Format::Recovery,
            Some(ebx) => Format::Amd { containment: ebx >> 1 & 1 != 0, overflow_recovery: ebx & 1 != 0 },
            None => Format::Plain,
        };
        Self { format, counts: capabilities.corrected_count() }
    }

    /// Returns how many corrected errors a status stands for.
    #[must_use]
    pub fn corrected(&self, status: Status) -> u64 {
        if self.counts { u64::from(status.corrected()).max(1) } else { 1 }
    }

    /// Returns the memory in which an error is. `None`: the bank does not say, or says it in another way than by a physical
    /// address.
    #[must_use]
    pub fn location(&self, status: Status, address: u64, further: u64) -> Option<Location> {
        if !status.address_valid() {
            return None;
        }
        let lsb = match self.format {
            Format::Amd { .. } => 0,
            Format::Recovery | Format::Plain => {
                let (mode, lsb) = (further >> 6 & 7, further & 0x3f);
                if !status.further_valid() || mode != PHYSICAL || lsb > MAX_LSB {
                    return None;
                }
                lsb
            }
        };
        let bytes = PAGE.max(1 << lsb);
        let address = address & ADDRESS;
        Some(Location { address, start: address & bytes.wrapping_neg(), bytes })
    }
}

/// Memory in which there is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Physical address, as the bank has it.
    pub address: u64,
    /// First byte that may be damaged. It begins a page.
    pub start: u64,
    /// Bytes that may be damaged: a page or more, a power of two.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: u64 = 0xc << 56; // MISCV, ADDRV

    #[test]
    fn what_the_machine_promises_counts_before_the_vendor() {
        let with = GlobalCapabilities::new().with_software_recovery(true);
        let without = GlobalCapabilities::new().with_corrected_count(true);
        assert_eq!(Model::new(with, Some(3)), Model { format: Format::Recovery, counts: false });
        assert_eq!(Model::new(without, None), Model { format: Format::Plain, counts: true });
        let amd = |containment, overflow_recovery| Format::Amd { containment, overflow_recovery };
        assert_eq!(Model::new(without, Some(1)).format, amd(false, true));
        assert_eq!(Model::new(without, Some(2)).format, amd(true, false));
    }

    #[test]
    fn corrected_errors_are_counted_only_where_the_cpu_does() {
        let status = Status::new().with_corrected(7);
        assert_eq!(Model { format: Format::Plain, counts: true }.corrected(status), 7);
        assert_eq!(Model { format: Format::Plain, counts: true }.corrected(Status::new()), 1);
        assert_eq!(Model { format: Format::Plain, counts: false }.corrected(status), 1);
    }

    #[test]
    fn only_a_physical_address_is_a_location() {
        let model = Model { format: Format::Recovery, counts: false };
        let at = |status, further| model.location(Status::from_bits(status), 0x1234_5678, further);
        assert_eq!(at(VALID, 0x86), Some(Location { address: 0x1234_5678, start: 0x1234_5000, bytes: 0x1000 }));
        assert_eq!(at(VALID, 0x80 | 21), Some(Location { address: 0x1234_5678, start: 0x1220_0000, bytes: 0x20_0000 }));
        assert_eq!(at(VALID, 0x80 | 22), None, "more than 2 MiB");
        assert_eq!(at(VALID, 0x80 | 63), None);
        for mode in [0, 1, 3, 4, 5, 6, 7] {
            assert_eq!(at(VALID, mode << 6 | 6), None, "address mode {mode}");
        }
        assert_eq!(at(8 << 56, 0x86), None, "ADDRV clear");
        assert_eq!(at(4 << 56, 0x86), None, "MISCV clear");
    }

    #[test]
    fn an_address_of_amd_is_physical_and_has_52_bits() {
        let model = Model { format: Format::Amd { containment: true, overflow_recovery: true }, counts: false };
        let at = model.location(Status::from_bits(4 << 56), 0x3f00_0001_2345_6789, 0);
        assert_eq!(at, Some(Location { address: 0x1_2345_6789, start: 0x1_2345_6000, bytes: 0x1000 }));
    }
}
