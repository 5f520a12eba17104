//! The states of the device: what the driver knows of it, and what its owner is told.

/// How the device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Bring-up is under way.
    Starting,
    /// Frames are received and sent. The link may be down.
    Running,
    /// It was stopped. It does no DMA.
    Stopped,
    /// It does not work. It may still do DMA.
    Failed(Failure),
}

/// What the device did not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It does not answer: all registers read as all ones.
    Gone,
    /// It did not finish its reset.
    Reset,
    /// EEPROM or DMA engine did not become ready after reset.
    NotReady,
    /// Its EEPROM has no unicast address.
    NoAddress,
    /// A queue did not become enabled.
    Queue,
}

/// The step of bring-up. Times are microseconds. A step that is not done by its deadline fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not begun.
    Idle,
    /// The device was told to end DMA.
    Quiescing {
        /// Then it is reset all the same.
        deadline: u64,
    },
    /// Reset was requested at that time, and the write has reached the device.
    ResetRequested {
        /// That time.
        at: u64,
        /// A second reset follows.
        again: bool,
    },
    /// In reset. The driver touches no register before `from`.
    Resetting {
        /// See above.
        from: u64,
        /// Then it has failed.
        deadline: u64,
        /// A second reset follows.
        again: bool,
    },
    /// Waits for EEPROM and DMA engine, and for firmware until `patience`.
    Loading {
        /// How long firmware is waited for.
        patience: u64,
        /// Then the device has failed.
        deadline: u64,
    },
    /// Waits for the queues.
    Enabling {
        /// Then the device has failed.
        deadline: u64,
    },
    /// Frames are received and sent.
    Running,
    /// It was reset, and does no DMA.
    Stopped,
    /// It does not work.
    Failed(Failure),
}
