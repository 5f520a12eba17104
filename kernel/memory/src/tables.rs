//! Four-level translation tables in three formats: the host's own, nested tables (NPT) and EPT.
//!
//! SDM vol. 3A 4.5 (host), APM vol. 2 15.25 (NPT: the host's format with U set everywhere), SDM vol. 3C 29.3.2 (EPT).
//! One builder serves all three. It uses the largest page that alignment and length allow.

#![allow(unsafe_code, reason = "page tables are built through pointers to frames that nobody else uses yet")]

use crate::frames::OutOfMemory;

/// What an access through a mapping may do, and how it is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Stores are allowed.
    pub write: bool,
    /// Instruction fetches are allowed.
    pub execute: bool,
    /// Not cached (UC), for device registers.
    pub uncached: bool,
}

impl Access {
    /// Read only.
    pub const R: Self = Self { write: false, execute: false, uncached: false };
    /// Read and write.
    pub const RW: Self = Self { write: true, ..Self::R };
    /// Read and execute.
    pub const RX: Self = Self { execute: true, ..Self::R };
    /// Read, write and execute. A guest has this access to its own memory.
    pub const RWX: Self = Self { write: true, ..Self::RX };
    /// Device registers.
    pub const DEVICE: Self = Self { uncached: true, ..Self::RW };
}

/// How entries are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The host's own tables, without global pages.
    Host,
    /// SVM nested tables. A walk counts as a user access, so U is set.
    Npt,
    /// VT-x extended page tables. The leaf holds the memory type.
    Ept,
}

pub(crate) const PRESENT: u64 = 1;
pub(crate) const WRITE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const PCD_PWT: u64 = 1 << 4 | 1 << 3;
pub(crate) const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
const EPT_EXECUTE: u64 = 1 << 2;
const EPT_WRITE_BACK: u64 = 6 << 3;
pub(crate) const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

impl Format {
    fn table(self) -> u64 {
        match self {
            Self::Host => PRESENT | WRITE,
            Self::Npt => PRESENT | WRITE | USER,
            Self::Ept => PRESENT | WRITE | EPT_EXECUTE,
        }
    }

    fn leaf(self, access: Access, level: u32) -> u64 {
        let mut e = PRESENT | if access.write { WRITE } else { 0 } | if level > 0 { LARGE } else { 0 };
        if self == Self::Ept {
            e |= if access.execute { EPT_EXECUTE } else { 0 };
            e |= if access.uncached { 0 } else { EPT_WRITE_BACK };
        } else {
            e |= if access.execute { 0 } else { NO_EXECUTE };
            e |= if access.uncached { PCD_PWT } else { 0 };
            e |= if self == Self::Npt { USER } else { 0 };
        }
        e
    }
}

/// Where tables get their frames from.
pub trait FrameSource {
    /// Returns a frame that nobody else uses: 4 KiB, 4 KiB aligned, addressable by the host at its physical address.
    ///
    /// # Errors
    /// No memory left.
    fn frame(&mut self) -> Result<u64, OutOfMemory>;
}

impl FrameSource for crate::frames::Frames {
    fn frame(&mut self) -> Result<u64, OutOfMemory> {
        self.host(4096, 4096)
    }
}

/// Why a range could not be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// No frame for a table.
    OutOfMemory(OutOfMemory),
    /// Something is mapped at this address already.
    Occupied(u64),
    /// Address or length is not a multiple of 4 KiB, or beyond 48 bits.
    Misaligned(u64),
}

impl core::fmt::Display for MapError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::OutOfMemory(e) => e.fmt(f),
            Self::Occupied(at) => write!(f, "{at:#x} is mapped already"),
            Self::Misaligned(at) => write!(f, "{at:#x} is not a page boundary of a 48-bit address space"),
        }
    }
}

/// A tree of tables.
#[derive(Debug)]
pub struct Tables {
    root: u64,
    format: Format,
    /// Largest leaf level: 1 for 2 MiB pages, 2 for 1 GiB pages.
    largest: u32,
    /// Only pages of 4 KiB are executable.
    small_executable: bool,
}

