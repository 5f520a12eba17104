//! Writes a filter into the tables of the device (data sheet 7.1.1, 8.2.3.7).

pub(crate) use intel_nic::filter::change;
use intel_nic::filter::{self, address_words, multicast_table, vlan_table};

use crate::bits::{Fctrl, MCSTCTRL_MFE, Vlnctrl};
use crate::config::Steering;
use crate::filter::{Filter, MAX_ADDRESSES};
use crate::nic::Unicast;
use crate::pools;
use crate::registers::{Bus, FCTRL, MCSTCTRL, MTA, RAH, RAL, Registers, VFTA, VLNCTRL};

/// The tables of the device.
pub(crate) struct Tables<'a, R> {
    pub bus: &'a Bus<R>,
    pub steering: Steering,
    /// Receive queues.
    pub queues: u16,
}

impl<R: Registers> filter::Tables for Tables<'_, R> {
    fn most(&self) -> usize {
        MAX_ADDRESSES
    }

    /// Writes the whole filter. The tables are undefined after power-on.
    fn program(&self, filter: &Filter) {
        let bus = self.bus;
        let mut entries = filter.addresses.iter().copied().filter(|_| filter.fits(MAX_ADDRESSES));
        if self.steering == Steering::Addresses {
            // The device's own address.
            pools::assign(bus, 0, 0);
            pools::program_other_pools(bus, filter);
        }
        for n in 1..=MAX_ADDRESSES as u16 {
            self.write_entry(n, entries.next());
        }
        for (n, word) in (0..).zip(multicast_table(&filter.groups)) {
            self.write_groups(n, word);
        }
        bus.write(&MCSTCTRL, 0, MCSTCTRL_MFE);
        for (n, word) in (0..).zip(vlan_table(filter.vlans.as_deref())) {
            bus.write(&VFTA, n, word);
        }
        bus.update(&VLNCTRL, 0, |v| Vlnctrl::from_bits(v).with_vfe(filter.vlans.is_some()).into_bits());
        self.write_control(filter);
    }

    fn write_control(&self, filter: &Filter) {
        let promiscuous = filter.promiscuous || !filter.fits(MAX_ADDRESSES);
        let control =
            Fctrl::new().with_mpe(filter.all_multicast).with_upe(promiscuous).with_bam(filter.broadcast).into_bits();
        self.bus.write(&FCTRL, 0, control);
        if self.steering == Steering::Addresses {
            pools::program_default_pool(self.bus, filter);
        }
    }

    /// Writes entry `n` of the address table. The entry is invalid while its address changes.
    fn write_entry(&self, n: u16, entry: Option<Unicast>) {
        let (low, high) = entry.map_or((0, 0), |entry| address_words(entry.address));
        self.bus.write(&RAH, n, 0);
        self.bus.write(&RAL, n, low);
        self.write_queue(n, entry.map_or(0, |entry| entry.queue));
        self.bus.write(&RAH, n, high);
    }

    /// Assigns entry `n` to its queue, or to queue 0 if there are not so many.
    fn write_queue(&self, n: u16, queue: u16) {
        if self.steering == Steering::Addresses {
            pools::assign(self.bus, n, if queue < self.queues { queue } else { 0 });
        }
    }

    fn write_groups(&self, n: u16, word: u32) {
        self.bus.write(&MTA, n, word);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::HashMap;

    use intel_nic::filter::{RAH_VALID, Tables as _};

    use super::{Filter, MAX_ADDRESSES, Steering, Tables, Unicast, change};
    use crate::nic::{Filtered, ReceiveFilter};
    use crate::registers::{Bus, FCTRL, RAH, RAL, Register, Registers};

    fn at(register: &Register, n: u16) -> u32 {
        register.offset + u32::from(n) * register.stride
    }

    /// Registers that keep what is written, and after each write know which addresses are let in.
    #[derive(Default)]
    struct Table {
        all: RefCell<HashMap<u32, u32>>,
        always: RefCell<Vec<[u8; 6]>>,
        lost: RefCell<Vec<[u8; 6]>>,
        writes: RefCell<usize>,
    }

    impl Table {
        fn get(&self, offset: u32) -> u32 {
            self.all.borrow().get(&offset).copied().unwrap_or(0)
        }

        fn addresses(&self) -> Vec<[u8; 6]> {
            let valid = (1..=MAX_ADDRESSES as u16).filter(|n| self.get(at(&RAH, *n)) & RAH_VALID != 0);
            valid
                .map(|n| {
                    let ([a, b, c, d], [e, f, ..]) =
                        (self.get(at(&RAL, n)).to_le_bytes(), self.get(at(&RAH, n)).to_le_bytes());
                    [a, b, c, d, e, f]
                })
                .collect()
        }
    }

    impl Registers for Table {
        fn read(&self, offset: u32) -> u32 {
            self.get(offset)
        }

        fn write(&self, offset: u32, value: u32) {
            self.all.borrow_mut().insert(offset, value);
            *self.writes.borrow_mut() += 1;
            let here = self.addresses();
            self.lost.borrow_mut().extend(self.always.borrow().iter().filter(|address| !here.contains(address)));
        }
    }

    fn guests(numbers: &[u8]) -> Vec<[u8; 6]> {
        numbers.iter().map(|n| [2, 9, 9, 9, 9, *n]).collect()
    }

    fn unicasts(numbers: &[u8]) -> Vec<Unicast> {
        guests(numbers).into_iter().map(|address| Unicast { address, queue: 0 }).collect()
    }

    #[test]
    fn who_is_wanted_before_and_after_is_let_in_at_every_moment_and_what_stays_is_not_written() {
        let bus = Bus(Table::default());
        let tables = Tables { bus: &bus, steering: Steering::Flows, queues: 1 };
        let mut filter = Filter { addresses: unicasts(&[9, 8]), ..Filter::all() };
        tables.program(&filter);
        let mut before: &[u8] = &[];
        let sets: [&[u8]; 8] =
            [&[1, 2, 3, 4, 5], &[5, 1], &[5, 6, 7, 1], &[1], &[9, 8, 1, 5], &[1, 5], &[5, 1], &[2, 5, 3]];
        for after in sets {
            let stay: Vec<u8> = before.iter().copied().filter(|n| after.contains(n)).collect();
            *bus.0.always.borrow_mut() = guests(&stay);
            *bus.0.writes.borrow_mut() = 0;
            let unicasts = unicasts(after);
            let wanted = ReceiveFilter { unicasts: &unicasts, all_groups: true, ..ReceiveFilter::default() };
            let left_out = change(&tables, true, &mut filter, &wanted);
            assert_eq!(left_out, Filtered { unicasts: true, groups: false });
            assert_eq!(*bus.0.lost.borrow(), Vec::<[u8; 6]>::new(), "{before:?} to {after:?}");
            let mut here = bus.0.addresses();
            here.sort_unstable();
            let mut wanted = guests(after);
            wanted.sort_unstable();
            assert_eq!(here, wanted);
            assert_eq!(bus.0.get(at(&FCTRL, 0)) & 1 << 9, 0, "not promiscuous");
            if stay.len() == after.len() && stay.len() == before.len() {
                assert_eq!(*bus.0.writes.borrow(), 1, "but FCTRL");
            }
            before = after;
        }
        bus.0.always.borrow_mut().clear();
        let all = ReceiveFilter { promiscuous: true, ..ReceiveFilter::default() };
        assert!(!change(&tables, true, &mut filter, &all).unicasts);
        assert_eq!(bus.0.get(at(&FCTRL, 0)) & 1 << 9, 1 << 9);
    }
}
