//! `cargo mk test`: unit tests, gates, the everyday scenarios and the rotation. It prints the time of each.

use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Args;

use crate::check::SERVER;
use crate::outcome::{Outcome, Tally};
use crate::{bench, copy_routine, e2e, tools, ui};

/// How long it may take.
#[derive(Args)]
pub struct Options {
    /// Ends after about so many minutes at most if that can be: the rotation gets what is left of them
    /// [default: 12 minutes for the rotation, however long the rest took].
    #[arg(long, value_name = "MINUTES")]
    within: Option<f64>,
}

/// Budget of the everyday part in minutes, on two cores: unit tests, gates and everyday scenarios.
const EVERYDAY: f64 = 40.0;

/// The time of each part, in seconds.
#[derive(Default)]
struct Parts(Vec<(&'static str, f64)>);

impl Parts {
    /// Runs `act` and records its time.
    fn take<T>(&mut self, name: &'static str, act: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let result = act();
        self.0.push((name, begin.elapsed().as_secs_f64()));
        result
    }

    /// The time of each part, their sum, and each budget that was passed.
    fn shown(&self) -> String {
        let mut text = String::new();
        for (name, seconds) in &self.0 {
            text += &format!("{name:<22}{}\n", ui::minutes(*seconds));
        }
        let (rotation, everyday): (Vec<_>, Vec<_>) = self.0.iter().partition(|(name, _)| *name == "rotation");
        for (name, parts, budget) in [("everyday", everyday, EVERYDAY), ("rotation", rotation, e2e::MINUTES)] {
            let seconds: f64 = parts.iter().map(|(_, seconds)| seconds).sum();
            if seconds > budget * 60.0 {
                text += &format!("OVER BUDGET: {name} took {} of {budget} minutes\n", ui::minutes(seconds));
            }
        }
        let sum: f64 = self.0.iter().map(|(_, seconds)| seconds).sum();
        text + &format!("{:<22}{}\n", "sum", ui::minutes(sum))
    }
}

/// Runs unit tests, gates and scenarios. Then prints the time of each part, the names of failed tests, and one line
/// with counts.
pub fn test(options: &Options) -> Result<Outcome> {
    let begin = Instant::now();
    let within = options.within.map(|minutes| {
        ensure!((0.0..=10_000.0).contains(&minutes), "--within takes minutes, 0 to 10000, not {minutes}");
        Ok(begin + Duration::from_secs_f64(minutes * 60.0))
    });
    let within = within.transpose()?;
    let (mut tally, mut parts) = (Tally::default(), Parts::default());
    tally.add(parts.take("unit tests, gates", unit_tests_and_gates)?);
    tally.add(parts.take("everyday scenarios", e2e::everyday)?);
    let limit = within.map(|end| e2e::Limit { end, slow: slowness(begin.elapsed()) });
    tally.add(parts.take("rotation", || e2e::rotate(limit))?);
    println!();
    print!("{}", parts.shown());
    tally.show();
    Ok(Outcome::of(tally.failed == 0))
}

/// How many times slower than usual the machine is, if the everyday part took so long. 1 within its budget.
fn slowness(everyday: Duration) -> f64 {
    (everyday.as_secs_f64() / (EVERYDAY * 60.0)).max(1.0)
}

/// Runs unit tests and gates side by side. The counts of gates do not depend on how busy the machine is, and a gate has
/// one thread.
fn unit_tests_and_gates() -> Result<Tally> {
    thread::scope(|scope| {
        let gates = scope.spawn(gates);
        let mut tally = unit_tests()?;
        tally.add(gates.join().map_err(|_| anyhow!("a gate panicked"))?);
        Ok(tally)
    })
}

fn gates() -> Tally {
    let mut tally = Tally::default();
    for (what, gate) in [
        ("image", copy_routine::verify as fn() -> Result<String>),
        ("nic gate", bench::nic_gate),
        ("switch gate", bench::switch_gate),
        ("block gate", bench::block_gate),
        ("exit gate", bench::exit_gate),
    ] {
        let begin = Instant::now();
        let result = gate();
        tally.count_result(what, &result);
        match result {
            Ok(said) => ui::step(what, &format!("{said} ({:.1} s)", begin.elapsed().as_secs_f64())),
            Err(error) => ui::error(&format!("{error:#}")),
        }
    }
    tally
}

fn unit_tests() -> Result<Tally> {
    let (mut tally, begin) = (Tally::default(), Instant::now());
    ui::step("cargo", "test --no-fail-fast");
    let output = tools::plain_cargo()
        .args(["test", "--quiet", "--no-fail-fast", "--color", "never", "--features", SERVER])
        .env_remove("CARGO_MANIFEST_DIR")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    let (passed, failed, ignored) = count(&text);
    tally.passed += passed;
    tally.skipped += ignored;
    // A crate that does not build prints no result lines, but counts as a failure.
    tally.failed += if output.status.success() { failed } else { failed.max(1) };
    tally.failures.extend(named(&text));
    if !output.status.success() && failed == 0 {
        tally.failures.push("cargo test: a crate did not build, or a test program did not end".to_owned());
    }
    ui::step("cargo", &format!("test took {}", ui::minutes(begin.elapsed().as_secs_f64())));
    Ok(tally)
}

/// Sums `test result: ok. 3 passed; 0 failed; 1 ignored; ...` over all test programs.
fn count(text: &str) -> (usize, usize, usize) {
    let mut sums = (0, 0, 0);
    for line in text.lines().filter(|line| line.starts_with("test result:")) {
        let number = |word: &str| {
            let part = line.split([';', '.']).find_map(|part| part.trim().strip_suffix(word))?;
            part.trim().parse::<usize>().ok()
        };
        sums.0 += number("passed").unwrap_or(0);
        sums.1 += number("failed").unwrap_or(0);
        sums.2 += number("ignored").unwrap_or(0);
    }
    sums
}

/// The names of failed tests in the output of `cargo test`. They stand indented below the last `failures:` of a
/// program.
fn named(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut listed = false;
    for line in text.lines() {
        match line.strip_prefix("    ") {
            Some(name) if listed && !name.is_empty() && !name.contains(' ') => names.push(name.to_owned()),
            _ => listed = line == "failures:" || (listed && line.is_empty()),
        }
    }
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_that_is_passed_is_named() {
        let parts = |everyday, rotation| Parts(vec![("everyday scenarios", everyday), ("rotation", rotation)]).shown();
        let (everyday, rotation) = (EVERYDAY * 60.0, e2e::MINUTES * 60.0);
        assert!(!parts(everyday, rotation).contains("OVER BUDGET"));
        let over = format!("OVER BUDGET: everyday took {EVERYDAY}:01 of {EVERYDAY} minutes");
        assert!(parts(everyday + 1.0, rotation).contains(&over));
        assert!(parts(10.0, rotation + 1.0).contains("OVER BUDGET: rotation"));
    }

    #[test]
    fn a_machine_is_slow_by_as_much_as_the_everyday_part_is_over_its_budget() {
        assert_eq!(
            [10.0, EVERYDAY, 2.0 * EVERYDAY].map(|m| slowness(Duration::from_secs_f64(m * 60.0))),
            [1.0, 1.0, 2.0]
        );
    }

    #[test]
    fn failed_tests_are_named() {
        let text = "failures:\n\n---- a::b stdout ----\n\nthread 'a::b' panicked at x.rs:1:1:\n    a note\n\n\nfailures:\n    \
                    a::b\n    a::c\n\ntest result: FAILED. 4 passed; 2 failed; 0 ignored\n\nfailures:\n    d\n\ntest \
                    result: FAILED.\n";
        assert_eq!(named(text), ["a::b", "a::c", "d"]);
        assert!(named("test result: ok. 3 passed; 0 failed\n").is_empty());
    }

    #[test]
    fn the_results_of_all_test_programs_are_added() {
        let text = "running 3 tests\n...\ntest result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n\
                    test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n";
        assert_eq!(count(text), (7, 2, 1));
    }
}
