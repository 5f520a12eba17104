//! The floor: a loop that reads descriptors and copies, and does nothing that a switch is for.

#![allow(unsafe_code, reason = "the bare loop works on raw pointers")]

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use memory::copy::Copier;

use crate::driver::{MEMORY, Memory, Ring, SIZE};

/// A guest's ring as the loop uses it.
pub struct Side {
    start: *mut u8,
    parts: [usize; 3],
    position: u16,
}

// SAFETY: used by one thread at a time, and the memory behind it stays mapped.
unsafe impl Send for Side {}

impl Side {
    /// The device's side of a ring.
    pub const fn new(memory: &Memory, ring: &Ring) -> Self {
        Self { start: memory.start, parts: ring.parts(), position: 0 }
    }

    fn index(&self, at: usize) -> &AtomicU16 {
        // SAFETY: an aligned place of the driver's choice in the mapping; both sides use atomics on it.
        unsafe { AtomicU16::from_ptr(self.start.add(at).cast()) }
    }

    fn ready(&self) -> u16 {
        self.index(self.parts[1] + 2).load(Ordering::Acquire).wrapping_sub(self.position)
    }

    /// Buffer and length of the descriptor `i` positions on.
    fn buffer(&self, i: u16) -> (u16, *mut u8, usize) {
        let slot = usize::from(self.position.wrapping_add(i) % SIZE);
        // SAFETY: within the rings of this process's own driver, which wrote good descriptors.
        unsafe {
            let head = self.start.add(self.parts[1] + 4 + 2 * slot).cast::<u16>().read_volatile();
            let descriptor = self.start.add(self.parts[0] + 16 * usize::from(head));
            let at = descriptor.cast::<u64>().read_volatile() as usize;
            let len = descriptor.add(8).cast::<u32>().read_volatile() as usize;
            assert!(at + len <= MEMORY);
            (head, self.start.add(at), len)
        }
    }

    fn used(&self, i: u16, id: u16, len: usize) {
        let slot = usize::from(self.position.wrapping_add(i) % SIZE);
        let entry = u64::from(id) | (len as u64) << 32;
        // SAFETY: within the used ring.
        unsafe { self.start.add(self.parts[2] + 4 + 8 * slot).cast::<u64>().write_unaligned(entry) };
    }

    fn done(&mut self, n: u16) {
        self.position = self.position.wrapping_add(n);
        self.index(self.parts[2] + 2).store(self.position, Ordering::Release);
    }
}

/// Copies what is sent on `from` to buffers of `to`, in batches, until told to stop.
pub fn run(mut from: Side, mut to: Side, stop: &AtomicBool) {
    const BATCH: u16 = 32;
    // SAFETY: a process: the vector registers are its own, and its CPUs are alike.
    let copier = unsafe { Copier::widest() };
    while !stop.load(Ordering::Relaxed) {
        let n = from.ready().min(to.ready()).min(BATCH);
        if n == 0 {
            std::hint::spin_loop();
            continue;
        }
        let mut pairs = [(0, std::ptr::null_mut::<u8>(), 0, 0, std::ptr::null_mut::<u8>()); BATCH as usize];
        for i in 0..n {
            let ((id, src, len), (to_id, dst, _)) = (from.buffer(i), to.buffer(i));
            pairs[usize::from(i)] = (id, src, len, to_id, dst);
            // SAFETY: a hint; any address may be prefetched.
            unsafe {
                core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(src.cast());
                core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(src.add(64).cast());
            }
        }
        for (i, &(id, src, len, to_id, dst)) in pairs.iter().take(usize::from(n)).enumerate() {
            // SAFETY: both are buffers of the drivers' own, long enough for the frame.
            unsafe { copier.copy(dst, src, len) };
            from.used(i as u16, id, 0);
            to.used(i as u16, to_id, len);
        }
        to.done(n);
        from.done(n);
    }
}
