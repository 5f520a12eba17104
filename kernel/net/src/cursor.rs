//! A position in a list of guest buffers. The bytes after it are read, written or summed.

use memory::GuestMemory;
use virtio::chain::Segment;

use crate::offload::sum::Sum;

/// A position in a list of buffers. A run ends at the end of its buffer or before, so no position is beyond it, and nothing
/// here wraps.
#[derive(Clone)]
pub(crate) struct Cursor<'s> {
    buffers: &'s [Segment],
    offset: u32,
}

impl<'s> Cursor<'s> {
    pub(crate) const fn new(buffers: &'s [Segment]) -> Self {
        Self { buffers, offset: 0 }
    }

    /// Returns the bytes up to the end of the current buffer.
    pub(crate) fn contiguous(&self) -> usize {
        self.buffers.first().map_or(0, |b| b.len.wrapping_sub(self.offset) as usize)
    }

    /// Returns how many buffers are left.
    pub(crate) const fn pieces(&self) -> usize {
        self.buffers.len()
    }

    /// Advances by up to `max` bytes (not zero) within one buffer.
    /// Returns the guest-physical address and the number of bytes. `None` at the end.
    #[inline]
    pub(crate) fn run(&mut self, max: usize) -> Option<(u64, usize)> {
        let (buffer, rest) = self.buffers.split_first()?;
        let gpa = buffer.gpa.wrapping_add(self.offset.into());
        let n = self.contiguous().min(max);
        if n == 0 {
            return None;
        }
        self.offset = self.offset.wrapping_add(n as u32);
        if self.offset == buffer.len {
            (self.buffers, self.offset) = (rest, 0);
        }
        Some((gpa, n))
    }

    /// Advances by `n` bytes, or to the end.
    pub(crate) fn skip(&mut self, mut n: usize) {
        while n != 0 {
            let Some((_, done)) = self.run(n) else { return };
            n = n.wrapping_sub(done);
        }
    }

    /// Copies the next bytes out of `memory`. `None`: there are fewer, or they are not in the guest's memory.
    pub(crate) fn read(&mut self, memory: &GuestMemory, mut into: &mut [u8]) -> Option<()> {
        while !into.is_empty() {
            let (gpa, n) = self.run(into.len())?;
            let (now, later) = into.split_at_mut(n);
            memory.read(gpa, now).ok()?;
            into = later;
        }
        Some(())
    }

    /// Copies `from` to the next bytes of `memory`. `None`: there are fewer, or they are not in the guest's memory.
    pub(crate) fn write(&mut self, memory: &GuestMemory, mut from: &[u8]) -> Option<()> {
        while !from.is_empty() {
            let (gpa, n) = self.run(from.len())?;
            let (now, later) = from.split_at(n);
            memory.write(gpa, now).ok()?;
            from = later;
        }
        Some(())
    }

    /// Returns the sum of the next `left` bytes. They are read through `bounce`.
    pub(crate) fn sum(&mut self, memory: &GuestMemory, mut left: usize, bounce: &mut [u8]) -> Option<Sum> {
        let mut sum = Sum::new();
        while left != 0 {
            let n = left.min(bounce.len());
            let bytes = bounce.get_mut(..n).filter(|bytes| !bytes.is_empty())?;
            self.read(memory, bytes)?;
            sum.add(bytes);
            left = left.wrapping_sub(n);
        }
        Some(sum)
    }
}
