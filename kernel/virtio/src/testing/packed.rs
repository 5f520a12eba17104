//! The driver's half of a packed ring (virtio 1.3 2.8.21, 2.8.22). It keeps both wrap counters as the specification
//! describes them.

use memory::GuestMemory;

use alloc::vec;
use alloc::vec::Vec;

use super::buffer::{Buffer, TABLE_BYTES};
use crate::config::{Features, QueueConfig};

/// Flag of a descriptor: the chain goes on in the next one.
pub const NEXT: u16 = 1;
/// Flag of a descriptor: the device writes its buffer.
pub const WRITE: u16 = 2;
/// Flag of a descriptor: its buffer is a table of descriptors.
pub const INDIRECT: u16 = 4;
/// Flag of a descriptor: the driver's wrap counter when it offered the descriptor.
pub const AVAIL: u16 = 1 << 7;
/// Flag of a descriptor: the device's wrap counter when it used the descriptor.
pub const USED: u16 = 1 << 15;
const ENABLE: u16 = 0;
const DISABLE: u16 = 1;
const DESC: u16 = 2;

/// Writes a descriptor of 16 bytes at address `at`. Its flags are written last.
///
/// # Panics
/// If it is not in the guest's memory.
pub fn descriptor(memory: &GuestMemory, at: u64, buffer: (u64, u32), id: u16, flags: u16) {
    all_but_flags(memory, at, buffer, id);
    memory.write_u16(at + 14, flags).expect("a descriptor");
}

fn all_but_flags(memory: &GuestMemory, at: u64, (gpa, len): (u64, u32), id: u16) {
    memory.write_u64(at, gpa).expect("a descriptor");
    memory.write_u32(at + 8, len).expect("a descriptor");
    memory.write_u16(at + 12, id).expect("a descriptor");
}

/// A descriptor's index and the wrap counter.
type Place = (u16, bool);

pub(super) struct Packed {
    memory: GuestMemory,
    config: QueueConfig,
    features: Features,
    /// Free ids, the next one last.
    ids: Vec<u16>,
    /// Descriptors of each offered request, by id; 0 if it is not offered.
    chains: Vec<u16>,
    free: u16,
    tables: u64,
    next: Place,
    /// Descriptors offered since the last `kick_prepare`.
    added: u32,
    next_used: Place,
    /// Requests taken back.
    taken: u16,
}

impl Packed {
    pub(super) fn new(memory: GuestMemory, config: QueueConfig, features: Features, tables: u64) -> Self {
        Self {
            memory,
            config,
            features,
            ids: (0..config.size).rev().collect(),
            chains: vec![0; usize::from(config.size)],
            free: config.size,
            tables,
            next: (0, true),
            added: 0,
            next_used: (0, true),
            taken: 0,
        }
    }

    pub(super) fn free(&self) -> usize {
        usize::from(self.free)
    }

    fn after(&self, (slot, wrap): Place) -> Place {
        if slot + 1 == self.config.size { (0, !wrap) } else { (slot + 1, wrap) }
    }

    fn before(&self, (slot, wrap): Place) -> Place {
        if slot == 0 { (self.config.size - 1, !wrap) } else { (slot - 1, wrap) }
    }

    fn at(&self, slot: u16) -> u64 {
        self.config.desc + 16 * u64::from(slot)
    }

    pub(super) fn to_offer(&self, ahead: u16) -> (u64, u16) {
        let (slot, wrap) = (0..ahead).fold(self.next, |place, _| self.after(place));
        (self.at(slot), if wrap { AVAIL } else { USED })
    }

