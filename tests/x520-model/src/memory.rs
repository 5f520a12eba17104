//! Memory for DMA. The device reaches only granted parts of it.

#![allow(unsafe_code, reason = "a driver holds pointers into the same memory")]

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// The accesses that are granted to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Read and write.
    ReadWrite,
}

/// The device's access to memory. Both methods return false if the transaction was refused. Then nothing was
/// transferred.
pub trait Dma {
    /// Reads at a bus address.
    fn read(&mut self, address: u64, into: &mut [u8]) -> bool;
    /// Writes at a bus address.
    fn write(&mut self, address: u64, from: &[u8]) -> bool;
}

#[derive(Clone, Copy, Debug)]
struct Grant {
    start: u64,
    end: u64,
    access: Access,
}

#[derive(Debug)]
struct Inner {
    /// What was allocated for all of it, and from where on it is used.
    backing: NonNull<[u128]>,
    host: NonNull<u8>,
    len: usize,
    used: usize,
    grants: Vec<Grant>,
}

// SAFETY: it owns its backing, and every access goes through the mutex, or through the pointers that `allocate` hands
// out, whose users order themselves by the device's registers.
unsafe impl Send for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: `new` has made it of a box, and nobody has it any more.
        drop(unsafe { Box::from_raw(self.backing.as_ptr()) });
    }
}

/// Memory of a test. Its bus addresses differ from the host's. A clone is the same memory.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Mutex<Inner>>);

/// A part of the memory, as the host and as the device see it.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Its address for the host.
    pub host: NonNull<u8>,
    /// Its address for the device.
    pub bus: u64,
    /// Its length in bytes.
    pub len: usize,
}

impl Memory {
    /// Bus address of its first byte: above 4 GiB, so that a lost upper half shows.
    pub const BASE: u64 = 0x12_3450_0000;

    /// A memory of `len` bytes. None of them is granted. It lives as long as the last of its clones.
    ///
    /// # Panics
    /// There is not enough memory.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let words = vec![0u128; len.div_ceil(16) + 256].into_boxed_slice();
        let backing = NonNull::new(Box::into_raw(words)).expect("not null");
        let start = backing.as_ptr().cast::<u8>();
        let host = NonNull::new(start.wrapping_add(start.align_offset(4096))).expect("not null");
        Self(Arc::new(Mutex::new(Inner { backing, host, len, used: 0, grants: Vec::new() })))
    }

    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Allocates `len` bytes of zeroes, aligned. They are not granted.
    ///
    /// # Panics
    /// The memory is used up.
    #[must_use]
    pub fn allocate(&self, len: usize, align: usize) -> Block {
        self.with(|m| {
            let at = m.used.next_multiple_of(align);
            assert!(at + len <= m.len, "{len} bytes wanted, {} left", m.len.saturating_sub(at));
            m.used = at + len;
            // SAFETY: within the backing, as just checked.
            Block { host: unsafe { m.host.add(at) }, bus: Self::BASE + at as u64, len }
        })
    }

    /// Allocates `len` bytes, and grants them for reading and writing.
    #[must_use]
    pub fn granted(&self, len: usize, align: usize) -> Block {
        let block = self.allocate(len, align);
        self.grant(block.bus, len, Access::ReadWrite);
        block
    }

    /// Bytes that are allocated, for [`Memory::rewind`].
    #[must_use]
    pub fn used(&self) -> usize {
        self.with(|m| m.used)
    }

    /// Frees what was allocated after the first `used` bytes, and revokes its grants. Those bytes are zeroes when they are
    /// allocated again. Nobody uses them any more.
    pub fn rewind(&self, used: usize) {
        self.with(|m| {
            let freed = m.used.saturating_sub(used);
            // SAFETY: within the backing, because it was allocated.
            unsafe { m.host.add(used).write_bytes(0, freed) };
            m.used -= freed;
            m.grants.retain(|g| g.end <= Self::BASE + used as u64);
        });
    }

    /// Grants some bytes to the device.
    pub fn grant(&self, address: u64, len: usize, access: Access) {
        self.with(|m| m.grants.push(Grant { start: address, end: address + len as u64, access }));
    }

    /// Revokes every grant that overlaps these bytes.
    pub fn revoke(&self, address: u64, len: usize) {
        let end = address + len as u64;
        self.with(|m| m.grants.retain(|g| g.end <= address || end <= g.start));
    }

    /// Copies bytes to a bus address, as the host would.
    ///
    /// # Panics
    /// They are not all within.
    pub fn fill(&self, address: u64, from: &[u8]) {
        let at = self.with(|m| m.locate(address, from.len())).expect("within the memory");
        // SAFETY: within the backing, as just checked.
        unsafe { at.as_ptr().copy_from(from.as_ptr(), from.len()) };
    }

    /// Copies bytes from a bus address, as the host would.
    ///
    /// # Panics
    /// They are not all within.
    #[must_use]
    pub fn copy(&self, address: u64, len: usize) -> Vec<u8> {
        let at = self.with(|m| m.locate(address, len)).expect("within the memory");
        let mut bytes = vec![0; len];
        // SAFETY: within the backing, as just checked.
        unsafe { at.as_ptr().copy_to(bytes.as_mut_ptr(), len) };
        bytes
    }
}

