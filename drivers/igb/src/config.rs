//! Configuration of the device, and its check.

use intel_nic::MAX_HEADER;
use intel_nic::dma::DESCRIPTOR_BYTES;
use intel_nic::receive::BUFFER_BYTES;

/// Configuration of the device.
#[derive(Clone, Debug)]
pub struct Config {
    /// Descriptors and buffers of the receive queue: a power of two, 64 to 4,096.
    pub receive_descriptors: u32,
    /// Descriptors of the transmit queue: a power of two, 64 to 4,096.
    pub transmit_descriptors: u32,
    /// Bytes of the longest frame, without FCS and VLAN tag: 1,514 to 9,230.
    pub max_frame: u32,
    /// Microseconds without progress after which a queue counts as hung.
    pub hang_time: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { receive_descriptors: 512, transmit_descriptors: 512, max_frame: 1514, hang_time: 1_000_000 }
    }
}

/// Mistake in a configuration or in the memory that comes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// Not a power of two from 64 to 4,096.
    Descriptors(u32),
    /// Not from 1,514 to [`MAX_FRAME`].
    MaxFrame(u32),
    /// Bytes given, and bytes needed.
    Memory(usize, usize),
    /// The memory is not aligned to 128 bytes.
    Alignment(u64),
}

impl core::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Descriptors(count) => write!(f, "{count} descriptors; expected a power of two from 64 to 4096"),
            Self::MaxFrame(bytes) => write!(f, "frames of {bytes} bytes; this NIC has 1514 to {MAX_FRAME}"),
            Self::Memory(given, needed) => write!(f, "{given} bytes of memory; it needs {needed}"),
            Self::Alignment(at) => write!(f, "memory at {at:#x}, which is not aligned to 128 bytes"),
        }
    }
}

/// Bytes of the longest frame that the device has, without FCS and VLAN tag: an MTU of 9,216.
pub const MAX_FRAME: u32 = 9230;

impl Config {
    /// Bytes of DMA memory that [`Igb::new`](crate::Igb::new) needs, aligned to 128.
    #[must_use]
    pub fn memory(&self) -> usize {
        let receive = (self.receive_descriptors as usize).saturating_mul(DESCRIPTOR_BYTES + BUFFER_BYTES);
        let transmit = (self.transmit_descriptors as usize).saturating_mul(DESCRIPTOR_BYTES + MAX_HEADER);
        receive.saturating_add(transmit)
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        for count in [self.receive_descriptors, self.transmit_descriptors] {
            if !count.is_power_of_two() || !(64..=4096).contains(&count) {
                return Err(ConfigError::Descriptors(count));
            }
        }
        if !(1514..=MAX_FRAME).contains(&self.max_frame) {
            return Err(ConfigError::MaxFrame(self.max_frame));
        }
        Ok(())
    }
}
