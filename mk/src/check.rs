//! `cargo mk check`.

use anyhow::Result;

use crate::image::{TARGET, UEFI};
use crate::outcome::Outcome;
use crate::{branches, crates, fetch, imports, tools, ui};

/// Packages that build only for the bare machine, one of them also with features that add code, and for UEFI.
const BARE_PACKAGES: [(&str, &[&str]); 8] = [
    (TARGET, &["sidecore"]),
    (TARGET, &["sidecore", "--features", "count"]),
    (TARGET, &["sidecore", "--features", "read-memory"]),
    (TARGET, &["bare"]),
    (TARGET, &["isolation"]),
    (TARGET, &["probe"]),
    (TARGET, &["firmware-remapping"]),
    (UEFI, &["firmware-memory"]),
];

/// A feature that is built only on request, and is checked too: the server of the device model.
pub const SERVER: &str = "x520-model/server";

/// Checks formatting, lints, documentation, import cycles, indirect branches and crates. Runs all checks even if one fails.
/// `update`: writes the list of crates in SECURITY.md and that of indirect branches anew.
pub fn check(update: bool) -> Result<Outcome> {
    for target in [TARGET, UEFI] {
        fetch::ensure_rust_target(target)?;
    }
    let mut good = tools::cargo(&["fmt", "--all", "--check"], &[])?;
    good &= tools::cargo(&["clippy", "--quiet", "--all-targets", "--features", SERVER, "--", "-D", "warnings"], &[])?;
    for (target, package) in BARE_PACKAGES {
        let what = [&["clippy", "--quiet", "--release", "--target", target, "--package"], package];
        good &= tools::cargo(&[&what.concat()[..], &["--", "-D", "warnings"]].concat(), &[])?;
    }
    good &= tools::cargo(&["doc", "--quiet", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])?;
    good &= imports::check()?;
    good &= branches::check(update)?;
    good &= crates::check(update)?;
    ui::step("check", if good { "all is well" } else { "something above is not as it should be" });
    Ok(Outcome::of(good))
}
