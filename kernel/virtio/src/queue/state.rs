//! A queue's configuration and positions as plain data.

use crate::config::{Features, QueueConfig};

/// The wrap counter in a position of a packed ring (virtio 1.3 2.8.1).
pub(super) const WRAP: u16 = 1 << 15;

/// A queue of which no request is taken, as plain data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueState {
    /// The driver's configuration.
    pub config: QueueConfig,
    /// The next position in the available ring. In a packed ring: the next descriptor, with the wrap counter in bit 15.
    pub avail: u16,
    /// The next position in the used ring. In a packed ring it equals `avail`, because no request is taken.
    pub used: u16,
}

impl QueueState {
    /// A queue before its first request. The wrap counters of a packed ring start at 1 (2.8.1).
    #[must_use]
    pub const fn start(config: QueueConfig, features: Features) -> Self {
        let position = if features.contains(Features::RING_PACKED) { WRAP } else { 0 };
        Self { config, avail: position, used: position }
    }
}
