//! What holds for packed rings alone (virtio 1.3 ch. 2.8): a queue against a driver that keeps the specification's wrap
//! counters, and guests that break the rules.

#![allow(unsafe_code, reason = "a queue needs a memory that lives as long")]

use std::collections::HashMap;

use proptest::prelude::*;

use super::Bench;
use super::hostile::neighbours_lose_nothing;
use super::packed::ring::{EVENT, Rig, rig};
use crate::chain::Segment;
use crate::fault::Fault;
use crate::queue::{Queue, QueueState, Token, Wish};
use crate::shared::{Features, MAX_QUEUE_SIZE, QueueConfig};
use crate::testing::{BROADCAST, BUFFERS, Guest, MEMORY, RING_AREA, SPLIT, TABLES};

const ALL: Features = Features::all();
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// A chain's buffers, each with whether the device writes it.
type Buffers = Vec<(Segment, bool)>;

/// Writes a descriptor.
fn descriptor(memory: &memory::GuestMemory, at: u64, (gpa, len): (u64, u32), id: u16, flags: u16) {
    memory.write_u64(at, gpa).unwrap();
    memory.write_u32(at + 8, len).unwrap();
    memory.write_u16(at + 12, id).unwrap();
    memory.write_u16(at + 14, flags).unwrap();
}

impl Rig {
    fn take(&mut self) -> Result<Option<(Token, Buffers)>, Fault> {
        self.segments.clear();
        let Some(request) = self.queue.pop(&self.memory, &mut self.segments)? else { return Ok(None) };
        let chain = request.chain;
        let readable = chain.readable(&self.segments).iter().map(|s| (*s, false));
        let writable = chain.writable(&self.segments).iter().map(|s| (*s, true));
        Ok(Some((request.token, readable.chain(writable).collect())))
    }
}

proptest! {
    #[test]
    fn what_a_driver_offers_is_taken_in_order_and_comes_back_in_the_order_of_completion(
        size in prop_oneof![1u16..40, Just(64), Just(100), Just(256)],
        indirect: bool,
        rounds in proptest::collection::vec(
            (proptest::collection::vec((1usize..6, 1u32..3000), 0..10), 0usize..12, any::<prop::sample::Index>(), 0u16..80),
            1..60,
        ),
    ) {
        let mut features = EVENT;
        features.set(Features::INDIRECT_DESC, indirect);
        let mut r = rig(size, features);
        let mut offered = std::collections::VecDeque::new();
        let mut out = Vec::new();
        let mut extents = HashMap::new();
        // Descriptors that were used and seen, in all.
        let mut seen = 0u64;
        for (requests, complete, which, ahead) in rounds {
            for (pieces, len) in requests {
                let pieces = pieces.min(usize::from(size));
                let split = len as usize % (pieces + 1);
                let buffers: Vec<_> =
                    (0..pieces).map(|i| (BUFFERS + 0x4000 * i as u64, len + i as u32, i >= split)).collect();
                if let Some(id) = r.driver.add(&buffers) {
                    extents.insert(id, if indirect || pieces == 1 { 1 } else { pieces as u64 });
                    offered.push_back((id, buffers));
                }
            }
            while let Some((token, taken)) = r.take().unwrap() {
                let (id, buffers) = offered.pop_front().expect("nothing but what was offered");
                let wanted: Vec<_> = buffers.iter().map(|&(gpa, len, write)| (Segment { gpa, len }, write)).collect();
                prop_assert_eq!(&taken, &wanted);
                out.push((token, id));
            }
            prop_assert!(offered.is_empty());
            prop_assert_eq!(r.queue.available(), Ok(0));
            let event = (seen + u64::from(ahead)).wrapping_sub(20) % (2 * u64::from(size));
            r.driver.write_used_event(event as u16);
            let mut done = Vec::new();
            for n in 0..complete.min(out.len()) {
                let (token, id) = out.swap_remove(which.index(out.len()));
                prop_assert!(r.queue.complete(&r.memory, token, n as u32).unwrap());
                done.push((id, n as u32));
            }
            prop_assert!(!r.driver.has_used(), "nothing is to be seen yet");
            let steps: u64 = done.iter().map(|(id, _)| extents[id]).sum();
            let passed = (seen..seen + steps).any(|at| at % (2 * u64::from(size)) == event);
            let wanted = match (steps, passed) {
                (0, _) => Wish::Nothing,
                (_, true) => Wish::Interrupt,
                (_, false) => Wish::Quiet,
            };
            prop_assert_eq!(r.publish(), wanted);
            seen += steps;
            for wanted in done {
                prop_assert_eq!(r.driver.take_used(), Some(wanted));
            }
            prop_assert!(!r.driver.has_used());
        }
    }
}

