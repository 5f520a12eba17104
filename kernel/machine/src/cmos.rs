//! The CMOS clock: the registers of an MC146818 with the time of day, read-only.
//!
//! Follows Motorola's data sheet of the MC146818A. Firmware reads the time of day here. The FADT says that there is no such
//! clock, because it has no alarm and no interrupt. EDK2 reads it all the same. If its ports read as all ones, an update
//! seems to be under way for ever, and EDK2 waits 0.1 s for its end at each reading: 10,000 times five exits.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::layout::{CMOS_DATA, CMOS_INDEX};

/// Bits of the index port that name a register. Bit 7 masks NMIs on a PC.
const INDEX: u8 = 0x7f;
/// Register A: the divider runs at 32,768 Hz, 1,024 ticks a second. No update is ever under way.
const REGISTER_A: u8 = 0x26;
/// Register B: BCD, 24 hours, no interrupts.
const REGISTER_B: u8 = 0x02;
/// Register D: memory and time are valid.
const REGISTER_D: u8 = 0x80;
const NANOS: u64 = 1_000_000_000;

/// The clock of a machine. It keeps only the index of a register: the time is the host's.
#[derive(Debug, Default)]
pub struct Cmos {
    index: AtomicU8,
}

impl Cmos {
    /// Makes the clock.
    #[must_use]
    pub const fn new() -> Self {
        Self { index: AtomicU8::new(0) }
    }

    /// Handles IN of one byte. `wall` is the time of day in nanoseconds since 1970, UTC. The index port reads as the index.
    /// Returns `None` if the access is not the clock's.
    #[must_use]
    pub fn read(&self, port: u16, size: u8, wall: impl FnOnce() -> u64) -> Option<u8> {
        match (port, size) {
            (CMOS_INDEX, 1) => Some(self.index.load(Relaxed)),
            (CMOS_DATA, 1) => Some(register(self.index.load(Relaxed) & INDEX, wall() / NANOS)),
            _ => None,
        }
    }

    /// Handles OUT of one byte. A write of the data port is dropped: the guest cannot set the clock. Returns false if the
    /// access is not the clock's.
    pub fn write(&self, port: u16, size: u8, value: u8) -> bool {
        match (port, size) {
            (CMOS_INDEX, 1) => self.index.store(value, Relaxed),
            (CMOS_DATA, 1) => {}
            _ => return false,
        }
        true
    }
}

/// Returns a register at this second since 1970. The alarms, register C and the RAM read as 0.
fn register(index: u8, seconds: u64) -> u8 {
    let days = seconds / 86_400;
    let (year, month, day) = date(days);
    match index {
        0x00 => bcd(seconds % 60),
        0x02 => bcd(seconds / 60 % 60),
        0x04 => bcd(seconds / 3600 % 24),
        // 1 is Sunday. 1970 began with a Thursday.
        0x06 => bcd((days.saturating_add(4) % 7).saturating_add(1)),
        0x07 => bcd(day),
        0x08 => bcd(month),
        0x09 => bcd(year % 100),
        0x0a => REGISTER_A,
        0x0b => REGISTER_B,
        0x0d => REGISTER_D,
        // The century, at the place that firmware of PCs uses.
        0x32 => bcd(year / 100),
        _ => 0,
    }
}

/// Returns a number below 100 in BCD.
fn bcd(number: u64) -> u8 {
    let number = (number % 100) as u8;
    ((number / 10) << 4) | (number % 10)
}

/// Returns year, month and day of the Gregorian calendar, so many days after 1970-01-01.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "days are seconds / 86,400, so no sum passes 2^64, and no difference is negative; held by the_ends_of_time_have_a_date"
)]
fn date(days: u64) -> (u64, u64, u64) {
    // Years begin in March here, so that the leap day is the last day of a year. 719,468 days lie between the first of
    // March of the year 0 and 1970-01-01, and 146,097 in 400 years.
    let days = days.saturating_add(719_468);
    let (cycle, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (number, this) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (cycle * 400 + year + this, number, day - (153 * month + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(cmos: &Cmos, index: u8, seconds: u64) -> Option<u8> {
        assert!(cmos.write(CMOS_INDEX, 1, index));
        cmos.read(CMOS_DATA, 1, || seconds * NANOS + NANOS / 2)
    }

    #[test]
    fn the_ends_of_time_have_a_date() {
        assert_eq!(date(0), (1970, 1, 1));
        // All days of a cycle of 400 years, and the last second that the clock can be given.
        let last = u64::MAX / 86_400;
        for days in (0..146_097).chain(last - 146_097..=last) {
            let (_, month, day) = date(days);
            assert!((1..=12).contains(&month) && (1..=31).contains(&day), "{days}");
        }
    }

    #[test]
    fn it_shows_the_time_of_day_in_bcd() {
        // 2024-02-29 23:58:59, a Thursday. Bit 7 of the index is not part of it.
        let (cmos, seconds) = (Cmos::new(), 1_709_251_139);
        let shown = [0x80, 2, 4, 6, 7, 8, 9, 0x32].map(|index| read(&cmos, index, seconds).unwrap());
        assert_eq!(shown, [0x59, 0x58, 0x23, 0x05, 0x29, 0x02, 0x24, 0x20]);
    }

    #[test]
    fn every_day_of_four_centuries_follows_the_one_before() {
        let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
        let length = |y, m| match m {
            2 if leap(y) => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        let mut expected = (1970, 1, 1);
        for days in 0..146_097 {
            assert_eq!(date(days), expected);
            let (year, month, day) = expected;
            expected = match (month, day) {
                (12, 31) => (year + 1, 1, 1),
                (m, d) if d == length(year, m) => (year, m + 1, 1),
                (m, d) => (year, m, d + 1),
            };
        }
        let _ = (date(u64::MAX), register(0x32, u64::MAX));
    }

    #[test]
    fn its_time_is_valid_no_update_is_under_way_and_it_cannot_be_set() {
        let cmos = Cmos::new();
        for register in [4, 0x0a, 0x0b, 0x0d] {
            let before = read(&cmos, register, 0);
            assert!(cmos.write(CMOS_DATA, 1, 0xff));
            assert_eq!(read(&cmos, register, 0), before);
        }
        assert_eq!(read(&cmos, 0x0a, 0).map(|a| a & 0x80), Some(0));
        assert_eq!(read(&cmos, 0x0d, 0).map(|d| d & 0x80), Some(0x80));
    }

    #[test]
    fn only_bytes_at_its_two_ports_are_its_own() {
        let cmos = Cmos::new();
        assert!(!cmos.write(CMOS_INDEX, 2, 0) && !cmos.write(CMOS_DATA + 1, 1, 0));
        assert_eq!(cmos.read(CMOS_INDEX, 4, || 0), None);
        assert_eq!(cmos.read(CMOS_INDEX - 1, 1, || 0), None);
        assert!(cmos.write(CMOS_INDEX, 1, 0x8d));
        assert_eq!(cmos.read(CMOS_INDEX, 1, || 0), Some(0x8d));
    }
}
