//! Rules for the ports of a conversation.

use core::net::IpAddr;

use proptest::option::weighted;
use proptest::prelude::*;

use crate::policy::Policy;
use crate::policy::claims::{Claims, Owner};
use crate::policy::guard::Guard;
use crate::policy::headers::{ICMP, IPV4, TCP, UDP};
use crate::policy::limit::{Bucket, Rate};
use crate::policy::stage::{Action, Chain, Prefix, Rule, Sink, Stage, Unit};
use crate::policy::vlan::Membership;
use crate::mac::Mac;

/// The rules of a port, to be made once for each way.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    macs: bool,
    addresses: bool,
    /// The other guests' addresses are not to be announced.
    claims: bool,
    vlan: Membership,
    enter: Vec<(Rule, Does)>,
    leave: Vec<(Rule, Does)>,
}

/// What a stage does.
#[derive(Clone, Copy, Debug)]
enum Does {
    Allow,
    Deny,
    Count,
    Mirror(usize),
    /// So many at once.
    Limit(u64, Unit),
}

pub(super) fn rules() -> impl Strategy<Value = Rules> {
    let vlan = prop_oneof![
        4 => Just(Membership::Plain),
        4 => Just(Membership::Untagged),
        10 => Just(Membership::Access(7)),
        1 => Just(Membership::Access(9)),
        1 => Just(Membership::trunk([7, 9], None)),
        2 => Just(Membership::trunk([9], Some(7))),
    ];
    let chain = || {
        prop_oneof![
            2 => Just(vec![]),
            3 => proptest::collection::vec((rule(), does()), 1..2),
            1 => proptest::collection::vec((rule(), does()), 2..5),
        ]
    };
    let own = (any::<bool>(), any::<bool>(), any::<bool>());
    (own, vlan, chain(), chain()).prop_map(|((macs, addresses, claims), vlan, enter, leave)| Rules {
        macs,
        addresses,
        claims,
        vlan,
        enter,
        leave,
    })
}

fn rule() -> impl Strategy<Value = Rule> {
    let prefix = || {
        let address = prop_oneof![
            (0u8..4).prop_map(|last| IpAddr::from([10, 0, 0, last])),
            (0u16..4).prop_map(|last| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last])),
        ];
        (address, prop_oneof![Just(0u8), Just(31), Just(32), Just(127), Just(128)]).prop_map(|(address, bits)| {
            Prefix::new(address, bits.min(if address.is_ipv4() { 32 } else { 128 })).unwrap()
        })
    };
    let ports = || prop_oneof![Just(9..=9u16), Just(8..=300), Just(0..=u16::MAX)];
    let protocol = prop_oneof![4 => Just(UDP), 4 => Just(TCP), 1 => Just(ICMP), 1 => Just(47u8)];
    (
        weighted(0.06, prop_oneof![Just(IPV4), Just(0x88b5)]),
        weighted(0.06, prop_oneof![Just(7u16), Just(9)]),
        weighted(0.4, protocol),
        (weighted(0.15, prefix()), weighted(0.2, prefix())),
        (weighted(0.1, ports()), weighted(0.4, ports())),
        weighted(0.2, any::<bool>()),
        weighted(0.03, 0u8..9),
    )
        .prop_map(|(ether_type, vlan, protocol, (source, destination), ports, opening, icmp)| Rule {
            ether_type,
            vlan,
            protocol,
            source,
            destination,
            source_port: ports.0,
            destination_port: ports.1,
            opening,
            icmp,
            ..Rule::default()
        })
}

fn does() -> impl Strategy<Value = Does> {
    prop_oneof![
        4 => Just(Does::Allow),
        3 => Just(Does::Deny),
        5 => Just(Does::Count),
        1 => (0..super::GUESTS).prop_map(Does::Mirror),
        1 => (1u64..40).prop_map(|burst| Does::Limit(burst, Unit::Frames)),
        1 => (1u64..4000).prop_map(|burst| Does::Limit(burst, Unit::Bytes)),
    ]
}

impl Rules {
    /// Those of guest `number`.
    pub(super) fn policy(&self, number: u8) -> &'static Policy {
        let macs = |number| [Mac::new([2, 0, 0, 0, 0, number])];
        let addresses = |number: u8| {
            [IpAddr::from([10, 0, 0, number]), IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, number.into()])]
        };
        let others = (0..super::GUESTS as u8 + 1).filter(|&other| self.claims && other != number);
        let others: Vec<Owner> = others
            .map(|other| Owner {
                vlan: Membership::Plain,
                macs: macs(other).into(),
                addresses: addresses(other).into(),
            })
            .collect();
        let (macs, addresses) = (macs(number), addresses(number));
        let guard = Guard::new(if self.macs { &macs } else { &[] }, if self.addresses { &addresses } else { &[] });
        let policy = Policy {
            guard: guard.unwrap(),
            claims: Claims::new(&others),
            vlan: self.vlan.clone(),
            enter: chain(&self.enter),
            leave: chain(&self.leave),
            ..Policy::default()
        };
        Box::leak(Box::new(policy))
    }
}

fn chain(stages: &[(Rule, Does)]) -> Chain {
    let mut chain = Chain::default();
    for (rule, does) in stages {
        let action = match *does {
            Does::Allow => Action::Allow,
            Does::Deny => Action::Deny,
            Does::Count => Action::Count,
            Does::Mirror(port) => Action::Mirror(Sink::Port(port)),
            Does::Limit(burst, unit) => Action::Limit(Bucket::new(Rate { units: 1000, burst }, 10_000), unit),
        };
        chain.push(Stage::new(rule.clone(), action)).unwrap();
    }
    chain
}

/// What the stages have counted.
pub(super) fn counted(policy: &Policy) -> Vec<[u64; 3]> {
    let stages = policy.enter.stages().iter().chain(policy.leave.stages());
    stages.map(|stage| [&stage.frames, &stage.bytes, &stage.dropped].map(|counter| counter.get())).collect()
}