#[test]
fn an_interrupt_is_wanted_as_the_event_structure_says() {
    for (features, flags, wanted) in [
        (EVENT, 0, Wish::Interrupt),
        (EVENT, 1, Wish::Quiet),
        (EVENT.difference(Features::EVENT_IDX), 0, Wish::Interrupt),
        (EVENT.difference(Features::EVENT_IDX), 1, Wish::Quiet),
        // Nonsense costs an interrupt: an event without the feature, flags that there are not, a descriptor likewise.
        (EVENT.difference(Features::EVENT_IDX), 2, Wish::Interrupt),
        (EVENT, 3, Wish::Interrupt),
    ] {
        let mut r = rig(8, features);
        r.memory.write_u32(r.driver.config.avail, flags << 16 | 5).unwrap();
        r.driver.add(&[(BUFFERS, 64, false)]).unwrap();
        r.serve();
        assert_eq!(r.publish(), wanted, "{features:?} {flags}");
    }
    let mut r = rig(8, EVENT);
    for event in [8, 0x7fff, 0x8008, 0xffff] {
        r.memory.write_u32(r.driver.config.avail, 2 << 16 | event).unwrap();
        r.driver.add(&[(BUFFERS, 64, false)]).unwrap();
        r.serve();
        assert_eq!(r.publish(), Wish::Interrupt, "{event:#x}");
    }
}

#[test]
fn a_glance_counts_what_is_offered_and_moves_with_it() {
    let mut r = rig(64, EVENT);
    for round in 0..40u16 {
        let before = r.queue.glance();
        assert_eq!(before.waiting, 0);
        for n in 1..=round {
            r.driver.add(&[(BUFFERS, 64, false)]).unwrap();
            let seen = r.queue.glance();
            assert_eq!(seen.waiting, n.min(32), "round {round}");
            assert!(n > 32 || seen.index != before.index);
        }
        assert_eq!(r.serve(), round);
        r.publish();
        while r.driver.take_used().is_some() {}
    }
}

#[test]
fn queues_of_bad_size_address_or_position_are_refused() {
    let memory = memory::guest::testing::memory(0x1000, 0x20000);
    let good = QueueConfig { size: 256, desc: 0x1000, avail: 0x2000, used: 0x3000, vector: 0, enabled: true };
    let from = |config: QueueConfig, avail: u16, used: u16| {
        let state = QueueState { config, avail, used };
        // SAFETY: a test's memory lives for ever.
        unsafe { Queue::new(&memory, 0, 1, EVENT, 256, &state).err() }
    };
    let new = |config: QueueConfig| from(config, 0x8000, 0x8000);
    // Any size up to the one offered, not only powers of two.
    for size in [1, 2, 3, 255, 256] {
        assert_eq!(new(QueueConfig { size, ..good }), None, "{size}");
    }
    for size in [0, 257, 512, 0x8000, 0xffff] {
        assert_eq!(new(QueueConfig { size, ..good }), Some(Fault::QueueSize), "{size}");
    }
    let end = 0x21000;
    for (desc, avail, used) in [
        (0x1008, 0x2000, 0x3000),
        (0x1000, 0x2002, 0x3000),
        (0x1000, 0x2000, 0x3002),
        (0, 0x2000, 0x3000),
        (end - 0xff0, 0x2000, 0x3000),
        (0x1000, end, 0x3000),
        (0x1000, 0x2000, end),
        (!0xf, 0x2000, 0x3000),
        (0x1000, !3, 0x3000),
        (0x1000, 0x2000, !3),
    ] {
        let config = QueueConfig { desc, avail, used, ..good };
        assert_eq!(new(config), Some(Fault::RingAddress), "{config:x?}");
    }
    assert_eq!(
        new(QueueConfig { desc: end - 0x1000, avail: 0x1000, used: 0x1004, ..good }),
        None,
        "up to the last byte"
    );
    for (avail, used, wanted) in [
        (0xff, 0xff, None),
        (0x80ff, 0x80ff, None),
        (0x100, 0x100, Some(Fault::AvailIndex)),
        (0xffff, 0xffff, Some(Fault::AvailIndex)),
        (0x8001, 0x8000, Some(Fault::AvailIndex)),
        (0x8000, 0, Some(Fault::AvailIndex)),
    ] {
        assert_eq!(from(good, avail, used), wanted, "{avail:#x} {used:#x}");
    }
}

