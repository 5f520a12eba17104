//! Pools of queues (VMDq): a receive queue for chosen addresses (data sheet 7.1.2.2, 7.10.3, 8.2.3.27).
//!
//! Receive queue `n` of the driver is the first of pool `n`'s two queues. Pool 0 is the default pool: it gets every frame that
//! is for no other pool. It also gets one copy of each broadcast and multicast; the engine's switch replicates them. Steering
//! isolates nobody: a tagged frame of a VLAN without an entry may come by pool 0. The switch decides whose a frame is.

use core::num::NonZero;

use crate::bits::{Mrqc, Mtqc, PFVLVF_VALID, Pfvml2flt, Pfvtctl, RXCSUM_PCSD};
use crate::filter::Filter;
use crate::registers::{
    Bus, MPSAR, MRQC, MTQC, PFVFRE, PFVFTE, PFVLVF, PFVLVFB, PFVML2FLT, PFVTCTL, RXCSUM, Registers,
};

/// Queues that addresses can be steered to, each the first of a pool's two. There are 64 pools, but the registers of their
/// upper half lie elsewhere.
pub(crate) const MAX_QUEUES: u16 = 32;
/// Queues of a pool: the distance of two queues of the driver in the device's numbering.
pub(crate) const QUEUES_OF_POOL: NonZero<u16> = NonZero::new(2).unwrap();
const POOLS: u16 = 64;
/// MRQC, MTQC: 64 pools of two queues, no RSS.
const POOLS_ONLY: u8 = 8;
const OF_TWO_QUEUES: u8 = 1;

/// The device's number of the driver's receive queue `queue`.
pub(crate) fn number(queue: u16) -> u16 {
    queue.saturating_mul(QUEUES_OF_POOL.get())
}

/// Switches the receive side to pools.
pub(crate) fn program<R: Registers>(bus: &Bus<R>) {
    bus.write(&PFVTCTL, 0, Pfvtctl::new().with_enable(true).with_replication(true).into_bits());
    bus.write(&MRQC, 0, Mrqc::new().with_mode(POOLS_ONLY).into_bits());
    // The same as with RSS. There is no hash in this mode.
    bus.write(&RXCSUM, 0, RXCSUM_PCSD);
    for n in 0..2 {
        bus.write(&PFVFRE, n, u32::MAX);
        bus.write(&PFVFTE, n, u32::MAX);
    }
}

/// Switches the transmit side to pools. The transmit arbiter has to be off.
pub(crate) fn program_transmit<R: Registers>(bus: &Bus<R>) {
    bus.write(&MTQC, 0, Mtqc::new().with_pools(true).with_kind(OF_TWO_QUEUES).into_bits());
}

/// Assigns an entry of the address table to a pool.
pub(crate) fn assign<R: Registers>(bus: &Bus<R>, entry: u16, pool: u16) {
    bus.write(&MPSAR, entry << 1, if pool < 32 { 1 << pool } else { 0 });
    bus.write(&MPSAR, entry << 1 | 1, 0);
}

/// Programs which frames pool 0 accepts besides those that match by address and VLAN.
pub(crate) fn program_default_pool<R: Registers>(bus: &Bus<R>, filter: &Filter) {
    let flags = Pfvml2flt::new()
        .with_untagged(true)
        .with_broadcast(true)
        .with_multicast_table(true)
        .with_multicast(filter.all_multicast);
    bus.write(&PFVML2FLT, 0, flags.into_bits());
}

/// Programs which frames the other pools accept besides those that match by address, and for all pools the VLANs in which
/// frames are steered by address.
pub(crate) fn program_other_pools<R: Registers>(bus: &Bus<R>, filter: &Filter) {
    for pool in 1..POOLS {
        bus.write(&PFVML2FLT, pool, Pfvml2flt::new().with_untagged(true).into_bits());
    }
    // Each VLAN's entry names all pools, so that the address decides.
    let vlans = filter.vlans.as_deref().unwrap_or_default();
    for n in 0..POOLS {
        let id = vlans.get(usize::from(n)).map(|id| u32::from(id & 0xfff) | PFVLVF_VALID);
        bus.write(&PFVLVF, n, id.unwrap_or(0));
        for half in 0..2 {
            bus.write(&PFVLVFB, n << 1 | half, if id.is_some() { u32::MAX } else { 0 });
        }
    }
}
