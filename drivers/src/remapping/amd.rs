//! AMD's remapping units (AMD I/O Virtualization Technology Specification, 48882 revision 3.08, chapter 3.4: registers).
//!
//! The order is: interrupts of the unit off, commands off, logs off, and the unit itself off last, as other systems do it. While the commands and
//! logs stop, the unit's tables still count.

use super::{Ended, NoAnswer, Parts, Registers, wait};

/// Control (3.4.3).
const CONTROL: u64 = 0x18;
/// Status (3.4.19).
const STATUS: u64 = 0x2020;

/// In [`CONTROL`]: IommuEn.
const ENABLE: u64 = 1 << 0;
/// EventLogEn, PPRLogEn, GALogEn.
const EVENT_LOG: u64 = 1 << 2;
const REQUEST_LOG: u64 = 1 << 13;
const GUEST_LOG: u64 = 1 << 28;
/// EventIntEn, ComWaitIntEn, PPRIntEn, GAIntEn.
const EVENT_INTERRUPT: u64 = 1 << 3;
const WAIT_INTERRUPT: u64 = 1 << 4;
const REQUEST_INTERRUPT: u64 = 1 << 14;
const GUEST_INTERRUPT: u64 = 1 << 29;
/// CmdBufEn.
const COMMANDS: u64 = 1 << 12;

const INTERRUPTS: u64 = EVENT_INTERRUPT | WAIT_INTERRUPT | REQUEST_INTERRUPT | GUEST_INTERRUPT;
const LOGS: u64 = EVENT_LOG | REQUEST_LOG | GUEST_LOG;

/// In [`STATUS`]: EventOverflow, EventLogInt.
const EVENTS: u64 = 0b11;
/// EventLogRun, CmdBufRun, PPRLogRun, GALogRun.
const EVENT_LOG_RUNS: u64 = 1 << 3;
const COMMANDS_RUN: u64 = 1 << 4;
const REQUEST_LOG_RUNS: u64 = 1 << 7;
const GUEST_LOG_RUNS: u64 = 1 << 8;
const LOGS_RUN: u64 = EVENT_LOG_RUNS | REQUEST_LOG_RUNS | GUEST_LOG_RUNS;
/// Bits that are cleared by writing 1: EventOverflow, EventLogInt, ComWaitInt, PPROverflow, PPRInt, GALOverflow, GAInt.
const TO_CLEAR: u64 = 0b111 | 0b11 << 5 | 0b11 << 9;

/// Bytes of a unit's registers that are used here.
pub const BYTES: u64 = 0x4000;

/// Switches a unit off.
///
/// # Errors
/// Nothing answers at its address.
pub fn switch_off(unit: &mut impl Registers) -> Result<Ended, NoAnswer> {
    let control = unit.read64(CONTROL);
    if control == u64::MAX {
        return Err(NoAnswer);
    }
    let mut ended = Ended { was: Parts::empty(), left: Parts::empty(), had_refused: unit.read64(STATUS) & EVENTS != 0 };
    if control & INTERRUPTS != 0 {
        unit.write64(CONTROL, control & !INTERRUPTS);
    }
    stop(unit, &mut ended, COMMANDS, COMMANDS_RUN, Parts::COMMANDS);
    stop(unit, &mut ended, LOGS, LOGS_RUN, Parts::LOG);
    // The manual has no status bit for it. It is off when the register reads so.
    if unit.read64(CONTROL) & ENABLE != 0 {
        ended.was |= Parts::TRANSLATION;
        clear(unit, ENABLE);
        if !wait(unit, |unit| unit.read64(CONTROL) & ENABLE == 0) {
            ended.left |= Parts::TRANSLATION;
        }
    }
    unit.write64(STATUS, TO_CLEAR);
    Ok(ended)
}

/// Clears bits of the control register.
fn clear(unit: &mut impl Registers, bits: u64) {
    let control = unit.read64(CONTROL);
    unit.write64(CONTROL, control & !bits);
}

/// Clears bits of the control register, if one of them is set, and waits until the status no longer says that they run.
fn stop(unit: &mut impl Registers, ended: &mut Ended, bits: u64, running: u64, part: Parts) {
    if unit.read64(CONTROL) & bits == 0 && unit.read64(STATUS) & running == 0 {
        return;
    }
    ended.was |= part;
    clear(unit, bits);
    if !wait(unit, |unit| unit.read64(STATUS) & running == 0) {
        ended.left |= part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remapping::PATIENCE;
    use crate::remapping::model::amd::Unit;

    /// How long [`switch_off`] takes at most, in microseconds.
    const LONGEST: u64 = PATIENCE * 3;

    const ALL: Parts = Parts::TRANSLATION.union(Parts::COMMANDS).union(Parts::LOG);

    #[test]
    fn queues_stop_before_the_unit_goes_off() {
        let mut unit = Unit::new(ALL);
        let ended = switch_off(&mut unit).unwrap();
        assert_eq!(ended, Ended { was: ALL, left: Parts::empty(), had_refused: false });
        assert_eq!((unit.on(), &unit.mistakes), (Parts::empty(), &Vec::new()));
        assert_eq!(unit.control() & INTERRUPTS, 0);
        // What is neither a queue nor the unit itself is as it was.
        assert_eq!(unit.control(), Unit::OTHER_BITS);
    }

    #[test]
    fn each_combination_is_found_and_ends_off() {
        for on in (0..=Parts::all().bits()).map(Parts::from_bits_truncate).filter(|on| ALL.contains(*on)) {
            let mut unit = Unit::new(on);
            assert_eq!(switch_off(&mut unit), Ok(Ended { was: on, left: Parts::empty(), had_refused: false }));
            assert_eq!((unit.on(), &unit.mistakes), (Parts::empty(), &Vec::new()), "{on:?}");
        }
    }

    #[test]
    fn a_part_that_stays_on_is_named_and_the_others_go_off() {
        for stuck in ALL.iter() {
            let mut unit = Unit::new(ALL);
            unit.stuck = stuck;
            let ended = switch_off(&mut unit).unwrap();
            assert_eq!((ended.was, ended.left), (ALL, stuck));
            assert_eq!(unit.on(), stuck);
            assert!(unit.now < LONGEST * 2, "it took {} us", unit.now);
        }
    }

    #[test]
    fn logged_events_are_told_and_cleared() {
        let mut unit = Unit::new(ALL);
        unit.log_event();
        assert!(switch_off(&mut unit).unwrap().had_refused);
        assert_eq!(unit.status() & EVENTS, 0);
    }

    #[test]
    fn nothing_is_written_where_no_unit_answers() {
        let mut unit = Unit::new(Parts::empty());
        unit.absent = true;
        assert_eq!(switch_off(&mut unit), Err(NoAnswer));
        assert_eq!(unit.writes, 0);
    }
}
