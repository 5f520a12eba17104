//! Where corpora, records and inputs are kept that a target fails on.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::paths;

/// Where corpora and records are kept.
pub fn folder() -> PathBuf {
    paths::target().join("fuzz-corpus")
}

/// The corpus of a target.
pub fn corpus(name: &str) -> PathBuf {
    folder().join(name)
}

/// The inputs that a target has failed on.
pub fn found(name: &str) -> Result<Vec<PathBuf>> {
    let folder = found_folder(name);
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// Where those are kept.
pub fn found_folder(name: &str) -> PathBuf {
    paths::target().join("fuzz-found").join(name)
}