#[test]
fn a_queue_goes_on_from_where_it_was_in_either_round() {
    let mut r = rig(8, EVENT);
    for taken in 0..40 {
        let (avail, used) = r.queue.positions().expect("nothing is out");
        let wrap = if taken / 8 % 2 == 0 { 0x8000 } else { 0 };
        let at = (taken % 8) | wrap;
        assert_eq!((avail, used), (at, at));
        let state = QueueState { config: r.driver.config, avail, used };
        // SAFETY: a test's memory lives for ever.
        r.queue = unsafe { Queue::new(&r.memory, 0, 1, EVENT, MAX_QUEUE_SIZE, &state).unwrap() };
        r.driver.add(&[(BUFFERS, 64, true)]).unwrap();
        assert_eq!(r.serve(), 1);
        assert_eq!(r.queue.positions(), None, "a completion is not published");
        r.publish();
        assert!(r.driver.take_used().is_some());
    }
}

#[test]
fn no_more_is_taken_than_the_ring_has_whatever_the_flags_say() {
    // Each time the queue looks, all of the ring is offered, in whichever round it is.
    for size in [1, 5, 16] {
        let mut r = rig(size, EVENT);
        let mut tokens = Vec::new();
        let offer = |r: &Rig, bits: u16| {
            for slot in 0..size {
                let at = r.driver.config.desc + 16 * u64::from(slot);
                descriptor(&r.memory, at, (BUFFERS, 64), slot, bits);
            }
        };
        for round in 0..6 {
            let bits = if round % 2 == 0 { AVAIL } else { USED };
            offer(&r, bits);
            while let Some((token, _)) = r.take().unwrap() {
                tokens.push(token);
            }
            assert_eq!((tokens.len(), r.queue.in_flight()), (usize::from(size), size));
            // The next round is offered before this one is used, and once more before that can be seen.
            offer(&r, bits ^ (AVAIL | USED));
            assert!(r.take().unwrap().is_none());
            for token in tokens.drain(..) {
                assert!(r.queue.complete(&r.memory, token, 0).unwrap());
            }
            offer(&r, bits ^ (AVAIL | USED));
            assert!(r.take().unwrap().is_none());
            assert_ne!(r.publish(), Wish::Nothing);
        }
    }
}

#[test]
fn an_id_is_the_drivers_affair() {
    let mut r = rig(4, EVENT);
    let ids = [0xffff, 4, 4, 0x8000];
    for (slot, id) in (0u64..).zip(ids) {
        descriptor(&r.memory, r.driver.config.desc + 16 * slot, (BUFFERS, 64), id, AVAIL);
    }
    assert_eq!(r.serve(), 4);
    r.publish();
    for (slot, id) in (0u64..).zip(ids) {
        let rest = r.memory.read_u64(r.driver.config.desc + 16 * slot + 8).unwrap();
        assert_eq!(rest, u64::from(id) << 32 | u64::from(AVAIL | USED) << 48, "given back as it was");
    }
}

/// An honest pair of guests and one that does something to its transmit ring; that one's device is broken for the given
/// reason, and its neighbours lose nothing. A reset heals it.
fn breaks(features: Features, wanted: Fault, descriptors: &[((u64, u32), u16)]) {
    let mut hostile = Guest::new(1, features, 16, 1500);
    let (mut a, mut b) = (Guest::new(2, ALL, 64, 1500), Guest::new(3, SPLIT, 64, 1500));
    let mut bench = Bench::with(&[&hostile, &a, &b]);
    b.post(32, &[1526]);
    bench.turn();
    for (slot, &(buffer, flags)) in (0u64..).zip(descriptors) {
        descriptor(&hostile.memory, hostile.tx.config.desc + 16 * slot, buffer, 7, flags | AVAIL);
    }
    for i in 0..4 {
        let frame = a.frame(BROADCAST, 300, i);
        assert!(a.send(&frame, &[]));
        bench.turn();
        assert_eq!(b.receive(), Some(frame));
    }
    let broken: Vec<_> = hostile.shared.faults().filter(|(_, n)| *n != 0).collect();
    assert_eq!(broken, [(wanted, 1)]);
    assert!(hostile.shared.needs_reset());
    assert_eq!((a.shared.counters().faults.get(), b.shared.counters().faults.get()), (0, 0));
    hostile.shared.request_reset();
    bench.turn();
    assert!(hostile.shared.reset_done());
    hostile.start();
    bench.turn();
    let frame = hostile.frame(b.mac, 99, 1);
    hostile.send(&frame, &[]);
    bench.turn();
    assert_eq!(b.receive(), Some(frame));
}

