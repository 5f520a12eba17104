//! Maps one 4 KiB page of nested tables to another frame for a while, read-only. The large page around it is split, and
//! restored when the page is handed back.
//!
//! SDM vol. 3C 29.3.2 (EPT), APM vol. 2 15.25 (NPT). The change is a single store of one entry. A walk in progress sees
//! the old translation or the new one, never a mixture. **Cached old translations stay in use until they are flushed.**
//! The caller of a swap or a restore must keep all users of the tables from running until each has flushed. This
//! protects the spare tables too, because the next swap uses them again.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]
#![allow(unsafe_code, reason = "changes page tables through pointers to frames that only it uses")]

use crate::{
    frames::OutOfMemory,
    tables::{ADDRESS, FrameSource, LARGE, PRESENT, Tables, WRITE, entry},
};

const ENTRIES: u64 = 512;

/// The page is not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotMapped(pub u64);

/// The table frames for a split: one for each level between a 1 GiB page and a 4 KiB page.
#[derive(Debug)]
pub struct Spare {
    frames: [u64; 2],
}

impl Spare {
    /// Takes the frames.
    ///
    /// # Errors
    /// No memory.
    pub fn take(frames: &mut impl FrameSource) -> Result<Self, OutOfMemory> {
        Ok(Self { frames: [frames.frame()?, frames.frame()?] })
    }
}

/// A page that is mapped elsewhere, to pass to [`Tables::restore`]. It owns the spare tables until then.
#[derive(Debug)]
pub struct Swapped {
    at: u64,
    /// Address of the entry that was replaced.
    entry: u64,
    /// Value of the entry before.
    was: u64,
    spare: Spare,
}

impl Swapped {
    /// The page's address, before translation.
    #[must_use]
    pub fn at(&self) -> u64 {
        self.at
    }
}

impl Tables {
    /// Maps the 4 KiB page at `at` to `target`, read-only. The mapping around it stays the same.
    ///
    /// # Errors
    /// Nothing is mapped at `at`. Returns the spare tables.
    pub fn swap(&mut self, at: u64, target: u64, spare: Spare) -> Result<Swapped, (NotMapped, Spare)> {
        let at = at & !0xfff;
        let Some((place, level, was)) = self.leaf(at) else { return Err((NotMapped(at), spare)) };
        let mut new = was;
        // From the existing leaf down to the page, each level needs one table, filled from the leaf above.
        let mut chain = [(0_u64, 0_u64); 2];
        let mut split = level;
        for link in &mut chain {
            if split == 0 {
                break;
            }
            *link = (u64::from(split), new);
            split = split.saturating_sub(1);
            new = part(new, at, split);
        }
        let mut below = new & !(ADDRESS | WRITE) | target;
        for (&(level, whole), &frame) in chain.iter().zip(&spare.frames).filter(|((l, _), _)| *l > 0).rev() {
            let level = (level as u32).saturating_sub(1);
            for i in 0..ENTRIES {
                let value = if i == at >> shift(level) & 0x1ff { below } else { nth_part(whole, i, level) };
                // SAFETY: a spare frame: 4 KiB, addressable, in use by no walk since the last restore and its flush.
                unsafe { entry(frame, i << shift(level), level).write_volatile(value) };
            }
            below = self.table_entry(frame);
        }
        // SAFETY: `place` is an entry of this tree, which only `self` changes.
        unsafe { place.write_volatile(below) };
        Ok(Swapped { at, entry: place.expose_provenance() as u64, was, spare })
    }

    /// Maps a swapped page as before, with the page size that it had. Returns the spare tables.
    pub fn restore(&mut self, swapped: Swapped) -> Spare {
        let place = core::ptr::with_exposed_provenance_mut::<u64>(swapped.entry as usize);
        // SAFETY: it is an entry of this tree (`swap`). Tables of the tree are never given back. The entry is in no
        // table of another page's split, because there is only one spare.
        unsafe { place.write_volatile(swapped.was) };
        swapped.spare
    }

    /// Finds the leaf entry for `at`: its place, its level and its value.
    pub(crate) fn leaf(&self, at: u64) -> Option<(*mut u64, u32, u64)> {
        let mut table = self.root();
        for level in (0..=3).rev() {
            let place = entry(table, at, level);
            // SAFETY: an entry of this tree, which only `self` changes.
            let value = unsafe { place.read_volatile() };
            if value & PRESENT == 0 {
                return None;
            }
            if level == 0 || value & LARGE != 0 {
                return Some((place, level, value));
            }
            table = value & ADDRESS;
        }
        None
    }
}

