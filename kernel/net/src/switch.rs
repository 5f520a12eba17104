//! The forwarding table of the learning switch: the port of each address and VLAN (IEEE 802.1Q 8.7, 8.8, without
//! spanning tree).
//!
//! The table has a fixed size and uses open addressing.
//!
//! - A port may learn [`PORT_LIMIT`] addresses, and the table is twice as large as all ports together can fill. So no
//!   guest can take the room of another.
//! - The hash is seeded, so a guest cannot choose addresses that collide.
//! - The hash covers the address only. So a port's own address, which is valid in every VLAN, is found at once. An
//!   address that was learned in many VLANs makes the search longer, but by at most the addresses that a port may
//!   learn.

use alloc::boxed::Box;
use engine::devices::table;

use crate::mac::Mac;
use crate::policy::vlan::Vlan;
use crate::ports::MAX_PORTS;

/// Most addresses of one port besides its own. Configured (static) addresses count among them.
pub const PORT_LIMIT: u16 = 31;
/// The port of addresses that belong to nobody here.
const NOBODY: u8 = u8::MAX;
const _: () = assert!(MAX_PORTS <= NOBODY as usize);
const SLOTS: usize = (2 * MAX_PORTS * (PORT_LIMIT as usize + 1)).next_power_of_two();

#[derive(Clone, Copy)]
struct Entry {
    used: bool,
    /// The address is configured: it is not aged, not moved, and the same in every VLAN.
    fixed: bool,
    /// The address counts towards [`PORT_LIMIT`].
    counted: bool,
    port: u8,
    vlan: Vlan,
    mac: Mac,
    /// Time of the last frame from it.
    seen: u64,
}

const EMPTY: Entry = Entry { used: false, fixed: false, counted: false, port: 0, vlan: 0, mac: Mac(0), seen: 0 };

/// The result of learning an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// The address was known at this port.
    Known,
    /// The address is new.
    New,
    /// The address was at another port before.
    Moved,
    /// Not learned: the port has [`PORT_LIMIT`] addresses.
    Full,
    /// Not learned: the address is configured at another port. This applies to every VLAN.
    Fixed,
}

/// The slot after another.
const fn after(at: usize) -> usize {
    at.wrapping_add(1) % SLOTS
}

/// Returns whether a port may learn one more address.
#[inline(always)]
fn has_room(learned: &[u16; MAX_PORTS], port: usize) -> bool {
    learned.get(port).is_some_and(|&learned| learned < PORT_LIMIT)
}

/// The forwarding table.
pub struct Switch {
    seed: u64,
    max_age: u64,
    swept: u64,
    cursor: usize,
    learned: [u16; MAX_PORTS],
    slots: Box<[Entry; SLOTS]>,
}

impl Switch {
    /// Makes an empty table. `seed` should be unpredictable to guests. `max_age` is in ticks of the clock that `now` is
    /// read from.
    #[must_use]
    pub fn new(seed: u64, max_age: u64) -> Self {
        Self { seed, max_age, swept: 0, cursor: 0, learned: [0; MAX_PORTS], slots: table(|| EMPTY) }
    }

    /// Makes an address a port's own, in every VLAN. Removes it from every other port.
    pub fn set_own(&mut self, mac: Mac, port: usize) {
        self.set(mac, port, false);
    }

    /// Makes an address static at a port, in every VLAN. Removes it from every other port.
    /// Returns false if the port has [`PORT_LIMIT`] addresses.
    pub fn set_static(&mut self, mac: Mac, port: usize) -> bool {
        let room = has_room(&self.learned, port);
        if room {
            self.set(mac, port, true);
        }
        room
    }

    /// Keeps an address from all ports, in every VLAN. Frames to it are forwarded as if it were unknown. A later
    /// [`Switch::set_own`] or [`Switch::set_static`] gives it to a port.
    pub fn reserve(&mut self, mac: Mac) {
        while let Some(at) = self.find_in_any(mac) {
            self.remove(at);
        }
        if let Err(at) = self.find(mac, 0) {
            self.put(at, Entry { used: true, fixed: true, counted: false, port: NOBODY, vlan: 0, mac, seen: 0 });
        }
    }

