//! Memory that the device may use by itself.

#![allow(unsafe_code, reason = "the same memory is reached by the CPU through pointers and by the device by address")]

use core::marker::PhantomData;
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
}

/// A buffer cut into slots of `SIZE` bytes, as many as a ring has descriptors: a power of two.
#[derive(Debug)]
pub(crate) struct Slots<const SIZE: usize> {
    memory: DmaBuffer,
    mask: u32,
}

impl<const SIZE: usize> Slots<SIZE> {
    /// Cuts a buffer for a ring with that mask. None: it is too short.
    pub(crate) fn new(memory: DmaBuffer, mask: u32) -> Option<Self> {
        let whole = (mask as usize + 1).checked_mul(SIZE).is_some_and(|len| len <= memory.len);
        ((mask + 1).is_power_of_two() && whole).then_some(Self { memory, mask })
    }

    #[inline(always)]
    fn at(&self, index: u32) -> usize {
        (index & self.mask) as usize * SIZE
    }

    /// Address of a slot for the device.
    #[inline(always)]
    pub(crate) fn bus(&self, index: u32) -> u64 {
        self.memory.bus + self.at(index) as u64
    }

    /// The first `len` bytes of a slot. None: it has not so many.
    ///
    /// # Safety
    /// The device does not write there while the result lives.
    #[inline(always)]
    pub(crate) unsafe fn bytes(&self, index: u32, len: usize) -> Option<&[u8]> {
        // SAFETY: within the buffer: `new` has checked that it has a slot for each index under the mask; the caller answers
        // for the device.
        (len <= SIZE)
            .then(|| unsafe { core::slice::from_raw_parts(self.memory.host.as_ptr().add(self.at(index)), len) })
    }

    /// Copies `from` to the start of a slot and gives the slot's address for the device.
    #[inline(always)]
    pub(crate) fn store(&mut self, index: u32, from: &[u8]) -> u64 {
        assert!(from.len() <= SIZE);
        // SAFETY: within the buffer, as in `bytes`; nobody else writes there, and `from` cannot overlap it, as no reference
        // to the buffer is out while it is borrowed mutably.
        unsafe { copy_header(from, self.memory.host.as_ptr().add(self.at(index))) };
        self.bus(index)
    }

    /// Puts a value into a slot, in the order of bytes on the wire.
    pub(crate) fn put(&mut self, index: u32, offset: usize, value: u16) {
        assert!(offset + 2 <= SIZE);
        // SAFETY: within the slot, as just checked; nobody else writes there.
        unsafe { self.memory.host.as_ptr().add(self.at(index) + offset).cast::<[u8; 2]>().write(value.to_be_bytes()) };
    }
}

/// Copies a frame's header. Most have 33 to 64 bytes: a call of the general routine would cost more than two moves of 32,
/// which overlap.
///
/// # Safety
/// `to` takes `from.len()` bytes, which are not those of `from`.
#[inline(always)]
unsafe fn copy_header(from: &[u8], to: *mut u8) {
    type Half = [u64; 4];
    const HALF: usize = size_of::<Half>();
    let (start, len) = (from.as_ptr(), from.len());
    if len > HALF && len <= 2 * HALF {
        // SAFETY: both halves lie within `len` bytes, which the caller answers for.
        unsafe {
            let (first, last) =
                (start.cast::<Half>().read_unaligned(), start.add(len - HALF).cast::<Half>().read_unaligned());
            to.cast::<Half>().write_unaligned(first);
            to.add(len - HALF).cast::<Half>().write_unaligned(last);
        }
    } else {
        // SAFETY: the caller answers for it.
        unsafe { to.copy_from_nonoverlapping(start, len) };
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

    /// The descriptors, for a loop to keep.
    #[inline(always)]
    pub(crate) fn descriptors(&self) -> Descriptors<'_> {
        Descriptors { base: self.memory.host.cast(), mask: self.mask, ring: PhantomData }
    }
}

/// The descriptors of a ring. The device writes some of them at any time, in aligned words of 64 bits.
#[derive(Clone, Copy)]
pub(crate) struct Descriptors<'a> {
    base: NonNull<[AtomicU64; 2]>,
    mask: u32,
    ring: PhantomData<&'a Ring>,
}

impl Descriptors<'_> {
    #[inline(always)]
    fn words(&self, index: u32) -> &[AtomicU64; 2] {
        // SAFETY: the mask keeps it within the ring's buffer, which is aligned and lives; the CPU's access to it is atomic, as
        // the device's is.
        unsafe { self.base.add((index & self.mask) as usize).as_ref() }
    }

    /// The second word, in which the device says that it is done; what it wrote before is visible after.
    #[inline(always)]
    pub(crate) fn status(&self, index: u32) -> u64 {
        self.words(index)[1].load(Ordering::Acquire)
    }

    /// The first word.
    #[inline(always)]
    pub(crate) fn first(&self, index: u32) -> u64 {
        self.words(index)[0].load(Ordering::Relaxed)
    }

    /// Writes both. The device looks only once the tail has moved past them.
    #[inline(always)]
    pub(crate) fn write(&self, index: u32, words: [u64; 2]) {
        let slot = self.words(index);
        slot[0].store(words[0], Ordering::Relaxed);
        slot[1].store(words[1], Ordering::Relaxed);
    }

    /// Adds bits to the second word.
    #[inline(always)]
    pub(crate) fn or_status(&self, index: u32, bits: u64) {
        let word = &self.words(index)[1];
        word.store(word.load(Ordering::Relaxed) | bits, Ordering::Relaxed);
    }
}
