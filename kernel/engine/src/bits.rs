//! The bits that are set in a word.

/// Iterates over the set bits of a word in ascending order: queues, or MSI-X entries.
#[derive(Clone, Copy, Debug)]
pub struct SetBits(pub(crate) u32);

impl Iterator for SetBits {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros();
        self.0 &= self.0.wrapping_sub(1);
        Some(bit as usize)
    }
}
