//! Runs the driver's data path. `cargo mk bench nic` counts its instructions.
//!
//! `instructions CASE BATCH ROUNDS`. Started by hand, it only shows that the case works.

#![allow(unsafe_code, reason = "memory is given to a device")]

#[path = "../../tests/on_model/bench.rs"]
#[allow(dead_code, reason = "what the driver's tests need")]
mod bench;
mod cases;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let number = |at: usize, default| args.get(at).and_then(|a| a.parse().ok()).unwrap_or(default);
    let wanted = args.first().map_or("receive", String::as_str);
    let Some((_, run)) = cases::CASES.iter().find(|(name, _)| *name == wanted) else {
        eprintln!("{wanted}: {}", cases::CASES.map(|(name, _)| name).join(", "));
        return ExitCode::FAILURE;
    };
    run(number(1, 32), number(2, 64));
    ExitCode::SUCCESS
}
