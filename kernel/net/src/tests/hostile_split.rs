//! Guests that break the ring's rules: each loses its device, with the reason counted, and its neighbours nothing.

use proptest::prelude::*;

use super::support::Bench;
use super::support::neighbours::{broken, neighbours_lose_nothing};
use crate::features::Features;
use crate::testing::{BROADCAST, BUFFERS, Guest, MEMORY, RING_AREA, SPLIT, TABLES};
use virtio::config::QueueConfig;
use virtio::fault::Fault;

const ALL: Features = SPLIT;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

impl Guest {
    fn descriptor(&self, table: u64, i: u64, gpa: u64, len: u32, flags: u16, next: u16) {
        self.memory.write_u64(table + 16 * i, gpa).unwrap();
        self.memory.write_u32(table + 16 * i + 8, len).unwrap();
        self.memory.write_u16(table + 16 * i + 12, flags).unwrap();
        self.memory.write_u16(table + 16 * i + 14, next).unwrap();
    }

    /// Offers these heads on a queue, whatever they are.
    fn offer(&self, queue: &QueueConfig, heads: &[u16]) {
        let index = self.memory.read_u16(queue.avail + 2).unwrap();
        for (i, &head) in heads.iter().enumerate() {
            let slot = u64::from(index.wrapping_add(i as u16) % queue.size);
            self.memory.write_u16(queue.avail + 4 + 2 * slot, head).unwrap();
        }
        self.memory.write_u16(queue.avail + 2, index.wrapping_add(heads.len() as u16)).unwrap();
    }
}

/// Two honest guests and one that does something to its rings; the honest ones' frames arrive, and the other one's
/// device is broken for the given reason.
fn breaks(features: Features, size: u16, wanted: Fault, what: impl Fn(&Guest)) {
    let mut hostile = Guest::new(1, features, size, 1500);
    let (mut a, mut b) = (Guest::new(2, ALL, 64, 1500), Guest::new(3, ALL, 64, 1500));
    let mut bench = Bench::with(&[&hostile, &a, &b]);
    b.post(32, &[1526]);
    bench.turn();
    bench.interrupts.take();
    what(&hostile);
    for i in 0..4 {
        // Broadcast, so that the hostile guest's receive queue is used too.
        let frame = a.frame(BROADCAST, 300, i);
        assert!(a.send(&frame, &[]));
        bench.turn();
        assert_eq!(b.receive(), Some(frame));
    }
    assert_eq!(broken(&hostile), [wanted]);
    assert!(hostile.shared.needs_reset());
    assert!(bench.interrupts.take().contains(&(100, hostile.vector(0))), "a configuration change is announced");
    let (ca, cb) = (a.shared.counters(), b.shared.counters());
    assert_eq!((ca.faults.get(), cb.faults.get(), b.counters().frames.rx_packets.get()), (0, 0, 4));

    // A reset heals it.
    hostile.shared.request_reset();
    bench.turn();
    assert!(hostile.shared.reset_done() && !hostile.shared.needs_reset());
    hostile.start();
    bench.turn();
    let frame = hostile.frame(b.mac, 99, 1);
    hostile.send(&frame, &[]);
    bench.turn();
    assert_eq!(b.receive(), Some(frame));
}

/// As [`breaks`], with descriptors written into the transmit queue's table and head 0 offered.
fn chain_breaks(wanted: Fault, descriptors: &[(u64, u32, u16, u16)]) {
    breaks(ALL, 16, wanted, |g| {
        for (i, &(gpa, len, flags, next)) in descriptors.iter().enumerate() {
            g.descriptor(g.tx.config.desc, i as u64, gpa, len, flags, next);
        }
        g.offer(&g.tx.config, &[0]);
    });
}

#[test]
fn an_available_index_that_moves_back_breaks_the_device() {
    for features in [ALL, Features::VERSION_1] {
        breaks(features, 16, Fault::AvailIndex, |g| g.memory.write_u16(g.tx.config.avail + 2, 0xffff).unwrap());
    }
}

