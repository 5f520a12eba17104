//! The 16550 UARTs behind COM1 (people) and COM2 (programs). Nothing here waits.

#![allow(unsafe_code, reason = "names a UART by its port number")]

use uart_16550::{BaudRate, Config, Uart16550, backend::PioBackend, spec::registers::LSR};

/// A UART that is there.
pub struct Serial {
    uart: Uart16550<PioBackend>,
    overruns: u64,
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
        Some(Self { uart, overruns: 0 })
    }

    /// Sends the first of `bytes`, as many as the FIFO takes: 16 if it is empty, otherwise none. Returns how many it took.
    pub fn send(&mut self, bytes: &[u8]) -> usize {
        if self.status().contains(LSR::THR_EMPTY) { self.uart.send_bytes(bytes) } else { 0 }
    }

    /// Whether all bytes have left the UART, its shift register too.
    pub fn is_idle(&mut self) -> bool {
        self.status().contains(LSR::TRANSMITTER_EMPTY)
    }

    /// Returns a received byte, if there is one.
    pub fn receive(&mut self) -> Option<u8> {
        if self.status().contains(LSR::DATA_READY) { self.uart.try_receive_byte().ok() } else { None }
    }

    /// How often the FIFO of received bytes overflowed. Each time at least one byte was lost.
    pub const fn overruns(&self) -> u64 {
        self.overruns
    }

    /// Reads the line status register. The read clears its overrun bit, which is counted here.
    fn status(&mut self) -> LSR {
        let status = self.uart.lsr();
        self.overruns = self.overruns.saturating_add(status.contains(LSR::OVERRUN_ERROR).into());
        status
    }
}