impl Tables {
    /// An empty tree. `gigabyte_pages`: whether the CPU has them for this format.
    ///
    /// # Errors
    /// No frame for the root.
    pub fn new(format: Format, gigabyte_pages: bool, frames: &mut impl FrameSource) -> Result<Self, OutOfMemory> {
        Ok(Self { root: zeroed(frames)?, format, largest: if gigabyte_pages { 2 } else { 1 }, small_executable: false })
    }

    /// The tree that has its root at this physical address, with pages of up to 2 MiB.
    ///
    /// # Safety
    /// There are tables of this format. Each of them is addressable by the host at its physical address. As long as the value
    /// is used, only it changes them.
    #[must_use]
    pub const unsafe fn existing(format: Format, root: u64) -> Self {
        Self { root, format, largest: 1, small_executable: false }
    }

    /// From now on larger pages are mapped without the right to execute: see [`crate::split`].
    pub fn set_small_executable(&mut self) {
        self.small_executable = true;
    }

    /// A leaf for pages of 4 KiB with the right to execute.
    pub(crate) fn executable(&self, leaf: u64) -> u64 {
        match self.format {
            Format::Ept => leaf | EPT_EXECUTE,
            Format::Host | Format::Npt => leaf & !NO_EXECUTE,
        }
    }

    /// Physical address of the root: CR3, nCR3, or the address part of an EPTP.
    #[must_use]
    pub fn root(&self) -> u64 {
        self.root
    }

    /// The entry that leads to a table.
    pub(crate) fn table_entry(&self, table: u64) -> u64 {
        table | self.format.table()
    }

    /// Maps `len` bytes at `from` to `to`.
    ///
    /// # Errors
    /// See [`MapError`]. What was mapped before the error stays mapped.
    pub fn map(
        &mut self,
        from: u64,
        to: u64,
        len: u64,
        access: Access,
        frames: &mut impl FrameSource,
    ) -> Result<(), MapError> {
        if (from | to | len) & 0xfff != 0 {
            return Err(MapError::Misaligned(from | to | len));
        }
        let mut done = 0;
        while done < len {
            let (at, target, left) = (from.wrapping_add(done), to + done, len - done);
            let level = (0..=self.largest)
                .rev()
                .find(|&l| {
                    let size = 1u64 << (12 + 9 * l);
                    (at | target) & (size - 1) == 0 && size <= left
                })
                .ok_or(MapError::Misaligned(at))?;
            let execute = access.execute && (level == 0 || !self.small_executable);
            self.put(at, target | self.format.leaf(Access { execute, ..access }, level), level, frames)?;
            done += 1u64 << (12 + 9 * level);
        }
        Ok(())
    }

    fn put(&mut self, at: u64, leaf: u64, level: u32, frames: &mut impl FrameSource) -> Result<(), MapError> {
        let mut table = self.root;
        for l in (level + 1..=3).rev() {
            let entry = entry(table, at, l);
            // SAFETY: `entry` points into a table of this tree, which only `self` changes.
            let mut e = unsafe { entry.read_volatile() };
            if e & PRESENT == 0 {
                e = zeroed(frames).map_err(MapError::OutOfMemory)? | self.format.table();
                // SAFETY: as above.
                unsafe { entry.write_volatile(e) };
            } else if e & LARGE != 0 {
                return Err(MapError::Occupied(at));
            }
            table = e & ADDRESS;
        }
        let entry = entry(table, at, level);
        // SAFETY: as above.
        unsafe {
            if entry.read_volatile() & PRESENT != 0 {
                return Err(MapError::Occupied(at));
            }
            entry.write_volatile(leaf);
        }
        Ok(())
    }

    /// Changes the access of one page that is mapped as a 4 KiB page. The caller flushes the TLB.
    ///
    /// # Errors
    /// [`MapError::Misaligned`]: the address is not mapped, or is mapped by a larger page.
    pub fn protect(&mut self, at: u64, access: Access) -> Result<(), MapError> {
        let mut table = self.root;
        for l in (1..=3).rev() {
            // SAFETY: as in `put`.
            let e = unsafe { entry(table, at, l).read_volatile() };
            if e & PRESENT == 0 || e & LARGE != 0 {
                return Err(MapError::Misaligned(at));
            }
            table = e & ADDRESS;
        }
        let entry = entry(table, at, 0);
        // SAFETY: as in `put`.
        unsafe {
            let e = entry.read_volatile();
            if e & PRESENT == 0 {
                return Err(MapError::Misaligned(at));
            }
            entry.write_volatile(e & ADDRESS | self.format.leaf(access, 0));
        }
        Ok(())
    }

