//! Who watches frames at the ports of guests: those that are dropped, and while somebody wants it, all of them.

use engine::slots::MAX_SLOTS;
use trace::capture::Way;
use trace::{Classes, Switch};

/// A frame at a port.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'f> {
    /// The port, below [`MAX_SLOTS`].
    pub port: usize,
    /// Which way it goes.
    pub way: Way,
    /// When: ticks of the engine's clock. `None`: now.
    pub at: Option<u64>,
    /// Bytes of the frame, without the virtio-net header.
    pub len: u32,
    /// Its first bytes, as far as they were copied to the host's own memory. What the switch checks of a frame is among them.
    pub bytes: &'f [u8],
    /// It was dropped at this port: the number of the cause's counter in [`Drops`](crate::counters::Drops), in the order of
    /// `iter`.
    pub dropped: Option<u8>,
}

/// Watches frames. It runs on the engine's core, so it must neither wait nor allocate.
pub trait FrameWatcher: Sync {
    /// A frame of `bytes` bytes was dropped at a port. `cause`: see [`Seen::dropped`].
    fn dropped(&self, port: usize, cause: u8, bytes: u32);
    /// A frame was taken from a port, or given to it, or dropped there. It is called while one of [`Watch::FRAMES`] is on. A
    /// frame that both was sent and arrived is seen at both ports.
    fn seen(&self, frame: &Seen<'_>);
}

const _: () = assert!(MAX_SLOTS <= u16::MAX as usize);

/// A watcher, and what it wants to see.
#[derive(Clone, Copy)]
pub struct Watch {
    /// The watcher.
    pub watcher: &'static dyn FrameWatcher,
    /// The classes that are on.
    pub on: &'static Switch,
}

impl Watch {
    /// The classes for which each frame is shown.
    pub const FRAMES: Classes = Classes::CAPTURES;
}
