//! Memory that the controller accesses by DMA: the driver's own, and what requests name.

#![allow(unsafe_code, reason = "the same memory is reached by the CPU through pointers and by the device by address")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a page, for the controller too (CC.MPS is 0).
pub const PAGE: usize = 4096;

/// The machine's memory as the driver uses it.
///
/// # Safety
/// `allocate` returns memory as [`DmaBuffer::new`] requires it.
pub unsafe trait Dma {
    /// Allocates `pages` pages of zeroes, contiguous and aligned to [`PAGE`]. The driver calls it only while it is
    /// made. `None`: there is not so much memory.
    fn allocate(&mut self, pages: usize) -> Option<DmaBuffer>;

    /// Copies `len` bytes from the bus address `from`.
    ///
    /// # Safety
    /// [`Segment::new`] was called with these bytes, and its promise still holds. `to` is writable for `len` bytes.
    unsafe fn read(&self, from: u64, to: NonNull<u8>, len: usize);

    /// Copies `len` bytes to the bus address `to`.
    ///
    /// # Safety
    /// [`Segment::new`] was called with these bytes, and its promise still holds. `from` is readable for `len` bytes.
    unsafe fn write(&self, to: u64, from: NonNull<u8>, len: usize);
}

/// A piece of a request's data, which the controller reads or writes where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    address: u64,
    len: u32,
}

impl Segment {
    /// `len` bytes at the bus address `address`.
    ///
    /// # Safety
    /// Until the request is answered, the bytes stay memory that the device may read, and write if the request reads
    /// from the disk. Nobody holds a Rust reference to them.
    #[must_use]
    #[inline(always)]
    pub const unsafe fn new(address: u64, len: u32) -> Self {
        Self { address, len }
    }

    /// Its first `len` bytes, or all of it if it is shorter.
    #[must_use]
    pub const fn first(self, len: u32) -> Self {
        Self { address: self.address, len: if len < self.len { len } else { self.len } }
    }

    /// Bus address.
    #[must_use]
    #[inline(always)]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    #[must_use]
    #[inline(always)]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Contiguous memory that belongs to the driver.
#[derive(Debug)]
pub struct DmaBuffer {
    host: NonNull<u8>,
    bus: u64,
    len: usize,
}

// SAFETY: it owns its memory, which has the same address on every CPU.
unsafe impl Send for DmaBuffer {}

impl DmaBuffer {
    /// `len` initialized bytes that the CPU sees at `host` and the device at address `bus`. Both are aligned to
    /// [`PAGE`].
    ///
    /// # Safety
    /// Nobody else uses these bytes while the value lives. Nobody uses them afterwards either, until the device was
    /// reset or has lost its bus mastering. For the device they lie at `bus` without a gap.
    #[must_use]
    pub const unsafe fn new(host: NonNull<u8>, bus: u64, len: usize) -> Self {
        Self { host, bus, len }
    }

    /// Address for the device.
    #[must_use]
    pub const fn bus(&self) -> u64 {
        self.bus
    }

