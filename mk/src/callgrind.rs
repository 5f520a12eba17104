//! Counts instructions by callgrind: exact, the same in every run, on any x86_64 machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::{paths, tools};

/// Builds a benchmark program of a package, as cargo would run it.
pub fn program(package: &str, bench: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["bench", "--quiet", "--no-run", "--message-format=json", "--package", package, "--bench", bench]);
    build.arg("--target-dir").arg(paths::target()).current_dir(paths::root()).env_remove("CARGO_MANIFEST_DIR");
    let said = tools::quietly(&mut build, &format!("cargo bench --package {package} --bench {bench}"))?;
    let executable = |line: &str| serde_json::from_str::<Value>(line).ok()?["executable"].as_str().map(PathBuf::from);
    said.lines().filter_map(executable).next_back().with_context(|| format!("{package} has no benchmark {bench}"))
}

/// Instructions that a program executes in functions whose name matches `function`, and in what they call.
pub fn instructions(program: &Path, arguments: &[&str], function: &str) -> Result<u64> {
    let mut command = tools::program("usr/bin/valgrind.bin");
    command.env("VALGRIND_LIB", paths::tree().join("usr/libexec/valgrind"));
    command.args(["--tool=callgrind", "--collect-atstart=no", "--callgrind-out-file=/dev/null"]);
    command.arg(format!("--toggle-collect={function}")).arg(program).args(arguments);
    let what = format!("callgrind with {}", program.display());
    let output = command.output().with_context(|| format!("cannot start {what}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{what} failed ({}):\n{said}", output.status);
    }
    collected(&said).filter(|count| *count > 0).with_context(|| format!("{what} has counted nothing:\n{said}"))
}

/// The number in `==123== Collected : 4567`.
fn collected(said: &str) -> Option<u64> {
    said.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_found_among_callgrinds_words() {
        assert_eq!(
            collected("==7== Callgrind\n==7== Events    : Ir\n==7== Collected : 1337160\n==7==\n"),
            Some(1_337_160)
        );
        assert_eq!(collected("==7== Collected :\n"), None);
    }
}
