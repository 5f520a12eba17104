//! The fast path and the slow path have the same effect: the same conversation through both leaves the same in
//! everything that a guest or an operator can see. The ports have rules, and the frames are of the kinds that rules
//! look at.

#[path = "both_paths/frames.rs"]
mod frames;
#[path = "both_paths/rules.rs"]
mod rules;

use std::sync::Mutex;

use proptest::prelude::*;

use super::{ALL, PACKED, PLAIN};
use crate::features::Features;
use crate::testing::{BROADCAST, BUFFERS, Guest, MEMORY};
use crate::tests::support::Bench;
use crate::watch::{Batch, FrameWatcher, Seen as SeenFrame, Step as FrameStep, UplinkStep, Watch};
use frames::What;
use rules::Rules;
use trace::capture::Way;
use trace::frames::Destination;
use trace::{Classes, Switch};
use virtio::fault::Fault;

const GUESTS: usize = 3;

/// Whom a frame is for.
#[derive(Clone, Copy, Debug)]
enum To {
    Guest(usize),
    All,
    Nobody,
}

/// What happens between two turns.
#[derive(Clone, Debug)]
enum Step {
    /// A guest sends so many frames of a length, each cut at these places.
    Send {
        from: usize,
        to: To,
        count: usize,
        len: usize,
        what: What,
        cuts: Vec<usize>,
    },
    /// One frame with this beginning of a virtio-net header, under this first byte of its source address.
    Odd {
        from: usize,
        to: To,
        header: [u8; 2],
        source: u8,
    },
    /// Buffers are posted in these pieces.
    Post {
        guest: usize,
        count: usize,
        pieces: Vec<u32>,
    },
    /// A descriptor is written over, and perhaps offered.
    Descriptor {
        guest: usize,
        tx: bool,
        index: u16,
        gpa: u64,
        len: u32,
        flags: u16,
        offer: bool,
    },
    /// A head is offered, whatever it is.
    Offer {
        guest: usize,
        tx: bool,
        head: u16,
    },
    Turn,
    Restart(usize),
    /// One queue is reset, and set up with a ring of another size.
    Resize {
        guest: usize,
        tx: bool,
        size: u16,
    },
}

fn steps() -> impl Strategy<Value = Step> {
    let guest = 0..GUESTS;
    let to = prop_oneof![12 => guest.clone().prop_map(To::Guest), 1 => Just(To::All), 1 => Just(To::Nobody)];
    let len = prop_oneof![
        4 => 60usize..64,
        4 => 14usize..1519,
        1 => Just(1514usize),
        1 => 0usize..16,
        1 => 1515usize..2010,
    ];
    let cuts = prop_oneof![
        6 => Just(vec![]),
        2 => Just(vec![12]),
        2 => (1usize..200).prop_map(|cut| vec![cut]),
        1 => proptest::collection::vec(1usize..1500, 2..5),
    ];
    let pieces = prop_oneof![
        5 => Just(vec![1526u32]),
        2 => Just(vec![2048u32]),
        // With MRG_RXBUF each buffer has room for a header at least (5.1.6.3.1).
        2 => (12u32..1600).prop_map(|len| vec![len]),
        1 => (12u32..40, proptest::collection::vec(1u32..900, 1..3)).prop_map(|(first, rest)| [&[first], &rest[..]].concat()),
    ];
    let gpa =
        prop_oneof![4 => (0u64..32).prop_map(|i| BUFFERS + 512 * i), 1 => 0..MEMORY as u64 + 64, 1 => any::<u64>()];
    let header = prop_oneof![2 => Just([0, 0]), 1 => Just([0x82, 0]), 1 => Just([1, 0]), 1 => Just([0, 1])];
    prop_oneof![
        12 => (guest.clone(), to.clone(), 1usize..40, len, frames::what(), cuts)
            .prop_map(|(from, to, count, len, what, cuts)| Step::Send { from, to, count, len, what, cuts }),
        2 => (guest.clone(), to, header, prop_oneof![Just(2u8), Just(6), Just(3)])
            .prop_map(|(from, to, header, source)| Step::Odd { from, to, header, source }),
        10 => (guest.clone(), 1usize..80, pieces)
            .prop_map(|(guest, count, pieces)| Step::Post { guest, count, pieces }),
        1 => (guest.clone(), any::<bool>(), 0u16..64, gpa, prop_oneof![20u32..2000, any::<u32>()],
            prop_oneof![4 => 0u16..8, 1 => any::<u16>()], any::<bool>())
            .prop_map(|(guest, tx, index, gpa, len, flags, offer)| Step::Descriptor { guest, tx, index, gpa, len, flags, offer }),
        1 => (guest.clone(), any::<bool>(), prop_oneof![8 => 0u16..64, 1 => any::<u16>()])
            .prop_map(|(guest, tx, head)| Step::Offer { guest, tx, head }),
        10 => Just(Step::Turn),
        1 => guest.clone().prop_map(Step::Restart),
        1 => (guest, any::<bool>(), prop_oneof![Just(8u16), Just(64), Just(256)])
            .prop_map(|(guest, tx, size)| Step::Resize { guest, tx, size }),
    ]
}

