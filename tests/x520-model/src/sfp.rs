//! The SFP+ module in the cage, on the two wires of I2CCTL (data sheet 8.2.3.1.5; SFF-8472; the I2C specification).
//!
//! The driver bit-bangs; the module answers as an EEPROM of 256 bytes at address 0xa0: a start condition, the address, a
//! byte that sets where to read, a repeated start and bytes one after another until one is not acknowledged.

use crate::model::Model;
use crate::registers::Reg;

/// I2CCTL: the clock as it is on the wire, as the driver pulls it; data likewise.
const CLOCK_IN: u32 = 1;
const CLOCK_OUT: u32 = 1 << 1;
const DATA_IN: u32 = 1 << 2;
const DATA_OUT: u32 = 1 << 3;

/// Address on the bus, with the bit for reading.
const ADDRESS: u8 = 0xa0;
const READ: u8 = 1;

/// What happens on the bus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Nothing, or something for others.
    #[default]
    Idle,
    /// The address comes.
    Address,
    /// Where to read or write comes.
    Offset,
    /// Bytes come; they are not kept, as the module cannot be written.
    Write,
    /// Bytes go.
    Read,
}

/// The module's side of the bus.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sfp {
    clock: bool,
    data: bool,
    phase: Phase,
    /// Clock cycles of the byte under way; the ninth is its acknowledgement.
    bits: u8,
    shift: u8,
    offset: u8,
    /// The module lets go of the data wire.
    released: bool,
    /// The last byte that went was acknowledged.
    wanted: bool,
}

impl Default for Sfp {
    fn default() -> Self {
        Self { clock: true, data: true, phase: Phase::Idle, bits: 0, shift: 0, offset: 0, released: true, wanted: true }
    }
}

/// What the module says of itself: 10GBASE-SR, LC, by Intel.
fn contents() -> [u8; 256] {
    let mut c = [0; 256];
    c[..16].copy_from_slice(&[0x03, 0x04, 0x07, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x06, 103, 0, 0, 0]);
    c[16..20].copy_from_slice(&[8, 3, 0, 30]);
    c[20..36].copy_from_slice(b"Intel Corp      ");
    c[37..40].copy_from_slice(&[0x00, 0x1b, 0x21]);
    c[40..56].copy_from_slice(b"MODEL-SR        ");
    c[56..60].copy_from_slice(b"1   ");
    c[60..62].copy_from_slice(&850u16.to_be_bytes());
    c[65] = 0x1a;
    c[68..84].copy_from_slice(b"0               ");
    c[84..92].copy_from_slice(b"260101  ");
    let sum = |part: &[u8]| part.iter().fold(0u8, |a, b| a.wrapping_add(*b));
    c[63] = sum(&c[..63]);
    c[95] = sum(&c[64..95]);
    c
}

impl Sfp {
    /// The wires as the driver drives them now.
    fn drive(&mut self, clock: bool, data: bool) {
        let (was_clock, was_data) = (self.clock, self.data);
        (self.clock, self.data) = (clock, data);
        match (was_clock, clock) {
            // Data that changes while the clock is high is a start or a stop.
            (true, true) if was_data && !data => self.begin(Phase::Address),
            (true, true) if !was_data && data => self.begin(Phase::Idle),
            (false, true) => self.rise(data),
            (true, false) => self.fall(),
            _ => {}
        }
    }

    fn begin(&mut self, phase: Phase) {
        (self.phase, self.bits, self.released) = (phase, 0, true);
    }

    /// The wire is read, by whose turn it is.
    fn rise(&mut self, data: bool) {
        if self.phase == Phase::Idle {
            return;
        }
        if self.bits < 8 && self.phase != Phase::Read {
            self.shift = self.shift << 1 | u8::from(data);
        } else if self.bits == 8 && self.phase == Phase::Read {
            self.wanted = !data;
        }
        self.bits += 1;
    }

