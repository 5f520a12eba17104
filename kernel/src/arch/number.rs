//! The number of the core that runs this. Its GS base is that number plus 1; nothing is there, and nothing is read through GS.

use super::CoreIndex;
use x86_64::{VirtAddr, registers::model_specific::GsBase};

/// Gives this core its number.
pub fn set(number: CoreIndex) {
    GsBase::write(VirtAddr::new_truncate((number as u64).saturating_add(1)));
}

/// Returns this core's number, or 0 if it has none yet.
pub fn current() -> CoreIndex {
    GsBase::read().as_u64().saturating_sub(1) as CoreIndex
}
