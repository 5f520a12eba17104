//! Why a guest stops.

extern crate alloc;

use alloc::{format, string::String};
use core::fmt;

use crate::mailbox::StopReason;

/// Why a whole guest has stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It switched itself off.
    PowerOff,
    /// It asked for a reset.
    Reset,
    /// A triple fault. It resets a real machine.
    TripleFault,
    /// The operator killed it, or it did not stop in time after the power button.
    Killed,
    /// Memory of it is damaged. The text says where.
    MemoryError(String),
    /// It cannot go on. The text says why.
    Failed(String),
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PowerOff => f.write_str("power off"),
            Self::Reset => f.write_str("reset"),
            Self::TripleFault => f.write_str("triple fault"),
            Self::Killed => f.write_str("killed"),
            Self::MemoryError(place) => write!(f, "memory error: {place}"),
            Self::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

impl Stop {
    /// Makes the stop for a guest with an uncorrected error in its memory, at this address of the machine's.
    #[must_use]
    pub fn memory_error(physical: u64) -> Self {
        Self::MemoryError(format!("an uncorrected error at physical address {physical:#x}"))
    }

    /// Makes the stop for a guest that cannot go on.
    pub(super) fn failed(why: &str) -> Self {
        Self::Failed(String::from(why))
    }

    /// Returns the reason that its vCPUs get in their mailboxes.
    pub(super) fn request(&self) -> StopReason {
        match self {
            Self::PowerOff => StopReason::PowerOff,
            Self::Reset => StopReason::Reset,
            Self::Killed | Self::MemoryError(_) => StopReason::Killed,
            Self::TripleFault | Self::Failed(_) => StopReason::Failed,
        }
    }
}
