//! Frames that leave in batches, and the same frames one at a time: both paths have the same effect.

use nic::Refused;
use proptest::prelude::*;

use super::LEAVING;
use crate::features::Features;
use crate::mac::Mac;
use crate::offload::samples::{Sent, header, sample};
use crate::policy::Policy;
use crate::policy::claims::{Claims, Owner};
use crate::policy::guard::Guard;
use crate::policy::vlan::Membership;
use crate::testing::{BROADCAST, Guest, MEMORY};
use crate::tests::support::nic::{OUTSIDE, Rig, rig};

/// What is done to a conversation with the world outside.
#[derive(Clone, Debug)]
enum Step {
    /// The guest sends so many frames of a length, each cut at this place, to this one of the addresses.
    Send {
        to: usize,
        count: usize,
        len: usize,
        cut: usize,
    },
    /// Frames of TCP, or UDP, that ask for something, rightly or not.
    Ask {
        to: usize,
        count: usize,
        sent: Sent,
        what: What,
        cut: usize,
    },
    /// One with this beginning of a virtio-net header, this type, and this first byte of its source address.
    Odd {
        header: u8,
        kind: u8,
        source: u8,
    },
    /// What was offered last is offered again.
    Again,
    Turn,
    /// The NIC lets go of what it holds, or no longer does.
    LetGo(bool),
    /// It takes so many more.
    Room(usize),
    /// It does offloads, or not; or says so, and refuses to.
    Offloads(bool, bool),
}

/// What frames ask for.
#[derive(Clone, Copy, Debug)]
enum What {
    Checksum,
    Udp,
    Segmentation,
    /// A header of such flags and type, with places that are wrong by so much.
    Wrong(u8, u8, u16, u16),
}

fn asks() -> impl Strategy<Value = Step> {
    let what = prop_oneof![
        4 => Just(What::Checksum),
        2 => Just(What::Udp),
        3 => Just(What::Segmentation),
        1 => (0u8..4, prop_oneof![0u8..6, Just(0x81u8)], 0u16..3, 0u16..3)
            .prop_map(|(flags, gso, start, offset)| What::Wrong(flags, gso, start, offset)),
    ];
    let form = (any::<bool>(), prop_oneof![8 => Just(0usize), 1 => 1usize..3], 0usize..11, 0usize..2);
    let size = (prop_oneof![1usize..60, 60usize..1400, 1400usize..3800], prop_oneof![Just(1000u16), 36u16..1600, 1u16..36]);
    let cut = prop_oneof![2 => Just(0usize), 1 => Just(12usize), 3 => Just(66usize), 2 => 1usize..200];
    (0usize..8, 1usize..20, form, size, what, cut).prop_map(
        |(to, count, (v6, tags, options, extension), (len, mss), what, cut)| {
            // Options as Linux has them, more often than others.
            let options = if options > 6 { 12 } else { options * 4 };
            let extension = if v6 { extension } else { 0 };
            let mss = mss.max((len / 100) as u16 + 1);
            let sent = Sent { tags, options, extension, payload: vec![len as u8; len], mss, ..sample(v6) };
            Step::Ask { to, count, sent, what, cut }
        },
    )
}

fn steps() -> impl Strategy<Value = Step> {
    let len = prop_oneof![2 => 14usize..130, 1 => 14usize..1519, 1 => Just(1514usize), 1 => 1519usize..1530];
    let cut = prop_oneof![3 => Just(0usize), 1 => Just(12usize), 2 => 1usize..200];
    prop_oneof![
        8 => (0usize..8, 1usize..40, len, cut).prop_map(|(to, count, len, cut)| Step::Send { to, count, len, cut }),
        8 => asks(),
        2 => (0u8..2, prop_oneof![Just(0x88u8), Just(0x81)], 1u8..4)
            .prop_map(|(header, kind, source)| Step::Odd { header, kind, source }),
        1 => Just(Step::Again),
        8 => Just(Step::Turn),
        2 => any::<bool>().prop_map(Step::LetGo),
        2 => (0usize..60).prop_map(Step::Room),
        2 => (any::<bool>(), any::<bool>()).prop_map(|(says, refuses)| Step::Offloads(says, refuses)),
    ]
}

