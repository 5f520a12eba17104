//! Makes virtio rings that break the rules. Most point to memory that is not the guest's. The device must give up
//! (DEVICE_NEEDS_RESET), change nothing, and work again after a reset.
//!
//! Follows virtio 1.3, 2.1 (status), 2.7 (split virtqueues), 4.1.4.3 (common configuration).

use crate::report::Report;
use crate::virtio::{
    FRAME_BYTES, INDIRECT, INDIRECT_DESC, NEEDS_RESET, NEXT, Net, RX, Rings, SIZE, TX, VERSION_1, WRITE, wait,
};
use bare::boot::Machine;

/// Makes all attempts of this file.
pub fn all(nets: &[Option<Net>; 2], machine: &Machine, report: &mut Report) {
    let Some(net) = &nets[0] else { return report.broken(format_args!("no network device")) };
    if !net.check(report) {
        return;
    }
    for address in outside(machine) {
        one_descriptor(report, net, "a buffer outside memory", (address, FRAME_BYTES, 0, 0));
    }
    one_descriptor(report, net, "a buffer that reaches beyond memory", (machine.memory_end - 32, FRAME_BYTES, 0, 0));
    one_descriptor(report, net, "a buffer of 4 GiB", (net.buffer(), u32::MAX, 0, 0));
    one_descriptor(report, net, "a buffer of no bytes", (net.buffer(), 0, 0, 0));
    one_descriptor(report, net, "a next descriptor beyond the table", (net.buffer(), FRAME_BYTES, NEXT, SIZE));
    one_descriptor(report, net, "a descriptor that is its own next", (net.buffer(), FRAME_BYTES, NEXT, 0));
    one_descriptor(report, net, "a writable buffer to transmit", (net.buffer(), FRAME_BYTES, WRITE, 0));
    one_descriptor(report, net, "INDIRECT without the feature", (net.buffer(), 32, INDIRECT, 0));
    indices(report, net);
    indirect(report, net, machine);
    set_up(report, net, machine);
    features(report, net);
    if let Some(sender) = &nets[1] {
        receive(report, net, sender, machine);
    }
    net.reset();
}

/// Addresses that are not the guest's memory.
fn outside(machine: &Machine) -> [u64; 12] {
    [
        machine.memory_end,
        machine.high_end,
        0xc000_0000,
        0xe000_0000,
        0xfec0_0000,
        0xfee0_0000,
        0xffff_fff0,
        1 << 40,
        1 << 52,
        1 << 63,
        u64::MAX - 15,
        u64::MAX,
    ]
}

/// Checks that the device gives up, and that it takes a frame after a reset.
fn expect_needs_reset(report: &mut Report, net: &Net, what: &str) {
    let gave_up = wait(|| net.status() & NEEDS_RESET != 0);
    let used = net.used(TX);
    let again = net.up_well() && net.send(0);
    let refused = gave_up && used == 0 && again;
    report.attempt(refused, format_args!("{what}: gave up {gave_up}, used {used}, works again {again}"));
}

fn one_descriptor(report: &mut Report, net: &Net, what: &str, (address, length, flags, next): (u64, u32, u16, u16)) {
    net.up_well();
    net.write_frame();
    Net::describe(net.rings(TX).desc, 0, address, length, flags, next);
    net.offer(TX, 0, 0);
    net.publish(TX, 1);
    expect_needs_reset(report, net, what);
}

/// Tries bad heads and indices in the available ring.
fn indices(report: &mut Report, net: &Net) {
    let frame = || {
        net.up_well();
        net.write_frame();
        Net::describe(net.rings(TX).desc, 0, net.buffer(), FRAME_BYTES, 0, 0);
    };
    for head in [SIZE, 0xff, 0x8000, 0xffff] {
        frame();
        net.offer(TX, 0, head);
        net.publish(TX, 1);
        expect_needs_reset(report, net, "a head beyond the table");
    }
    for index in [SIZE + 1, 0x100, 0x8000, 0xffff] {
        frame();
        net.publish(TX, index);
        expect_needs_reset(report, net, "an available index more than a queue ahead");
    }
    // A chain of all descriptors that goes back to its head.
    frame();
    for index in 0..SIZE {
        Net::describe(net.rings(TX).desc, index, net.buffer(), FRAME_BYTES, NEXT, (index + 1) % SIZE);
    }
    net.offer(TX, 0, 0);
    net.publish(TX, 1);
    expect_needs_reset(report, net, "a loop of descriptors");
}

