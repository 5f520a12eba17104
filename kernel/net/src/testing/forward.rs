//! The load whose instructions are counted: frames from one guest to another, in batches. The engine's part is one
//! function, so that a tool can count the instructions of that function only. `benches/forward.rs` runs the load as a
//! process, and a kernel image with the feature `count` runs it in the kernel.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::convert::Infallible;

use engine::control::{Attachment, Command, Control, Reply};
use engine::engine::Engine;
use engine::follow::FOLLOWED;
use engine::observe::{Completion, Measured, Observer, QueueValue, Turn, Visit};
use engine::pair::{Half, Pair};
use engine::schedule::{Chosen, Fine, Limits};
use engine::testing::Absent;
use engine::testing::Recorder;
use trace::Classes;
use trace::frames::{Destination, Fate, write_batch};
use trace::histogram::{Histogram, Totals};
use trace::queues::{QueueHistograms, What};
use trace::ring::{Ring, Slot};
use virtio::config::MAX_QUEUES;

use super::guest::{Guest, SPLIT};
use super::idle::Idle;
use crate::backend::Net;
use crate::features::Features;
use crate::mac::Mac;
use crate::policy::Policy;
use crate::policy::guard::Guard;
use crate::policy::headers::UDP;
use crate::policy::stage::{Action, Rule, Stage};
use crate::policy::vlan::Membership;
use crate::port::Port;
use crate::ports::MAX_PORTS;
use crate::watch::{Batch, FrameWatcher, Seen, Step, UplinkStep, Watch};

/// The engine that is measured. As in the product, each call to a back-end goes through the multiplexer.
type Switch = Engine<Pair<Net, Absent>, Chosen, &'static Recorder>;
type Config = Half<Port, Infallible>;

/// Frames in a batch: as many as a busy queue holds when it is visited.
const BATCH: usize = 64;
/// Frames in a whole measurement.
pub const FRAMES: usize = 64 * BATCH;

/// Which frames are sent, and how.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Bytes of a frame, 38 or more.
    pub bytes: usize,
    /// Both ports are in one VLAN, and may send from their own MAC and IP addresses only. A stage allows and counts the
    /// sender's frames to some UDP ports.
    pub rules: bool,
    /// All rings are packed.
    pub packed: bool,
    /// The engine has 1,000 more queues. All are in use and armed, and nothing is sent on them. They take 180 MiB.
    pub idle: bool,
    /// Each frame is a batch by itself, and ends its turn.
    pub lone: bool,
    /// The class `frames` is on: each frame leaves three records.
    pub traced: bool,
}

/// Which turns are run.
trait Turns {
    /// Runs a turn. Returns how many requests it moved.
    fn turn(&self, engine: &mut Switch) -> u32;
}

/// Turns that nobody counts or times.
struct Plain;

impl Turns for Plain {
    fn turn(&self, engine: &mut Switch) -> u32 {
        engine.turn(1)
    }
}

/// Records in histograms, as the product does.
#[derive(Default)]
struct Recorded {
    turns: [Histogram; 2],
    visits: Histogram,
    queues: [QueueHistograms; FOLLOWED],
}

impl Observer for Recorded {
    fn turn(&self, turn: &Turn) {
        let [idle, busy] = &self.turns;
        let histogram = if turn.requests == 0 { idle } else { busy };
        histogram.record(1, turn.end.wrapping_sub(turn.begin));
    }

    fn visit(&self, visit: &Visit) {
        self.visits.record(1, visit.end.wrapping_sub(visit.begin));
    }

    fn completion(&self, _: &Completion) {}

    fn period(&self) -> u64 {
        1
    }

    #[inline(always)]
    fn queue(&self, value: &QueueValue) {
        let what = match value.what {
            Measured::Arrival => What::Arrival,
            Measured::Taken => What::Taken,
            Measured::Occupancy => What::Occupancy,
        };
        let queue = (value.queue.slot() as u16, value.queue.queue());
        self.queues[value.place].record(1, queue, what, value.value, value.count);
    }
}

/// Writes the records of frames, as the product does.
struct Tracer {
    ring: Ring<Vec<Slot>>,
}

impl FrameWatcher for Tracer {
    fn dropped(&self, _: usize, _: u8, _: u32) {}

    fn seen(&self, _: &Seen<'_>) {}

    fn step(&self, _: Step, _: usize, _: u32) {
        panic!("all of these frames are on the fast path");
    }

    fn batch(&self, batch: &Batch<'_>) {
        let port = |slot| trace::frames::Port { slot, guest: slot as u8 };
        let Some(Destination::Port(to)) = batch.to else { panic!("all of these frames arrive") };
        write_batch(&self.ring, port(batch.from as u16), Fate::Given(port(to)), (batch.at, batch.at), batch.lengths);
    }

    fn at_uplink(&self, _: usize, _: UplinkStep, _: &[u32]) {
        panic!("there is no uplink");
    }
}

impl Turns for Recorded {
    fn turn(&self, engine: &mut Switch) -> u32 {
        let requests = &engine.control().counters.requests;
        let before = requests.get();
        engine.counted_turn(1, &|| 1, self);
        requests.get().wrapping_sub(before) as u32
    }
}

/// The engine's work for one batch.
#[inline(never)]
fn measured(engine: &mut Switch, frames: u32, turns: &impl Turns) {
    let mut moved = 0;
    while moved < frames {
        moved += turns.turn(engine);
    }
}

fn attach(engine: &mut Switch, attachment: Attachment<Port>) {
    let Attachment { slot, number, shared, memory, requests, share, config, state } = attachment;
    let attachment = Attachment { slot, number, shared, memory, requests, share, config: Half::First(config), state };
    engine.control().submit(Command::Attach(attachment)).expect("the slot is free");
    engine.turn(0);
    assert_eq!(engine.control().reply(), Some(Reply::Attached));
}

/// The rules of guest `number`.
fn rules(number: u8) -> &'static Policy {
    let mac = Mac::new([2, 0, 0, 0, 0, number]);
    let guard = Guard::new(&[mac], &[[10, 0, 0, number].into()]).expect("there is room");
    let mut policy = Policy { guard, vlan: Membership::Access(7), ..Policy::default() };
    let rule = Rule { protocol: Some(UDP), destination_port: Some(9..=99), ..Rule::default() };
    policy.enter.push(Stage::new(rule, Action::Allow)).expect("there is room");
    Box::leak(Box::new(policy))
}

