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
    /// The SFP module does not answer.
    pub module_silent: bool,
    /// Each so many bytes from and to the SFP module, one is not acknowledged or arrives changed. 0: never.
    pub module_bad_byte: u32,
    /// Microseconds for which the SFP module holds the clock down after each byte.
    pub module_slow: u64,
    /// EEMNGCTL never says that the configuration is done.
    pub configuration_hangs: bool,
    /// What firmware owns in SW_FW_SYNC from now on, whatever a driver writes.
    pub firmware_owns: u32,
    /// Firmware holds SWSM.SWESMBI.
    pub firmware_holds_swesmbi: bool,
    /// Microseconds more that reset and reading the EEPROM take.
    pub slow: u64,
}