#[test]
fn an_available_index_more_than_a_queue_ahead_breaks_the_device() {
    for ahead in [17, 0x4000, 0x8000, 0xfff0] {
        breaks(ALL, 16, Fault::AvailIndex, |g| g.memory.write_u16(g.tx.config.avail + 2, ahead).unwrap());
        breaks(ALL, 16, Fault::AvailIndex, |g| g.memory.write_u16(g.rx.config.avail + 2, ahead).unwrap());
    }
}

#[test]
fn a_head_beyond_the_table_breaks_the_device() {
    for head in [16, 0x8000, 0xffff] {
        breaks(ALL, 16, Fault::Head, |g| g.offer(&g.tx.config, &[head]));
    }
}

#[test]
fn the_same_head_offered_twice_while_it_is_out_breaks_the_device() {
    // The receive queue with MRG_RXBUF takes both for one frame; one buffer alone would be too small for it.
    breaks(ALL, 16, Fault::HeadOutstanding, |g| {
        g.descriptor(g.rx.config.desc, 3, BUFFERS, 100, WRITE, 0);
        g.offer(&g.rx.config, &[3, 3]);
    });
}

#[test]
fn a_descriptor_loop_breaks_the_device() {
    chain_breaks(Fault::ChainTooLong, &[(BUFFERS, 64, NEXT, 0)]);
    chain_breaks(Fault::ChainTooLong, &[(BUFFERS, 64, NEXT, 1), (BUFFERS, 64, NEXT, 0)]);
}

#[test]
fn an_indirect_table_longer_than_the_queue_breaks_the_device() {
    breaks(ALL, 16, Fault::ChainTooLong, |g| {
        for i in 0..17 {
            g.descriptor(TABLES, i, BUFFERS, 64, if i < 16 { NEXT } else { 0 }, i as u16 + 1);
        }
        g.descriptor(g.tx.config.desc, 0, TABLES, 16 * 17, INDIRECT, 0);
        g.offer(&g.tx.config, &[0]);
    });
}

#[test]
fn a_next_beyond_the_table_breaks_the_device() {
    for next in [16, 0xffff] {
        chain_breaks(Fault::Next, &[(BUFFERS, 64, NEXT, next)]);
    }
    breaks(ALL, 16, Fault::Next, |g| {
        g.descriptor(TABLES, 0, BUFFERS, 64, NEXT, 2);
        g.descriptor(g.tx.config.desc, 0, TABLES, 32, INDIRECT, 0);
        g.offer(&g.tx.config, &[0]);
    });
}

#[test]
fn a_buffer_outside_memory_or_that_wraps_breaks_the_device() {
    let end = MEMORY as u64;
    for (gpa, len) in [(end, 1), (end - 63, 64), (u64::MAX, 64), (u64::MAX - 63, 64), (0, u32::MAX), (1 << 63, 64)] {
        chain_breaks(Fault::Buffer, &[(gpa, len, 0, 0)]);
    }
}

#[test]
fn a_zero_length_or_a_wrong_direction_breaks_the_device() {
    chain_breaks(Fault::ZeroLength, &[(BUFFERS, 0, 0, 0)]);
    chain_breaks(Fault::ZeroLength, &[(BUFFERS, 64, NEXT, 1), (BUFFERS, 0, 0, 0)]);
    chain_breaks(Fault::Order, &[(BUFFERS, 64, WRITE | NEXT, 1), (BUFFERS, 64, 0, 0)]);
    chain_breaks(Fault::Direction, &[(BUFFERS, 64, NEXT, 1), (BUFFERS, 64, WRITE, 0)]);
    breaks(ALL, 16, Fault::Direction, |g| {
        g.descriptor(g.rx.config.desc, 0, BUFFERS, 2000, 0, 0);
        g.offer(&g.rx.config, &[0]);
    });
}