/// Makes frame `n` from guest 1 to guest 2 a UDP packet.
fn make_udp(frame: &mut [u8], n: u16) {
    let total = frame.len() as u16 - 14;
    frame[12..38].copy_from_slice(
        &[
            &[8, 0, 0x45, 0][..],
            &total.to_be_bytes(),
            &n.to_be_bytes(),
            &[0x40, 0, 64, UDP, n as u8, 1, 10, 0, 0, 1, 10, 0, 0, 2, 3, 0, 0, 9],
        ]
        .concat(),
    );
}

/// Sends [`FRAMES`] frames, and checks each one that arrives. The memory of both guests is leaked.
/// Returns what `clock` counted during the engine's work, from a call before each batch to a call after it.
pub fn run(load: Load, clock: impl Fn() -> u64) -> u64 {
    run_with(load, false, &Plain, clock)
}

/// Sends the same frames in turns that are counted, as those of the product. `on`: they are also recorded in histograms, with
/// visits and the queues, as while the class `histograms` is on.
pub fn run_counted(load: Load, on: bool) {
    let recorded: Box<Recorded> = Box::default();
    run_with(load, on, &*recorded, || 0);
    let mut arrived = Totals::default();
    recorded.queues.iter().for_each(|queue| arrived.add(&queue.arrival, 1));
    assert_eq!(arrived.count(), if on { FRAMES as u64 } else { 0 }, "each frame's arrival is measured");
}

fn run_with(load: Load, observed: bool, turns: &impl Turns, clock: impl Fn() -> u64) -> u64 {
    let features = if load.packed { Features::all() } else { SPLIT };
    let idle = if load.idle { 1000_usize.div_ceil(MAX_QUEUES) as u8 } else { 0 };
    let idle: Vec<_> = (0..idle).map(Idle::new).collect();
    let policy = |number| load.rules.then(|| rules(number));
    let control: &Control<Config> = Box::leak(Box::default());
    let interrupts: &Recorder = Box::leak(Box::default());
    let limits = Limits { requests: 256, bytes: 256 << 10, quantum: 1 << 40, least: 16, stall: 1 << 40 };
    let mut net = Net::new(1, 1 << 40);
    let ring = Ring::new((0..4096).map(|_| Slot::new()).collect()).expect("it is a power of two");
    let tracer: &Tracer = Box::leak(Box::new(Tracer { ring }));
    if load.traced {
        let on: &trace::Switch = Box::leak(Box::default());
        on.set(Classes::FRAMES);
        net.watch(Watch { watcher: tracer, on });
    }
    let mut engine =
        Box::new(Engine::new(control, Pair::new(net, Absent), Chosen::Fine(Fine::new(limits)), interrupts));
    let guest = |number| Guest::with_rules(number, features, 256, 1500, policy(number));
    let (mut a, mut b) = (guest(1), guest(2));
    attach(&mut engine, a.attachment(0));
    attach(&mut engine, b.attachment(MAX_PORTS - 1));
    for (slot, guest) in (1..).zip(&idle) {
        attach(&mut engine, guest.attachment(slot));
    }
    // Runs turns until every queue that waits for a notification is armed.
    while engine.visited_queues() != 2 {
        engine.turn(1);
    }
    control.observe(observed);
    b.post(2 * BATCH, &[2048]);
    let batch = if load.lone { 1 } else { BATCH };
    let frames: Vec<_> = (0..batch as u16)
        .map(|n| {
            let mut frame = a.frame(b.mac, load.bytes, 7);
            make_udp(&mut frame, n);
            frame
        })
        .collect();
    let mut counted = 0;
    for _ in 0..FRAMES / batch {
        for frame in &frames {
            assert!(a.send(frame, &[]), "the queue has room");
        }
        let begin = clock();
        measured(&mut engine, batch as u32, turns);
        counted += clock() - begin;
        for frame in &frames {
            assert_eq!(b.receive().as_ref(), Some(frame));
            b.post(1, &[2048]);
        }
    }
    let records = if load.traced { 3 * FRAMES as u64 } else { 0 };
    assert_eq!(tracer.ring.written(), records, "each frame has its records");
    let policy = a.port.policy;
    let seen = policy.map_or(0, |policy| policy.enter.stages().iter().map(|stage| stage.frames.get()).sum());
    assert_eq!(seen, if load.rules { FRAMES as u64 } else { 0 }, "the stage has seen every frame");
    counted
}
