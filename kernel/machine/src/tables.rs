//! The guest's ACPI tables: a hardware-reduced machine (no PM1, no SCI, no legacy devices).
//!
//! Follows ACPI 6.5 ch. 5 (tables), 4.1 (hardware-reduced), 4.8.3.7 (sleep and reset registers) and PCI Firmware 3.3
//! ch. 4 (MCFG). The addresses come from [`layout`].

extern crate alloc;

use acpi_tables::{
    fadt::{FADTBuilder, Flags},
    gas::{AccessSize, AddressSpace, GAS},
    mcfg::MCFG,
    rsdp::Rsdp,
    xsdt::XSDT,
};
use alloc::vec::Vec;
use core::ops::Range;

use memory::{BadAddress, GuestMemory};

use crate::layout;

mod dsdt;
mod table;

use table::{OEM, OEM_REVISION, OEM_TABLE, bytes, header};

/// Place of the tables of a guest that starts a bzImage. The RSDP is at its beginning, which is the beginning of the area
/// in which operating systems search for it.
pub const PLACE: Range<u64> = 0xe_0000..0x10_0000;

/// IAPC_BOOT_ARCH: no VGA, no ASPM, no CMOS clock. The bits for ISA devices and for the 8042 are clear, so these are
/// absent too.
const BOOT_ARCHITECTURE: u16 = 1 << 2 | 1 << 4 | 1 << 5;

/// Writes the tables of a machine with `vcpus` vCPUs into guest memory at `place`, the RSDP first.
///
/// # Errors
/// The guest has no memory there, or the tables need more than `place`.
pub fn write(memory: &GuestMemory, vcpus: u32, place: Range<u64>) -> Result<(), BadAddress> {
    let Range { start: rsdp, end } = place;
    let mut next = rsdp.saturating_add(64);
    let mut place = |table: &[u8]| {
        let at = next;
        next = at.saturating_add(table.len() as u64).checked_next_multiple_of(64).unwrap_or(u64::MAX);
        if next > end {
            return Err(BadAddress { gpa: at, len: table.len() as u64 });
        }
        memory.write(at, table)?;
        Ok(at)
    };
    let dsdt = place(&dsdt::table())?;
    let mut xsdt = XSDT::new(OEM, OEM_TABLE, OEM_REVISION);
    for table in [fadt(dsdt), madt(vcpus), mcfg()] {
        xsdt.add_entry(place(&table)?);
    }
    let xsdt = place(&bytes(&xsdt))?;
    memory.write(rsdp, &bytes(&Rsdp::new(OEM, xsdt)))
}

fn io_register(port: u16) -> GAS {
    GAS::new(AddressSpace::SystemIo, 8, 0, AccessSize::ByteAccess, u64::from(port))
}

fn fadt(dsdt: u64) -> Vec<u8> {
    // WBINVD works. The power button is a device in the DSDT. There is no sleep button in hardware, and no screen.
    let flags = [
        Flags::Wbinvd,
        Flags::PwrButton,
        Flags::SlpButton,
        Flags::ResetRegSup,
        Flags::Headless,
        Flags::HwReducedAcpi,
        Flags::TmrValExt,
    ];
    let builder = flags.into_iter().fold(FADTBuilder::new(OEM, OEM_TABLE, OEM_REVISION), FADTBuilder::flag);
    let mut builder = builder.dsdt_64(dsdt);
    builder.iapc_boot_arch = BOOT_ARCHITECTURE.into();
    builder.reset_reg = io_register(layout::RESET);
    builder.reset_value = layout::RESET_VALUE;
    builder.sleep_control_reg = io_register(layout::SLEEP_CONTROL);
    builder.sleep_status_reg = io_register(layout::SLEEP_STATUS);
    // A system may ignore the timer on a hardware-reduced machine. Linux takes it as a clock source of low rating.
    builder.pm_tmr_blk = u32::from(layout::PM_TIMER).into();
    builder.pm_tmr_len = 4;
    builder.x_pm_tmr_blk = GAS::new(AddressSpace::SystemIo, 32, 0, AccessSize::DwordAccess, layout::PM_TIMER.into());
    bytes(&builder.finalize())
}

/// Returns the MADT: one local APIC per vCPU, and the IOAPIC. APIC ID and processor UID are the vCPU's index (5.2.12.2:
/// type 9 only for IDs that do not fit type 0). There is no PIC, so PCAT_COMPAT is clear and there are no overrides.
fn madt(vcpus: u32) -> Vec<u8> {
    const ENABLED: u32 = 1;
    let mut madt = header(*b"APIC", 44, 5);
    madt.write_u32(36, layout::LOCAL_APIC as u32);
    for id in 0..vcpus {
        let flags = ENABLED.to_le_bytes();
        match u8::try_from(id) {
            Ok(id) if id != u8::MAX => {
                madt.append_slice(&[0, 8, id, id]);
                madt.append_slice(&flags);
            }
            _ => {
                madt.append_slice(&[9, 16, 0, 0]);
                madt.append_slice(&id.to_le_bytes());
                madt.append_slice(&flags);
                madt.append_slice(&id.to_le_bytes());
            }
        }
    }
    madt.append_slice(&[1, 12, layout::IOAPIC_ID, 0]);
    madt.append_slice(&(layout::IOAPIC as u32).to_le_bytes());
    madt.append_slice(&0_u32.to_le_bytes()); // first GSI
    bytes(&madt)
}