    /// Returns whether an address is configured at another port than this, or reserved.
    #[must_use]
    pub fn is_of_another(&self, mac: Mac, port: usize) -> bool {
        let found = self.find(mac, 0).ok().and_then(|at| self.slots.get(at));
        found.is_some_and(|e| e.fixed && usize::from(e.port) != port)
    }

    fn set(&mut self, mac: Mac, port: usize, counted: bool) {
        while let Some(at) = self.find_in_any(mac) {
            self.remove(at);
        }
        if let Err(at) = self.find(mac, 0) {
            self.put(at, Entry { used: true, fixed: true, counted, port: port as u8, vlan: 0, mac, seen: 0 });
            if counted {
                self.add_learned(port);
            }
        }
    }

    /// Learns that `mac` is at `port` in `vlan`.
    #[inline]
    pub fn learn(&mut self, mac: Mac, vlan: Vlan, port: usize, now: u64) -> Learned {
        match self.find(mac, vlan) {
            Ok(at) => {
                let Some(e) = self.slots.get_mut(at) else { return Learned::Full };
                let old = usize::from(e.port);
                if old == port {
                    e.seen = now;
                    Learned::Known
                } else if e.fixed {
                    Learned::Fixed
                } else if !has_room(&self.learned, port) {
                    Learned::Full
                } else {
                    (e.port, e.seen) = (port as u8, now);
                    self.subtract_learned(old);
                    self.add_learned(port);
                    Learned::Moved
                }
            }
            Err(_) if !has_room(&self.learned, port) => Learned::Full,
            Err(at) => {
                self.put(at, Entry { used: true, fixed: false, counted: true, port: port as u8, vlan, mac, seen: now });
                self.add_learned(port);
                Learned::New
            }
        }
    }

    /// Returns the port of an address in a VLAN. `None`: it is neither configured nor seen within `max_age`.
    #[must_use]
    #[inline]
    pub fn lookup(&self, mac: Mac, vlan: Vlan, now: u64) -> Option<usize> {
        let e = self.slots.get(self.find(mac, vlan).ok()?)?;
        let known = e.fixed || now.wrapping_sub(e.seen) <= self.max_age;
        (known && e.port != NOBODY).then_some(usize::from(e.port))
    }

    /// Removes all addresses of a port.
    pub fn forget_port(&mut self, port: usize) {
        let is_of_port = |e: &Entry| e.used && usize::from(e.port) == port;
        for at in 0..SLOTS {
            // The next entries move up, perhaps to this slot: look at it again.
            while is_of_port(self.slot(at)) {
                self.remove(at);
            }
        }
        // Removing near the end may have moved entries of this port around the end of the table, so that the loop
        // missed them.
        if self.slots.iter().any(is_of_port) {
            self.forget_port(port);
        }
    }

    /// Removes old entries. Visits at most one slot a call, often enough to visit the whole table in half of `max_age`.
    #[inline]
    pub fn age(&mut self, now: u64) {
        const STEPS: u64 = 2 * SLOTS as u64;
        let step = self.max_age / STEPS;
        if now.wrapping_sub(self.swept) < step {
            return;
        }
        self.swept = now;
        let e = self.slot(self.cursor);
        if e.used && !e.fixed && now.wrapping_sub(e.seen) > self.max_age {
            self.remove(self.cursor);
        } else {
            self.cursor = after(self.cursor);
        }
    }

    /// Returns the entry of a slot. The number of slots is a power of two, and a slot's number wraps around.
    #[inline(always)]
    fn slot(&self, at: usize) -> &Entry {
        // There is an entry for each number below `SLOTS`.
        self.slots.get(at % SLOTS).unwrap_or(&EMPTY)
    }

    #[inline(always)]
    fn put(&mut self, at: usize, entry: Entry) {
        if let Some(slot) = self.slots.get_mut(at % SLOTS) {
            *slot = entry;
        }
    }

    fn add_learned(&mut self, port: usize) {
        if let Some(learned) = self.learned.get_mut(port) {
            *learned = learned.saturating_add(1);
        }
    }

    fn subtract_learned(&mut self, port: usize) {
        if let Some(learned) = self.learned.get_mut(port) {
            *learned = learned.saturating_sub(1);
        }
    }

