//! Guest memory as the host uses it. It has a few regions, so a guest-physical address becomes a host address in
//! constant time.
//!
//! [`GuestMemory`] is the only way from a guest-physical address to bytes. Single accesses are checked by
//! [`GuestMemory::translate`]. The fast path checks whole rings and buffers once, in [`span`](crate::span), and then
//! accesses them there. A dirty log would hook into the writing methods of these two files.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]
#![allow(unsafe_code, reason = "turns checked guest addresses into raw accesses; every other crate goes through it")]

use core::num::NonZero;
use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::copy::Copier;
use crate::frames::PAGE;

/// Most regions of a guest. A guest here has one below the PCI hole and one above 4 GiB. A vhost-user front end may
/// have eight.
pub const MAX_REGIONS: usize = 8;

/// A guest-physical range that is not memory of that guest, or is misaligned for the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadAddress {
    /// First guest-physical address of the refused access.
    pub gpa: u64,
    /// Length of the refused access in bytes.
    pub len: u64,
}

impl core::fmt::Display for BadAddress {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} bytes at guest address {:#x} are not that guest's memory", self.len, self.gpa)
    }
}

/// A run of guest-physical addresses backed by one run of host memory.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Guest-physical address of its first byte, 4 KiB aligned.
    pub gpa: u64,
    /// Length in bytes, a multiple of 4 KiB.
    pub size: u64,
    /// Host address of its first byte, mapped writable. The kernel maps all memory at its physical address, so in the
    /// kernel this is also the host-physical address.
    pub host: *mut u8,
}

impl Region {
    /// Guest-physical address after its last byte. [`GuestMemory::add`] takes no region whose end wraps.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.gpa.saturating_add(self.size)
    }
}

/// The memory of one guest. Cloning it copies the list of regions, not the memory.
#[derive(Clone, Debug, Default)]
pub struct GuestMemory {
    regions: heapless::Vec<Region, MAX_REGIONS>,
    copier: Copier,
}

// SAFETY: a region's pointer stands for memory that any CPU may use at any time. Every access below is atomic,
// volatile, or through `copy`, which tolerates concurrent writers.
unsafe impl Send for GuestMemory {}
// SAFETY: as for Send.
unsafe impl Sync for GuestMemory {}

macro_rules! scalar {
    ($read:ident, $write:ident, $ty:ty, $atomic:ty) => {
        /// Reads a little-endian scalar once: with a relaxed atomic load if aligned, otherwise with a bytewise copy.
        ///
        /// # Errors
        /// The address is not this guest's memory.
        #[inline]
        pub fn $read(&self, gpa: u64) -> Result<$ty, BadAddress> {
            let p = self.translate(gpa, size_of::<$ty>() as u64)?;
            if p.cast::<$ty>().is_aligned() {
                // SAFETY: `translate` checked the range. The pointer is aligned. All host access to guest memory is
                // atomic or bytewise.
                Ok(unsafe { <$atomic>::from_ptr(p.cast()) }.load(Ordering::Relaxed))
            } else {
                let mut b = [0; size_of::<$ty>()];
                self.read(gpa, &mut b)?;
                Ok(<$ty>::from_le_bytes(b))
            }
        }

        /// Writes a little-endian scalar: with a relaxed atomic store if aligned, otherwise with a bytewise copy.
        ///
        /// # Errors
        /// The address is not this guest's memory.
        #[inline]
        pub fn $write(&self, gpa: u64, value: $ty) -> Result<(), BadAddress> {
            let p = self.translate(gpa, size_of::<$ty>() as u64)?;
            if p.cast::<$ty>().is_aligned() {
                // SAFETY: as in the read above.
                unsafe { <$atomic>::from_ptr(p.cast()) }.store(value, Ordering::Relaxed);
                Ok(())
            } else {
                self.write(gpa, &value.to_le_bytes())
            }
        }
    };
}

impl GuestMemory {
    /// No memory at all.
    #[must_use]
    pub const fn new() -> Self {
        Self { regions: heapless::Vec::new(), copier: Copier::PLAIN }
    }

    /// Returns the same memory with another routine for [`GuestMemory::copy_from`], for cores that may use a wider one.
    #[must_use]
    pub fn copied_by(self, copier: Copier) -> Self {
        Self { copier, ..self }
    }

