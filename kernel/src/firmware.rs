//! Reads what firmware and GRUB report: memory, modules, cores, PCI configuration space, power. It reads them once at
//! boot. Later nothing needs the firmware. The formats are read by the crate `boot`.

#![allow(unsafe_code, reason = "reads the boot information and the ACPI tables where they are")]

use crate::{mem, screen};
use alloc::{string::String, vec::Vec};
use boot::acpi::{self, EcamWindow, Fadt, Memory, Register as Place, RemappingUnit, Spcr, Tables};
use boot::console::Consoles;
use boot::information::Information;
use boot::ipmi::Interface;
use boot::smbios;
use core::{ptr, slice};
use drivers::generic::{Register, Space};
use drivers::ioapic::Masked;
use drivers::power::{SoftOff, sleep_type_s5};
use drivers::wdat;
use memory::{reader::Reader, tables::FrameSource};

/// Finds the boot information that GRUB has put at this address. Returns `None` if the address makes no sense.
///
/// # Safety
/// GRUB has passed the address, the first 4 GiB are mapped at their physical addresses, and nobody writes to the
/// information.
pub unsafe fn information(address: u32) -> Option<Information<'static>> {
    if address == 0 || !address.is_multiple_of(8) {
        return None;
    }
    let start = ptr::with_exposed_provenance::<u8>(address as usize);
    // SAFETY: the caller's promise. The information has a head of eight bytes (multiboot2 3.4).
    let head = unsafe { start.cast::<[u8; 8]>().read() };
    let len = Information::len_of(head);
    address.checked_add(len)?;
    // SAFETY: as above. The head has the length of all of it, which is below 4 GiB.
    Information::new(unsafe { slice::from_raw_parts(start, len as usize) })
}

/// Chooses the serial ports: by the command line, and by ACPI's SPCR as far as that is below 4 GiB. It allocates nothing.
pub fn consoles(info: Information<'_>) -> Consoles {
    let tables = info.rsdp().and_then(|rsdp| Tables::new(rsdp, &Below4Gib).ok());
    let spcr = tables.and_then(|tables| tables.find(*b"SPCR").map(acpi::spcr));
    boot::console::choose(info.command_line().unwrap_or_default(), spcr)
}

/// A file that GRUB loaded beside the kernel.
#[derive(Clone, Debug)]
pub struct Module {
    /// Its name: the first word after the path in GRUB's `module2` line.
    pub name: String,
    /// Physical address of its first byte.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Module {
    /// Its bytes.
    pub fn bytes(&self) -> &'static [u8] {
        // SAFETY: GRUB loaded the module there. The range is reserved and mapped, and nobody ever writes to it.
        unsafe { core::slice::from_raw_parts(ptr::with_exposed_provenance(self.start as usize), self.len as usize) }
    }
}

/// Most boot modules. More are left out.
pub const MAX_MODULES: usize = 256;
/// Most bytes of a module's name. A module with a longer one is left out.
const MAX_NAME: usize = 255;

/// Returns the boot modules, in GRUB's order, and how many were left out: one with a name that is too long, and those after the
/// first [`MAX_MODULES`].
pub fn modules(info: Information<'_>) -> (Vec<Module>, usize) {
    let modules: Vec<_> = info
        .modules()
        .filter(|m| m.name.len() <= MAX_NAME)
        .take(MAX_MODULES)
        .map(|m| Module { name: m.name.into(), start: m.start, len: m.end.saturating_sub(m.start) })
        .collect();
    let left_out = info.modules().count().saturating_sub(modules.len());
    (modules, left_out)
}

