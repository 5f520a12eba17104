//! Nested tables in which only pages of 4 KiB are executable. A larger page is split when the guest first fetches an
//! instruction from it.
//!
//! Some CPUs stop the whole machine if a guest changes the size of an executable page at the wrong moment ("iTLB multihit", also
//! "machine check error avoidance on page size change"). A guest can do so only if it has a larger executable page in both
//! its own tables and in the nested ones. Data stays in large pages.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]
#![allow(unsafe_code, reason = "changes page tables through pointers to frames that only it uses")]

use crate::{
    frames::OutOfMemory,
    swap::{Shadow, nth_part, shift},
    tables::{FrameSource, Tables, entry},
};
extern crate alloc;
use alloc::vec::Vec;

const ENTRIES: u64 = 512;

/// Frames for the tables of a guest's splits. They are taken before the guest starts, because an exit takes no memory.
#[derive(Debug)]
pub struct Pool {
    frames: Vec<u64>,
}

impl Pool {
    /// Takes frames for `bytes` of guest memory: 4 KiB for each page of 2 MiB.
    ///
    /// # Errors
    /// No memory.
    pub fn take(bytes: u64, frames: &mut impl FrameSource) -> Result<Self, OutOfMemory> {
        let count = bytes.div_ceil(2 << 20);
        Ok(Self { frames: (0..count).map(|_| frames.frame()).collect::<Result<_, _>>()? })
    }

    /// Frames that are left.
    #[must_use]
    pub fn left(&self) -> usize {
        self.frames.len()
    }
}

/// Why a page cannot be made executable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CannotSplit {
    /// Nothing is mapped at this address.
    NotMapped(u64),
    /// The pool is empty. A pool for all of the guest's memory never is.
    NoFrame,
}

impl Tables {
    /// Makes the page at `at` executable: a page of 4 KiB, or all of a page of 2 MiB as pages of 4 KiB. A page that is executable
    /// already stays as it is. The change is one store of an entry; a walk in progress sees the old translation or the new
    /// one. Cached translations that are not executable may stay in use: the CPU drops the one at `at` when it faults.
    ///
    /// # Errors
    /// See [`CannotSplit`].
    pub fn make_executable(&mut self, at: u64, pool: &mut Pool) -> Result<(), CannotSplit> {
        let at = at & !0xfff;
        loop {
            let (place, level, was) = self.leaf(at).ok_or(CannotSplit::NotMapped(at))?;
            let new = if level == 0 {
                self.executable(was)
            } else {
                let frame = pool.frames.pop().ok_or(CannotSplit::NoFrame)?;
                let below = level.saturating_sub(1);
                for i in 0..ENTRIES {
                    let part = nth_part(was, i, below);
                    let part = if level == 1 { self.executable(part) } else { part };
                    // SAFETY: the frame is the pool's: 4 KiB, addressable, in use by no walk.
                    unsafe { entry(frame, i << shift(below), below).write_volatile(part) };
                }
                self.table_entry(frame)
            };
            // SAFETY: `place` is an entry of this tree, which only `self` changes.
            unsafe { place.write_volatile(new) };
            if level <= 1 {
                return Ok(());
            }
        }
    }
}

