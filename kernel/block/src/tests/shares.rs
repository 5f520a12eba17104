//! Two guests that both load one engine, one by its network device and one by its disk: each gets its share by weight.
//!
//! Time is virtual. A frame and a read take as many ticks as they were counted to take instructions, and their bytes
//! some more. So the outcome is the same on every machine.

use engine::control::{Attachment, Command, Control, Reply};
use engine::engine::Engine;
use engine::observe::Unobserved;
use engine::pair::{Half, Pair};
use engine::requests::Requests;
use engine::schedule::{Fine, GuestWeight, Limits};
use engine::testing::Recorder;
use net::backend::Net;
use net::port::Port;
use net::testing::{Guest as NetGuest, SPLIT as NET_SPLIT};
use virtio::counters::DeviceCounters;

use super::support::{Guest, IN, SPLIT, memory_disk};
use crate::backend::{Block, Disk};
use crate::ram::{Ram, RamDisk};

type Config = Half<Port, Disk<&'static RamDisk>>;

/// Ticks of a frame of 1,500 bytes and of a read of 4 KiB, without their bytes, and bytes of a tick.
const FRAME: u64 = 145;
const READ: u64 = 1_230;
const BYTES_OF_TICK: u64 = 16;
/// Frames and reads that the drivers keep waiting.
const FRAMES: usize = 128;
const READS: usize = 32;
/// The quantum of the heavier guest: shorter than what waits takes, so that no queue runs empty.
const QUANTUM: u64 = 20_000;
const TURNS: usize = 2_000;

/// What a run has shown.
struct Outcome {
    /// The network guest's part of both guests' engine time, from 0 to 1.
    share: f64,
    /// Turns from a visit of the lighter guest to its next, in order of size.
    gaps: Vec<usize>,
}

impl Outcome {
    fn percentile(&self, percent: usize) -> usize {
        self.gaps[(self.gaps.len() - 1) * percent / 100]
    }
}

/// Loads an engine by a network guest and a disk guest of these weights.
fn run(of_net: u16, of_disk: u16) -> Outcome {
    let control: &Control<Config> = Box::leak(Box::default());
    let interrupts: &Recorder = Box::leak(Box::default());
    let limits = Limits { requests: 256, bytes: 256 << 10, quantum: QUANTUM, least: 16, stall: 1 << 40 };
    let backends = Pair::new(<Net>::new(1, 1 << 40), Block::new(Ram::new()));
    let mut engine = Box::new(Engine::new(control, backends, Fine::<64>::new(limits), interrupts));

    let (mut sender, mut receiver) = (NetGuest::new(1, NET_SPLIT, 256, 1500), NetGuest::new(2, NET_SPLIT, 256, 1500));
    let disk = memory_disk(1 << 20);
    let mut reader = Guest::new(2, &disk.geometry(), 1, SPLIT);
    let mut attach = |attachment: Attachment<Config>| {
        control.submit(Command::Attach(attachment)).expect("the slot is free");
        engine.turn(0);
        assert_eq!(control.reply(), Some(Reply::Attached));
        engine.turn(0);
    };
    for (slot, guest, weight) in [(0, &sender, of_net), (1, &receiver, 1)] {
        let Attachment { number, shared, memory, requests, config, state, .. } = guest.attachment(slot);
        let (share, config) = (GuestWeight { guest: slot, weight }, Half::First(config));
        attach(Attachment { slot, number, shared, memory, requests, share, config, state });
    }
    attach(Attachment {
        slot: 2,
        number: 2,
        shared: reader.shared,
        memory: reader.memory.clone(),
        requests: Requests::Poll,
        share: GuestWeight { guest: 2, weight: of_disk },
        config: Half::Second(Disk { volume: disk, serial: [0; 20], counters: reader.counters, record: None }),
        state: None,
    });

    receiver.post(FRAMES * 2, &[2048]);
    let frame = sender.frame(receiver.mac, 1500, 7);
    let (frames, reads) = (sender.counters(), reader.counters);
    let clock = || {
        let bytes = frames.frames.tx_bytes.get() + reads.read_bytes.get();
        frames.frames.tx_packets.get() * FRAME + reads.reads.get() * READ + bytes / BYTES_OF_TICK
    };
    let moved = || [frames.frames.tx_packets.get(), reads.reads.get()];
    let lighter = usize::from(of_disk < of_net);
    let (mut time, mut sent, mut waiting) = (clock(), 0, 0);
    let (mut gaps, mut gap) = (Vec::new(), 0);
    for _ in 0..TURNS {
        while sent - moved()[0] < FRAMES as u64 {
            assert!(sender.send(&frame, &[]), "the queue has room");
            sent += 1;
        }
        while waiting < READS {
            reader.send(IN, waiting as u64 * 8, Some(Err(4096)));
            waiting += 1;
        }
        let before = moved();
        time = engine.counted_turn(time, &clock, &Unobserved);
        gap += 1;
        if moved()[lighter] != before[lighter] {
            gaps.push(core::mem::take(&mut gap));
        }
        while receiver.receive().is_some() {
            receiver.post(1, &[2048]);
        }
        while reader.used().is_some() {
            waiting -= 1;
        }
    }
    gaps.sort_unstable();
    let cycles = |counters: &DeviceCounters| counters.engine_cycles.get() as f64;
    let (net, block) = (cycles(sender.shared.counters()), cycles(reader.shared.counters()));
    Outcome { share: net / (net + block), gaps }
}

#[test]
fn a_network_guest_and_a_disk_guest_share_an_engine_by_weight() {
    for (of_net, of_disk) in [(1, 1), (2, 1), (1, 2), (4, 1), (1, 4), (8, 1), (1, 8)] {
        let outcome = run(of_net, of_disk);
        let expected = f64::from(of_net) / f64::from(of_net + of_disk);
        let off = [outcome.share / expected, (1.0 - outcome.share) / (1.0 - expected)].map(|part| (part - 1.0).abs());
        println!(
            "weights {of_net}:{of_disk}: the network guest has {:.4} of {expected:.4}; turns between visits of the lighter: \
             median {}, p99 {}, most {}",
            outcome.share,
            outcome.percentile(50),
            outcome.percentile(99),
            outcome.percentile(100)
        );
        assert!(outcome.percentile(99) <= 12, "weights {of_net}:{of_disk}: {} turns", outcome.percentile(99));
        assert!(off.iter().all(|off| *off <= 0.05), "weights {of_net}:{of_disk}: {:.4}", outcome.share);
    }
}
