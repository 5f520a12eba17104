//! Checked entries of a ring in guest memory, and words beside them.
//!
//! All of them borrow their [`GuestMemory`], as the ranges of [`crate::span`] do. Every value is read or written once, by one
//! load or store.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]
#![allow(unsafe_code, reason = "checked entries of guest memory are used through pointers")]

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::guest::GuestMemory;
use crate::span::Pairs;

impl GuestMemory {
    /// Returns `count` ring entries at `gpa`. Returns `None` if they are not all in one region, are misaligned, or
    /// `count` is not a power of two.
    #[must_use]
    #[inline]
    pub fn slots<T>(&self, gpa: u64, count: u16) -> Option<Slots<'_, T>> {
        let base = self.translate(gpa, u64::from(count).saturating_mul(size_of::<T>() as u64)).ok()?.cast::<T>();
        let good = count.is_power_of_two() && base.is_aligned();
        good.then_some(Slots { base, mask: count.wrapping_sub(1), memory: PhantomData })
    }

    /// Returns the 16-bit word at `gpa`. Returns `None` if it is not in this memory, or misaligned.
    #[must_use]
    pub fn word(&self, gpa: u64) -> Option<Word<'_>> {
        Some(self.words::<2>(gpa, 1)?.first)
    }

    /// Returns `count` 16-bit words, the first at `gpa`, one every `APART` bytes. Returns `None` if they are not in one
    /// region, or misaligned.
    #[must_use]
    pub fn words<const APART: usize>(&self, gpa: u64, count: u16) -> Option<Words<'_, APART>> {
        const { assert!(APART.is_multiple_of(size_of::<u16>())) };
        let bytes =
            u64::from(count.checked_sub(1)?).saturating_mul(APART as u64).saturating_add(size_of::<u16>() as u64);
        let host = self.translate(gpa, bytes).ok()?.cast::<u16>();
        host.is_aligned().then_some(Words { first: Word { host, memory: PhantomData }, count })
    }
}

/// A 16-bit word of a ring: a field beside the entries, or a field of an entry.
#[derive(Clone, Copy, Debug)]
pub struct Word<'m> {
    host: *mut u16,
    memory: PhantomData<&'m GuestMemory>,
}

impl Word<'_> {
    /// Reads it once.
    #[must_use]
    #[inline(always)]
    pub fn load(&self) -> u16 {
        // SAFETY: the word was checked to be the guest's and aligned. Its memory lives as long as `self`. All host
        // access to guest memory is atomic or by the copy routine.
        unsafe { AtomicU16::from_ptr(self.host) }.load(Ordering::Relaxed)
    }

    /// Reads it once. Acquire: later reads see everything that was written before this value.
    #[must_use]
    #[inline(always)]
    pub fn load_acquire(&self) -> u16 {
        // SAFETY: as in `load`.
        unsafe { AtomicU16::from_ptr(self.host) }.load(Ordering::Acquire)
    }

    /// Writes it once. Release: a reader that sees it sees everything that was written before.
    #[inline(always)]
    pub fn store_release(&self, value: u16) {
        // SAFETY: as in `load`.
        unsafe { AtomicU16::from_ptr(self.host) }.store(value, Ordering::Release);
    }

    /// Returns the same word without the borrow, so that it can be stored beside the memory.
    ///
    /// # Safety
    /// As for [`Slots::kept`].
    #[must_use]
    pub unsafe fn kept(self) -> Word<'static> {
        Word { host: self.host, memory: PhantomData }
    }
}

/// 16-bit words, one every `APART` bytes.
#[derive(Clone, Copy, Debug)]
pub struct Words<'m, const APART: usize> {
    first: Word<'m>,
    count: u16,
}