    /// The routine that [`GuestMemory::copy_from`] uses.
    #[must_use]
    #[inline]
    pub const fn copier(&self) -> Copier {
        self.copier
    }

    /// Adds a region.
    ///
    /// # Errors
    /// Returns the region if it overlaps another, is empty, wraps, or is not 4 KiB aligned, or if there are
    /// [`MAX_REGIONS`] already.
    ///
    /// # Safety
    /// `region.host` must stay mapped, readable and writable for `region.size` bytes, as long as any clone of this
    /// value lives. No Rust reference to it may be formed.
    pub unsafe fn add(&mut self, region: Region) -> Result<(), Region> {
        let Some(end) = region.gpa.checked_add(region.size) else { return Err(region) };
        let overlaps = self.regions.iter().any(|r| region.gpa < r.end() && r.gpa < end);
        if region.size == 0 || (region.gpa | region.size) & 0xfff != 0 || overlaps {
            return Err(region);
        }
        self.regions.push(region)
    }

    /// The regions, in the order of their addition.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Checks that `len` bytes at `gpa` are within one region. Returns the host's pointer to them.
    ///
    /// # Errors
    /// Some byte is not this guest's memory, or the range spans two regions or wraps.
    #[inline]
    pub fn translate(&self, gpa: u64, len: u64) -> Result<*mut u8, BadAddress> {
        for r in &self.regions {
            let offset = gpa.wrapping_sub(r.gpa);
            if offset < r.size && len <= r.size.wrapping_sub(offset) {
                return Ok(r.host.wrapping_add(offset as usize));
            }
        }
        Err(BadAddress { gpa, len })
    }

    /// Copies out of guest memory.
    ///
    /// # Errors
    /// Some byte is not this guest's memory; nothing is copied then.
    #[inline]
    pub fn read(&self, gpa: u64, into: &mut [u8]) -> Result<(), BadAddress> {
        let p = self.translate(gpa, into.len() as u64)?;
        // SAFETY: `translate` checked the source. The destination is a live slice of the host's own memory, which no
        // guest region overlaps.
        unsafe { crate::copy::copy(into.as_mut_ptr(), p, into.len()) };
        Ok(())
    }

    /// Copies into guest memory.
    ///
    /// # Errors
    /// Some byte is not this guest's memory; nothing is copied then.
    #[inline]
    pub fn write(&self, gpa: u64, from: &[u8]) -> Result<(), BadAddress> {
        let p = self.translate(gpa, from.len() as u64)?;
        // SAFETY: as in `read`, in the other direction.
        unsafe { crate::copy::copy(p, from.as_ptr(), from.len()) };
        Ok(())
    }

    /// Writes one byte.
    ///
    /// # Errors
    /// It is not this guest's memory.
    #[inline]
    pub fn write_u8(&self, gpa: u64, value: u8) -> Result<(), BadAddress> {
        let p = self.translate(gpa, 1)?;
        // SAFETY: `translate` checked the byte. All host access to guest memory is atomic or by the copy routine.
        unsafe { AtomicU8::from_ptr(p) }.store(value, Ordering::Relaxed);
        Ok(())
    }

    /// Fills guest memory with zeroes.
    ///
    /// # Errors
    /// Some byte is not this guest's memory; nothing is written then.
    pub fn zero(&self, gpa: u64, len: u64) -> Result<(), BadAddress> {
        let p = self.translate(gpa, len)?;
        // SAFETY: `translate` checked the range; nobody holds a reference to guest memory.
        unsafe { core::ptr::write_bytes(p, 0, len as usize) };
        Ok(())
    }

