//! The memory of one queue: the places of its rings, buffers and frames.
//!
//! The layout is that of a split ring (virtio 1.3 ch. 2.7). A packed ring uses the same places: a table of descriptors,
//! then two event suppression structures.

#![allow(unsafe_code, reason = "memory that another process writes to")]

use std::sync::atomic::AtomicU16;

/// Bytes of the virtio-net header.
pub const HEADER: usize = 12;
/// Bytes from one buffer to the next. An odd multiple of 128, so that frames spread over a cache's sets.
pub const STRIDE: usize = 2176;
/// Bytes from the start of a buffer to its frame.
pub(crate) const FRAME: usize = 128;
/// Bytes of the largest frame.
pub const MAX_FRAME: usize = STRIDE - FRAME;

/// Bytes that a queue and its buffers take.
#[must_use]
pub const fn area_bytes(size: u16) -> usize {
    // Descriptors, two pages for the available ring and the alignment, three for the used ring of up to 1,024 entries.
    16 * size as usize + 0x2000 + 0x3000 + STRIDE * size as usize
}

/// Memory for one queue and its buffers, shared with the back-end.
#[derive(Clone, Copy)]
pub struct Area {
    start: *mut u8,
    /// The back-end's address of `start`.
    address: u64,
    size: u16,
}

// SAFETY: the back-end writes to this memory anyway; all access is raw or atomic.
unsafe impl Send for Area {}

impl Area {
    /// An area at `start`, which is page-aligned, zeroed and [`area_bytes`] long. `address` is its address for the
    /// back-end.
    ///
    /// # Safety
    /// Nothing but the back-end uses that memory while an area of it exists.
    #[must_use]
    pub unsafe fn new(start: *mut u8, address: u64, size: u16) -> Self {
        assert!(size.is_power_of_two() && size <= 1024);
        Self { start, address, size }
    }

    pub(crate) const fn avail(&self) -> usize {
        16 * self.size as usize
    }

    pub(crate) const fn used(&self) -> usize {
        (self.avail() + 0x1000 + 0xfff) & !0xfff
    }

    const fn buffers(&self) -> usize {
        self.used() + 0x3000
    }

    /// Offsets of descriptor table, available ring and used ring. In a packed ring, the last two are the driver's and
    /// the device's event suppression structures.
    #[must_use]
    pub const fn rings(&self) -> [usize; 3] {
        [0, self.avail(), self.used()]
    }

    /// The back-end's address of the area.
    pub(crate) const fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn at<T>(&self, offset: usize) -> *mut T {
        self.start.wrapping_add(offset).cast()
    }

    pub(crate) fn index(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: within the area, aligned; the back-end accesses it as one too.
        unsafe { AtomicU16::from_ptr(self.at(offset)) }
    }

    pub(crate) fn buffer(&self, n: u16) -> usize {
        self.buffers() + STRIDE * n as usize
    }

    /// Descriptors of its ring.
    pub(crate) const fn size(&self) -> u16 {
        self.size
    }

    /// The back-end's address of the header in buffer `n`.
    pub(crate) fn address_of(&self, n: u16) -> u64 {
        self.address + (self.buffer(n) + FRAME - HEADER) as u64
    }

    pub(crate) fn write_descriptor(&self, n: u16, len: usize, flags: u16) {
        let address = self.address_of(n);
        let to = self.at::<u64>(16 * n as usize);
        let second = u64::from(len as u32 + HEADER as u32) | u64::from(flags) << 32;
        // SAFETY: descriptor n is within the area; the back-end does not look before it is offered.
        unsafe {
            to.write_volatile(address.to_le());
            to.wrapping_add(1).write_volatile(second.to_le());
        }
    }
}
