//! Text on COM1, as the UART is set.

use core::fmt::{Arguments, Write};
use x86_64::instructions::port::Port;

const DATA: u16 = 0x3f8;
const LINE_STATUS: u16 = 0x3fd;
/// In the line status register: a byte may be written.
const EMPTY: u8 = 1 << 5;

struct Com1;

impl Write for Com1 {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for byte in text.bytes() {
            // SAFETY: COM1's registers.
            unsafe {
                while Port::<u8>::new(LINE_STATUS).read() & EMPTY == 0 {}
                Port::<u8>::new(DATA).write(byte);
            }
        }
        Ok(())
    }
}

/// Writes text.
pub fn print(text: Arguments<'_>) {
    // `write_str` does not fail.
    let _ = Com1.write_fmt(text);
}
