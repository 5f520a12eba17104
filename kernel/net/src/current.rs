//! The frame that the slow path forwards now, kept while frames are watched.

use core::cell::Cell;

use trace::capture::MOST_BYTES;

use crate::ports::MAX_PORTS;

/// The port of no frame.
pub(crate) const NO_PORT: usize = MAX_PORTS;

/// The frame that the slow path has taken from a guest and forwards now, while frames are watched. It is shown when it has been
/// forwarded, because its fate is known only then. Its tag may have changed by then, so its first bytes are kept here.
pub(crate) struct Current {
    pub port: usize,
    pub bytes: [u8; MOST_BYTES],
    /// How many bytes are kept, at most [`MOST_BYTES`].
    pub taken: usize,
    /// The cause, if it was dropped at `port`.
    pub dropped: Cell<Option<u8>>,
}

impl Current {
    pub(crate) const fn new() -> Self {
        Self { port: NO_PORT, bytes: [0; MOST_BYTES], taken: 0, dropped: Cell::new(None) }
    }

    /// Begins with a frame from a port. None of its bytes is kept yet.
    pub(crate) const fn begin(&mut self, port: usize) {
        (self.port, self.taken) = (port, 0);
        self.dropped = Cell::new(None);
    }

    /// Keeps the first bytes of the frame.
    pub(crate) fn keep(&mut self, front: &[u8]) {
        self.taken = front.len().min(MOST_BYTES);
        self.bytes.iter_mut().zip(front).for_each(|(to, from)| *to = *from);
    }
}
