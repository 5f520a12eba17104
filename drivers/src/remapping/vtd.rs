//! Intel's remapping units (Intel Virtualization Technology for Directed I/O, revision 4.1, chapter 11.4: registers; 6.5.2: the
//! invalidation queue; 7.3: faults).
//!
//! The order is: fault interrupts masked, interrupt remapping off, translation off, protected memory open, the log and the invalidation queue
//! off, recorded faults cleared. Each command is one bit, and the next one waits until the status has followed (11.4.4).

use super::{Ended, NoAnswer, Parts, Registers, wait};

/// Version (11.4.1).
const VER: u64 = 0x00;
/// Capabilities (11.4.2).
const CAP: u64 = 0x08;
/// Global command (11.4.4), and global status (11.4.5), which has the same bits.
const GCMD: u64 = 0x18;
const GSTS: u64 = 0x1c;
/// Fault status (11.4.9).
const FSTS: u64 = 0x34;
/// Fault event control (11.4.10).
const FECTL: u64 = 0x38;
/// Protected memory enable (11.4.16).
const PMEN: u64 = 0x64;
/// Head and tail of the invalidation queue (11.4.21, 11.4.22).
const IQH: u64 = 0x80;
const IQT: u64 = 0x88;

/// In [`GCMD`] and [`GSTS`]: translation.
const TE: u32 = 1 << 31;
/// The advanced fault log.
const EAFL: u32 = 1 << 28;
/// The invalidation queue.
const QIE: u32 = 1 << 26;
/// Interrupt remapping.
const IRE: u32 = 1 << 25;
/// Interrupts of the compatibility format.
const CFI: u32 = 1 << 23;
/// The bits that a command repeats, so that they stay. The others are commands of one moment.
const LASTING: u32 = TE | EAFL | QIE | IRE | CFI;

/// In [`CAP`]: there are a low and a high protected memory region.
const PLMR: u64 = 1 << 5;
const PHMR: u64 = 1 << 6;
/// In [`PMEN`]: enable, and its status.
const EPM: u32 = 1 << 31;
const PRS: u32 = 1 << 0;
/// In [`FECTL`]: no interrupt at a fault.
const IM: u32 = 1 << 31;
/// In [`FSTS`]: bits that are cleared by writing 1. PPF (bit 1) follows the recorded faults.
const FAULTS: u32 = 0x7d;
/// In [`FSTS`]: faults are recorded, or were more than there is room for.
const REFUSED: u32 = 0b11;
/// In the upper half of a recorded fault: there is one. It is cleared by writing 1 (11.4.14).
const F: u64 = 1 << 63;
/// Bytes of a recorded fault.
const RECORD: u64 = 16;

/// Bytes of registers that every unit has.
pub const LEAST_BYTES: u64 = 4096;
/// Most bytes of registers that [`bytes`] returns.
pub const MOST_BYTES: u64 = 32 << 10;

/// First offset of the recorded faults (FRO), and their number (NFR).
const fn records(capabilities: u64) -> (u64, u64) {
    let (first, last) = (capabilities >> 24 & 0x3ff, capabilities >> 40 & 0xff);
    (first.saturating_mul(RECORD), last.saturating_add(1))
}

/// Returns the bytes that a unit's registers take, a multiple of 4096, by the value of its capability register at
/// [`CAPABILITIES`].
#[must_use]
pub const fn bytes(capabilities: u64) -> u64 {
    let (first, count) = records(capabilities);
    // At most 0x3ff0 + 256 * 16.
    first.saturating_add(count.saturating_mul(RECORD)).next_multiple_of(4096)
}

/// The offset of the capability register.
pub const CAPABILITIES: u64 = CAP;

/// Switches a unit off.
///
/// # Errors
/// Nothing answers at its address.
pub fn switch_off(unit: &mut impl Registers) -> Result<Ended, NoAnswer> {
    let (version, capabilities) = (unit.read32(VER), unit.read64(CAP));
    if matches!(version, 0 | u32::MAX) || capabilities == u64::MAX {
        return Err(NoAnswer);
    }
    let fault_control = unit.read32(FECTL);
    unit.write32(FECTL, fault_control | IM);

    let mut ended = Ended { was: Parts::empty(), left: Parts::empty(), had_refused: false };
    command(unit, &mut ended, IRE, Parts::INTERRUPTS);
    command(unit, &mut ended, TE, Parts::TRANSLATION);
    if capabilities & (PLMR | PHMR) != 0 {
        open_memory(unit, &mut ended);
    }
    command(unit, &mut ended, EAFL, Parts::LOG);
    if unit.read32(GSTS) & QIE != 0 {
        // The unit still carries out what is in the queue. If it has stopped at an error, it never empties the queue: it goes off then too.
        // QEMU's unit keeps a queue on whose last descriptor is no wait. Then the report says so. Nobody adds to it, so it does nothing.
        wait(unit, |unit| unit.read64(IQH) == unit.read64(IQT) || unit.read32(FSTS) & (0b111 << 4) != 0);
    }
    command(unit, &mut ended, QIE, Parts::COMMANDS);
    ended.had_refused = clear_faults(unit, capabilities);
    Ok(ended)
}

/// Clears one lasting bit of the command register, if it is set, and waits for the status.
fn command(unit: &mut impl Registers, ended: &mut Ended, bit: u32, part: Parts) {
    let status = unit.read32(GSTS);
    if status & bit == 0 {
        return;
    }
    ended.was |= part;
    unit.write32(GCMD, status & LASTING & !bit);
    if !wait(unit, |unit| unit.read32(GSTS) & bit == 0) {
        ended.left |= part;
    }
}