    /// The wire may change.
    fn fall(&mut self) {
        match (self.phase, self.bits) {
            (Phase::Idle, _) => {}
            // Its eight bits have come: acknowledged if it is for us.
            (Phase::Read, 8) => self.released = true,
            (Phase::Address, 8) if self.shift & !READ != ADDRESS => self.begin(Phase::Idle),
            (_, 8) => self.released = false,
            (phase, 9) => {
                self.bits = 0;
                self.released = true;
                self.next(phase);
            }
            (Phase::Read, bits) => self.released = self.byte() << bits & 0x80 != 0,
            _ => {}
        }
    }

    /// A byte and its acknowledgement are over.
    fn next(&mut self, phase: Phase) {
        match phase {
            Phase::Address if self.shift & READ != 0 => self.send(),
            Phase::Address => self.phase = Phase::Offset,
            Phase::Offset => (self.offset, self.phase) = (self.shift, Phase::Write),
            Phase::Write => self.offset = self.offset.wrapping_add(1),
            Phase::Read => {
                self.offset = self.offset.wrapping_add(1);
                if self.wanted { self.send() } else { self.begin(Phase::Idle) }
            }
            Phase::Idle => {}
        }
    }

    fn send(&mut self) {
        self.phase = Phase::Read;
        self.released = self.byte() & 0x80 != 0;
    }

    fn byte(&self) -> u8 {
        contents()[usize::from(self.offset)]
    }
}

impl Model {
    pub(crate) fn write_i2cctl(&mut self, value: u32) {
        self.sfp.drive(value & CLOCK_OUT != 0, value & DATA_OUT != 0);
        let mut wires = value & (CLOCK_OUT | DATA_OUT);
        if value & CLOCK_OUT != 0 {
            wires |= CLOCK_IN;
        }
        // Both sides can pull it down.
        if value & DATA_OUT != 0 && self.sfp.released {
            wires |= DATA_IN;
        }
        self.set(Reg::I2cctl, 0, wires);
    }
}

#[cfg(test)]
mod tests {
    use super::{CLOCK_OUT, DATA_IN, DATA_OUT};
    use crate::model::Model;
    use crate::registers::Reg;
    use crate::testing::model;

    fn wires(m: &mut Model, clock: bool, data: bool) -> bool {
        let value = if clock { CLOCK_OUT } else { 0 } | if data { DATA_OUT } else { 0 };
        m.write(Reg::I2cctl.offset(0), value);
        m.read(Reg::I2cctl.offset(0)) & DATA_IN != 0
    }

    fn bit(m: &mut Model, data: bool) -> bool {
        wires(m, false, data);
        let seen = wires(m, true, data);
        wires(m, false, data);
        seen
    }

    fn start(m: &mut Model) {
        for (clock, data) in [(false, true), (true, true), (true, false), (false, false)] {
            wires(m, clock, data);
        }
    }

    fn stop(m: &mut Model) {
        for (clock, data) in [(false, false), (true, false), (true, true)] {
            wires(m, clock, data);
        }
    }

    /// Whether it was acknowledged.
    fn put(m: &mut Model, byte: u8) -> bool {
        (0..8).for_each(|i| {
            bit(m, byte << i & 0x80 != 0);
        });
        !bit(m, true)
    }

    fn get(m: &mut Model, more: bool) -> u8 {
        let byte = (0..8).fold(0, |b, _| b << 1 | u8::from(bit(m, true)));
        bit(m, !more);
        byte
    }

    #[test]
    fn a_byte_is_read_at_an_offset_and_the_next_ones_follow() {
        let (mut m, _) = model();
        for _ in 0..2 {
            start(&mut m);
            assert!(put(&mut m, 0xa0) && put(&mut m, 37));
            start(&mut m);
            assert!(put(&mut m, 0xa1));
            let oui: Vec<u8> = [true, true, false].into_iter().map(|more| get(&mut m, more)).collect();
            stop(&mut m);
            assert_eq!(oui, [0x00, 0x1b, 0x21]);
        }
    }

    #[test]
    fn nobody_answers_at_another_address() {
        let (mut m, _) = model();
        start(&mut m);
        assert!(!put(&mut m, 0xa2));
        stop(&mut m);
        start(&mut m);
        assert!(put(&mut m, 0xa0) && put(&mut m, 0));
        start(&mut m);
        assert!(put(&mut m, 0xa1));
        assert_eq!(get(&mut m, false), 3, "an SFP");
    }
}
