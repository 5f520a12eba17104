//! The guest's address map: the places of memory, devices and interrupts. All parts of the machine, and its ACPI
//! tables, use these numbers.
//!
//! Follows PCI Firmware 3.3 ch. 4 (ECAM), 82093AA 3.0 (IOAPIC), ACPI 6.5 ch. 4.8.3.7 (sleep registers) and 5.6.9 (GED).

use core::ops::RangeInclusive;

/// The highest end of memory below 4 GiB. Memory that does not fit continues at [`HIGH_MEMORY`].
pub const LOW_MEMORY_END: u64 = 0xc000_0000;
/// The first address of memory above the PCI hole.
pub const HIGH_MEMORY: u64 = 0x1_0000_0000;

/// PCI memory window of the host bridge. Memory BARs are in it. EDK2 moves them to its beginning, from the lowest
/// address upwards. EDK2's own window goes on beyond this end, which so few and small BARs never reach.
pub const PCI_MEMORY: RangeInclusive<u64> = 0xc000_0000..=0xdfff_ffff;
/// PCI I/O window of the host bridge. I/O BARs are in it. It is where EDK2 puts the I/O BARs of Cloud Hypervisor's
/// machine.
pub const PCI_IO: RangeInclusive<u16> = 0xc000..=0xffff;
/// Configuration space as memory: 4 KiB a function, 32 devices of 8 functions, one bus.
pub const ECAM: u64 = 0xe000_0000;
/// Length of [`ECAM`]: bus 0 only.
pub const ECAM_SIZE: u64 = 0x10_0000;
/// CONFIG_ADDRESS. It takes only double words.
pub const CONFIG_ADDRESS: u16 = 0xcf8;
/// CONFIG_DATA and the three ports after it.
pub const CONFIG_DATA: u16 = 0xcfc;
/// RST_CNT, the reset control register of Intel's chip sets: one byte, I/O space.
pub const RESET_CONTROL: u16 = 0xcf9;
/// Command port of a keyboard controller. This machine has no such controller, but its command to pulse the reset line
/// works.
pub const KEYBOARD_COMMAND: u16 = 0x64;
/// Index port of the CMOS clock.
pub const CMOS_INDEX: u16 = 0x70;
/// Data port of the CMOS clock.
pub const CMOS_DATA: u16 = 0x71;
/// Devices on bus 0, the host bridge included.
pub const PCI_DEVICES: usize = 32;

/// Page of the IOAPIC's registers. Only its first bytes answer.
pub const IOAPIC: u64 = 0xfec0_0000;
/// Length of the IOAPIC's page.
pub const IOAPIC_SIZE: u64 = 0x1000;
/// APIC ID of the IOAPIC, in its register and in the MADT.
pub const IOAPIC_ID: u8 = 0;
/// Inputs of the IOAPIC: GSI 0 to 23.
pub const IOAPIC_PINS: u8 = 24;
/// Address of the local APIC in xAPIC mode. It is never mapped, because this machine has only x2APIC mode. MSI
/// addresses contain it.
pub const LOCAL_APIC: u64 = 0xfee0_0000;

/// First port of the serial console (eight ports).
pub const COM1: u16 = 0x3f8;
/// GSI of the serial console, edge-triggered, active high, like an ISA interrupt.
pub const COM1_GSI: u8 = 4;

/// GSI of the power button's generic event device, edge-triggered, active high.
pub const POWER_BUTTON_GSI: u8 = 5;
/// SLEEP_CONTROL_REG of the FADT: one byte, I/O space.
pub const SLEEP_CONTROL: u16 = 0x600;
/// SLEEP_STATUS_REG of the FADT: one byte, I/O space.
pub const SLEEP_STATUS: u16 = 0x601;
/// RESET_REG of the FADT: one byte, I/O space.
pub const RESET: u16 = 0x602;
/// RESET_VALUE of the FADT: the value that resets when written to [`RESET`].
pub const RESET_VALUE: u8 = 0x01;
/// Status of the generic event device, one byte. Bit 0 is the power button. Writing 1 clears it.
pub const EVENT_STATUS: u16 = 0x604;
/// PM_TMR_BLK of the FADT: four bytes, I/O space.
pub const PM_TIMER: u16 = 0x608;
/// All ports of the ACPI registers.
pub const ACPI_PORTS: RangeInclusive<u16> = 0x600..=0x60f;
/// SLP_TYP of `_S5` in the DSDT: soft off.
pub const SLEEP_TYPE_S5: u8 = 5;

