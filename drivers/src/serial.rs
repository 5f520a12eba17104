//! The 16550 UARTs behind the consoles of people and of programs. Nothing here waits.

#![allow(unsafe_code, reason = "names a UART by its port number")]

use uart_16550::{BaudRate, Config, Uart16550, backend::PioBackend, spec::registers::LSR};
use x86_64::instructions::port::Port;

/// Rate in baud with the divisor 1.
const FASTEST: u32 = 115_200;

/// A UART that is there.
pub struct Serial {
    uart: Uart16550<PioBackend>,
    port: u16,
    rate: u32,
    overruns: u64,
}

impl Serial {
    /// Sets up the UART at `port` for 8 data bits and no parity. `rate`: in baud; `None`: as the firmware has left it, or 115,200
    /// if that makes no sense. Returns `None` if nothing answers there, or no divisor makes this rate.
    ///
    /// # Safety
    /// The ports from `port` to `port + 7` are a 16550 or nothing, and nobody else uses them.
    #[must_use]
    pub unsafe fn open(port: u16, rate: Option<u32>) -> Option<Self> {
        // SAFETY: the caller owns the ports.
        let mut uart = unsafe { Uart16550::new_port(port) }.ok()?;
        let rate = rate.unwrap_or_else(|| {
            let (low, high) = uart.dll_dlm();
            rate_of(u16::from_le_bytes([low, high]))
        });
        uart.init(Config { baud_rate: BaudRate::from_integer(rate), ..Config::default() }).ok()?;
        // `init` has reset the receive FIFO. QEMU stops taking input when that is full, and takes more only after a read of the receiver
        // buffer register, which `init` leaves out when the FIFO is empty.
        // SAFETY: the caller owns the ports. The register has a byte from before the reset, or none.
        let _ = unsafe { Port::<u8>::new(port).read() };
        Some(Self { uart, port, rate, overruns: 0 })
    }

    /// Its first I/O port.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Its rate in baud.
    pub const fn rate(&self) -> u32 {
        self.rate
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

/// The rate of a divisor that the firmware has left.
fn rate_of(divisor: u16) -> u32 {
    let divisor = u32::from(divisor);
    FASTEST.checked_div(divisor).filter(|_| FASTEST.is_multiple_of(divisor)).unwrap_or(FASTEST)
}

#[cfg(test)]
mod tests {
    use super::rate_of;

    #[test]
    fn a_divisor_that_makes_no_sense_is_1() {
        assert_eq!([1, 2, 12].map(rate_of), [115_200, 57_600, 9_600]);
        assert_eq!([0, 7, 0xffff].map(rate_of), [115_200; 3]);
    }
}
