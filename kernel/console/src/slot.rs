//! The device of a slot, as the back-end knows it.

use crate::device::MAX_PORTS;
use crate::ports::Ports;
use crate::wire::EngineEnd;

/// A console device for the back-end ([`Backend::Config`](engine::backend::Backend::Config)).
#[derive(Debug)]
pub struct Config {
    /// The shared state of its ports.
    pub ports: &'static Ports,
    /// The engine's ends of their rings, by number of the port.
    pub ends: [Option<EngineEnd>; MAX_PORTS],
}

/// The engine's state of one port.
#[derive(Debug, Default)]
pub(crate) struct PortState {
    /// `None`: there is no such port.
    pub(crate) end: Option<EngineEnd>,
    /// Messages that its driver must get, a bit for each event. See [`crate::handshake`].
    pub(crate) pending: u8,
    /// The value of `is_open` that the driver knows.
    pub(crate) told_open: bool,
    /// Bytes of the first request in its transmit queue that were taken already.
    pub(crate) taken: u32,
    /// When the ring of its output was first seen full. `None`: there is room.
    pub(crate) full_since: Option<u64>,
}

/// The device of a slot.
pub(crate) struct Slot {
    pub(crate) shared: &'static Ports,
    pub(crate) multiport: bool,
    pub(crate) ports: [PortState; MAX_PORTS],
}

impl Slot {
    pub(crate) fn new(config: Config) -> Self {
        let ports = config.ends.map(|end| PortState { end, ..PortState::default() });
        Self { shared: config.ports, multiport: false, ports }
    }

    /// Forgets what belongs to one activation of the device. Input that waits belongs to the driver that is gone.
    pub(crate) fn forget(&mut self) {
        for port in &mut self.ports {
            (port.pending, port.told_open, port.taken, port.full_since) = (0, false, 0, None);
            if let Some(end) = &mut port.end {
                let waiting = end.input.slots();
                if let Ok(chunk) = end.input.read_chunk(waiting) {
                    chunk.commit_all();
                }
            }
        }
    }
}
