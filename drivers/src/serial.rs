//! The 16550 UARTs behind COM1 (people) and COM2 (programs).

#![allow(unsafe_code, reason = "names a UART by its port number")]

use uart_16550::{BaudRate, Config, Uart16550, backend::PioBackend, spec::registers::LSR};

/// A UART that is there.
pub struct Serial {
    uart: Uart16550<PioBackend>,
}

impl Serial {
    /// Sets up the UART at `base` for 115,200 baud, 8 data bits, no parity. `None`: nothing answers there.
    ///
    /// # Safety
    /// The ports from `base` to `base + 7` are a 16550 or nothing, and nobody else uses them.
    #[must_use]
    pub unsafe fn open(base: u16) -> Option<Self> {
        // SAFETY: the caller owns the ports.
        let mut uart = unsafe { Uart16550::new_port(base) }.ok()?;
        // The crate's default is 9,600 baud.
        uart.init(Config { baud_rate: BaudRate::Baud115200, ..Config::default() }).ok()?;
        Some(Self { uart })
    }

    /// Waits for room, and sends one byte.
    pub fn send(&mut self, byte: u8) {
        self.uart.send_bytes_exact(&[byte]);
    }

    /// Waits until all bytes have left the UART, its shift register too. Gives up after at least 100 ms, if the UART is
    /// stuck.
    pub fn flush(&mut self) {
        // A full FIFO takes 1.4 ms at 115,200 baud; a read of the port takes well over 100 ns.
        for _ in 0..1_000_000 {
            if self.uart.lsr().contains(LSR::TRANSMITTER_EMPTY) {
                return;
            }
        }
    }

    /// Returns a received byte, if there is one.
    pub fn receive(&mut self) -> Option<u8> {
        self.uart.try_receive_byte().ok()
    }
}
