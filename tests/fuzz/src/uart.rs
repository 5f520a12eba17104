//! The guest's COM1, against a model that is written here from the PC16550D data sheet, ch. 8, with transfers that take no time:
//! what is read, what is transmitted, and the interrupt line.

use std::collections::VecDeque;

use machine::uart::{Line, Uart};

use crate::input::Input;
use crate::planted::planted;

const MOST_STEPS: usize = 300;
/// Bytes that the host may send before the guest reads them.
const BACKLOG: usize = 256;

#[derive(Default)]
struct Model {
    divisor: [u8; 2],
    ier: u8,
    lcr: u8,
    mcr: u8,
    scratch: u8,
    fifo_control: u8,
    overrun: bool,
    deltas: u8,
    transmitter_empty: bool,
    receiver: VecDeque<u8>,
    waiting: VecDeque<u8>,
    line: bool,
}

impl Model {
    fn loops(&self) -> bool {
        self.mcr & 0x10 != 0
    }

    fn fifos(&self) -> bool {
        self.fifo_control & 1 != 0
    }

    fn room(&self) -> usize {
        if self.fifos() { 16 } else { 1 }
    }

    fn fill(&mut self) {
        while !self.loops() && self.receiver.len() < self.room() {
            let Some(byte) = self.waiting.pop_front() else { break };
            self.receiver.push_back(byte);
        }
    }

    /// CTS, DSR, RI and DCD. In loop-back they are RTS, DTR, OUT1 and OUT2 (8.6.6).
    fn modem(&self) -> u8 {
        if !self.loops() {
            return 0xb0;
        }
        let bit = |from: u8, to: u8| if self.mcr & from != 0 { to } else { 0 };
        bit(2, 0x10) | bit(1, 0x20) | bit(4, 0x40) | bit(8, 0x80)
    }

    /// Table IV.
    fn identify(&self) -> u8 {
        let trigger = if self.fifos() { [1, 4, 8, 14][usize::from(self.fifo_control >> 6)] } else { 1 };
        let causes = [
            (4, self.overrun, 0x06),
            (1, self.receiver.len() >= trigger, 0x04),
            (1, !self.receiver.is_empty(), 0x0c),
            (2, self.transmitter_empty, 0x02),
            (8, self.deltas != 0, 0x00),
        ];
        causes.iter().find(|(enable, pending, _)| self.ier & enable != 0 && *pending).map_or(1, |(_, _, id)| *id)
    }

    fn update(&mut self, dropped: bool) -> Line {
        let before = self.line && !dropped;
        self.line = self.mcr & 8 != 0 && !self.loops() && self.identify() != 1;
        match (self.line, before) {
            (false, _) => Line::Low,
            (true, true) => Line::High,
            (true, false) => Line::Rose,
        }
    }

    fn read(&mut self, offset: u16) -> (u8, Line) {
        let value = match (offset, self.lcr >> 7) {
            (0 | 1, 1) => self.divisor[usize::from(offset)],
            (0, _) => {
                let byte = self.receiver.pop_front().unwrap_or(0);
                self.fill();
                byte
            }
            (1, _) => self.ier,
            (2, _) => {
                let id = self.identify();
                if id == 2 {
                    self.transmitter_empty = false;
                }
                id | if self.fifos() { 0xc0 } else { 0 }
            }
            (3, _) => self.lcr,
            (4, _) => self.mcr,
            (5, _) => 0x60 | u8::from(!self.receiver.is_empty()) | u8::from(std::mem::take(&mut self.overrun)) << 1,
            (6, _) => self.modem() | std::mem::take(&mut self.deltas),
            _ => self.scratch,
        };
        (value, self.update(false))
    }

    fn write(&mut self, offset: u16, value: u8, transmitted: &mut Vec<u8>) -> Line {
        let mut dropped = false;
        match (offset, self.lcr >> 7) {
            (0 | 1, 1) => self.divisor[usize::from(offset)] = value,
            (0, _) => {
                if !self.loops() {
                    transmitted.push(value);
                } else if self.receiver.len() < self.room() {
                    self.receiver.push_back(value);
                } else {
                    self.overrun = true;
                    // Without FIFOs the byte in the register is lost, with them the new one (8.6.3).
                    if !self.fifos() {
                        self.receiver = [value].into();
                    }
                }
                dropped = self.line && self.identify() == 2;
                self.transmitter_empty = true;
            }
            (1, _) => {
                self.transmitter_empty |= value & !self.ier & 2 != 0;
                self.ier = value & 0xf;
            }
            (2, _) => {
                if value & 2 != 0 || (value ^ self.fifo_control) & 1 != 0 {
                    self.receiver.clear();
                }
                self.fifo_control = value;
                self.fill();
            }
            (3, _) => self.lcr = value,
            (4, _) => {
                let before = self.modem();
                self.mcr = value & 0x1f;
                let changed = before ^ self.modem();
                // RI counts when it falls only.
                self.deltas |= changed >> 4 & 0b1011 | (before & changed) >> 4 & 0b0100;
                self.fill();
            }
            (7, _) => self.scratch = value,
            _ => {}
        }
        self.update(dropped)
    }

    fn receive(&mut self, byte: u8) -> (bool, Line) {
        let taken = self.waiting.len() < BACKLOG;
        if taken {
            self.waiting.push_back(byte);
        }
        self.fill();
        (taken, self.update(false))
    }
}

/// Runs one input.
///
/// # Panics
/// The UART is wrong.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut uart = Uart::new();
    let mut model = Model { divisor: [12, 0], ..Model::default() };
    for _ in 0..MOST_STEPS {
        if input.is_empty() {
            break;
        }
        let kind = input.byte();
        let offset = u16::from(kind >> 3) % 8;
        match kind % 8 {
            0..3 => {
                let mut found = uart.read(offset);
                if planted() {
                    found.0 ^= 0x40;
                }
                assert_eq!(found, model.read(offset), "read of register {offset}");
            }
            3..6 => {
                // The divisor's latch is out of the way most of the time.
                let value = if offset == 3 && input.flag() { 3 } else { input.byte() };
                let (mut sent, mut expected) = (Vec::new(), Vec::new());
                let line = uart.write(offset, value, |byte| sent.push(byte));
                assert_eq!(line, model.write(offset, value, &mut expected), "{value:#x} to register {offset}");
                assert_eq!(sent, expected);
            }
            6 => {
                let byte = input.byte();
                assert_eq!(uart.receive(byte), model.receive(byte));
            }
            _ => {
                for byte in 0..input.byte() {
                    assert_eq!(uart.receive(byte), model.receive(byte));
                }
            }
        }
    }
}

crate::planted::tests!(the_uart_does_what_its_model_does, 512, 0..600);
