//! The load that `cargo mk bench block --instructions` counts: see `testing.rs`. Usage: `read BATCH [packed]
//! [write] [linked]`.

use block::testing::{Load, REQUESTS, run};

fn main() {
    run(Load::named(std::env::args().skip(1)));
    println!("{REQUESTS} requests");
}
