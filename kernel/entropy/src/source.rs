//! The source of random bytes.

/// A source of random bytes that are fit for cryptography.
pub trait Source {
    /// Fills `bytes`. Returns false if the source has no bytes now; `bytes` is then of no use. It must not wait. It is
    /// asked again in the next turn, so it must not fail for good.
    fn fill(&mut self, bytes: &mut [u8]) -> bool;
}
