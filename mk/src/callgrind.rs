//! Counts instructions by callgrind. The counts are exact, and the same in every run, on any x86_64 machine, as long as the
//! counted code does not call the C library's `memcpy` with 256 bytes or more: that takes another way where the low bits of
//! both addresses are alike, and the addresses depend on the environment and on the name of the folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::{paths, tools};

/// Builds a benchmark program of a package with a feature, if it needs one, as cargo would run it.
pub fn program(package: &str, bench: &str, feature: Option<&str>) -> Result<PathBuf> {
    let mut build = tools::plain_cargo();
    build.args(["bench", "--quiet", "--no-run", "--message-format=json", "--package", package, "--bench", bench]);
    if let Some(feature) = feature {
        build.args(["--features", feature]);
    }
    build.arg("--target-dir").arg(paths::target()).env_remove("CARGO_MANIFEST_DIR");
    let said = tools::quietly(&mut build, &format!("cargo bench --package {package} --bench {bench}"))?;
    let executable = |line: &str| serde_json::from_str::<Value>(line).ok()?["executable"].as_str().map(PathBuf::from);
    said.lines().filter_map(executable).next_back().with_context(|| format!("{package} has no benchmark {bench}"))
}

/// Instructions that a program executes in functions whose name matches `function`, and in what they call.
pub fn instructions(program: &Path, arguments: &[&str], function: &str) -> Result<u64> {
    Ok(profile(program, arguments, function)?.count)
}

/// The same, with what the program has said.
pub fn instructions_and_output(program: &Path, arguments: &[&str], function: &str) -> Result<(u64, String)> {
    let Profile { count, said, .. } = profile(program, arguments, function)?;
    Ok((count, said))
}

/// The same in two parts: instructions outside the functions whose names begin with `apart`, and instructions in them.
pub fn instructions_apart(program: &Path, arguments: &[&str], function: &str, apart: &str) -> Result<(u64, u64)> {
    let Profile { count, out, .. } = profile(program, arguments, function)?;
    let profile = fs::read_to_string(&out).with_context(|| format!("callgrind has left no {}", out.display()))?;
    let inside = within(&profile, apart);
    if inside == 0 || inside >= count {
        bail!("callgrind has counted {count}, and {inside} of them in {apart}*");
    }
    Ok((count - inside, inside))
}

/// A run under callgrind.
struct Profile {
    /// Instructions.
    count: u64,
    /// The file with the profile.
    out: PathBuf,
    /// What the program has said.
    said: String,
}

/// Runs the program under callgrind.
fn profile(program: &Path, arguments: &[&str], function: &str) -> Result<Profile> {
    fs::create_dir_all(paths::runs()).with_context(|| format!("cannot create {}", paths::runs().display()))?;
    let out = paths::runs().join("callgrind.out");
    let mut command = tools::program("usr/bin/valgrind.bin");
    command.env("VALGRIND_LIB", paths::tree().join("usr/libexec/valgrind"));
    command.args(["--tool=callgrind", "--collect-atstart=no", "--dump-line=no"]);
    command.arg(format!("--callgrind-out-file={}", out.display()));
    command.arg(format!("--toggle-collect={function}")).arg(program).args(arguments);
    let what = format!("callgrind with {}", program.display());
    let output = command.output().with_context(|| format!("cannot start {what}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{what} failed ({}):\n{said}", output.status);
    }
    let count = collected(&said).filter(|count| *count > 0);
    let count = count.with_context(|| format!("{what} has counted nothing:\n{said}"))?;
    Ok(Profile { count, out, said: String::from_utf8_lossy(&output.stdout).into_owned() })
}

/// A command under callgrind.
pub struct Around {
    /// The command. Its standard error has callgrind's words.
    pub command: Command,
    /// The file with the profile, which is there after the end.
    pub profile: PathBuf,
}

/// Wraps a command. `function`: only what functions of this name execute is counted.
pub fn around(command: &Command, function: Option<&str>) -> Result<Around> {
    fs::create_dir_all(paths::runs()).with_context(|| format!("cannot create {}", paths::runs().display()))?;
    let profile = paths::runs().join("callgrind-process.out");
    let mut around = tools::program("usr/bin/valgrind.bin");
    around.env("VALGRIND_LIB", paths::tree().join("usr/libexec/valgrind"));
    around.args(["--tool=callgrind", "--dump-line=no", &format!("--callgrind-out-file={}", profile.display())]);
    if let Some(function) = function {
        around.args(["--collect-atstart=no", &format!("--toggle-collect={function}")]);
    }
    around.arg(command.get_program()).args(command.get_args());
    Ok(Around { command: around, profile })
}

/// The number in `==123== Collected : 4567`.
pub fn collected(said: &str) -> Option<u64> {
    said.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
}

/// Sums the instructions of the functions whose names begin with `prefix`, without their callees. In a profile, a
/// function's name is written in full once, `fn=(12) name`, and as `fn=(12)` afterwards. The line after `calls=` has
/// the callee's costs.
pub fn within(profile: &str, prefix: &str) -> u64 {
    let mut numbers = Vec::new();
    let (mut sum, mut inside, mut callee) = (0, false, false);
    for line in profile.lines() {
        if let Some((number, name)) = line.split_once("fn=(").and_then(|(_, rest)| rest.split_once(')')) {
            if name.trim().starts_with(prefix) {
                numbers.push(number);
            }
            if line.starts_with("fn=") {
                inside = numbers.contains(&number);
            }
        } else if line.starts_with("calls=") {
            callee = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '*')) {
            let cost: u64 = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
            sum += if inside && !callee { cost } else { 0 };
            callee = false;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_known_by_its_number_and_what_it_calls_is_not_its_own() {
        let profile = "events: Ir\n\nfn=(1) engine::turn\n0 100\ncfn=(2) sidecore_copy_plain\ncalls=3 0\n0 30\n+0 5\n\n\
                       fn=(2)\n0 30\ncfn=(3) memcpy\ncalls=1 0\n0 7\n\nfn=(3)\n0 7\n\ntotals: 142\n";
        assert_eq!((within(profile, "sidecore_copy_"), within(profile, "memset")), (30, 0));
    }

    #[test]
    fn the_count_is_found_among_callgrinds_words() {
        assert_eq!(
            collected("==7== Callgrind\n==7== Events    : Ir\n==7== Collected : 1337160\n==7==\n"),
            Some(1_337_160)
        );
        assert_eq!(collected("==7== Collected :\n"), None);
    }
}
