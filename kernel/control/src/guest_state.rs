//! The state of a guest, and why it stopped.

use serde::{Deserialize, Serialize};

/// The life of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuestState {
    /// Its memory is being filled.
    Starting,
    /// Its vCPUs run.
    Running,
    /// Its power button was pressed, or its vCPUs were told to stop.
    Stopping,
    /// Its vCPUs have ended, but an engine still has requests of its devices, such as those of a disk that does not
    /// answer.
    Detaching,
    /// It does not run.
    #[default]
    Stopped,
}

impl GuestState {
    /// All of them, by number.
    pub const ALL: [Self; 5] = [Self::Starting, Self::Running, Self::Stopping, Self::Detaching, Self::Stopped];

    /// As in the JSON lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Detaching => "detaching",
            Self::Stopped => "stopped",
        }
    }
}

/// Why a guest stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// The guest entered S5.
    PowerOff,
    /// The guest wrote the reset register.
    Reset,
    /// Triple fault.
    TripleFault,
    /// The operator killed it, or the time limit of `stop` ran out.
    Killed,
    /// An uncorrected error in its memory. The detail says where.
    MemoryError,
    /// It did something that this hypervisor does not handle. The detail says what.
    Failed,
    /// It could not be started. The detail says why.
    NotStarted,
}

impl StopReason {
    /// All of them, by number.
    pub const ALL: [Self; 7] = [
        Self::PowerOff,
        Self::Reset,
        Self::TripleFault,
        Self::Killed,
        Self::MemoryError,
        Self::Failed,
        Self::NotStarted,
    ];

    /// As in the JSON lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PowerOff => "power-off",
            Self::Reset => "reset",
            Self::TripleFault => "triple-fault",
            Self::Killed => "killed",
            Self::MemoryError => "memory-error",
            Self::Failed => "failed",
            Self::NotStarted => "not-started",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_lists_and_the_names_are_those_of_the_json_lines() {
        for (number, state) in GuestState::ALL.into_iter().enumerate() {
            assert_eq!(state as usize, number);
            assert_eq!(serde_json::to_string(&state).unwrap(), format!("{:?}", state.name()));
        }
        for (number, reason) in StopReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
            assert_eq!(serde_json::to_string(&reason).unwrap(), format!("{:?}", reason.name()));
        }
    }
}
