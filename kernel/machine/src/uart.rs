//! The guest's COM1: a 16550A with its two 16-byte FIFOs. It is complete enough for Linux's 8250 driver to recognise it
//! and to run it by interrupts.
//!
//! Follows the National Semiconductor PC16550D data sheet, ch. 8. Transfers take no time. A byte is sent when it is
//! written. If fewer bytes wait than the trigger level, the receiver's time-out interrupt comes at once.

use bitflags::bitflags;
use heapless::Deque;

bitflags! {
    /// Interrupt enable register.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Ier: u8 {
        const RECEIVED = 1;
        const TRANSMIT_EMPTY = 2;
        const LINE_STATUS = 4;
        const MODEM_STATUS = 8;
    }

    /// Line status register.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Lsr: u8 {
        const DATA_READY = 0x01;
        const OVERRUN = 0x02;
        const TRANSMIT_HOLDING_EMPTY = 0x20;
        const TRANSMITTER_EMPTY = 0x40;
    }

    /// Modem control register.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Mcr: u8 {
        const DTR = 0x01;
        const RTS = 0x02;
        const OUT1 = 0x04;
        const OUT2 = 0x08;
        const LOOP = 0x10;
    }

    /// Modem status register: four lines, and four bits for their changes since the last read.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Msr: u8 {
        const DELTA_CTS = 0x01;
        const DELTA_DSR = 0x02;
        const TRAILING_RI = 0x04;
        const DELTA_DCD = 0x08;
        const CTS = 0x10;
        const DSR = 0x20;
        const RI = 0x40;
        const DCD = 0x80;
    }
}

impl Msr {
    /// The lines of a terminal that is connected and ready.
    const CONNECTED: Self = Self::CTS.union(Self::DSR).union(Self::DCD);
}

/// Interrupt identification, by priority (table IV of the data sheet).
const LINE_STATUS: u8 = 0x06;
const RECEIVED_DATA: u8 = 0x04;
const CHARACTER_TIMEOUT: u8 = 0x0c;
const TRANSMIT_EMPTY: u8 = 0x02;
const MODEM_STATUS: u8 = 0x00;
const NO_INTERRUPT: u8 = 0x01;

const DLAB: u8 = 0x80;
const FIFO: usize = 16;
/// Most bytes that the host may send before the guest reads them.
const BACKLOG: usize = 256;

/// The interrupt line after an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// Released.
    Low,
    /// Asserted, as before.
    High,
    /// Asserted by this access, with an edge. The line may also have dropped for a moment and risen again.
    Rose,
}

/// A 16550A.
#[derive(Clone, Debug)]
pub struct Uart {
    divisor: [u8; 2],
    ier: Ier,
    lcr: u8,
    mcr: Mcr,
    scratch: u8,
    fifos: bool,
    /// Number of received bytes that raises the interrupt.
    trigger: usize,
    overrun: bool,
    deltas: Msr,
    /// Since the last read of the IIR, the transmitter has become empty or its interrupt was enabled.
    empty_interrupt: bool,
    received: Deque<u8, FIFO>,
    backlog: Deque<u8, BACKLOG>,
    /// The interrupt line after the last access.
    line: bool,
}

impl Default for Uart {
    fn default() -> Self {
        Self::new()
    }
}

