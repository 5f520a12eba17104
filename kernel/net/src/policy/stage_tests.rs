//! Rules one field at a time, and chains in their order.

use proptest::prelude::*;

use super::*;
use crate::policy::frames::{A, ACK, B, SYN, arp, ethernet, extension, ip, ipv4_fragment, tcp, udp};
use crate::policy::headers::{ARP, ICMP, IPV4, IPV6, TCP, UDP};
use crate::policy::limit::Rate;

const VLAN: Vlan = 7;

fn fits(rule: &Rule, frame: &[u8]) -> Fit {
    rule.fits(&Headers::parse(frame, true, rule.reads_packets()).unwrap(), VLAN)
}

fn prefix(text: &str, bits: u8) -> Prefix {
    Prefix::new(text.parse().unwrap(), bits).unwrap()
}

fn http() -> std::vec::Vec<u8> {
    ip("10.0.0.1", "10.0.0.2", TCP, &tcp(4000, 80, SYN))
}

#[test]
fn each_field_is_held_against_its_own_and_all_of_them_together() {
    let frame = http();
    let any = Rule::default;
    let rules: std::vec::Vec<(Rule, Rule)> = vec![
        (Rule { ether_type: Some(IPV4), ..any() }, Rule { ether_type: Some(IPV6), ..any() }),
        (Rule { vlan: Some(7), ..any() }, Rule { vlan: Some(8), ..any() }),
        (Rule { source_mac: Some(Mac::new(A)), ..any() }, Rule { source_mac: Some(Mac::new(B)), ..any() }),
        (Rule { destination_mac: Some(Mac::new(B)), ..any() }, Rule { destination_mac: Some(Mac::new(A)), ..any() }),
        (Rule { protocol: Some(TCP), ..any() }, Rule { protocol: Some(UDP), ..any() }),
        (
            Rule { source: Some(prefix("10.0.0.0", 31)), ..any() },
            Rule { source: Some(prefix("10.0.0.2", 31)), ..any() },
        ),
        (
            Rule { destination: Some(prefix("10.0.0.2", 32)), ..any() },
            Rule { destination: Some(prefix("::", 0)), ..any() },
        ),
        (Rule { source_port: Some(4000..=4000), ..any() }, Rule { source_port: Some(80..=80), ..any() }),
        (Rule { destination_port: Some(70..=80), ..any() }, Rule { destination_port: Some(81..=90), ..any() }),
        (Rule { opening: Some(true), ..any() }, Rule { opening: Some(false), ..any() }),
        (any(), Rule { icmp: Some(8), ..any() }),
    ];
    for (yes, no) in &rules {
        assert_eq!((fits(yes, &frame), fits(no, &frame)), (Fit::Yes, Fit::No), "{yes:?} {no:?}");
    }
    let all = Rule {
        ether_type: Some(IPV4),
        protocol: Some(TCP),
        destination_port: Some(80..=80),
        source: Some(prefix("10.0.0.0", 8)),
        ..any()
    };
    assert_eq!(fits(&all, &frame), Fit::Yes);
    assert_eq!(fits(&Rule { vlan: Some(9), ..all }, &frame), Fit::No);
}

#[test]
fn opening_a_connection_is_syn_without_ack() {
    let opening = Rule { opening: Some(true), ..Rule::default() };
    for (flags, fit) in [(SYN, Fit::Yes), (SYN | ACK, Fit::No), (ACK, Fit::No), (SYN | 0xc0, Fit::Yes)] {
        assert_eq!(fits(&opening, &ip("10.0.0.1", "10.0.0.2", TCP, &tcp(1, 2, flags))), fit, "{flags:#x}");
    }
}

#[test]
fn icmp_is_told_by_its_type() {
    let ping = Rule { protocol: Some(ICMP), icmp: Some(8), ..Rule::default() };
    assert_eq!(fits(&ping, &ip("10.0.0.1", "10.0.0.2", ICMP, &[8, 0, 0, 0])), Fit::Yes);
    assert_eq!(fits(&ping, &ip("10.0.0.1", "10.0.0.2", ICMP, &[0, 0, 0, 0])), Fit::No);
}

