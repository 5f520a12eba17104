//! Faults that a test can cause.

/// The faults of the device from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The receive side stands still.
    pub receive_stalled: bool,
    /// The transmit side stands still.
    pub transmit_stalled: bool,
    /// Frames are sent, but their descriptors are never written back.
    pub no_write_back: bool,
    /// Receive descriptors are written back with an error and a length that no buffer has.
    pub bad_write_back: bool,
    /// CTRL.RST never clears.
    pub reset_hangs: bool,
    /// STATUS keeps saying that DMA is under way.
    pub master_stuck: bool,
    /// Queue enable bits never read back as set.
    pub enable_stuck: bool,
    /// The device has left the bus: all reads return all ones.
    pub gone: bool,
}
