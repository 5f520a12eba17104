//! A range of a guest's memory, checked once and then used many times: rings, and buffers on their way.
//!
//! [`GuestMemory::translate`](crate::GuestMemory::translate) costs a look at each region. Whoever uses a range more than
//! once, as the engine does with rings, keeps a [`Span`] of it, which costs one comparison for each access.

#![allow(unsafe_code, reason = "accesses through host pointers that were checked when the span was made")]

use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::copy::Copier;

/// A range of one guest's memory as the host has it mapped.
///
/// It is good as long as the memory it was made from: see the safety section of
/// [`GuestMemory::add`](crate::GuestMemory::add).
#[derive(Clone, Copy, Debug)]
pub struct Span {
    host: *mut u8,
    len: u32,
}

// SAFETY: as for GuestMemory: memory that any CPU may use at any time, and every access below is atomic, volatile or
// through the copy routine.
unsafe impl Send for Span {}
// SAFETY: as for Send.
unsafe impl Sync for Span {}

macro_rules! scalar {
    ($load:ident, $store:ident, $ty:ty, $atomic:ty) => {
        /// Loads a little-endian scalar at a byte offset: one relaxed load. None: it is misaligned or not within.
        #[inline(always)]
        #[must_use]
        pub fn $load(&self, offset: u32) -> Option<$ty> {
            let p = self.at(offset, size_of::<$ty>() as u32)?.cast::<$ty>();
            // SAFETY: within the span and aligned, both just checked; all host access is atomic or through the copy
            // routine.
            p.is_aligned().then(|| unsafe { <$atomic>::from_ptr(p) }.load(Ordering::Relaxed))
        }

        /// Stores a little-endian scalar at a byte offset: one relaxed store. None: it is misaligned or not within.
        #[inline(always)]
        pub fn $store(&self, offset: u32, value: $ty) -> Option<()> {
            let p = self.at(offset, size_of::<$ty>() as u32)?.cast::<$ty>();
            // SAFETY: as in the load.
            p.is_aligned().then(|| unsafe { <$atomic>::from_ptr(p) }.store(value, Ordering::Relaxed))
        }
    };
}

impl Span {
    /// Nothing.
    pub const EMPTY: Self = Self { host: core::ptr::null_mut(), len: 0 };

    /// Of `len` bytes at `host`, which the caller has checked to be a guest's memory.
    pub(crate) const fn new(host: *mut u8, len: u32) -> Self {
        Self { host, len }
    }

    /// Length in bytes.
    #[must_use]
    #[inline(always)]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether it is of no length.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `len` bytes of it at `offset`.
    #[must_use]
    #[inline(always)]
    pub fn part(&self, offset: u32, len: u32) -> Option<Self> {
        Some(Self { host: self.at(offset, len)?, len })
    }

    #[inline(always)]
    fn at(&self, offset: u32, len: u32) -> Option<*mut u8> {
        (u64::from(offset) + u64::from(len) <= u64::from(self.len)).then(|| self.host.wrapping_add(offset as usize))
    }

    /// Loads a u16 with acquire ordering: for indices and flags that the guest publishes.
    #[inline(always)]
    #[must_use]
    pub fn load_acquire_u16(&self, offset: u32) -> Option<u16> {
        let p = self.at(offset, 2)?.cast::<u16>();
        // SAFETY: as in the loads below.
        p.is_aligned().then(|| unsafe { AtomicU16::from_ptr(p) }.load(Ordering::Acquire))
    }

    /// Stores a u16 with release ordering: for indices and flags that the host publishes.
    #[inline(always)]
    pub fn store_release_u16(&self, offset: u32, value: u16) -> Option<()> {
        let p = self.at(offset, 2)?.cast::<u16>();
        // SAFETY: as in the loads below.
        p.is_aligned().then(|| unsafe { AtomicU16::from_ptr(p) }.store(value, Ordering::Release))
    }

    scalar!(load_u16, store_u16, u16, AtomicU16);
    scalar!(load_u32, store_u32, u32, AtomicU32);
    scalar!(load_u64, store_u64, u64, AtomicU64);

