//! The settings of a machine, and the errors of making one.

extern crate alloc;

use alloc::{string::String, vec::Vec};
use core::fmt;

use memory::{BadAddress, GuestMemory, swap::Shadow};
use spin::Mutex;
use virtio::shared::Shared;

use crate::{
    cpuid::{self, Regs},
    linux,
    pci::TooManyFunctions,
    pvh,
    quirk::Quirks,
    split_lock::SplitLocks,
    splitter::Splitter,
    vcpu::Interrupts,
    virtio_pci::NotifyBar,
};

/// Most vCPUs of a guest. APIC IDs from 255 on need interrupt remapping, which this machine lacks.
pub const MAX_VCPUS: usize = 255;

/// Most bytes of the heap that a machine takes with `config`'s limits of vCPUs and devices. The host test
/// `tests/fuzz/tests/no_memory.rs` finds that half of it is enough without a shadow of the IDT.
pub const MAX_HEAP: usize = 256 << 10;

/// Frequency in Hz of the local APIC timer of a guest with firmware, if the host emulates that timer. EDK2 does not
/// measure the frequency: it is built for this one (PcdFSBClock).
pub const FIRMWARE_TIMER_HZ: u64 = 1_000_000_000;

/// What all guests of this host have in common.
#[derive(Clone, Copy)]
pub struct Platform {
    /// Executes CPUID with EAX (leaf) and ECX (sub-leaf) on the host.
    pub cpuid: fn(u32, u32) -> Regs,
    /// Frequency of the TSC in kHz.
    pub tsc_khz: u64,
    /// The TSC now. The guest's clock begins here.
    pub tsc: u64,
    /// Frequency of the cores' local APIC timers in Hz, before division.
    pub apic_hz: u64,
    /// The host supports TSC-deadline mode for the guest's timer.
    pub tsc_deadline: bool,
    /// The back-end lets RDTSCP and RDPID run in the guest.
    pub rdtscp: bool,
    /// The back-end lets INVPCID run in the guest.
    pub invpcid: bool,
    /// IA32_ARCH_CAPABILITIES as guests see it, if their CPUID has it.
    pub arch_capabilities: u64,
    /// Errors of this processor that need a workaround.
    pub quirks: Quirks,
}

impl Platform {
    /// Frequency in Hz of a guest's local APIC timer, before division.
    pub(super) fn timer_hz(&self, interrupts: Interrupts, firmware: bool) -> u64 {
        match interrupts {
            Interrupts::Emulated | Interrupts::Virtualized if firmware => FIRMWARE_TIMER_HZ,
            Interrupts::Emulated | Interrupts::Virtualized => cpuid::timer_hz(self.tsc_khz),
            Interrupts::Owned => self.apic_hz,
        }
    }
}

/// The settings of a machine.
pub struct Settings<'a> {
    /// The guest's name, for the log.
    pub name: String,
    /// Its memory. It is all zero and begins at address 0.
    pub memory: GuestMemory,
    /// Number of vCPUs, 1 to [`MAX_VCPUS`].
    pub vcpus: usize,
    /// What it starts: a bzImage, or an ELF file with a PVH entry.
    pub kernel: &'a [u8],
    /// Whether `kernel` is firmware. Firmware is an ELF file.
    pub firmware: bool,
    /// Where its devices have their notification words.
    pub notify: NotifyBar,
    /// Initial ramdisk.
    pub initrd: Option<&'a [u8]>,
    /// Command line.
    pub cmdline: &'a str,
    /// Its devices of all kinds, in the order of their PCI device numbers (from 1). Each is in its state after
    /// [`Shared::restart`].
    pub devices: Vec<&'static Shared>,
    /// Who controls the cores' local APICs.
    pub interrupts: Interrupts,
    /// What is done about its split and bus locks.
    pub split_locks: SplitLocks,
    /// Whether another core watches the timers by [`Machine::ring`](super::Machine::ring). Only with
    /// [`Interrupts::Virtualized`].
    pub watched: bool,
    /// The nested tables, if the guest owns the local APICs and gets a shadow IDT. Whenever no page is shadowed, and
    /// also when the machine was just made, they are in their state after [`Shadow::remove`].
    pub shadow: Option<&'static Mutex<Shadow>>,
    /// Makes its pages executable, on a CPU where only pages of 4 KiB may be. It has the same nested tables.
    pub splitter: Option<&'static Splitter>,
    /// The host.
    pub platform: Platform,
}

/// Why a machine could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The number of vCPUs is 0 or above [`MAX_VCPUS`].
    Vcpus(usize),
    /// Too many devices.
    Devices(TooManyFunctions),
    /// No memory for the ACPI tables or the reset vector.
    Tables(BadAddress),
    /// The bzImage cannot be loaded.
    Linux(linux::Error),
    /// The ELF file cannot be loaded.
    Pvh(pvh::Error),
    /// The firmware is no ELF file.
    Firmware,
}

impl core::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vcpus(n) => write!(f, "{n} vCPUs; expected 1 to {MAX_VCPUS}"),
            Self::Devices(e) => e.fmt(f),
            Self::Tables(e) => write!(f, "no room for the ACPI tables and the reset vector: {e}"),
            Self::Linux(e) => e.fmt(f),
            Self::Pvh(e) => e.fmt(f),
            Self::Firmware => {
                write!(f, "the firmware is no ELF file: expected 0x464c457f (\\x7fELF) in its first bytes")
            }
        }
    }
}
