//! The machine's own watchdogs, which reset it unless somebody feeds them. Firmware and management controllers leave
//! them running for an operating system that feeds them. They are stopped at boot, and said. With
//! `machine-watchdog=SECONDS` the TCO watchdog is armed: the control core feeds it, and a control core that hangs
//! resets the machine.
//!
//! `drivers::tco` and `drivers::ipmi` have the registers and the messages, and `findings::watchdogs` the words. The
//! watchdog inside sidecore, which looks at its cores, is in `watchdog.rs`.

#![allow(unsafe_code, reason = "reads and writes the watchdogs' ports, and a register of the chipset")]

use crate::{
    arch::time,
    facts::facts,
    mem, options,
    pci::{self, Function},
    report,
};
use boot::ipmi::Interface;
use core::{
    ptr,
    sync::atomic::{AtomicU16, AtomicU64, Ordering},
};
use drivers::{
    ipmi::{self, Outcome, kcs},
    tco::{self, Registers, Stopped, Way},
};
use findings::watchdogs;
use x86_64::instructions::port::Port;

/// Microseconds between two times that the watchdog is fed. The shortest time of a watchdog is seconds.
const PERIOD: u64 = 1_000_000;

/// The first of the ports of a TCO watchdog that is to be fed. 0: none is.
static FED: AtomicU16 = AtomicU16::new(0);
/// The TSC at which it is to be fed next.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Stops all watchdogs that are known, and reports what each did. Then arms the one that the command line asks for.
/// Call it after the scan of PCI, and before the cores have maps of their own.
pub fn begin() {
    if options::watchdogs_are_left() {
        return;
    }
    let chipset = pci::chipset_functions(&facts().platform.ecam);
    // This one first: to ask a management controller may take seconds.
    let tco = stop_tco(&chipset);
    if let Some((table, interface)) = facts().platform.ipmi {
        report::add_all([watchdogs::bmc(table, interface, stop_bmc(interface))]);
    }
    tell_unknown(&chipset);
    let Some(seconds) = options::machine_watchdog() else { return };
    let armed = tco.map(|mut registers| {
        tco::arm(&mut registers, seconds)?;
        FED.store(registers.ports, Ordering::Relaxed);
        Ok(())
    });
    report::add_all([watchdogs::armed(seconds, armed)]);
}

/// Stops the TCO watchdog. Returns it if there is one that answers. One that cannot be stopped is fed from now on.
fn stop_tco(chipset: &[Function]) -> Option<Tco> {
    let (name, mut registers) = find(chipset)?;
    let stopped = tco::stop(&mut registers);
    report::add_all([watchdogs::tco(name, stopped)]);
    let Stopped { left, halts, .. } = stopped.ok()?;
    if left.is_some() && !halts {
        FED.store(registers.ports, Ordering::Relaxed);
        feed_now();
    }
    Some(registers)
}

/// Stops the watchdog of the management controller. Returns `None` if its interface is of no kind that is driven.
fn stop_bmc(interface: Interface) -> Option<Result<Outcome, ipmi::Error>> {
    let Interface::Kcs { data, status } = interface else { return None };
    Some(ipmi::stop(&mut Kcs { data: Port::new(data), status: Port::new(status) }))
}

/// Finds the TCO watchdog of Intel's chipset. Returns the chipset's name too.
fn find(chipset: &[Function]) -> Option<(&'static str, Tco)> {
    chipset.iter().find_map(|function| {
        let (name, way) = tco::chipset(function.vendor, function.device)?;
        let Some(registers) = Tco::find(function, way) else {
            report::add_all([watchdogs::tco_without_ports(name)]);
            return None;
        };
        Some((name, registers))
    })
}

/// Says that a chipset or a management controller may have a watchdog that sidecore does not stop.
fn tell_unknown(chipset: &[Function]) {
    /// HPE's iLO, its function with the watchdog.
    const ILO: (u16, u16) = (0x103c, 0x3306);
    /// Class of an ISA bridge, in the upper 16 bits.
    const ISA_BRIDGE: u32 = 0x0601;
    let is_known = |function: &Function| tco::chipset(function.vendor, function.device).is_some();
    for function in pci::functions().unwrap_or_default() {
        if (function.vendor, function.device) == ILO {
            report::add_all([watchdogs::hpe(function.at)]);
        }
    }
    if !chipset.iter().any(is_known)
        && let Some(bridge) = chipset.iter().find(|f| f.vendor == 0x8086 && f.class() >> 8 == ISA_BRIDGE)
    {
        report::add_all([watchdogs::tco_unknown(bridge.at, (bridge.vendor, bridge.device))]);
    }
}

