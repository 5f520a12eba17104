//! The count of attempts in one byte of the CMOS memory, for machines on which nothing else outlives a reset.
//!
//! The byte is the operator's choice: there is no byte that is free on every machine. What it holds may be another's, so it has a check.
//!
//! | bits | what |
//! |---|---|
//! | 0, 1 | the attempts, 0 to 3 |
//! | 2 to 4 | the first three bits of the SHA-256 of `sidecore.toml` |
//! | 5 to 7 | a check of the others. Neither 0 nor 0xFF passes it |
//!
//! Three bits cannot tell all files from each other: one of eight files that are changed seems to be the same.

use core::ops::RangeInclusive;

use crate::attempts::LIMIT;

/// The bytes that may be named. Before them are the clock's registers (0 to 0xD), what the BIOS of a PC keeps under a checksum (0x10 to
/// 0x2F), and sizes of memory and the century (0x30 to 0x32). Behind them is another pair of ports.
pub const BYTES: RangeInclusive<u8> = 0x33..=0x7f;

/// The byte for so many attempts of a configuration. `config`: its SHA-256. More than [`LIMIT`] attempts and one count as that.
#[must_use]
pub fn byte(attempts: u32, config: &[u8; 32]) -> u8 {
    let attempts = attempts.min(LIMIT.saturating_add(1)) as u8;
    let value = file(config) << 2 | attempts;
    check(value) << 5 | value
}

/// The attempts of a configuration that a byte has: none if it is another file's. `None`: it is no such byte.
#[must_use]
pub fn attempts(byte: u8, config: &[u8; 32]) -> Option<u32> {
    let value = byte & 0x1f;
    (byte >> 5 == check(value)).then(|| if value >> 2 == file(config) { u32::from(value & 3) } else { 0 })
}

fn file(config: &[u8; 32]) -> u8 {
    config[0] >> 5
}

fn check(value: u8) -> u8 {
    (value ^ value >> 3 ^ 0b101) & 0b111
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_read_back_for_its_own_file_only() {
        for first in 0..=u8::MAX {
            let (config, other) = ([first; 32], [first ^ 0x80; 32]);
            for count in 0..=LIMIT + 1 {
                let byte = byte(count, &config);
                assert_eq!(attempts(byte, &config), Some(count));
                assert_eq!(attempts(byte, &other), Some(0));
            }
            assert_eq!(byte(u32::MAX, &config), byte(LIMIT + 1, &config));
        }
    }

    #[test]
    fn what_others_keep_there_is_mostly_refused_and_what_an_empty_battery_leaves_always() {
        let config = [0; 32];
        assert_eq!((0..=u8::MAX).filter(|&byte| attempts(byte, &config).is_some()).count(), 32);
        assert_eq!([0, 0xff].map(|byte| attempts(byte, &config)), [None, None]);
        // Nor is a byte of ours with one bit changed another one of ours.
        for (byte, bit) in (0..=u8::MAX).flat_map(|byte| (0..8).map(move |bit| (byte, bit))) {
            let changed = attempts(byte ^ 1 << bit, &config);
            assert!(attempts(byte, &config).is_none() || changed.is_none(), "{byte:#x}, bit {bit}");
        }
    }
}
