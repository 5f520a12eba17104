//! Makes the rules for ports from the configuration and this machine's TSC rate.

use crate::arch::time;
use config::Config;
use net::policy::configured::Known;
pub use net::policy::configured::Rules;
use net::ports::MAX_PORTS;

/// Returns the port of network device `net` of the guest called `name`. A port has the number of its device's slot.
fn port(config: &Config, name: &str, net: usize) -> Option<usize> {
    config.net_number(name, net).filter(|&port| port < MAX_PORTS)
}

/// Returns the rules of a guest's port, or `None` if everything is allowed.
pub fn of_guest(config: &Config, net: &config::Net) -> Option<Rules> {
    let port = |name: &str, net| port(config, name, net);
    let known = Known { stages: &config.stages, hz: time::rates().tsc, port: &port };
    Rules::of_guest(known, Some(net.mac), &net.identity, &net.rules)
}

/// Returns the rules of an uplink, or `None` if everything is allowed.
pub fn of_uplink(config: &Config, rules: &config::Rules) -> Option<Rules> {
    let port = |name: &str, net| port(config, name, net);
    let known = Known { stages: &config.stages, hz: time::rates().tsc, port: &port };
    Rules::of_uplink(known, rules)
}
