//! The load that `cargo mk bench block --instructions` counts: see `testing.rs`. Usage: `read BATCH [packed]
//! [write]`.

use block::testing::{Load, REQUESTS, run};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let batch = arguments.next().and_then(|n| n.parse().ok()).filter(|n| [1, 2, 4, 8, 16, 32, 64].contains(n));
    let batch = batch.expect("usage: read BATCH [packed] [write], with a power of two up to 64");
    let words: Vec<_> = arguments.collect();
    let said = |word| words.iter().any(|said| said == word);
    run(Load { batch, packed: said("packed"), write: said("write") });
    println!("{REQUESTS} requests");
}