/// A switch with its guests, the second of which may send longer frames than the others.
struct World {
    bench: Bench,
    guests: Vec<Guest>,
    /// Guests whose rings were written to behind their drivers' backs: the drivers are silent until they restart.
    wild: [bool; GUESTS],
    arrived: usize,
    watched: &'static Watched,
}

/// Drops that were shown, with port, cause and bytes of each, and frames that were shown.
#[derive(Default)]
struct Watched {
    drops: Mutex<Vec<(usize, u8, u32)>>,
    frames: Mutex<Vec<Shown>>,
    /// Steps of frames: the port, the step, and the bytes of the frame.
    steps: Mutex<Vec<(usize, Made, u32)>>,
}

/// A step of a frame that was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Made {
    Taken,
    /// With the number of the destination.
    Switched(u64),
    Given,
}

/// A frame that was shown.
#[derive(Clone, Debug)]
struct Shown {
    port: usize,
    way: Way,
    len: u32,
    dropped: Option<u8>,
    bytes: Vec<u8>,
}

impl PartialEq for Shown {
    /// The paths do not keep the same number of bytes.
    fn eq(&self, other: &Self) -> bool {
        let fields = |frame: &Self| (frame.port, frame.way, frame.len, frame.dropped);
        fields(self) == fields(other) && self.bytes.iter().zip(&other.bytes).all(|(a, b)| a == b)
    }
}

impl FrameWatcher for Watched {
    fn dropped(&self, port: usize, cause: u8, bytes: u32) {
        self.drops.lock().unwrap().push((port, cause, bytes));
    }

    fn seen(&self, &SeenFrame { port, way, at, len, bytes, dropped }: &SeenFrame<'_>) {
        assert_eq!(at.is_some(), way == Way::In, "a frame that was sent has the time at which it was taken");
        assert!(bytes.len() <= len as usize, "{} bytes of a frame of {len}", bytes.len());
        assert!(bytes.len() >= 14 || dropped.is_some(), "{} bytes of a frame that was checked", bytes.len());
        self.frames.lock().unwrap().push(Shown { port, way, len, dropped, bytes: bytes.to_vec() });
    }

    fn step(&self, step: FrameStep, port: usize, len: u32) {
        let made = match step {
            FrameStep::Taken(_) => Made::Taken,
            FrameStep::Switched(to) => Made::Switched(to.to_b()),
            FrameStep::Given => Made::Given,
        };
        self.steps.lock().unwrap().push((port, made, len));
    }

    fn batch(&self, &Batch { from, to, given, lengths, .. }: &Batch<'_>) {
        let mut steps = self.steps.lock().unwrap();
        for &len in lengths {
            steps.push((from, Made::Taken, len));
            if let Some(to) = to {
                steps.push((from, Made::Switched(to.to_b()), len));
            }
            if let (true, Some(Destination::Port(to))) = (given, to) {
                steps.push((to.into(), Made::Given, len));
            }
        }
    }

    fn at_uplink(&self, _: usize, _: UplinkStep, _: &[u32]) {
        panic!("there is no uplink");
    }
}

impl World {
    fn new(features: &[Features], rules: &[Option<Rules>], size: u16, by_runs: bool) -> Self {
        let guests: Vec<_> = (1..)
            .zip(features.iter().zip(rules))
            .map(|(n, (&features, rules))| {
                let mtu = if n == 2 { 1986 } else { 1500 };
                Guest::with_rules(n, features, size, mtu, rules.as_ref().map(|rules| rules.policy(n)))
            })
            .collect();
        let mut bench = Bench::with(&guests.iter().collect::<Vec<_>>());
        if !by_runs {
            bench.engine.backend_mut().disable_fast_path();
        }
        let watched: &Watched = Box::leak(Box::default());
        let on: &Switch = Box::leak(Box::default());
        on.set(Classes::CAPTURES | Classes::FRAMES);
        bench.engine.backend_mut().watch(Watch { watcher: watched, on });
        Self { bench, guests, wild: [false; GUESTS], arrived: 0, watched }
    }

