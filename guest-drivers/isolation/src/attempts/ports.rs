//! Accesses every port. A port that is not the guest's reads as all ones, and writes have no effect, as on a bus
//! without a target. Some of these ports would reset or power off the host.

use crate::report::Report;
use crate::virtio::Net;
use bare::{console, cpu};

/// Whether a port is one of this machine's: console, clock, ACPI, configuration space, notifications of a network device.
fn own(port: u16, nets: &[Option<Net>; 2]) -> bool {
    let port = u64::from(port);
    let console = u64::from(console::COM1);
    let net = nets
        .iter()
        .flatten()
        .filter_map(|net| net.parts.io_ports())
        .any(|first| (first..first + 0x100).contains(&port));
    (console..console + 8).contains(&port)
        || (0x70..0x72).contains(&port)
        || (0x600..0x610).contains(&port)
        || (0xcf8..0xd00).contains(&port)
        || net
}

/// Tries all 65,536 ports. An OUT had no effect if the test and the host still run and count it.
pub fn sweep(nets: &[Option<Net>; 2], report: &mut Report) {
    for port in (0..=u16::MAX).filter(|port| !own(*port, nets)) {
        let value = cpu::in8(port);
        report.attempt(value == 0xff, format_args!("IN of a byte from {port:#x} gave {value:#x}"));
        cpu::out8(port, 0xff);
        report.attempt(true, format_args!(""));
    }
    for port in (0..=u16::MAX).step_by(4).filter(|port| (0..4).all(|offset| !own(port + offset, nets))) {
        let value = (cpu::in16(port), cpu::in32(port));
        report.attempt(value == (0xffff, u32::MAX), format_args!("wide IN from {port:#x} gave {value:x?}"));
        cpu::out32(port, 0);
        report.attempt(cpu::in32(port) == u32::MAX, format_args!("OUT to {port:#x} stayed"));
    }
    // Fast reset, SMI, QEMU's exit. The other ways to reset (0x64, 0xCF9) are the guest's own: they would end it.
    for (port, value) in [(0x92, 1), (0xb2, 0xff), (0xf4, 0), (0x501, 0)] {
        cpu::out8(port, value);
        report.attempt(true, format_args!(""));
    }
    cpu::out_string(0x8900, b"Shutdown");
    report.attempt(true, format_args!(""));
    for port in [0x60, 0x72, 0x8900] {
        let bytes = cpu::in_string(port);
        report.attempt(bytes == [0xff; 4], format_args!("REP INSB from {port:#x} gave {bytes:x?}"));
    }
}
