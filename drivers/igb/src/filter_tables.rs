//! Writes a filter into the tables of the device (82576 data sheet 7.1.1, 8.10).

pub(crate) use intel_nic::filter::change;
use intel_nic::filter::{self, Filter, address_words, multicast_table, vlan_table};
use intel_nic::nic::Unicast;

use crate::bits::Rctl;
use crate::id::Kind;
use crate::registers::{Bus, MTA, RAH, RAH2, RAL, RAL2, RCTL, Registers, UTA, VFTA};

/// Entries of the address table in its first part.
const FIRST_PART: u16 = 16;
/// Times that the I350 has to be told each word of the VLAN table: a single write may be lost.
const VFTA_WRITES_OF_I350: u32 = 10;

/// The tables of the device.
pub(crate) struct Tables<'a, R> {
    pub bus: &'a Bus<R>,
    pub kind: Kind,
    /// The receive side is on.
    pub enabled: bool,
}

/// Addresses that the table holds besides the device's own.
pub(crate) const fn most(kind: Kind) -> usize {
    match kind {
        Kind::I82576 => 23,
        Kind::I350 => 31,
    }
}

impl<R: Registers> filter::Tables for Tables<'_, R> {
    fn most(&self) -> usize {
        most(self.kind)
    }

    /// Writes the whole filter. The tables are undefined after power-on.
    fn program(&self, filter: &Filter) {
        let bus = self.bus;
        let mut entries = filter.addresses.iter().copied().filter(|_| filter.fits(self.most()));
        for n in 1..=self.most() as u16 {
            self.write_entry(n, entries.next());
        }
        for (n, word) in (0..).zip(multicast_table(&filter.groups)) {
            self.write_groups(n, word);
        }
        for n in 0..UTA.count as u16 {
            bus.write(&UTA, n, 0);
        }
        let times = if self.kind == Kind::I350 { VFTA_WRITES_OF_I350 } else { 1 };
        for (n, word) in (0..).zip(vlan_table(filter.vlans.as_deref())) {
            for _ in 0..times {
                bus.write(&VFTA, n, word);
            }
        }
        self.write_control(filter);
    }

    fn write_control(&self, filter: &Filter) {
        let promiscuous = filter.promiscuous || !filter.fits(self.most());
        let control = Rctl::new()
            .with_enable(self.enabled)
            .with_upe(promiscuous)
            .with_mpe(filter.all_multicast)
            .with_bam(filter.broadcast)
            .with_vfe(filter.vlans.is_some())
            .with_long(true)
            .with_strip_crc(true);
        self.bus.write(&RCTL, 0, control.into_bits());
    }

    /// Writes entry `n` of the address table. The entry is invalid while its address changes.
    fn write_entry(&self, n: u16, entry: Option<Unicast>) {
        let (low, high) = entry.map_or((0, 0), |entry| address_words(entry.address));
        let (ral, rah, n) = match n.checked_sub(FIRST_PART) {
            None => (RAL, RAH, n),
            Some(n) => (RAL2, RAH2, n),
        };
        self.bus.write(&rah, n, 0);
        self.bus.write(&ral, n, low);
        self.bus.write(&rah, n, high);
    }

    /// There is one receive queue.
    fn write_queue(&self, _: u16, _: u16) {}

    fn write_groups(&self, n: u16, word: u32) {
        self.bus.write(&MTA, n, word);
    }
}
