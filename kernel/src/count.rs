//! Counts the engine's instructions inside the image. It needs the feature `count`, the word `count` on the command
//! line, and an emulator whose TSC ticks once per instruction. It runs after the report, instead of the guests.
//!
//! `net/benches/forward.rs` runs the same load as a process. `cargo mk bench switch --instructions` compares the two.

#![allow(unsafe_code, reason = "a loop of known length is assembly")]

use core::arch::asm;

use net::testing::forward::{FRAMES, Load, run};

use crate::arch::time::tsc;

/// Runs every load. Each writes a line to the log that a program can read. A first line says how many ticks a million
/// instructions take.
pub fn run_all() {
    log::info!("counted {{\"instructions\":1000000,\"ticks\":{}}}", ticks_of_a_million());
    for (rules, packed) in [(false, false), (true, false), (false, true)] {
        for bytes in [60, 1500] {
            let ticks = run(Load { bytes, rules, packed, idle: false, lone: false, traced: false }, tsc);
            log::info!(
                "counted {{\"bytes\":{bytes},\"rules\":{rules},\"packed\":{packed},\"frames\":{FRAMES},\"ticks\":{ticks}}}"
            );
        }
    }
}

/// Measures the ticks of a million instructions.
fn ticks_of_a_million() -> u64 {
    let begin = tsc();
    // SAFETY: the loop has two instructions. They change one register, which is declared as changed.
    unsafe { asm!("2:", "sub {n:e}, 1", "jnz 2b", n = inout(reg) 500_000 => _, options(nomem, nostack)) };
    tsc().saturating_sub(begin)
}
