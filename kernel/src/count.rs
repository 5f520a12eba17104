//! Counts the engine's instructions inside the image, under an emulator whose TSC has a tick for each: with the feature `count`
//! and the word `count` on the command line, after the report, instead of starting guests. The load is the one that
//! `net/benches/forward.rs` runs as a process; `cargo mk bench switch --instructions` compares the two.

#![allow(unsafe_code, reason = "a loop of known length is assembly")]

use core::arch::asm;

use net::testing::forward::{FRAMES, Load, run};

use crate::arch::time::tsc;

/// Runs every load. Each leaves a line in the log that a program can read; the first says what a tick is.
pub fn run_all() {
    log::info!("counted {{\"instructions\":1000000,\"ticks\":{}}}", ticks_of_a_million());
    for (rules, packed) in [(false, false), (true, false), (false, true)] {
        for bytes in [60, 1500] {
            let ticks = run(Load { bytes, rules, packed, idle: false, lone: false }, tsc);
            log::info!(
                "counted {{\"bytes\":{bytes},\"rules\":{rules},\"packed\":{packed},\"frames\":{FRAMES},\"ticks\":{ticks}}}"
            );
        }
    }
}

/// Ticks that a million instructions take.
fn ticks_of_a_million() -> u64 {
    let begin = tsc();
    // SAFETY: two instructions in a loop, on a register that is said to change.
    unsafe { asm!("2:", "sub {n:e}, 1", "jnz 2b", n = inout(reg) 500_000 => _, options(nomem, nostack)) };
    tsc() - begin
}
