//! `[[module]]`: the contents that a boot module must have.

use alloc::string::String;

pub use control::Sha256;

use crate::mistake::Place;

/// `[[module]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Name of the boot module.
    pub name: String,
    /// The SHA-256 that it must have. `None` if the file's could not be read: then no guest may use the module.
    pub sha256: Option<Sha256>,
    /// Place of the SHA-256 in the file.
    pub place: Place,
}
