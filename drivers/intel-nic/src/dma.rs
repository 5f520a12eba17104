//! Memory that the device accesses by DMA.

#![allow(unsafe_code, reason = "the same memory is reached by the CPU through pointers and by the device by address")]

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

/// A contiguous piece of memory that belongs to the driver. It is contiguous for the device too.
#[derive(Debug)]
pub struct DmaBuffer {
    host: NonNull<u8>,
    bus: u64,
    len: usize,
}

// SAFETY: it owns its memory, which has the same address on every CPU.
unsafe impl Send for DmaBuffer {}

impl DmaBuffer {
    /// `len` initialized bytes that the CPU sees at `host` and the device at address `bus`.
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

    /// Splits the first `len` bytes off. `None`: it is shorter.
    pub fn take(&mut self, len: usize) -> Option<Self> {
        let rest = self.len.checked_sub(len)?;
        let taken = Self { host: self.host, bus: self.bus, len };
        // SAFETY: `len` bytes further is within the buffer or at its end.
        self.host = unsafe { self.host.add(len) };
        // The end of the buffer may be 2^64.
        self.bus = self.bus.wrapping_add(len as u64);
        self.len = rest;
        Some(taken)
    }
}

/// A ring of descriptors of 16 bytes, with a slot of `SLOT` bytes for each descriptor.
#[derive(Debug)]
pub struct Ring<const SLOT: usize> {
    memory: DmaBuffer,
    slots: DmaBuffer,
    /// The bits of a position that are the offset of its descriptor.
    mask: u32,
}

/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: usize = 16;
/// Difference of two neighbouring positions in a ring. Positions are counted in bytes, which saves shifts. They run on
/// without end and are taken modulo the ring's length when used.
pub(crate) const STEP: u32 = DESCRIPTOR_BYTES as u32;
/// A ring's address and length are multiples of this number of bytes (8.2.3.8, 8.2.3.9).
pub(crate) const RING_ALIGN: usize = 128;

impl<const SLOT: usize> Ring<SLOT> {
    /// Makes a ring of two buffers. `None`: the memory is not aligned to 128 bytes, the number of descriptors is no
    /// power of two, or there are fewer slots than descriptors.
    pub fn new(memory: DmaBuffer, slots: DmaBuffer) -> Option<Self> {
        let count = memory.len / DESCRIPTOR_BYTES;
        let aligned =
            memory.bus.is_multiple_of(RING_ALIGN as u64) && memory.host.addr().get().is_multiple_of(RING_ALIGN);
        let good = aligned && memory.len.is_multiple_of(RING_ALIGN) && count.is_power_of_two();
        let enough = count.checked_mul(SLOT).is_some_and(|len| len <= slots.len);
        let mask = u32::try_from(memory.len).ok()?.checked_sub(STEP)?;
        (good && enough).then_some(Self { mask, memory, slots })
    }

    /// The descriptors' memory, for the device.
    pub fn memory(&self) -> &DmaBuffer {
        &self.memory
    }

    /// The number of descriptors.
    pub fn count(&self) -> u32 {
        self.bytes() / STEP
    }

    /// Bytes from the first descriptor to the last.
    #[inline(always)]
    pub(crate) fn span(&self) -> u32 {
        self.mask
    }

    /// The number of the descriptor at a position, as in the device's registers.
    #[inline(always)]
    pub(crate) fn number(&self, at: u32) -> u32 {
        (at & self.mask) / STEP
    }

    /// The offset of the descriptor at a position.
    #[inline(always)]
    pub(crate) fn offset(&self, at: u32) -> u32 {
        at & self.mask
    }

    /// Bytes of all descriptors.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> u32 {
        self.mask.wrapping_add(STEP)
    }

    /// The ring's addresses in one value, which a loop can keep in CPU registers.
    #[inline(always)]
    pub(crate) fn view(&self) -> View<'_, SLOT> {
        View {
            descriptors: self.memory.host.cast(),
            slots: self.slots.host,
            bus: self.slots.bus,
            mask: self.mask,
            ring: PhantomData,
        }
    }

    /// The same, for a loop that does not pass the end of the ring.
    #[inline(always)]
    pub(crate) fn row(&self) -> Row<'_, SLOT> {
        Row(self.view())
    }

    /// Copies `from` to the start of a slot. Returns the slot's address for the device.
    pub(crate) fn store(&mut self, at: u32, from: &[u8]) -> u64 {
        assert!(from.len() <= SLOT);
        let view = self.view();
        // SAFETY: within the slot, as just checked; nobody else writes there. `from` cannot overlap it, because there
        // is no reference to a slot while the ring is borrowed mutably.
        unsafe { view.slot(at).as_ptr().copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        view.slot_bus(at)
    }

    /// Writes a value into a slot, in network byte order.
    pub(crate) fn put(&mut self, at: u32, offset: usize, value: u16) {
        assert!(offset <= const { SLOT - 2 });
        // SAFETY: within the slot, as just checked; nobody else writes there.
        unsafe { self.view().slot(at).add(offset).cast::<[u8; 2]>().write(value.to_be_bytes()) };
    }
}

