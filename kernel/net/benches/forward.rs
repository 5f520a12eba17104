//! The load that `cargo mk bench switch` counts in a process: see `testing/forward.rs`. Usage:
//! `forward BYTES [rules] [packed] [idle] [lone] [traced]`.

use net::testing::forward::{FRAMES, Load, run};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let bytes: usize = arguments
        .next()
        .and_then(|b| b.parse().ok())
        .expect("usage: forward BYTES [rules] [packed] [idle] [lone] [traced]");
    let words: Vec<_> = arguments.collect();
    let said = |word| words.iter().any(|said| said == word);
    let (rules, packed, idle) = (said("rules"), said("packed"), said("idle"));
    let load = Load { bytes, rules, packed, idle, lone: said("lone"), traced: said("traced") };
    run(load, || 0);
    println!("{FRAMES} frames");
}
