//! The states of the device: what the driver knows of it, and what its owner is told.

/// How the device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It is being brought up.
    Starting,
    /// Frames can come and go; the link may be down.
    Running,
    /// It was stopped and does no DMA.
    Stopped,
    /// It cannot be made to work. It may still DMA.
    Failed(Failure),
}

/// What the device did not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It does not answer: all registers read as all ones.
    Gone,
    /// Reset did not end.
    Reset,
    /// EEPROM, firmware or DMA engine did not become ready after reset.
    NotReady,
    /// Its EEPROM holds no unicast address.
    NoAddress,
    /// A queue did not become enabled.
    Queue,
}

/// Where bring-up stands. Times are microseconds; a step that is not done by its deadline has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Not begun.
    Idle,
    /// DMA was asked to end.
    Quiescing {
        deadline: u64,
    },
    /// Reset was asked for at that time, and the device has heard of it.
    Asked {
        at: u64,
        again: bool,
    },
    /// In reset: nothing is touched before `from`.
    Resetting {
        from: u64,
        deadline: u64,
        again: bool,
    },
    /// Waits for EEPROM, firmware and DMA engine.
    Loading {
        deadline: u64,
    },
    /// Waits for the semaphore, to start the link.
    Linking {
        deadline: u64,
    },
    /// Waits for the queues.
    Enabling {
        deadline: u64,
    },
    Running,
    Stopped,
    Failed(Failure),
}