#[test]
fn a_rule_about_packets_is_about_nothing_else() {
    let telnet = Rule { destination_port: Some(23..=23), ..Rule::default() };
    assert_eq!(fits(&telnet, &arp(1, (A, "10.0.0.1"), "10.0.0.2")), Fit::No);
    assert_eq!(fits(&telnet, &ethernet(0x88b5, &[0; 40])), Fit::No);
    let later = ipv4_fragment("10.0.0.1", "10.0.0.2", TCP, 5, &tcp(1, 23, 0));
    assert_eq!(fits(&telnet, &later), Fit::No, "the first fragment decides");
    assert_eq!(fits(&Rule { protocol: Some(TCP), ..Rule::default() }, &later), Fit::Yes);
}

#[test]
fn what_is_not_to_be_seen_is_unclear_unless_something_else_tells() {
    let telnet = Rule { protocol: Some(TCP), destination_port: Some(23..=23), ..Rule::default() };
    let cut = &ip("10.0.0.1", "10.0.0.2", TCP, &tcp(1, 80, 0))[..36];
    assert_eq!(fits(&telnet, cut), Fit::Unclear);
    assert_eq!(fits(&Rule { protocol: Some(UDP), ..telnet.clone() }, cut), Fit::No);
    let elsewhere = Rule { destination: Some(prefix("10.0.0.9", 32)), ..telnet.clone() };
    assert_eq!(fits(&elsewhere, cut), Fit::No);
    let deep = (0..20).fold(udp(1, 2), |rest, n| extension(if n == 0 { UDP } else { 60 }, 1, &rest));
    let deep = ip("fd00::1", "fd00::2", 60, &deep);
    assert_eq!(fits(&telnet, &deep), Fit::Unclear);
    assert_eq!(fits(&Rule { source: Some(prefix("fd00::", 64)), ..Rule::default() }, &deep), Fit::Yes);
    assert_eq!(fits(&telnet, &ethernet(IPV4, &[0; 4])), Fit::Unclear);
}

#[test]
fn prefixes_have_no_more_bits_than_their_addresses() {
    assert!(Prefix::new("10.0.0.0".parse().unwrap(), 33).is_none());
    assert!(Prefix::new("::".parse().unwrap(), 129).is_none());
    assert!(prefix("10.0.0.0", 0).contains("255.0.0.1".parse().unwrap()));
    assert!(prefix("fd00::", 64).contains("fd00::1".parse().unwrap()));
    assert!(!prefix("fd00::", 64).contains("fd00:0:0:1::1".parse().unwrap()));
    assert!(!prefix("0.0.0.0", 0).contains("::".parse().unwrap()));
}

fn chain(stages: impl IntoIterator<Item = (Rule, Action)>) -> Chain {
    let mut chain = Chain::default();
    for (rule, action) in stages {
        chain.push(Stage::new(rule, action)).unwrap();
    }
    chain
}

fn run(chain: &Chain, frame: &[u8]) -> (Verdict, std::vec::Vec<usize>) {
    let mut mirrors = PortSet::NONE;
    let headers = Headers::parse(frame, true, chain.reads_packets()).unwrap();
    let verdict = chain.run(&headers, VLAN, frame.len() as u32, 5, &mut mirrors);
    (verdict, mirrors.into_iter().collect())
}

fn counted(chain: &Chain) -> std::vec::Vec<(u64, u64, u64)> {
    chain.stages().iter().map(|s| (s.frames.get(), s.bytes.get(), s.dropped.get())).collect()
}

#[test]
fn stages_are_asked_in_their_order_until_one_decides() {
    let to = |port| Rule { destination_port: Some(port..=port), ..Rule::default() };
    let chain = chain([
        (Rule::default(), Action::Count),
        (to(80), Action::Mirror(Sink::Port(3))),
        (to(80), Action::Allow),
        (Rule::default(), Action::Mirror(Sink::Port(31))),
        (to(23), Action::Deny),
        (Rule::default(), Action::Count),
    ]);
    assert_eq!(run(&chain, &http()), (Verdict::Pass, vec![3]));
    let telnet = ip("10.0.0.1", "10.0.0.2", TCP, &tcp(4000, 23, SYN));
    assert_eq!(run(&chain, &telnet), (Verdict::Denied, vec![31]), "a copy of what is denied later");
    assert_eq!(run(&chain, &arp(1, (A, "10.0.0.1"), "10.0.0.2")), (Verdict::Pass, vec![31]));
    let n = (http().len() + telnet.len()) as u64;
    assert_eq!(counted(&chain)[0], (3, n + 42, 0));
    assert_eq!(counted(&chain)[1..3], [(1, 54, 0), (1, 54, 0)]);
    assert_eq!(counted(&chain)[4..], [(1, 54, 1), (1, 42, 0)]);
}

