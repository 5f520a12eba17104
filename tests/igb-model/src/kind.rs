//! The two devices, and what the model has against a driver.

/// Which device it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 82576.
    I82576,
    /// I350.
    I350,
}

/// A mistake of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Diagnostic {
    /// An access to an offset where this device has no register, or a write to one that is read only.
    NoRegister(u32),
    /// An access within a millisecond after a reset was asked for.
    AccessDuringReset(u32),
    /// A tail was written, or a ring was changed, at the wrong time.
    Queue(&'static str),
    /// A descriptor with reserved or contradictory fields.
    Descriptor(&'static str, [u64; 2]),
    /// The device reached for memory that it was not granted.
    NotGranted {
        /// The address.
        address: u64,
        /// It was a write.
        write: bool,
    },
    /// The PHY was accessed without its semaphore, or while an access was under way.
    Phy(&'static str),
}
