//! Compares the split ring with rust-vmm's `virtio-queue` on the same ring images.

use proptest::prelude::*;
use virtio_queue::{Queue as Other, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::support::{Buffers, Rig, rig};
use crate::chain::Segment;
use crate::config::{Features, MAX_QUEUE_SIZE};
use crate::queue::UsedNotification;
use crate::testing::{BUFFERS, MEMORY, RING_AREA, TABLES, USED};

/// Bytes of the rings and tables. Neither side reads anything else.
const IMAGE: usize = TABLES as usize + 0x1_0000;

/// The same queue on both sides, on two copies of the same memory.
struct Pair {
    ours: Rig,
    other_memory: GuestMemoryMmap,
    other: Other,
}

impl Pair {
    fn new(size: u16, features: Features) -> Self {
        let ours = rig(size, features);
        let config = ours.driver.config;
        let other_memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)]).unwrap();
        let mut other = Other::new(MAX_QUEUE_SIZE).unwrap();
        other.set_size(size);
        other.set_desc_table_address(Some(config.desc as u32), Some(0));
        other.set_avail_ring_address(Some(config.avail as u32), Some(0));
        other.set_used_ring_address(Some(config.used as u32), Some(0));
        other.set_event_idx(features.contains(Features::EVENT_IDX));
        other.set_ready(true);
        Self { ours, other_memory, other }
    }

    /// Copies the driver's memory to the other side, except the used ring. Each side has its own used ring.
    fn sync(&self) {
        let mut image = vec![0; IMAGE];
        self.ours.memory.read(0, &mut image).unwrap();
        let (used, end) = (USED as usize, RING_AREA as usize);
        self.other_memory.write_slice(&image[..used], GuestAddress(0)).unwrap();
        self.other_memory.write_slice(&image[end..], GuestAddress(end as u64)).unwrap();
    }

    /// Theirs: head and buffers.
    fn theirs(&mut self) -> Option<(u16, Buffers)> {
        let chain = self.other.pop_descriptor_chain(&self.other_memory)?;
        let head = chain.head_index();
        let buffers = chain.map(|d| (Segment { gpa: d.addr().0, len: d.len() }, d.is_write_only())).collect();
        Some((head, buffers))
    }

    /// The used ring's index and entries on both sides.
    fn used(&self) -> (Vec<u8>, Vec<u8>) {
        let bytes = 2 + 8 * usize::from(self.ours.driver.config.size);
        let (mut ours, mut theirs) = (vec![0; bytes], vec![0; bytes]);
        let at = self.ours.driver.config.used + 2;
        self.ours.memory.read(at, &mut ours).unwrap();
        self.other_memory.read_slice(&mut theirs, GuestAddress(at)).unwrap();
        (ours, theirs)
    }
}