impl<'m, const APART: usize> Words<'m, APART> {
    /// Returns word `index`; `None` if there are fewer.
    #[must_use]
    #[inline(always)]
    pub fn get(&self, index: u16) -> Option<Word<'m>> {
        let host = self.first.host.wrapping_add(usize::from(index).wrapping_mul(const { APART / size_of::<u16>() }));
        (index < self.count).then_some(Word { host, ..self.first })
    }
}

// SAFETY: as for `Slots`.
unsafe impl Send for Word<'_> {}
// SAFETY: as for `Slots`.
unsafe impl Sync for Word<'_> {}

impl<const APART: usize> Words<'_, APART> {
    /// Returns the same words without the borrow, so that they can be stored beside the memory.
    ///
    /// # Safety
    /// As for [`Slots::kept`].
    #[must_use]
    pub unsafe fn kept(self) -> Words<'static, APART> {
        // SAFETY: the caller's promise.
        Words { first: unsafe { self.first.kept() }, count: self.count }
    }
}

/// The entries of a ring. Their number is a power of two.
#[derive(Clone, Copy, Debug)]
pub struct Slots<'m, T> {
    base: *mut T,
    mask: u16,
    memory: PhantomData<&'m GuestMemory>,
}

impl<'m, T> Slots<'m, T> {
    /// Returns at most `count` entries from entry `index` on, up to the end of the ring. `index` wraps around the ring.
    #[must_use]
    #[inline(always)]
    pub fn row(&self, index: u16, count: usize) -> Row<'m, T> {
        let at = usize::from(index & self.mask);
        let len = count.min(usize::from(self.mask).wrapping_add(1).wrapping_sub(at));
        Row { base: self.base.wrapping_add(at), len, memory: PhantomData }
    }

    /// Returns entry `index`, which wraps around the ring, as a row.
    #[must_use]
    #[inline(always)]
    pub fn entry(&self, index: u16) -> Row<'m, T> {
        // A ring has at least one entry.
        Row { base: self.base.wrapping_add(usize::from(index & self.mask)), len: 1, memory: PhantomData }
    }
}

// SAFETY: as for `GuestMemory`. The pointer stands for memory that any CPU may use at any time. All accesses are
// atomic.
unsafe impl<T> Send for Slots<'_, T> {}
// SAFETY: as for Send.
unsafe impl<T> Sync for Slots<'_, T> {}

impl<T> Slots<'_, T> {
    /// Returns the same entries without the borrow, so that they can be stored beside the memory.
    ///
    /// # Safety
    /// The result must not be used after the last clone of its [`GuestMemory`] is gone.
    #[must_use]
    pub unsafe fn kept(self) -> Slots<'static, T> {
        Slots { base: self.base, mask: self.mask, memory: PhantomData }
    }
}

impl Slots<'_, [u32; 2]> {
    /// Writes entry `index`, which wraps around the ring, by one store.
    #[inline(always)]
    pub fn set(&self, index: u16, [low, high]: [u32; 2]) {
        let at = self.base.wrapping_add(usize::from(index & self.mask));
        // SAFETY: it is one of the entries that were checked to be the guest's.
        unsafe { store_entry(at, low, high) };
    }
}

/// Writes an entry of two numbers by one store.
///
/// # Safety
/// It is an entry that was checked to be the guest's, and aligned to four bytes.
#[inline(always)]
unsafe fn store_entry(at: *mut [u32; 2], low: u32, high: u32) {
    #[cfg(not(miri))]
    // SAFETY: the caller's promise. It is assembly because an entry is aligned to four bytes only.
    unsafe {
        let both = u64::from(low) | u64::from(high) << 32;
        core::arch::asm!("mov qword ptr [{}], {}", in(reg) at, in(reg) both, options(nostack, preserves_flags));
    }
    #[cfg(miri)]
    {
        let half = at.cast::<u32>();
        // SAFETY: the caller's promise; both halves are in the entry. All host access to guest memory is atomic or by the
        // copy routine.
        let (at, after) = unsafe { (AtomicU32::from_ptr(half), AtomicU32::from_ptr(half.add(1))) };
        at.store(low, Ordering::Relaxed);
        after.store(high, Ordering::Relaxed);
    }
}

