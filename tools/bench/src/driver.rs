//! The guest's side: memory of its own and a bare driver of split rings on it, fast enough not to be the limit.
//!
//! Ring entries are written once, when the ring is set up: slot i of each ring holds buffer i for ever, so that to send
//! or to post is to touch the frame and to move an index on. Frames begin on a cache line, as in DPDK's buffers.

#![allow(unsafe_code, reason = "a driver of rings in shared memory, which is raw pointers")]

use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::Context;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

/// Descriptors of each ring.
pub const SIZE: u16 = 256;
/// Bytes of a guest's memory: two huge pages.
pub const MEMORY: usize = 4 << 20;
/// Bytes of the virtio-net header.
pub const HEADER: usize = 12;
const RING: usize = 0x4000;
const AVAIL: usize = 0x2000;
const USED: usize = 0x3000;
const STRIDE: usize = 2304;
const LINE: usize = 64;

/// A guest's memory, shared with the switch. Mapped as long as the process lives.
pub struct Memory {
    /// The file behind it.
    pub file: OwnedFd,
    /// Where it is mapped here.
    pub start: *mut u8,
}

impl Memory {
    /// New memory, in huge pages.
    ///
    /// # Errors
    /// There are no huge pages left.
    pub fn new() -> anyhow::Result<Self> {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB)?;
        ftruncate(&file, MEMORY as u64)?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address of the system's choice.
        let start = unsafe { mmap(ptr::null_mut(), MEMORY, prot, flags, &file, 0) }
            .context("huge pages for the guest's memory (see /proc/sys/vm/nr_hugepages)")?;
        Ok(Self { file, start: start.cast() })
    }
}

/// One ring of a guest.
pub struct Ring {
    start: *mut u8,
    ring: usize,
    buffers: usize,
    avail: u16,
    used: u16,
}

// SAFETY: a ring is used by one thread at a time, and the memory behind it stays mapped.
unsafe impl Send for Ring {}

impl Ring {
    /// Ring number `index` of a guest, every buffer `len` bytes with the virtio-net header, for the device to write or
    /// to read.
    pub fn new(memory: &Memory, index: usize, len: usize, writable: bool) -> Self {
        let (ring, buffers) = (index * RING, 0x10_0000 + index * 0x10_0000);
        let this = Self { start: memory.start, ring, buffers, avail: 0, used: 0 };
        for i in 0..usize::from(SIZE) {
            let at = ring + 16 * i;
            this.put(at, this.buffer(i) as u64);
            this.put(at + 8, len as u32);
            this.put(at + 12, u16::from(writable) << 1);
            this.put(at + 14, 0u16);
            this.put(ring + AVAIL + 4 + 2 * i, i as u16);
        }
        for at in [ring + AVAIL, ring + AVAIL + 2, ring + USED, ring + USED + 2] {
            this.put(at, 0u16);
        }
        // Neither flags nor used_event ask for an interrupt.
        this.put(ring + AVAIL, 1u16);
        this.quiet();
        this
    }

    /// Offsets of descriptor table, available and used ring in the guest's memory.
    pub const fn parts(&self) -> [usize; 3] {
        [self.ring, self.ring + AVAIL, self.ring + USED]
    }

    fn put<T>(&self, at: usize, value: T) {
        assert!(at + size_of::<T>() <= MEMORY);
        // SAFETY: within the mapping, as just checked; the device reads it as raw memory.
        unsafe { self.start.add(at).cast::<T>().write_volatile(value) };
    }

    fn get<T: Copy>(&self, at: usize) -> T {
        debug_assert!(at + size_of::<T>() <= MEMORY);
        // SAFETY: offsets are this driver's own, within the mapping; any bytes are a valid value of the integers used.
        unsafe { self.start.add(at).cast::<T>().read_volatile() }
    }

    fn index(&self, at: usize) -> &AtomicU16 {
        // SAFETY: an aligned place in the mapping, which lives as long as the process; both sides use atomics on it.
        unsafe { AtomicU16::from_ptr(self.start.add(at).cast()) }
    }

    /// Offset of buffer `i`: its frame begins on a cache line, the header just before.
    pub const fn buffer(&self, i: usize) -> usize {
        self.buffers + i * STRIDE + LINE - HEADER
    }

    fn quiet(&self) {
        self.put(self.ring + AVAIL + 4 + 2 * usize::from(SIZE), self.used.wrapping_sub(0x4000));
    }

    /// Fills each buffer with a frame.
    pub fn fill(&self, frame: &[u8]) {
        for i in 0..usize::from(SIZE) {
            let at = self.buffer(i);
            for j in 0..HEADER {
                self.put(at + j, 0u8);
            }
            for (j, byte) in frame.iter().enumerate() {
                self.put(at + HEADER + j, *byte);
            }
        }
    }

    /// Offers `n` more buffers.
    pub fn offer(&mut self, n: u16) {
        self.avail = self.avail.wrapping_add(n);
        self.index(self.ring + AVAIL + 2).store(self.avail, Ordering::Release);
    }

    /// How many have come back since the last time, and lets go of them.
    pub fn reap(&mut self) -> u16 {
        let now = self.index(self.ring + USED + 2).load(Ordering::Acquire);
        let n = now.wrapping_sub(self.used);
        if (self.used ^ now) & 0x1000 != 0 {
            self.quiet();
        }
        self.used = now;
        n
    }

    /// Buffers that may be offered.
    pub const fn free(&self) -> u16 {
        SIZE - self.avail.wrapping_sub(self.used)
    }

    /// Writes to each line of the next `n` frames to be offered.
    pub fn touch_next(&self, n: u16, len: usize) {
        for i in 0..n {
            let slot = self.avail.wrapping_add(i) % SIZE;
            let frame = self.buffer(usize::from(slot)) + HEADER;
            // The addresses in the first line stay; what follows them is payload.
            for line in (0..len).step_by(LINE) {
                self.put(frame + line + 20, u32::from(self.avail));
            }
        }
    }

    /// Reads each line of the last `n` frames that came back; the sum keeps the reads.
    pub fn touch_last(&self, n: u16, len: usize) -> u64 {
        let mut sum = 0u64;
        for i in 1..=n {
            let position = self.used.wrapping_sub(i) % SIZE;
            let id: u32 = self.get(self.ring + USED + 4 + 8 * usize::from(position));
            let frame = self.buffer(id as usize % usize::from(SIZE)) + HEADER;
            for line in (0..len).step_by(LINE) {
                sum = sum.wrapping_add(u64::from(self.get::<u32>(frame + line + 20)));
            }
        }
        sum
    }
}
