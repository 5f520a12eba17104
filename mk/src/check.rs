//! `cargo mk check` and `cargo mk test`.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

use crate::{Outcome, bench, copy_routine, e2e, fetch, paths, tools, ui};

const BARE: &str = "x86_64-unknown-none";
/// What builds only for the bare machine, also with the feature that there is.
const BARE_PACKAGES: [&[&str]; 5] =
    [&["sidecore"], &["sidecore", "--features", "count"], &["bare"], &["isolation"], &["probe"]];

/// What is built only on request, and has to be right too: the server of the device model.
const SERVER: &str = "x520-model/server";

/// Formatting, lints and documentation; all of them are tried before it says no.
pub fn check() -> Result<Outcome> {
    fetch::ensure_rust_target()?;
    let mut good = tools::cargo(&["fmt", "--all", "--check"], &[])?;
    good &= tools::cargo(&["clippy", "--quiet", "--all-targets", "--features", SERVER, "--", "-D", "warnings"], &[])?;
    for package in BARE_PACKAGES {
        let what = [&["clippy", "--quiet", "--release", "--target", BARE, "--package"], package];
        good &= tools::cargo(&[&what.concat()[..], &["--", "-D", "warnings"]].concat(), &[])?;
    }
    good &= tools::cargo(&["doc", "--quiet", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])?;
    ui::step("check", if good { "all is well" } else { "something above is not as it should be" });
    Ok(if good { Outcome::Good } else { Outcome::Failed })
}

/// Unit tests, then scenarios, then what failed by name and one line that counts both.
pub fn test(full: bool) -> Result<Outcome> {
    let mut tally = e2e::Tally::default();
    unit_tests(&mut tally)?;
    for (what, result) in
        [("image", copy_routine::verify()), ("nic gate", bench::nic_gate()), ("switch gate", bench::switch_gate())]
    {
        tally.count(what.to_owned(), result.is_ok());
        match result {
            Ok(said) => ui::step(what, &said),
            Err(error) => ui::error(&format!("{error:#}")),
        }
    }
    tally.add(e2e::run_all(full)?);
    tally.show();
    Ok(if tally.failed == 0 { Outcome::Good } else { Outcome::Failed })
}

fn unit_tests(tally: &mut e2e::Tally) -> Result<()> {
    ui::step("cargo", "test --no-fail-fast");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["test", "--quiet", "--no-fail-fast", "--color", "never", "--features", SERVER])
        .env_remove("CARGO_MANIFEST_DIR")
        .current_dir(paths::root())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    let (passed, failed, ignored) = count(&text);
    tally.passed += passed;
    tally.skipped += ignored;
    // A crate that does not build has no result lines but must not go unnoticed.
    tally.failed += if output.status.success() { failed } else { failed.max(1) };
    tally.failures.extend(named(&text));
    if !output.status.success() && failed == 0 {
        tally.failures.push("cargo test: a crate did not build, or a test program did not end".to_owned());
    }
    Ok(())
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

/// The tests that `cargo test` says have failed: their names stand indented below the last `failures:` of a program.
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
