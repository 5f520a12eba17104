//! What one frame of an attacker costs, which `cargo mk bench switch` counts in a process: see `testing/attackers.rs`.
//! Usage: `attackers NAME`. Prints the frames, the work that the back-end says for all of them, and the instructions of one
//! frame as they were counted before.

use net::testing::attackers::{Attacker, run};

/// Frames that are sent.
const FRAMES: u64 = 512;

fn main() {
    let name = std::env::args().nth(1).unwrap_or_default();
    let attacker = Attacker::ALL.into_iter().find(|attacker| attacker.name() == name).expect("usage: attackers NAME");
    let (frames, work) = run(attacker, FRAMES);
    println!("{frames} {work} {}", attacker.instructions());
}
