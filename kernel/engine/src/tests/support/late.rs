//! A back-end that completes late and out of order.

use std::collections::VecDeque;

use virtio::chain::Segments;
use virtio::config::DeviceConfig;
use virtio::queue::Token;

use crate::backend::Backend;
use crate::device::Device;
use crate::devices::Devices;
use crate::order::Track;
use crate::requests::ServiceMode;
use crate::schedule::{Portion, Served};

/// Completes the newest request first, when told to; may hold on to its requests as a DMA under way would.
#[derive(Default)]
pub struct Late {
    pub held: VecDeque<(usize, Token)>,
    pub release: usize,
    pub dma: bool,
    /// Devices complete in order, and this is told.
    pub track: Option<&'static dyn Track>,
    segments: Segments,
}

impl Backend for Late {
    type Config = ();

    fn attached(&mut self, _: usize, _: &DeviceConfig, (): ()) {}
    fn detached(&mut self, _: usize) {}

    fn activated(&mut self, _: usize, device: &mut Device, _: bool) {
        if let Some(track) = self.track {
            device.keep_order(track);
        }
    }

    fn service_mode(&self, _: usize, queue: u16) -> ServiceMode {
        if queue == 1 { ServiceMode::AsConfigured } else { ServiceMode::Unserved }
    }

    fn serve(&mut self, devices: &mut Devices, slot: usize, queue: u16, slotion: &Portion, _now: u64) -> Served {
        let mut n = 0;
        while n < slotion.requests {
            self.segments.clear();
            let Some(device) = devices.get_mut(slot) else { break };
            let Some(request) = device.pop(queue, &mut self.segments) else { break };
            self.held.push_back((slot, request.token));
            n += 1;
        }
        Served::new(n, 0)
    }

    fn poll(&mut self, devices: &mut Devices, _now: u64) -> u32 {
        let mut n = 0;
        while self.release > 0 {
            let Some((slot, token)) = self.held.pop_back() else { break };
            self.release -= 1;
            n += u32::from(devices.get_mut(slot).is_some_and(|d| d.complete(token, 7)));
        }
        n
    }

    fn reclaim(&mut self, devices: &mut Devices) {
        self.poll(devices, 0);
    }

    fn cancel(&mut self, _devices: &mut Devices, slot: usize) -> bool {
        if !self.dma {
            self.held.retain(|(p, _)| *p != slot);
        }
        !self.held.iter().any(|(p, _)| *p == slot)
    }
}
