//! The CMOS clock (MC146818A; ACPI 6.5 4.8.2.4 for the century): its time of day, which is read once at boot, and its memory.

#![allow(unsafe_code, reason = "the clock and its memory are two ports")]

use x86_64::instructions::port::Port;

const INDEX: u16 = 0x70;
const DATA: u16 = 0x71;
const STATUS_A: u8 = 0x0a;
const STATUS_B: u8 = 0x0b;
/// Status A: an update is under way.
const UPDATING: u8 = 0x80;
/// Status B: values are binary, not BCD.
const BINARY: u8 = 1 << 2;
/// Status B: hours count to 24.
const HOURS_24: u8 = 1 << 1;

/// Reads a register of the clock or a byte of its memory, 0 to 0x7F. Only the boot core may call it.
pub fn read(register: u8) -> u8 {
    // SAFETY: reading has no effect but on flags of the clock's interrupts, which nobody uses. Bit 7 of the index is 0, so NMIs stay on.
    unsafe {
        Port::new(INDEX).write(register & 0x7f);
        Port::new(DATA).read()
    }
}

/// Writes a byte of the clock's memory. Others are not written. Only the boot core may call it.
pub fn write_memory(place: u8, byte: u8) {
    if !boots::cmos::BYTES.contains(&place) {
        return;
    }
    // SAFETY: the byte is none of the clock's registers and not below the BIOS's checksum. The operator has named it as free. Nothing in
    // this memory changes what a processor or device does while sidecore runs.
    unsafe {
        Port::new(INDEX).write(place);
        Port::new(DATA).write(byte);
    }
}

/// Returns the seconds since 1970, UTC. The clock of a server runs in UTC. Returns `None` if there is no clock, or if
/// its time is not plausible.
pub fn seconds_since_1970() -> Option<u64> {
    let registers = || [0u8, 2, 4, 7, 8, 9].map(read);
    // Takes two equal readings outside an update. A machine without a clock always reads all ones.
    let fields = (0..10_000).find_map(|_| {
        let first = (read(STATUS_A) & UPDATING == 0).then(registers)?;
        (registers() == first).then_some(first)
    })?;
    let status = read(STATUS_B);
    let number =
        |v: u8| u64::from(if status & BINARY != 0 { v } else { (v >> 4).saturating_mul(10).saturating_add(v & 15) });
    let [second, minute, hour, day, month, year] = fields;
    let afternoon = status & HOURS_24 == 0 && hour & 0x80 != 0;
    let mut hour = number(if status & HOURS_24 == 0 { hour & 0x7f } else { hour });
    if status & HOURS_24 == 0 {
        hour = (hour % 12).saturating_add(if afternoon { 12 } else { 0 });
    }
    let [second, minute, day, month] = [second, minute, day, month].map(number);
    let year = number(year).saturating_add(2000);
    let plausible = second < 60 && minute < 60 && hour < 24 && (1..=31).contains(&day) && (1..=12).contains(&month);
    plausible.then(|| {
        let hours = days(year, month, day).saturating_mul(24).saturating_add(hour);
        hours.saturating_mul(60).saturating_add(minute).saturating_mul(60).saturating_add(second)
    })
}

/// Returns the days from 1970-01-01 to a date of the Gregorian calendar.
fn days(year: u64, month: u64, day: u64) -> u64 {
    // Years begin in March here, so that the leap day is the last day of a year.
    let y = if month <= 2 { year.saturating_sub(1) } else { year };
    let m = month.saturating_add(9) % 12;
    let before = [y.saturating_mul(365), y / 4, y / 400, m.saturating_mul(306).saturating_add(5) / 10, day];
    before.into_iter().fold(0, u64::saturating_add).saturating_sub(y / 100).saturating_sub(1 + 719_468)
}
