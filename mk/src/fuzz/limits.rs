//! Limits of inputs.

/// An input that takes longer than this, in seconds, has found something.
pub const SLOW: u32 = 60;
/// Longest input in bytes.
pub const LONGEST: u32 = 1000;
