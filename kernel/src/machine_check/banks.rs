//! The banks of a core: what the CPU has, its registers, and what is read from them without a machine check. Nothing here knows
//! of other cores.

#![allow(unsafe_code, reason = "the banks are model-specific registers")]

use super::told::{self, Kind, Told};
use core::{
    arch::x86_64::__cpuid,
    sync::atomic::{AtomicU64, Ordering},
};
use mca::{Error, GlobalCapabilities, Model, Severity, Status};
use spin::Once;
use x86_64::registers::{
    control::{Cr4, Cr4Flags},
    model_specific::Msr,
};

const FEATURE_CONTROL: u32 = 0x3a;
const MCG_CAP: u32 = 0x179;
pub(super) const MCG_STATUS: u32 = 0x17a;
const MCG_CTL: u32 = 0x17b;
const MCG_EXT_CTL: u32 = 0x4d0;
/// IA32_FEATURE_CONTROL: it is locked, and local machine checks are allowed.
const LOCAL_ALLOWED: u64 = 1 << 20 | 1;

/// Most banks that are used. Those of Intel's and AMD's CPUs have their registers at 0x400 up to here.
pub(super) const MAX_BANKS: u8 = 32;
/// The registers of a bank, by their distance from 0x400.
#[derive(Clone, Copy)]
pub(super) enum Register {
    Control = 0,
    Status = 1,
    Address = 2,
    Further = 3,
}

/// Whether a machine check goes to all cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broadcast {
    /// AMD.
    Never,
    /// Intel, unless the machine check is local.
    Always,
    /// An emulator.
    Perhaps,
}

/// What the CPU has. All cores are alike.
#[derive(Clone, Copy)]
pub(super) struct Setup {
    pub(super) capabilities: GlobalCapabilities,
    pub(super) model: Model,
    pub(super) broadcast: Broadcast,
    /// Machine checks may be local (LMCE).
    pub(super) local: bool,
    /// The first bank whose control register is written. The P6 family's first one belongs to the firmware (SDM vol. 3B
    /// 16.3.2.1).
    first_control: u8,
}

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

pub(super) const fn at(bank: u8, register: Register) -> u32 {
    (bank as u32).saturating_mul(4).saturating_add(register as u32).saturating_add(0x400)
}

impl Setup {
    fn find() -> Option<Self> {
        const MCE: u32 = 1 << 7;
        const MCA: u32 = 1 << 14;
        let cpuid = raw_cpuid::CpuId::new();
        let leaf = __cpuid(1);
        if leaf.edx & MCE == 0 || leaf.edx & MCA == 0 {
            return None;
        }
        let vendor = cpuid.get_vendor_info();
        let vendor = vendor.as_ref().map_or("", |v| v.as_str());
        let amd = matches!(vendor, "AuthenticAMD" | "HygonGenuine");
        let recovery = if __cpuid(0x8000_0000).eax >= 0x8000_0007 { __cpuid(0x8000_0007).ebx } else { 0 };
        let capabilities = GlobalCapabilities::from_bits(read(MCG_CAP));
        let broadcast = match (leaf.ecx >> 31 != 0, amd) {
            (true, _) => Broadcast::Perhaps,
            (false, true) => Broadcast::Never,
            (false, false) => Broadcast::Always,
        };
        let local = capabilities.local() && read(FEATURE_CONTROL) & LOCAL_ALLOWED == LOCAL_ALLOWED;
        let model = leaf.eax >> 4 & 0xf | leaf.eax >> 12 & 0xf0;
        let p6 = !amd && leaf.eax >> 8 & 0xf == 6 && model < 0x1a && leaf.ecx >> 31 == 0;
        Some(Self {
            capabilities,
            model: Model::new(capabilities, amd.then_some(recovery)),
            broadcast,
            local,
            first_control: p6.into(),
        })
    }

    pub(super) fn banks(&self) -> core::ops::Range<u8> {
        0..self.capabilities.banks().min(MAX_BANKS)
    }
}

pub(super) fn setup() -> Option<&'static Setup> {
    SETUP.get()?.as_ref()
}

/// Switches machine checks on, on this core, whose number is `core`. Until then one would shut the core down without a word. Errors that the
/// firmware has left are told, and cleared.
pub fn start(core: usize) {
    let Some(setup) = SETUP.call_once(Setup::find) else { return };
    for bank in setup.banks() {
        let error = read_bank(setup, bank);
        if error.status.valid() {
            LEFT.fetch_add(1, Ordering::Relaxed);
            told::tell(&Told { core, error, kind: Kind::LeftByFirmware });
        }
    }
    if setup.capabilities.control() {
        write(MCG_CTL, u64::MAX);
    }
    for bank in setup.banks() {
        if bank >= setup.first_control {
            write(at(bank, Register::Control), u64::MAX);
        }
        write(at(bank, Register::Status), 0);
    }
    if setup.local {
        write(MCG_EXT_CTL, read(MCG_EXT_CTL) | 1);
    }
    write(MCG_STATUS, 0);
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