/// Nested tables of one guest, with a frame of the host that can replace one of its pages.
#[derive(Debug)]
pub struct Shadow {
    tables: Tables,
    /// Physical address of the frame.
    frame: u64,
    spare: Option<Spare>,
    swapped: Option<Swapped>,
}

impl Shadow {
    /// Wraps `tables` and takes frames for the shadow and for the split.
    ///
    /// # Errors
    /// No memory.
    pub fn new(tables: Tables, frames: &mut impl FrameSource) -> Result<Self, OutOfMemory> {
        Ok(Self { tables, frame: frames.frame()?, spare: Some(Spare::take(frames)?), swapped: None })
    }

    /// Root of the tables.
    #[must_use]
    pub fn root(&self) -> u64 {
        self.tables.root()
    }

    /// The tables.
    pub(crate) fn tables_mut(&mut self) -> &mut Tables {
        &mut self.tables
    }

    /// Replaces the guest's page at `at` by a read-only page with the content `image`. First restores any page that is
    /// replaced already. No user of the tables may run meanwhile, and all must flush before they run again.
    ///
    /// # Errors
    /// Nothing is mapped at `at`. No page is replaced then.
    pub fn install(&mut self, at: u64, image: &[u8; 4096]) -> Result<(), NotMapped> {
        self.remove();
        let Some(spare) = self.spare.take() else { return Err(NotMapped(at)) };
        // SAFETY: the frame is this value's own, and addressable at its physical address. No user of the tables runs,
        // so nobody reads it.
        unsafe { core::ptr::with_exposed_provenance_mut::<[u8; 4096]>(self.frame as usize).write(*image) };
        match self.tables.swap(at, self.frame, spare) {
            Ok(swapped) => {
                self.swapped = Some(swapped);
                Ok(())
            }
            Err((why, spare)) => {
                self.spare = Some(spare);
                Err(why)
            }
        }
    }

    /// Restores the replaced page, if there is one. The conditions of [`Shadow::install`] apply.
    pub fn remove(&mut self) {
        if let Some(swapped) = self.swapped.take() {
            self.spare = Some(self.tables.restore(swapped));
        }
    }

    /// Guest-physical address of the page that is replaced.
    #[must_use]
    pub fn at(&self) -> Option<u64> {
        self.swapped.as_ref().map(Swapped::at)
    }

    /// Where a guest-physical address is mapped now; `None` if it is not mapped.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn lookup(&self, at: u64) -> Option<u64> {
        self.tables.lookup(at).map(|(to, _, _)| to)
    }

    /// The content that the guest finds in the replaced page.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn image(&self) -> Option<[u8; 4096]> {
        let frame = self.lookup(self.at()?)?;
        // SAFETY: it is this value's own frame, which only `install` writes.
        Some(unsafe { core::ptr::with_exposed_provenance::<[u8; 4096]>(frame as usize).read() })
    }
}

/// Returns the number of the first bit of an address that selects an entry at this level.
pub(crate) const fn shift(level: u32) -> u32 {
    level.saturating_mul(9).saturating_add(12)
}

/// Returns leaf number `index` of `level` within `whole`, a leaf one level above.
pub(crate) fn nth_part(whole: u64, index: u64, level: u32) -> u64 {
    let leaf = if level == 0 { whole & !LARGE } else { whole };
    leaf.saturating_add(index << shift(level))
}

