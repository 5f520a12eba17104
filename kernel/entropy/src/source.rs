//! Where random bytes come from.

/// A source of random bytes that are fit for cryptography.
pub trait Source {
    /// Fills `bytes`. False: the source has none now, and `bytes` holds nothing of use. It neither waits nor fails for good;
    /// it is asked again in the next turn.
    fn fill(&mut self, bytes: &mut [u8]) -> bool;
}
