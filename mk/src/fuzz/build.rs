//! Builds the programs of the targets: for libFuzzer, and for coverage of lines.

use std::path::PathBuf;

use anyhow::{Result, bail};

use super::target::Target;
use crate::{paths, tools};

/// The compiler's own target. It is named, so that the flags do not reach build scripts and macros.
pub const HOST: &str = "x86_64-unknown-linux-gnu";

/// How the targets are compiled for libFuzzer. Assertions and overflow checks are on. `compiler.sh` adds what counts edges.
const FUZZING: &str = "--cfg fuzzing -Cdebug-assertions=on -Ccodegen-units=1";

/// What compiles the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compiler {
    /// That of the product.
    Stable,
    /// The nightly one, which finds accesses outside of an allocation, or after its end: the address sanitizer.
    NightlyAsan,
}

/// Builds programs that look for inputs. Returns their folder.
pub fn fuzzers(targets: &[&Target], compiler: Compiler) -> Result<PathBuf> {
    let more = ["--features", "libfuzzer"];
    let wrapper = paths::root().join("mk/src/fuzz/compiler.sh").display().to_string();
    let wrapper = [("RUSTC_WRAPPER", wrapper.as_str())];
    match compiler {
        Compiler::Stable => build(targets, compiler, "fuzz", &more, FUZZING, &wrapper),
        Compiler::NightlyAsan => {
            build(targets, compiler, "fuzz-asan", &more, &format!("{FUZZING} -Zsanitizer=address"), &wrapper)
        }
    }
}

/// Builds programs that replay inputs and count lines. Returns their folder.
pub fn counters(targets: &[&Target]) -> Result<PathBuf> {
    build(targets, Compiler::Stable, "fuzz-coverage", &[], "-Cinstrument-coverage", &[])
}

fn build(
    targets: &[&Target],
    compiler: Compiler,
    folder: &str,
    more: &[&str],
    flags: &str,
    variables: &[(&str, &str)],
) -> Result<PathBuf> {
    let folder = paths::target().join(folder);
    let mut arguments: Vec<String> =
        ["build", "--quiet", "--release", "--package", "fuzz", "--target", HOST].map(String::from).into();
    arguments.extend(more.iter().map(|argument| (*argument).to_owned()));
    arguments.extend(["--target-dir".to_owned(), folder.display().to_string()]);
    arguments.extend(targets.iter().flat_map(|target| ["--bin".to_owned(), format!("fuzz-{}", target.name)]));
    // Without optimization across crates the programs are built in a fraction of the time.
    let environment = [&[("RUSTFLAGS", flags), ("CARGO_PROFILE_RELEASE_LTO", "off")], variables].concat();
    let is_built = match compiler {
        Compiler::Stable => tools::cargo(&arguments, &environment)?,
        Compiler::NightlyAsan => tools::nightly_cargo(&arguments, &environment)?,
    };
    if !is_built {
        bail!("the fuzz targets do not build");
    }
    Ok(folder.join(HOST).join("release"))
}
