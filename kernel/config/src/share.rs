//! Shares of the cache and of the memory bandwidth.

/// `cache` and `bandwidth` of an engine or a guest, in percent. `None`: it shares with everything else that has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Of the last-level cache, for it alone: 1 to 90.
    pub cache: Option<u8>,
    /// Of the memory bandwidth, at most: 10 to 100.
    pub bandwidth: Option<u8>,
}
