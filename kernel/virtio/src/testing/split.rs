//! The driver's half of a split ring (virtio 1.3 2.7.13, 2.7.14).

use memory::GuestMemory;

use alloc::vec;
use alloc::vec::Vec;

use super::buffer::{Buffer, TABLE_BYTES};
use crate::config::{Features, QueueConfig};

pub(super) struct Split {
    memory: GuestMemory,
    config: QueueConfig,
    features: Features,
    /// Free descriptors, the next one last.
    free: Vec<u16>,
    /// Descriptors of each offered request, by head.
    chains: Vec<Vec<u16>>,
    tables: u64,
    avail: u16,
    kicked: u16,
    last_used: u16,
}

impl Split {
    pub(super) fn new(memory: GuestMemory, config: QueueConfig, features: Features, tables: u64) -> Self {
        Self {
            memory,
            config,
            features,
            free: (0..config.size).rev().collect(),
            chains: vec![Vec::new(); usize::from(config.size)],
            tables,
            avail: 0,
            kicked: 0,
            last_used: 0,
        }
    }

    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    pub(super) fn add(&mut self, buffers: &[Buffer]) -> Option<u16> {
        let indirect = buffers.len() > 1 && self.features.contains(Features::INDIRECT_DESC);
        let needed = if indirect { 1 } else { buffers.len() };
        if self.free.len() < needed {
            return None;
        }
        let used: Vec<u16> = (0..needed).filter_map(|_| self.free.pop()).collect();
        let head = *used.first()?;
        if indirect {
            let table = self.tables + u64::from(head) * TABLE_BYTES;
            let order: Vec<u16> = (0..buffers.len() as u16).collect();
            self.write_chain(table, &order, buffers);
            self.write_descriptor(self.config.desc, head, (table, 16 * buffers.len() as u32), 4, 0);
        } else {
            self.write_chain(self.config.desc, &used, buffers);
        }
        self.chains[usize::from(head)] = used;
        let slot = u64::from(self.avail % self.config.size);
        self.memory.write_u16(self.config.avail + 4 + 2 * slot, head).expect("ring");
        self.avail = self.avail.wrapping_add(1);
        self.memory.word(self.config.avail + 2).expect("ring").store_release(self.avail);
        Some(head)
    }

    fn write_chain(&self, table: u64, order: &[u16], buffers: &[Buffer]) {
        for (i, (&at, &(gpa, len, write))) in order.iter().zip(buffers).enumerate() {
            let next = order.get(i + 1);
            let flags = u16::from(next.is_some()) | u16::from(write) << 1;
            self.write_descriptor(table, at, (gpa, len), flags, next.copied().unwrap_or(0));
        }
    }

    fn write_descriptor(&self, table: u64, index: u16, (gpa, len): (u64, u32), flags: u16, next: u16) {
        let at = table + 16 * u64::from(index);
        self.memory.write_u64(at, gpa).expect("table");
        self.memory.write_u32(at + 8, len).expect("table");
        self.memory.write_u16(at + 12, flags).expect("table");
        self.memory.write_u16(at + 14, next).expect("table");
    }

    pub(super) fn kick_prepare(&mut self) -> bool {
        let (old, new) = (core::mem::replace(&mut self.kicked, self.avail), self.avail);
        if self.features.contains(Features::EVENT_IDX) {
            let at = self.config.used + 4 + 8 * u64::from(self.config.size);
            let event = self.memory.read_u16(at).expect("ring");
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            self.memory.read_u16(self.config.used).expect("ring") & 1 == 0
        }
    }

    pub(super) fn used_index(&self) -> u16 {
        self.memory.word(self.config.used + 2).expect("ring").load_acquire()
    }

    pub(super) fn has_used(&self) -> bool {
        self.last_used != self.used_index()
    }

    pub(super) fn take_used(&mut self) -> Option<(u16, u32)> {
        if !self.has_used() {
            return None;
        }
        let at = self.config.used + 4 + 8 * u64::from(self.last_used % self.config.size);
        let head = self.memory.read_u32(at).expect("ring");
        let len = self.memory.read_u32(at + 4).expect("ring");
        self.last_used = self.last_used.wrapping_add(1);
        let chain = core::mem::take(&mut self.chains[head as usize]);
        assert!(!chain.is_empty(), "the device used head {head}, which was not offered");
        self.free.extend(chain.into_iter().rev());
        Some((head as u16, len))
    }

    pub(super) fn enable_interrupts(&mut self) {
        self.memory.write_u16(self.config.avail, 0).expect("ring");
        self.write_used_event(self.last_used);
    }

    pub(super) fn disable_interrupts(&mut self) {
        if self.features.contains(Features::EVENT_IDX) {
            self.write_used_event(self.last_used.wrapping_sub(1));
        } else {
            self.memory.write_u16(self.config.avail, 1).expect("ring");
        }
    }

    pub(super) fn write_used_event(&self, event: u16) {
        let at = self.config.avail + 4 + 2 * u64::from(self.config.size);
        self.memory.write_u16(at, event).expect("ring");
    }
}