#[test]
fn an_empty_chain_lets_everything_pass() {
    let chain = Chain::default();
    assert!(chain.is_empty() && !chain.reads_packets());
    assert_eq!(run(&chain, &http()), (Verdict::Pass, vec![]));
}

#[test]
fn what_cannot_be_read_is_dropped_by_those_that_decide_and_by_no_others() {
    let to = || Rule { destination_port: Some(80..=80), ..Rule::default() };
    let cut = &http()[..36];
    for action in [Action::Allow, Action::Deny] {
        let chain = chain([(to(), action)]);
        assert_eq!(run(&chain, cut).0, Verdict::Unreadable);
        assert_eq!(counted(&chain), [(0, 0, 1)]);
    }
    let chain = chain([(to(), Action::Count), (to(), Action::Mirror(Sink::Port(1)))]);
    assert_eq!(run(&chain, cut), (Verdict::Pass, vec![]));
    assert_eq!(counted(&chain), [(0, 0, 0), (0, 0, 0)]);
}

#[test]
fn a_limit_drops_what_is_too_much_and_counts_both() {
    let bucket = Bucket::new(Rate { units: 1, burst: 2 }, 1_000_000);
    let frames = chain([(Rule::default(), Action::Limit(bucket, Unit::Frames))]);
    let all = [0; 5].map(|_| run(&frames, &http()).0);
    assert_eq!(all.iter().filter(|&&v| v == Verdict::Limited).count(), 3);
    assert_eq!(counted(&frames), [(5, 5 * 54, 3)]);
    let bucket = Bucket::new(Rate { units: 1, burst: 110 }, 1_000_000);
    let bytes = chain([(Rule::default(), Action::Limit(bucket, Unit::Bytes))]);
    assert_eq!([0; 3].map(|_| run(&bytes, &http()).0), [Verdict::Pass, Verdict::Pass, Verdict::Limited]);
}

#[test]
fn a_chain_takes_so_many_stages_and_gives_back_what_is_more() {
    let mut chain = Chain::default();
    for _ in 0..MAX_STAGES {
        chain.push(Stage::new(Rule::default(), Action::Count)).unwrap();
    }
    assert!(chain.push(Stage::new(Rule::default(), Action::Deny)).is_err());
    assert_eq!(run(&chain, &http()).0, Verdict::Pass);
}

proptest! {
    /// However the frame is cut and filled, a rule that names a port never lets one through that bears it in full.
    #[test]
    fn a_denied_port_stays_denied(
        options in 0u8..=10, extensions in 0u8..12, units in 1u8..4, four: bool, fill: u8, ports: (u16, u16),
    ) {
        let mut chain = Chain::default();
        let rule = Rule { destination_port: Some(23..=23), ..Rule::default() };
        chain.push(Stage::new(rule, Action::Deny)).unwrap();
        for port in [23, ports.1] {
            let tcp = tcp(ports.0, port, SYN);
            let frame = if four {
                let payload = [vec![fill; 4 * usize::from(options)], tcp].concat();
                let mut frame = ip("10.0.0.1", "10.0.0.2", TCP, &payload);
                frame[14] = 0x45 + options;
                frame
            } else {
                let rest = (0..extensions).fold(tcp, |rest, n| extension(if n == 0 { TCP } else { 60 }, units, &rest));
                ip("fd00::1", "fd00::2", if extensions == 0 { TCP } else { 60 }, &rest)
            };
            let front = &frame[..frame.len().min(crate::policy::headers::LOOKED_AT)];
            let verdict = run(&chain, front).0;
            if port == 23 {
                prop_assert!(verdict != Verdict::Pass);
            } else {
                prop_assert!(verdict != Verdict::Denied);
            }
        }
    }

    #[test]
    fn rules_and_frames_of_any_kind_do_not_panic(
        bytes in prop::collection::vec(any::<u8>(), 14..128), port: usize, kind: u8, ports: (u16, u16),
    ) {
        let rule = Rule {
            ether_type: (kind & 1 != 0).then_some([IPV4, IPV6, ARP][usize::from(kind % 3)]),
            source_port: Some(ports.0..=ports.1),
            ..Rule::default()
        };
        let chain = chain([(rule, Action::Mirror(Sink::Port(port))), (Rule::default(), Action::Count)]);
        if let Some(headers) = Headers::parse(&bytes, true, true) {
            prop_assert_eq!(chain.run(&headers, VLAN, u32::MAX, u64::MAX, &mut PortSet::default()), Verdict::Pass);
        }
    }
}
