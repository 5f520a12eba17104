//! I2CCTL: the two wires to the SFP+ module, which the driver and the module drive (data sheet 8.2.3.1.5).

use crate::model::Model;
use crate::registers::Reg;

/// I2CCTL: the clock as it is on the wire, as the driver pulls it; data likewise.
const CLOCK_IN: u32 = 1;
const CLOCK_OUT: u32 = 1 << 1;
const DATA_IN: u32 = 1 << 2;
const DATA_OUT: u32 = 1 << 3;

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