impl Shadow {
    /// As [`Tables::make_executable`]. What was done to the parts of a large page that is split for the shadow is gone when
    /// the page is restored, and is done again at the next fetch.
    ///
    /// # Errors
    /// See [`CannotSplit`].
    pub fn make_executable(&mut self, at: u64, pool: &mut Pool) -> Result<(), CannotSplit> {
        self.tables_mut().make_executable(at, pool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::{Access, Format, tests::Leaked};

    const EXECUTE: u64 = 1 << 2;
    const BASE: u64 = 0x1_0000_0000;

    fn tables(bytes: u64) -> (Tables, Pool) {
        let mut tables = Tables::new(Format::Ept, false, &mut Leaked).unwrap();
        tables.set_small_executable();
        tables.map(0, BASE, bytes, Access::RWX, &mut Leaked).unwrap();
        (tables, Pool::take(bytes, &mut Leaked).unwrap())
    }

    fn executable(tables: &Tables, at: u64) -> (bool, u64) {
        let (to, size, entry) = tables.lookup(at).unwrap();
        assert_eq!(to, BASE + at);
        assert_eq!(entry & 0x3b, 0x33, "readable, writable, write-back");
        (entry & EXECUTE != 0, size)
    }

    #[test]
    fn a_large_page_is_not_executable_until_it_is_split() {
        let (mut tables, mut pool) = tables((4 << 20) + 0x3000);
        assert_eq!(pool.left(), 3);
        assert_eq!(executable(&tables, 0x1234), (false, 2 << 20));
        assert_eq!(executable(&tables, (4 << 20) + 0x2000), (true, 4096), "a small page is executable at once");
        tables.make_executable(0x20_1234, &mut pool).unwrap();
        for at in [0x20_0000, 0x20_1234, 0x3f_ffff] {
            assert_eq!(executable(&tables, at), (true, 4096), "{at:#x}");
        }
        assert_eq!(executable(&tables, 0x1f_ffff), (false, 2 << 20), "the page beside it");
        assert_eq!(pool.left(), 2);
        // Another vCPU may have faulted at the same time.
        tables.make_executable(0x20_5000, &mut pool).unwrap();
        assert_eq!(pool.left(), 2);
    }

    #[test]
    fn what_is_not_mapped_is_refused() {
        let (mut tables, mut pool) = tables(2 << 20);
        assert_eq!(tables.make_executable(2 << 20, &mut pool), Err(CannotSplit::NotMapped(2 << 20)));
        let mut empty = Pool::take(0, &mut Leaked).unwrap();
        assert_eq!(tables.make_executable(0, &mut empty), Err(CannotSplit::NoFrame));
        assert_eq!(executable(&tables, 0), (false, 2 << 20), "nothing has changed");
    }

    #[test]
    fn a_page_of_a_gigabyte_is_split_down_to_4_kib() {
        let mut tables = Tables::new(Format::Ept, true, &mut Leaked).unwrap();
        tables.set_small_executable();
        tables.map(0, BASE, 1 << 30, Access::RWX, &mut Leaked).unwrap();
        let mut pool = Pool::take(4 << 20, &mut Leaked).unwrap();
        tables.make_executable(0x1234_5678, &mut pool).unwrap();
        assert_eq!(executable(&tables, 0x1234_5678), (true, 4096));
        assert_eq!(executable(&tables, 0x3fff_ffff), (false, 2 << 20));
        assert_eq!(pool.left(), 0);
    }

    #[test]
    fn a_shadowed_page_and_a_split_one_do_not_disturb_each_other() {
        const IDT: u64 = 0x5000;
        let (tables, mut pool) = tables(4 << 20);
        let mut shadow = Shadow::new(tables, &mut Leaked).unwrap();
        let image = [0x5a; 4096];
        let state = |shadow: &mut Shadow, at: u64| {
            let (to, size, entry) = shadow.tables_mut().lookup(at).unwrap();
            (to == BASE + at, size, entry & EXECUTE != 0)
        };
        // First the shadow, then the split.
        shadow.install(IDT, &image).unwrap();
        assert_eq!(
            state(&mut shadow, 0x6000),
            (true, 4096, false),
            "a part of a large page is as executable as it was"
        );
        shadow.make_executable(0x6000, &mut pool).unwrap();
        assert_eq!(state(&mut shadow, 0x6000), (true, 4096, true));
        assert_eq!(shadow.image(), Some(image));
        shadow.remove();
        assert_eq!(state(&mut shadow, 0x6000), (true, 2 << 20, false), "as before the shadow");
        // First the split, then the shadow.
        shadow.make_executable(0x6000, &mut pool).unwrap();
        shadow.install(IDT, &image).unwrap();
        assert_eq!(state(&mut shadow, 0x6000), (true, 4096, true));
        assert_eq!(shadow.image(), Some(image));
        shadow.remove();
        assert_eq!(state(&mut shadow, IDT), (true, 4096, true));
    }
}
