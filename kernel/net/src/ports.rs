//! Ports of the switch. A network device in slot `n` of the engine is at port `n`.

use engine::slots::{MAX_SLOTS, SlotSet};

/// Most ports of the switch.
pub const MAX_PORTS: usize = MAX_SLOTS;
/// A set of ports.
pub type PortSet = SlotSet;
