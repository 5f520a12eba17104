//! Where a kernel and its initial RAM disk are put in a guest's memory, for both boot protocols.

use core::fmt;

use memory::GuestMemory;

use crate::layout;

/// The addresses of the loaded parts, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// First byte of the kernel or firmware: of its protected-mode part, or of its lowest segment.
    pub kernel: u64,
    /// First byte and length of the RAM disk.
    pub initrd: Option<(u64, u64)>,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel at {:#x}", self.kernel)?;
        match self.initrd {
            Some((at, len)) => write!(f, ", initrd at {at:#x} ({len} bytes)"),
            None => Ok(()),
        }
    }
}

/// Returns the end of the memory that begins at 0, below the PCI hole.
pub(crate) fn first_region_end(memory: &GuestMemory) -> u64 {
    let mut end = 0;
    while let Some(next) = memory.regions().iter().find(|r| r.gpa == end && r.size != 0) {
        end = next.end();
    }
    end.min(layout::LOW_MEMORY_END)
}

/// Returns the highest page on which `len` bytes can begin and end at or before `limit`.
pub(crate) fn highest(len: u64, limit: u64) -> Option<u64> {
    limit.checked_sub(len).map(|at| at & !0xfff)
}