impl Inner {
    fn locate(&self, address: u64, len: usize) -> Option<NonNull<u8>> {
        let at = usize::try_from(address.checked_sub(Memory::BASE)?).ok()?;
        // SAFETY: within the backing, as the condition checks.
        (at.checked_add(len)? <= self.len).then(|| unsafe { self.host.add(at) })
    }

    /// Where an access goes, if one grant covers all of it.
    fn check(&self, address: u64, len: usize, write: bool) -> Option<NonNull<u8>> {
        let end = address.checked_add(len as u64)?;
        let covers = |g: &Grant| g.start <= address && end <= g.end && (!write || g.access == Access::ReadWrite);
        self.grants.iter().any(covers).then(|| self.locate(address, len))?
    }
}

impl Dma for Memory {
    fn read(&mut self, address: u64, into: &mut [u8]) -> bool {
        let Some(at) = self.with(|m| m.check(address, into.len(), false)) else { return false };
        // SAFETY: within the backing; `into` is the model's own.
        unsafe { at.as_ptr().copy_to(into.as_mut_ptr(), into.len()) };
        true
    }

    fn write(&mut self, address: u64, from: &[u8]) -> bool {
        let Some(at) = self.with(|m| m.check(address, from.len(), true)) else { return false };
        // SAFETY: within the backing; `from` is the model's own.
        unsafe { at.as_ptr().copy_from(from.as_ptr(), from.len()) };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{Access, Dma, Memory};

    #[test]
    fn only_what_was_granted_is_reached() {
        let mut m = Memory::new(0x4000);
        let block = m.allocate(0x1000, 0x1000);
        assert!(!m.read(block.bus, &mut [0; 4]));
        m.grant(block.bus, 0x800, Access::Read);
        assert!(m.read(block.bus + 0x7fc, &mut [0; 4]) && !m.read(block.bus + 0x7fd, &mut [0; 4]));
        assert!(!m.write(block.bus, &[1]));
        m.grant(block.bus, 0x1000, Access::ReadWrite);
        assert!(m.write(block.bus + 0xffc, &[1, 2, 3, 4]));
        assert_eq!(m.copy(block.bus + 0xffc, 4), [1, 2, 3, 4]);
        m.revoke(block.bus + 0x10, 1);
        assert!(!m.read(block.bus, &mut [0]) && !m.write(u64::MAX, &[1, 2]));
    }

    #[test]
    fn what_is_rewound_is_not_granted_and_zero_the_next_time() {
        let mut m = Memory::new(0x4000);
        let kept = m.granted(0x1000, 0x1000);
        let used = m.used();
        let first = m.granted(0x1800, 0x1000);
        assert!(m.write(kept.bus, &[1]) && m.write(first.bus, &[2]));
        m.rewind(used);
        assert!(m.read(kept.bus, &mut [0]) && !m.read(first.bus, &mut [0]));
        let second = m.allocate(0x3000, 0x1000);
        assert_eq!((second.bus, m.copy(kept.bus, 1), m.copy(second.bus, 1)), (first.bus, vec![1], vec![0]));
    }
}
