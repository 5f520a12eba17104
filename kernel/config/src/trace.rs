//! `[trace]`: the memory of the cores' traces, and what they write from the start.

use trace::Classes;

/// Most bytes of a core's ring.
pub const MAX_TRACE: u64 = 64 << 20;

/// `[trace]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Bytes for the ring of each core that has one: the control core, engines' and guests' cores. 0, or a power of two from 4 KiB to
    /// [`MAX_TRACE`].
    pub memory: u64,
    /// What the cores write from the start.
    pub on: Classes,
}

impl Default for Trace {
    fn default() -> Self {
        Self { memory: 128 << 10, on: Classes::empty() }
    }
}
