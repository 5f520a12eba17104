//! Reads what firmware and GRUB report: memory, modules, cores, PCI configuration space, power (multiboot2 3.6,
//! ACPI 6.5 ch. 5.2). It reads them once at boot. Later nothing needs the firmware.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
#![allow(unsafe_code, reason = "reads the boot information and the ACPI tables where they are")]

use acpi::{
    AcpiHandler, AcpiTable, AcpiTables, AmlTable, PhysicalMapping,
    address::{AddressSpace, GenericAddress},
    fadt::Fadt,
    madt::{Madt, MadtEntry},
    mcfg::Mcfg,
    sdt::{SdtHeader, Signature},
};
use alloc::{string::String, vec::Vec};
use core::ptr::{self, NonNull};
use drivers::power::{SoftOff, sleep_type_s5};
use multiboot2::{BootInformation, MemoryAreaType, ModuleTag};

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

/// Returns the ranges that the memory map calls usable, before anything is reserved.
pub fn usable(info: &BootInformation<'_>) -> Vec<(u64, u64)> {
    info.memory_map_tag()
        .map(|t| t.memory_areas())
        .unwrap_or_default()
        .iter()
        .filter(|a| a.typ() == MemoryAreaType::Available && a.start_address().checked_add(a.size()).is_some())
        .map(|a| (a.start_address(), a.end_address()))
        .collect()
}

/// Most boot modules. More are left out.
pub const MAX_MODULES: usize = 256;
/// Most bytes of a module's name. A module with a longer one is left out.
const MAX_NAME: usize = 255;
/// Most processors that are read from ACPI. [`MAX_CORES`](crate::arch::MAX_CORES) of them are used.
const MAX_PROCESSORS: usize = 4096;
/// Most ECAM windows that are read from ACPI.
const MAX_WINDOWS: usize = 16;

/// Returns the boot modules, in GRUB's order, and how many were left out: one with an impossible range or a name that is too
/// long, and those after the first [`MAX_MODULES`].
pub fn modules(info: &BootInformation<'_>) -> (Vec<Module>, usize) {
    let name = |m: &ModuleTag| {
        let name = m.cmdline().unwrap_or("").split_whitespace().next().unwrap_or("");
        (name.len() <= MAX_NAME).then(|| String::from(name))
    };
    let modules: Vec<_> = info
        .module_tags()
        .filter(|m| m.end_address() >= m.start_address())
        .filter_map(|m| Some((name(m)?, m)))
        .take(MAX_MODULES)
        .map(|(name, m)| Module {
            name,
            start: u64::from(m.start_address()),
            len: u64::from(m.end_address().saturating_sub(m.start_address())),
        })
        .collect();
    let all = info.module_tags().count();
    let left_out = all.saturating_sub(modules.len());
    (modules, left_out)
}

/// Where the ACPI reset register is (ACPI 6.5, 4.8.3.6).
#[derive(Clone, Copy, Debug)]
pub enum ResetRegister {
    /// An I/O port.
    Port(u16),
    /// A physical address.
    Memory(u64),
}

/// What ACPI says about the machine.
#[derive(Clone, Debug, Default)]
pub struct Platform {
    /// APIC IDs of the enabled processors, in the firmware's order.
    pub apic_ids: Vec<u32>,
    /// The NUMA node of each processor that ACPI's SRAT names, by APIC ID.
    pub nodes: Vec<(u32, u32)>,
    /// ECAM windows: physical address, first bus, last bus (segment 0).
    pub ecam: Vec<(u64, u8, u8)>,
    /// I/O port of the PM timer.
    pub pm_timer: Option<u16>,
    /// How to switch the machine off.
    pub soft_off: Option<SoftOff>,
    /// The reset register, and the value that resets the machine.
    pub reset: Option<(ResetRegister, u8)>,
    /// What could not be read, for the report.
    pub trouble: Vec<String>,
}