    /// Removes the mappings of `len` bytes at `at`. The tables between root and leaves stay, so the same range can be mapped
    /// again without a frame. The caller flushes the TLB.
    ///
    /// # Errors
    /// [`MapError::Misaligned`]: something of it is not mapped, or is mapped by a page that is not all in the range. What
    /// was removed before the error stays removed.
    pub fn unmap(&mut self, at: u64, len: u64) -> Result<(), MapError> {
        let mut done = 0;
        while done < len {
            let from = at.wrapping_add(done);
            let (place, level, _) = self.leaf(from).ok_or(MapError::Misaligned(from))?;
            let size = 1u64 << (12 + 9 * level);
            if from & (size - 1) != 0 || size > len - done {
                return Err(MapError::Misaligned(from));
            }
            // SAFETY: `place` is an entry of this tree, which only `self` changes.
            unsafe { place.write_volatile(0) };
            done += size;
        }
        Ok(())
    }

    /// Finds the leaf that translates `at`. Returns the target address of that byte, the page size and the raw entry.
    #[must_use]
    pub fn lookup(&self, at: u64) -> Option<(u64, u64, u64)> {
        let mut table = self.root;
        for l in (0..=3).rev() {
            // SAFETY: as in `put`.
            let e = unsafe { entry(table, at, l).read_volatile() };
            if e & PRESENT == 0 {
                return None;
            }
            if l == 0 || e & LARGE != 0 {
                let size = 1u64 << (12 + 9 * l);
                return Some((e & ADDRESS & !(size - 1) | at & (size - 1), size, e));
            }
            table = e & ADDRESS;
        }
        None
    }
}

pub(crate) fn entry(table: u64, at: u64, level: u32) -> *mut u64 {
    let index = at >> (12 + 9 * level) & 0x1ff;
    core::ptr::with_exposed_provenance_mut((table + index * 8) as usize)
}

