//! A guest that tries what it must not.

use crate::scenario::Scenario;

/// These scenarios.
pub fn list() -> Vec<Scenario> {
    Vec::new()
}