/// Reads the ACPI tables.
pub fn platform(info: &BootInformation<'_>) -> Platform {
    let mut p = Platform::default();
    // GRUB's tag contains a copy of the RSDP, after eight bytes of type and size.
    let rsdp = info
        .rsdp_v2_tag()
        .map(|t| ptr::from_ref(t).addr())
        .or_else(|| info.rsdp_v1_tag().map(|t| ptr::from_ref(t).addr()))
        .and_then(|tag| tag.checked_add(8));
    let Some(rsdp) = rsdp else {
        p.trouble.push("GRUB found no ACPI tables (no RSDP)".into());
        return p;
    };
    // SAFETY: this is the address of GRUB's copy. The crate checks signature, checksum and lengths of what it reads.
    let tables = match unsafe { AcpiTables::from_rsdp(Identity, rsdp) } {
        Ok(t) => t,
        Err(e) => {
            p.trouble.push(alloc::format!("the ACPI tables cannot be read: {e:?}"));
            return p;
        }
    };
    if let Ok(madt) = tables.find_table::<Madt>() {
        for entry in madt.get().entries() {
            let (id, flags) = match entry {
                MadtEntry::LocalApic(e) => (u32::from(e.apic_id), e.flags),
                MadtEntry::LocalX2Apic(e) => (e.x2apic_id, e.flags),
                _ => continue,
            };
            if flags & 1 != 0 && !p.apic_ids.contains(&id) && p.apic_ids.len() < MAX_PROCESSORS {
                p.apic_ids.push(id);
            }
        }
    } else {
        p.trouble.push("ACPI has no MADT, so only this core is known".into());
    }
    if let Ok(srat) = tables.find_table::<Srat>() {
        // SAFETY: the crate has mapped as many bytes as the table's length field says, and has checked their sum.
        // Nobody writes to ACPI's tables.
        let bytes = unsafe { core::slice::from_raw_parts(srat.virtual_start().as_ptr().cast(), srat.region_length()) };
        p.nodes = p.apic_ids.iter().filter_map(|&id| Some((id, boot::srat::node_of(bytes, id)?))).collect();
    }
    if let Ok(mcfg) = tables.find_table::<Mcfg>() {
        p.ecam = mcfg
            .entries()
            .iter()
            .filter(|e| { e.pci_segment_group } == 0 && e.bus_number_start <= e.bus_number_end)
            .map(|e| (e.base_address, e.bus_number_start, e.bus_number_end))
            .take(MAX_WINDOWS)
            .collect();
    }
    if let Ok(fadt) = tables.find_table::<Fadt>() {
        if let Ok(Some(timer)) = fadt.pm_timer_block()
            && timer.address_space == AddressSpace::SystemIo
        {
            p.pm_timer = u16::try_from(timer.address).ok();
        }
        p.soft_off = tables.dsdt().ok().and_then(|dsdt| soft_off(&fadt, &dsdt));
        if { fadt.flags }.supports_system_reset_via_fadt()
            && let Ok(register) = fadt.reset_register()
        {
            p.reset = match register.address_space {
                AddressSpace::SystemIo => u16::try_from(register.address).ok().map(ResetRegister::Port),
                AddressSpace::SystemMemory => Some(ResetRegister::Memory(register.address)),
                _ => None,
            }
            .map(|r| (r, fadt.reset_value));
        }
    }
    p
}

/// The System Resource Affinity Table. The ACPI crate needs only its header.
#[repr(transparent)]
struct Srat(SdtHeader);

// SAFETY: the table begins with its header, and all bit patterns are valid.
unsafe impl AcpiTable for Srat {
    const SIGNATURE: Signature = Signature::SRAT;

    fn header(&self) -> &SdtHeader {
        &self.0
    }
}

/// Returns how to switch the machine off, from the FADT and the DSDT.
fn soft_off(fadt: &Fadt, dsdt: &AmlTable) -> Option<SoftOff> {
    let port = |a: GenericAddress| match a.address_space {
        AddressSpace::SystemIo => u16::try_from(a.address).ok().filter(|&port| port != 0),
        _ => None,
    };
    if { fadt.flags }.system_is_hw_reduced_acpi() {
        return None;
    }
    let length = dsdt.length as usize;
    // SAFETY: as for the other tables. The crate has checked the DSDT's header, and the length comes from that header.
    let mapping = unsafe { Identity.map_physical_region::<u8>(dsdt.address, length) };
    // SAFETY: those bytes are mapped, and nobody writes to ACPI's tables.
    let aml = unsafe { core::slice::from_raw_parts(mapping.virtual_start().as_ptr(), length) };
    let smi = u16::try_from(fadt.smi_cmd_port).ok().filter(|&port| port != 0);
    Some(SoftOff {
        control: (port(fadt.pm1a_control_block().ok()?)?, fadt.pm1b_control_block().ok().flatten().and_then(port)),
        sleep_type: sleep_type_s5(aml)?,
        enable: smi.map(|port| (port, fadt.acpi_enable)).filter(|&(_, value)| value != 0),
    })
}

/// Returns the bytes of an ECAM window for the buses `first` to `last`.
pub fn ecam_len(first: u8, last: u8) -> u64 {
    u64::from(last.saturating_sub(first)).saturating_add(1) << 20
}

/// Memory for the ACPI crate. All memory is mapped at its physical address.
#[derive(Clone)]
struct Identity;

impl AcpiHandler for Identity {
    unsafe fn map_physical_region<T>(&self, address: usize, size: usize) -> PhysicalMapping<Self, T> {
        if address.saturating_add(size) > 4 << 30 {
            crate::halt::halt(format_args!(
                "an ACPI table at {address:#x}: tables above 4 GiB cannot be read; look for a setting of the firmware that \
                 keeps them below"
            ));
        }
        let start = NonNull::new(ptr::with_exposed_provenance_mut(address)).unwrap_or(NonNull::dangling());
        // SAFETY: the boot page tables map everything below 4 GiB at its physical address. They are in use while ACPI
        // is read.
        unsafe { PhysicalMapping::new(address, start, size, size, Self) }
    }

    fn unmap_physical_region<T>(_: &PhysicalMapping<Self, T>) {}
}
