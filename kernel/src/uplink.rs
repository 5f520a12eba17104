//! The uplinks: finds the NICs that the configuration names, sets them up, and returns their counters.
//!
//! `config::NicChoice` chooses the NIC of each uplink. [`any_nic`] opens it. The NICs' interrupts stay off. A guest
//! sees nothing of the NICs.

pub mod any_nic;
mod igb;
mod intel;
mod virtio;
mod x520;

use crate::{
    arch::time,
    pci::{self, Function},
    report,
    rules::{self, Rules},
};
use alloc::{boxed::Box, format, string::String, vec::Vec};
use any_nic::AnyNic;
use config::{Config, FoundFunction, Mac, NicChoice, NicNeeds, NicSearch, ReceiveQueues};
use control::{Count, NoMemory};
use core::{
    fmt,
    sync::atomic::{AtomicU32, Ordering},
};
use drivers::pci::Address;
use net::{
    backend::Net,
    counters::UplinkCounters,
    policy::Policy,
    uplink::{MAX_UPLINKS, Uplink, UplinkShared},
};
use nic::Nic as _;
use spin::Once;

/// An uplink of the configuration.
pub struct ConfiguredUplink {
    /// For the engine's network back-end.
    pub path: UplinkPath,
    /// For the control core.
    pub known: KnownUplink,
}

/// An uplink, as the engine uses it.
pub enum UplinkPath {
    /// It has a NIC.
    Nic(Box<Uplink<AnyNic>>),
    /// It has no usable NIC. These are its rules; `None` if everything is allowed.
    Missing(Option<&'static Policy>),
}

impl UplinkPath {
    /// Adds it to a network back-end that serves nothing yet. Returns false if the back-end has no room for a further
    /// uplink.
    pub fn add_to(self, net: &mut Net<AnyNic>) -> bool {
        match self {
            Self::Nic(uplink) => net.add_uplink(*uplink),
            Self::Missing(policy) => net.add_missing_uplink(policy),
        }
    }
}

/// What the control core knows of an uplink.
pub struct KnownUplink {
    name: String,
    /// Its NIC.
    device: Option<Address>,
    /// The rules for its frames. `None` if everything is allowed.
    rules: Option<Rules>,
    counters: &'static UplinkCounters,
    shared: &'static UplinkShared,
    /// The text on the port that was told last, by its number of changes.
    told: AtomicU32,
}

const _: () = assert!(config::MAX_UPLINKS <= MAX_UPLINKS);

/// Returns the most bytes of memory that the NICs can take.
pub fn memory(config: &Config) -> u64 {
    let devices = devices(config);
    let with_nic = config.uplinks.iter().filter(|port| port.device.is_some());
    // The NIC may be a virtio device or an 82576, which take less than an 82599.
    with_nic.map(|port| x520::memory(port.steering, ReceiveQueues::of(port.steering, devices))).sum()
}

/// How many network devices the guests have.
fn devices(config: &Config) -> usize {
    config.guests.iter().map(|guest| guest.nets().count()).sum()
}

/// The addresses of the uplinks' NICs, which no guest may have. Empty before [`open_all`].
pub fn nics() -> &'static [[u8; 6]] {
    NICS.get().map_or(&[], Vec::as_slice)
}

static NICS: Once<Vec<[u8; 6]>> = Once::new();

