//! The device's counters, read before they stick (data sheet 8.2.3.23).

use crate::nic::Statistics;
use crate::registers::{
    BPRC, BPTC, Bus, CRCERRS, GORCH, GORCL, GOTCH, GOTCL, GPRC, GPTC, MPRC, MPTC, QPRDC, RFC, RJC, ROC, RQSMR, RUC,
    RXMPC, Register, Registers, TPR,
};

/// Microseconds between two readings. At 10 Gb/s bytes stick after 55 s, frames after 288 s.
pub(crate) const PERIOD: u64 = 1_000_000;
/// Queues have 16 drop counters.
const COUNTERS: u16 = 16;
/// What each of them has counted.
pub(crate) type Drops = [u32; COUNTERS as usize];

/// The drop counter of the driver's receive queue `index`: its own, as far as they go.
pub(crate) fn counter(index: u16) -> u16 {
    index % COUNTERS
}

/// Gives each queue its drop counter. `step`: from one of the driver's queues to the next, as the device counts.
pub(crate) fn program<R: Registers>(bus: &Bus<R>, step: u16) {
    for n in 0..32 {
        let counters = [0, 1, 2, 3].map(|i| counter((n * 4 + i) / step) as u8);
        bus.write(&RQSMR, n, u32::from_le_bytes(counters));
    }
}

/// Adds what was counted since the last reading, which clears it. `all`: frames of whatever kind, before the filters. What was
/// dropped, by counter.
pub(crate) fn read<R: Registers>(bus: &Bus<R>, sum: &mut Statistics, all: &mut u64) -> Drops {
    let one = |r: &Register| u64::from(bus.read(r, 0));
    // The upper half clears both, so it comes second.
    let bytes = |low: &Register, high: &Register| one(low) | (one(high) & 0xf) << 32;
    // The first, so that a frame that comes meanwhile is not taken for one that was left out.
    *all += one(&TPR);
    sum.received += one(&GPRC);
    sum.received_bytes += bytes(&GORCL, &GORCH);
    sum.received_multicast += one(&MPRC);
    sum.received_broadcast += one(&BPRC);
    sum.sent += one(&GPTC);
    sum.sent_bytes += bytes(&GOTCL, &GOTCH);
    sum.crc_errors += one(&CRCERRS);
    sum.length_errors += one(&RUC) + one(&ROC) + one(&RFC) + one(&RJC);
    let explained = sum.received + sum.crc_errors + sum.length_errors;
    sum.filtered = sum.filtered.max(all.saturating_sub(explained));
    sum.missed += (0..8).map(|n| u64::from(bus.read(&RXMPC, n))).sum::<u64>();
    // Not told on, but read so that they do not stick.
    let _ = (one(&MPTC), one(&BPTC));
    let drops: Drops = core::array::from_fn(|n| bus.read(&QPRDC, n as u16));
    sum.no_buffer += drops.iter().map(|n| u64::from(*n)).sum::<u64>();
    drops
}
