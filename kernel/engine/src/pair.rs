//! Combines two back-ends into one. Each device belongs to one of them, and each call goes to the back-end of its
//! device. For three kinds of devices, one half is itself a pair.

use virtio::config::DeviceConfig;

use crate::backend::Backend;
use crate::device::Device;
use crate::devices::Devices;
use crate::requests::ServiceMode;
use crate::schedule::{Portion, Served};
use crate::slots::SlotSet;

/// The half of a [`Pair`] that a device belongs to, with the configuration for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half<A, B> {
    /// The first back-end.
    First(A),
    /// The second back-end.
    Second(B),
}

/// Two back-ends.
pub struct Pair<A, B> {
    first: A,
    second: B,
    /// Slots whose devices belong to the second back-end.
    seconds: SlotSet,
}

impl<A, B> Pair<A, B> {
    /// Combines two back-ends that have no devices yet.
    pub const fn new(first: A, second: B) -> Self {
        Self { first, second, seconds: SlotSet::NONE }
    }

    /// The first one.
    pub const fn first(&self) -> &A {
        &self.first
    }

    /// The first one, to configure it.
    pub const fn first_mut(&mut self) -> &mut A {
        &mut self.first
    }

    /// The second one.
    pub const fn second(&self) -> &B {
        &self.second
    }

    /// The second one, to configure it.
    pub const fn second_mut(&mut self) -> &mut B {
        &mut self.second
    }
}

/// Calls a method of the back-end to which a slot's device belongs.
macro_rules! of_slot {
    ($pair:expr, $slot:expr, $half:ident => $call:expr) => {
        if $pair.seconds.contains($slot) {
            let $half = &mut $pair.second;
            $call
        } else {
            let $half = &mut $pair.first;
            $call
        }
    };
}

impl<A: Backend, B: Backend> Backend for Pair<A, B> {
    type Config = Half<A::Config, B::Config>;

    fn attached(&mut self, slot: usize, device: &DeviceConfig, config: Self::Config) {
        match config {
            Half::First(config) => {
                self.seconds.remove(slot);
                self.first.attached(slot, device, config);
            }
            Half::Second(config) => {
                self.seconds.insert(slot);
                self.second.attached(slot, device, config);
            }
        }
    }

    fn attached_anew(&mut self, slot: usize, device: &mut Device) {
        of_slot!(self, slot, half => half.attached_anew(slot, device));
    }

    fn detached(&mut self, slot: usize) {
        of_slot!(self, slot, half => half.detached(slot));
    }

    fn activated(&mut self, slot: usize, device: &mut Device, resumed: bool) {
        of_slot!(self, slot, half => half.activated(slot, device, resumed));
    }

    fn service_mode(&self, slot: usize, queue: u16) -> ServiceMode {
        if self.seconds.contains(slot) {
            self.second.service_mode(slot, queue)
        } else {
            self.first.service_mode(slot, queue)
        }
    }

    #[inline]
    fn serve(&mut self, devices: &mut Devices, slot: usize, queue: u16, portion: &Portion, now: u64) -> Served {
        of_slot!(self, slot, half => half.serve(devices, slot, queue, portion, now))
    }

    #[inline]
    fn poll(&mut self, devices: &mut Devices, now: u64) -> u32 {
        self.first.poll(devices, now).saturating_add(self.second.poll(devices, now))
    }

    fn reclaim(&mut self, devices: &mut Devices) {
        self.first.reclaim(devices);
        self.second.reclaim(devices);
    }

    fn cancel(&mut self, devices: &mut Devices, slot: usize) -> bool {
        of_slot!(self, slot, half => half.cancel(devices, slot))
    }
}
