//! Pools of queues (VMDq): a receive queue for chosen addresses (data sheet 7.1.2.2, 7.10.3, 8.2.3.27).
//!
//! Receive queue `n` of the driver is the first of pool `n`'s two queues. Pool 0 is the default one: whatever is for no
//! other comes there, broadcasts and multicasts too, once each, for whoever polls is a switch himself. By which queue a
//! frame comes is a help and no protection: a tagged frame of a VLAN that has no entry may come by pool 0.

use crate::bits::{Mrqc, Mtqc, PFVLVF_VALID, Pfvml2flt, Pfvtctl, RXCSUM_PCSD};
use crate::filter::Filter;
use crate::registers::{
    Bus, MPSAR, MRQC, MTQC, PFVFRE, PFVFTE, PFVLVF, PFVLVFB, PFVML2FLT, PFVTCTL, RXCSUM, Registers,
};

/// Queues that addresses can be steered to, each the first of a pool's two. There are 64 pools, but the registers of their
/// upper half lie elsewhere.
pub(crate) const MAX_QUEUES: u16 = 32;
/// From the driver's queue to the next, as the device counts.
pub(crate) const QUEUES_OF_POOL: u16 = 2;
const POOLS: u16 = 64;
/// MRQC, MTQC: 64 pools of two queues, no RSS.
const POOLS_ONLY: u8 = 8;
const OF_TWO_QUEUES: u8 = 1;

/// The device's number of the driver's receive queue `queue`.
pub(crate) fn number(queue: u16) -> u16 {
    queue * QUEUES_OF_POOL
}

/// Receive queues are those of pools.
pub(crate) fn program<R: Registers>(bus: &Bus<R>) {
    bus.write(&PFVTCTL, 0, Pfvtctl::new().with_enable(true).with_replication(true).into_bits());
    bus.write(&MRQC, 0, Mrqc::new().with_mode(POOLS_ONLY).into_bits());
    // As with RSS; there is no hash then.
    bus.write(&RXCSUM, 0, RXCSUM_PCSD);
    for n in 0..2 {
        bus.write(&PFVFRE, n, u32::MAX);
        bus.write(&PFVFTE, n, u32::MAX);
    }
}

/// Transmit queues are those of pools, as the receive queues are; while the arbiter is off.
pub(crate) fn program_transmit<R: Registers>(bus: &Bus<R>) {
    bus.write(&MTQC, 0, Mtqc::new().with_pools(true).with_kind(OF_TWO_QUEUES).into_bits());
}

/// Writes which pool an entry of the address table is for.
pub(crate) fn assign<R: Registers>(bus: &Bus<R>, entry: u16, pool: u16) {
    bus.write(&MPSAR, 2 * entry, if pool < 32 { 1 << pool } else { 0 });
    bus.write(&MPSAR, 2 * entry + 1, 0);
}

/// Writes what pool 0 lets in besides addresses and VLANs.
pub(crate) fn let_in<R: Registers>(bus: &Bus<R>, filter: &Filter) {
    let flags = Pfvml2flt::new()
        .with_untagged(true)
        .with_broadcast(true)
        .with_multicast_table(true)
        .with_multicast(filter.all_multicast);
    bus.write(&PFVML2FLT, 0, flags.into_bits());
}

/// Writes what the other pools let in besides addresses, and for all of them in which VLANs addresses are steered.
pub(crate) fn program_filter<R: Registers>(bus: &Bus<R>, filter: &Filter) {
    for pool in 1..POOLS {
        bus.write(&PFVML2FLT, pool, Pfvml2flt::new().with_untagged(true).into_bits());
    }
    // A VLAN's entry says which pools it is for: all, so that the address decides.
    let vlans = filter.vlans.as_deref().unwrap_or_default();
    for n in 0..POOLS {
        let id = vlans.get(usize::from(n)).map(|id| u32::from(id & 0xfff) | PFVLVF_VALID);
        bus.write(&PFVLVF, n, id.unwrap_or(0));
        for half in 0..2 {
            bus.write(&PFVLVFB, 2 * n + half, if id.is_some() { u32::MAX } else { 0 });
        }
    }
}
