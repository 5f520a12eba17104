//! The watchdog of AMD's chipsets (FCH) from family 17h on: reads whether it runs, and stops it (AMD's "Processor
//! Programming Reference" of these families, chapter "FCH": PMx00 and PMx04, WDT registers).
//!
//! | register | where | |
//! |---|---|---|
//! | PMx00 | 0xfed8_0300 | bit 7: the watchdog's registers are there, and it may run. Bits 25:24: its unit. Bits 27:26: it is off |
//! | PMx04 | 0xfed8_0304 | bit 1: the chipset's registers are at 0xfed8_0000, the watchdog's at 0xb00 from there |
//! | WatchdogControl | 0xfeb0_0000 | bit 0: it runs. Bit 3: it is off |
//! | WatchdogCount | 0xfeb0_0004 | reading: units that are left |
//!
//! Chipsets before have their PM registers behind ports 0xcd6 and 0xcd7. Their processors have no x2APIC mode, without
//! which sidecore does not start.

use crate::watchdog::{Became, NoAnswer};

/// The SMBus controller of the chipset, and the revision from which on its PM registers are in memory.
const SMBUS: (u16, u16) = (0x1022, 0x790b);
const FIRST_REVISION: u8 = 0x51;

/// The chipset's PM registers.
pub const PM: u64 = 0xfed8_0300;
/// The watchdog's registers.
pub const WATCHDOG: u64 = 0xfeb0_0000;
/// Where they are too, if the chipset's registers are in memory.
pub const WATCHDOG_TOO: u64 = 0xfed8_0b00;

/// PMx00.
const ENABLED: u32 = 1 << 7;
const OFF: u32 = 0b11 << 26;
/// PMx04.
const IN_MEMORY: u32 = 1 << 1;
/// WatchdogControl. Writing 1 to FIRED clears it. TRIGGER feeds the watchdog.
const RUNS: u32 = 1 << 0;
const FIRED: u32 = 1 << 1;
const DISABLED: u32 = 1 << 3;
const TRIGGER: u32 = 1 << 7;
/// WatchdogCount has 16 bits.
const COUNT: u32 = 0xffff;

/// Whether a PCI function is the SMBus controller of a chipset with such a watchdog.
#[must_use]
pub fn is_smbus(vendor: u16, device: u16, revision: u8) -> bool {
    (vendor, device) == SMBUS && revision >= FIRST_REVISION
}

/// Registers of 32 bits at the physical addresses above, and 4 and 8 bytes behind them.
pub trait Registers {
    /// Reads a register. What is not there reads as all ones.
    fn read(&mut self, address: u64) -> u32;
    /// Writes a register of the watchdog.
    fn write(&mut self, address: u64, value: u32);
}

