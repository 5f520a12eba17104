//! Brings a driver's kick to an engine that does not poll. The exit sets the queue's bit in the device's word, then the
//! device's bit in the engine's word.
//!
//! ```text
//!   guest core, in its exit          engine, once a turn
//!   ───────────────────────          ───────────────────
//!   queue's bit ─▶ device's word ◀── 2. take, for each device found
//!   device's bit ─▶ engine's word ◀── 1. take
//! ```
//!
//! The two sides use the opposite order, so no bit stays behind unnoticed. If a core sets the queue's bit after the
//! engine took the device's word, the device's bit follows. The next turn finds it.

#![allow(unsafe_code, reason = "a device is told by pointer which engine has it; the engine may change")]

use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};

use crate::line::OwnLine;

/// The bit of a device's word with which the transport asks the engine to read the device's phase. The lower bits are
/// queues.
pub const ATTENTION: u64 = 1 << 63;

/// A word of bits. Several cores set them, one core takes them.
pub trait Bits {
    /// Sets bits. The core that takes them sees everything that was written before.
    fn set(&self, bits: u64);
    /// Takes all bits.
    fn take(&self) -> u64;
}

impl Bits for AtomicU64 {
    #[inline]
    fn set(&self, bits: u64) {
        self.fetch_or(bits, Ordering::Release);
    }

    #[inline]
    fn take(&self) -> u64 {
        // Nearly always no bit is set. A plain load leaves the cache line where it is.
        if self.load(Ordering::Relaxed) == 0 { 0 } else { self.swap(0, Ordering::Acquire) }
    }
}

/// Sets `bits` of a device, and then its bit in the engine's word.
#[inline]
pub fn ring<B: Bits>(device: &B, engine: Option<(&B, u64)>, bits: u64) {
    device.set(bits);
    if let Some((engine, bit)) = engine {
        engine.set(bit);
    }
}

/// The device's end of a kick: the device's own word, and a pointer to the engine's word.
pub(crate) struct KickSender {
    rung: OwnLine<AtomicU64>,
    engine: AtomicPtr<AtomicU64>,
    /// The device's bit in the engine's word, 0 to 63.
    bit: AtomicU8,
}

impl KickSender {
    pub(crate) const fn new() -> Self {
        Self { rung: OwnLine(AtomicU64::new(0)), engine: AtomicPtr::new(core::ptr::null_mut()), bit: AtomicU8::new(0) }
    }

    /// Connects to bit `bit` of an engine's word, or to none. Call it only while none of the guest's cores runs.
    pub(crate) fn connect(&self, engine: Option<(&'static AtomicU64, u8)>) {
        const BITS: u8 = u64::BITS as u8;
        let (word, bit) = match engine {
            Some((word, bit)) => (core::ptr::from_ref(word).cast_mut(), bit % BITS),
            None => (core::ptr::null_mut(), 0),
        };
        self.bit.store(bit, Ordering::Relaxed);
        self.engine.store(word, Ordering::Release);
    }

    /// Sets `bits`, of queues or [`ATTENTION`]. Without an engine the bits wait for the next one.
    pub(crate) fn ring(&self, bits: u64) {
        // SAFETY: only `connect` stores here, and what it stores is null or came from a reference that lives for ever.
        let engine = unsafe { self.engine.load(Ordering::Acquire).as_ref() };
        ring(&self.rung.0, engine.map(|word| (word, 1 << self.bit.load(Ordering::Relaxed))), bits);
    }

    /// Takes the bits that were set since the last call.
    pub(crate) fn take(&self) -> u64 {
        self.rung.0.take()
    }
}

#[cfg(all(test, not(miri)))]
mod model;
