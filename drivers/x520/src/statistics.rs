//! The device's counters, which saturate unless read (data sheet 8.2.3.23).

use core::num::NonZero;

use crate::nic::Statistics;
use crate::registers::{
    BPRC, BPTC, Bus, CRCERRS, GORCH, GORCL, GOTCH, GOTCL, GPRC, GPTC, MPRC, MPTC, QPRDC, RFC, RJC, ROC, RQSMR, RUC,
    RXMPC, Register, Registers, TPR,
};

/// Microseconds between two readings. At 10 Gb/s byte counters saturate after 55 s, frame counters after 288 s.
pub(crate) const PERIOD: u64 = 1_000_000;
/// Drop counters of the queues.
const COUNTERS: u16 = 16;
/// Frames dropped, by drop counter.
pub(crate) type Drops = [u32; COUNTERS as usize];

/// The drop counter of the driver's receive queue `index`. Beyond 16 queues, two share one.
pub(crate) fn counter(index: u16) -> u16 {
    index % COUNTERS
}

/// Gives each queue its drop counter. `step`: distance of two of the driver's queues in the device's numbering.
pub(crate) fn program<R: Registers>(bus: &Bus<R>, step: NonZero<u16>) {
    for n in 0..32 {
        let counters = [0, 1, 2, 3].map(|i| counter((n << 2 | i) / step) as u8);
        bus.write(&RQSMR, n, u32::from_le_bytes(counters));
    }
}

/// Adds `more` to a sum of what the device has counted, which stays at the largest value.
fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

/// Adds the counts since the last reading to `sum`; reading clears the registers. `all`: frames of any kind, before the filters.
/// Returns the drops by counter.
pub(crate) fn read<R: Registers>(bus: &Bus<R>, sum: &mut Statistics, all: &mut u64) -> Drops {
    let one = |r: &Register| u64::from(bus.read(r, 0));
    // Reading the upper half clears both, so it is read second.
    let bytes = |low: &Register, high: &Register| one(low) | (one(high) & 0xf) << 32;
    // TPR is read first, so that a frame that arrives meanwhile does not count as filtered.
    add(all, one(&TPR));
    add(&mut sum.received, one(&GPRC));
    add(&mut sum.received_bytes, bytes(&GORCL, &GORCH));
    add(&mut sum.received_multicast, one(&MPRC));
    add(&mut sum.received_broadcast, one(&BPRC));
    add(&mut sum.sent, one(&GPTC));
    add(&mut sum.sent_bytes, bytes(&GOTCL, &GOTCH));
    add(&mut sum.crc_errors, one(&CRCERRS));
    add(&mut sum.length_errors, [RUC, ROC, RFC, RJC].iter().map(one).sum());
    let explained = sum.received.saturating_add(sum.crc_errors).saturating_add(sum.length_errors);
    sum.filtered = sum.filtered.max(all.saturating_sub(explained));
    add(&mut sum.missed, (0..8).map(|n| u64::from(bus.read(&RXMPC, n))).sum());
    // Not reported, but read so that they do not saturate.
    let _ = (one(&MPTC), one(&BPTC));
    let drops: Drops = core::array::from_fn(|n| bus.read(&QPRDC, n as u16));
    add(&mut sum.no_buffer, drops.iter().map(|n| u64::from(*n)).sum());
    drops
}