    /// Fills one of `parts` parts of the guest's memory with zeroes. The parts from 0 to `parts - 1` are all of it, and no two
    /// of them overlap. So several cores can do this at the same time. Pages with an address in `spared`, ranges of the
    /// machine's addresses, are not touched.
    pub fn zero_part(&self, part: u64, parts: u64, spared: &[Range<u64>]) {
        for region in self.regions() {
            // A region is whole pages, so the parts can be too.
            let pages = u128::from(region.size / PAGE);
            let divisor = NonZero::<u128>::from(NonZero::new(parts).unwrap_or(NonZero::<u64>::MIN));
            let bound = |n: u64| ((pages.saturating_mul(u128::from(n)) / divisor) as u64).saturating_mul(PAGE);
            let (start, end) = (bound(part.min(parts)), bound(part.saturating_add(1).min(parts)));
            let first = region.host.expose_provenance() as u64;
            let is_spared = |page: u64| {
                let page = first.saturating_add(page)..first.saturating_add(page).saturating_add(PAGE);
                spared.iter().any(|range| range.start < page.end && page.start < range.end)
            };
            let mut from = start;
            while from < end {
                // Without a spared page this is one step.
                let to = if spared.is_empty() {
                    end
                } else {
                    (from..end).step_by(PAGE as usize).find(|&p| is_spared(p)).unwrap_or(end)
                };
                // The range is in the region.
                let _ = self.zero(region.gpa.saturating_add(from), to.saturating_sub(from));
                from = to.saturating_add(PAGE);
            }
        }
    }

    /// Copies `len` bytes from `source` into this memory. Both may be one guest's memory if the ranges do not overlap.
    ///
    /// # Errors
    /// One of the ranges is not its guest's memory, or the two overlap; nothing is copied then.
    #[inline]
    pub fn copy_from(&self, to: u64, source: &GuestMemory, from: u64, len: u64) -> Result<(), BadAddress> {
        let src = source.translate(from, len)?;
        let dst = self.translate(to, len)?;
        if (src as usize).abs_diff(dst as usize) < len as usize {
            return Err(BadAddress { gpa: to, len });
        }
        // SAFETY: both ranges were checked and do not overlap. The copier's maker vouched for the cores that use it.
        unsafe { self.copier.copy(dst, src, len as usize) };
        Ok(())
    }

    /// Replaces an aligned u32 by `new` if it is still `old`. Returns whether it was. For the accessed and dirty bits
    /// of the guest's page tables.
    ///
    /// # Errors
    /// Not this guest's memory, or not 4-byte aligned.
    pub fn compare_exchange_u32(&self, gpa: u64, old: u32, new: u32) -> Result<bool, BadAddress> {
        let p = self.translate(gpa, 4)?.cast::<u32>();
        if !p.is_aligned() {
            return Err(BadAddress { gpa, len: 4 });
        }
        // SAFETY: the pointer was checked above and is aligned. All access to guest memory is atomic or bytewise.
        Ok(unsafe { AtomicU32::from_ptr(p) }.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok())
    }

    /// Reads a byte once.
    ///
    /// # Errors
    /// The address is not this guest's memory.
    #[inline]
    pub fn read_u8(&self, gpa: u64) -> Result<u8, BadAddress> {
        let mut b = [0];
        self.read(gpa, &mut b)?;
        Ok(b[0])
    }

    scalar!(read_u16, write_u16, u16, AtomicU16);
    scalar!(read_u32, write_u32, u32, AtomicU32);
    scalar!(read_u64, write_u64, u64, AtomicU64);
}

/// Host memory in place of a guest's, for tests on the development machine.
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "for tests")]
pub mod testing {
    use super::{GuestMemory, Region};

    /// A guest memory with one region of `size` bytes at `gpa`. The host memory is leaked, because tests are short.
    #[must_use]
    pub fn memory(gpa: u64, size: usize) -> GuestMemory {
        regions(&[(gpa, size)])
    }

    /// A guest memory with these regions: address and bytes of each. The host memory is leaked.
    #[must_use]
    pub fn regions(regions: &[(u64, usize)]) -> GuestMemory {
        extern crate alloc;
        let mut memory = GuestMemory::new();
        for &(gpa, size) in regions {
            let words = alloc::vec![0u128; size.div_ceil(16) + 256].leak();
            let start = words.as_mut_ptr().cast::<u8>();
            let host = start.wrapping_add(start.align_offset(4096));
            // SAFETY: the host memory is leaked, 4 KiB aligned and long enough, and nobody else has a reference to it.
            unsafe { memory.add(Region { gpa, size: size as u64, host }) }
                .expect("aligned regions that do not overlap");
        }
        memory
    }
}

#[cfg(test)]
mod tests {
    use super::{BadAddress, GuestMemory, Region, testing::memory};

