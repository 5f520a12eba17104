//! The load of `forward.rs` in turns that are counted and timed as in the kernel: see `testing/forward.rs`. It is a program of its
//! own, so that the compiler makes the same of `forward.rs` as without it. Usage: `counted BYTES [packed] [lone] [histograms]`.

use net::testing::forward::{FRAMES, Load, run_counted};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let bytes: usize =
        arguments.next().and_then(|b| b.parse().ok()).expect("usage: counted BYTES [packed] [lone] [histograms]");
    let words: Vec<_> = arguments.collect();
    let said = |word| words.iter().any(|said| said == word);
    let (packed, lone) = (said("packed"), said("lone"));
    run_counted(Load { bytes, rules: false, packed, idle: false, lone, traced: false }, said("histograms"));
    println!("{FRAMES} frames");
}
