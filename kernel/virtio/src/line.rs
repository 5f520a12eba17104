//! Cache lines that two cores must not share.

/// Keeps the data of different cores on different cache lines. The alignment is two lines of 64 bytes, because the
/// CPU's adjacent-line prefetcher fetches lines in pairs.
#[derive(Default)]
#[repr(align(128))]
pub struct OwnLine<T>(pub T);
