//! Log pages: SMART / health information and error information (NVMe Base 2.0, 5.16.1.2, 5.16.1.3).

use core::fmt;

use crate::command::Code;
use crate::identify::{byte, field};

/// Bytes of the SMART / health log page.
pub(crate) const HEALTH_BYTES: u32 = 512;
/// Bytes of an entry of the error information log page.
pub(crate) const ERROR_BYTES: u32 = 64;

/// SMART / health information. Counters that need more than 64 bits saturate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// Critical warnings, a bit for each.
    pub warnings: Warnings,
    /// Composite temperature in Kelvin. 0: not told.
    pub kelvin: u16,
    /// Spare capacity that is left, in percent.
    pub spare: u8,
    /// The controller warns if the spare is below that.
    pub spare_threshold: u8,
    /// Estimate of the life used, in percent; may be above 100.
    pub used: u8,
    /// Bytes read, in units of 512,000.
    pub read: u64,
    /// Bytes written, in units of 512,000.
    pub written: u64,
    /// Power cycles.
    pub power_cycles: u64,
    /// Hours of operation.
    pub hours: u64,
    /// Times that power was lost without a shutdown notification.
    pub unsafe_shutdowns: u64,
    /// Errors of the medium or of data integrity.
    pub media_errors: u64,
    /// Entries of the error log over the controller's life.
    pub error_entries: u64,
}

impl Health {
    pub(crate) fn parse(data: &[u8]) -> Self {
        let wide = |at| u64::try_from(u128::from_le_bytes(field(data, at))).unwrap_or(u64::MAX);
        Self {
            warnings: Warnings(byte(data, 0)),
            kelvin: u16::from_le_bytes(field(data, 1)),
            spare: byte(data, 3),
            spare_threshold: byte(data, 4),
            used: byte(data, 5),
            read: wide(32),
            written: wide(48),
            power_cycles: wide(112),
            hours: wide(128),
            unsafe_shutdowns: wide(144),
            media_errors: wide(160),
            error_entries: wide(176),
        }
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.warnings.0 == 0 {
            f.write_str("healthy")?;
        } else {
            write!(f, "WARNING: {}", self.warnings)?;
        }
        write!(f, ", {} % of its life used, {} % spare", self.used, self.spare)?;
        if self.kelvin != 0 {
            write!(f, ", {} degrees C", i32::from(self.kelvin).saturating_sub(273))?;
        }
        write!(
            f,
            ", {} hours, {} unsafe shutdowns, {} media errors",
            self.hours, self.unsafe_shutdowns, self.media_errors
        )
    }
}

/// The byte Critical Warning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warnings(pub u8);

impl fmt::Display for Warnings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 8] = [
            "the spare is below its threshold",
            "temperature out of its limits",
            "reliability degraded",
            "the medium is read-only",
            "the backup of volatile memory has failed",
            "persistent memory is read-only or unreliable",
            "reserved warning 6",
            "reserved warning 7",
        ];
        let mut first = true;
        for (_, name) in NAMES.iter().enumerate().filter(|(bit, _)| self.0 >> bit & 1 != 0) {
            write!(f, "{}{name}", if first { "" } else { ", " })?;
            first = false;
        }
        if first { f.write_str("none") } else { Ok(()) }
    }
}

/// The newest entry of the error log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorEntry {
    /// Number of the error over the controller's life, from 1 on.
    pub count: u64,
    /// Submission queue of the command.
    pub queue: u16,
    /// Status of the command.
    pub status: Code,
    /// First block that failed.
    pub block: u64,
    /// Namespace.
    pub namespace: u32,
}

impl ErrorEntry {
    /// `None`: the log has no entry.
    pub(crate) fn parse(data: &[u8]) -> Option<Self> {
        let count = u64::from_le_bytes(field(data, 0));
        let entry = Self {
            count,
            queue: u16::from_le_bytes(field(data, 8)),
            status: Code(u16::from_le_bytes(field(data, 12)) >> 1),
            block: u64::from_le_bytes(field(data, 16)),
            namespace: u32::from_le_bytes(field(data, 24)),
        };
        (count != 0).then_some(entry)
    }
}

impl fmt::Display for ErrorEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, queue, status, block, namespace } = self;
        write!(f, "error {count}: {status}, namespace {namespace}, block {block}, queue {queue}")
    }
}

#[cfg(test)]
mod tests {
    use super::{ErrorEntry, Health, Warnings};
    use std::string::ToString;

    #[test]
    fn health_is_one_line() {
        let mut data = [0; 512];
        (data[1], data[2], data[3], data[4], data[5]) = (0x43, 0x01, 100, 10, 3);
        data[128] = 12;
        data[144..160].fill(0xff);
        let health = Health::parse(&data);
        assert_eq!(health.unsafe_shutdowns, u64::MAX);
        data[144..160].fill(0);
        assert_eq!(
            Health::parse(&data).to_string(),
            "healthy, 3 % of its life used, 100 % spare, 50 degrees C, 12 hours, 0 unsafe shutdowns, 0 media errors"
        );
        data[0] = 0b101;
        let warned = Health::parse(&data).to_string();
        assert!(warned.starts_with("WARNING: the spare is below its threshold, reliability degraded, 3 %"), "{warned}");
        assert_eq!(Warnings(0).to_string(), "none");
    }

    #[test]
    fn an_error_entry_without_a_number_is_none() {
        let mut data = [0; 64];
        assert_eq!(ErrorEntry::parse(&data), None);
        (data[0], data[8], data[12], data[13], data[16], data[24]) = (1, 2, 0x02, 0x05, 7, 1);
        let entry = ErrorEntry::parse(&data).unwrap();
        assert_eq!(entry.to_string(), "error 1: type 0x2 code 0x81, namespace 1, block 7, queue 2");
    }
}
