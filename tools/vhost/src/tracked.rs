//! A back-end whose devices answer in order if their front-ends track requests in flight.

use engine::backend::Backend;
use engine::device::Device;
use engine::devices::Devices;
use engine::requests::ServiceMode;
use engine::schedule::{Portion, Served};
use virtio::config::DeviceConfig;

use crate::inflight;

/// The back-end.
pub struct InOrder<B>(pub B);

impl<B: Backend> Backend for InOrder<B> {
    type Config = B::Config;

    fn attached(&mut self, slot: usize, device: &DeviceConfig, config: Self::Config) {
        self.0.attached(slot, device, config);
    }

    fn attached_anew(&mut self, slot: usize, device: &mut Device) {
        self.0.attached_anew(slot, device);
    }

    fn detached(&mut self, slot: usize) {
        self.0.detached(slot);
    }

    fn activated(&mut self, slot: usize, device: &mut Device, resumed: bool) {
        if let Some(track) = inflight::track(slot) {
            device.keep_order(track);
        }
        self.0.activated(slot, device, resumed);
    }

    fn service_mode(&self, slot: usize, queue: u16) -> ServiceMode {
        self.0.service_mode(slot, queue)
    }

    #[inline]
    fn serve(&mut self, devices: &mut Devices, slot: usize, queue: u16, portion: &Portion, now: u64) -> Served {
        self.0.serve(devices, slot, queue, portion, now)
    }

    #[inline]
    fn poll(&mut self, devices: &mut Devices, now: u64) -> u32 {
        self.0.poll(devices, now)
    }

    fn reclaim(&mut self, devices: &mut Devices) {
        self.0.reclaim(devices);
    }

    fn cancel(&mut self, devices: &mut Devices, slot: usize) -> bool {
        self.0.cancel(devices, slot)
    }
}