    /// Asks the CPU to fetch the cache line at `offset` for reading.
    #[inline(always)]
    pub fn prefetch(&self, offset: u32) {
        let p = self.host.wrapping_add(offset as usize);
        #[cfg(not(miri))]
        // SAFETY: a hint that faults on no address.
        unsafe {
            core::arch::asm!("prefetcht0 [{}]", in(reg) p, options(nostack, preserves_flags, readonly));
        }
        #[cfg(miri)]
        let _ = p;
    }

    /// Asks the CPU to fetch the cache line at `offset` for writing (PREFETCHW; a NOP on CPUs that lack it).
    #[inline(always)]
    pub fn prefetch_write(&self, offset: u32) {
        let p = self.host.wrapping_add(offset as usize);
        #[cfg(not(miri))]
        // SAFETY: a hint that faults on no address.
        unsafe {
            core::arch::asm!("prefetchw [{}]", in(reg) p, options(nostack, preserves_flags, readonly));
        }
        #[cfg(miri)]
        let _ = p;
    }

    /// Copies from the start of it into `into`. None, and nothing is copied: it is too short.
    #[inline(always)]
    pub fn read(&self, copier: Copier, into: &mut [u8]) -> Option<()> {
        let from = self.at(0, u32::try_from(into.len()).ok()?)?;
        // SAFETY: the source is within the span; the destination is a live slice of the host's own.
        unsafe { copier.copy(into.as_mut_ptr(), from, into.len()) };
        Some(())
    }

    /// Copies `from` to the start of it. None, and nothing is copied: it is too short.
    #[inline(always)]
    pub fn write(&self, copier: Copier, from: &[u8]) -> Option<()> {
        let to = self.at(0, u32::try_from(from.len()).ok()?)?;
        // SAFETY: as in `read`, the other way.
        unsafe { copier.copy(to, from.as_ptr(), from.len()) };
        Some(())
    }

    /// Copies all of `from`, of this guest or another, to `offset` of this. None, and nothing is copied: it is too
    /// short. Ranges that overlap end as some mixture, which is their guest's own loss.
    #[inline(always)]
    pub fn copy_from(&self, copier: Copier, offset: u32, from: &Self) -> Option<()> {
        let to = self.at(offset, from.len)?;
        // SAFETY: both are within their spans.
        unsafe { copier.copy(to, from.host, from.len as usize) };
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use crate::copy::Copier;
    use crate::guest::testing::memory;

    #[test]
    fn nothing_beyond_a_span_is_read_or_written() {
        let m = memory(0x1000, 0x2000);
        assert!(m.span(0x2ff8, 9).is_err());
        let s = m.span(0x2000, 16).unwrap();
        assert_eq!((s.load_u64(8), s.load_u64(9), s.load_u64(16)), (Some(0), None, None));
        assert_eq!(s.store_u16(14, 0x1234), Some(()));
        assert_eq!((s.store_u16(15, 1), s.store_release_u16(16, 1), s.load_acquire_u16(u32::MAX)), (None, None, None));
        assert_eq!(m.read_u16(0x200e), Ok(0x1234));
        assert_eq!(s.read(Copier::PLAIN, &mut [0; 17]), None);
        assert_eq!(s.write(Copier::PLAIN, &[1; 17]), None);
        assert!(s.part(4, 12).is_some() && s.part(5, 12).is_none() && s.part(u32::MAX, 2).is_none());
    }

    #[test]
    fn bytes_go_from_one_span_to_another() {
        let (a, b) = (memory(0, 0x1000), memory(0x10000, 0x1000));
        let (from, to) = (a.span(16, 200).unwrap(), b.span(0x10003, 203).unwrap());
        let bytes: Vec<u8> = (0..200).collect();
        from.write(Copier::PLAIN, &bytes).unwrap();
        assert_eq!(to.copy_from(Copier::PLAIN, 3, &from), Some(()));
        assert_eq!(to.copy_from(Copier::PLAIN, 4, &from), None);
        let mut got = [0; 203];
        to.read(Copier::PLAIN, &mut got).unwrap();
        assert_eq!(&got[3..], &bytes[..]);
    }
}
