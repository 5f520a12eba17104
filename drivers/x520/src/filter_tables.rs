//! Writes a filter into the tables of the device (data sheet 7.1.1, 8.2.3.7).

use crate::bits::{Fctrl, MCSTCTRL_MFE, RAH_VALID, Vlnctrl};
use crate::config::Steering;
use crate::filter::{Filter, MAX_ADDRESSES, MAX_GROUPS};
use crate::nic::{Filtered, ReceiveFilter, Unicast};
use crate::pools;
use crate::registers::{Bus, FCTRL, MCSTCTRL, MTA, RAH, RAL, Registers, VFTA, VLNCTRL};

/// Word and bit of an address in the multicast table: its bits 47:36 (MCSTCTRL.MO is 0).
fn hash(group: [u8; 6]) -> (usize, u32) {
    let bits = u16::from_le_bytes([group[4], group[5]]) >> 4;
    (usize::from(bits / 32), 1 << (bits % 32))
}

/// The multicast table for these.
fn table_of(groups: &[[u8; 6]]) -> [u32; 128] {
    let mut table = [0; 128];
    for group in groups {
        let (word, bit) = hash(*group);
        if let Some(word) = table.get_mut(word) {
            *word |= bit;
        }
    }
    table
}

/// The entry of the address table for the address at `index` of the list. The device's own address has entry 0.
fn entry_of(index: usize) -> u16 {
    (index as u16).saturating_add(1)
}

/// Writes entry `n` of the address table. The entry is invalid while its address changes.
fn write_entry<R: Registers>(bus: &Bus<R>, n: u16, entry: Option<Unicast>, steering: Steering, queues: u16) {
    let (low, high) = entry.map_or((0, 0), |Unicast { address: [a, b, c, d, e, f], .. }| {
        (u32::from_le_bytes([a, b, c, d]), u32::from(u16::from_le_bytes([e, f])) | RAH_VALID)
    });
    bus.write(&RAH, n, 0);
    bus.write(&RAL, n, low);
    write_queue(bus, n, entry.map_or(0, |entry| entry.queue), steering, queues);
    bus.write(&RAH, n, high);
}

/// Assigns entry `n` to its queue, or to queue 0 if there are not so many.
fn write_queue<R: Registers>(bus: &Bus<R>, n: u16, queue: u16, steering: Steering, queues: u16) {
    if steering == Steering::Addresses {
        pools::assign(bus, n, if queue < queues { queue } else { 0 });
    }
}

/// Writes which frames are accepted whatever their address: promiscuous, all multicasts, broadcasts.
fn write_control<R: Registers>(bus: &Bus<R>, filter: &Filter, steering: Steering) {
    let promiscuous = filter.promiscuous || !filter.fits();
    let control =
        Fctrl::new().with_mpe(filter.all_multicast).with_upe(promiscuous).with_bam(filter.broadcast).into_bits();
    bus.write(&FCTRL, 0, control);
    if steering == Steering::Addresses {
        pools::program_default_pool(bus, filter);
    }
}

/// Writes the whole filter. The tables are undefined after power-on. `queues`: number of receive queues.
pub(crate) fn program<R: Registers>(bus: &Bus<R>, filter: &Filter, steering: Steering, queues: u16) {
    let mut entries = filter.addresses.iter().copied().filter(|_| filter.fits());
    if steering == Steering::Addresses {
        // The device's own address.
        pools::assign(bus, 0, 0);
        pools::program_other_pools(bus, filter);
    }
    for n in 1..=MAX_ADDRESSES as u16 {
        write_entry(bus, n, entries.next(), steering, queues);
    }
    for (n, word) in table_of(&filter.groups).iter().enumerate() {
        bus.write(&MTA, n as u16, *word);
    }
    bus.write(&MCSTCTRL, 0, MCSTCTRL_MFE);
    let mut vlans = [0u32; 128];
    for id in filter.vlans.iter().flatten() {
        if let Some(word) = vlans.get_mut(usize::from(id & 0xfff) / 32) {
            *word |= 1 << (id % 32);
        }
    }
    for (n, word) in vlans.iter().enumerate() {
        bus.write(&VFTA, n as u16, *word);
    }
    bus.update(&VLNCTRL, 0, |v| Vlnctrl::from_bits(v).with_vfe(filter.vlans.is_some()).into_bits());
    write_control(bus, filter, steering);
}

