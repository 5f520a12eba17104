//! A package.

use std::path::PathBuf;

/// A package, as `cargo metadata` describes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Package {
    pub name: String,
    pub version: String,
    /// Empty if it names none.
    pub licence: String,
    /// Whether it is of this repository.
    pub own: bool,
    /// Whether it runs in the compiler only.
    pub is_macro: bool,
    pub folder: PathBuf,
}