/// Sets up the NICs that the configuration names, and reports on each. Returns the uplinks in the order of the
/// configuration. Called once. `max_frame` is the longest frame of any guest, in bytes without FCS and VLAN tag.
pub fn open_all(config: &Config, max_frame: u32) -> Vec<ConfiguredUplink> {
    let functions = pci::functions();
    let found: Option<Vec<FoundFunction>> = functions.map(|all| all.iter().map(found).collect());
    let mut choice = NicChoice::new(&config.uplinks, found.as_deref());
    let (mut uplinks, mut nics) = (Vec::new(), Vec::new());
    let devices = devices(config);
    for port in &config.uplinks {
        let counters: &'static UplinkCounters = Box::leak(Box::default());
        let shared: &'static UplinkShared = Box::leak(Box::default());
        let rules = rules::of_uplink(config, &port.gateway, &port.rules);
        let policy = rules.as_ref().map(|rules| rules.policy);
        let needs = NicNeeds::of(port, devices, max_frame);
        let mut search = choice.search(port);
        let (path, device) = match open(&mut search, functions.unwrap_or_default(), &needs) {
            Ok((nic, at)) => {
                nics.push(nic.address());
                report::decision(search.opened(Mac(nic.address()), nic.limits().receive_queues));
                if let Some(at_port) = nic.port() {
                    shared.publish(at_port);
                    tell_port(&port.name, shared);
                }
                let uplink = Uplink::new(nic, counters, time::rates().tsc / 1_000_000).with_shared(shared);
                let uplink = match policy {
                    Some(policy) => uplink.with_policy(policy),
                    None => uplink,
                };
                (UplinkPath::Nic(Box::new(uplink)), Some(at))
            }
            Err(why) => {
                report::warning(why);
                (UplinkPath::Missing(policy), None)
            }
        };
        let told = AtomicU32::new(shared.changes());
        let known = KnownUplink { name: port.name.clone(), device, rules, counters, shared, told };
        uplinks.push(ConfiguredUplink { path, known });
    }
    NICS.call_once(|| nics);
    uplinks
}

/// Reports what the NIC of an uplink says of its port.
fn tell_port(uplink: &str, shared: &UplinkShared) {
    let text = format!("uplink {uplink}: {}", fmt::from_fn(|f| shared.write(f)));
    if shared.is_obstructed() { report::warning(text) } else { report::decision(text) }
}

/// Converts a function to the form that `NicChoice` takes.
fn found(function: &Function) -> FoundFunction {
    let Address { bus, device, function: number } = function.at;
    FoundFunction {
        at: (bus, device, number),
        vendor: function.vendor,
        device: function.device,
        name: any_nic::name(function),
        needs: findings::machine::nic_without_driver(function.vendor, function.device),
    }
}

/// Opens one candidate after the other, until one can be used. Returns that NIC and its address.
fn open(
    search: &mut NicSearch<'_, '_>,
    functions: &[Function],
    needs: &NicNeeds<'_>,
) -> Result<(AnyNic, Address), String> {
    loop {
        let Some(&function) = functions.get(search.candidate()?) else { continue };
        match any_nic::open(function, needs) {
            Ok(nic) => return Ok((nic, function.at)),
            Err(why) => search.failed(&why),
        }
    }
}

impl KnownUplink {
    /// Whether it has a NIC.
    pub const fn has_nic(&self) -> bool {
        self.device.is_some()
    }

    /// Writes a line if what its NIC says of its port has changed. Called once a tick.
    pub fn tell_changes(&self) {
        let changes = self.shared.changes();
        // An odd number: the engine is writing the text.
        if changes & 1 == 0 && self.told.swap(changes, Ordering::Relaxed) != changes {
            log::info!("uplink {}: {}", self.name, fmt::from_fn(|f| self.shared.write(f)));
        }
    }

    /// Blinks the light of its port.
    ///
    /// # Errors
    /// Its NIC has no light that can: what says nothing of its port has no lights there.
    pub fn blink(&self, seconds: u32) -> Result<(), control::Text> {
        if self.shared.changes() == 0 {
            return Err("the NIC of this uplink has no light that blinks".into());
        }
        self.shared.blink(seconds);
        Ok(())
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its counters.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn counters(&self) -> Result<control::Uplink, NoMemory> {
        Ok(control::Uplink {
            name: control::copy(&self.name)?,
            device: self.device.map_or(Ok(String::new()), control::write)?,
            port: control::write(fmt::from_fn(|f| self.shared.write(f)))?,
            counts: control::collect(self.counters.iter().map(|(kind, count)| Ok(Count { kind: kind.into(), count })))?,
            stages: control::collect(self.rules.iter().flat_map(Rules::counters))?,
        })
    }
}