fn part(whole: u64, at: u64, level: u32) -> u64 {
    nth_part(whole, at >> shift(level) & 0x1ff, level)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::{Access, Format, tests::Leaked};

    const SHADOW: u64 = 0x7777_7000;

    fn spare() -> Spare {
        Spare::take(&mut Leaked).unwrap()
    }

    /// Tables that map 2 GiB from 0 to 4 GiB, by the largest pages, and 3 pages at 2 GiB.
    fn tables(format: Format, gigabyte: bool) -> Tables {
        let mut t = Tables::new(format, gigabyte, &mut Leaked).unwrap();
        t.map(0, 1 << 32, 0x8000_3000, Access::RWX, &mut Leaked).unwrap();
        t
    }

    #[test]
    fn only_the_one_page_leads_elsewhere_and_only_it_refuses_stores() {
        for format in [Format::Npt, Format::Ept] {
            for gigabyte in [false, true] {
                for at in [0, 0x1000, 0x1ff000, 0x4020_0000, 0x7fff_f000, 0x8000_1000] {
                    let mut t = tables(format, gigabyte);
                    let _swapped = t.swap(at, SHADOW, spare()).unwrap();
                    let usual = t.lookup(0x8000_0000).unwrap().2 & 0xfff;
                    for page in [at.wrapping_sub(0x1000), at, at + 0x1000, 0, 0x20_0000, 0x4000_0000, 0x7fff_e000] {
                        let Some((to, size, e)) = t.lookup(page) else { continue };
                        if page == at {
                            assert_eq!((to, size), (SHADOW, 4096), "{at:#x}");
                            assert_eq!(e & 0xfff, usual & !WRITE, "{at:#x}: encoded as a 4 KiB page without stores");
                        } else {
                            assert_eq!(to, page + (1 << 32), "{page:#x} with {at:#x} swapped");
                            assert_ne!(e & WRITE, 0, "{page:#x}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn every_byte_of_a_split_gigabyte_still_leads_where_it_did() {
        let mut t = tables(Format::Ept, true);
        let at = 0x1234_5000;
        let _swapped = t.swap(at, SHADOW, spare()).unwrap();
        // Miri looks at each 49th page only, which is in every large page a few times.
        let step = if cfg!(miri) { 0x3_1000 } else { 0x1000 };
        for page in (0..0x4000_0000).step_by(step).filter(|&p| p != at) {
            let (to, size, e) = t.lookup(page).unwrap();
            assert_eq!(to, page + (1 << 32));
            let expected = if page >> 21 == at >> 21 { 4096 } else { 2 << 20 };
            assert_eq!((size, e & LARGE != 0), (expected, expected > 4096), "{page:#x}");
        }
    }

    #[test]
    fn restoring_leaves_the_tables_as_they_were_and_the_spare_tables_can_be_used_again() {
        let mut t = tables(Format::Npt, true);
        let all = |t: &Tables| (0..0x8000_3000).step_by(0x10_0000).map(|p| t.lookup(p)).collect::<Vec<_>>();
        let before = all(&t);
        let mut spare = spare();
        for at in [0x1000, 0x5fff_f000, 0x8000_2000, 0x1000] {
            let swapped = t.swap(at, SHADOW, spare).unwrap();
            assert_eq!(swapped.at(), at);
            assert_eq!(t.lookup(at).unwrap().0, SHADOW);
            spare = t.restore(swapped);
            assert_eq!(all(&t), before, "{at:#x}");
            assert_eq!(t.lookup(at).unwrap().0, at + (1 << 32));
        }
    }

    #[test]
    fn a_shadow_stands_in_for_one_page_at_a_time() {
        let mut shadow = Shadow::new(tables(Format::Npt, true), &mut Leaked).unwrap();
        let there = |shadow: &Shadow, at: u64| {
            let replaced = shadow.lookup(at) != Some(at + (1 << 32));
            assert_eq!(replaced, shadow.at() == Some(at));
            shadow.image().filter(|_| replaced).map(|image| image[4095])
        };
        shadow.install(0x5000, &[1; 4096]).unwrap();
        assert_eq!((shadow.at(), there(&shadow, 0x5000)), (Some(0x5000), Some(1)));
        shadow.install(0x4000_7000, &[2; 4096]).unwrap();
        assert_eq!((there(&shadow, 0x5000), there(&shadow, 0x4000_7000)), (None, Some(2)));
        assert!(shadow.install(1 << 40, &[3; 4096]).is_err());
        assert_eq!((shadow.at(), there(&shadow, 0x4000_7000)), (None, None), "what was there before was handed back");
        shadow.install(0x5000, &[4; 4096]).unwrap();
        shadow.remove();
        shadow.remove();
        assert_eq!(there(&shadow, 0x5000), None);
    }

    #[test]
    fn a_page_that_is_not_mapped_is_refused_and_nothing_is_lost() {
        let mut t = tables(Format::Ept, true);
        let Err((NotMapped(at), spare)) = t.swap(0x9000_0123, SHADOW, spare()) else { panic!("swapped") };
        assert_eq!(at, 0x9000_0000);
        assert!(t.swap(0x1000, SHADOW, spare).is_ok());
    }
}