/// Changes the filter to `wanted` and writes only what changes. A frame that both filters accept is accepted all the time.
/// Without a bus, changes the lists only; [`program`] writes them later.
pub(crate) fn change<R: Registers>(
    bus: Option<&Bus<R>>,
    filter: &mut Filter,
    wanted: &ReceiveFilter<'_>,
    steering: Steering,
    queues: u16,
) -> Filtered {
    let fits = wanted.unicasts.len() <= MAX_ADDRESSES;
    let left_out = Filtered {
        unicasts: !wanted.promiscuous && fits,
        groups: !wanted.all_groups && wanted.groups.len() <= MAX_GROUPS,
    };
    if !left_out.unicasts && !filter.promiscuous {
        // Promiscuous mode comes first, then addresses leave the table.
        filter.promiscuous = true;
        bus.inspect(|bus| write_control(bus, filter, steering));
    }
    if fits {
        exchange(bus, filter, wanted.unicasts, steering, queues);
    }
    if left_out.groups {
        exchange_groups(bus, filter, wanted.groups);
    }
    (filter.promiscuous, filter.all_multicast) = (!left_out.unicasts, !left_out.groups);
    if let Some(bus) = bus {
        write_control(bus, filter, steering);
    }
    left_out
}

/// Replaces the multicast addresses.
fn exchange_groups<R: Registers>(bus: Option<&Bus<R>>, filter: &mut Filter, wanted: &[[u8; 6]]) {
    let before = table_of(&filter.groups);
    filter.groups.clear();
    filter.groups.extend_from_slice(wanted);
    if let Some(bus) = bus {
        for (n, (old, new)) in before.iter().zip(&table_of(wanted)).enumerate() {
            if old != new {
                bus.write(&MTA, n as u16, *new);
            }
        }
    }
}

/// Replaces the unicast addresses. An address that stays keeps its entry.
fn exchange<R: Registers>(
    bus: Option<&Bus<R>>,
    filter: &mut Filter,
    wanted: &[Unicast],
    steering: Steering,
    queues: u16,
) {
    // A list that was too long for the table was not written.
    let in_place = filter.fits();
    let here = bus.filter(|_| in_place);
    let write = |n: usize, entry: Option<Unicast>| {
        if let Some(bus) = here {
            write_entry(bus, entry_of(n), entry, steering, queues);
        }
    };
    let list = &mut filter.addresses;
    for n in (0..list.len()).rev() {
        let Some(known) = list.get_mut(n) else { continue };
        match wanted.iter().find(|wanted| wanted.address == known.address) {
            Some(same) if same.queue == known.queue => {}
            Some(same) => {
                known.queue = same.queue;
                here.inspect(|bus| write_queue(bus, entry_of(n), same.queue, steering, queues));
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
    if let Some(bus) = bus.filter(|_| !in_place) {
        program(bus, filter, steering, queues);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::HashMap;

    use super::{Filter, Filtered, MAX_ADDRESSES, RAH_VALID, ReceiveFilter, Steering, Unicast, change, program};
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
        let mut filter = Filter { addresses: unicasts(&[9, 8]), ..Filter::all() };
        program(&bus, &filter, Steering::Flows, 1);
        let mut before: &[u8] = &[];
        let sets: [&[u8]; 8] =
            [&[1, 2, 3, 4, 5], &[5, 1], &[5, 6, 7, 1], &[1], &[9, 8, 1, 5], &[1, 5], &[5, 1], &[2, 5, 3]];
        for after in sets {
            let stay: Vec<u8> = before.iter().copied().filter(|n| after.contains(n)).collect();
            *bus.0.always.borrow_mut() = guests(&stay);
            *bus.0.writes.borrow_mut() = 0;
            let unicasts = unicasts(after);
            let wanted = ReceiveFilter { unicasts: &unicasts, all_groups: true, ..ReceiveFilter::default() };
            let left_out = change(Some(&bus), &mut filter, &wanted, Steering::Flows, 1);
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
        assert!(!change(Some(&bus), &mut filter, &all, Steering::Flows, 1).unicasts);
        assert_eq!(bus.0.get(at(&FCTRL, 0)) & 1 << 9, 1 << 9);
    }
}
