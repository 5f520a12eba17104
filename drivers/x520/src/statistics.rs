//! The device's counters, read before they stick (data sheet 8.2.3.23).

use crate::nic::Statistics;
use crate::registers::{
    BPRC, BPTC, Bus, CRCERRS, GORCH, GORCL, GOTCH, GOTCL, GPRC, GPTC, MPRC, MPTC, QPRDC, ROC, RQSMR, RUC, RXMPC,
    Register, Registers,
};

/// Microseconds between two readings. At 10 Gb/s bytes stick after 55 s, frames after 288 s.
pub(crate) const PERIOD: u64 = 1_000_000;
/// Queues have 16 drop counters.
const COUNTERS: u16 = 16;

/// Gives each queue a drop counter of its own, as far as they go.
pub(crate) fn program<R: Registers>(bus: &Bus<R>) {
    for n in 0..32u32 {
        let counters = [0, 1, 2, 3].map(|i| ((n * 4 + i) % u32::from(COUNTERS)) as u8);
        bus.write(&RQSMR, n as u16, u32::from_le_bytes(counters));
    }
}

/// Adds what was counted since the last reading, which clears it.
pub(crate) fn read<R: Registers>(bus: &Bus<R>, sum: &mut Statistics) {
    let one = |r: &Register| u64::from(bus.read(r, 0));
    // The upper half clears both, so it comes second.
    let bytes = |low: &Register, high: &Register| one(low) | (one(high) & 0xf) << 32;
    sum.received += one(&GPRC);
    sum.received_bytes += bytes(&GORCL, &GORCH);
    sum.received_multicast += one(&MPRC);
    sum.received_broadcast += one(&BPRC);
    sum.sent += one(&GPTC);
    sum.sent_bytes += bytes(&GOTCL, &GOTCH);
    sum.crc_errors += one(&CRCERRS);
    sum.length_errors += one(&RUC) + one(&ROC);
    sum.missed += (0..8).map(|n| u64::from(bus.read(&RXMPC, n))).sum::<u64>();
    sum.no_buffer += (0..COUNTERS).map(|n| u64::from(bus.read(&QPRDC, n))).sum::<u64>();
    // Not told on, but read so that they do not stick.
    let _ = (one(&MPTC), one(&BPTC));
}
