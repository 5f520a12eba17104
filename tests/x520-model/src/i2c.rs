//! I2CCTL: the two wires to the SFP+ module, which the driver and the module drive (data sheet 8.2.3.1.5).

use crate::diagnostic::Diagnostic;
use crate::model::Model;
use crate::registers::Reg;
use crate::sfp::Module;
use crate::two_wire::{CLOCK_IN, CLOCK_OUT, DATA_IN, DATA_OUT, Trouble};

/// Shortest time that the clock may be low, and high, in microseconds: 4.7 and 4.0 (SFF-8431, 4.2: 100 kHz). The model's
/// clock has whole microseconds, so a fraction may be missing.
const LOW: u64 = 4;
const HIGH: u64 = 3;

impl Model {
    pub(crate) fn write_i2cctl(&mut self, value: u32) {
        self.driven.value = value;
        self.update_wires();
    }

    /// Puts a module into the cage, or takes it out.
    pub fn set_module(&mut self, module: Option<Module>) {
        self.module = module;
        self.sequence.clear();
        self.restart_link();
        self.tell_module();
    }

    /// The module holds the data wire down until it has seen nine clocks, as after a transfer that was broken off.
    pub fn stick_module(&mut self) {
        self.two_wire.stick();
    }

    pub(crate) fn update_wires(&mut self) {
        let value = self.driven.value;
        let was = self.get(Reg::I2cctl, 0) & CLOCK_IN != 0;
        let clock = value & CLOCK_OUT != 0 && self.now >= self.driven.held;
        if clock != was {
            let lasted = self.now - self.driven.changed;
            if lasted < if was { HIGH } else { LOW } {
                self.report(Diagnostic::ModuleClockTooFast { high: was, microseconds: lasted });
            }
            self.driven.changed = self.now;
        }
        let trouble = Trouble { silent: self.faults.module_silent, bad_byte: self.faults.module_bad_byte };
        self.two_wire.drive(clock, value & DATA_OUT != 0, self.module.as_ref(), trouble);
        if self.two_wire.byte_ended && self.faults.module_slow != 0 {
            self.driven.held = self.now.saturating_add(self.faults.module_slow);
        }
        let mut wires = value & (CLOCK_OUT | DATA_OUT);
        if clock {
            wires |= CLOCK_IN;
        }
        // Both sides can pull it down.
        if value & DATA_OUT != 0 && self.two_wire.lets_go() {
            wires |= DATA_IN;
        }
        self.set(Reg::I2cctl, 0, wires);
    }
}

#[cfg(test)]
mod tests {
    use crate::diagnostic::Diagnostic;
    use crate::model::Model;
    use crate::registers::Reg;
    use crate::sfp::Module;
    use crate::testing::model;
    use crate::two_wire::{CLOCK_IN, CLOCK_OUT, DATA_IN, DATA_OUT};

    fn wires(m: &mut Model, clock: bool, data: bool) -> bool {
        let value = if clock { CLOCK_OUT } else { 0 } | if data { DATA_OUT } else { 0 };
        m.advance(5);
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

    /// Reads a byte at address 0xa0. `None`: somebody did not acknowledge.
    fn read(m: &mut Model, at: u8) -> Option<u8> {
        start(m);
        let answered = put(m, 0xa0) && put(m, at);
        start(m);
        let byte = (answered && put(m, 0xa1)).then(|| get(m, false));
        stop(m);
        byte
    }

    #[test]
    fn every_module_says_what_it_is_with_a_checksum() {
        for module in Module::all() {
            let (mut m, _) = model();
            m.set_module(Some(module));
            let bytes: Vec<u8> = (0..96).map(|at| read(&mut m, at).expect("an answer")).collect();
            let sum = |part: &[u8]| part.iter().fold(0u8, |a, b| a.wrapping_add(*b));
            assert_eq!((bytes[63], bytes[95]), (sum(&bytes[..63]), sum(&bytes[64..95])), "{}", module.name);
            assert_eq!(m.take_diagnostics(), []);
        }
    }

    #[test]
    fn nobody_answers_in_an_empty_cage_and_a_silent_module_does_not_either() {
        let (mut m, _) = model();
        m.faults.module_silent = true;
        assert_eq!(read(&mut m, 0), None);
        m.faults.module_silent = false;
        assert_eq!(read(&mut m, 0), Some(3));
        m.set_module(None);
        assert_eq!(read(&mut m, 0), None);
    }

    #[test]
    fn a_slow_module_holds_the_clock_after_each_byte() {
        let (mut m, _) = model();
        m.faults.module_slow = 300;
        start(&mut m);
        (0..8).for_each(|i| {
            bit(&mut m, 0xa0 << i & 0x80 != 0);
        });
        assert!(!bit(&mut m, true), "acknowledged");
        wires(&mut m, true, true);
        assert_eq!(m.read(Reg::I2cctl.offset(0)) & CLOCK_IN, 0);
        m.advance(300);
        assert_eq!(m.read(Reg::I2cctl.offset(0)) & CLOCK_IN, CLOCK_IN);
    }

    #[test]
    fn nine_clocks_free_a_data_wire_that_is_held() {
        let (mut m, _) = model();
        m.stick_module();
        assert!(!wires(&mut m, true, true), "held down");
        (0..9).for_each(|_| {
            bit(&mut m, true);
        });
        stop(&mut m);
        assert_eq!(read(&mut m, 0), Some(3));
    }

    #[test]
    fn a_clock_above_100_khz_is_told() {
        let (mut m, _) = model();
        let wire = |m: &mut Model, value| m.write(Reg::I2cctl.offset(0), value);
        wire(&mut m, DATA_OUT);
        m.advance(2);
        wire(&mut m, DATA_OUT | CLOCK_OUT);
        assert_eq!(m.take_diagnostics(), [Diagnostic::ModuleClockTooFast { high: false, microseconds: 2 }]);
    }
}
