//! A guest's memory, as far as QEMU has shared it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use x520_model::memory::Dma;

struct Mapping {
    address: u64,
    size: u64,
    host: *mut u8,
    writable: bool,
}

// SAFETY: memory shared with another process; every access goes through the mutex and copies bytes.
unsafe impl Send for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is what `mmap` gave, whole, and nobody uses it any more.
        unsafe { libc::munmap(self.host.cast(), self.size as usize) };
    }
}

#[derive(Default)]
struct Inner {
    mappings: Vec<Mapping>,
    /// Ranges of which is counted how often the device reaches them: begin and end.
    watched: Vec<(u64, u64)>,
    touched: Touched,
}

/// How often the device has read and written what is watched.
#[derive(Clone, Copy, Default)]
pub struct Touched {
    pub reads: u64,
    pub writes: u64,
}

impl Inner {
    fn watches(&self, address: u64, len: usize) -> bool {
        self.watched.iter().any(|&(start, end)| address < end && start < address.saturating_add(len as u64))
    }
}

/// All that is mapped. Clones are the same.
#[derive(Clone, Default)]
pub struct GuestMemory(Arc<Mutex<Inner>>);

impl GuestMemory {
    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts from now on how often the device reaches these bytes.
    pub fn watch(&self, address: u64, size: u64) {
        self.with(|m| m.watched.push((address, address.saturating_add(size))));
    }

    /// What was counted of that.
    pub fn touched(&self) -> Touched {
        self.with(|m| m.touched)
    }

    /// Maps `size` bytes of a file at `address`.
    pub fn map(&self, address: u64, size: u64, file: &File, offset: u64, writable: bool) -> std::io::Result<()> {
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let host = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size as usize,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if host == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        self.with(|m| m.mappings.push(Mapping { address, size, host: host.cast(), writable }));
        Ok(())
    }

    /// Unmaps what lies within these bytes.
    pub fn unmap(&self, address: u64, size: u64) {
        let end = address.saturating_add(size);
        self.with(|m| m.mappings.retain(|r| r.address < address || r.address + r.size > end));
    }
}

fn find(mappings: &[Mapping], address: u64, len: usize, write: bool) -> Option<*mut u8> {
    let r = mappings.iter().find(|r| address >= r.address && address - r.address < r.size)?;
    let at = address - r.address;
    (r.size - at >= len as u64 && (r.writable || !write)).then(|| r.host.wrapping_add(at as usize))
}

/// Writes `from` to memory that another process polls.
///
/// A descriptor is written word by word, each word once, the last word last. A copy by `memcpy` may store the same bytes
/// twice: between the two stores the driver can see the descriptor, give it a new buffer, and lose that again.
///
/// # Safety
/// `to` is valid for writes of as many bytes as `from` has.
unsafe fn store(to: *mut u8, from: &[u8]) {
    let (words, rest) = from.as_chunks::<8>();
    if rest.is_empty() && words.len() <= 2 && to.addr().is_multiple_of(8) {
        for (i, word) in words.iter().enumerate() {
            // SAFETY: aligned, as just checked, and within the bytes that the caller vouches for.
            let place = unsafe { AtomicU64::from_ptr(to.cast::<u64>().add(i)) };
            place.store(u64::from_ne_bytes(*word), Ordering::Release);
        }
    } else {
        // SAFETY: as the caller says; `from` is this process's own.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }
}

impl Dma for GuestMemory {
    fn read(&mut self, address: u64, into: &mut [u8]) -> bool {
        self.with(|m| {
            m.touched.reads += u64::from(m.watches(address, into.len()));
            let Some(from) = find(&m.mappings, address, into.len(), false) else { return false };
            // SAFETY: within a mapping, as just checked; `into` is this process's own.
            unsafe { from.copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
            true
        })
    }

    fn write(&mut self, address: u64, from: &[u8]) -> bool {
        self.with(|m| {
            m.touched.writes += u64::from(m.watches(address, from.len()));
            let Some(to) = find(&m.mappings, address, from.len(), true) else { return false };
            // SAFETY: within a writable mapping, as just checked.
            unsafe { store(to, from) };
            true
        })
    }
}