/// A ring's addresses, for a loop. The device writes descriptors at any time, in aligned words of 64 bits.
#[derive(Clone, Copy)]
pub(crate) struct View<'a, const SLOT: usize> {
    descriptors: NonNull<[AtomicU64; 2]>,
    slots: NonNull<u8>,
    bus: u64,
    mask: u32,
    ring: PhantomData<&'a Ring<SLOT>>,
}

impl<'a, const SLOT: usize> View<'a, SLOT> {
    #[inline(always)]
    fn words(&self, at: u32) -> &'a [AtomicU64; 2] {
        // SAFETY: the mask keeps the offset at a descriptor of the ring's buffer, which is aligned and lives. CPU and
        // device both access it atomically.
        unsafe { self.descriptors.byte_add((at & self.mask) as usize).as_ref() }
    }

    /// Reads the second word, in which the device says that it is done. Acquire: what the device wrote before is
    /// visible afterwards.
    #[inline(always)]
    pub(crate) fn status(&self, at: u32) -> u64 {
        self.words(at)[1].load(Ordering::Acquire)
    }

    /// Reads the first word.
    #[inline(always)]
    pub(crate) fn first(&self, at: u32) -> u64 {
        self.words(at)[0].load(Ordering::Relaxed)
    }

    /// Writes both words. The device reads them only after the tail has moved past them.
    #[inline(always)]
    pub(crate) fn write(&self, at: u32, words: [u64; 2]) {
        let slot = self.words(at);
        slot[0].store(words[0], Ordering::Relaxed);
        slot[1].store(words[1], Ordering::Relaxed);
    }

    /// Adds bits to the second word.
    #[inline(always)]
    pub(crate) fn or_status(&self, at: u32, bits: u64) {
        let word = &self.words(at)[1];
        word.store(word.load(Ordering::Relaxed) | bits, Ordering::Relaxed);
    }

    #[inline(always)]
    fn offset(&self, at: u32) -> usize {
        const { assert!(SLOT.is_multiple_of(DESCRIPTOR_BYTES)) };
        ((at & self.mask) as usize).wrapping_mul(SLOT / DESCRIPTOR_BYTES)
    }

    #[inline(always)]
    fn slot(&self, at: u32) -> NonNull<u8> {
        // SAFETY: within the slots: `new` has checked that there is one for each descriptor.
        unsafe { self.slots.add(self.offset(at)) }
    }

    /// Address of a slot for the device.
    #[inline(always)]
    pub(crate) fn slot_bus(&self, at: u32) -> u64 {
        self.bus.wrapping_add(self.offset(at) as u64)
    }

    /// A whole slot, for writing.
    ///
    /// # Safety
    /// Neither the device nor anybody else uses the slot while the result lives.
    #[inline(always)]
    pub(crate) unsafe fn slot_mut(&self, at: u32) -> &'a mut [u8; SLOT] {
        // SAFETY: it is a whole slot. The caller promises that nobody else uses it.
        unsafe { self.slot(at).cast().as_mut() }
    }

    /// The first `len` bytes of a slot. `None`: the slot is shorter.
    ///
    /// # Safety
    /// The device does not write there while the result lives.
    #[inline(always)]
    pub(crate) unsafe fn bytes(&self, at: u32, len: usize) -> Option<&'a [u8]> {
        // SAFETY: within the slot, as just checked. The caller promises that the device does not write there.
        (len <= SLOT).then(|| unsafe { core::slice::from_raw_parts(self.slot(at).as_ptr(), len) })
    }
}

/// A ring's addresses, for a loop that does not pass the end of the ring. It uses byte offsets of descriptors, without
/// a mask.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a, const SLOT: usize>(View<'a, SLOT>);

impl<'a, const SLOT: usize> Row<'a, SLOT> {
    /// Writes both words of a descriptor. The device reads them only after the tail has moved past them.
    ///
    /// # Safety
    /// `offset` is the offset of a descriptor.
    #[inline(always)]
    pub(crate) unsafe fn write(&self, offset: usize, words: [u64; 2]) {
        // SAFETY: within the ring's buffer, as the caller promises; for the rest see `View::words`.
        let slot = unsafe { self.0.descriptors.byte_add(offset).as_ref() };
        slot[0].store(words[0], Ordering::Relaxed);
        slot[1].store(words[1], Ordering::Relaxed);
    }

    /// The slot of a descriptor.
    ///
    /// # Safety
    /// `offset` is the offset of a descriptor. Neither the device nor anybody else uses the slot while the result
    /// lives.
    #[inline(always)]
    pub(crate) unsafe fn slot(&self, offset: usize) -> &'a mut [u8; SLOT] {
        // SAFETY: within the slots, as each descriptor has one. The caller promises that nobody else uses it.
        unsafe { self.0.slots.add(offset.wrapping_mul(SLOT / DESCRIPTOR_BYTES)).cast().as_mut() }
    }

    /// The device's address of a slot of this ring.
    #[inline(always)]
    pub(crate) fn bus(&self, slot: &[u8; SLOT]) -> u64 {
        (slot.as_ptr().addr() as u64).wrapping_add(self.0.bus.wrapping_sub(self.0.slots.addr().get() as u64))
    }
}
