//! The contract between the engine and a back-end. The engine knows rings, work and completions. The back-end knows
//! what the bytes mean.
//!
//! A back-end takes requests with [`Device::pop`] and holds a [`Token`](virtio::queue::Token) for each. It completes a
//! request at once or in a later turn, in any order. When a device is reset or detached, the engine calls
//! [`Backend::cancel`] until the back-end holds no token of that device: each turn for a reset, and each time the control
//! core asks for a detachment. Only then does the driver see its reset done and get its memory back. A token that is
//! completed later is stale. The engine counts it and does nothing else.

use virtio::config::DeviceConfig;

use crate::device::Device;
use crate::devices::Devices;
use crate::requests::ServiceMode;
use crate::schedule::{Portion, Served};

/// Gives requests their meaning. An engine has one back-end; [`Pair`](crate::pair::Pair) combines two.
pub trait Backend {
    /// The configuration of a device that only this back-end needs.
    type Config: Send + 'static;

    /// A device was attached.
    fn attached(&mut self, slot: usize, device: &DeviceConfig, config: Self::Config);

    /// The device was attached, and no driver has seen it since its reset. The back-end may change its configuration.
    fn attached_anew(&mut self, _slot: usize, _device: &mut Device) {}

    /// A device is being detached. The back-end holds no token of it any more.
    fn detached(&mut self, slot: usize);

    /// The device was activated. `resumed`: it continues from a saved state.
    fn activated(&mut self, slot: usize, device: &mut Device, resumed: bool);

    /// How the engine serves a queue of an activated device.
    fn service_mode(&self, slot: usize, queue: u16) -> ServiceMode;

    /// Takes requests from a queue, up to a portion. Returns what it took. It takes less than the portion only if there
    /// is no more.
    fn serve(&mut self, devices: &mut Devices, slot: usize, queue: u16, portion: &Portion, now: u64) -> Served;

    /// Completes requests that have become ready. The engine calls it once a turn. Returns how many were completed.
    fn poll(&mut self, devices: &mut Devices, now: u64) -> u32;

    /// Completes requests that have become ready. The engine calls it while the reset of a queue waits for the queue's
    /// requests.
    fn reclaim(&mut self, devices: &mut Devices);

    /// Releases every token of a slot. A token is completed if that takes no time, and dropped otherwise. Returns false
    /// if something, such as a DMA in progress, still needs the guest's buffers. The engine then calls it again in a
    /// later turn.
    fn cancel(&mut self, devices: &mut Devices, slot: usize) -> bool;
}
