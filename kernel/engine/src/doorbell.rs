//! How a notification reaches an engine that does not look: the driver's exit sets a bit for its queue and one for its
//! port, and the engine reads the ports' words once a turn, one for each group of ports.
//!
//! ```text
//!   guest core, in its exit          engine, once a turn
//!   ───────────────────────          ───────────────────
//!   queue's bit ─▶ device's word ◀── 2. take, for each port found
//!   port's bit  ─▶ group's word  ◀── 1. take
//! ```
//!
//! The two sides go in opposite order, so that a bit set in the first word is never left behind: whoever sets it after
//! the engine took that word sets the port's bit after the engine took the second, and is found in the next turn.

#![allow(unsafe_code, reason = "a device is told by pointer which engine has it; the engine may change")]

use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};

use crate::ports::{self, GROUPS, PortSet};
use crate::shared::OwnLine;

/// The bit of a device's word by which its transport asks for a look at its phase; the lower ones are queues.
pub(crate) const ATTENTION: u64 = 1 << 63;

/// A word of bits that are set by some cores and taken by one.
pub(crate) trait Bits {
    /// Sets bits. What was written before is seen by whoever takes them.
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
        // Nearly always there is none, and a plain load leaves the line where it is.
        if self.load(Ordering::Relaxed) == 0 { 0 } else { self.swap(0, Ordering::Acquire) }
    }
}

/// Sets `bits` of a device and the bit of its port: in this order.
#[inline]
pub(crate) fn ring<B: Bits>(device: &B, ports: Option<(&B, u64)>, bits: u64) {
    device.set(bits);
    if let Some((ports, bit)) = ports {
        ports.set(bit);
    }
}

/// An engine's doorbell: a word for each group of its ports, with a bit for each of them.
#[derive(Default)]
pub struct Doorbell(OwnLine<[AtomicU64; GROUPS]>);

impl Doorbell {
    /// Not rung.
    #[must_use]
    pub const fn new() -> Self {
        Self(OwnLine([const { AtomicU64::new(0) }; GROUPS]))
    }

    /// The ports that have rung.
    #[inline]
    pub(crate) fn take(&self) -> PortSet {
        let [first, second] = &self.0.0;
        PortSet::of_words([first.take(), second.take()])
    }
}

/// A device's end of it: its own word, and the doorbell of the engine that has it.
pub(crate) struct Wire {
    rung: OwnLine<AtomicU64>,
    engine: AtomicPtr<Doorbell>,
    port: AtomicU8,
}

impl Wire {
    pub(crate) const fn new() -> Self {
        Self { rung: OwnLine(AtomicU64::new(0)), engine: AtomicPtr::new(core::ptr::null_mut()), port: AtomicU8::new(0) }
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
    pub(crate) fn ring(&self, bits: u64) {
        // SAFETY: only `connect` stores here, and what it stores is null or came from a reference that lives for ever.
        let engine = unsafe { self.engine.load(Ordering::Acquire).as_ref() };
        let (group, bit) = ports::place(self.port.load(Ordering::Relaxed).into());
        ring(&self.rung.0, engine.and_then(|doorbell| Some((doorbell.0.0.get(group)?, bit))), bits);
    }

    /// What was rung for since the last time.
    pub(crate) fn take(&self) -> u64 {
        self.rung.0.take()
    }
}

#[cfg(all(test, not(miri)))]
mod model;
