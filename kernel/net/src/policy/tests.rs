//! A port's rules as a whole.

use super::frames::{A, B, SYN, arp, ethernet, from_mac, ip, tagged, tcp, udp};
use super::headers::{TCP, UDP};
use super::limit::Rate;
use super::stage::{Action, Rule, Sink, Stage};
use super::*;
use crate::counters::PortCounters;
use crate::mac::Mac;
use crate::ports::PortSet;
use guard::Guard;
use limit::Bucket;
use vlan::{Membership, PLAIN, Tagging};

const NOW: u64 = 5;

fn guarded(addresses: &[&str]) -> Policy {
    let addresses: std::vec::Vec<_> = addresses.iter().map(|a| a.parse().unwrap()).collect();
    Policy { guard: Guard::new(&[Mac::new(A)], &addresses).unwrap(), ..Policy::default() }
}

fn enter(policy: &Policy, frame: &[u8]) -> Result<Entered, Refusal> {
    policy.enter(frame, frame.len() as u32, NOW, &mut PortSet::default())
}

#[test]
fn without_rules_everything_enters_and_leaves_as_it_is() {
    let policy = Policy::default();
    for frame in [ethernet(0x88b5, &[]), tagged(&ethernet(0x0800, &[]), 7), from_mac(ethernet(0, &[]), B)] {
        assert_eq!(enter(&policy, &frame), Ok(UNCHECKED));
        assert_eq!(policy.leave(&frame, PLAIN, 64, NOW, &mut PortSet::default()), Ok(()));
    }
    assert_eq!(policy.flood(NOW), Ok(()));
    assert_eq!(
        (carries(None, PLAIN), carries(Some(&policy), PLAIN)),
        (Some(Tagging::Unchanged), Some(Tagging::Unchanged))
    );
    assert_eq!((carries(None, 7), carries(Some(&policy), 7)), (None, None));
}

#[test]
fn a_guard_for_the_mac_address_alone_does_not_look_further() {
    let policy = guarded(&[]);
    assert_eq!(enter(&policy, &ethernet(0x0800, &[])), Ok(UNCHECKED));
    assert_eq!(enter(&policy, &tagged(&ethernet(0x0800, &[]), 7)), Ok(UNCHECKED), "a tag is payload");
    assert_eq!(enter(&policy, &from_mac(ethernet(0x0800, &[]), B)), Err(Refusal::Mac));
    assert_eq!(enter(&policy, &[0; 8]), Err(Refusal::Unreadable));
}

#[test]
fn the_guard_reads_behind_the_tag() {
    let policy = Policy { vlan: Membership::trunk([7], None), ..guarded(&["10.0.0.1"]) };
    let good = ip("10.0.0.1", "10.0.0.2", UDP, &udp(1, 2));
    assert_eq!(enter(&policy, &tagged(&good, 0x2007)), Ok(Entered { vlan: 7, tag: Some(0x2007) }));
    assert_eq!(enter(&policy, &good), Err(Refusal::Vlan));
    assert_eq!(enter(&policy, &tagged(&good, 9)), Err(Refusal::Vlan));
    let lie = arp(2, (A, "10.0.0.2"), "10.0.0.3");
    assert_eq!(enter(&policy, &tagged(&lie, 7)), Err(Refusal::Address));
    assert_eq!(enter(&policy, &tagged(&from_mac(good, B), 7)), Err(Refusal::Mac));
}

#[test]
fn a_second_tag_does_not_get_through_where_the_first_is_taken_off() {
    for vlan in [Membership::Access(7), Membership::trunk([7], Some(8))] {
        let policy = Policy { vlan, ..Policy::default() };
        for (ether_type, inner) in [(0x8100, "802.1Q"), (0x88a8, "802.1ad")] {
            let twice = tagged(&ethernet(ether_type, &[0, 9, 8, 0, 1, 2]), 7);
            assert_eq!(enter(&policy, &twice), Err(Refusal::Vlan), "{inner}");
        }
        assert_eq!(enter(&policy, &ethernet(0x88a8, &[0, 9, 8, 0])), Err(Refusal::Vlan));
    }
}

#[test]
fn stages_see_what_the_guard_lets_through_and_the_vlan_that_it_is_in() {
    let mut policy = Policy { vlan: Membership::Access(7), ..guarded(&[]) };
    let rule = Rule { vlan: Some(7), destination_port: Some(23..=23), ..Rule::default() };
    policy.enter.push(Stage::new(Rule::default(), Action::Mirror(Sink::Port(4)))).unwrap();
    policy.enter.push(Stage::new(rule, Action::Deny)).unwrap();
    let telnet = ip("10.0.0.1", "10.0.0.2", TCP, &tcp(9, 23, SYN));
    let mut mirrors = PortSet::NONE;
    assert_eq!(policy.enter(&telnet, 60, NOW, &mut mirrors), Err(Refusal::Denied));
    assert!(mirrors.into_iter().eq([4]));
    assert_eq!(enter(&policy, &from_mac(telnet, B)), Err(Refusal::Mac));
    assert_eq!(policy.enter.stages()[0].frames.get(), 1);
}

#[test]
fn stages_on_the_way_out_are_asked_for_their_own_direction_only() {
    let mut policy = guarded(&["10.0.0.1"]);
    policy.leave.push(Stage::new(Rule { protocol: Some(UDP), ..Rule::default() }, Action::Deny)).unwrap();
    let frame = ip("10.0.0.1", "10.0.0.2", UDP, &udp(1, 2));
    assert_eq!(enter(&policy, &frame), Ok(UNCHECKED));
    assert_eq!(policy.leave(&frame, PLAIN, 60, NOW, &mut PortSet::default()), Err(Refusal::Denied));
    let other = ip("10.0.0.9", "10.0.0.1", TCP, &tcp(1, 2, 0));
    assert_eq!(
        policy.leave(&other, PLAIN, 60, NOW, &mut PortSet::default()),
        Ok(()),
        "whoever sent it was checked elsewhere"
    );
}

#[test]
fn a_storm_ends_at_its_limit_and_is_over_after_a_while() {
    let bucket = Bucket::new(Rate { units: 10, burst: 3 }, 1000);
    let policy = Policy { storm: Some(bucket), ..Policy::default() };
    let sent = (0..10).map(|_| policy.flood(NOW)).filter(Result::is_ok).count();
    assert_eq!((sent, policy.flood(NOW), policy.flood(NOW + 100)), (3, Err(Refusal::Storm), Ok(())));
}

#[test]
fn each_refusal_is_counted_where_its_name_is() {
    let counters = PortCounters::new();
    for refusal in [
        Refusal::Mac,
        Refusal::Address,
        Refusal::Unreadable,
        Refusal::Vlan,
        Refusal::Denied,
        Refusal::Limited,
        Refusal::Storm,
    ] {
        refusal.entering(&counters).add(1);
    }
    for refusal in [Refusal::Denied, Refusal::Limited, Refusal::Unreadable] {
        refusal.leaving(&counters).add(1);
    }
    let counted: std::vec::Vec<_> = counters.iter().filter(|&(_, n)| n != 0).collect();
    let names = "tx_spoofed_mac tx_spoofed_address tx_unreadable tx_vlan tx_denied tx_limited tx_storm rx_denied \
                 rx_limited rx_unreadable";
    assert_eq!(counted, names.split_whitespace().map(|name| (name, 1)).collect::<std::vec::Vec<_>>());
}