    /// Address for the device of a page of the buffer.
    pub(crate) const fn page_bus(&self, page: usize) -> u64 {
        self.bus.wrapping_add((page as u64).wrapping_mul(PAGE as u64))
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The 64-bit word number `index`. `None`: it is beyond the end, or the memory is not aligned.
    #[inline(always)]
    fn word(&self, index: usize) -> Option<&AtomicU64> {
        if index >= self.len / 8 || !self.host.addr().get().is_multiple_of(8) {
            return None;
        }
        // SAFETY: within the buffer and aligned, as just checked. CPU and device both access it atomically.
        Some(unsafe { self.host.cast::<AtomicU64>().add(index).as_ref() })
    }

    /// Reads a word. What the device wrote before it is visible afterwards. 0 beyond the end.
    #[inline(always)]
    pub(crate) fn load(&self, index: usize) -> u64 {
        self.word(index).map_or(0, |word| u64::from_le(word.load(Ordering::Acquire)))
    }

    /// Writes a word. The device reads it only after a doorbell was written. Nothing beyond the end.
    #[inline(always)]
    pub(crate) fn store(&self, index: usize, value: u64) {
        if let Some(word) = self.word(index) {
            word.store(value.to_le(), Ordering::Relaxed);
        }
    }

    /// Sets all bytes to 0.
    pub(crate) fn clear(&self) {
        (0..self.len / 8).for_each(|index| self.store(index, 0));
    }

    /// Copies the first `N` bytes out, a multiple of 8. Later changes by the device do not change the copy.
    pub(crate) fn copy<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        for (index, chunk) in bytes.chunks_exact_mut(8).enumerate() {
            chunk.copy_from_slice(&self.load(index).to_le_bytes());
        }
        bytes
    }

    /// The pointer to `len` bytes at `offset`. `None`: they are not all within.
    pub(crate) fn at(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len)?;
        // SAFETY: within the buffer, as just checked.
        (end <= self.len).then(|| unsafe { self.host.add(offset) })
    }
}

/// A buffer as the entries of a queue, of `N` words each, with a place that goes round.
#[derive(Debug)]
pub(crate) struct Entries<const N: usize> {
    memory: DmaBuffer,
    /// Entries, 1 or more. They are within `memory`, which is aligned.
    count: u16,
    /// The place: the address of one of the entries.
    at: NonNull<[AtomicU64; N]>,
    /// The address of the last entry.
    last: NonNull<[AtomicU64; N]>,
}

// SAFETY: the pointers are into the memory that it owns.
unsafe impl<const N: usize> Send for Entries<N> {}

impl<const N: usize> Entries<N> {
    /// The first `count` entries, with the place at the first. `None`: there are none, or the buffer is shorter or not
    /// aligned.
    pub(crate) fn new(memory: DmaBuffer, count: u16) -> Option<Self> {
        let is_aligned = memory.host.addr().get().is_multiple_of(align_of::<AtomicU64>());
        let last = usize::from(count.checked_sub(1)?);
        if !is_aligned || usize::from(count).saturating_mul(size_of::<[AtomicU64; N]>()) > memory.len() {
            return None;
        }
        let at = memory.host.cast::<[AtomicU64; N]>();
        // SAFETY: the last entry is within the buffer, as just checked.
        let last = unsafe { at.add(last) };
        Some(Self { memory, count, at, last })
    }

    /// Address for the device.
    pub(crate) const fn bus(&self) -> u64 {
        self.memory.bus()
    }

    /// All entries. The device may access them too.
    #[inline(always)]
    pub(crate) const fn all(&self) -> &[[AtomicU64; N]] {
        // SAFETY: within the buffer and aligned, as `new` has checked. CPU and device both access the words atomically.
        unsafe { core::slice::from_raw_parts(self.memory.host.as_ptr().cast(), self.count as usize) }
    }

    /// The entry at the place. Moves the place on, from the last entry to the first.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> &[AtomicU64; N] {
        let at = self.at;
        // SAFETY: an entry that is not the last one has another one after it.
        self.at = if at == self.last { self.memory.host.cast() } else { unsafe { at.add(1) } };
        // SAFETY: `at` is the address of an entry, as the fields say. See `all`.
        unsafe { at.as_ref() }
    }

    /// The number of the entry at the place, from 0 on.
    #[inline(always)]
    pub(crate) const fn place(&self) -> u16 {
        // SAFETY: both are addresses of entries of the same buffer.
        unsafe { self.at.offset_from_unsigned(self.memory.host.cast()) as u16 }
    }

    /// Sets all bytes of the buffer to 0, and the place to the first entry.
    pub(crate) fn reset(&mut self) {
        self.memory.clear();
        self.at = self.memory.host.cast();
    }
}