fn mcfg() -> Vec<u8> {
    let mut mcfg = MCFG::new(OEM, OEM_TABLE, OEM_REVISION);
    mcfg.add_ecam(layout::ECAM, 0, 0, (layout::ECAM_SIZE / 0x10_0000 - 1) as u8);
    bytes(&mcfg)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory::guest::testing::memory;

    fn read(m: &GuestMemory, at: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        m.read(at, &mut bytes).unwrap();
        bytes
    }

    fn table(m: &GuestMemory, at: u64) -> Vec<u8> {
        read(m, at, m.read_u32(at + 4).unwrap().into())
    }

    fn sum(bytes: &[u8]) -> u8 {
        bytes.iter().fold(0, |sum, b| sum.wrapping_add(*b))
    }

    /// Returns the tables as an operating system finds them: from the RSDP through the XSDT.
    fn tables(vcpus: u32) -> Vec<Vec<u8>> {
        let m = memory(0, 0x20_0000);
        write(&m, vcpus, PLACE).unwrap();
        let rsdp = read(&m, PLACE.start, 36);
        assert_eq!(&rsdp[..8], b"RSD PTR ");
        assert_eq!((sum(&rsdp[..20]), sum(&rsdp)), (0, 0));
        let xsdt = table(&m, m.read_u64(PLACE.start + 24).unwrap());
        let mut all: Vec<_> =
            xsdt[36..].chunks(8).map(|address| table(&m, u64::from_le_bytes(address.try_into().unwrap()))).collect();
        let dsdt = u64::from_le_bytes(all[0][140..148].try_into().unwrap());
        all.push(table(&m, dsdt));
        all.push(xsdt);
        all
    }

    #[test]
    fn every_table_has_its_length_and_a_sum_of_zero() {
        let all = tables(3);
        let names: Vec<_> = all.iter().map(|t| &t[..4]).collect();
        assert_eq!(names, [b"FACP", b"APIC", b"MCFG", b"DSDT", b"XSDT"]);
        for t in &all {
            assert_eq!(u32::from_le_bytes(t[4..8].try_into().unwrap()) as usize, t.len());
            assert_eq!(sum(t), 0, "{:?}", &t[..4]);
        }
    }

    #[test]
    fn the_fadt_is_of_revision_6_hardware_reduced_and_names_the_registers() {
        let fadt = &tables(1)[0];
        assert_eq!((fadt[8], fadt.len()), (6, 276));
        let flags = u32::from_le_bytes(fadt[112..116].try_into().unwrap());
        assert_ne!(flags & 1 << 20, 0, "HW_REDUCED_ACPI");
        assert_ne!(flags & 1 << 10, 0, "RESET_REG_SUP");
        let register = |at: usize| (fadt[at], u16::from_le_bytes([fadt[at + 4], fadt[at + 5]]));
        assert_eq!(register(116), (1, layout::RESET));
        assert_eq!(fadt[128], layout::RESET_VALUE);
        assert_eq!(register(244), (1, layout::SLEEP_CONTROL));
        assert_eq!(register(256), (1, layout::SLEEP_STATUS));
        assert_eq!(register(208), (1, layout::PM_TIMER));
        assert_eq!((&fadt[76..80], fadt[91]), (&0x608_u32.to_le_bytes()[..], 4), "PM_TMR_BLK, PM_TMR_LEN");
        assert_eq!((fadt[209], flags >> 8 & 1), (32, 1), "the timer has 32 bits");
    }

    #[test]
    fn the_madt_has_an_apic_per_vcpu_and_the_ioapic() {
        let madt = &tables(300)[1];
        let (mut at, mut ids, mut ioapics) = (44, Vec::new(), 0);
        while at < madt.len() {
            match madt[at] {
                0 => ids.push(u32::from(madt[at + 3])),
                9 => ids.push(u32::from_le_bytes(madt[at + 4..at + 8].try_into().unwrap())),
                1 => {
                    ioapics += 1;
                    assert_eq!(madt[at + 4..at + 8], (layout::IOAPIC as u32).to_le_bytes());
                }
                other => panic!("entry of type {other}"),
            }
            at += usize::from(madt[at + 1]);
        }
        assert_eq!(ids, (0..300).collect::<Vec<_>>());
        assert_eq!(ioapics, 1);
    }

    #[test]
    fn ecam_is_where_the_layout_has_it() {
        let mcfg = &tables(1)[2];
        assert_eq!(mcfg[44..52], layout::ECAM.to_le_bytes());
        assert_eq!((mcfg[54], mcfg[55]), (0, 0), "bus 0 to bus 0");
    }

    /// Writes the DSDT to the file named by SIDECORE_DSDT, to read it with `iasl -d`.
    #[test]
    fn the_dsdt_can_be_written_out_for_a_disassembler() {
        let dsdt = dsdt::table();
        assert!(dsdt.len() > 36);
        if let Some(path) = std::env::var_os("SIDECORE_DSDT") {
            std::fs::write(path, &dsdt).unwrap();
        }
    }
}
