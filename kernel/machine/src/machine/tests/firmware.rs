//! What firmware needs of a machine: README.md has the list.

use super::{
    rig::{Rig, rig},
    *,
};
use crate::{elf::image::Image, machine::settings::FIRMWARE_TIMER_HZ, pvh};

#[test]
fn an_elf_file_starts_by_the_pvh_entry_with_its_tables_where_the_start_info_says() {
    let file = Image::new(true, 0x10_0008).bytes();
    let machine = Machine::new(Settings { kernel: &file, firmware: true, ..settings() }).unwrap();
    assert_eq!((machine.start.rip, machine.start.gprs.rbx), (0x10_0008, pvh::BOOT_INFO));
    assert_eq!(machine.placement().kernel, 0x10_0000);
    let mut signature = [0; 8];
    machine.memory.read(pvh::TABLES, &mut signature).unwrap();
    assert_eq!(&signature, b"RSD PTR ");
}

#[test]
fn firmware_that_is_no_elf_file_is_an_error_and_so_is_a_damaged_one() {
    let with = |file: &[u8]| Machine::new(Settings { kernel: file, firmware: true, ..settings() }).err();
    assert_eq!(with(&kernel()), Some(Error::Firmware));
    assert!(matches!(with(b"\x7fELF"), Some(Error::Pvh(pvh::Error::Elf(_)))));
}

#[test]
fn the_timer_that_edk2_takes_for_1_ghz_has_1_ghz_where_it_is_emulated() {
    let file = Image::new(true, 0x10_0008).bytes();
    for interrupts in [Interrupts::Emulated, Interrupts::Virtualized, Interrupts::Owned] {
        let platform = Platform { tsc_khz: 2_100_000, ..settings().platform };
        let settings = Settings { kernel: &file, firmware: true, interrupts, platform, ..settings() };
        let machine = Machine::new(settings).unwrap();
        let wanted = if interrupts == Interrupts::Owned { platform.apic_hz } else { FIRMWARE_TIMER_HZ };
        assert_eq!(machine.timer_hz, wanted, "{interrupts:?}");
    }
}

#[test]
fn the_pm_timer_answers_at_its_port() {
    let mut r = rig(1);
    r.host.tsc.set(1_000_000_000);
    assert_eq!(read(&mut r, layout::PM_TIMER, 4), 3_579_545);
    r.host.tsc.set(2_000_000_000);
    assert_eq!(read(&mut r, layout::PM_TIMER, 4), 2 * 3_579_545);
}

#[test]
fn both_old_ways_to_reset_end_the_guest() {
    for (port, value) in [(0xcf9, 0x06), (0xcf9, 0x0e), (0x64, 0xfe)] {
        let mut r = rig(1);
        assert_eq!(write(&mut r, port, 1, value), Next::Stop(Stop::Reset), "{value:#x} to {port:#x}");
    }
    // What is no reset: another command, the kind of reset alone, and CONFIG_ADDRESS with the same bits.
    for (port, size, value) in [(0x64, 1, 0xd1), (0x64, 4, 0xfe), (0xcf9, 1, 2), (0xcf8, 4, 0x600)] {
        let mut r = rig(1);
        assert_eq!(write(&mut r, port, size, value), Next::Continue, "{value:#x} to {port:#x}");
    }
}

#[test]
fn absent_ports_read_as_all_ones() {
    let mut r = rig(1);
    for port in [0x64, 0x92, 0x402, 0x510, 0x511, 0x514] {
        assert_eq!(read(&mut r, port, 1), 0xff, "{port:#x}");
    }
}

#[test]
fn the_cmos_clock_shows_the_hosts_time_and_no_update_is_under_way() {
    let mut r = rig(1);
    let mut register = |index| {
        assert_eq!(write(&mut r, layout::CMOS_INDEX, 1, index), Next::Continue);
        read(&mut r, layout::CMOS_DATA, 1)
    };
    // 2023-11-14 22:13:20.
    assert_eq!([0, 2, 4, 7, 8, 9].map(&mut register), [0x20, 0x13, 0x22, 0x14, 0x11, 0x23]);
    assert_eq!((register(0x0a) & 0x80, register(0x0d)), (0, 0x80));
}

fn read(r: &mut Rig, port: u16, size: u8) -> u64 {
    r.vcpu().gprs.rax = 0;
    access_port(r, port, size, false);
    r.vcpu().gprs.rax
}

fn write(r: &mut Rig, port: u16, size: u8, value: u64) -> Next {
    r.vcpu().gprs.rax = value;
    access_port(r, port, size, true)
}

fn access_port(r: &mut Rig, port: u16, size: u8, write: bool) -> Next {
    let access = PortAccess { port, size, write, string: false, repeat: false, next_rip: 0x1002 };
    r.exit(&[0xec], Exit::Port(access))
}
