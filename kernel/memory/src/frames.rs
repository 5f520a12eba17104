//! Hands out the physical memory that the firmware's map shows as free. Nothing is taken back.
//!
//! Nothing needs to be freed: a guest keeps its memory while it is configured, and the hypervisor's own structures live
//! as long as the hypervisor. Guests get their memory from the top, in large pages. The hypervisor gets its memory from
//! the bottom. So neither fragments the other's part.

/// Most runs of free memory that are kept at a time. Firmware's maps of large servers have 30 to 150 entries, and each boot module and
/// each page that is taken from the middle of a run adds one. With more, the smallest run is given up, and [`Frames::given_up`] counts it.
pub const MAX_RUNS: usize = 512;

/// Size of a page frame.
pub const PAGE: u64 = 4096;

/// No free run of memory is large enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub bytes: u64,
    /// Free bytes in all runs together. Each run is too small or misaligned for the request.
    pub free: u64,
}

impl core::fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} KiB of contiguous memory were needed; {} KiB are free in all", self.bytes >> 10, self.free >> 10)
    }
}

/// Free physical memory, and how many bytes were handed out to the hypervisor and to guests.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    /// Start and end, in the order of their addresses. They do not overlap.
    runs: heapless::Vec<(u64, u64), MAX_RUNS>,
    host: u64,
    guests: u64,
    given_up: u64,
}

impl Frames {
    /// No free memory.
    #[must_use]
    pub const fn new() -> Self {
        Self { runs: heapless::Vec::new(), host: 0, guests: 0, given_up: 0 }
    }

    /// Adds free memory from `start` to `end`, shrunk to whole pages. It leaves out what overlaps an existing run,
    /// because firmware maps overlap in practice.
    pub fn add(&mut self, start: u64, end: u64) {
        let start = start.saturating_add(PAGE - 1) & !(PAGE - 1);
        let end = end & !(PAGE - 1);
        if start >= end {
            return;
        }
        if let Some(&(s, e)) = self.runs.iter().find(|&&(s, e)| start < e && s < end) {
            self.add(start, s.max(start));
            self.add(e.min(end), end);
            return;
        }
        self.insert(start, end);
    }

    /// Puts a run that overlaps no other in its place. If there are too many, the smallest of all is given up.
    fn insert(&mut self, start: u64, end: u64) {
        if self.runs.is_full() {
            let smallest = self.runs.iter().enumerate().min_by_key(|(_, (s, e))| e.saturating_sub(*s));
            let Some((index, bytes)) = smallest.map(|(i, (s, e))| (i, e.saturating_sub(*s))) else { return };
            if bytes >= end.saturating_sub(start) {
                self.given_up = self.given_up.saturating_add(end.saturating_sub(start));
                return;
            }
            self.given_up = self.given_up.saturating_add(bytes);
            self.runs.remove(index);
        }
        let place = self.runs.partition_point(|&(s, _)| s < start);
        // There is room now.
        let _ = self.runs.insert(place, (start, end));
    }

    /// Removes a range, extended to whole pages, from the free memory: the image, a boot module, the firmware's tables.
    pub fn reserve(&mut self, start: u64, end: u64) {
        let start = start & !(PAGE - 1);
        let end = end.saturating_add(PAGE - 1) & !(PAGE - 1);
        let mut behind = None;
        for run in &mut self.runs {
            let (s, e) = *run;
            if end <= s || e <= start {
                continue;
            }
            if s < start && end < e {
                // Only one run can have the whole range inside.
                behind = Some((end, e));
            }
            *run = if s < start { (s, start) } else { (end.min(e), e) };
        }
        self.runs.retain(|(s, e)| s < e);
        if let Some((start, end)) = behind {
            self.insert(start, end);
        }
    }