impl Uart {
    /// Makes a UART in its state after reset, with a terminal connected.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            divisor: [12, 0],
            ier: Ier::empty(),
            lcr: 0,
            mcr: Mcr::empty(),
            scratch: 0,
            fifos: false,
            trigger: 1,
            overrun: false,
            deltas: Msr::empty(),
            empty_interrupt: false,
            received: Deque::new(),
            backlog: Deque::new(),
            line: false,
        }
    }

    /// Takes a byte for the guest. Returns false if 256 bytes wait already, because the guest does not read. Then try
    /// later.
    pub fn receive(&mut self, byte: u8) -> (bool, Line) {
        let taken = self.backlog.push_back(byte).is_ok();
        self.refill();
        (taken, self.update(false))
    }

    /// Reads a byte from port `offset` (0 to 7).
    pub fn read(&mut self, offset: u16) -> (u8, Line) {
        let value = match (offset & 7, self.lcr & DLAB != 0) {
            (0, true) => self.divisor[0],
            (1, true) => self.divisor[1],
            (0, false) => {
                let byte = self.received.pop_front().unwrap_or(0);
                self.refill();
                byte
            }
            (1, false) => self.ier.bits(),
            (2, _) => {
                let iir = self.identify();
                if iir == TRANSMIT_EMPTY {
                    self.empty_interrupt = false;
                }
                iir | if self.fifos { 0xc0 } else { 0 }
            }
            (3, _) => self.lcr,
            (4, _) => self.mcr.bits(),
            (5, _) => {
                let mut lsr = Lsr::TRANSMIT_HOLDING_EMPTY | Lsr::TRANSMITTER_EMPTY;
                lsr.set(Lsr::DATA_READY, !self.received.is_empty());
                lsr.set(Lsr::OVERRUN, core::mem::take(&mut self.overrun));
                lsr.bits()
            }
            (6, _) => {
                let msr = self.modem_lines() | core::mem::replace(&mut self.deltas, Msr::empty());
                msr.bits()
            }
            _ => self.scratch,
        };
        (value, self.update(false))
    }

    /// Writes a byte to port `offset` (0 to 7). `transmit` takes a byte that the guest transmits.
    pub fn write(&mut self, offset: u16, value: u8, transmit: impl FnOnce(u8)) -> Line {
        let mut dropped = false;
        match (offset & 7, self.lcr & DLAB != 0) {
            (0, true) => self.divisor[0] = value,
            (1, true) => self.divisor[1] = value,
            (0, false) => {
                if self.mcr.contains(Mcr::LOOP) {
                    self.loop_back(value);
                } else {
                    transmit(value);
                }
                // The transmitter is full for a moment, then empty again. If only this holds the line, the line drops
                // and rises.
                dropped = self.line && self.identify() == TRANSMIT_EMPTY;
                self.empty_interrupt = true;
            }
            (1, false) => {
                let new = Ier::from_bits_truncate(value);
                // Enabling the interrupt while the transmitter is empty raises it.
                self.empty_interrupt |= new.difference(self.ier).contains(Ier::TRANSMIT_EMPTY);
                self.ier = new;
            }
            (2, _) => self.set_fifo_control(value),
            (3, _) => self.lcr = value,
            (4, _) => self.set_modem_control(Mcr::from_bits_truncate(value)),
            (7, _) => self.scratch = value,
            _ => {} // the status registers are read-only
        }
        self.update(dropped)
    }

    fn set_fifo_control(&mut self, value: u8) {
        const ENABLE: u8 = 1;
        const CLEAR_RECEIVER: u8 = 2;
        let enable = value & ENABLE != 0;
        if value & CLEAR_RECEIVER != 0 || enable != self.fifos {
            self.received.clear();
        }
        self.fifos = enable;
        // The other bits matter only if FIFOs are enabled.
        self.trigger = match value >> 6 {
            1 if enable => 4,
            2 if enable => 8,
            3 if enable => 14,
            _ => 1,
        };
        self.refill();
    }

    fn set_modem_control(&mut self, mcr: Mcr) {
        let before = self.modem_lines();
        self.mcr = mcr;
        let after = self.modem_lines();
        let changed = before ^ after;
        self.deltas.set(Msr::DELTA_CTS, self.deltas.contains(Msr::DELTA_CTS) || changed.contains(Msr::CTS));
        self.deltas.set(Msr::DELTA_DSR, self.deltas.contains(Msr::DELTA_DSR) || changed.contains(Msr::DSR));
        self.deltas.set(Msr::DELTA_DCD, self.deltas.contains(Msr::DELTA_DCD) || changed.contains(Msr::DCD));
        let fell = before.difference(after).contains(Msr::RI);
        self.deltas.set(Msr::TRAILING_RI, self.deltas.contains(Msr::TRAILING_RI) || fell);
        self.refill();
    }

    /// Returns the modem's lines. In loop-back they are those of the modem control register, crossed.
    fn modem_lines(&self) -> Msr {
        if !self.mcr.contains(Mcr::LOOP) {
            return Msr::CONNECTED;
        }
        let mut lines = Msr::empty();
        lines.set(Msr::CTS, self.mcr.contains(Mcr::RTS));
        lines.set(Msr::DSR, self.mcr.contains(Mcr::DTR));
        lines.set(Msr::RI, self.mcr.contains(Mcr::OUT1));
        lines.set(Msr::DCD, self.mcr.contains(Mcr::OUT2));
        lines
    }

    fn capacity(&self) -> usize {
        if self.fifos { FIFO } else { 1 }
    }

    /// Receives a byte that was transmitted in loop-back. If the receiver is full, it overruns: with FIFOs the new byte
    /// is lost, without them the old one.
    fn loop_back(&mut self, byte: u8) {
        if self.received.len() >= self.capacity() {
            self.overrun = true;
            if self.fifos {
                return;
            }
            self.received.clear();
        }
        let _ = self.received.push_back(byte); // there is room
    }

    /// Moves bytes that the host has sent into the receiver, as many as fit. So they never overrun.
    fn refill(&mut self) {
        while !self.mcr.contains(Mcr::LOOP) && self.received.len() < self.capacity() {
            let Some(byte) = self.backlog.pop_front() else { return };
            let _ = self.received.push_back(byte);
        }
    }

    /// Returns the interrupt of highest priority that is enabled and pending.
    fn identify(&self) -> u8 {
        let enabled = |bit| self.ier.contains(bit);
        if enabled(Ier::LINE_STATUS) && self.overrun {
            LINE_STATUS
        } else if enabled(Ier::RECEIVED) && self.received.len() >= self.trigger {
            RECEIVED_DATA
        } else if enabled(Ier::RECEIVED) && !self.received.is_empty() {
            CHARACTER_TIMEOUT
        } else if enabled(Ier::TRANSMIT_EMPTY) && self.empty_interrupt {
            TRANSMIT_EMPTY
        } else if enabled(Ier::MODEM_STATUS) && !self.deltas.is_empty() {
            MODEM_STATUS
        } else {
            NO_INTERRUPT
        }
    }

    /// Updates the interrupt line. OUT2 connects the interrupt to the PC's line. In loop-back it is never connected.
    fn update(&mut self, dropped: bool) -> Line {
        let connected = self.mcr.contains(Mcr::OUT2) && !self.mcr.contains(Mcr::LOOP);
        let asserted = connected && self.identify() != NO_INTERRUPT;
        let before = core::mem::replace(&mut self.line, asserted);
        match (self.line, before && !dropped) {
            (false, _) => Line::Low,
            (true, true) => Line::High,
            (true, false) => Line::Rose,
        }
    }
}

#[cfg(test)]
mod tests;
