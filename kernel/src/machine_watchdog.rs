//! The machine's own watchdogs, which reset it unless somebody feeds them. Firmware and management controllers leave
//! them running for an operating system that feeds them. They are stopped at boot, and said. With
//! `machine-watchdog=SECONDS` one is armed: the control core feeds it, and a control core that hangs resets the machine.
//!
//! | watchdog | registers, messages | armed |
//! |---|---|---|
//! | TCO of Intel's chipsets | `drivers::tco` | where NO_REBOOT can be cleared |
//! | the one of ACPI's WDAT | `drivers::wdat` | where the TCO watchdog is not armed |
//! | AMD's chipsets | `drivers::fch` | no |
//! | HPE's management controllers | `drivers::ilo` | no |
//! | other management controllers, by IPMI | `drivers::ipmi` | no |
//!
//! A WDAT may be for the TCO watchdog. Then it has one owner: the driver of the TCO, or the WDAT once that has armed it.
//!
//! `findings::watchdogs` has the words. The watchdog inside sidecore, which looks at its cores, is in `watchdog.rs`.

#![allow(unsafe_code, reason = "reads and writes the watchdogs' ports, and a register of the chipset")]

use crate::{
    arch::time,
    facts::facts,
    options,
    pci::{self, Function},
    registers::{self, Pages},
    report,
};
use boot::ipmi::Interface;
use core::{
    ptr,
    sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering},
};
use drivers::{
    fch,
    generic::{Register, Space},
    ilo,
    ipmi::{self, Outcome, kcs},
    tco::{self, NoReboot, Registers, Stopped, Way},
    watchdog::Became,
    wdat,
};
use findings::watchdogs::{self, Armed};
use x86_64::instructions::port::Port;

/// Microseconds between two times that the watchdog is fed. The shortest time of a watchdog is seconds.
const PERIOD: u64 = 1_000_000;

/// The first of the ports of a TCO watchdog that is to be fed. 0: none is.
static FED: AtomicU16 = AtomicU16::new(0);
/// Whether the watchdog of ACPI's WDAT is to be fed.
static WDAT_IS_FED: AtomicBool = AtomicBool::new(false);
/// The TSC at which they are to be fed next.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Stops all watchdogs that are known, and reports what each did. Then arms the one that the command line asks for.
/// Call it after the scan of PCI, and before the cores have maps of their own.
pub fn begin() {
    if options::watchdogs_are_left() {
        return;
    }
    let chipset = pci::chipset_functions(&facts().platform.ecam);
    let mut pages = Pages::default();
    // These first: to ask a management controller may take seconds.
    let tco = stop_tco(&chipset, &mut pages);
    let wdat = stop_wdat(tco.as_ref(), &mut pages);
    stop_others(&mut pages);
    if let Some((table, interface)) = facts().platform.ipmi {
        report::add_all([watchdogs::bmc(table, interface, stop_bmc(interface))]);
    }
    if wdat.is_none() {
        tell_unknown(&chipset);
    }
    let Some(seconds) = options::machine_watchdog() else { return };
    let tco = tco.map(|mut registers| {
        tco::arm(&mut registers, seconds)?;
        FED.store(registers.ports, Ordering::Relaxed);
        Ok(())
    });
    let wdat = wdat.filter(|_| tco != Some(Ok(()))).map(|(table, is_tco)| {
        table.arm(&mut WdatBus, seconds)?;
        WDAT_IS_FED.store(true, Ordering::Relaxed);
        if is_tco {
            FED.store(0, Ordering::Relaxed);
        }
        Ok(())
    });
    report::add_all([watchdogs::armed(seconds, Armed { tco, wdat })]);
}

/// Stops the TCO watchdog. Returns it if there is one that answers. One that cannot be stopped is fed from now on.
fn stop_tco(chipset: &[Function], pages: &mut Pages) -> Option<Tco> {
    let (name, mut registers) = find(chipset, pages)?;
    let stopped = tco::stop(&mut registers);
    report::add_all([watchdogs::tco(name, stopped)]);
    let Stopped { left, halts, .. } = stopped.ok()?;
    if left.is_some() && !halts {
        FED.store(registers.ports, Ordering::Relaxed);
        feed_now();
    }
    Some(registers)
}