    /// Takes `bytes` bytes for the hypervisor, at the lowest free address at or above 1 MiB. The address is aligned to
    /// `align`, a power of two of at least a page. The memory is not zeroed.
    ///
    /// # Errors
    /// No run is large enough.
    pub fn host(&mut self, bytes: u64, align: u64) -> Result<u64, OutOfMemory> {
        let bytes = bytes.next_multiple_of(PAGE);
        let found = self.runs.iter().find_map(|&(s, e)| {
            let at = s.max(1 << 20).next_multiple_of(align.max(PAGE));
            (at.checked_add(bytes)? <= e).then_some(at)
        });
        let at = found.ok_or(OutOfMemory { bytes, free: self.free() })?;
        self.reserve(at, at + bytes);
        self.host += bytes;
        Ok(at)
    }

    /// Takes the range at this address for the hypervisor, if all of it is free. Returns whether it is. `start` and `bytes` are
    /// multiples of a page.
    pub fn take(&mut self, start: u64, bytes: u64) -> bool {
        let Some(end) = start.checked_add(bytes) else { return false };
        if !self.runs.iter().any(|&(s, e)| s <= start && end <= e) {
            return false;
        }
        self.reserve(start, end);
        self.host += bytes;
        true
    }

    /// Takes the highest free page below 0xA0000, the end of conventional memory, for the application processors' first
    /// instructions. The page is not counted as the hypervisor's memory, because it is used only once.
    pub fn low_page(&mut self) -> Option<u64> {
        let at = self.runs.iter().rev().find_map(|&(s, e)| {
            let end = e.min(0xa_0000);
            (end >= PAGE && end - PAGE >= s && end > PAGE).then(|| end - PAGE)
        })?;
        self.reserve(at, at + PAGE);
        Some(at)
    }

    /// Takes `bytes` bytes for a guest, at the highest free address. The address is aligned to 1 GiB if `bytes` is at
    /// least 1 GiB and such a place exists, otherwise to 2 MiB. The memory is not zeroed.
    ///
    /// # Errors
    /// No run is large enough.
    pub fn guest(&mut self, bytes: u64) -> Result<u64, OutOfMemory> {
        let large = 2 << 20;
        let bytes = bytes.next_multiple_of(large);
        let highest = |align: u64| {
            self.runs.iter().rev().find_map(|&(s, e)| {
                let at = e.checked_sub(bytes)? & !(align - 1);
                (at >= s).then_some(at)
            })
        };
        let huge = if bytes >= 1 << 30 { highest(1 << 30) } else { None };
        let at = huge.or_else(|| highest(large)).ok_or(OutOfMemory { bytes, free: self.free() })?;
        self.reserve(at, at + bytes);
        self.guests += bytes;
        Ok(at)
    }

    /// Free bytes in all runs together.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.runs.iter().map(|(s, e)| e - s).sum()
    }

    /// Free bytes that are not used, because they are in more runs than are kept.
    #[must_use]
    pub fn given_up(&self) -> u64 {
        self.given_up
    }

    /// Bytes handed out by [`Frames::host`].
    #[must_use]
    pub fn used_by_host(&self) -> u64 {
        self.host
    }

    /// Bytes handed out by [`Frames::guest`].
    #[must_use]
    pub fn used_by_guests(&self) -> u64 {
        self.guests
    }
}

#[cfg(test)]
mod published;

#[cfg(test)]
mod tests {
    use super::{Frames, OutOfMemory};
    use proptest::prelude::*;

    #[test]
    fn guests_come_from_the_top_in_large_pages_and_the_host_from_the_bottom() {
        let mut f = Frames::new();
        f.add(0x1000, 0x9_f000);
        f.add(0x10_0000, 0x2000_0000);
        f.reserve(0x20_0000, 0x30_0000);
        assert_eq!(f.guest(256 << 20), Ok(0x1000_0000));
        assert_eq!(f.host(0x1000, 0x1000), Ok(0x10_0000));
        assert_eq!(f.host(0x10_0000, 0x20_0000), Ok(0x40_0000));
        assert_eq!(f.low_page(), Some(0x9_e000));
        assert!(matches!(f.guest(1 << 30), Err(OutOfMemory { bytes: 0x4000_0000, .. })));
    }

