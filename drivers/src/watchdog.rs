//! What became of a watchdog of the machine that sidecore has tried to stop.

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Became {
    /// It did not run.
    Off,
    /// It ran, and is stopped.
    Stopped {
        /// Seconds that were left. `None`: it does not tell.
        left: Option<u64>,
    },
    /// It runs on.
    Runs {
        /// Seconds that were left. `None`: it does not tell.
        left: Option<u64>,
    },
}

/// Nothing answers at its registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAnswer;