    #[test]
    fn an_access_that_leaves_the_region_by_one_byte_is_refused() {
        let m = memory(0x1000, 0x2000);
        assert!(m.write(0x2ff8, &[1; 8]).is_ok());
        assert_eq!(m.write(0x2ff9, &[1; 8]), Err(BadAddress { gpa: 0x2ff9, len: 8 }));
        assert_eq!(m.read_u16(0xfff), Err(BadAddress { gpa: 0xfff, len: 2 }));
        assert_eq!(m.translate(u64::MAX, 2), Err(BadAddress { gpa: u64::MAX, len: 2 }));
        assert_eq!(m.translate(0x1000, u64::MAX), Err(BadAddress { gpa: 0x1000, len: u64::MAX }));
    }

    #[test]
    fn scalars_are_little_endian_aligned_or_not() {
        let m = memory(0, 0x1000);
        for gpa in [8, 9, 11] {
            m.write_u32(gpa, 0x1234_5678).unwrap();
            assert_eq!(m.read_u32(gpa), Ok(0x1234_5678));
            assert_eq!(m.read_u8(gpa), Ok(0x78));
        }
        assert!(m.word(9).is_none(), "an odd ring index address is refused");
    }

    #[test]
    fn the_parts_are_all_of_the_memory_and_each_page_is_in_one() {
        for (pages, parts) in [(1, 1), (7, 3), (3, 7), (16, 4), (5, 0)] {
            let m = memory(0x1000, pages * 0x1000);
            let mut zeroed = 0;
            for part in 0..parts {
                let before: Vec<u64> = (0..pages as u64).map(|page| 0x1000 + page * 0x1000).collect();
                before.iter().for_each(|&gpa| m.write(gpa, &[1; 0x1000]).unwrap());
                m.zero_part(part, parts, &[]);
                // Whole pages only.
                for gpa in before {
                    let (first, last) = (m.read_u8(gpa).unwrap(), m.read_u8(gpa + 0xfff).unwrap());
                    assert_eq!(first, last);
                    zeroed += usize::from(first == 0);
                }
            }
            assert_eq!(zeroed, if parts == 0 { 0 } else { pages }, "{pages} pages in {parts} parts");
        }
    }

    #[test]
    fn spared_pages_are_not_touched() {
        let m = memory(0x1000, 8 * 0x1000);
        let host = m.regions()[0].host.expose_provenance() as u64;
        let page = |n: u64| host + n * 0x1000;
        let spared = [page(0)..page(1), page(3) + 0x40..page(3) + 0x41, page(5)..page(7), 0..0x1000];
        (0..8).for_each(|n| m.write(0x1000 + n * 0x1000, &[1; 0x1000]).unwrap());
        (0..3).for_each(|part| m.zero_part(part, 3, &spared));
        let left: Vec<u64> = (0..8).filter(|n| m.read_u8(0x1000 + n * 0x1000) == Ok(1)).collect();
        assert_eq!(left, [0, 3, 5, 6]);
        for n in 0..8 {
            let whole = m.read_u8(0x1000 + n * 0x1000) == m.read_u8(0x1fff + n * 0x1000);
            assert!(whole, "page {n}");
        }
        m.zero_part(0, 1, core::slice::from_ref(&(0..u64::MAX)));
        assert_eq!(m.read_u8(0x1000), Ok(1));
    }

    #[test]
    fn overlapping_or_misaligned_regions_are_refused() {
        let mut m = memory(0x10000, 0x4000);
        let host = m.regions()[0].host;
        for (gpa, size) in
            [(0x13000, 0x1000), (0xf000, 0x2000), (0x800, 0x1000), (0x40000, 0), (u64::MAX - 0xfff, 0x2000)]
        {
            // SAFETY: the regions are refused, or back onto the leaked test memory.
            assert!(unsafe { m.add(Region { gpa, size, host }) }.is_err(), "{gpa:#x}+{size:#x}");
        }
    }

    #[test]
    fn a_copy_onto_itself_is_refused() {
        let m = memory(0, 0x4000);
        let other = GuestMemory::new();
        assert!(m.copy_from(0x100, &m, 0x180, 0x100).is_err());
        assert!(m.copy_from(0x100, &m, 0x200, 0x100).is_ok());
        assert!(m.copy_from(0x100, &other, 0x200, 0x100).is_err());
    }
}
