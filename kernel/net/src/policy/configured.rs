//! Makes a [`Policy`] from the operator's configuration of a port ([`config::Rules`], [`config::Identity`]). The
//! hypervisor and the engine as a Linux process both use it.

use crate::mac::Mac;
use crate::policy::claims::{Claims, Owner};
use crate::policy::guard::Guard;
use crate::policy::limit::{Bucket, Rate};
use crate::policy::stage::{Action, Chain, MAX_STAGES, Prefix, Rule, Sink, Stage, Unit};
use crate::policy::vlan::Membership;
use crate::policy::{Policy, guard};

extern crate alloc;

use alloc::{boxed::Box, string::String, vec::Vec};

use config::{Identity, stage};
use control::{NoMemory, StageCounters};

const _: () = assert!(config::MAX_STAGES <= MAX_STAGES);
const _: () = assert!(config::MAX_GATEWAY <= guard::MAX_MACS);
const _: () = assert!(config::MAX_ADDRESSES <= guard::MAX_ADDRESSES && config::MAX_STATIC < guard::MAX_MACS);

/// What the configuration refers to.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    /// All stages. Ports refer to them by index.
    pub stages: &'a [config::Stage],
    /// Ticks per second of the engine's clock.
    pub hz: u64,
    /// The guests' ports, and the gateways of the uplinks.
    pub owners: &'a [Owner],
    /// Returns the port of a guest's network device, for mirrors. `None`: there is none.
    pub port: &'a dyn Fn(&str, usize) -> Option<usize>,
}

