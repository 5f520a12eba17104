//! How a notification reaches an engine that does not look: the driver's exit sets a bit for its queue and one for its
//! port, and the engine reads the ports' word once a turn.
//!
//! ```text
//!   guest core, in its exit          engine, once a turn
//!   ───────────────────────          ───────────────────
//!   queue's bit ─▶ device's word ◀── 2. take, for each port found
//!   port's bit  ─▶ engine's word ◀── 1. take
//! ```
//!
//! The two sides go in opposite order, so that a bit set in the first word is never left behind: whoever sets it after
//! the engine took that word sets the port's bit after the engine took the second, and is found in the next turn.

#![allow(unsafe_code, reason = "a device is told by pointer which engine has it; the engine may change")]

use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};

use crate::shared::OwnLine;

/// The bit of a device's word by which its transport asks for a look at its phase; the lower ones are queues.
pub(crate) const ATTENTION: u32 = 1 << 31;

/// A word of bits that are set by some cores and taken by one.
pub(crate) trait Bits {
    /// Sets bits. What was written before is seen by whoever takes them.
    fn set(&self, bits: u32);
    /// Takes all bits.
    fn take(&self) -> u32;
}

impl Bits for AtomicU32 {
    #[inline]
    fn set(&self, bits: u32) {
        self.fetch_or(bits, Ordering::Release);
    }

    #[inline]
    fn take(&self) -> u32 {
        // Nearly always there is none, and a plain load leaves the line where it is.
        if self.load(Ordering::Relaxed) == 0 { 0 } else { self.swap(0, Ordering::Acquire) }
    }
}

/// Sets `bits` of a device and the bit of its port: in this order.
#[inline]
pub(crate) fn ring<B: Bits>(device: &B, ports: Option<(&B, u32)>, bits: u32) {
    device.set(bits);
    if let Some((ports, bit)) = ports {
        ports.set(bit);
    }
}

/// An engine's doorbell: a bit for each of its ports.
#[derive(Default)]
pub struct Doorbell(OwnLine<AtomicU32>);

impl Doorbell {
    /// Not rung.
    #[must_use]
    pub const fn new() -> Self {
        Self(OwnLine(AtomicU32::new(0)))
    }

    /// The ports that have rung, a bit each.
    #[inline]
    pub(crate) fn take(&self) -> u32 {
        self.0.0.take()
    }
}

/// A device's end of it: its own word, and the doorbell of the engine that has it.
pub(crate) struct Wire {
    rung: OwnLine<AtomicU32>,
    engine: AtomicPtr<Doorbell>,
    port: AtomicU8,
}

impl Wire {
    pub(crate) const fn new() -> Self {
        Self { rung: OwnLine(AtomicU32::new(0)), engine: AtomicPtr::new(core::ptr::null_mut()), port: AtomicU8::new(0) }
    }

    /// Leads to `port` of an engine, or nowhere. Only while none of the guest's cores runs.
    pub(crate) fn connect(&self, engine: Option<(&'static Doorbell, usize)>) {
        let (doorbell, port) = match engine {
            Some((doorbell, port)) => (core::ptr::from_ref(doorbell).cast_mut(), port as u8),
            None => (core::ptr::null_mut(), 0),
        };
        self.port.store(port, Ordering::Relaxed);
        self.engine.store(doorbell, Ordering::Release);
    }

    /// Rings for queues, or for [`ATTENTION`]. Without an engine the bits wait for the next one.
    pub(crate) fn ring(&self, bits: u32) {
        // SAFETY: only `connect` stores here, and what it stores is null or came from a reference that lives for ever.
        let engine = unsafe { self.engine.load(Ordering::Acquire).as_ref() };
        let port = 1u32.checked_shl(u32::from(self.port.load(Ordering::Relaxed))).unwrap_or(0);
        ring(&self.rung.0, engine.map(|doorbell| (&doorbell.0.0, port)), bits);
    }

    /// What was rung for since the last time.
    pub(crate) fn take(&self) -> u32 {
        self.rung.0.take()
    }
}

#[cfg(test)]
mod model;
