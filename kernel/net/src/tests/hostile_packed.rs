//! Guests with packed rings that break the rules (virtio 1.3 ch. 2.8).

use proptest::prelude::*;

use super::support::Bench;
use super::support::neighbours::neighbours_lose_nothing;
use crate::features::Features;
use crate::testing::{BROADCAST, BUFFERS, Guest, MEMORY, RING_AREA, SPLIT, TABLES};
use virtio::fault::Fault;
use virtio::testing::packed::{AVAIL, INDIRECT, NEXT, USED, WRITE, descriptor};

const ALL: Features = Features::all();

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
fn a_chain_longer_than_the_ring_breaks_the_device() {
    breaks(ALL, Fault::ChainTooLong, &[((BUFFERS, 64), NEXT); 16]);
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