    fn perform(&mut self, step: &Step, tag: u8) {
        match *step {
            Step::Send { from, .. } | Step::Odd { from, .. } if self.wild[from] => {}
            Step::Post { guest, .. } if self.wild[guest] => {}
            Step::Send { from, to, count, len, ref what, ref cuts } => {
                let to = self.address(to);
                for i in 0..count {
                    let guest = &mut self.guests[from];
                    let mut frame = guest.frame(to, len, tag.wrapping_add(i as u8));
                    what.put(&mut frame, i);
                    frame.truncate(len);
                    guest.send(&frame, cuts);
                }
            }
            Step::Odd { from, to, header, source } => {
                let to = self.address(to);
                let guest = &mut self.guests[from];
                let mut frame = guest.frame(to, 100, tag);
                frame[6] = source;
                let mut whole = [0; 12];
                whole[..2].copy_from_slice(&header);
                guest.send_with(&whole, &frame, &[]);
            }
            Step::Post { guest, count, ref pieces } => {
                self.guests[guest].post(count, pieces);
            }
            Step::Descriptor { guest, tx, index, gpa, len, flags, offer } => {
                self.wild[guest] = true;
                let guest = &mut self.guests[guest];
                let queue = if tx { &guest.tx } else { &guest.rx };
                let size = queue.config.size;
                let (at, rest) = if PACKED {
                    let (at, offered) = queue.to_offer(index % size);
                    (at, u64::from(index) << 32 | u64::from(flags | if offer { offered } else { 0 }) << 48)
                } else {
                    (queue.config.desc + 16 * u64::from(index % size), u64::from(flags) << 32 | u64::from(index) << 48)
                };
                guest.memory.write_u64(at, gpa).unwrap();
                guest.memory.write_u64(at + 8, u64::from(len) | rest).unwrap();
                if offer && !PACKED {
                    offer_head(guest, tx, index);
                }
            }
            Step::Offer { guest, tx, head } => {
                self.wild[guest] = true;
                offer_head(&self.guests[guest], tx, head);
            }
            Step::Turn => self.turn(),
            Step::Resize { guest, tx, size } => {
                let Self { bench, guests, .. } = self;
                let guest = &mut guests[guest];
                // What was written to the ring behind the driver's back is gone with it.
                if guest.shared.negotiated() & Features::RING_RESET.bits() != 0 {
                    guest.resize(tx, size, || {
                        bench.turn();
                    });
                }
            }
            Step::Restart(guest) => {
                self.guests[guest].shared.request_reset();
                self.bench.turn();
                assert!(self.guests[guest].shared.reset_done());
                self.guests[guest].start();
                self.wild[guest] = false;
                self.bench.turn();
            }
        }
    }

    fn address(&self, to: To) -> [u8; 6] {
        match to {
            To::Guest(guest) => self.guests[guest].mac,
            To::All => BROADCAST,
            To::Nobody => [2, 9, 9, 9, 9, 9],
        }
    }

    fn turn(&mut self) {
        while self.bench.turn() != 0 {}
        for (guest, wild) in self.guests.iter_mut().zip(self.wild) {
            while !wild && guest.receive().is_some() {
                self.arrived += 1;
            }
        }
    }

    /// The drops at a port that were shown: cause and bytes of each, in the order of these. They are as many as the counters
    /// have.
    fn drops(&self, port: usize) -> Vec<(u8, u32)> {
        let watched = self.watched.drops.lock().unwrap();
        let own = watched.iter().filter(|&&(at, ..)| at == port);
        let mut drops: Vec<_> = own.map(|&(_, cause, bytes)| (cause, bytes)).collect();
        drops.sort_unstable();
        for (number, (name, count)) in self.guests[port].counters().drops.iter().enumerate() {
            let shown = drops.iter().filter(|(cause, _)| usize::from(*cause) == number).count();
            assert_eq!(shown as u64, count, "{name} at port {port}");
        }
        drops
    }

