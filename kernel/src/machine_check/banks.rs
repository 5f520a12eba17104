//! The banks of a core: its registers, and what is read from them without a machine check. Nothing here knows
//! of other cores.

#![allow(unsafe_code, reason = "the banks are model-specific registers")]

use super::told::{self, Kind, Told};
use core::sync::atomic::{AtomicU64, Ordering};
use mca::{Error, Register, Setup, Severity, Status, at};
use spin::Once;
use x86_64::registers::{
    control::{Cr4, Cr4Flags},
    model_specific::Msr,
};

/// `None`: the CPU has no machine checks.
static SETUP: Once<Option<Setup>> = Once::new();
pub(super) static CORRECTED: AtomicU64 = AtomicU64::new(0);
pub(super) static DEFERRED: AtomicU64 = AtomicU64::new(0);
pub(super) static LEFT: AtomicU64 = AtomicU64::new(0);

pub(super) fn read(msr: u32) -> u64 {
    // SAFETY: the callers name registers that this CPU's capabilities promise. Reading them has no effect.
    unsafe { Msr::new(msr).read() }
}

pub(super) fn write(msr: u32, value: u64) {
    // SAFETY: as in `read`. The registers control only the reporting of errors.
    unsafe { Msr::new(msr).write(value) };
}

pub(super) fn setup() -> Option<&'static Setup> {
    SETUP.get()?.as_ref()
}

/// Switches machine checks on, on this core, whose number is `core`. Until then one would shut the core down without a word. Errors that the
/// firmware has left are told, and cleared.
pub fn start(core: usize) {
    let Some(setup) = SETUP.call_once(|| Setup::find(crate::arch::cpuid::words, read)) else { return };
    for bank in setup.banks() {
        let error = read_bank(setup, bank);
        if error.status.valid() {
            LEFT.fetch_add(1, Ordering::Relaxed);
            told::tell(&Told { core, error, kind: Kind::LeftByFirmware });
        }
    }
    for mca::Write { msr, bits, keeps } in setup.switch_on() {
        let kept = if keeps { read(msr) } else { 0 };
        write(msr, kept | bits);
    }
    // SAFETY: the handler and its stack are there. The bit has no other effect.
    unsafe { Cr4::update(|f| f.insert(Cr4Flags::MACHINE_CHECK_EXCEPTION)) };
}

fn read_bank(setup: &Setup, bank: u8) -> Error {
    let status = Status::from_bits(read(at(bank, Register::Status)));
    let valid = |valid, register| if valid { read(at(bank, register)) } else { 0 };
    let address = valid(status.valid() && status.address_valid(), Register::Address);
    let further = valid(status.valid() && status.further_valid(), Register::Further);
    Error { bank, status, location: setup.model.location(status, address, further) }
}

/// Reads the banks of this core, whose number is `core`. Counts and tells errors that did not cause a machine check, and clears them. It takes a few
/// thousand cycles.
pub fn poll(core: usize) {
    let Some(setup) = setup() else { return };
    for bank in setup.banks() {
        let error = read_bank(setup, bank);
        if !mca::when_polled(error.status, &setup.model) {
            continue;
        }
        write(at(bank, Register::Status), 0);
        if mca::severity(error.status, &setup.model) == Some(Severity::Corrected) {
            CORRECTED.fetch_add(setup.model.corrected(error.status), Ordering::Relaxed);
        } else {
            DEFERRED.fetch_add(1, Ordering::Relaxed);
            told::tell(&Told { core, error, kind: Kind::Withhold });
        }
    }
}
