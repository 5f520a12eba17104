//! The watchdog of HPE's management controllers (iLO 2 and later), by which firmware's Automatic Server Recovery (ASR)
//! resets the machine: reads whether it runs, and stops it.
//!
//! HPE has published no data sheet. What is here is what Linux's driver hpwdt knows: the second base address register of
//! the controller's function names memory with two registers of the watchdog.
//!
//! | offset | bits | |
//! |---|---|---|
//! | 0x70 | 16 | ticks of 128 ms that are left; writing feeds it |
//! | 0x72 | 8 | bit 0: it runs |

use crate::watchdog::{Became, NoAnswer};

/// The base address register of the function whose memory has the watchdog's registers.
pub const BAR: u8 = 1;
/// Bytes of that memory that are used.
pub const BYTES: u64 = 0x80;

const TIMER: u16 = 0x70;
const CONTROL: u16 = 0x72;
/// Control.
const RUNS: u8 = 1 << 0;
/// Milliseconds of a tick.
const TICK: u64 = 128;

/// Whether a PCI function is such a controller's. `subsystem`: vendor and device of its board.
#[must_use]
pub fn is_ilo(id: (u16, u16), subsystem: (u16, u16)) -> bool {
    const HP: u16 = 0x103c;
    const HP_3PAR: u16 = 0x1590;
    // An auxiliary controller, and one of a storage node, have no watchdog.
    let has_none = matches!(subsystem, (HP, 0x1979) | (HP_3PAR, 0x0289));
    matches!(id, (0x0e11, 0xb203) | (HP, 0x3306) | (HP_3PAR, 0x0389))
        && matches!(subsystem.0, HP | HP_3PAR)
        && !(has_none && id == (HP, 0x3306))
}

/// The memory of the function.
pub trait Registers {
    /// Reads 8 bits.
    fn read8(&mut self, offset: u16) -> u8;
    /// Reads 16 bits.
    fn read16(&mut self, offset: u16) -> u16;
    /// Writes 8 bits.
    fn write8(&mut self, offset: u16, value: u8);
}

/// Stops the watchdog if it runs.
///
/// # Errors
/// Nothing answers.
pub fn stop(registers: &mut impl Registers) -> Result<Became, NoAnswer> {
    let control = registers.read8(CONTROL);
    if control == u8::MAX {
        return Err(NoAnswer);
    }
    if control & RUNS == 0 {
        return Ok(Became::Off);
    }
    let left = Some(u64::from(registers.read16(TIMER)).saturating_mul(TICK) / 1000);
    registers.write8(CONTROL, control & !RUNS);
    let runs = registers.read8(CONTROL) & RUNS != 0;
    Ok(if runs { Became::Runs { left } } else { Became::Stopped { left } })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Model {
        control: u8,
        timer: u16,
        stubborn: bool,
        writes: usize,
    }

    impl Registers for Model {
        fn read8(&mut self, offset: u16) -> u8 {
            assert_eq!(offset, CONTROL);
            self.control
        }

        fn read16(&mut self, offset: u16) -> u16 {
            assert_eq!(offset, TIMER);
            self.timer
        }

        fn write8(&mut self, offset: u16, value: u8) {
            assert_eq!(offset, CONTROL, "a write of the timer would feed it");
            self.writes += 1;
            self.control = value | if self.stubborn { RUNS } else { 0 };
        }
    }

    fn after(control: u8, stubborn: bool) -> (Result<Became, NoAnswer>, u8, usize) {
        let mut model = Model { control, timer: 4687, stubborn, writes: 0 };
        (stop(&mut model), model.control, model.writes)
    }

    #[test]
    fn one_that_runs_is_stopped_and_its_other_bits_stay() {
        assert_eq!(after(0x85, false), (Ok(Became::Stopped { left: Some(599) }), 0x84, 1));
        assert_eq!(after(0x85, true), (Ok(Became::Runs { left: Some(599) }), 0x85, 1));
    }

    #[test]
    fn one_that_does_not_run_or_is_not_there_is_not_written_to() {
        assert_eq!(after(0x84, true), (Ok(Became::Off), 0x84, 0));
        assert_eq!(after(0xff, true), (Err(NoAnswer), 0xff, 0));
    }

    #[test]
    fn only_the_controllers_that_have_one_are_touched() {
        let hp = |device| (0x103c, device);
        assert!(is_ilo(hp(0x3306), hp(0x3381)) && is_ilo((0x0e11, 0xb203), hp(0x1717)));
        assert!(is_ilo(hp(0x3306), (0x1590, 0x00e4)));
        assert!(!is_ilo(hp(0x3306), hp(0x1979)) && !is_ilo(hp(0x3306), (0x1590, 0x0289)));
        assert!(!is_ilo(hp(0x3306), (0x8086, 0)) && !is_ilo(hp(0x3307), hp(0x3381)));
    }
}