/// Length of BAR0 of a virtio function (memory: common configuration, ISR, device configuration, MSI-X).
pub const VIRTIO_BAR0_SIZE: u32 = 0x4000;
/// Length of BAR1 of a virtio function (notification), in I/O space.
pub const VIRTIO_BAR1_SIZE: u32 = 0x100;
/// Length of BAR1 of a virtio function in memory: one page, so that it can be mapped by itself.
pub const VIRTIO_BAR1_MEMORY_SIZE: u32 = 0x1000;

/// Returns the first address of BAR0 of PCI device `device` (0 to 31). The guest may move it.
#[must_use]
pub const fn bar0(device: u8) -> u32 {
    (*PCI_MEMORY.start() as u32).saturating_add(((device & 31) as u32).saturating_mul(VIRTIO_BAR0_SIZE))
}

/// Returns the first address of BAR1 of PCI device `device` (0 to 31) in I/O space. The guest may move it.
#[must_use]
pub const fn bar1(device: u8) -> u32 {
    (*PCI_IO.start() as u32).saturating_add(((device & 31) as u32).saturating_mul(VIRTIO_BAR1_SIZE))
}

/// Returns the first address of BAR1 of PCI device `device` (0 to 31) in memory, after all first BARs. The guest may move
/// it.
#[must_use]
pub const fn bar1_memory(device: u8) -> u32 {
    const FIRST: u32 = bar0(0) + PCI_DEVICES as u32 * VIRTIO_BAR0_SIZE;
    FIRST.saturating_add(((device & 31) as u32).saturating_mul(VIRTIO_BAR1_MEMORY_SIZE))
}

/// Splits `size` bytes of guest memory into the bytes below the PCI hole (from 0) and the bytes at [`HIGH_MEMORY`].
#[must_use]
pub const fn memory_split(size: u64) -> (u64, u64) {
    if size <= LOW_MEMORY_END { (size, 0) } else { (LOW_MEMORY_END, size.saturating_sub(LOW_MEMORY_END)) }
}

// The windows follow one another without overlap.
const _: () = {
    assert!(LOW_MEMORY_END <= *PCI_MEMORY.start());
    assert!(*PCI_MEMORY.end() < ECAM);
    assert!(ECAM + ECAM_SIZE <= IOAPIC);
    assert!(IOAPIC + IOAPIC_SIZE <= LOCAL_APIC);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_windows_hold_every_bar() {
        for device in 0..PCI_DEVICES as u8 {
            let (memory, io) = (u64::from(bar0(device)), bar1(device));
            assert!(memory.is_multiple_of(u64::from(VIRTIO_BAR0_SIZE)));
            assert!(PCI_MEMORY.contains(&(memory + u64::from(VIRTIO_BAR0_SIZE) - 1)));
            assert!(PCI_IO.contains(&((io + VIRTIO_BAR1_SIZE - 1) as u16)));
            let notify = u64::from(bar1_memory(device));
            assert!(notify.is_multiple_of(u64::from(VIRTIO_BAR1_MEMORY_SIZE)));
            assert!(PCI_MEMORY.contains(&(notify + u64::from(VIRTIO_BAR1_MEMORY_SIZE) - 1)));
            assert!(notify >= u64::from(bar0(PCI_DEVICES as u8 - 1)) + u64::from(VIRTIO_BAR0_SIZE));
        }
        for port in [SLEEP_CONTROL, SLEEP_STATUS, RESET, EVENT_STATUS, PM_TIMER, PM_TIMER + 3] {
            assert!(ACPI_PORTS.contains(&port));
        }
    }

    #[test]
    fn memory_beyond_the_hole_continues_at_4_gib() {
        assert_eq!(memory_split(0x2000_0000), (0x2000_0000, 0));
        assert_eq!(memory_split(0xc000_0000), (0xc000_0000, 0));
        assert_eq!(memory_split(0x1_0000_0000), (0xc000_0000, 0x4000_0000));
    }
}
