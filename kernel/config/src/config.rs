//! The whole configuration, and its parts `smt`, `[log]`, `[control]`, `[com2]` and `[[engine]]`.

use alloc::string::String;
use alloc::vec::Vec;

use control::{Level, Permissions};

use crate::guest::{Guest, GuestDevice};
use crate::management::Management;
use crate::mistake::Place;
use crate::module::Module;
use crate::share::Share;
use crate::stage::Stage;
use crate::trace::Trace;
use crate::uplink::Uplink;

/// The configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Name of its file, for mistakes that are found later. Empty for the default configuration.
    pub file: String,
    /// `[log] level`.
    pub log: Level,
    /// `[control]`.
    pub control: Control,
    /// `[management]`. `None`: no guest manages the machine.
    pub management: Option<Management>,
    /// `[com2] allow`: what may be asked on COM2. All without it; only `view` if there is a mistake in it.
    pub com2: Permissions,
    /// `[trace]`.
    pub trace: Trace,
    /// `smt`.
    pub smt: Smt,
    /// `[[module]]`.
    pub modules: Vec<Module>,
    /// `[[engine]]`. If empty, there is one engine on a core that sidecore chooses.
    pub engines: Vec<Engine>,
    /// `[[port]]`. If empty, guests reach only each other.
    pub uplinks: Vec<Uplink>,
    /// `[[stage]]` in the order of the file.
    pub stages: Vec<Stage>,
    /// `[[guest]]` in the order of the file.
    pub guests: Vec<Guest>,
}

impl Config {
    /// Returns the number of device `device` of guest `guest` among all devices of all guests, in the order of the
    /// configuration. It is the device's slot with the engine.
    #[must_use]
    pub fn device_number(&self, guest: usize, device: usize) -> usize {
        let before = self.guests.iter().take(guest).map(|guest| guest.devices.len());
        before.sum::<usize>().saturating_add(device)
    }

    /// Returns the number of network device `net` of the guest called `name`, or `None` if there is no such device.
    #[must_use]
    pub fn net_number(&self, name: &str, net: usize) -> Option<usize> {
        let (number, guest) = self.guests.iter().enumerate().find(|(_, guest)| guest.name == name)?;
        let mut nets = guest.devices.iter().enumerate().filter(|(_, device)| matches!(device, GuestDevice::Net(_)));
        nets.nth(net).map(|(device, _)| self.device_number(number, device))
    }

    /// `[management]`, if its guest is there. A guest that was left out manages nothing.
    pub(crate) fn managing(&self) -> Option<&Management> {
        self.management.as_ref().filter(|management| self.guests.iter().any(|guest| guest.name == management.guest))
    }

    /// Returns the guest whose network device has this number among all devices, and the number of the device among the guest's
    /// network devices, or `None` if it is no network device. It is the reverse of [`Config::net_number`].
    #[must_use]
    pub fn net_at(&self, device: usize) -> Option<(&str, usize)> {
        let (guest, kind, number) = self.device_at(device)?;
        (kind == GuestDevice::NET).then_some((guest, number))
    }

    /// Returns the guest whose device has this number among all devices, the kind of the device, and its number among the
    /// guest's devices of that kind. `None`: no device has it.
    #[must_use]
    pub fn device_at(&self, device: usize) -> Option<(&str, &'static str, usize)> {
        self.guests.iter().enumerate().find_map(|(number, guest)| {
            let at = device.checked_sub(self.device_number(number, 0))?;
            let kind = guest.devices.get(at)?.kind();
            let before = guest.devices.iter().take(at).filter(|other| other.kind() == kind).count();
            Some((guest.name.as_str(), kind, before))
        })
    }
}

/// `[control]`: settings of the control core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// Whether the machine is powered off when every guest has stopped and none will start again.
    pub end_when_guests_stop: bool,
    /// Seconds between the power button and the kill of `stop`.
    pub stop_seconds: u32,
}

impl Default for Control {
    fn default() -> Self {
        Self { end_when_guests_stop: false, stop_seconds: 30 }
    }
}

/// `[[engine]]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Engine {
    /// Its core. `None` if sidecore chooses. 0 if the engine shares the control core.
    pub core: Option<u32>,
    /// Its scheduling.
    pub scheduling: Scheduling,
    /// Its share of the cache.
    pub share: Share,
    /// Its place in the file.
    pub place: Place,
}

/// How an engine chooses the next queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheduling {
    /// Queue by queue. Guests share the time by weight, and queues that wait for a reply come early.
    #[default]
    Fine,
    /// Device by device, a fixed number of requests from each.
    PerDevice,
}

impl Scheduling {
    /// The values with their words.
    pub(crate) const WORDS: [(&'static str, Self); 2] = [("fine", Self::Fine), ("per-device", Self::PerDevice)];
}

/// `smt`: what may run on the threads of one physical core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Smt {
    /// The same guest, or the hypervisor, or nothing.
    #[default]
    Separate,
    /// Anything: every thread is used as a core. A guest can then read what another one leaves in the core.
    Share,
}

impl Smt {
    /// The values with their words.
    pub(crate) const WORDS: [(&'static str, Self); 2] = [("separate", Self::Separate), ("share", Self::Share)];
}