    /// The frames at a port that were shown, those that its guest sent and those for it. They are as many as the counters
    /// have.
    fn frames(&self, port: usize) -> [Vec<Shown>; 2] {
        let all = self.watched.frames.lock().unwrap();
        let shown = [Way::In, Way::Out]
            .map(|way| all.iter().filter(|frame| frame.port == port && frame.way == way).cloned().collect::<Vec<_>>());
        let counters = &self.guests[port].counters().frames;
        assert_eq!(shown[0].len() as u64, counters.tx_packets.get(), "frames from port {port}");
        let arrived = shown[1].iter().filter(|frame| frame.dropped.is_none());
        let (count, bytes) = arrived.fold((0, 0), |(count, bytes), frame| (count + 1, bytes + u64::from(frame.len)));
        assert_eq!((count, bytes), (counters.rx_packets.get(), counters.rx_bytes.get()), "frames to port {port}");
        let dropped = shown.iter().flatten().filter(|frame| frame.dropped.is_some()).count();
        assert_eq!(dropped, self.drops(port).len(), "frames dropped at port {port}");
        shown
    }

    /// The steps that frames made at a port, in the order of these. They are as many as the counters have.
    fn steps(&self, port: usize) -> Vec<(Made, u32)> {
        let all = self.watched.steps.lock().unwrap();
        let mut steps: Vec<_> = all.iter().filter(|&&(at, ..)| at == port).map(|&(_, made, len)| (made, len)).collect();
        steps.sort_unstable();
        let count = |wanted: Made| steps.iter().filter(|(made, _)| *made == wanted).count() as u64;
        let counters = &self.guests[port].counters().frames;
        assert_eq!(count(Made::Taken), counters.tx_packets.get(), "frames taken from port {port}");
        assert_eq!(count(Made::Given), counters.rx_packets.get(), "frames given to port {port}");
        steps
    }

    /// All that shows of a guest: counters of its port, its faults, counters of its stages, and its memory.
    fn seen(&self, guest: usize) -> Seen {
        let guest = &self.guests[guest];
        let mut memory = vec![0; MEMORY];
        guest.memory.read(0, &mut memory).unwrap();
        let stages = guest.port.policy.map_or_else(Vec::new, rules::counted);
        (guest.counted(), guest.shared.faults().collect(), stages, memory)
    }
}