/// Stops the watchdog if it runs.
///
/// # Errors
/// The chipset, or its watchdog, does not answer.
pub fn stop(registers: &mut impl Registers) -> Result<Became, NoAnswer> {
    let enabled = registers.read(PM);
    if enabled == u32::MAX {
        return Err(NoAnswer);
    }
    if enabled & ENABLED == 0 || enabled & OFF != 0 {
        return Ok(Became::Off);
    }
    let mut places =
        [Some(WATCHDOG), (registers.read(PM + 4) & IN_MEMORY != 0).then_some(WATCHDOG_TOO)].into_iter().flatten();
    let at = places.find(|at| registers.read(*at) != u32::MAX).ok_or(NoAnswer)?;
    let control = registers.read(at);
    if control & RUNS == 0 || control & DISABLED != 0 {
        return Ok(Became::Off);
    }
    let count = u64::from(registers.read(at.saturating_add(4)) & COUNT);
    let micros = match enabled >> 24 & 3 {
        0 => 31,
        1 => 10_000,
        2 => 100_000,
        _ => 1_000_000,
    };
    let left = Some(count.saturating_mul(micros) / 1_000_000);
    registers.write(at, control & !(RUNS | FIRED | TRIGGER));
    let runs = registers.read(at) & RUNS != 0;
    Ok(if runs { Became::Runs { left } } else { Became::Stopped { left } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone)]
    struct Model {
        pm: [u32; 2],
        control: u32,
        count: u32,
        /// The watchdog answers at [`WATCHDOG`].
        answers: bool,
        stubborn: bool,
        fed: bool,
        fired_cleared: bool,
    }

    impl Model {
        fn new(control: u32) -> Self {
            Self {
                pm: [ENABLED | 3 << 24, IN_MEMORY],
                control,
                count: 60,
                answers: true,
                stubborn: false,
                fed: false,
                fired_cleared: false,
            }
        }
    }

    impl Registers for Model {
        fn read(&mut self, address: u64) -> u32 {
            match address {
                PM => self.pm[0],
                0xfed8_0304 => self.pm[1],
                WATCHDOG | 0xfeb0_0004 if !self.answers => u32::MAX,
                WATCHDOG | WATCHDOG_TOO => self.control,
                0xfeb0_0004 | 0xfed8_0b04 => self.count,
                _ => panic!("a read of {address:#x}"),
            }
        }

        fn write(&mut self, address: u64, value: u32) {
            assert!(matches!(address, WATCHDOG | WATCHDOG_TOO), "a write of {address:#x}");
            self.fed |= value & TRIGGER != 0;
            self.fired_cleared |= value & FIRED != 0;
            let runs = if self.stubborn { RUNS } else { value & RUNS };
            self.control = self.control & FIRED | value & !(TRIGGER | FIRED | RUNS) | runs;
        }
    }

    #[test]
    fn one_that_runs_is_stopped_and_what_it_was_set_to_stays() {
        for answers in [true, false] {
            let mut model = Model { answers, ..Model::new(RUNS | FIRED | 1 << 2) };
            assert_eq!(stop(&mut model), Ok(Became::Stopped { left: Some(60) }), "{answers}");
            assert_eq!((model.control, model.fed, model.fired_cleared), (FIRED | 1 << 2, false, false));
            assert_eq!(stop(&mut model), Ok(Became::Off));
        }
        let mut model = Model { stubborn: true, ..Model::new(RUNS) };
        assert_eq!(stop(&mut model), Ok(Became::Runs { left: Some(60) }));
    }

    #[test]
    fn the_count_is_told_in_seconds_whatever_its_unit_is() {
        for (unit, count, seconds) in [(0, 0xffff, 2), (1, 6000, 60), (2, 650, 65), (3, 0xabcd_0010, 16)] {
            let mut model = Model { count, ..Model::new(RUNS) };
            model.pm[0] = ENABLED | unit << 24;
            assert_eq!(stop(&mut model), Ok(Became::Stopped { left: Some(seconds) }), "{unit}");
        }
    }

    #[test]
    fn one_that_is_off_is_not_written_to() {
        let off = |pm, control| Model { pm: [pm, IN_MEMORY], stubborn: true, ..Model::new(control) };
        for mut model in [off(0, RUNS), off(ENABLED | 1 << 26, RUNS), off(ENABLED, 0), off(ENABLED, RUNS | DISABLED)] {
            let before = model.control;
            assert_eq!(stop(&mut model), Ok(Became::Off));
            assert_eq!(model.control, before);
        }
    }

    #[test]
    fn where_nothing_answers_nothing_is_written() {
        let mut model = Model { pm: [u32::MAX; 2], ..Model::new(RUNS) };
        assert_eq!(stop(&mut model), Err(NoAnswer));
        let mut model = Model { pm: [ENABLED, 0], answers: false, ..Model::new(RUNS) };
        assert_eq!(stop(&mut model), Err(NoAnswer));
        assert_eq!(model.control, RUNS);
    }

    #[test]
    fn only_the_chipset_that_is_known_is_touched() {
        assert!(is_smbus(0x1022, 0x790b, 0x51) && is_smbus(0x1022, 0x790b, 0x71));
        assert!(!is_smbus(0x1022, 0x790b, 0x50) && !is_smbus(0x1002, 0x790b, 0x51) && !is_smbus(0x1022, 0x780b, 0x51));
    }
}
