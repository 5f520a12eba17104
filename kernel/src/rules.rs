//! The operator's rules for a port, in the form in which the engine asks them.

use crate::arch::time;
use alloc::{boxed::Box, string::String, vec::Vec};
use config::{Config, Identity, Mac, stage};
use control::StageCounters;
use engine::{
    backend::MAX_PORTS,
    policy::{
        Policy,
        guard::{self, Guard},
        limit::{Bucket, Rate},
        stage::{Action, Chain, MAX_STAGES, Prefix, Rule, Sink, Stage, Unit},
        vlan::Membership,
    },
    switch,
};

const _: () = assert!(config::MAX_STAGES <= MAX_STAGES);
const _: () = assert!(config::MAX_ADDRESSES <= guard::MAX_ADDRESSES && config::MAX_STATIC < guard::MAX_MACS);

/// The rules of a port, and under which names their stages are counted. They are there for good.
pub struct Rules {
    pub policy: &'static Policy,
    /// Names of the stages on the way into the switch, and out of it, and how the port's owner calls these ways.
    stages: [(&'static str, Vec<String>); 2],
}

/// The port of network device `net` of the guest called `name`.
pub fn port(config: &Config, name: &str, net: usize) -> Option<usize> {
    let mut first = 0;
    for guest in &config.guests {
        if guest.name == name {
            return (net < guest.nets.len()).then_some(first + net).filter(|&port| port < MAX_PORTS);
        }
        first += guest.nets.len();
    }
    None
}

impl Rules {
    /// Those of a guest's port; none if everything is allowed.
    pub fn of_guest(config: &Config, net: &config::Net) -> Option<Self> {
        let Identity { anti_spoofing, addresses, fixed } = &net.identity;
        let fixed: heapless::Vec<_, { guard::MAX_MACS }> = fixed.iter().copied().map(mac).collect();
        let mut policy = Policy { fixed: fixed.clone(), ..Policy::default() };
        if *anti_spoofing {
            let mut macs = fixed;
            // There is room, as asserted above; without it, the device's own address would be refused.
            let _ = macs.push(mac(net.mac));
            policy.guard = Guard::new(&macs, addresses).unwrap_or_default();
        }
        let [enter, leave] = [&net.rules.tx, &net.rules.rx];
        Self::new(config, &net.rules, policy, [("tx", enter), ("rx", leave)])
    }

    /// Those of an uplink; none if everything is allowed.
    pub fn of_uplink(config: &Config, rules: &config::Rules) -> Option<Self> {
        Self::new(config, rules, Policy::default(), [("rx", &rules.rx), ("tx", &rules.tx)])
    }

    fn new(
        config: &Config,
        rules: &config::Rules,
        mut policy: Policy,
        ways: [(&'static str, &Vec<usize>); 2],
    ) -> Option<Self> {
        let hz = time::rates().tsc;
        policy.vlan = match &rules.vlan {
            config::Vlan::Plain => Membership::Plain,
            config::Vlan::Access(vlan) => Membership::Access(*vlan),
            config::Vlan::Trunk { vlans, native } => Membership::trunk(vlans.iter().copied(), *native),
        };
        policy.storm = rules.storm.map(|units| {
            let units = u64::from(units);
            // A tenth of a second's worth at once.
            Bucket::new(Rate { units, burst: (units / 10).max(1) }, hz)
        });
        let fill = |chain: &mut Chain, numbers: &[usize]| {
            let stages = numbers.iter().filter_map(|&number| config.stages.get(number));
            stages
                .filter_map(|stage| chain.push(made(config, stage, hz)).ok().map(|()| stage.name.clone()))
                .collect::<Vec<_>>()
        };
        let enter = fill(&mut policy.enter, ways[0].1);
        let leave = fill(&mut policy.leave, ways[1].1);
        let stages = [(ways[0].0, enter), (ways[1].0, leave)];
        (!policy.is_nothing()).then(|| Self { policy: Box::leak(Box::new(policy)), stages })
    }

    /// What its stages have counted.
    pub fn counters(&self) -> impl Iterator<Item = StageCounters> + '_ {
        let chains = [&self.policy.enter, &self.policy.leave];
        chains.into_iter().zip(&self.stages).flat_map(|(chain, (direction, names))| {
            chain.stages().iter().zip(names).map(|(stage, name)| StageCounters {
                stage: name.clone(),
                direction: (*direction).into(),
                frames: stage.frames.get(),
                bytes: stage.bytes.get(),
                dropped: stage.dropped.get(),
            })
        })
    }
}

fn mac(mac: Mac) -> switch::Mac {
    switch::Mac::new(mac.0)
}

fn made(config: &Config, stage: &config::Stage, hz: u64) -> Stage {
    let r = &stage.rule;
    let prefix = |found: Option<(core::net::IpAddr, u8)>| found.and_then(|(address, bits)| Prefix::new(address, bits));
    let rule = Rule {
        ether_type: r.ether_type,
        vlan: r.vlan,
        source_mac: r.source_mac.map(mac),
        destination_mac: r.destination_mac.map(mac),
        protocol: r.protocol,
        source: prefix(r.source),
        destination: prefix(r.destination),
        source_port: r.source_port.clone(),
        destination_port: r.destination_port.clone(),
        opening: r.opening,
        icmp: r.icmp_type,
    };
    let action = match &stage.action {
        stage::Action::Allow => Action::Allow,
        stage::Action::Deny => Action::Deny,
        stage::Action::Count => Action::Count,
        // A guest that is not there gets no copies, which the operator has been told.
        stage::Action::Mirror { guest, net } => {
            port(config, guest, *net).map_or(Action::Count, |port| Action::Mirror(Sink::Port(port)))
        }
        stage::Action::Limit { rate, burst, bytes } => {
            let unit = if *bytes { Unit::Bytes } else { Unit::Frames };
            Action::Limit(Bucket::new(Rate { units: *rate, burst: *burst }, hz), unit)
        }
    };
    Stage::new(rule, action)
}
