//! The back-end as the engine sees it.

use alloc::boxed::Box;

use engine::backend::Backend;
use engine::device::Device;
use engine::devices::{Devices, table};
use engine::requests::ServiceMode;
use engine::schedule::{Portion, Served};
use engine::slots::{MAX_SLOTS, SlotSet};
use virtio::chain::Segments;
use virtio::config::DeviceConfig;
use virtio::phase::Phase;

use crate::bell::Bell;
use crate::device::{MULTIPORT, Role, role};
use crate::ports::{OPEN, READY, SPOKE};
pub use crate::slot::Config;
use crate::slot::Slot;
use crate::{handshake, input, output};

/// The console back-end.
pub struct Console {
    bell: &'static Bell,
    slots: Box<[Option<Slot>; MAX_SLOTS]>,
    /// Slots with input or control messages that wait.
    waiting: SlotSet,
    segments: Box<Segments>,
}

impl Console {
    /// Makes a back-end without devices. The control core rings `bell` for its slots.
    #[must_use]
    pub fn new(bell: &'static Bell) -> Self {
        Self { bell, slots: table(|| None), waiting: SlotSet::NONE, segments: Box::default() }
    }

    /// Sends control messages and input to the guests that wait for them. Returns how many buffers it used.
    #[cold]
    fn attend(&mut self, devices: &mut Devices) -> u32 {
        let mut completed = 0;
        for index in self.waiting {
            let waits = match (self.slots.get_mut(index), devices.get_mut(index)) {
                (Some(Some(slot)), Some(device)) if device.running() => {
                    attend(device, slot, &mut self.segments, &mut completed)
                }
                _ => false,
            };
            if !waits {
                self.waiting.remove(index);
            }
        }
        completed
    }
}

/// Sends control messages and input to one guest. Returns whether something still waits.
fn attend(device: &mut Device, slot: &mut Slot, segments: &mut Segments, completed: &mut u32) -> bool {
    let mut waits = slot.multiport && handshake::send(device, slot, segments, completed);
    for (number, (state, port)) in slot.ports.iter_mut().zip(slot.shared.all()).enumerate() {
        waits |= input::give(device, number, port, state, segments, completed);
    }
    waits
}

impl Backend for Console {
    type Config = Config;

    fn attached(&mut self, slot: usize, _: &DeviceConfig, config: Self::Config) {
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Some(Slot::new(config));
        }
    }

    fn detached(&mut self, slot: usize) {
        if let Some(place) = self.slots.get_mut(slot) {
            // The control core keeps the other ends, so this frees no memory.
            *place = None;
        }
    }

    fn activated(&mut self, slot: usize, device: &mut Device, resumed: bool) {
        let Some(Some(state)) = self.slots.get_mut(slot) else { return };
        state.multiport = device.features().bits() & MULTIPORT != 0;
        for (number, port) in state.shared.all().iter().enumerate() {
            if !resumed {
                port.set_driver(READY | OPEN | SPOKE, false);
            }
            // Without MULTIPORT there are no messages: the console is open (5.3.5).
            if number == 0 && !state.multiport {
                port.set_driver(READY | OPEN, true);
            }
        }
        if resumed && state.multiport {
            handshake::resume(state);
        }
        self.waiting.insert(slot);
    }

    fn service_mode(&self, slot: usize, queue: u16) -> ServiceMode {
        let multiport = matches!(self.slots.get(slot), Some(Some(slot)) if slot.multiport);
        match role(queue) {
            Role::Transmit(port) if port == 0 || multiport => ServiceMode::AsConfigured,
            Role::ControlTransmit if multiport => ServiceMode::Notified,
            _ => ServiceMode::Unserved,
        }
    }

    fn serve(&mut self, devices: &mut Devices, index: usize, queue: u16, portion: &Portion, now: u64) -> Served {
        let mut taken = Served::default();
        let (Some(Some(slot)), Some(device)) = (self.slots.get_mut(index), devices.get_mut(index)) else {
            return taken;
        };
        while taken.requests < portion.requests && taken.bytes < portion.bytes {
            let one = match role(queue) {
                Role::Transmit(number) => {
                    let (Some(state), Some(port)) = (slot.ports.get_mut(number), slot.shared.get(number)) else {
                        break;
                    };
                    output::take(device, number, port, state, &mut self.segments, now)
                }
                Role::ControlTransmit => {
                    self.waiting.insert(index);
                    handshake::receive(device, slot, &mut self.segments).then_some(Served::new(1, 0))
                }
                Role::Receive(_) | Role::ControlReceive => None,
            };
            let Some(one) = one else { break };
            taken.requests = taken.requests.saturating_add(one.requests);
            taken.bytes = taken.bytes.saturating_add(one.bytes);
        }
        taken
    }

    #[inline]
    fn poll(&mut self, devices: &mut Devices, _: u64) -> u32 {
        self.waiting.insert_all(self.bell.take());
        if self.waiting == SlotSet::NONE { 0 } else { self.attend(devices) }
    }

    fn reclaim(&mut self, _: &mut Devices) {}

    /// The back-end holds no token between two calls. A reset ends what belongs to the driver; a detachment keeps it, so
    /// that the device can be resumed.
    fn cancel(&mut self, devices: &mut Devices, slot: usize) -> bool {
        self.waiting.remove(slot);
        let Some(Some(state)) = self.slots.get_mut(slot) else { return true };
        state.forget();
        if devices.get(slot).is_some_and(|device| device.shared().phase() == Phase::Resetting) {
            state.shared.restart();
        }
        true
    }
}