/// Stops the watchdog of ACPI's WDAT, unless it is the TCO watchdog. Returns the table if it can be used, and whether it
/// is for that one. A watchdog that cannot be stopped is fed from now on.
fn stop_wdat(tco: Option<&Tco>, pages: &mut Pages) -> Option<(&'static wdat::Table, bool)> {
    let found = facts().platform.wdat.as_ref()?;
    let usable = found.as_ref().map_err(|why| *why).and_then(|table| {
        // A page that somebody has mapped already is no watchdog's.
        let mut in_memory = table.registers().filter(|(_, register)| register.space == Space::Memory);
        match in_memory.find(|(_, register)| !pages.map(register.address)) {
            Some((action, register)) => Err(wdat::Unusable::Taken(action, register)),
            None => Ok(table),
        }
    });
    let ports = tco.map(|tco| tco.ports..tco.ports.saturating_add(tco::PORTS));
    let is_tco = usable.is_ok_and(|table| ports.is_some_and(|ports| table.writes_to(ports)));
    let became = usable.map(|table| if is_tco { Became::Off } else { table.stop(&mut WdatBus) });
    report::add_all([watchdogs::wdat(&became, is_tco)]);
    if matches!(became, Ok(Became::Runs { .. })) {
        WDAT_IS_FED.store(true, Ordering::Relaxed);
        feed_now();
    }
    usable.ok().map(|table| (table, is_tco))
}

/// Stops the watchdogs of AMD's chipsets and of HPE's management controllers.
fn stop_others(pages: &mut Pages) {
    for function in pci::functions().unwrap_or_default() {
        const REVISION: u16 = 8;
        const SUBSYSTEM: u16 = 0x2c;
        let id = (function.vendor, function.device);
        if fch::is_smbus(id.0, id.1, function.read(REVISION) as u8) {
            report::add_all([watchdogs::fch(function.at, fch::stop(&mut Fch { pages }))]);
        }
        let subsystem = function.read(SUBSYSTEM);
        if ilo::is_ilo(id, (subsystem as u16, (subsystem >> 16) as u16)) {
            let base = function.memory_address(ilo::BAR).filter(|&base| pages.map(base));
            let became = base.filter(|base| base.is_multiple_of(ilo::BYTES)).map(|base| ilo::stop(&mut Ilo { base }));
            report::add_all([watchdogs::hpe(function.at, became)]);
        }
    }
}

/// Stops the watchdog of the management controller. Returns `None` if its interface is of no kind that is driven.
fn stop_bmc(interface: Interface) -> Option<Result<Outcome, ipmi::Error>> {
    let Interface::Kcs { data, status } = interface else { return None };
    Some(ipmi::stop(&mut Kcs { data: Port::new(data), status: Port::new(status) }))
}

/// Finds the TCO watchdog of Intel's chipset. Returns the chipset's name too.
fn find(chipset: &[Function], pages: &mut Pages) -> Option<(&'static str, Tco)> {
    chipset.iter().find_map(|function| {
        let (name, way) = tco::chipset(function.vendor, function.device)?;
        let Some(registers) = Tco::find(function, way, pages) else {
            report::add_all([watchdogs::tco_without_ports(name)]);
            return None;
        };
        Some((name, registers))
    })
}

/// Says that a chipset may have a watchdog that sidecore does not stop.
fn tell_unknown(chipset: &[Function]) {
    /// Class of an ISA bridge, in the upper 16 bits.
    const ISA_BRIDGE: u32 = 0x0601;
    let is_known = |function: &Function| tco::chipset(function.vendor, function.device).is_some();
    if !chipset.iter().any(is_known)
        && let Some(bridge) = chipset.iter().find(|f| f.vendor == 0x8086 && f.class() >> 8 == ISA_BRIDGE)
    {
        report::add_all([watchdogs::tco_unknown(bridge.at, (bridge.vendor, bridge.device))]);
    }
}

/// Whether there is a watchdog to feed.
fn is_fed() -> bool {
    FED.load(Ordering::Relaxed) != 0 || WDAT_IS_FED.load(Ordering::Relaxed)
}

/// The table of a watchdog that is fed.
fn wdat() -> Option<&'static wdat::Table> {
    WDAT_IS_FED.load(Ordering::Relaxed).then(|| facts().platform.wdat.as_ref()?.as_ref().ok()).flatten()
}

/// Feeds the watchdog if there is one and it is time. The control core calls it once a tick, and at each step of the
/// boot.
pub fn feed() {
    if is_fed() && time::tsc() >= NEXT.load(Ordering::Relaxed) {
        NEXT.store(time::tsc().saturating_add(time::micros(PERIOD)), Ordering::Relaxed);
        feed_now();
    }
}

/// Feeds the watchdog if there is one. Returns whether there is one.
pub fn feed_now() -> bool {
    let ports = FED.load(Ordering::Relaxed);
    if ports != 0 {
        tco::feed(&mut Tco { ports, no_reboot: None });
    }
    if let Some(table) = wdat() {
        table.feed(&mut WdatBus);
    }
    is_fed()
}

/// Stops the watchdog, if there is one: the machine ends, or stands still for a person.
pub fn end() {
    let ports = FED.swap(0, Ordering::Relaxed);
    // One that does not stop resets the machine, and nobody is left who could do anything else.
    if ports != 0 {
        let mut registers = Tco { ports, no_reboot: None };
        tco::feed(&mut registers);
        let _ = tco::stop(&mut registers);
    }
    if let Some(table) = wdat() {
        table.feed(&mut WdatBus);
        let _ = table.stop(&mut WdatBus);
        WDAT_IS_FED.store(false, Ordering::Relaxed);
    }
}

