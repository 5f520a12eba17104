//! Ports of the switch. The port of a network device has the number of the engine's slot that the device is in.

use engine::slots::{MAX_SLOTS, SlotSet};

/// Most ports of the switch.
pub const MAX_PORTS: usize = MAX_SLOTS;
/// A set of ports.
pub type PortSet = SlotSet;
