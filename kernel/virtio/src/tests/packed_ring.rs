//! Tests of packed rings alone (virtio 1.3 ch. 2.8): a queue against a driver that keeps the specification's wrap
//! counters.

#![allow(unsafe_code, reason = "a queue needs a memory that lives as long")]

use std::collections::HashMap;

use proptest::prelude::*;

use super::support::{Rig, rig};
use crate::chain::Segment;
use crate::config::{Features, MAX_QUEUE_SIZE, QueueConfig};
use crate::fault::Fault;
use crate::queue::{Queue, QueueState, UsedNotification};
use crate::testing::packed::{AVAIL, INDIRECT, NEXT, USED, WRITE, descriptor};
use crate::testing::{BUFFERS, TABLES};

const EVENT: Features = Features::VERSION_1.union(Features::RING_PACKED).union(Features::EVENT_IDX);
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
                (0, _) => UsedNotification::Nothing,
                (_, true) => UsedNotification::Wanted,
                (_, false) => UsedNotification::Suppressed,
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
        (EVENT, 0, UsedNotification::Wanted),
        (EVENT, 1, UsedNotification::Suppressed),
        (EVENT.difference(Features::EVENT_IDX), 0, UsedNotification::Wanted),
        (EVENT.difference(Features::EVENT_IDX), 1, UsedNotification::Suppressed),
        // Invalid values cost an interrupt: an event without the feature, flags or a descriptor that do not exist.
        (EVENT.difference(Features::EVENT_IDX), 2, UsedNotification::Wanted),
        (EVENT, 3, UsedNotification::Wanted),
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
        assert_eq!(r.publish(), UsedNotification::Wanted, "{event:#x}");
    }
}

#[test]
fn a_glance_counts_what_is_offered_and_moves_with_it() {
    let mut r = rig(64, EVENT);
    for round in 0..40u16 {
        let before = r.queue.backlog();
        assert_eq!(before.waiting, 0);
        for n in 1..=round {
            r.driver.add(&[(BUFFERS, 64, false)]).unwrap();
            let seen = r.queue.backlog();
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
    // Each time the queue reads, the whole ring is offered, in any round.
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
            assert_ne!(r.publish(), UsedNotification::Nothing);
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

#[test]
fn a_chain_round_the_ring_or_longer_than_it_is_refused() {
    // The chain continues from the ring's last descriptor to its first.
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