#[test]
fn a_chain_round_the_ring_or_longer_than_it_breaks_the_device() {
    breaks(ALL, Fault::ChainTooLong, &[((BUFFERS, 64), NEXT); 16]);
    // The last one of the ring goes on at its beginning.
    let mut r = rig(4, EVENT);
    for slot in 0..4 {
        descriptor(&r.memory, r.driver.config.desc + 16 * slot, (BUFFERS, 64), 0, NEXT | AVAIL);
    }
    assert_eq!(r.take().err(), Some(Fault::ChainTooLong));
    // With one descriptor out, the ring has one less.
    let mut r = rig(4, EVENT);
    for (slot, flags) in (0..4).zip([0, NEXT, NEXT, NEXT]) {
        descriptor(&r.memory, r.driver.config.desc + 16 * slot, (BUFFERS, 64), 0, flags | AVAIL);
    }
    let _out = r.take().unwrap().unwrap();
    assert_eq!(r.take().err(), Some(Fault::ChainTooLong));
}

#[test]
fn bad_descriptors_break_the_device() {
    let end = MEMORY as u64;
    for (gpa, len) in [(end, 1), (end - 63, 64), (u64::MAX, 64), (0, u32::MAX), (1 << 63, 64)] {
        breaks(ALL, Fault::Buffer, &[((gpa, len), 0)]);
    }
    breaks(ALL, Fault::ZeroLength, &[((BUFFERS, 0), 0)]);
    breaks(ALL, Fault::ZeroLength, &[((BUFFERS, 64), NEXT), ((BUFFERS, 0), 0)]);
    breaks(ALL, Fault::Order, &[((BUFFERS, 64), WRITE | NEXT), ((BUFFERS, 64), 0)]);
    breaks(ALL, Fault::Direction, &[((BUFFERS, 64), NEXT), ((BUFFERS, 64), WRITE)]);
    breaks(ALL, Fault::IndirectNext, &[((TABLES, 16), INDIRECT | NEXT), ((BUFFERS, 64), 0)]);
    breaks(ALL, Fault::IndirectLength, &[((TABLES, 0), INDIRECT)]);
    breaks(ALL, Fault::IndirectLength, &[((TABLES, 24), INDIRECT)]);
    breaks(ALL, Fault::IndirectTable, &[((end - 16, 32), INDIRECT)]);
    breaks(ALL, Fault::IndirectTable, &[((u64::MAX - 15, 32), INDIRECT)]);
    let without = ALL.difference(Features::INDIRECT_DESC);
    breaks(without, Fault::IndirectNotNegotiated, &[((TABLES, 16), INDIRECT)]);
}

#[test]
fn an_indirect_table_is_a_chain_whatever_its_next_flags_say_and_no_longer_than_the_ring() {
    let mut r = rig(4, EVENT.union(Features::INDIRECT_DESC));
    for i in 0..5 {
        descriptor(&r.memory, TABLES + 16 * i, (BUFFERS + 64 * i, 64), 9, if i == 1 { NEXT } else { 0 });
    }
    let (at, offered) = r.driver.to_offer(0);
    descriptor(&r.memory, at, (TABLES, 64), 3, INDIRECT | WRITE | offered);
    let (token, buffers) = r.take().unwrap().unwrap();
    let wanted: Vec<_> = (0..4).map(|i| (Segment { gpa: BUFFERS + 64 * i, len: 64 }, false)).collect();
    assert_eq!(buffers, wanted);
    assert!(r.queue.complete(&r.memory, token, 0).unwrap());
    let (at, offered) = r.driver.to_offer(1);
    descriptor(&r.memory, at, (TABLES, 80), 3, INDIRECT | offered);
    assert_eq!(r.take().err(), Some(Fault::ChainTooLong));
    let mut r = rig(4, EVENT.union(Features::INDIRECT_DESC));
    descriptor(&r.memory, TABLES, (TABLES, 16), 0, INDIRECT);
    descriptor(&r.memory, at - 16, (TABLES, 16), 3, INDIRECT | AVAIL);
    assert_eq!(r.take().err(), Some(Fault::IndirectNested));
}

