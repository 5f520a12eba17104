//! Builds the repository's own programs for Linux: those in guests, and the operator's.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::{paths, tools};

/// Builds a program for a Linux guest, linked statically, because a guest does not have this machine's libraries.
pub fn build(package: &str) -> Result<PathBuf> {
    const HOST: &str = "x86_64-unknown-linux-gnu";
    let target = paths::target();
    let folder = target.display().to_string();
    let cargo = [
        "rustc",
        "--quiet",
        "--release",
        "--package",
        package,
        "--bin",
        package,
        "--target",
        HOST,
        "--target-dir",
        &folder,
    ];
    if !tools::cargo(&[&cargo[..], &["--", "-Ctarget-feature=+crt-static", "-Cstrip=symbols"]].concat(), &[])? {
        bail!("{package} does not build; the compiler's words are above");
    }
    Ok(target.join(HOST).join("release").join(package))
}
