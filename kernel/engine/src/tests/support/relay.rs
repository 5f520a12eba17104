//! A back-end that completes every request at once.

use virtio::chain::{Segment, Segments};
use virtio::config::DeviceConfig;
use virtio::fault::Fault;
use virtio::queue::Request;

use crate::backend::Backend;
use crate::device::Device;
use crate::devices::Devices;
use crate::requests::ServiceMode;
use crate::schedule::{Portion, Served};

/// Relays messages between devices: a device transmits by its odd queues and receives by queue 0. A message's first byte is the
/// slot that it is for. One that the receiver has no buffers for is lost.
#[derive(Default)]
pub struct Relay {
    /// Portions that took something.
    pub portions: u32,
    segments: Segments,
}

impl Relay {
    /// Takes one request. Its bytes; None: there is none.
    fn take(&mut self, devices: &mut Devices, slot: usize, queue: u16) -> Option<u64> {
        let device = devices.get_mut(slot)?;
        self.segments.clear();
        let Request { token, chain } = device.pop(queue, &mut self.segments)?;
        if chain.writable_bytes != 0 {
            device.fail(Fault::Direction);
            return Some(chain.readable_bytes.into());
        }
        let mut message = Vec::new();
        for &Segment { gpa, len } in chain.readable(&self.segments) {
            let mut piece = vec![0; len as usize];
            device.memory().read(gpa, &mut piece).expect("it was checked");
            message.extend(piece);
        }
        device.complete(token, 0);
        if let Some(receiver) = devices.get_mut(message[0].into()) {
            self.give(receiver, &message);
        }
        Some(message.len() as u64)
    }

    /// Brings a message into as many buffers as it needs.
    fn give(&mut self, receiver: &mut Device, message: &[u8]) {
        let (mut rest, mut taken) = (message, Vec::new());
        while !rest.is_empty() {
            self.segments.clear();
            let Some(Request { token, chain }) = receiver.pop(0, &mut self.segments) else {
                while let Some((token, _)) = taken.pop() {
                    receiver.rewind(token);
                }
                return;
            };
            if chain.readable_bytes != 0 {
                receiver.fail(Fault::Direction);
                return;
            }
            let before = rest.len();
            for &Segment { gpa, len } in chain.writable(&self.segments) {
                let (piece, left) = rest.split_at(rest.len().min(len as usize));
                receiver.memory().write(gpa, piece).expect("it was checked");
                rest = left;
            }
            taken.push((token, (before - rest.len()) as u32));
        }
        for (token, written) in taken {
            receiver.complete(token, written);
        }
    }
}

impl Backend for Relay {
    type Config = ();

    fn attached(&mut self, _: usize, _: &DeviceConfig, (): ()) {}
    fn detached(&mut self, _: usize) {}
    fn activated(&mut self, _: usize, _: &mut Device, _: bool) {}

    fn service_mode(&self, _: usize, queue: u16) -> ServiceMode {
        if queue % 2 == 1 { ServiceMode::AsConfigured } else { ServiceMode::Unserved }
    }

    fn serve(&mut self, devices: &mut Devices, slot: usize, queue: u16, portion: &Portion, _: u64) -> Served {
        let mut served = Served::default();
        while served.requests < portion.requests
            && served.bytes < portion.bytes
            && let Some(bytes) = self.take(devices, slot, queue)
        {
            served.requests += 1;
            served.bytes += bytes;
        }
        self.portions += u32::from(served.requests != 0);
        served
    }

    fn poll(&mut self, _: &mut Devices, _: u64) -> u32 {
        0
    }

    fn reclaim(&mut self, _: &mut Devices) {}

    fn cancel(&mut self, _: &mut Devices, _: usize) -> bool {
        true
    }
}