/// Opens the protected memory regions.
fn open_memory(unit: &mut impl Registers, ended: &mut Ended) {
    let enable = unit.read32(PMEN);
    if enable & (EPM | PRS) == 0 {
        return;
    }
    ended.was |= Parts::PROTECTED_MEMORY;
    unit.write32(PMEN, enable & !EPM);
    if !wait(unit, |unit| unit.read32(PMEN) & PRS == 0) {
        ended.left |= Parts::PROTECTED_MEMORY;
    }
}

/// Clears the recorded faults and the fault status. Returns whether an access was refused.
fn clear_faults(unit: &mut impl Registers, capabilities: u64) -> bool {
    let refused = unit.read32(FSTS) & REFUSED != 0;
    let (first, count) = records(capabilities);
    for record in 0..count {
        let upper = first.saturating_add(record.saturating_mul(RECORD)).saturating_add(8);
        let value = unit.read64(upper);
        if value & F != 0 {
            unit.write64(upper, F);
        }
    }
    unit.write32(FSTS, FAULTS);
    refused
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remapping::PATIENCE;
    use crate::remapping::model::vtd::Unit;

    /// How long [`switch_off`] takes at most, in microseconds: one time limit a part, and one for the queue.
    const LONGEST: u64 = PATIENCE * 6;

    /// All parts that a unit of Intel's has.
    const ALL: Parts = Parts::all();

    #[test]
    fn what_is_on_goes_off_in_the_order_that_the_manual_demands() {
        let mut unit = Unit::new(ALL);
        let ended = switch_off(&mut unit).unwrap();
        assert_eq!(ended, Ended { was: ALL, left: Parts::empty(), had_refused: false });
        assert_eq!(unit.mistakes, Vec::<String>::new());
        assert_eq!(unit.on(), Parts::empty());
        assert_eq!(
            unit.went_off,
            [Parts::INTERRUPTS, Parts::TRANSLATION, Parts::PROTECTED_MEMORY, Parts::LOG, Parts::COMMANDS]
        );
        assert!(unit.masks_fault_interrupts());
    }

    #[test]
    fn each_combination_is_found_and_ends_off() {
        for on in 0..=Parts::all().bits() {
            let on = Parts::from_bits_truncate(on);
            let mut unit = Unit::new(on);
            assert_eq!(switch_off(&mut unit), Ok(Ended { was: on, left: Parts::empty(), had_refused: false }));
            assert_eq!((unit.on(), &unit.mistakes), (Parts::empty(), &Vec::new()), "{on:?}");
        }
    }

    #[test]
    fn a_part_that_stays_on_is_named_and_the_others_go_off() {
        for stuck in Parts::all().iter() {
            let mut unit = Unit::new(ALL);
            unit.stuck = stuck;
            let ended = switch_off(&mut unit).unwrap();
            assert_eq!((ended.was, ended.left, unit.on()), (ALL, stuck, stuck));
            assert!(unit.now < LONGEST * 2, "it took {} us", unit.now);
        }
    }

    #[test]
    fn a_queue_that_has_stopped_at_an_error_goes_off_without_being_waited_for() {
        let mut unit = Unit::new(Parts::COMMANDS);
        unit.queue_error = true;
        let ended = switch_off(&mut unit).unwrap();
        assert_eq!((ended.left, unit.on()), (Parts::empty(), Parts::empty()));
        assert!(unit.now < PATIENCE / 2, "it took {} us", unit.now);
        // One that neither empties nor says why.
        let mut unit = Unit::new(Parts::COMMANDS);
        unit.queue_hangs = true;
        assert_eq!(switch_off(&mut unit).unwrap().left, Parts::empty());
        assert!((PATIENCE..LONGEST).contains(&unit.now));
    }

    #[test]
    fn recorded_faults_are_cleared_and_told() {
        let mut unit = Unit::new(Parts::TRANSLATION);
        unit.record_fault(2);
        let ended = switch_off(&mut unit).unwrap();
        assert!(ended.had_refused);
        assert_eq!((unit.faults(), &unit.mistakes), (0, &Vec::new()));
    }

    #[test]
    fn without_protected_regions_their_register_is_not_touched() {
        let mut unit = Unit::new(Parts::TRANSLATION);
        unit.capabilities &= !(PLMR | PHMR);
        switch_off(&mut unit).unwrap();
        assert!(!unit.touched.contains(&PMEN));
    }

    #[test]
    fn nothing_is_written_where_no_unit_answers() {
        for value in [0, u64::MAX] {
            let mut unit = Unit::new(Parts::empty());
            unit.absent = Some(value);
            assert_eq!(switch_off(&mut unit), Err(NoAnswer));
            assert_eq!(unit.writes, 0);
        }
    }

    #[test]
    fn the_registers_reach_to_the_last_recorded_fault() {
        // QEMU: one record at 0x220. Servers of Intel's: 8 at 0x400; 256 at the highest offset.
        assert_eq!(bytes(0x22 << 24), 4096);
        assert_eq!(bytes(7 << 40 | 0x40 << 24), 4096);
        assert_eq!(bytes(7 << 40 | 0x100 << 24), 8192);
        assert_eq!(bytes(u64::MAX), 0x5000);
        assert!(bytes(u64::MAX) <= MOST_BYTES);
    }
}