impl<'m> Slots<'m, [u64; 2]> {
    /// All entries.
    #[must_use]
    #[inline(always)]
    pub fn pairs(&self) -> Pairs<'m> {
        Pairs { host: self.base.cast(), count: u32::from(self.mask) + 1, memory: PhantomData }
    }

    /// Reads the first half of an entry and the two quarters after it, each once. Returns `None` if there is no such
    /// entry. Here `index` does not wrap.
    #[must_use]
    #[inline(always)]
    pub fn get(&self, index: u16) -> Option<(u64, u32, u32)> {
        if index > self.mask {
            return None;
        }
        let at = self.base.wrapping_add(usize::from(index));
        let (first, second) = (at.cast::<u64>(), at.cast::<u32>().wrapping_add(2));
        // SAFETY: it is one of the entries that were checked to be the guest's and aligned. All three numbers are in
        // the entry. All host access to guest memory is atomic or by the copy routine.
        let (first, low, high) =
            unsafe { (AtomicU64::from_ptr(first), AtomicU32::from_ptr(second), AtomicU32::from_ptr(second.add(1))) };
        Some((first.load(Ordering::Relaxed), low.load(Ordering::Relaxed), high.load(Ordering::Relaxed)))
    }
}

/// Consecutive entries of a ring.
#[derive(Clone, Copy, Debug)]
pub struct Row<'m, T> {
    base: *mut T,
    len: usize,
    memory: PhantomData<&'m GuestMemory>,
}

impl<T> Row<'_, T> {
    /// The number of entries.
    #[must_use]
    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Prefetches the cache lines of the first `count` entries for writing, each line once. A second prefetch of a line
    /// costs more than the first gains. `count` may be larger than the row.
    #[inline(always)]
    pub fn prefetch_to_write(&self, count: usize) {
        const { assert!(LINE.is_multiple_of(size_of::<T>())) };
        let bytes = count.min(self.len).wrapping_mul(size_of::<T>());
        let lines = (self.base.addr() % LINE).wrapping_add(bytes).div_ceil(LINE);
        for line in 0..lines {
            prefetch_to_write(self.base.cast::<u8>().wrapping_add(line.wrapping_mul(LINE)));
        }
    }
}

/// Prefetches the cache line of a byte for writing.
#[inline(always)]
fn prefetch_to_write(at: *mut u8) {
    #[cfg(miri)]
    let _ = at;
    #[cfg(not(miri))]
    // SAFETY: PREFETCHW is a hint. It neither faults nor changes anything, at any address.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

impl Row<'_, u16> {
    /// Reads an entry once.
    #[must_use]
    #[inline(always)]
    pub fn get(&self, i: usize) -> Option<u16> {
        // SAFETY: it is one of the entries that were checked to be the guest's and aligned. All host access to guest
        // memory is atomic or by the copy routine.
        (i < self.len).then(|| unsafe { AtomicU16::from_ptr(self.base.add(i)) }.load(Ordering::Relaxed))
    }
}

impl Row<'_, [u64; 2]> {
    /// Reads the second half of an entry, and then the first, each once. Acquire: what is read after the second half is
    /// at least as new as it.
    #[must_use]
    #[inline(always)]
    pub fn get(&self, i: usize) -> Option<[u64; 2]> {
        if i >= self.len {
            return None;
        }
        let first = self.base.wrapping_add(i).cast::<u64>();
        // SAFETY: as for entries of 16 bits; both halves are in the entry.
        let (first, second) = unsafe { (AtomicU64::from_ptr(first), AtomicU64::from_ptr(first.add(1))) };
        let second = second.load(Ordering::Acquire);
        Some([first.load(Ordering::Relaxed), second])
    }

    /// Writes the second half of an entry once. No effect beyond the end.
    #[inline(always)]
    pub fn set_second(&self, i: usize, value: u64) {
        if i >= self.len {
            return;
        }
        let second = self.base.wrapping_add(i).cast::<u64>().wrapping_add(1);
        // SAFETY: as for entries of 16 bits; the half is in the entry.
        unsafe { AtomicU64::from_ptr(second) }.store(value, Ordering::Relaxed);
    }
}