    fn home(&self, mac: Mac) -> usize {
        let mut x = (mac.0 ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x ^= x >> 32;
        x = x.wrapping_mul(0xd6e8_feb8_6659_fd93);
        (x >> 32) as usize % SLOTS
    }

    /// Returns the slot that has the address, or the free slot for it as an error. There is a free slot, because the
    /// table is at most half full.
    #[inline]
    fn find(&self, mac: Mac, vlan: Vlan) -> Result<usize, usize> {
        let mut at = self.home(mac);
        loop {
            let e = self.slot(at);
            if !e.used {
                return Err(at);
            }
            if e.mac == mac && (e.vlan == vlan || e.fixed) {
                return Ok(at);
            }
            at = after(at);
        }
    }

    /// Returns a slot that has the address in any VLAN.
    fn find_in_any(&self, mac: Mac) -> Option<usize> {
        let mut at = self.home(mac);
        while self.slot(at).used {
            if self.slot(at).mac == mac {
                return Some(at);
            }
            at = after(at);
        }
        None
    }

    /// Empties a slot. Moves up the entries behind it that would no longer be found.
    fn remove(&mut self, at: usize) {
        let e = *self.slot(at);
        if e.counted {
            self.subtract_learned(e.port.into());
        }
        let mut hole = at;
        let mut next = at;
        loop {
            self.put(hole, EMPTY);
            loop {
                next = after(next);
                if !self.slot(next).used {
                    return;
                }
                // The entry stays if its home slot lies after the hole, at or before the entry.
                let home = self.home(self.slot(next).mac);
                if next.wrapping_sub(home) % SLOTS >= next.wrapping_sub(hole) % SLOTS {
                    break;
                }
            }
            self.put(hole, *self.slot(next));
            hole = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::{Learned, PORT_LIMIT, Switch};
    use crate::mac::Mac;

    const fn mac(n: u16) -> Mac {
        Mac::new([2, 0, 0, 0, (n >> 8) as u8, n as u8])
    }

    #[test]
    fn an_address_is_learned_moves_and_ages() {
        let mut s = Switch::new(1, 1000);
        assert_eq!(s.lookup(mac(1), 0, 0), None);
        assert_eq!(s.learn(mac(1), 0, 3, 10), Learned::New);
        assert_eq!(s.learn(mac(1), 0, 3, 20), Learned::Known);
        assert_eq!(s.lookup(mac(1), 0, 1020), Some(3));
        assert_eq!(s.lookup(mac(1), 0, 1021), None);
        assert_eq!(s.learn(mac(1), 0, 4, 30), Learned::Moved);
        assert_eq!(s.lookup(mac(1), 0, 40), Some(4));
    }

    #[test]
    fn one_port_cannot_take_the_place_of_others() {
        let mut s = Switch::new(2, 1_000_000);
        let mut refused = 0;
        for n in 0..10_000 {
            refused += u32::from(s.learn(mac(n), 0, 0, 0) == Learned::Full);
        }
        assert_eq!(refused, 10_000 - u32::from(PORT_LIMIT));
        for port in 1..32u16 {
            for n in 0..PORT_LIMIT {
                assert_eq!(s.learn(mac(0x8000 | port << 8 | n), 0, usize::from(port), 0), Learned::New);
            }
        }
        assert_eq!(s.lookup(mac(0x9f1e), 0, 0), Some(31));
    }

    #[test]
    fn a_ports_own_address_is_neither_stolen_nor_aged() {
        let mut s = Switch::new(3, 100);
        s.learn(mac(7), 0, 5, 0);
        s.set_own(mac(7), 1);
        assert_eq!(s.learn(mac(7), 0, 5, 10), Learned::Fixed);
        assert_eq!(s.lookup(mac(7), 0, u64::MAX), Some(1));
        s.forget_port(1);
        assert_eq!(s.lookup(mac(7), 0, 10), None);
        assert_eq!(s.learn(mac(7), 0, 5, 10), Learned::New);
    }

    #[test]
    fn a_reserved_address_is_nobodys_and_stays_unknown() {
        let mut s = Switch::new(8, 1000);
        s.learn(mac(7), 3, 5, 0);
        s.reserve(mac(7));
        for vlan in 0..9 {
            assert_eq!((s.learn(mac(7), vlan, 5, 0), s.lookup(mac(7), vlan, 0)), (Learned::Fixed, None));
        }
        assert!(s.is_of_another(mac(7), 5) && !s.is_of_another(mac(8), 5));
        s.forget_port(5);
        for n in 100..100 + PORT_LIMIT {
            assert_eq!(s.learn(mac(n), 3, 5, 0), Learned::New, "a reserved address takes no port's room");
        }
        s.set_own(mac(7), 1);
        assert_eq!(
            (s.lookup(mac(7), 0, 0), s.is_of_another(mac(7), 1), s.is_of_another(mac(7), 2)),
            (Some(1), false, true)
        );
    }

    #[test]
    fn an_address_may_be_elsewhere_in_another_vlan() {
        let mut s = Switch::new(5, 1000);
        assert_eq!(s.learn(mac(1), 7, 3, 0), Learned::New);
        assert_eq!(s.learn(mac(1), 9, 4, 0), Learned::New);
        assert_eq!((s.lookup(mac(1), 7, 0), s.lookup(mac(1), 9, 0), s.lookup(mac(1), 8, 0)), (Some(3), Some(4), None));
        s.forget_port(3);
        assert_eq!((s.lookup(mac(1), 7, 0), s.lookup(mac(1), 9, 0)), (None, Some(4)));
    }

    #[test]
    fn an_own_address_is_its_ports_in_every_vlan_whoever_learned_it_before() {
        let mut s = Switch::new(6, 1000);
        for vlan in 1..40 {
            s.learn(mac(7), vlan, 5, 0);
        }
        s.set_own(mac(7), 1);
        for vlan in 0..40 {
            assert_eq!((s.lookup(mac(7), vlan, 0), s.learn(mac(7), vlan, 5, 0)), (Some(1), Learned::Fixed));
        }
        // Forgotten addresses make room.
        for n in 100..100 + PORT_LIMIT {
            assert_eq!(s.learn(mac(n), 3, 5, 0), Learned::New);
        }
    }

    #[test]
    fn static_addresses_are_among_those_that_a_port_may_have() {
        let mut s = Switch::new(7, 10);
        assert!((0..PORT_LIMIT).all(|n| s.set_static(mac(n), 2)));
        assert!(!s.set_static(mac(500), 2));
        assert_eq!(s.learn(mac(501), 0, 2, 0), Learned::Full);
        assert_eq!((s.lookup(mac(3), 77, 1000), s.learn(mac(3), 77, 4, 0)), (Some(2), Learned::Fixed));
        s.forget_port(2);
        assert_eq!(s.learn(mac(501), 0, 2, 0), Learned::New);
    }

    #[test]
    fn ageing_makes_room_for_new_addresses() {
        let mut s = Switch::new(4, 100_000);
        for n in 0..PORT_LIMIT {
            s.learn(mac(n), 0, 0, 0);
        }
        assert_eq!(s.learn(mac(1000), 0, 0, 99_000), Learned::Full);
        for now in (100_001..200_000).step_by(20) {
            s.age(now);
        }
        assert_eq!(s.learn(mac(1000), 0, 0, 200_000), Learned::New);
    }

    proptest! {
        #[test]
        fn the_table_agrees_with_a_map(
            seed: u64,
            steps in proptest::collection::vec((0u16..400, 0usize..32, 0u8..20), 1..2000),
        ) {
            let mut s = Switch::new(seed, u64::MAX);
            let mut model: HashMap<(u16, u16), usize> = HashMap::new();
            for (n, port, what) in steps {
                // A few addresses in several VLANs, and many in one.
                let (n, vlan) = if n < 100 { (n % 10, n / 10) } else { (n, 1) };
                if what == 0 {
                    s.forget_port(port);
                    model.retain(|_, p| *p != port);
                } else {
                    let full = model.values().filter(|&&p| p == port).count() >= usize::from(PORT_LIMIT);
                    let wanted = match model.get(&(n, vlan)) {
                        Some(&p) if p == port => Learned::Known,
                        _ if full => Learned::Full,
                        Some(_) => Learned::Moved,
                        None => Learned::New,
                    };
                    prop_assert_eq!(s.learn(mac(n), vlan, port, 0), wanted);
                    if matches!(wanted, Learned::New | Learned::Moved) {
                        model.insert((n, vlan), port);
                    }
                }
            }
            for (n, vlan) in (0..400).flat_map(|n| (0..10).map(move |vlan| (n, vlan))) {
                prop_assert_eq!(s.lookup(mac(n), vlan, 0), model.get(&(n, vlan)).copied());
            }
        }
    }
}