proptest! {
    #[test]
    fn both_take_the_same_chains_and_leave_the_same_used_ring(
        size_bits in 1u32..8,
        bits in 0u8..4,
        rounds in proptest::collection::vec((proptest::collection::vec((1usize..6, 1u32..3000), 0..10), any::<u16>(), any::<bool>()), 1..40),
    ) {
        let mut features = Features::VERSION_1;
        features.set(Features::EVENT_IDX, bits & 1 != 0);
        features.set(Features::INDIRECT_DESC, bits & 2 != 0);
        let size = 1 << size_bits;
        let mut p = Pair::new(size, features);
        for (requests, event, reverse) in rounds {
            for (pieces, len) in requests {
                // A chain is never longer than the queue.
                let pieces = pieces.min(usize::from(size));
                let split = len as usize % (pieces + 1);
                let buffers: Vec<_> =
                    (0..pieces).map(|i| (BUFFERS + 0x4000 * i as u64, len + i as u32, i >= split)).collect();
                p.ours.driver.add(&buffers);
            }
            if bits & 1 != 0 {
                p.ours.driver.write_used_event(event);
            } else {
                p.ours.memory.write_u16(p.ours.driver.config.avail, event & 1).unwrap();
            }
            p.sync();
            let mut taken = Vec::new();
            loop {
                let (ours, theirs) = (p.ours.take().unwrap(), p.theirs());
                let (Some((token, ours)), Some((head, theirs))) = (ours, theirs) else { break };
                prop_assert_eq!(&ours, &theirs);
                taken.push((token, head));
            }
            prop_assert!(p.ours.take().unwrap().is_none() && p.theirs().is_none());
            if reverse {
                taken.reverse();
            }
            let any = !taken.is_empty();
            for (i, (token, head)) in taken.into_iter().enumerate() {
                prop_assert!(p.ours.queue.complete(&p.ours.memory, token, i as u32).unwrap());
                p.other.add_used(&p.other_memory, head, i as u32).unwrap();
            }
            if any {
                // rust-vmm leaves the driver's flag to its caller.
                let flag = bits & 1 == 0 && event & 1 != 0;
                let wanted = p.other.needs_notification(&p.other_memory).unwrap() && !flag;
                let wanted = if wanted { UsedNotification::Wanted } else { UsedNotification::Suppressed };
                prop_assert_eq!(p.ours.publish(), wanted);
            }
            let (ours, theirs) = p.used();
            prop_assert_eq!(ours, theirs);
            while p.ours.driver.take_used().is_some() {}
        }
    }

    #[test]
    fn what_we_accept_of_random_descriptors_the_other_reads_alike(
        table in proptest::collection::vec((0u64..64, 1u32..5000, 0u16..8, 0u16..20), 16),
        indirect in proptest::collection::vec((0u64..64, 1u32..5000, 0u16..4, 0u16..10), 8),
        heads in proptest::collection::vec(0u16..17, 1..16),
    ) {
        let mut p = Pair::new(16, Features::VERSION_1 | Features::INDIRECT_DESC);
        let write = |at: u64, gpa: u64, len: u32, flags: u16, next: u16| {
            p.ours.memory.write_u64(at, gpa).unwrap();
            p.ours.memory.write_u32(at + 8, len).unwrap();
            p.ours.memory.write_u32(at + 12, u32::from(next) << 16 | u32::from(flags)).unwrap();
        };
        for (i, &(gpa, len, flags, next)) in table.iter().enumerate() {
            let at = p.ours.driver.config.desc + 16 * i as u64;
            if flags & 4 != 0 {
                write(at, TABLES + 16 * (gpa % 8), 16 * (len % 9), flags, next);
            } else {
                write(at, BUFFERS + 512 * gpa, len, flags, next);
            }
        }
        for (i, &(gpa, len, flags, next)) in indirect.iter().enumerate() {
            write(TABLES + 16 * i as u64, BUFFERS + 512 * gpa, len, flags, next);
        }
        for (i, &head) in heads.iter().enumerate() {
            p.ours.memory.write_u16(p.ours.driver.config.avail + 4 + 2 * i as u64, head).unwrap();
        }
        p.ours.memory.write_u16(p.ours.driver.config.avail + 2, heads.len() as u16).unwrap();
        p.sync();
        while let Ok(Some((_token, ours))) = p.ours.take() {
            let (_, theirs) = p.theirs().expect("we accept what it refuses");
            prop_assert_eq!(ours, theirs);
        }
    }
}

#[test]
fn both_want_the_same_interrupts_past_65536_entries() {
    let mut p = Pair::new(64, Features::VERSION_1 | Features::EVENT_IDX);
    let (mut used, mut interrupts) = (0u16, 0);
    for round in 0..3000u32 {
        let batch = (round % 60) as u16 + 1;
        p.ours.driver.write_used_event(used.wrapping_add((round * 7 % 90) as u16).wrapping_sub(10));
        for _ in 0..batch {
            p.ours.driver.add(&[(BUFFERS, 64, false)]).unwrap();
        }
        p.sync();
        while let (Some((token, _)), Some((head, _))) = (p.ours.take().unwrap(), p.theirs()) {
            p.ours.queue.complete(&p.ours.memory, token, 0).unwrap();
            p.other.add_used(&p.other_memory, head, 0).unwrap();
        }
        let wanted = p.other.needs_notification(&p.other_memory).unwrap();
        let published = p.ours.publish() == UsedNotification::Wanted;
        assert_eq!(published, wanted, "round {round}");
        interrupts += u32::from(published);
        used = used.wrapping_add(batch);
        while p.ours.driver.take_used().is_some() {}
    }
    assert!((500..2900).contains(&interrupts), "{interrupts}: both answers have been tried");
}
