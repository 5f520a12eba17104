//! A guest's request that a NIC holds: the token that the NIC gives back.

use virtio::queue::Token;

/// A guest's request, or part of it, whose buffers the NIC may read.
#[derive(Debug)]
pub struct Held {
    pub(crate) port: usize,
    pub(crate) part: Part,
}

/// Which part of a request.
#[derive(Debug)]
pub(crate) enum Part {
    /// The whole request.
    Whole(Token),
    /// One segment of a request that was segmented. The number is the index of this request among the segmented
    /// requests of [`super::Uplink`].
    Segment(u8),
}

impl Held {
    /// Makes the token of a whole request of a port.
    #[inline(always)]
    pub(crate) const fn whole(port: usize, token: Token) -> Self {
        Self { port, part: Part::Whole(token) }
    }

    /// Returns the request, if it is a whole one.
    pub(crate) fn into_whole(self) -> Option<Token> {
        match self.part {
            Part::Whole(token) => Some(token),
            Part::Segment(_) => None,
        }
    }
}
