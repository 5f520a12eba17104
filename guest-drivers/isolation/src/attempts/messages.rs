//! Has the device send MSI-X messages that it must not send: NMI, INIT, SMI, vectors of exceptions, other destinations,
//! other addresses. The device must complete the request and send nothing.
//!
//! Follows SDM vol. 3A 11.11 (message format) and PCI 3.0, 6.8.2.

use crate::attempts::interrupts;
use crate::report::Report;
use crate::virtio::{Net, wait};
use bare::{cpu, trap};

const ADDRESS: u64 = 0xfee0_0000;
const VECTOR: u8 = 0x51;
const SPINS: u32 = 2000;

/// Makes all attempts of this file.
pub fn all(nets: &[Option<Net>; 2], report: &mut Report) {
    let Some(net) = &nets[0] else { return report.broken(format_args!("no network device")) };
    let own = u64::from(interrupts::enable_apic(report));
    if !net.check(report) {
        return;
    }
    net.up_well();
    net.enable_msix(true);
    let mut sent = 0;
    let here = ADDRESS | own << 12;
    good(report, net, here, &mut sent);

    let before = trap::all_arrived();
    // SMI, reserved, NMI, INIT, reserved, ExtINT. Each is tried with a good vector and with none.
    let modes = (2..8).flat_map(|mode| [mode << 8, mode << 8 | u32::from(VECTOR)]);
    let vectors = (0..0x20).chain([0xff]);
    let level = [0x8000, 0xc000].map(|bits| bits | u32::from(VECTOR));
    for data in modes.chain(vectors).chain(level) {
        bad(report, net, before, (here, data), &mut sent);
    }
    let vector = u32::from(VECTOR);
    for other in (0..0xff).filter(|id| *id != own) {
        bad(report, net, before, (ADDRESS | other << 12, vector), &mut sent);
    }
    // Addresses to which no interrupt is sent: memory, the IOAPIC, ECAM, above 4 GiB.
    for address in [0x40_0000, 0xfec0_0000, 0xe000_0000, 0xfed0_0000, 0xfef0_0000, here | 1 << 32, here | 1 << 63] {
        bad(report, net, before, (address, vector), &mut sent);
    }
    good(report, net, here, &mut sent);
    net.enable_msix(false);
    net.reset();
}

/// Checks that a message that the guest may send arrives.
fn good(report: &Report, net: &Net, address: u64, sent: &mut u16) {
    net.set_message(address, VECTOR.into());
    let before = trap::arrived(VECTOR);
    let taken = net.send(*sent);
    *sent += 1;
    let arrived = wait(|| {
        cpu::open_interrupts(SPINS);
        trap::arrived(VECTOR) != before
    });
    if !taken || !arrived {
        report.broken(format_args!("a good message: frame taken {taken}, interrupt arrived {arrived}"));
    }
}

fn bad(report: &mut Report, net: &Net, before: u32, (address, data): (u64, u32), sent: &mut u16) {
    net.set_message(address, data);
    let taken = net.send(*sent);
    *sent += 1;
    cpu::open_interrupts(SPINS);
    let arrived = trap::all_arrived().wrapping_sub(before);
    let refused = taken && arrived == 0;
    report.attempt(refused, format_args!("message {data:#x} to {address:#x}: taken {taken}, {arrived} arrived"));
}
