//! The device's counters, which stay at their largest value unless read (82576 data sheet 8.19).

use intel_nic::nic::Statistics;

use crate::registers::{
    BPRC, Bus, CRCERRS, GORCH, GORCL, GOTCH, GOTCL, GPRC, GPTC, MPC, MPRC, RFC, RJC, RNBC, ROC, RUC, Register,
    Registers, TPR,
};

/// Microseconds between two readings. At 1 Gb/s byte counters of 36 bits are full after 549 s, frame counters after 2,886 s.
pub(crate) const PERIOD: u64 = 1_000_000;

/// Adds `more` to a sum of what the device has counted, which stays at the largest value.
fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

/// Adds the counts since the last reading to `sum`; reading clears the registers. `all`: frames of any kind, before the filters.
/// Returns the frames since then for which the queue had no buffer.
pub(crate) fn read<R: Registers>(bus: &Bus<R>, sum: &mut Statistics, all: &mut u64) -> u64 {
    let one = |r: &Register| u64::from(bus.read(r, 0));
    // Reading the upper half clears both, so it is read second.
    let bytes = |low: &Register, high: &Register| one(low) | one(high) << 32;
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
    add(&mut sum.missed, one(&MPC));
    let waited = one(&RNBC);
    add(&mut sum.no_buffer, waited);
    waited
}
