//! A back-end without devices, for the second half of a [`Pair`](crate::pair::Pair).

use core::convert::Infallible;

use virtio::config::DeviceConfig;

use crate::backend::Backend;
use crate::device::Device;
use crate::devices::Devices;
use crate::requests::ServiceMode;
use crate::schedule::{Portion, Served};

/// A back-end without devices. With it a bench measures the engine with the multiplexer that the product has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Absent;

impl Backend for Absent {
    type Config = Infallible;

    fn attached(&mut self, _: usize, _: &DeviceConfig, config: Infallible) {
        match config {}
    }

    fn detached(&mut self, _: usize) {}

    fn activated(&mut self, _: usize, _: &mut Device, _: bool) {}

    fn service_mode(&self, _: usize, _: u16) -> ServiceMode {
        ServiceMode::Unserved
    }

    fn serve(&mut self, _: &mut Devices, _: usize, _: u16, _: &Portion, _: u64) -> Served {
        Served::default()
    }

    fn poll(&mut self, _: &mut Devices, _: u64) -> u32 {
        0
    }

    fn reclaim(&mut self, _: &mut Devices) {}

    fn cancel(&mut self, _: &mut Devices, _: usize) -> bool {
        true
    }
}