impl Row<'_, [u32; 2]> {
    /// Writes an entry by one store. No effect beyond the end.
    #[inline(always)]
    pub fn set(&self, i: usize, [low, high]: [u32; 2]) {
        if i >= self.len {
            return;
        }
        #[cfg(not(miri))]
        // SAFETY: it is one of the entries that were checked to be the guest's. It is assembly because an entry is
        // aligned to four bytes only.
        unsafe {
            let both = u64::from(low) | u64::from(high) << 32;
            core::arch::asm!("mov qword ptr [{} + 8 * {}], {}", in(reg) self.base, in(reg) i, in(reg) both,
                options(nostack, preserves_flags));
        }
        #[cfg(miri)]
        {
            let half = self.base.wrapping_add(i).cast::<u32>();
            // SAFETY: as for entries of 16 bits; both halves are in the entry.
            let (at, after) = unsafe { (AtomicU32::from_ptr(half), AtomicU32::from_ptr(half.add(1))) };
            at.store(low, Ordering::Relaxed);
            after.store(high, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::guest::testing::memory;

    #[test]
    fn the_entries_of_a_ring_are_the_guests_and_end_where_it_does() {
        let m = memory(0, 0x1000);
        m.write_u16(6, 0xabcd).unwrap();
        m.write_u64(0x10c, 0x2_0000_0001).unwrap();
        let table = m.slots::<[u64; 2]>(0x100, 2).unwrap();
        assert_eq!((table.get(0), table.get(1), table.get(2)), (Some((0, 0, 1)), Some((2, 0, 0)), None));
        let row = m.slots::<[u64; 2]>(0x100, 2).unwrap().row(3, 9);
        assert_eq!((row.len(), row.get(0), row.get(1)), (1, Some([2, 0]), None));
        (0..2).for_each(|i| row.set_second(i, 0x5555_6666_7777_8888));
        assert_eq!((row.get(0), m.read_u64(0x118)), (Some([2, 0x5555_6666_7777_8888]), Ok(0x5555_6666_7777_8888)));
        assert_eq!(m.read_u64(0x128), Ok(0), "beyond the end");
        let ring = m.slots::<u16>(0, 4).unwrap();
        let row = ring.row(0xfffe, 9);
        assert_eq!((row.len(), row.get(0), row.get(1), row.get(2)), (2, Some(0), Some(0xabcd), None));
        assert_eq!((ring.row(4, 3).len(), ring.row(7, 0).is_empty()), (3, true));
        assert_eq!((ring.entry(7).len(), ring.entry(7).get(0), ring.entry(7).get(1)), (1, Some(0xabcd), None));
        let ring = m.slots::<[u32; 2]>(0x204, 4).unwrap();
        let used = ring.row(2, 2);
        (0..3).for_each(|i| used.set(i, [1, 2]));
        assert_eq!(
            (m.read_u64(0x20c), m.read_u64(0x214), m.read_u64(0x21c)),
            (Ok(0), Ok(0x2_0000_0001), Ok(0x2_0000_0001))
        );
        assert_eq!(m.read_u64(0x224), Ok(0), "beyond the end");
        ring.set(0xfffd, [3, 4]);
        assert_eq!((m.read_u64(0x204), m.read_u64(0x20c)), (Ok(0), Ok(0x4_0000_0003)));
        for (gpa, count) in [(1, 4), (0, 3), (0, 0), (0xffe, 2), (u64::MAX - 1, 2)] {
            assert!(m.slots::<u16>(gpa, count).is_none(), "{count} entries at {gpa:#x}");
        }
    }
}
