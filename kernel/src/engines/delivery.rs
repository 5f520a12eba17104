//! The interrupt targets of an engine's devices.
//!
//! The guest's machine knows how its interrupts are delivered. It decides what the vCPU's core gets:
//!
//! - `inject`: a kick.
//! - `direct`: the vector itself.
//! - `posted`: the notification vector.

#![allow(unsafe_code, reason = "an engine finds a guest by a pointer that the control core set before it attached it")]

use crate::guests::target::Target;
use alloc::boxed::Box;
use core::{
    ptr,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering},
};
use engine::{deliver::Deliver, slots::MAX_SLOTS};
use virtio::msix::Interrupt;

/// The targets of an engine's devices, by slot.
///
/// The control core sets a target before it attaches the device. It removes the target after the engine has answered
/// that the device is detached. In between the engine's core uses it.
pub struct Targets {
    targets: [AtomicPtr<Target>; MAX_SLOTS],
    /// Slots whose guests' timers the engine watches, one bit each.
    watched: [AtomicU64; MAX_SLOTS / 64],
}

impl Targets {
    /// No targets.
    pub const fn new() -> Self {
        Self {
            targets: [const { AtomicPtr::new(ptr::null_mut()) }; MAX_SLOTS],
            watched: [const { AtomicU64::new(0) }; MAX_SLOTS / 64],
        }
    }

    /// Sets the target of a slot. Call it before the device is attached. Returns false if there is no such slot, or if
    /// the slot already has a target.
    pub fn set(&self, slot: usize, target: Target) -> bool {
        let Some(place) = self.targets.get(slot) else { return false };
        // Only the control core sets and removes targets.
        if !place.load(Ordering::Acquire).is_null() {
            return false;
        }
        place.store(Box::into_raw(Box::new(target)), Ordering::Release);
        true
    }

    /// Starts watching the timers of the guest at a slot, if they are to be watched. Call it only after its device was
    /// attached, on the control core.
    pub fn watch(&self, slot: usize) {
        let Some(place) = self.targets.get(slot) else { return };
        // SAFETY: only the control core, which calls this, removes targets.
        if !unsafe { place.load(Ordering::Acquire).as_ref() }.is_some_and(Target::is_watched) {
            return;
        }
        if let Some(watched) = self.watched.get(slot / 64) {
            watched.fetch_or(1 << (slot % 64), Ordering::Release);
        }
    }

    /// Stops watching the timers of the guest at a slot. Call it only before the engine gets the command to detach the
    /// device.
    pub fn unwatch(&self, slot: usize) {
        if let Some(watched) = self.watched.get(slot / 64) {
            watched.fetch_and(!(1 << (slot % 64)), Ordering::AcqRel);
        }
    }

    /// Removes the target of a slot. Call it only when the engine has no device there.
    pub fn remove(&self, slot: usize) {
        let Some(place) = self.targets.get(slot) else { return };
        let target = place.swap(ptr::null_mut(), Ordering::AcqRel);
        if !target.is_null() {
            // SAFETY: `set` made the pointer from a box. The engine has no device in this slot, so it does not use the
            // target.
            drop(unsafe { Box::from_raw(target) });
        }
    }

    /// Expires the timers that are due. It looks at the guests whose timers the engine watches. Only the engine's core
    /// may call it.
    pub fn expire_timers(&self, now: u64) {
        for (group, watched) in self.watched.iter().enumerate() {
            let mut slots = watched.load(Ordering::Acquire);
            while slots != 0 {
                let slot = group.saturating_mul(64).saturating_add(slots.trailing_zeros() as usize);
                slots &= slots.saturating_sub(1);
                let Some(place) = self.targets.get(slot) else { continue };
                // SAFETY: the target is not freed while this uses it. The bit is set after the engine has attached the
                // device. It is cleared before the engine gets the command to detach the device. The target is freed
                // only after the engine's answer to that command. This runs on the engine's core, which answers between
                // two calls of this function. A call that began before the command ends before the answer. A call that
                // begins after the command sees the bit cleared.
                if let Some(target) = unsafe { place.load(Ordering::Acquire).as_ref() } {
                    target.ring(now);
                }
            }
        }
    }
}

/// Delivers an engine's interrupts to its targets.
#[derive(Clone, Copy)]
pub struct TargetDelivery(pub &'static Targets);

impl Deliver for TargetDelivery {
    fn deliver(&self, device: usize, interrupt: Interrupt) -> bool {
        let Some(place) = self.0.targets.get(device) else { return false };
        // SAFETY: a target is set before its device is attached. It is freed only after the engine has answered that
        // the device is detached. The engine calls this for attached devices only.
        let target = unsafe { place.load(Ordering::Acquire).as_ref() };
        target.is_some_and(|t| t.deliver(interrupt))
    }
}
