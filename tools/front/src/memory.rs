//! Memory that is shared with the back-end.

#![allow(unsafe_code, reason = "maps a memory file")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::ptr;

/// The size of the memory's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// 4 KiB pages.
    Small,
    /// 2 MiB pages.
    Huge,
}

/// A memory file, mapped.
pub struct Memory {
    file: File,
    start: *mut u8,
    len: usize,
}

// SAFETY: memory that another process shares; nothing but raw and atomic accesses are made to it.
unsafe impl Send for Memory {}

impl Memory {
    /// Maps `len` bytes of zeroes, a multiple of 2 MiB.
    pub fn new(len: usize, pages: Pages) -> io::Result<Self> {
        let huge = if pages == Pages::Huge { libc::MFD_HUGETLB | libc::MFD_HUGE_2MB } else { 0 };
        // SAFETY: a name with its zero.
        let fd = unsafe { libc::memfd_create(c"front".as_ptr(), libc::MFD_CLOEXEC | huge) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, and nobody else's.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(len as u64)?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { file, start: start.cast(), len })
    }

    /// The memory file, for the back-end.
    #[must_use]
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Where it is mapped.
    #[must_use]
    pub const fn start(&self) -> *mut u8 {
        self.start
    }

    /// Its length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes: always false.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this is what `mmap` gave, whole.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}