/// Feeds the watchdog if there is one and it is time. The control core calls it once a tick, and at each step of the
/// boot.
pub fn feed() {
    if FED.load(Ordering::Relaxed) != 0 && time::tsc() >= NEXT.load(Ordering::Relaxed) {
        NEXT.store(time::tsc().saturating_add(time::micros(PERIOD)), Ordering::Relaxed);
        feed_now();
    }
}

/// Feeds the watchdog if there is one. Returns whether there is one.
pub fn feed_now() -> bool {
    let ports = FED.load(Ordering::Relaxed);
    if ports != 0 {
        tco::feed(&mut Tco { ports, gcs: None });
    }
    ports != 0
}

/// Stops the watchdog, if there is one: the machine ends, or stands still for a person.
pub fn end() {
    let ports = FED.swap(0, Ordering::Relaxed);
    if ports != 0 {
        let mut registers = Tco { ports, gcs: None };
        tco::feed(&mut registers);
        // One that does not stop resets the machine, and nobody is left who could do anything else.
        let _ = tco::stop(&mut registers);
    }
}

/// The registers of a TCO watchdog.
struct Tco {
    /// The first of its ports. Only ports that the chipset names are ever here.
    ports: u16,
    /// The address of GCS, which is mapped. Only as long as the boot's page tables are in use.
    gcs: Option<u64>,
}

impl Tco {
    /// Finds the ports by the registers of the chipset's function. `None`: the firmware has set none.
    fn find(function: &Function, way: Way) -> Option<Self> {
        Some(match way {
            Way::Lpc => Self {
                ports: tco::ports_by_pmbase(function.read(0x40))?,
                gcs: tco::gcs_by_rcba(function.read(0xf0)).filter(|gcs| mem::map_device(gcs & !0xfff, 0x1000).is_ok()),
            },
            Way::Smbus => Self { ports: tco::ports_by_tcobase(function.read(0x50), function.read(0x54))?, gcs: None },
        })
    }

    fn port(&self, offset: u16) -> Port<u16> {
        Port::new(self.ports.saturating_add(offset))
    }

    fn gcs(&self) -> Option<*mut u32> {
        Some(ptr::with_exposed_provenance_mut(self.gcs? as usize))
    }
}

impl Registers for Tco {
    fn read(&mut self, offset: u16) -> u16 {
        // SAFETY: the chipset is known, and has named the ports as those of its watchdog. Reading them has no side
        // effect.
        unsafe { self.port(offset).read() }
    }

    fn write(&mut self, offset: u16, value: u16) {
        // SAFETY: as above. The crate `drivers` writes only what halts, arms or feeds the watchdog. Nobody else in
        // sidecore uses it.
        unsafe { self.port(offset).write(value) };
    }

    fn read_gcs(&mut self) -> Option<u32> {
        // SAFETY: `find` has mapped the page, uncached. It was not mapped before, so it is no memory. The chipset has
        // named it.
        self.gcs().map(|at| unsafe { at.read_volatile() })
    }

    fn write_gcs(&mut self, value: u32) {
        if let Some(at) = self.gcs() {
            // SAFETY: as above. The crate `drivers` clears NO_REBOOT, and writes back what else it has read.
            unsafe { at.write_volatile(value) };
        }
    }
}

/// The interface to the management controller.
struct Kcs {
    data: Port<u8>,
    status: Port<u8>,
}

impl kcs::Ports for Kcs {
    fn read_data(&mut self) -> u8 {
        // SAFETY: the firmware's table names the ports as those of this interface. Nobody else in sidecore uses it.
        unsafe { self.data.read() }
    }

    fn write_data(&mut self, value: u8) {
        // SAFETY: as above. The crate `drivers` writes requests about the watchdog only, and nothing where nobody
        // answers.
        unsafe { self.data.write(value) };
    }

    fn read_status(&mut self) -> u8 {
        // SAFETY: as in `read_data`.
        unsafe { self.status.read() }
    }

    fn write_command(&mut self, value: u8) {
        // SAFETY: as in `write_data`.
        unsafe { self.status.write(value) };
    }

    fn micros(&mut self) -> u64 {
        time::now_micros()
    }
}