/// Something a hostile guest does between two turns.
#[derive(Clone, Debug)]
enum Act {
    /// Writes a descriptor of a queue (or of the indirect tables) that is so far ahead, and perhaps offers it.
    Descriptor(u8, u16, u64, u32, u16, u16, bool),
    /// Writes the AVAIL and USED bits of a descriptor.
    Flip(bool, u16, u16),
    /// Writes an event suppression structure.
    Event(bool, bool, u32),
    /// Writes anywhere in the rings.
    Poke(u64, u64),
    /// Offers by the rules.
    Honest(usize),
    /// Resets the device and starts it again.
    Restart,
}

fn acts() -> impl Strategy<Value = Act> {
    let gpa = prop_oneof![
        4 => (0u64..64).prop_map(|i| BUFFERS + 256 * i),
        1 => Just(TABLES),
        1 => 0..MEMORY as u64 + 64,
        1 => any::<u64>(),
    ];
    let len = prop_oneof![4 => 12u32..2000, 1 => (1u32..20).prop_map(|n| 16 * n), 1 => any::<u32>()];
    let flags = prop_oneof![8 => 0u16..4, 1 => 0u16..8, 1 => any::<u16>()];
    let bits = prop_oneof![Just(0), Just(AVAIL), Just(USED), Just(AVAIL | USED)];
    prop_oneof![
        8 => (0u8..3, 0u16..8, gpa, len, flags, any::<u16>(), any::<bool>())
            .prop_map(|(q, i, a, l, f, n, offer)| Act::Descriptor(q, i, a, l, f, n, offer)),
        8 => (any::<bool>(), 0u16..8, bits).prop_map(|(tx, i, bits)| Act::Flip(tx, i, bits)),
        2 => (any::<bool>(), any::<bool>(), any::<u32>()).prop_map(|(tx, device, v)| Act::Event(tx, device, v)),
        1 => (0..2 * RING_AREA - 8, any::<u64>()).prop_map(|(at, v)| Act::Poke(at, v)),
        3 => (1usize..6).prop_map(Act::Honest),
        3 => Just(Act::Restart),
    ]
}

fn perform(g: &mut Guest, bench: &mut Bench, act: &Act) {
    match *act {
        Act::Descriptor(2, i, gpa, len, flags, id, _) => {
            descriptor(&g.memory, TABLES + 16 * u64::from(i), (gpa, len), id, flags);
        }
        Act::Descriptor(queue, i, gpa, len, flags, id, offer) => {
            let queue = if queue == 0 { &g.rx } else { &g.tx };
            let (at, offered) = queue.to_offer(i);
            let bits = if offer { flags & !(AVAIL | USED) | offered } else { flags };
            descriptor(&g.memory, at, (gpa, len), id, bits);
        }
        Act::Flip(tx, i, bits) => {
            let queue = if tx { &g.tx } else { &g.rx };
            let at = queue.config.desc + 16 * u64::from(i) + 14;
            let flags = g.memory.read_u16(at).unwrap();
            g.memory.write_u16(at, flags & !(AVAIL | USED) | bits).unwrap();
        }
        Act::Event(tx, device, value) => {
            let q = if tx { &g.tx.config } else { &g.rx.config };
            g.memory.write_u32(if device { q.used } else { q.avail }, value).unwrap();
        }
        Act::Poke(at, value) => g.memory.write_u64(at, value).unwrap(),
        Act::Honest(pieces) => {
            let buffers: Vec<_> = (0..pieces).map(|i| (BUFFERS + 0x1000 * i as u64, 100, false)).collect();
            g.tx.add(&buffers);
            g.rx.add(&[(BUFFERS + 0x8000, 1526, true)]);
        }
        Act::Restart => {
            g.shared.request_reset();
            bench.turn();
            assert!(g.shared.reset_done(), "a reset is always done");
            g.start();
        }
    }
}

proptest! {
    #![proptest_config(crate::tests::cases(400))]

    #[test]
    fn whatever_one_guest_does_its_neighbours_lose_nothing_they_had_buffers_for(
        script in proptest::collection::vec((acts(), 0u8..4), 1..120),
        mrg: bool,
        event: bool,
    ) {
        neighbours_lose_nothing(ALL, (mrg, event), &script, perform)?;
    }
}