/// A frame that asks for something, and its header.
fn asking(sent: &Sent, what: What) -> ([u8; 12], Vec<u8>) {
    let (mut frame, tcp) = (sent.frame(), sent.tcp() as u16);
    let header = match what {
        What::Checksum => header(1, 0, 0, tcp, 16),
        What::Segmentation => sent.header(),
        What::Udp => {
            // What IP says is in it.
            let protocol = if sent.v6 { 14 + 4 * sent.tags + 6 } else { 14 + 4 * sent.tags + 9 };
            frame[protocol] = 17;
            header(1, 0, 0, tcp, 6)
        }
        What::Wrong(flags, gso, start, offset) => header(flags, gso, sent.mss, tcp + start, 16 + offset),
    };
    (header, frame)
}

/// The rules that a guest has by default. Another guest has an address, so ARP and neighbour discovery are looked at.
fn default_rules() -> Policy {
    let other = Owner { macs: vec![Mac::new([2, 0, 0, 0, 0, 2])], ..Owner::default() };
    let guard = Guard::new(&[Mac::new([2, 0, 0, 0, 0, 1])], &[]).expect("there is room");
    Policy { guard, claims: Claims::new([&other]), vlan: Membership::Untagged, ..Policy::default() }
}

proptest! {
    #![proptest_config(crate::tests::support::cases(96))]

    #[test]
    fn frames_leave_alike_by_runs_and_one_at_a_time(
        script in proptest::collection::vec(steps(), 1..60),
        features in prop_oneof![
            3 => Just(LEAVING),
            2 => Just(LEAVING.difference(Features::INDIRECT_DESC)),
            1 => Just(LEAVING.difference(Features::NET_HOST_TSO6 | Features::NET_HOST_ECN)),
            1 => Just(LEAVING.difference(Features::NET_CHECKSUM | Features::NET_SEGMENTATION)),
        ],
        ruled in any::<bool>(),
    ) {
        let worlds = [true, false].map(|by_runs| {
            let policy = ruled.then(|| &*Box::leak(Box::new(default_rules())));
            let (mut a, b) = (Guest::with_rules(1, features, 64, 1500, policy), Guest::new(2, LEAVING, 64, 1500));
            let Rig { mut bench, wire, counters } = rig(&[&a, &b]);
            wire.borrow_mut().offloads = true;
            if !by_runs {
                bench.engine.backend_mut().disable_fast_path();
            }
            let mut wild = false;
            for (n, step) in script.iter().enumerate() {
                let addresses = [[OUTSIDE; 5], [[2, 7, 7, 7, 7, 7], b.mac, BROADCAST, a.mac, a.mac]].concat();
                match step {
                    Step::Send { .. } | Step::Odd { .. } | Step::Ask { .. } if wild => {}
                    Step::Send { to, count, len, cut } => {
                        for i in 0..*count {
                            let frame = a.frame(addresses[*to], *len, (n + i) as u8);
                            a.send(&frame, &[*cut]);
                        }
                    }
                    Step::Ask { to, count, sent, what, cut } => {
                        let (header, mut frame) = asking(sent, *what);
                        frame[..6].copy_from_slice(&addresses[*to]);
                        frame[6..12].copy_from_slice(&a.mac);
                        for i in 0..*count {
                            // Some are plain, and some lie otherwise.
                            let header = if i % 7 == 6 { [0; 12] } else { header };
                            a.send_with(&header, &frame, &[if i % 5 == 4 { 0 } else { *cut }]);
                        }
                    }
                    Step::Odd { header, kind, source } => {
                        let mut frame = a.frame(OUTSIDE, 300, n as u8);
                        (frame[6], frame[12]) = (*source, *kind);
                        frame[13] = 0;
                        a.send_with(&[*header, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &frame, &[]);
                    }
                    Step::Again => {
                        wild = true;
                        let index = a.memory.read_u16(a.tx.config.avail + 2).unwrap();
                        let entry = |i: u16| a.tx.config.avail + 4 + 2 * u64::from(i % 64);
                        let head = a.memory.read_u16(entry(index.wrapping_sub(1))).unwrap();
                        a.memory.write_u16(entry(index), head).unwrap();
                        a.memory.write_u16(a.tx.config.avail + 2, index.wrapping_add(1)).unwrap();
                    }
                    Step::Turn => {
                        bench.turn();
                    }
                    Step::LetGo(lets_go) => wire.borrow_mut().lets_go = *lets_go,
                    Step::Room(room) => wire.borrow_mut().room = *room,
                    Step::Offloads(says, refuses) => {
                        let mut wire = wire.borrow_mut();
                        (wire.offloads, wire.refuses) = (*says, refuses.then_some(Refused::Offload));
                    }
                }
            }
            wire.borrow_mut().lets_go = true;
            bench.turn();
            bench.turn();
            let mut memory = vec![0; MEMORY];
            a.memory.read(0, &mut memory).unwrap();
            let wire = wire.borrow();
            let device = a.counted();
            let faults: Vec<_> = a.shared.faults().collect();
            (wire.sent.clone(), wire.asked.clone(), device, faults, counters.iter().collect::<Vec<_>>(), memory)
        });
        let [fast, general] = worlds;
        prop_assert_eq!(fast.0, general.0, "what left");
        prop_assert_eq!(fast.1, general.1, "what was asked of the NIC");
        prop_assert_eq!(fast.2, general.2, "counters of the guest");
        prop_assert_eq!(fast.3, general.3, "its faults");
        prop_assert_eq!(fast.4, general.4, "counters of the uplink");
        prop_assert!(fast.5 == general.5, "its memory");
    }
}

#[test]
fn of_a_run_that_leaves_the_headers_are_copied_and_the_rest_is_read_where_it_lies() {
    let mut a = Guest::new(1, LEAVING, 256, 1500);
    let Rig { mut bench, wire, counters } = rig(&[&a]);
    let cases: [(usize, &[usize], usize); 6] =
        [(1514, &[], 54), (1514, &[12], 54), (1514, &[78], 66), (54, &[], 54), (60, &[], 54), (20, &[], 20)];
    let mut frames = Vec::new();
    for (len, cuts, _) in cases {
        let frame = a.frame(OUTSIDE, len, 1);
        a.send(&frame, cuts);
        frames.push(frame);
    }
    assert_eq!(bench.turn(), 6);
    assert_eq!(wire.borrow().sent, frames);
    assert_eq!(wire.borrow().headers, cases.map(|(.., copied)| copied));
    assert_eq!(counters.tx_bytes.get(), frames.iter().map(|f| f.len() as u64).sum::<u64>());
}

#[test]
fn of_frames_that_ask_for_something_too() {
    let mut a = Guest::new(1, LEAVING, 256, 1500);
    let Rig { mut bench, wire, counters } = rig(&[&a]);
    wire.borrow_mut().offloads = true;
    let v4 = sample(false);
    let short = Sent { payload: vec![3; 400], ..v4.clone() };
    let cut = v4.headers() + 12;
    // One at a time 128 bytes would be copied of the second and third one, and 66 of the last but one.
    let cases: [(&Sent, What, &[usize], usize); 6] = [
        (&short, What::Checksum, &[cut], 66),
        (&short, What::Checksum, &[], 54),
        (&short, What::Udp, &[12], 54),
        (&v4, What::Segmentation, &[cut], 66),
        (&v4, What::Segmentation, &[], 128),
        (&short, What::Checksum, &[12], 54),
    ];
    let mut frames = Vec::new();
    for (sent, what, cuts, _) in cases {
        let (header, mut frame) = asking(sent, what);
        frame[..6].copy_from_slice(&OUTSIDE);
        frame[6..12].copy_from_slice(&a.mac);
        assert!(a.send_with(&header, &frame, cuts));
        frames.push(frame);
    }
    assert_eq!(bench.turn(), 6);
    let wire = wire.borrow();
    assert_eq!(wire.sent, frames);
    assert_eq!(wire.headers, cases.map(|(.., copied)| copied));
    let ask = |offset, mss| {
        let plain = nic::Offload::of_checksum(nic::PartialChecksum { start: 34, offset }).unwrap();
        plain.with_mss(mss)
    };
    let (plain, whole) = (ask(16, 0), ask(16, v4.mss));
    assert_eq!(wire.asked, [plain, plain, ask(6, 0), whole, whole, plain]);
    assert_eq!((counters.tx_packets.get(), counters.tx_segments.get(), counters.tx_checksums.get()), (6, 0, 0));
    assert_eq!(counters.tx_bytes.get(), frames.iter().map(|f| f.len() as u64).sum::<u64>());
}
