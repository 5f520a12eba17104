//! Receive side scaling: which queue a flow goes to (data sheet 7.1.2.8).

use crate::bits::{Mrqc, RXCSUM_PCSD};
use crate::registers::{Bus, MRQC, RETA, RSSRK, RXCSUM, Registers};

/// Queues that RSS can spread over.
pub(crate) const MAX_QUEUES: u16 = 16;
/// Entries of the redirection table.
const ENTRIES: u32 = 128;

/// Spreads TCP, UDP and other IP over queues 0 to `queues - 1` under `key`. With one queue the hash is reported only.
pub(crate) fn program<R: Registers>(bus: &Bus<R>, queues: u16, key: &[u8; 40]) {
    for (i, word) in key.as_chunks::<4>().0.iter().enumerate() {
        bus.write(&RSSRK, i as u16, u32::from_le_bytes(*word));
    }
    // `Config::check` refuses a device without queues.
    for i in (0..ENTRIES).step_by(4) {
        let entries = [0, 1, 2, 3].map(|j| (i | j).checked_rem(queues.into()).unwrap_or(0) as u8);
        bus.write(&RETA, (i / 4) as u16, u32::from_le_bytes(entries));
    }
    bus.write(&RXCSUM, 0, RXCSUM_PCSD);
    let mode = Mrqc::new()
        .with_mode(1)
        .with_tcp_ipv4(true)
        .with_ipv4(true)
        .with_ipv6(true)
        .with_tcp_ipv6(true)
        .with_udp_ipv4(true)
        .with_udp_ipv6(true);
    bus.write(&MRQC, 0, mode.into_bits());
}
