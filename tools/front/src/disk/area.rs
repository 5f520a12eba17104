//! The memory of one queue of a disk: rings, headers, status bytes, data. All access is volatile or atomic, because the
//! back-end shares it.

#![allow(unsafe_code, reason = "memory that another process writes to")]

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

/// Offsets of descriptor table, driver's area and device's area. There is room for 1,024 descriptors.
pub const RINGS: [usize; 3] = [0, 0x4000, 0x5000];
const HEADERS: usize = 0x8000;
const STATUSES: usize = 0xc000;
const DATA: usize = 0xd000;
/// Bytes of a header.
pub const HEADER: usize = 16;

/// Descriptors of a request at most.
pub const CHAIN: u16 = 4;

/// Bytes that a queue takes, a multiple of 4 KiB.
pub const fn bytes(size: u16, data: usize) -> usize {
    (DATA + (size / CHAIN) as usize * data).next_multiple_of(4096)
}

/// The memory of one queue.
pub struct Area {
    start: *mut u8,
    /// The back-end's address of `start`.
    address: u64,
    pub size: u16,
    /// Bytes of data that a request may have.
    pub room: usize,
}

// SAFETY: the back-end writes to this memory anyway; all access is raw or atomic.
unsafe impl Send for Area {}

impl Area {
    /// Memory at `start`, which is page-aligned and [`bytes`] long, and outlives this value.
    pub fn new(start: *mut u8, address: u64, size: u16, room: usize) -> Self {
        assert!(size.is_power_of_two() && (4..=1024).contains(&size));
        Self { start, address, size, room }
    }

    fn at<T>(&self, offset: usize) -> *mut T {
        assert!(offset + size_of::<T>() <= bytes(self.size, self.room) && offset.is_multiple_of(align_of::<T>()));
        self.start.wrapping_add(offset).cast()
    }

    pub fn half(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: within the memory and aligned, as `at` checks; the back-end accesses it as one too.
        unsafe { AtomicU16::from_ptr(self.at(offset)) }
    }

    pub fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.at(offset)) }
    }

    pub fn double(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.at(offset)) }
    }

    /// Offset of a request's header.
    pub const fn header(slot: u16) -> usize {
        HEADERS + HEADER * slot as usize
    }

    /// Offset of a request's status byte.
    pub const fn status(slot: u16) -> usize {
        STATUSES + slot as usize
    }

    /// Offset of a request's data.
    pub const fn data(&self, slot: u16) -> usize {
        DATA + self.room * slot as usize
    }

    /// The back-end's address of an offset.
    pub const fn address(&self, offset: usize) -> u64 {
        self.address + offset as u64
    }

    /// Writes bytes.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        for (n, byte) in bytes.iter().enumerate() {
            // SAFETY: within the memory, as `at` checks.
            unsafe { self.at::<u8>(offset + n).write_volatile(*byte) };
        }
    }

    /// Reads bytes.
    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        // SAFETY: within the memory, as `at` checks.
        (0..len).map(|n| unsafe { self.at::<u8>(offset + n).read_volatile() }).collect()
    }
}