    #[test]
    fn a_guest_of_a_gibibyte_is_aligned_to_one_where_that_is_possible() {
        let mut f = Frames::new();
        f.add(0x10_0000, 0x8000_0000);
        f.add(0x1_0000_0000, 0x1_9000_0000);
        assert_eq!(f.guest(1 << 30), Ok(0x1_4000_0000));
        assert_eq!(f.guest(1 << 30), Ok(0x1_0000_0000));
        assert_eq!(f.guest(1 << 30), Ok(0x4000_0000));
        assert_eq!(f.guest(900 << 20), Ok(0x4000_0000 - (900 << 20)));
    }

    #[test]
    fn a_page_from_the_middle_of_the_highest_run_loses_nothing_else() {
        let mut f = Frames::new();
        // As many runs as there is room for, the highest the largest by far.
        for n in 1..super::MAX_RUNS as u64 {
            f.add(n << 20, (n << 20) + 0x2000);
        }
        f.add(4 << 30, 256 << 30);
        let free = f.free();
        f.reserve(8 << 30, (8 << 30) + 0x1000);
        assert_eq!(f.given_up(), 0x2000);
        assert_eq!(f.free() + f.given_up(), free - 0x1000);
        assert_eq!(f.guest(64 << 30), Ok(192 << 30));
    }

    #[test]
    fn a_range_is_taken_whole_or_not() {
        let mut f = Frames::new();
        f.add(0x10_0000, 0x40_0000);
        f.reserve(0x30_0000, 0x30_1000);
        assert!(!f.take(0x2f_f000, 0x2000), "a page of it is not free");
        assert!(!f.take(0x3f_f000, 0x2000), "a page of it is no memory");
        assert!(!f.take(u64::MAX - 0xfff, 0x2000));
        let free = f.free();
        assert!(f.take(0x20_0000, 0x1_0000));
        assert!(!f.take(0x20_f000, 0x1000), "it is taken");
        assert_eq!((f.free(), f.used_by_host()), (free - 0x1_0000, 0x1_0000));
    }

    #[test]
    fn a_range_over_several_runs_takes_its_part_of_each() {
        let mut f = Frames::new();
        f.add(0x1000, 0x4000);
        f.add(0x5000, 0x6000);
        f.add(0x8000, 0xa000);
        f.reserve(0x2000, 0x9000);
        assert_eq!((f.free(), f.low_page(), f.low_page()), (0x2000, Some(0x9000), Some(0x1000)));
    }

    proptest! {
        /// Against a set of pages.
        #[test]
        fn what_is_free_is_what_was_added_without_what_was_taken(
            steps in prop::collection::vec((any::<bool>(), 0_u64..600, 1_u64..60), 1..200),
        ) {
            let (mut f, mut pages) = (Frames::new(), std::collections::BTreeSet::new());
            for (add, start, len) in steps {
                let range = start..start + len;
                if add {
                    f.add(range.start * 4096, range.end * 4096);
                    pages.extend(range);
                } else {
                    f.reserve(range.start * 4096, range.end * 4096);
                    pages.retain(|page| !range.contains(page));
                }
                prop_assert_eq!(f.free(), 4096 * pages.len() as u64);
                prop_assert!(f.runs.iter().all(|&(s, e)| s < e && (s / 4096..e / 4096).all(|page| pages.contains(&page))));
                prop_assert!(f.runs.windows(2).all(|pair| pair[0].1 <= pair[1].0));
            }
        }

        #[test]
        fn nothing_is_handed_out_twice(
            maps in prop::collection::vec((0u64..1 << 34, 0u64..1 << 32), 1..20),
            asks in prop::collection::vec((any::<bool>(), 1u64..1 << 28), 1..40),
        ) {
            let mut f = Frames::new();
            for (start, len) in maps {
                f.add(start, start + len);
            }
            let mut given: Vec<(u64, u64)> = Vec::new();
            for (guest, bytes) in asks {
                let (got, bytes) = if guest { (f.guest(bytes), bytes.next_multiple_of(2 << 20)) } else { (f.host(bytes, 4096), bytes.next_multiple_of(4096)) };
                if let Ok(at) = got {
                    prop_assert!(given.iter().all(|&(s, e)| at + bytes <= s || e <= at));
                    given.push((at, at + bytes));
                }
            }
        }
    }
}
