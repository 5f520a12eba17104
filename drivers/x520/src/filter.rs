//! Which frames the device lets in (data sheet 7.1.1, 8.2.3.7).

use alloc::vec::Vec;

use crate::bits::{Fctrl, MCSTCTRL_MFE, RAH_VALID, Vlnctrl};
use crate::device::Steering;
use crate::pools;
use crate::registers::{Bus, FCTRL, MCSTCTRL, MTA, RAH, RAL, Registers, VFTA, VLNCTRL};

/// Exact addresses besides the device's own.
pub const MAX_ADDRESSES: usize = 127;

/// An address whose frames have a receive queue of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steered {
    /// A unicast address.
    pub address: [u8; 6],
    /// The queue that they come by; 0 if there are not so many.
    pub queue: u16,
}

/// What to let in, besides the device's own address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// All unicasts.
    pub promiscuous: bool,
    /// All multicasts.
    pub all_multicast: bool,
    /// Broadcasts.
    pub broadcast: bool,
    /// Unicasts to these. With those in `steered` more than [`MAX_ADDRESSES`]: the device is made promiscuous.
    pub addresses: Vec<[u8; 6]>,
    /// Unicasts to these too, each by its own queue with [`Steering::Addresses`].
    pub steered: Vec<Steered>,
    /// Multicasts to these, and to others that share their hash.
    pub groups: Vec<[u8; 6]>,
    /// Tagged frames of these VLANs only. None: of all. Addresses are steered in the first 64 VLANs named here, and without
    /// a tag.
    pub vlans: Option<Vec<u16>>,
}

impl Filter {
    /// Everything.
    #[must_use]
    pub fn all() -> Self {
        Self { promiscuous: true, all_multicast: true, broadcast: true, ..Self::default() }
    }
}

/// Word and bit of an address in the multicast table: its bits 47:36 (MCSTCTRL.MO is 0).
fn hash(group: [u8; 6]) -> (usize, u32) {
    let bits = u16::from_le_bytes([group[4], group[5]]) >> 4;
    (usize::from(bits / 32), 1 << (bits % 32))
}

/// Writes everything anew: the tables hold anything after power-on. There are `queues` receive queues.
pub(crate) fn program<R: Registers>(bus: &Bus<R>, filter: &Filter, steering: Steering, queues: u16) {
    let has_pools = steering == Steering::Addresses;
    let fits = filter.addresses.len() + filter.steered.len() <= MAX_ADDRESSES;
    let plain = filter.addresses.iter().map(|address| Steered { address: *address, queue: 0 });
    let mut entries = plain.chain(filter.steered.iter().copied()).filter(|_| fits);
    if has_pools {
        // The device's own address.
        pools::assign(bus, 0, 0);
        pools::program_filter(bus, filter);
    }
    for n in 1..=MAX_ADDRESSES as u16 {
        let entry = entries.next();
        let (low, high) = entry.map_or((0, 0), |Steered { address: [a, b, c, d, e, f], .. }| {
            (u32::from_le_bytes([a, b, c, d]), u32::from(u16::from_le_bytes([e, f])) | RAH_VALID)
        });
        // Never a valid entry with half an address.
        bus.write(&RAH, n, 0);
        bus.write(&RAL, n, low);
        if has_pools {
            pools::assign(bus, n, entry.map(|e| e.queue).filter(|queue| *queue < queues).unwrap_or(0));
        }
        bus.write(&RAH, n, high);
    }
    let mut table = [0u32; 128];
    for group in &filter.groups {
        let (word, bit) = hash(*group);
        table[word] |= bit;
    }
    for (n, word) in table.iter().enumerate() {
        bus.write(&MTA, n as u16, *word);
    }
    bus.write(&MCSTCTRL, 0, if filter.groups.is_empty() { 0 } else { MCSTCTRL_MFE });
    let mut vlans = [0u32; 128];
    for id in filter.vlans.iter().flatten() {
        vlans[usize::from(id & 0xfff) / 32] |= 1 << (id % 32);
    }
    for (n, word) in vlans.iter().enumerate() {
        bus.write(&VFTA, n as u16, *word);
    }
    bus.update(&VLNCTRL, 0, |v| Vlnctrl::from_bits(v).with_vfe(filter.vlans.is_some()).into_bits());
    let control =
        Fctrl::new().with_mpe(filter.all_multicast).with_upe(filter.promiscuous || !fits).with_bam(filter.broadcast);
    bus.write(&FCTRL, 0, control.into_bits());
}
