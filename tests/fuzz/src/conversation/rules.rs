//! Rules of ports and of an uplink. They are made once. The honest guests' rules let their own frames pass.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use net::mac::Mac;
use net::policy::Policy;
use net::policy::claims::{Claims, Owner};
use net::policy::guard::Guard;
use net::policy::limit::{Bucket, Rate};
use net::policy::stage::{Action, Chain, Prefix, Rule, Sink, Stage, Unit};
use net::policy::vlan::Membership;

use super::wire::OUTSIDE;

/// Ticks of a second.
pub const HZ: u64 = 1000;

/// Which rules a run has.
#[derive(Clone, Copy)]
pub struct Scene {
    /// The hostile guest's.
    pub hostile: Option<&'static Policy>,
    /// The two honest guests'.
    pub honest: [Option<&'static Policy>; 2],
    /// The honest guests' frames to the outside get there.
    pub outside: bool,
}

/// The rules of all scenes.
pub struct All {
    hostile: [Option<&'static Policy>; 6],
    honest: [[Option<&'static Policy>; 2]; 4],
}

fn leaked(policy: Policy) -> Option<&'static Policy> {
    Some(Box::leak(Box::new(policy)))
}

fn chain(stages: impl IntoIterator<Item = (Rule, Action)>) -> Chain {
    let mut chain = Chain::default();
    for (rule, action) in stages {
        assert!(chain.push(Stage::new(rule, action)).is_ok(), "there is room");
    }
    chain
}

fn bucket(units: u64, burst: u64) -> Bucket {
    Bucket::new(Rate { units, burst }, HZ)
}

fn prefix(address: impl Into<IpAddr>, bits: u8) -> Option<Prefix> {
    Some(Prefix::new(address.into(), bits).expect("as many bits as it has"))
}

/// A rule for each field, with actions of each kind.
fn all_stages(to: usize) -> Chain {
    let v4 = Ipv4Addr::new(10, 0, 0, 0);
    let v6 = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0);
    chain([
        (Rule { ether_type: Some(0x88b5), ..Rule::default() }, Action::Count),
        (Rule { source: prefix(v4, 8), ..Rule::default() }, Action::Mirror(Sink::Port(to))),
        (Rule { source_port: Some(1000..=1999), ..Rule::default() }, Action::Limit(bucket(50, 20), Unit::Frames)),
        (Rule { destination_port: Some(7..=7), ..Rule::default() }, Action::Deny),
        (Rule { opening: Some(true), ..Rule::default() }, Action::Limit(bucket(10_000, 3000), Unit::Bytes)),
        (Rule { icmp: Some(8), ..Rule::default() }, Action::Allow),
        (Rule { destination: prefix(v6, 10), protocol: Some(58), ..Rule::default() }, Action::Deny),
        (Rule { vlan: Some(7), ..Rule::default() }, Action::Count),
        (Rule { protocol: Some(17), source_mac: Some(Mac::new(OUTSIDE)), ..Rule::default() }, Action::Deny),
    ])
}

impl All {
    /// Makes them, for guests with these addresses.
    pub fn new(macs: [[u8; 6]; 3]) -> Self {
        let owner = |n: usize| Owner {
            vlan: Membership::Plain,
            macs: vec![Mac::new(macs[n])],
            addresses: vec![Ipv4Addr::new(10, 0, 0, 1 + n as u8).into()],
        };
        let guard = |n: usize, addresses: &[IpAddr]| Guard::new(&[Mac::new(macs[n])], addresses).expect("few");
        let others = [owner(1), owner(2)];
        let own = [IpAddr::from(Ipv4Addr::new(10, 0, 0, 1)), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).into()];
        let hostile = [
            None,
            leaked(Policy {
                guard: guard(0, &[]),
                claims: Claims::new(&others),
                vlan: Membership::Untagged,
                ..Policy::default()
            }),
            leaked(Policy { vlan: Membership::trunk([5, 7], None), enter: all_stages(1), ..Policy::default() }),
            leaked(Policy {
                vlan: Membership::trunk([3, 5], Some(3)),
                storm: Some(bucket(20, 30)),
                leave: all_stages(2),
                ..Policy::default()
            }),
            leaked(Policy {
                guard: guard(0, &own),
                claims: Claims::new(&others),
                enter: all_stages(1),
                leave: all_stages(1),
                ..Policy::default()
            }),
            leaked(Policy {
                fixed: [Mac::new([2, 0, 0, 0, 9, 9])].into_iter().collect(),
                vlan: Membership::Access(3),
                storm: Some(bucket(20, 30)),
                ..Policy::default()
            }),
        ];
        let generous = || Some(bucket(1 << 40, 1 << 40));
        let watched = || chain([(Rule::default(), Action::Count), (Rule::default(), Action::Mirror(Sink::Port(0)))]);
        let pair = |rules: &dyn Fn(usize) -> Policy| [leaked(rules(1)), leaked(rules(2))];
        let honest = [
            [None, None],
            pair(&|n| Policy {
                guard: guard(n, &[]),
                vlan: Membership::Untagged,
                storm: generous(),
                ..Policy::default()
            }),
            pair(&|_| Policy { enter: watched(), leave: watched(), ..Policy::default() }),
            pair(&|_| Policy { vlan: Membership::Access(3), ..Policy::default() }),
        ];
        Self { hostile, honest }
    }

    /// The scene of that number.
    pub fn scene(&self, number: u8) -> Scene {
        let honest = usize::from(number / 8 % 4);
        Scene {
            hostile: self.hostile[usize::from(number % 8) % self.hostile.len()],
            honest: self.honest[honest],
            // The uplink is in no VLAN, and what is mirrored may leave more slowly than it is sent.
            outside: honest < 3,
        }
    }

    /// The rules of an uplink, whose gateway is outside.
    pub fn uplink() -> &'static Policy {
        let policy = Policy {
            fixed: [Mac::new(OUTSIDE)].into_iter().collect(),
            vlan: Membership::Untagged,
            storm: Some(bucket(1 << 40, 1 << 40)),
            enter: chain([(Rule { destination_port: Some(7..=7), ..Rule::default() }, Action::Deny)]),
            leave: chain([(Rule { source_port: Some(7..=7), ..Rule::default() }, Action::Deny)]),
            ..Policy::default()
        };
        leaked(policy).expect("some")
    }
}