/// What ACPI says about the machine.
#[derive(Clone, Debug, Default)]
pub struct Platform {
    /// The processors that the firmware lists, by APIC ID.
    pub cores: acpi::Cores,
    /// Physical addresses of the I/O APICs.
    pub io_apics: Vec<u32>,
    /// What became of them: see [`crate::arch::ioapic`].
    pub masked: Vec<(u32, Option<Masked>)>,
    /// Physical address of the HPET.
    pub hpet: Option<u64>,
    /// What ACPI's SPCR says of the firmware's console.
    pub spcr: Option<Spcr>,
    /// The NUMA node of each processor that ACPI's SRAT names, by APIC ID.
    pub nodes: Vec<(u32, u32)>,
    /// Windows of PCI's configuration space.
    pub ecam: Vec<EcamWindow>,
    /// The interface to the management controller, and the table that names it.
    pub ipmi: Option<(&'static str, Interface)>,
    /// The watchdog of ACPI's WDAT, or why it is not used.
    pub wdat: Option<Result<wdat::Table, wdat::Unusable>>,
    /// DMA remapping units.
    pub remapping: Vec<RemappingUnit>,
    /// I/O port of the PM timer.
    pub pm_timer: Option<u16>,
    /// How to switch the machine off.
    pub soft_off: Option<SoftOff>,
    /// The reset register, and the value that resets the machine.
    pub reset: Option<(Place, u8)>,
    /// The programs of the firmware's store of records.
    pub store: Option<erst::Table>,
    /// What could not be read, for the report.
    pub trouble: Vec<String>,
}

impl Platform {
    /// The NUMA node of a core, if ACPI names it.
    pub fn node(&self, apic_id: u32) -> Option<u32> {
        self.nodes.iter().find(|(id, _)| *id == apic_id).map(|&(_, node)| node)
    }
}

/// Reads the ACPI tables.
///
/// # Safety
/// The boot tables are in use.
pub unsafe fn platform(info: Information<'_>) -> Platform {
    let mut p = Platform::default();
    // SAFETY: the caller's promise. The reader is gone when this function returns.
    let memory = Physical(unsafe { mem::boot_reader() });
    let by_smbios = smbios::find(&memory, info.efi_system_table()).and_then(smbios::ipmi);
    p.ipmi = by_smbios.map(|interface| ("SMBIOS", interface));
    let Some(rsdp) = info.rsdp() else {
        p.trouble.push("GRUB found no ACPI tables (no RSDP)".into());
        return p;
    };
    let tables = match Tables::new(rsdp, &memory) {
        Ok(tables) => tables,
        Err(e) => {
            p.trouble.push(alloc::format!("the ACPI tables cannot be read: {e}"));
            return p;
        }
    };
    if let Some(madt) = tables.find(*b"APIC") {
        p.cores = acpi::cores(madt);
        p.io_apics = acpi::io_apics(madt);
    } else {
        p.trouble.push("ACPI has no MADT, so only this core is known".into());
    }
    p.hpet = tables.find(*b"HPET").and_then(acpi::hpet);
    p.spcr = tables.find(*b"SPCR").map(acpi::spcr);
    if let Some(srat) = tables.find(*b"SRAT") {
        p.nodes = p.cores.enabled.iter().filter_map(|&id| Some((id, boot::srat::node_of(srat, id)?))).collect();
    }
    if let Some(mcfg) = tables.find(*b"MCFG") {
        p.ecam = acpi::ecam(mcfg);
    }
    if let Some(table) = tables.find(*b"ERST") {
        p.store = erst::Table::new(table);
        if p.store.is_none() {
            p.trouble.push("ACPI's ERST is cut off, so nothing is kept in the firmware's store".into());
        }
    }
    if p.ipmi.is_none() {
        p.ipmi = tables.find(*b"SPMI").and_then(acpi::spmi).map(|interface| ("ACPI's SPMI", interface));
    }
    p.wdat = tables.find(*b"WDAT").map(|table| wdat::Table::new(table, |register| is_taken(register, info, &p)));
    if let Some(dmar) = tables.find(*b"DMAR") {
        p.remapping = acpi::dmar(dmar);
    }
    if let Some(ivrs) = tables.find(*b"IVRS") {
        p.remapping.extend(acpi::ivrs(ivrs));
    }
    if let Some(fadt) = tables.find(*b"FACP").map(Fadt::new) {
        p.pm_timer = fadt.pm_timer();
        p.soft_off = soft_off(&fadt, &tables);
        p.reset = fadt.reset();
    }
    p
}

/// Whether a register is memory, the screen, what belongs to an APIC or to PCI's configuration space, or a console's.
fn is_taken(register: Register, info: Information<'_>, platform: &Platform) -> bool {
    const PAGE: u64 = 4096;
    /// Ports of a UART.
    const UART: u64 = 8;
    /// Where the local APICs are, and where devices write their interrupts.
    const LOCAL_APICS: (u64, u64) = (0xfee0_0000, 0xfef0_0000);
    let is_in = |(start, end): (u64, u64)| register.address < end && start < register.end();
    match register.space {
        Space::Memory => {
            let io_apics = platform.io_apics.iter().map(|&at| (at.into(), u64::from(at).saturating_add(PAGE)));
            let windows = platform.ecam.iter().map(|window| (window.start(), window.end()));
            let fixed = [(0, 1 << 20), LOCAL_APICS].into_iter().chain(screen::range());
            info.usable().chain(io_apics).chain(windows).chain(fixed).any(is_in)
        }
        Space::Ports => {
            let Consoles { people, programs, .. } = consoles(info);
            let ports = people.into_iter().chain(programs).map(|uart| u64::from(uart.port));
            ports.map(|port| (port, port.saturating_add(UART))).any(is_in)
        }
    }
}

/// Returns how to switch the machine off, from the FADT and the DSDT.
fn soft_off(fadt: &Fadt<'_>, tables: &Tables<'_, impl Memory>) -> Option<SoftOff> {
    if fadt.is_hardware_reduced() {
        return None;
    }
    Some(SoftOff {
        control: (fadt.pm1a_control()?.port()?, fadt.pm1b_control().and_then(Place::port)),
        sleep_type: sleep_type_s5(tables.dsdt(fadt)?)?,
        enable: fadt.enable(),
    })
}

/// The memory of the ACPI tables.
struct Physical<F>(Reader<F>);

impl<F: FrameSource> Memory for Physical<F> {
    fn bytes(&self, address: u64, len: u64) -> Option<&[u8]> {
        if address == 0 {
            return None;
        }
        self.0.map(address, len).ok()?;
        // SAFETY: all of it is mapped at its physical address. Nobody writes to ACPI's tables, and the boot tables are in
        // use while ACPI is read (`platform`).
        Some(unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(address as usize), len as usize) })
    }
}

/// The same before there is a heap: a table above 4 GiB is none.
struct Below4Gib;

impl Memory for Below4Gib {
    fn bytes(&self, address: u64, len: u64) -> Option<&[u8]> {
        if address == 0 || address.saturating_add(len) > 4 << 30 {
            return None;
        }
        // SAFETY: the boot page tables map everything below 4 GiB at its physical address. They are in use while ACPI
        // is read. Nobody writes to ACPI's tables.
        Some(unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(address as usize), len as usize) })
    }
}
