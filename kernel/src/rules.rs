//! Makes the rules for ports from the configuration and this machine's TSC rate.

use crate::arch::time;
use alloc::vec::Vec;
use config::{Config, Gateway};
use net::mac::Mac;
use net::policy::claims::Owner;
pub use net::policy::configured::Rules;
use net::policy::configured::{Known, owner_of_gateway, owner_of_guest};
use net::ports::MAX_PORTS;

/// Returns the port of network device `net` of the guest called `name`. A port has the number of its device's slot.
fn port(config: &Config, name: &str, net: usize) -> Option<usize> {
    config.net_number(name, net).filter(|&port| port < MAX_PORTS)
}

/// Returns the rules of a guest's port, or `None` if everything is allowed. `nics`: the addresses of the uplinks' NICs, which are
/// nobody else's.
pub fn of_guest(config: &Config, net: &config::Net, nics: &[[u8; 6]]) -> Option<Rules> {
    let port = |name: &str, net| port(config, name, net);
    let nets = || config.guests.iter().flat_map(config::Guest::nets);
    let guests = nets().map(|net| owner_of_guest(Some(net.mac), &net.identity, &net.rules));
    let gateways = config.uplinks.iter().map(|uplink| owner_of_gateway(&uplink.gateway, &uplink.rules));
    let nics = Owner { macs: nics.iter().map(|&nic| Mac::new(nic)).collect(), ..Owner::default() };
    let owners: Vec<Owner> = guests.chain(gateways).chain([nics]).collect();
    // No two network devices have the same address.
    let me = nets().position(|other| other.mac == net.mac).unwrap_or(owners.len());
    let known = Known { stages: &config.stages, hz: time::rates().tsc, owners: &owners, port: &port };
    Rules::of_guest(known, me, Some(net.mac), &net.identity, &net.rules)
}

/// Returns the rules of an uplink, or `None` if everything is allowed.
pub fn of_uplink(config: &Config, gateway: &Gateway, rules: &config::Rules) -> Option<Rules> {
    let port = |name: &str, net| port(config, name, net);
    let known = Known { stages: &config.stages, hz: time::rates().tsc, owners: &[], port: &port };
    Rules::of_uplink(known, gateway, rules)
}
