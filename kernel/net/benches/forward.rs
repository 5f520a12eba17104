//! The load that `cargo mk bench switch` counts in a process: see `testing/forward.rs`. Usage:
//! `forward BYTES [rules] [packed] [idle] [lone]`.

use net::testing::forward::{FRAMES, Load, run};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let bytes: usize =
        arguments.next().and_then(|b| b.parse().ok()).expect("usage: forward BYTES [rules] [packed] [idle] [lone]");
    let words: Vec<_> = arguments.collect();
    let said = |word| words.iter().any(|said| said == word);
    let load = Load { bytes, rules: said("rules"), packed: said("packed"), idle: said("idle"), lone: said("lone") };
    run(load, || 0);
    println!("{FRAMES} frames");
}