    pub(super) fn add(&mut self, buffers: &[Buffer]) -> Option<u16> {
        let indirect = buffers.len() > 1 && self.features.contains(Features::INDIRECT_DESC);
        let needed = if indirect { 1 } else { buffers.len() as u16 };
        if self.free < needed {
            return None;
        }
        let id = self.ids.pop()?;
        let mut chain: Vec<(u64, u32, u16)> =
            buffers.iter().map(|&(gpa, len, write)| (gpa, len, if write { WRITE } else { 0 })).collect();
        if indirect {
            let table = self.tables + u64::from(id) * TABLE_BYTES;
            for (i, &(gpa, len, flags)) in chain.iter().enumerate() {
                descriptor(&self.memory, table + 16 * i as u64, (gpa, len), 0, flags);
            }
            chain = vec![(table, 16 * buffers.len() as u32, INDIRECT)];
        }
        let first = self.next;
        let mut first_flags = 0;
        for (i, &(gpa, len, flags)) in chain.iter().enumerate() {
            let (slot, wrap) = self.next;
            all_but_flags(&self.memory, self.at(slot), (gpa, len), id);
            let next = if i + 1 < chain.len() { NEXT } else { 0 };
            let flags = flags | next | if wrap { AVAIL } else { USED };
            if i == 0 {
                first_flags = flags;
            } else {
                self.memory.write_u16(self.at(slot) + 14, flags).expect("ring");
            }
            self.next = self.after(self.next);
        }
        self.memory.word(self.at(first.0) + 14).expect("ring").store_release(first_flags);
        self.chains[usize::from(id)] = needed;
        self.free -= needed;
        self.added += u32::from(needed);
        Some(id)
    }

    pub(super) fn kick_prepare(&mut self) -> bool {
        let added = core::mem::take(&mut self.added);
        let event = self.memory.read_u16(self.config.used).expect("event");
        let flags = self.memory.read_u16(self.config.used + 2).expect("event");
        if flags != DESC {
            return flags != DISABLE;
        }
        assert!(self.features.contains(Features::EVENT_IDX), "an event without the feature");
        let wanted = (event & 0x7fff, event >> 15 != 0);
        let mut place = self.next;
        (0..added).any(|_| {
            place = self.before(place);
            place == wanted
        })
    }

    /// The id of the descriptor at a place, if it is used.
    fn used_at(&self, (slot, wrap): Place) -> Option<u16> {
        let flags = self.memory.word(self.at(slot) + 14).expect("ring").load_acquire();
        let used = (flags & AVAIL != 0, flags & USED != 0) == (wrap, wrap);
        used.then(|| self.memory.read_u16(self.at(slot) + 12).expect("ring"))
    }

    pub(super) fn used_index(&self) -> u16 {
        let (mut place, mut count, mut passed) = (self.next_used, self.taken, 0);
        while passed < self.config.size - self.free
            && let Some(id) = self.used_at(place)
        {
            let chain = self.chains[usize::from(id)];
            (0..chain).for_each(|_| place = self.after(place));
            (passed, count) = (passed + chain, count.wrapping_add(1));
        }
        count
    }

    pub(super) fn has_used(&self) -> bool {
        self.free < self.config.size && self.used_at(self.next_used).is_some()
    }

    pub(super) fn take_used(&mut self) -> Option<(u16, u32)> {
        if !self.has_used() {
            return None;
        }
        let slot = self.next_used.0;
        let id = self.used_at(self.next_used)?;
        let len = self.memory.read_u32(self.at(slot) + 8).expect("ring");
        let flags = self.memory.read_u16(self.at(slot) + 14).expect("ring");
        assert_eq!(flags & WRITE != 0, len != 0, "the length counts if something was written, and only then");
        let chain = self.chains.get_mut(usize::from(id)).map(core::mem::take).filter(|&chain| chain != 0);
        let chain = chain.unwrap_or_else(|| panic!("the device used id {id}, which was not offered"));
        (0..chain).for_each(|_| self.next_used = self.after(self.next_used));
        self.free += chain;
        self.ids.push(id);
        self.taken = self.taken.wrapping_add(1);
        Some((id, len))
    }

    pub(super) fn enable_interrupts(&mut self) {
        if self.features.contains(Features::EVENT_IDX) {
            let (slot, wrap) = self.next_used;
            self.write_event(slot | u16::from(wrap) << 15, DESC);
        } else {
            self.write_event(0, ENABLE);
        }
    }

    pub(super) fn disable_interrupts(&mut self) {
        self.write_event(0, DISABLE);
    }

    pub(super) fn write_used_event(&self, event: u16) {
        let size = self.config.size;
        self.write_event((event % size) | (u16::from((event / size).is_multiple_of(2)) << 15), DESC);
    }

    fn write_event(&self, event: u16, flags: u16) {
        self.memory.write_u16(self.config.avail, event).expect("event");
        self.memory.write_u16(self.config.avail + 2, flags).expect("event");
    }
}
