//! The front end's memory table (VHOST_USER_SET_MEM_TABLE): its files mapped here, and the two ways it speaks of
//! addresses. Rings are given by addresses of the front end's own process, buffers by guest-physical ones.

#![allow(unsafe_code, reason = "maps the files a front end hands over, and lends them to GuestMemory")]

use std::fs::File;
use std::ptr;

use anyhow::{Context, ensure};
use memory::GuestMemory;
use memory::guest::Region;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use vhost::vhost_user::message::VhostUserMemoryRegion;

struct Mapping {
    start: *mut core::ffi::c_void,
    len: usize,
}

// SAFETY: the mapping belongs to no thread; nothing here accesses it but through GuestMemory, which any may.
unsafe impl Send for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by `mmap` with this length, and whoever had the GuestMemory has let go of it: see `MemoryTable`.
        // Nothing can be done about an error.
        let _ = unsafe { munmap(self.start, self.len) };
    }
}

struct Named {
    user: u64,
    gpa: u64,
    size: u64,
}

/// A memory table in use. Before it is dropped, every clone of its [`MemoryTable::memory`] must be gone: the session
/// detaches its device first.
pub struct MemoryTable {
    memory: GuestMemory,
    named: Vec<Named>,
    _mappings: Vec<Mapping>,
}

impl MemoryTable {
    /// Maps the table's files. A front end that shrinks one of them later kills this process by SIGBUS: it has to be
    /// trusted that far.
    ///
    /// # Errors
    /// A region cannot be mapped, or is not one that [`GuestMemory::add`] takes.
    pub fn new(regions: &[VhostUserMemoryRegion], files: &[File]) -> anyhow::Result<Self> {
        ensure!(regions.len() == files.len(), "{} regions with {} files", regions.len(), files.len());
        let mut table = Self { memory: GuestMemory::new(), named: Vec::new(), _mappings: Vec::new() };
        for (region, file) in regions.iter().zip(files) {
            let (gpa, size, user, offset) =
                (region.guest_phys_addr, region.memory_size, region.user_addr, region.mmap_offset);
            let end = offset.checked_add(size).context("a region that wraps")?;
            let stat = rustix::fs::fstat(file)?;
            ensure!(stat.st_size as u64 >= end, "a region of {end:#x} bytes in a file of {:#x}", stat.st_size);
            // A file of huge pages is mapped and unmapped in whole ones.
            let len = usize::try_from(end)?.next_multiple_of((stat.st_blksize as usize).max(4096));
            // SAFETY: a new mapping at an address of the system's choice touches nothing of ours.
            let start =
                unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0) }
                    .with_context(|| format!("mapping {len:#x} bytes of the front end's memory"))?;
            table._mappings.push(Mapping { start, len });
            let host = start.cast::<u8>().wrapping_add(offset as usize);
            // SAFETY: mapped just above for at least `offset + size` bytes, until `_mappings` is dropped, and by then
            // no clone is left; no reference is formed to it.
            unsafe { table.memory.add(Region { gpa, size, host }) }
                .map_err(|r| anyhow::anyhow!("region {:#x}+{:#x} cannot be taken", r.gpa, r.size))?;
            table.named.push(Named { user, gpa, size });
        }
        Ok(table)
    }

    /// The memory, by guest-physical address.
    pub const fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// The guest-physical address of what the front end has at `user`.
    pub fn gpa(&self, user: u64) -> Option<u64> {
        let r = self.named.iter().find(|r| user.wrapping_sub(r.user) < r.size)?;
        Some(user - r.user + r.gpa)
    }
}

#[cfg(test)]
mod tests {
    use super::MemoryTable;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::fs::File;
    use vhost::vhost_user::message::VhostUserMemoryRegion;

    fn file(len: u64) -> File {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC).expect("memfd");
        ftruncate(&fd, len).expect("length");
        fd.into()
    }

    #[test]
    fn rings_are_found_by_the_front_ends_address_and_buffers_by_the_guests() {
        let regions = [
            VhostUserMemoryRegion::new(0, 0x10000, 0x7f00_0000_0000, 0),
            VhostUserMemoryRegion::new(0x1_0000_0000, 0x8000, 0x7f00_0001_0000, 0x1000),
        ];
        let files = [file(0x10000), file(0x9000)];
        let table = MemoryTable::new(&regions, &files).expect("a good table");
        assert_eq!(table.gpa(0x7f00_0000_0010), Some(0x10));
        assert_eq!(table.gpa(0x7f00_0001_0010), Some(0x1_0000_0010));
        assert_eq!(table.gpa(0x7f00_0001_8000), None);
        table.memory().write_u64(0x1_0000_0010, 77).expect("in the table");
        let mut eight = [0; 8];
        std::os::unix::fs::FileExt::read_exact_at(&files[1], &mut eight, 0x1010).expect("in the file");
        assert_eq!(u64::from_le_bytes(eight), 77, "at its offset in the second file");
    }

    #[test]
    fn a_region_beyond_its_file_is_refused() {
        let regions = [VhostUserMemoryRegion::new(0, 0x10000, 0, 0x1000)];
        assert!(MemoryTable::new(&regions, &[file(0x10000)]).is_err());
        assert!(MemoryTable::new(&regions, &[]).is_err());
    }
}