/// The registers of a TCO watchdog.
struct Tco {
    /// The first of its ports. Only ports that the chipset names are ever here.
    ports: u16,
    /// Where NO_REBOOT is. A register in memory is mapped. Only as long as the boot's page tables are in use.
    no_reboot: Option<NoReboot>,
}

impl Tco {
    /// Finds the ports and NO_REBOOT by the registers of the chipset's function. `None`: the firmware has set no ports.
    fn find(function: &Function, way: Way, pages: &mut Pages) -> Option<Self> {
        let ports = match way {
            Way::Lpc => tco::ports_by_pmbase(function.read(0x40))?,
            Way::Sideband(_) | Way::Smbus => tco::ports_by_tcobase(function.read(0x50), function.read(0x54))?,
        };
        let no_reboot = match way {
            Way::Lpc => tco::in_gcs(function.read(0xf0)),
            Way::Sideband(offset) => tco::on_sideband(function.sideband_base(), offset),
            Way::Smbus => Some(NoReboot::Control),
        };
        let is_reached = |place: &NoReboot| match *place {
            NoReboot::Memory { address, .. } => pages.map(address),
            NoReboot::Control => true,
        };
        Some(Self { ports, no_reboot: no_reboot.filter(is_reached) })
    }

    fn port(&self, offset: u16) -> Port<u16> {
        Port::new(self.ports.saturating_add(offset))
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

    fn no_reboot(&self) -> Option<NoReboot> {
        self.no_reboot
    }

    fn read_memory(&mut self, address: u64) -> u32 {
        // SAFETY: `find` has mapped the page, uncached, before it named the register. It was not mapped before, so it is no
        // memory. The chipset has named it.
        unsafe { ptr::with_exposed_provenance::<u32>(address as usize).read_volatile() }
    }

    fn write_memory(&mut self, address: u64, value: u32) {
        // SAFETY: as above. The crate `drivers` clears NO_REBOOT, and writes back what else it has read.
        unsafe { ptr::with_exposed_provenance_mut::<u32>(address as usize).write_volatile(value) };
    }
}

/// The registers of ACPI's WDAT.
struct WdatBus;

impl wdat::Bus for WdatBus {
    fn read(&mut self, register: Register) -> u32 {
        // SAFETY: the table names the register as the watchdog's, and it is nothing of ours (`firmware::platform`). If it is
        // in memory, `stop_wdat` has mapped its page as registers before it used the table. The control core maps registers
        // all the time, and so does a core that panics.
        unsafe { registers::read(register) }.map_or(u32::MAX, |value| value as u32)
    }

    fn write(&mut self, register: Register, value: u32) {
        // SAFETY: as above. The value is what the table has for this register, and nobody else in sidecore uses it: `begin`
        // leaves a watchdog that is the TCO's to one of both drivers.
        let _ = unsafe { registers::write(register, value.into()) };
    }
}

/// The registers of AMD's chipset.
struct Fch<'a> {
    pages: &'a mut Pages,
}

impl fch::Registers for Fch<'_> {
    fn read(&mut self, address: u64) -> u32 {
        if !self.pages.map(address) {
            return u32::MAX;
        }
        let register = Register { space: Space::Memory, address, bytes: 4, bit: 0 };
        // SAFETY: the page is mapped as registers, and was no memory. The chipset is one that has these registers there, and
        // reading them has no side effect.
        unsafe { registers::read(register) }.map_or(u32::MAX, |value| value as u32)
    }

    fn write(&mut self, address: u64, value: u32) {
        let register = Register { space: Space::Memory, address, bytes: 4, bit: 0 };
        // SAFETY: `drivers::fch` writes only a register that has answered before, to stop the watchdog.
        let _ = unsafe { registers::write(register, value.into()) };
    }
}

/// The registers of HPE's management controller, at a page that is mapped.
struct Ilo {
    base: u64,
}

impl Ilo {
    fn register(&self, offset: u16, bytes: u8) -> Register {
        Register { space: Space::Memory, address: self.base.saturating_add(offset.into()), bytes, bit: 0 }
    }
}

impl ilo::Registers for Ilo {
    fn read8(&mut self, offset: u16) -> u8 {
        // SAFETY: `stop_others` has mapped the page, and all offsets are within it. The function is known to have these
        // registers there, and reading them has no side effect.
        unsafe { registers::read(self.register(offset, 1)) }.map_or(u8::MAX, |value| value as u8)
    }

    fn read16(&mut self, offset: u16) -> u16 {
        // SAFETY: as above.
        unsafe { registers::read(self.register(offset, 2)) }.map_or(u16::MAX, |value| value as u16)
    }

    fn write8(&mut self, offset: u16, value: u8) {
        // SAFETY: as above. `drivers::ilo` writes only what stops the watchdog.
        let _ = unsafe { registers::write(self.register(offset, 1), value.into()) };
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
