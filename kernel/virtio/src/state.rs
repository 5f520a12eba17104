//! A quiesced device as plain data. It contains everything that is needed to resume the device elsewhere, over the same
//! guest memory.

use crate::config::{CONFIG_BYTES, MAX_QUEUES, VECTORS};
use crate::fault::Fault;
use crate::msix::MsixState;
use crate::queue::QueueState;

/// The version of [`DeviceState`] that this code writes and reads.
pub const STATE_VERSION: u32 = 1;

/// A quiesced device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceState {
    /// [`STATE_VERSION`].
    pub version: u32,
    /// Virtio device type.
    pub device_type: u16,
    /// The engine was serving it.
    pub running: bool,
    /// DEVICE_NEEDS_RESET is set in the status.
    pub needs_reset: bool,
    /// Negotiated features.
    pub features: u64,
    /// MSI-X entry for configuration changes.
    pub config_vector: u16,
    /// ISR status.
    pub isr: u8,
    /// Device-specific configuration.
    pub config: [u8; CONFIG_BYTES],
    /// The queues. If the device was running, the enabled ones were in use.
    pub queues: [QueueState; MAX_QUEUES],
    /// MSI-X table, pending bits and control.
    pub msix: MsixState<VECTORS>,
}

/// Why a saved state is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadState {
    /// The version is not [`STATE_VERSION`].
    Version(u32),
    /// It is of another device type.
    DeviceType(u16),
    /// It uses features that this device does not offer.
    Features(u64),
    /// One of its queues breaks a rule.
    Queue(Fault),
}
