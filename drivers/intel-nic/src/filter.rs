//! The receive filter (82599 data sheet 7.1.1; 82576 data sheet 7.1.1), and how it changes while frames arrive.

use alloc::vec::Vec;

use nic::{Filtered, ReceiveFilter, Unicast};

/// Most multicast addresses in the filter. With more, the device accepts all multicasts: its table has one bit for each value
/// of a 12-bit hash, and with many addresses most frames match.
pub const MAX_GROUPS: usize = 128;
/// RAH: the address is valid.
pub const RAH_VALID: u32 = 1 << 31;

/// Frames that the device accepts, besides those for its own address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// All unicasts.
    pub promiscuous: bool,
    /// All multicasts.
    pub all_multicast: bool,
    /// Broadcasts.
    pub broadcast: bool,
    /// Unicasts to these addresses. If the device steers by addresses, each comes by its queue. With more than the device's
    /// table has room for, the device is promiscuous, and all frames come by queue 0.
    pub addresses: Vec<Unicast>,
    /// Multicasts to these addresses, and to others with the same hash.
    pub groups: Vec<[u8; 6]>,
    /// Tagged frames of these VLANs only. `None`: of all VLANs. Steering by address works for untagged frames and in the first
    /// 64 VLANs of this list.
    pub vlans: Option<Vec<u16>>,
}

impl Filter {
    /// Accepts every frame.
    #[must_use]
    pub fn all() -> Self {
        Self { promiscuous: true, all_multicast: true, broadcast: true, ..Self::default() }
    }

    /// Whether a table of `most` addresses has room for all.
    #[must_use]
    pub fn fits(&self, most: usize) -> bool {
        self.addresses.len() <= most
    }

    /// Allocates room for `most` addresses, so that no later change allocates.
    #[must_use]
    pub fn preallocated(mut self, most: usize) -> Self {
        self.addresses.reserve(most.saturating_sub(self.addresses.len()));
        self.groups.reserve(MAX_GROUPS.saturating_sub(self.groups.len()));
        self
    }
}

/// Word and bit of an address in the multicast table: its bits 47:36 (the multicast offset is 0).
fn hash(group: [u8; 6]) -> (usize, u32) {
    let bits = u16::from_le_bytes([group[4], group[5]]) >> 4;
    (usize::from(bits / 32), 1 << (bits % 32))
}

/// The multicast table (MTA) for these.
#[must_use]
pub fn multicast_table(groups: &[[u8; 6]]) -> [u32; 128] {
    let mut table = [0; 128];
    for group in groups {
        let (word, bit) = hash(*group);
        if let Some(word) = table.get_mut(word) {
            *word |= bit;
        }
    }
    table
}

/// The VLAN table (VFTA) for these.
#[must_use]
pub fn vlan_table(vlans: Option<&[u16]>) -> [u32; 128] {
    let mut table = [0; 128];
    for id in vlans.into_iter().flatten() {
        if let Some(word) = table.get_mut(usize::from(id & 0xfff) / 32) {
            *word |= 1 << (id % 32);
        }
    }
    table
}

/// RAL and RAH of an address.
#[must_use]
pub fn address_words([a, b, c, d, e, f]: [u8; 6]) -> (u32, u32) {
    (u32::from_le_bytes([a, b, c, d]), u32::from(u16::from_le_bytes([e, f])) | RAH_VALID)
}

/// The entry of the address table for the address at `index` of the list. The device's own address has entry 0.
fn entry_of(index: usize) -> u16 {
    (index as u16).saturating_add(1)
}

/// The tables of a device that has the link.
pub trait Tables {
    /// Addresses that the table holds besides the device's own.
    fn most(&self) -> usize;

    /// Writes the whole filter.
    fn program(&self, filter: &Filter);

    /// Writes which frames are accepted whatever their address: promiscuous, all multicasts, broadcasts.
    fn write_control(&self, filter: &Filter);

    /// Writes entry `n` of the address table, or makes it invalid.
    fn write_entry(&self, n: u16, entry: Option<Unicast>);

    /// Gives entry `n` another receive queue.
    fn write_queue(&self, n: u16, queue: u16);

    /// Writes word `n` of the multicast table.
    fn write_groups(&self, n: u16, word: u32);
}

/// Changes the filter to `wanted` and writes only what changes. A frame that both filters accept is accepted all the time.
/// Without the device (`usable` is false), changes the lists only; [`Tables::program`] writes them later.
pub fn change<T: Tables>(tables: &T, usable: bool, filter: &mut Filter, wanted: &ReceiveFilter<'_>) -> Filtered {
    let fits = wanted.unicasts.len() <= tables.most();
    let here = usable.then_some(tables);
    let left_out = Filtered {
        unicasts: !wanted.promiscuous && fits,
        groups: !wanted.all_groups && wanted.groups.len() <= MAX_GROUPS,
    };
    if !left_out.unicasts && !filter.promiscuous {
        // Promiscuous mode comes first, then addresses leave the table.
        filter.promiscuous = true;
        here.inspect(|tables| tables.write_control(filter));
    }
    if fits {
        exchange(here, tables.most(), filter, wanted.unicasts);
    }
    if left_out.groups {
        exchange_groups(here, filter, wanted.groups);
    }
    (filter.promiscuous, filter.all_multicast) = (!left_out.unicasts, !left_out.groups);
    here.inspect(|tables| tables.write_control(filter));
    left_out
}

/// Replaces the multicast addresses.
fn exchange_groups<T: Tables>(tables: Option<&T>, filter: &mut Filter, wanted: &[[u8; 6]]) {
    let before = multicast_table(&filter.groups);
    filter.groups.clear();
    filter.groups.extend_from_slice(wanted);
    if let Some(tables) = tables {
        for (n, (old, new)) in before.iter().zip(&multicast_table(wanted)).enumerate() {
            if old != new {
                tables.write_groups(n as u16, *new);
            }
        }
    }
}

/// Replaces the unicast addresses. An address that stays keeps its entry.
fn exchange<T: Tables>(tables: Option<&T>, most: usize, filter: &mut Filter, wanted: &[Unicast]) {
    // A list that was too long for the table was not written.
    let in_place = filter.fits(most);
    let here = tables.filter(|_| in_place);
    let write = |n: usize, entry: Option<Unicast>| {
        here.inspect(|tables| tables.write_entry(entry_of(n), entry));
    };
    let list = &mut filter.addresses;
    for n in (0..list.len()).rev() {
        let Some(known) = list.get_mut(n) else { continue };
        match wanted.iter().find(|wanted| wanted.address == known.address) {
            Some(same) if same.queue == known.queue => {}
            Some(same) => {
                known.queue = same.queue;
                here.inspect(|tables| tables.write_queue(entry_of(n), same.queue));
            }
            None => {
                list.swap_remove(n);
                // The last address moves to the free entry. For a moment it is in both.
                if let Some(&moved) = list.get(n) {
                    write(n, Some(moved));
                }
                write(list.len(), None);
            }
        }
    }
    for new in wanted {
        if !list.iter().any(|known| known.address == new.address) {
            write(list.len(), Some(*new));
            list.push(*new);
        }
    }
    tables.filter(|_| !in_place).inspect(|tables| tables.program(filter));
}
