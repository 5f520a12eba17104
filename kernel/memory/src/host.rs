//! Memory of the host that holds a guest's data, such as the contents of a RAM disk. Bytes go between it and guest
//! memory by the copy routine of the guest memory's user, without a reference into guest memory.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]
#![allow(unsafe_code, reason = "copies between checked ranges by the copy routine, which tolerates other writers")]

use core::sync::atomic::AtomicU8;

use crate::guest::{BadAddress, GuestMemory};

/// A source of zeroes. Larger ranges are zeroed in parts of this size.
static ZEROES: [u8; 4096] = [0; 4096];

/// Host memory that lives as long as the program. Several users may access it at the same time; they get a mixture of
/// each other's bytes, and nothing worse. A copy of this value is another handle to the same memory.
#[derive(Clone, Copy, Debug)]
pub struct HostMemory(&'static [AtomicU8]);

impl HostMemory {
    /// Wraps bytes. They are atomic, so that several users may write them.
    #[must_use]
    pub const fn new(bytes: &'static [AtomicU8]) -> Self {
        Self(bytes)
    }

    /// Its length in bytes.
    #[must_use]
    #[inline]
    pub const fn len(self) -> usize {
        self.0.len()
    }

    /// Whether its length is 0.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Returns `len` bytes at `at`, or `None` if some of them are beyond its end.
    #[must_use]
    #[inline]
    pub fn part(self, at: usize, len: usize) -> Option<Self> {
        self.0.get(at..at.checked_add(len)?).map(Self)
    }

    #[inline]
    pub(crate) fn pointer(self) -> *mut u8 {
        // The bytes are atomic, so a pointer from a shared reference may write them.
        self.0.as_ptr().cast_mut().cast()
    }

    /// Copies all of it to guest memory at `gpa`.
    ///
    /// # Errors
    /// Some byte is not this guest's memory; nothing is copied then.
    #[inline]
    pub fn copy_to(self, guest: &GuestMemory, gpa: u64) -> Result<(), BadAddress> {
        let to = guest.translate(gpa, self.len() as u64)?;
        // SAFETY: `translate` checked the destination. The source is atomic memory of this length. The copier's maker
        // vouched for the cores that use it.
        unsafe { guest.copier().copy(to, self.pointer(), self.len()) };
        Ok(())
    }

    /// Fills all of it from guest memory at `gpa`.
    ///
    /// # Errors
    /// Some byte is not this guest's memory; nothing is copied then.
    #[inline]
    pub fn copy_from(self, guest: &GuestMemory, gpa: u64) -> Result<(), BadAddress> {
        let from = guest.translate(gpa, self.len() as u64)?;
        // SAFETY: as in `copy_to`, in the other direction.
        unsafe { guest.copier().copy(self.pointer(), from, self.len()) };
        Ok(())
    }

    /// Fills its first bytes with `bytes`, as many as there are in both.
    pub fn fill(self, bytes: &[u8]) {
        let len = self.len().min(bytes.len());
        // SAFETY: both are at least that long. The destination is atomic memory, so no unique reference to it exists.
        unsafe { crate::copy::copy(self.pointer(), bytes.as_ptr(), len) };
    }

    /// Fills it with zeroes.
    pub fn zero(self) {
        for part in self.0.chunks(ZEROES.len()) {
            Self(part).fill(&ZEROES);
        }
    }
}

impl GuestMemory {
    /// Copies payload into guest memory by [`GuestMemory::copier`].
    ///
    /// # Errors
    /// Some byte is not this guest's memory; nothing is copied then.
    #[inline]
    pub fn write_payload(&self, gpa: u64, from: &[u8]) -> Result<(), BadAddress> {
        let to = self.translate(gpa, from.len() as u64)?;
        // SAFETY: `translate` checked the destination; the source is a live slice that no guest region overlaps. The
        // copier's maker vouched for the cores that use it.
        unsafe { self.copier().copy(to, from.as_ptr(), from.len()) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU8, Ordering};

    use super::HostMemory;
    use crate::guest::testing::memory;

    fn host(len: usize) -> (HostMemory, &'static [AtomicU8]) {
        let bytes: &[AtomicU8] = (0..len).map(|n| AtomicU8::new(n as u8)).collect::<Vec<_>>().leak();
        (HostMemory::new(bytes), bytes)
    }

    #[test]
    fn bytes_go_both_ways_and_never_beyond_the_part() {
        let guest = memory(0x1000, 0x2000);
        let (all, bytes) = host(9000);
        all.part(10, 100).unwrap().copy_to(&guest, 0x1003).unwrap();
        let mut read = [0; 102];
        guest.read(0x1002, &mut read).unwrap();
        assert_eq!((read[0], read[1], read[100], read[101]), (0, 10, 109, 0));
        guest.write_payload(0x1100, &[7; 50]).unwrap();
        all.part(20, 50).unwrap().copy_from(&guest, 0x1100).unwrap();
        let value = |n: usize| bytes[n].load(Ordering::Relaxed);
        assert_eq!((value(19), value(20), value(69), value(70)), (19, 7, 7, 70));
        all.part(1, 8998).unwrap().zero();
        assert_eq!((value(0), value(1), value(8998), value(8999)), (0, 0, 0, 8999_usize as u8));
        assert!(bytes[1..8999].iter().all(|byte| byte.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn a_part_or_a_guest_address_beyond_the_end_is_refused() {
        let guest = memory(0x1000, 0x1000);
        let (all, _) = host(100);
        assert!(all.part(100, 0).is_some() && all.part(99, 2).is_none() && all.part(usize::MAX, 2).is_none());
        assert!(all.copy_to(&guest, 0x1fff).is_err() && all.copy_from(&guest, 0xfff).is_err());
        assert!(guest.write_payload(0x1fff, &[0; 2]).is_err());
    }
}
