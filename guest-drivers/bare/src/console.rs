//! Lines on COM1 (16550; PC16550D data sheet 8.0), by polling.

use core::fmt::{self, Write};

use crate::cpu;

/// The first of the console's eight ports.
pub const COM1: u16 = 0x3f8;
const LSR: u16 = COM1 + 5;
const DATA_READY: u8 = 1;
const THR_EMPTY: u8 = 1 << 5;

struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            while cpu::in8(LSR) & THR_EMPTY == 0 {}
            cpu::out8(COM1, byte);
        }
        Ok(())
    }
}

/// The next byte that was typed, if there is one.
pub fn typed() -> Option<u8> {
    (cpu::in8(LSR) & DATA_READY != 0).then(|| cpu::in8(COM1))
}

/// Writes a line.
pub fn line(text: fmt::Arguments<'_>) {
    // This console never fails.
    let _ = Console.write_fmt(text);
    let _ = Console.write_str("\r\n");
}
