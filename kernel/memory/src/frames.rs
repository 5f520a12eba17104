//! Hands out the physical memory that the firmware's map shows as free. Nothing is taken back.
//!
//! Nothing needs to be freed: a guest keeps its memory while it is configured, and the hypervisor's own structures live
//! as long as the hypervisor. Guests get their memory from the top, in large pages. The hypervisor gets its memory from
//! the bottom. So neither fragments the other's part.

/// Most runs of free memory that are kept. If the firmware lists more, the smallest ones are left unused.
pub const MAX_RUNS: usize = 32;

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
    runs: heapless::Vec<(u64, u64), MAX_RUNS>,
    host: u64,
    guests: u64,
}

impl Frames {
    /// No free memory.
    #[must_use]
    pub const fn new() -> Self {
        Self { runs: heapless::Vec::new(), host: 0, guests: 0 }
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
        if self.runs.is_full() {
            let Some((i, &(s, e))) = self.runs.iter().enumerate().min_by_key(|(_, (s, e))| e - s) else { return };
            if e - s >= end - start {
                return;
            }
            self.runs.swap_remove(i);
        }
        let _ = self.runs.push((start, end));
        self.runs.sort_unstable();
    }

    /// Removes a range, extended to whole pages, from the free memory: the image, a boot module, the firmware's tables.
    pub fn reserve(&mut self, start: u64, end: u64) {
        let start = start & !(PAGE - 1);
        let end = end.saturating_add(PAGE - 1) & !(PAGE - 1);
        let before = core::mem::take(&mut self.runs);
        for (s, e) in before {
            if end <= s || e <= start {
                let _ = self.runs.push((s, e));
            } else {
                if s < start {
                    let _ = self.runs.push((s, start));
                }
                if end < e {
                    let _ = self.runs.push((end, e));
                }
            }
        }
        self.runs.sort_unstable();
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

    proptest! {
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