/// Tries bad indirect tables.
fn indirect(report: &mut Report, net: &Net, machine: &Machine) {
    if net.offered() & INDIRECT_DESC == 0 {
        return;
    }
    let table = net.buffer() + 0x800;
    let mut attempt = |what: &str, address: u64, length: u32, flags: u16, inner: (u64, u32, u16, u16)| {
        net.up(VERSION_1 | INDIRECT_DESC, net.rings(TX));
        net.write_frame();
        let (inner_address, inner_length, inner_flags, next) = inner;
        Net::describe(table, 0, inner_address, inner_length, inner_flags, next);
        Net::describe(net.rings(TX).desc, 0, address, length, flags, 0);
        net.offer(TX, 0, 0);
        net.publish(TX, 1);
        expect_needs_reset(report, net, what);
    };
    let good = (net.buffer(), FRAME_BYTES, 0, 0);
    for address in outside(machine) {
        attempt("a table outside memory", address, 16, INDIRECT, good);
        attempt("a table that names a buffer outside memory", table, 16, INDIRECT, (address, FRAME_BYTES, 0, 0));
    }
    attempt("a table of 17 bytes", table, 17, INDIRECT, good);
    attempt("a table of no bytes", table, 0, INDIRECT, good);
    attempt("a table in a table", table, 16, INDIRECT, (table, 16, INDIRECT, 0));
    attempt("a table with a next descriptor", table, 16, INDIRECT | NEXT, good);
    attempt("a next descriptor beyond the small table", table, 16, INDIRECT, (net.buffer(), FRAME_BYTES, NEXT, 1));
}

/// Tries rings outside the guest's memory, and misaligned rings.
fn set_up(report: &mut Report, net: &Net, machine: &Machine) {
    let good = net.rings(TX);
    let mut attempt = |what: &str, rings: Rings| {
        net.up(VERSION_1, rings);
        // The frame itself is correct. Only the set-up is wrong.
        net.write_frame();
        Net::describe(good.desc, 0, net.buffer(), FRAME_BYTES, 0, 0);
        net.publish(TX, 1);
        expect_needs_reset(report, net, what);
    };
    for address in outside(machine) {
        let address = address & !0xfff;
        attempt("a descriptor table outside memory", Rings { desc: address, ..good });
        attempt("an available ring outside memory", Rings { avail: address, ..good });
        attempt("a used ring outside memory", Rings { used: address, ..good });
    }
    attempt("a used ring that reaches beyond memory", Rings { used: machine.memory_end - 8, ..good });
    attempt("a misaligned descriptor table", Rings { desc: good.desc + 8, ..good });
    attempt("a misaligned available ring", Rings { avail: good.avail + 1, ..good });
    attempt("a misaligned used ring", Rings { used: good.used + 2, ..good });
    for size in [3, 0x4000, 0x8000, 0xffff] {
        net.up(VERSION_1, Rings { size, ..good });
        let kept = net.size(TX) != size;
        let gave_up = kept || wait(|| net.status() & NEEDS_RESET != 0);
        report.attempt(gave_up, format_args!("a queue size of {size:#x} was taken"));
    }
    // Moving a queue that is in use must not move it.
    net.up_well();
    net.set_queue(TX, Rings { desc: machine.memory_end, ..good });
    let works = net.send(0) && net.status() & NEEDS_RESET == 0;
    report.attempt(works, format_args!("a queue moved while in use: it moved"));
}

/// Accepts features that were not offered. FEATURES_OK must not stay set.
fn features(report: &mut Report, net: &Net) {
    let offered = net.offered();
    for bit in (0..64).filter(|bit| offered & 1 << bit == 0) {
        let agreed = net.negotiate(VERSION_1 | 1 << bit);
        report.attempt(!agreed, format_args!("feature {bit}, not offered, was agreed to"));
    }
    let agreed = net.negotiate(0);
    report.attempt(!agreed, format_args!("a driver without VERSION_1 was agreed to"));
}

/// Offers receive buffers outside the guest's memory. Frames of the guest's own second device would fill them.
fn receive(report: &mut Report, net: &Net, sender: &Net, machine: &Machine) {
    for (address, flags) in outside(machine).map(|address| (address, WRITE)).into_iter().chain([(net.buffer(), 0)]) {
        net.up_well();
        Net::describe(net.rings(RX).desc, 0, address, 1600, flags, 0);
        net.offer(RX, 0, 0);
        net.publish(RX, 1);
        let sent = sender.up_well() && sender.send(0);
        if !sent {
            report.broken(format_args!("the second network device does not send"));
            return;
        }
        let gave_up = wait(|| net.status() & NEEDS_RESET != 0);
        let used = net.used(RX);
        report.attempt(gave_up && used == 0, format_args!("a receive buffer at {address:#x}: used {used}"));
    }
    sender.reset();
}
