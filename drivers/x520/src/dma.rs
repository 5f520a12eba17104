//! Memory that the device may use by itself.

#![allow(unsafe_code, reason = "the same memory is reached by the CPU through pointers and by the device by address")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

/// A piece of memory that belongs to the driver and is one piece to the device too.
#[derive(Debug)]
pub struct DmaBuffer {
    host: NonNull<u8>,
    bus: u64,
    len: usize,
}

// SAFETY: it owns its memory, which is the same on every CPU.
unsafe impl Send for DmaBuffer {}

impl DmaBuffer {
    /// `len` bytes that the CPU sees at `host` and the device at address `bus`.
    ///
    /// # Safety
    /// Nobody else uses these bytes until the device can DMA no more: neither while the value lives nor after, unless
    /// the device was reset or its bus mastering taken away. They lie at `bus` and the addresses behind it without a
    /// gap.
    #[must_use]
    pub const unsafe fn new(host: NonNull<u8>, bus: u64, len: usize) -> Self {
        Self { host, bus, len }
    }

    /// Address for the device.
    #[must_use]
    pub const fn bus(&self) -> u64 {
        self.bus
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it is of no length.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes the first `len` bytes off. None: it is shorter.
    pub fn take(&mut self, len: usize) -> Option<Self> {
        let rest = self.len.checked_sub(len)?;
        let taken = Self { host: self.host, bus: self.bus, len };
        // SAFETY: `len` bytes further is within the buffer or at its end.
        self.host = unsafe { self.host.add(len) };
        self.bus += len as u64;
        self.len = rest;
        Some(taken)
    }

    /// The bytes of the slot `index` of `size` bytes, of which `len` are wanted.
    ///
    /// # Safety
    /// The device does not write there while the result lives.
    #[inline(always)]
    pub(crate) unsafe fn bytes(&self, index: u32, size: usize, len: usize) -> &[u8] {
        let at = index as usize * size;
        assert!(len <= size && at + len <= self.len);
        // SAFETY: within the buffer, as just checked; the caller answers for the device.
        unsafe { core::slice::from_raw_parts(self.host.as_ptr().add(at), len) }
    }

    /// Copies `from` into the slot `index` of `size` bytes and gives its address for the device.
    #[inline(always)]
    pub(crate) fn store(&mut self, index: u32, size: usize, from: &[u8]) -> u64 {
        let at = index as usize * size;
        assert!(from.len() <= size && at + from.len() <= self.len);
        // SAFETY: within the buffer, as just checked, which nobody else writes to; `from` cannot overlap it, as no
        // reference to the buffer is out while it is borrowed mutably.
        unsafe { self.host.as_ptr().add(at).copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        self.bus + at as u64
    }
}

/// A ring of descriptors, 16 bytes each.
#[derive(Debug)]
pub(crate) struct Ring {
    memory: DmaBuffer,
    mask: u32,
}

/// Bytes of a descriptor.
pub(crate) const DESCRIPTOR_BYTES: usize = 16;
/// A ring's address and length are multiples of that (8.2.3.8, 8.2.3.9).
pub(crate) const RING_ALIGN: usize = 128;

impl Ring {
    /// Makes a ring of a buffer. None: not aligned to 128 bytes, or the number of descriptors is no power of two.
    pub(crate) fn new(memory: DmaBuffer) -> Option<Self> {
        let count = memory.len / DESCRIPTOR_BYTES;
        let aligned =
            memory.bus.is_multiple_of(RING_ALIGN as u64) && memory.host.addr().get().is_multiple_of(RING_ALIGN);
        let good = aligned && memory.len.is_multiple_of(RING_ALIGN) && count.is_power_of_two();
        good.then(|| Self { mask: count as u32 - 1, memory })
    }

    /// Its memory, to name to the device.
    pub(crate) fn memory(&self) -> &DmaBuffer {
        &self.memory
    }

    /// The number of descriptors, less one: all ones.
    #[inline(always)]
    pub(crate) fn mask(&self) -> u32 {
        self.mask
    }

    #[inline(always)]
    fn word(&self, index: u32, half: usize) -> &AtomicU64 {
        let at = (index & self.mask) as usize * 2 + half;
        // SAFETY: the mask keeps it within the buffer, which is aligned; the CPU's access to it is atomic, as the
        // device's is for aligned words of 64 bits.
        unsafe { &*self.memory.host.as_ptr().cast::<AtomicU64>().add(at) }
    }

    /// The second word, in which the device says that it is done; what it wrote before is visible after.
    #[inline(always)]
    pub(crate) fn status(&self, index: u32) -> u64 {
        self.word(index, 1).load(Ordering::Acquire)
    }

    /// The first word.
    #[inline(always)]
    pub(crate) fn first(&self, index: u32) -> u64 {
        self.word(index, 0).load(Ordering::Relaxed)
    }

    /// Writes both. The device looks only once the tail has moved past them.
    #[inline(always)]
    pub(crate) fn write(&mut self, index: u32, words: [u64; 2]) {
        self.word(index, 0).store(words[0], Ordering::Relaxed);
        self.word(index, 1).store(words[1], Ordering::Relaxed);
    }

    /// Adds bits to the second word.
    #[inline(always)]
    pub(crate) fn or_status(&mut self, index: u32, bits: u64) {
        let word = self.word(index, 1);
        word.store(word.load(Ordering::Relaxed) | bits, Ordering::Relaxed);
    }
}
