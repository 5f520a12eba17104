//! What `cargo mk bench switch` counts: frames from one guest to another, all in one function that the counter can be
//! told to count in. Usage: `forward BYTES`.

use engine::control::{Attachment, Command, Control, Reply};
use engine::engine::Engine;
use engine::net::Net;
use engine::requests::Requests;
use engine::schedule::{Chosen, Fine, Limits, Share};
use engine::shared::{Features, Shared};
use engine::testing::{Guest, Recorder};

type Switch = Engine<Net, Chosen, &'static Recorder>;

/// Frames in a batch: what a busy queue holds when its visit comes.
const BATCH: usize = 64;
/// Batches; what counts them divides by this number too.
const BATCHES: usize = 64;

/// The engine's work for one batch.
#[inline(never)]
fn measured(engine: &mut Switch, frames: u32) {
    let mut moved = 0;
    while moved < frames {
        moved += engine.turn(1);
    }
}

fn attach(engine: &mut Switch, port: usize, guest: &Guest) {
    let (shared, memory): (&'static Shared, _) = (guest.shared, guest.memory.clone());
    let (requests, share) = (Requests::Poll, Share::of_guest(port));
    let attachment = Attachment { port, number: port, shared, memory, requests, share, state: None };
    engine.control().submit(Command::Attach(attachment)).expect("the slot is free");
    engine.turn(0);
    assert_eq!(engine.control().reply(), Some(Reply::Attached));
}

fn main() {
    let bytes: usize = std::env::args().nth(1).and_then(|b| b.parse().ok()).expect("usage: forward BYTES");
    let control: &Control = Box::leak(Box::default());
    let interrupts: &Recorder = Box::leak(Box::default());
    let limits = Limits { requests: 256, bytes: 256 << 10, quantum: 1 << 40, least: 16, stuck: 1 << 40 };
    let net = Net::new(1, 1 << 40);
    let mut engine = Box::new(Engine::new(control, net, Chosen::Fine(Fine::new(limits)), interrupts));
    let (mut a, mut b) = (Guest::new(1, Features::all(), 256, 1500), Guest::new(2, Features::all(), 256, 1500));
    attach(&mut engine, 0, &a);
    attach(&mut engine, 1, &b);
    b.post(2 * BATCH, &[2048]);
    let frame = a.frame(b.mac, bytes, 7);
    for _ in 0..BATCHES {
        for _ in 0..BATCH {
            assert!(a.send(&frame, &[]), "the queue has room");
        }
        measured(&mut engine, BATCH as u32);
        for _ in 0..BATCH {
            assert_eq!(b.receive().as_ref(), Some(&frame));
            b.post(1, &[2048]);
        }
    }
    println!("{} frames", BATCH * BATCHES);
}