fn zeroed(frames: &mut impl FrameSource) -> Result<u64, OutOfMemory> {
    let frame = frames.frame()?;
    // SAFETY: nobody else uses the frame's 4 KiB, and they are addressable at the physical address (FrameSource).
    unsafe { core::ptr::with_exposed_provenance_mut::<u8>(frame as usize).write_bytes(0, 4096) };
    Ok(frame)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Frames for tests, full of ones, never given back.
    pub(crate) struct Leaked;
    impl FrameSource for Leaked {
        fn frame(&mut self) -> Result<u64, OutOfMemory> {
            let pages = vec![0xffu8; 8192].leak();
            Ok((pages.as_mut_ptr().expose_provenance() as u64).next_multiple_of(4096))
        }
    }

    #[test]
    fn the_largest_page_that_fits_is_used() {
        let mut t = Tables::new(Format::Ept, true, &mut Leaked).unwrap();
        t.map(0, 0x8000_0000, 0x4060_3000, Access::RWX, &mut Leaked).unwrap();
        assert_eq!(t.lookup(0x3fff_ffff).map(|l| (l.0, l.1)), Some((0xbfff_ffff, 1 << 30)));
        assert_eq!(t.lookup(0x4000_0000).map(|l| (l.0, l.1)), Some((0xc000_0000, 2 << 20)));
        assert_eq!(t.lookup(0x4060_2fff).map(|l| (l.0, l.1)), Some((0xc060_2fff, 4096)));
        assert_eq!(t.lookup(0x4060_3000), None, "one byte past the end is not mapped");
    }

    #[test]
    fn without_gigabyte_pages_the_largest_is_2_mib() {
        let mut t = Tables::new(Format::Npt, false, &mut Leaked).unwrap();
        t.map(0, 0x4000_0000, 0x4000_0000, Access::RWX, &mut Leaked).unwrap();
        assert_eq!(t.lookup(0x1234_5678).map(|l| (l.0, l.1)), Some((0x5234_5678, 2 << 20)));
    }

    #[test]
    fn entries_are_encoded_as_the_manuals_say() {
        let cases = [
            (Format::Host, Access::RX, 0x8000_0000_0000_0000, 0x1),
            (Format::Host, Access::RW, 0, 0x8000_0000_0000_0003),
            (Format::Host, Access::DEVICE, 0, 0x8000_0000_0000_001b),
            (Format::Npt, Access::RWX, 0, 0x7),
            (Format::Ept, Access::RWX, 0, 0x37),
            (Format::Ept, Access::R, 0, 0x31),
        ];
        for (format, access, clear, set) in cases {
            let mut t = Tables::new(format, false, &mut Leaked).unwrap();
            t.map(0x1000, 0x5000, 0x1000, access, &mut Leaked).unwrap();
            let e = t.lookup(0x1000).unwrap().2;
            assert_eq!(e & !ADDRESS, set, "{format:?} {access:?}");
            assert_eq!(e & clear, 0);
        }
    }

    #[test]
    fn protecting_a_page_changes_its_access_and_nothing_else() {
        let mut t = Tables::new(Format::Host, false, &mut Leaked).unwrap();
        t.map(0x1000, 0x1000, 0x2000, Access::RW, &mut Leaked).unwrap();
        t.map(0x20_0000, 0x20_0000, 0x20_0000, Access::RW, &mut Leaked).unwrap();
        t.protect(0x1000, Access::RX).unwrap();
        assert_eq!(t.lookup(0x1000), Some((0x1000, 4096, 0x1001)));
        assert_eq!(t.lookup(0x2000), Some((0x2000, 4096, 0x2003 | NO_EXECUTE)));
        assert!(t.protect(0x20_0000, Access::R).is_err() && t.protect(0x3000, Access::R).is_err());
    }

    #[test]
    fn what_was_unmapped_is_mapped_again_without_a_frame() {
        struct Empty;
        impl FrameSource for Empty {
            fn frame(&mut self) -> Result<u64, OutOfMemory> {
                Err(OutOfMemory { bytes: 4096, free: 0 })
            }
        }
        let mut t = Tables::new(Format::Host, true, &mut Leaked).unwrap();
        t.map(0x3fff_f000, 0x3fff_f000, 0x4060_3000, Access::RW, &mut Leaked).unwrap();
        let leaves = [0x3fff_f000, 0x4000_0000, 0x8000_0000, 0x8060_1000].map(|at| t.lookup(at));
        assert_eq!(leaves.map(|leaf| leaf.map(|leaf| leaf.1)), [4096, 1 << 30, 2 << 20, 4096].map(Some));
        t.map(0x1000, 0x1000, 0x1000, Access::RW, &mut Leaked).unwrap();
        t.unmap(0x3fff_f000, 0x4060_3000).unwrap();
        assert_eq!([0x3fff_f000, 0x4000_0000, 0x8000_0000, 0x8060_1000].map(|at| t.lookup(at)), [None; 4]);
        assert!(t.lookup(0x1000).is_some(), "its neighbour stays");
        t.map(0x3fff_f000, 0x3fff_f000, 0x4060_3000, Access::RW, &mut Empty).unwrap();
        assert_eq!([0x3fff_f000, 0x4000_0000, 0x8000_0000, 0x8060_1000].map(|at| t.lookup(at)), leaves);
        assert_eq!(t.unmap(0x4000_0000, 2 << 20), Err(MapError::Misaligned(0x4000_0000)), "a part of a page");
        assert_eq!(t.unmap(0x2000, 0x1000), Err(MapError::Misaligned(0x2000)), "not mapped");
    }

    #[test]
    fn mapping_twice_or_off_a_page_boundary_is_refused() {
        let mut t = Tables::new(Format::Host, true, &mut Leaked).unwrap();
        t.map(0x20_0000, 0x20_0000, 0x20_0000, Access::RW, &mut Leaked).unwrap();
        assert_eq!(t.map(0x20_1000, 0, 0x1000, Access::RW, &mut Leaked), Err(MapError::Occupied(0x20_1000)));
        assert_eq!(t.map(0x20_0000, 0, 0x20_0000, Access::RW, &mut Leaked), Err(MapError::Occupied(0x20_0000)));
        assert!(matches!(t.map(0x800, 0, 0x1000, Access::RW, &mut Leaked), Err(MapError::Misaligned(_))));
    }
}