/// The rules of a port, and the names of their stages for the counters. They are never freed.
pub struct Rules {
    /// The rules that the engine evaluates.
    pub policy: &'static Policy,
    /// The chain into the switch, and the chain out of it. For each: the direction as the owner of the port sees it,
    /// and the names of the stages.
    stages: [(&'static str, Vec<String>); 2],
}

impl Rules {
    /// Makes the rules of a guest's port. `me` is its number among `known.owners`. `own` is the device's own address, if
    /// it is known. Returns `None` if everything is allowed.
    #[must_use]
    pub fn of_guest(
        known: Known<'_>,
        me: usize,
        own: Option<config::Mac>,
        identity: &Identity,
        rules: &config::Rules,
    ) -> Option<Self> {
        let fixed: heapless::Vec<_, { guard::MAX_MACS }> = identity.fixed.iter().copied().map(mac).collect();
        let others = known.owners.iter().enumerate().filter(|(n, _)| *n != me).map(|(_, owner)| owner);
        let claims = Claims::new(others);
        // A guest without VLANs sends no tags. On the wire they would reach other networks.
        let vlan = match membership(&rules.vlan) {
            Membership::Plain => Membership::Untagged,
            vlan => vlan,
        };
        let mut policy = Policy { fixed: fixed.clone(), claims, vlan, ..Policy::default() };
        if identity.anti_spoofing {
            let mut macs = fixed;
            match own {
                // There is room for it, as asserted above. Otherwise frames from the device's own address would be
                // refused.
                Some(own) => drop(macs.push(mac(own))),
                // The address is not known, so any is allowed.
                None => macs.clear(),
            }
            policy.guard = Guard::new(&macs, &identity.addresses).unwrap_or_default();
        }
        Self::new(known, rules, policy, [("tx", &rules.tx), ("rx", &rules.rx)])
    }

    /// Makes the rules of an uplink, whose gateway has these addresses. Returns `None` if everything is allowed.
    #[must_use]
    pub fn of_uplink(known: Known<'_>, gateway: &config::Gateway, rules: &config::Rules) -> Option<Self> {
        let fixed = gateway.macs.iter().copied().map(mac).collect();
        let policy = Policy { fixed, vlan: membership(&rules.vlan), ..Policy::default() };
        Self::new(known, rules, policy, [("rx", &rules.rx), ("tx", &rules.tx)])
    }

    fn new(
        known: Known<'_>,
        rules: &config::Rules,
        mut policy: Policy,
        ways: [(&'static str, &Vec<usize>); 2],
    ) -> Option<Self> {
        policy.storm = rules.storm.map(|units| {
            let units = u64::from(units);
            // The burst is what the rate gives in 0.1 s, at least one frame.
            Bucket::new(Rate { units, burst: (units / 10).max(1) }, known.hz)
        });
        let fill = |chain: &mut Chain, numbers: &[usize]| {
            let stages = numbers.iter().filter_map(|&number| known.stages.get(number));
            stages
                .filter_map(|stage| chain.push(made(known, stage)).ok().map(|()| stage.name.clone()))
                .collect::<Vec<_>>()
        };
        let enter = fill(&mut policy.enter, ways[0].1);
        let leave = fill(&mut policy.leave, ways[1].1);
        let stages = [(ways[0].0, enter), (ways[1].0, leave)];
        (!policy.is_nothing()).then(|| Self { policy: Box::leak(Box::new(policy)), stages })
    }

    /// Returns the counters of its stages.
    pub fn counters(&self) -> impl Iterator<Item = Result<StageCounters, NoMemory>> + '_ {
        let chains = [&self.policy.enter, &self.policy.leave];
        chains.into_iter().zip(&self.stages).flat_map(|(chain, (direction, names))| {
            chain.stages().iter().zip(names).map(|(stage, name)| {
                Ok(StageCounters {
                    stage: control::copy(name)?,
                    direction: (*direction).into(),
                    frames: stage.frames.get(),
                    bytes: stage.bytes.get(),
                    dropped: stage.dropped.get(),
                })
            })
        })
    }
}

/// Returns the addresses of a guest's port. `own` is the device's own address, if it is known.
#[must_use]
pub fn owner_of_guest(own: Option<config::Mac>, identity: &Identity, rules: &config::Rules) -> Owner {
    Owner {
        vlan: membership(&rules.vlan),
        macs: own.iter().chain(&identity.fixed).copied().map(mac).collect(),
        addresses: identity.addresses.clone(),
    }
}

/// Returns the addresses of an uplink's gateway.
#[must_use]
pub fn owner_of_gateway(gateway: &config::Gateway, rules: &config::Rules) -> Owner {
    Owner {
        vlan: membership(&rules.vlan),
        macs: gateway.macs.iter().copied().map(mac).collect(),
        addresses: gateway.addresses.clone(),
    }
}

fn membership(vlan: &config::Vlan) -> Membership {
    match vlan {
        config::Vlan::Plain => Membership::Plain,
        config::Vlan::Access(vlan) => Membership::Access(*vlan),
        config::Vlan::Trunk { vlans, native } => Membership::trunk(vlans.iter().copied(), *native),
    }
}

fn mac(mac: config::Mac) -> Mac {
    Mac::new(mac.0)
}

fn made(known: Known<'_>, stage: &config::Stage) -> Stage {
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
        // A missing guest gets no copies. The operator was told.
        stage::Action::Mirror { guest, net } => {
            (known.port)(guest, *net).map_or(Action::Count, |port| Action::Mirror(Sink::Port(port)))
        }
        stage::Action::Limit { rate, burst, bytes } => {
            let unit = if *bytes { Unit::Bytes } else { Unit::Frames };
            Action::Limit(Bucket::new(Rate { units: *rate, burst: *burst }, known.hz), unit)
        }
    };
    Stage::new(rule, action)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Entered, Refusal, UNCHECKED};

    const FILE: &str = "[[stage]]\nname = 'web'\naction = 'allow'\nprotocol = 'tcp'\ndestination_port = 80\n\
                        [[stage]]\nname = 'rest'\naction = 'deny'\n\
                        [[port]]\nsocket = 'a'\naddresses = ['10.0.0.1']\nvlan = 7\ntx = ['web', 'rest']\n";

    /// A frame from 02:00:00:00:00:01 and 10.0.0.`from` to this TCP port.
    fn tcp(from: u8, port: u8) -> [u8; 60] {
        let mut frame = [0; 60];
        frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
        frame[12..38].copy_from_slice(&[
            8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, from, 10, 0, 0, 2, 4, 0, 0, port,
        ]);
        frame
    }

    #[test]
    fn what_a_file_says_is_what_the_engine_asks_and_counts() {
        let read = config::parse_rules("f", FILE, &[], &["socket"]);
        assert_eq!(read.mistakes, []);
        let (identity, port) = &read.ports[0];
        let known = Known { stages: &read.stages, hz: 1000, owners: &[], port: &|_, _| None };
        let rules = Rules::of_guest(known, 0, Some(config::Mac([2, 0, 0, 0, 0, 1])), identity, port).unwrap();
        let enter = |frame: &[u8]| rules.policy.enter(frame, 60, 1, &mut crate::ports::PortSet::default());
        assert_eq!(enter(&tcp(1, 80)), Ok(Entered { vlan: 7, tag: None }));
        assert_eq!(enter(&tcp(1, 23)), Err(Refusal::Denied));
        assert_eq!(enter(&tcp(3, 80)), Err(Refusal::Address));
        let counted: Vec<_> = rules.counters().map(Result::unwrap).map(|c| (c.stage, c.frames, c.dropped)).collect();
        assert_eq!(counted, [("web".into(), 1, 0), ("rest".into(), 1, 1)]);
    }

    #[test]
    fn a_port_whose_address_is_not_known_may_have_any_and_none_sends_tags() {
        let identity = Identity { fixed: [config::Mac([2, 0, 0, 0, 0, 9])].into(), ..Identity::default() };
        let known = Known { stages: &[], hz: 1000, owners: &[], port: &|_, _| None };
        let enter = |own, identity: &Identity, frame: &[u8]| {
            let rules = Rules::of_guest(known, 0, own, identity, &config::Rules::default()).unwrap();
            rules.policy.enter(frame, 60, 1, &mut crate::ports::PortSet::default())
        };
        assert!(enter(None, &identity, &tcp(1, 80)).is_ok());
        assert_eq!(enter(Some(config::Mac([2, 0, 0, 0, 0, 5])), &identity, &tcp(1, 80)), Err(Refusal::Mac));
        for ether_type in [[0x81, 0], [0x88, 0xa8]] {
            let mut tagged = tcp(1, 80);
            tagged[12..14].copy_from_slice(&ether_type);
            assert_eq!(enter(None, &identity, &tagged), Err(Refusal::Vlan));
            let free = Identity { anti_spoofing: false, ..Identity::default() };
            assert_eq!(enter(None, &free, &tagged), Err(Refusal::Vlan));
        }
        let any = config::Rules { storm: None, ..config::Rules::default() };
        assert!(Rules::of_uplink(known, &config::Gateway::default(), &any).is_none());
    }

    #[test]
    fn a_tenth_of_a_seconds_storm_passes_at_once_by_default() {
        let known = Known { stages: &[], hz: 1_000_000, owners: &[], port: &|_, _| None };
        let rules = config::Rules::default();
        let uplink = Rules::of_uplink(known, &config::Gateway::default(), &rules).unwrap();
        let guest = Rules::of_guest(known, 0, None, &Identity::default(), &rules).unwrap();
        for policy in [uplink.policy, guest.policy] {
            let passed = |now: u64, frames: u32| (0..frames).filter(|_| policy.flood(now).is_ok()).count();
            assert_eq!((passed(1, 2000), passed(500_001, 9999)), (1000, 1000));
            // One at a time, 100 us apart, any number passes.
            assert!((0..50_000).all(|n| policy.flood(1_000_000 + 100 * n).is_ok()));
        }
    }

    #[test]
    fn others_and_the_gateway_are_known_by_their_configured_addresses() {
        let one = |last| config::Mac([2, 0, 0, 0, 0, last]);
        let rules = config::Rules::default();
        let with = |address: &str| Identity { addresses: vec![address.parse().unwrap()], ..Identity::default() };
        let gateway = config::Gateway { addresses: vec!["10.0.0.9".parse().unwrap()], macs: vec![one(9)] };
        let free = Identity { anti_spoofing: false, ..Identity::default() };
        let owners = [
            owner_of_guest(Some(one(1)), &free, &rules),
            owner_of_guest(Some(one(2)), &with("10.0.0.2"), &rules),
            owner_of_gateway(&gateway, &rules),
        ];
        let known = Known { stages: &[], hz: 1000, owners: &owners, port: &|_, _| None };
        let made = Rules::of_guest(known, 0, Some(one(1)), &free, &rules).unwrap();
        for (sender, expected) in [(1, Ok(UNCHECKED)), (2, Err(Refusal::Address)), (9, Err(Refusal::Address))] {
            let mut frame = [0; 60];
            frame[..12].copy_from_slice(&[255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1]);
            frame[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
            frame[22..32].copy_from_slice(&[2, 0, 0, 0, 0, 1, 10, 0, 0, sender]);
            let found = made.policy.enter(&frame, 60, 1, &mut crate::ports::PortSet::default());
            assert_eq!(found, expected, "{sender}");
        }
        let uplink = Rules::of_uplink(known, &gateway, &rules).unwrap();
        assert_eq!(uplink.policy.fixed, [Mac::new([2, 0, 0, 0, 0, 9])]);
    }
}
