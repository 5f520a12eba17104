//! The screen's memory.

/// The screen's memory.
pub trait Memory {
    /// Writes bytes at an offset from its beginning. What would be behind its end is not written.
    fn write(&mut self, offset: usize, bytes: &[u8]);
}
