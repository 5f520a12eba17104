//! Limits of inputs.

/// An input that takes longer than this, in seconds, has found something.
pub const SLOW: u32 = 60;
/// Longest input in bytes.
pub const LONGEST: u32 = 1000;
/// Megabytes that a target may use with the address sanitizer, which keeps freed memory for a while. Without it libFuzzer's own
/// limit applies, 2,048.
pub const ASAN_MEGABYTES: u32 = 4096;