#[test]
fn bad_indirect_descriptors_break_the_device() {
    chain_breaks(Fault::IndirectNext, &[(TABLES, 16, INDIRECT | NEXT, 1)]);
    chain_breaks(Fault::IndirectLength, &[(TABLES, 0, INDIRECT, 0)]);
    chain_breaks(Fault::IndirectLength, &[(TABLES, 24, INDIRECT, 0)]);
    chain_breaks(Fault::IndirectTable, &[(MEMORY as u64 - 16, 32, INDIRECT, 0)]);
    chain_breaks(Fault::IndirectTable, &[(u64::MAX - 15, 32, INDIRECT, 0)]);
    breaks(ALL.difference(Features::INDIRECT_DESC), 16, Fault::IndirectNotNegotiated, |g| {
        g.descriptor(g.tx.config.desc, 0, TABLES, 16, INDIRECT, 0);
        g.offer(&g.tx.config, &[0]);
    });
    breaks(ALL, 16, Fault::IndirectNested, |g| {
        g.descriptor(TABLES, 0, TABLES, 16, INDIRECT, 0);
        g.descriptor(g.tx.config.desc, 0, TABLES, 16, INDIRECT, 0);
        g.offer(&g.tx.config, &[0]);
    });
}

#[test]
fn receive_chains_of_more_than_64_descriptors_break_the_device_wherever_they_are() {
    breaks(ALL, 256, Fault::ChainTooLong, |g| {
        for i in 0..65 {
            g.descriptor(TABLES, i, BUFFERS + i * 64, 64, WRITE | if i < 64 { NEXT } else { 0 }, i as u16 + 1);
        }
        g.descriptor(g.rx.config.desc, 0, TABLES, 16 * 65, INDIRECT, 0);
        g.offer(&g.rx.config, &[0]);
    });
    breaks(ALL, 256, Fault::ChainTooLong, |g| {
        for i in 0..65 {
            let flags = WRITE | if i < 64 { NEXT } else { 0 };
            g.descriptor(g.rx.config.desc, i, BUFFERS + i * 64, 64, flags, i as u16 + 1);
        }
        g.offer(&g.rx.config, &[0]);
    });
    // A chain of 64 is taken, if the ring is as long.
    for (size, fault) in [(64, None), (32, Some(Fault::ChainTooLong))] {
        let (mut a, mut b) = (Guest::new(1, ALL, 16, 1500), Guest::new(2, ALL, size, 1500));
        let mut bench = Bench::with(&[&a, &b]);
        b.post(1, &[24; 64]);
        let frame = a.frame(b.mac, 1500, 1);
        a.send(&frame, &[]);
        bench.turn();
        assert_eq!(b.receive(), fault.is_none().then_some(frame));
        assert_eq!(broken(&b), fault.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn buffers_that_were_found_too_small_are_not_looked_at_again() {
    let (mut a, mut b) = (Guest::new(1, ALL, 16, 1500), Guest::new(2, ALL, 16, 1500));
    let mut bench = Bench::with(&[&a, &b]);
    b.post(8, &[10]);
    let frame = a.frame(b.mac, 1500, 1);
    let mut send = || {
        a.send(&frame, &[]);
        bench.turn();
    };
    send();
    // The second buffer is outside the memory now. That breaks the device when it is looked at.
    b.memory.write_u64(b.rx.config.desc + 16, MEMORY as u64).unwrap();
    send();
    send();
    assert_eq!((broken(&b), b.counters().drops.rx_no_buffer.get()), (vec![], 3));
    b.post(1, &[10]);
    send();
    assert_eq!(broken(&b), [Fault::Buffer]);
}

#[test]
fn features_that_were_not_accepted_break_the_device() {
    let mut guest = Guest::new(1, ALL, 16, 1500);
    let mut bench = Bench::with(&[&guest]);
    bench.turn();
    for features in [0, ALL.bits() | 1 << 63] {
        guest.shared.request_reset();
        bench.turn();
        guest.shared.activate(features);
        bench.turn();
        assert!(guest.shared.needs_reset(), "{features:#x}");
    }
    assert_eq!(broken(&guest), [Fault::Features; 2]);
    guest.shared.request_reset();
    bench.turn();
    guest.start();
    bench.turn();
    assert!(!guest.shared.needs_reset());
}

#[test]
fn a_full_queue_of_the_longest_chains_is_served() {
    // The limits themselves are allowed: an indirect table as long as the queue, in each of its descriptors.
    let (mut a, b) = (Guest::new(1, ALL, 16, 1500), Guest::new(2, ALL, 16, 1500));
    let mut bench = Bench::with(&[&a, &b]);
    let buffers: Vec<_> = (0..16).map(|i| (BUFFERS + 64 * i, 64, false)).collect();
    for _ in 0..16 {
        a.tx.add(&buffers).unwrap();
    }
    assert_eq!(bench.turn(), 16);
    assert_eq!((a.tx.used_index(), broken(&a)), (16, vec![]));
}

/// Something a hostile guest does between two turns.
#[derive(Clone, Debug)]
enum Act {
    /// Writes a descriptor: which queue (or the indirect tables), which entry, and what.
    Descriptor(u8, u16, u64, u32, u16, u16),
    /// Offers a head by the rules of the available ring.
    Offer(bool, u16),
    /// Writes an index, an event or a flag field.
    Field(bool, u8, u16),
    /// Writes anywhere.
    Poke(u64, u64),
    /// Resets the device and starts it again.
    Restart,
    /// Writes the MSI-X table.
    Msix(u64, u64),
}

fn acts() -> impl Strategy<Value = Act> {
    let gpa = prop_oneof![
        4 => (0u64..64).prop_map(|i| BUFFERS + 256 * i),
        1 => Just(TABLES),
        1 => 0..MEMORY as u64 + 64,
        1 => any::<u64>(),
    ];
    let len = prop_oneof![4 => 12u32..2000, 1 => (1u32..20).prop_map(|n| 16 * n), 1 => any::<u32>()];
    let index = prop_oneof![8 => 0u16..8, 1 => any::<u16>()];
    let flags = prop_oneof![8 => 0u16..4, 1 => 0u16..8];
    prop_oneof![
        8 => (0u8..3, 0u16..8, gpa, len, flags, index.clone()).prop_map(|(q, i, a, l, f, n)| Act::Descriptor(q, i, a, l, f, n)),
        8 => (any::<bool>(), index).prop_map(|(tx, head)| Act::Offer(tx, head)),
        1 => (any::<bool>(), 0u8..6, any::<u16>()).prop_map(|(tx, f, v)| Act::Field(tx, f, v)),
        1 => (0..2 * RING_AREA, any::<u64>()).prop_map(|(at, v)| Act::Poke(at, v)),
        3 => Just(Act::Restart),
        1 => (0u64..160, any::<u64>()).prop_map(|(at, v)| Act::Msix(at & !3, v)),
    ]
}

fn perform(g: &mut Guest, bench: &mut Bench, act: &Act) {
    match *act {
        Act::Descriptor(queue, i, gpa, len, flags, next) => {
            let table = [g.rx.config.desc, g.tx.config.desc, TABLES][usize::from(queue)];
            g.descriptor(table, u64::from(i), gpa, len, flags, next);
        }
        Act::Offer(tx, head) => g.offer(if tx { &g.tx.config } else { &g.rx.config }, &[head]),
        Act::Field(tx, field, value) => {
            let q = if tx { &g.tx.config } else { &g.rx.config };
            let (avail_end, used_end) = (4 + 2 * u64::from(q.size), 4 + 8 * u64::from(q.size));
            let at = [q.avail, q.avail + 2, q.avail + avail_end, q.used, q.used + 2, q.used + used_end];
            g.memory.write_u16(at[usize::from(field)], value).unwrap();
        }
        Act::Poke(at, value) => g.memory.write_u64(at, value).unwrap(),
        Act::Restart => {
            g.shared.request_reset();
            bench.turn();
            assert!(g.shared.reset_done(), "a reset is always done");
            g.start();
        }
        Act::Msix(at, value) => g.shared.msix.write(at, 4, value),
    }
}

proptest! {
    #![proptest_config(crate::tests::support::cases(400))]

    #[test]
    fn whatever_one_guest_does_its_neighbours_lose_nothing_they_had_buffers_for(
        script in proptest::collection::vec((acts(), 0u8..4), 1..120),
        mrg: bool,
        event: bool,
    ) {
        neighbours_lose_nothing(ALL, (mrg, event), &script, perform)?;
    }
}
