//! Configuration of the device, and its check.

use intel_nic::MAX_HEADER;
use intel_nic::dma::DESCRIPTOR_BYTES;
use intel_nic::receive::BUFFER_BYTES;

use crate::id::Medium;
use crate::{pools, rss};

/// How the device chooses the receive queue of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Steering {
    /// By a hash of its addresses and ports: flows are spread over all queues, and each flow stays on one (RSS).
    #[default]
    Flows,
    /// By its destination address: addresses in [`Filter::addresses`](crate::Filter::addresses) have queues of their own,
    /// all other frames come by queue 0 (VMDq).
    Addresses,
}

/// Configuration of the device.
#[derive(Clone, Debug)]
pub struct Config {
    /// Receive queues: 1 to 16 with [`Steering::Flows`], 1 to 32 with [`Steering::Addresses`].
    pub receive_queues: u16,
    /// How the device chooses among them.
    pub steering: Steering,
    /// Transmit queues, 1 to 64.
    pub transmit_queues: u16,
    /// Descriptors and buffers of a receive queue: a power of two, 64 to 4,096.
    pub receive_descriptors: u32,
    /// Descriptors of a transmit queue: a power of two, 64 to 4,096.
    pub transmit_descriptors: u32,
    /// Bytes of the longest frame, without FCS and VLAN tag: 1,514 to 15,500.
    pub max_frame: u32,
    /// The device removes VLAN tags from received frames.
    pub strip_vlan: bool,
    /// Key of the RSS hash. Senders should not be able to predict it.
    pub rss_key: [u8; 40],
    /// Where the link goes: [`medium`](crate::id::medium) of the PCI function.
    pub medium: Medium,
    /// 10 Gb/s optics of any vendor are used, even if the EEPROM allows Intel's only.
    pub any_module: bool,
    /// Microseconds without progress after which a queue counts as hung.
    pub hang_time: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            receive_queues: 1,
            steering: Steering::Flows,
            transmit_queues: 1,
            receive_descriptors: 512,
            transmit_descriptors: 512,
            max_frame: 1514,
            strip_vlan: false,
            // Any key works. This one has no long run of equal bits.
            rss_key: core::array::from_fn(|i| (i as u8).wrapping_mul(0x9d) ^ 0x6b),
            medium: Medium::Cage,
            any_module: false,
            hang_time: 1_000_000,
        }
    }
}

/// Mistake in a configuration or in the memory that comes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// Too many receive or transmit queues, or none: the number, and the most.
    Queues(u16, u16),
    /// Not a power of two from 64 to 4,096.
    Descriptors(u32),
    /// Not from 1,514 to 15,500.
    MaxFrame(u32),
    /// Bytes given, and bytes needed.
    Memory(usize, usize),
    /// The memory is not aligned to 128 bytes.
    Alignment(u64),
}

const MAX_TRANSMIT_QUEUES: u16 = 64;

impl Config {
    /// Bytes of DMA memory that [`X520::new`](crate::X520::new) needs, aligned to 128.
    #[must_use]
    pub fn memory(&self) -> usize {
        let receive = (self.receive_descriptors as usize).saturating_mul(DESCRIPTOR_BYTES + BUFFER_BYTES);
        let transmit = (self.transmit_descriptors as usize).saturating_mul(DESCRIPTOR_BYTES + MAX_HEADER);
        let receive = receive.saturating_mul(self.receive_queues.into());
        receive.saturating_add(transmit.saturating_mul(self.transmit_queues.into()))
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let most = match self.steering {
            Steering::Flows => rss::MAX_QUEUES,
            Steering::Addresses => pools::MAX_QUEUES,
        };
        for (queues, most) in [(self.receive_queues, most), (self.transmit_queues, MAX_TRANSMIT_QUEUES)] {
            if !(1..=most).contains(&queues) {
                return Err(ConfigError::Queues(queues, most));
            }
        }
        for count in [self.receive_descriptors, self.transmit_descriptors] {
            if !count.is_power_of_two() || !(64..=4096).contains(&count) {
                return Err(ConfigError::Descriptors(count));
            }
        }
        if !(1514..=15_500).contains(&self.max_frame) {
            return Err(ConfigError::MaxFrame(self.max_frame));
        }
        Ok(())
    }
}
