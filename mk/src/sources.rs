//! A short hash of the sources from which a run was built.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};

use crate::{paths, rotation, tools};

/// Digits of the hash that are kept.
const DIGITS: usize = 12;

/// The hash of all files in the working tree that git tracks or would track, by name and content, as they are now. It
/// leaves out Markdown, and the file of the rotation, which contains this hash.
pub fn hash() -> Result<String> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(paths::root());
    let listed = tools::quietly(&mut git, "git ls-files")?;
    let mut names: Vec<&str> = listed.split('\0').filter(|name| counts(name)).collect();
    names.sort_unstable();
    names.dedup();
    let mut hash = Sha256::new();
    for name in names {
        let path = paths::root().join(name);
        // A tracked file that was removed is left out. A link counts by the content of its target.
        if path.is_file() {
            let content = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            for part in [name.as_bytes(), &content] {
                hash.update((part.len() as u64).to_le_bytes());
                hash.update(part);
            }
        }
    }
    let digits: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(digits[..DIGITS].to_owned())
}

fn counts(name: &str) -> bool {
    !name.is_empty() && name != rotation::FILE && !name.ends_with(".md")
}