type Seen = (Vec<(&'static str, u64)>, Vec<(Fault, u64)>, Vec<[u64; 3]>, Vec<u8>);

/// Offers a head on a queue behind the driver's back; of a packed ring the descriptor so far ahead of the driver.
fn offer_head(guest: &Guest, tx: bool, head: u16) {
    let queue = if tx { &guest.tx } else { &guest.rx };
    if PACKED {
        let (at, offered) = queue.to_offer(head % queue.config.size);
        let flags = guest.memory.read_u16(at + 14).unwrap();
        guest.memory.write_u16(at + 14, flags & 0x7f7f | offered).unwrap();
        return;
    }
    let queue = &queue.config;
    let index = guest.memory.read_u16(queue.avail + 2).unwrap();
    guest.memory.write_u16(queue.avail + 4 + 2 * u64::from(index % queue.size), head).unwrap();
    guest.memory.write_u16(queue.avail + 2, index.wrapping_add(1)).unwrap();
}

/// Has a script go both ways, and compares all that shows.
fn alike(
    script: &[Step],
    features: &[Features],
    rules: &[Option<Rules>],
    size: u16,
) -> Result<(), proptest::test_runner::TestCaseError> {
    let mut fast = World::new(features, rules, size, true);
    let mut general = World::new(features, rules, size, false);
    for (n, step) in script.iter().enumerate() {
        fast.perform(step, n as u8);
        general.perform(step, n as u8);
        prop_assert_eq!(fast.bench.interrupts.take(), general.bench.interrupts.take(), "step {}", n);
    }
    fast.turn();
    general.turn();
    prop_assert_eq!(fast.arrived, general.arrived);
    for guest in 0..GUESTS {
        prop_assert_eq!(fast.drops(guest), general.drops(guest), "drops at port {}", guest);
        prop_assert_eq!(fast.frames(guest), general.frames(guest), "frames at port {}", guest);
        prop_assert_eq!(fast.steps(guest), general.steps(guest), "steps at port {}", guest);
        let (fast, general) = (fast.seen(guest), general.seen(guest));
        prop_assert_eq!(fast.0, general.0, "counters of guest {}", guest);
        prop_assert_eq!(fast.1, general.1, "faults of guest {}", guest);
        prop_assert_eq!(fast.2, general.2, "stages of guest {}", guest);
        if fast.3 != general.3 {
            let differs = fast.3.iter().zip(&general.3).position(|(a, b)| a != b);
            prop_assert_eq!(differs, None, "memory of guest {}", guest);
        }
    }
    Ok(())
}

#[test]
fn what_was_completed_before_a_fault_is_shown_whichever_way_it_went() {
    let send = |count| Step::Send { from: 0, to: To::Guest(1), count, len: 60, what: What::UNKNOWN, cuts: vec![] };
    let post = || Step::Post { guest: 1, count: 8, pieces: vec![2048] };
    let fault = |guest| Step::Offer { guest, tx: true, head: u16::MAX };
    for turns in 0..3 {
        // Whichever of the two is visited first: the receiver fails at what it sends.
        let mut script: Vec<_> = (0..turns).map(|_| Step::Turn).collect();
        script.extend([post(), fault(1), send(1), Step::Turn]);
        alike(&script, &[ALL; GUESTS], &[const { None }; GUESTS], 64).unwrap();
        // The sender fails behind the last frames before its ring begins anew.
        let mut script = vec![post(), send(4), Step::Turn];
        script.extend((0..turns).map(|_| Step::Turn));
        script.extend([post(), send(4), fault(0), Step::Turn]);
        alike(&script, &[ALL; GUESTS], &[const { None }; GUESTS], 8).unwrap();
    }
}

#[test]
fn a_frame_too_long_for_its_receiver_does_not_have_the_receive_queue_looked_at() {
    let send = |len| Step::Send { from: 1, to: To::Guest(0), count: 1, len, what: What::UNKNOWN, cuts: vec![] };
    // The receiver's address is learned. Then its driver offers one buffer more than its ring holds, and one that is not writable:
    // which of the two is found shows when its index was read first.
    let script = [
        Step::Send { from: 0, to: To::Guest(0), count: 1, len: 60, what: What::UNKNOWN, cuts: vec![] },
        send(1519),
        Step::Post { guest: 0, count: 8, pieces: vec![1526] },
        Step::Turn,
        Step::Descriptor { guest: 0, tx: false, index: 0, gpa: BUFFERS, len: 20, flags: 0, offer: true },
        send(60),
    ];
    alike(&script, &[ALL; GUESTS], &[const { None }; GUESTS], 8).unwrap();
}

proptest! {
    #![proptest_config(crate::tests::support::cases(160))]

    #[test]
    fn a_conversation_goes_both_ways_alike(
        script in proptest::collection::vec(steps(), 1..60),
        features in proptest::collection::vec(prop_oneof![
            3 => Just(ALL),
            1 => Just(PLAIN),
            1 => Just(ALL.difference(Features::NET_MRG_RXBUF)),
            1 => Just(ALL.difference(Features::INDIRECT_DESC)),
        ], GUESTS),
        rules in proptest::collection::vec(proptest::option::weighted(0.7, rules::rules()), GUESTS),
        size in prop_oneof![Just(8u16), Just(64), Just(256)],
    ) {
        alike(&script, &features, &rules, size)?;
    }

    /// Many short ones: a queue full of frames, about which there is a rule.
    #[test]
    fn rules_say_of_a_run_what_they_say_of_each_frame(
        sends in proptest::collection::vec((frames::what(), 1usize..40, prop_oneof![36usize..80, 60usize..1514]), 1..5),
        rules in proptest::collection::vec(proptest::option::weighted(0.9, rules::rules()), GUESTS),
    ) {
        let mut worlds = [true, false].map(|by_runs| World::new(&[ALL; GUESTS], &rules, 256, by_runs));
        let mut seen = worlds.iter_mut().map(|world| {
            world.guests[1].post(200, &[1526]);
            for (n, (what, count, len)) in sends.iter().enumerate() {
                let (to, what) = (To::Guest(1), what.clone());
                world.perform(&Step::Send { from: 0, to, count: *count, len: *len, what, cuts: vec![] }, n as u8);
            }
            while world.bench.turn() != 0 {}
            let frames: Vec<_> = core::iter::from_fn(|| world.guests[1].receive()).collect();
            let counted = world.guests.iter().map(|guest| {
                let stages = guest.port.policy.map_or_else(Vec::new, rules::counted);
                (guest.counted(), stages)
            });
            let drops: Vec<_> = (0..GUESTS).map(|port| world.drops(port)).collect();
            (counted.collect::<Vec<_>>(), drops, frames)
        });
        let (fast, general) = (seen.next(), seen.next());
        prop_assert_eq!(fast, general);
    }
}
