//! Which NIC a port gets, and what the report says.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::parse;

const X520: (u16, u16, Option<&str>) = (0x8086, 0x10fb, Some("82599 SFP+"));
const VIRTIO: (u16, u16, Option<&str>) = (0x1af4, 0x1041, Some("virtio network device"));
const X540: (u16, u16, Option<&str>) = (0x8086, 0x1528, None);
const DISK: (u16, u16, Option<&str>) = (0x8086, 0x2922, None);

type Kind = (u16, u16, Option<&'static str>);

/// Functions at 00:01.0, 00:02.0 and so on.
fn found(kinds: &[Kind]) -> Vec<FoundFunction> {
    let function = |(kind, number): (&Kind, u8)| FoundFunction {
        at: (0, number, 0),
        vendor: kind.0,
        device: kind.1,
        name: kind.2,
        needs: (kind.1 == X540.1).then_some(("Intel X540", "it would need much")),
    };
    kinds.iter().zip(1..).map(function).collect()
}

/// Ports with these devices. The rest of the entry follows a line feed.
fn ports(devices: &[&str]) -> Vec<Uplink> {
    let entry = |device: &&str| match device.split_once('\n') {
        Some((device, rest)) => format!("[[port]]\ndevice = '{device}'\n{rest}\n"),
        None => format!("[[port]]\ndevice = '{device}'\n"),
    };
    parse("f", devices.iter().map(entry).collect::<String>()).config.uplinks
}

const MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);

/// Searches for one port's NIC. Those with a number in `bad` cannot be opened. Returns the NIC and what the report says.
fn search(choice: &mut NicChoice<'_>, port: &Uplink, bad: &[usize], queues: u16) -> (Option<usize>, String) {
    let mut search = choice.search(port);
    loop {
        match search.candidate() {
            Ok(number) if bad.contains(&number) => search.failed("it does not start"),
            Ok(number) => return (Some(number), search.opened(MAC, queues)),
            Err(why) => return (None, why),
        }
    }
}

/// The same for all ports, with one receive queue each.
fn all(devices: &[&str], kinds: &[Kind], bad: &[usize]) -> Vec<(Option<usize>, String)> {
    let (ports, found) = (ports(devices), found(kinds));
    let mut choice = NicChoice::new(&ports, Some(&found));
    ports.iter().map(|port| search(&mut choice, port, bad, 1)).collect()
}

/// What the report says of a NIC.
fn says(port: &str, nic: &str, rest: &str) -> String {
    format!(
        "uplink {port}: {nic}, 02:00:00:00:00:09; no IOMMU keeps it from any memory, so it and whoever made it have to be \
         trusted{rest}"
    )
}

/// What the report says where there is none.
fn none(port: &str, why: &str) -> (Option<usize>, String) {
    (None, format!("no uplink {port}, its guests reach other guests only: {why}"))
}

#[test]
fn first_is_the_first_that_a_driver_knows_and_can_open() {
    let nic = all(&["first"], &[DISK, VIRTIO, X520], &[]);
    assert_eq!(nic, [(Some(1), says("first", "virtio network device at 00:02.0", ""))]);
    let nic = all(&["first"], &[VIRTIO, X520, X520], &[0, 1]);
    let rest = "; left alone: the virtio network device at 00:01.0: it does not start; left alone: the 82599 SFP+ at \
                00:02.0: it does not start";
    assert_eq!(nic, [(Some(2), says("first", "82599 SFP+ at 00:03.0", rest))]);
}

#[test]
fn the_report_says_why_first_is_none() {
    assert_eq!(all(&["first"], &[], &[]), [none("first", "no NIC for which there is a driver")]);
    assert_eq!(all(&["first"], &[DISK, DISK], &[]), [none("first", "no NIC for which there is a driver")]);
    let why = "the virtio network device at 00:01.0: it does not start; left alone: the 82599 SFP+ at 00:03.0: it does \
               not start";
    assert_eq!(all(&["first"], &[VIRTIO, DISK, X520], &[0, 2]), [none("first", why)]);
}

#[test]
fn an_address_names_one_function_and_no_other() {
    let kinds = [VIRTIO, X520, DISK];
    assert_eq!(all(&["00:02.0"], &kinds, &[]), [(Some(1), says("00:02.0", "82599 SFP+ at 00:02.0", ""))]);
    let why = "the 82599 SFP+ at 00:02.0: it does not start";
    assert_eq!(all(&["00:02.0"], &kinds, &[1]), [none("00:02.0", why)]);
    let why = "the device at 00:03.0 is 8086:2922, for which there is no driver";
    assert_eq!(all(&["00:03.0"], &kinds, &[]), [none("00:03.0", why)]);
    assert_eq!(all(&["03:1f.7"], &kinds, &[]), [none("03:1f.7", "there is no device at 03:1f.7")]);
}

#[test]
fn first_is_none_that_another_port_names() {
    let chosen = |devices: &[&str]| all(devices, &[VIRTIO, X520], &[]);
    let numbers = |devices: &[&str]| chosen(devices).into_iter().map(|(number, _)| number).collect::<Vec<_>>();
    assert_eq!(numbers(&["first", "00:01.0"]), [Some(1), Some(0)]);
    assert_eq!(numbers(&["00:02.0", "first"]), [Some(1), Some(0)]);
    let nothing_left = none("first", "no further NIC for which there is a driver");
    assert_eq!(chosen(&["first", "00:01.0", "00:02.0"])[0], nothing_left);
    // Also if what another port names is not there.
    assert_eq!(all(&["first", "07:00.0"], &[DISK], &[])[0], nothing_left);
}

/// The file may have one `first` only, but nothing here relies on that.
#[test]
fn a_second_first_gets_a_further_nic() {
    let mut ports = ports(&["first", "00:1f.0\nname = 'b'"]);
    ports[1].device = Some(PciDevice::First);
    let found = found(&[VIRTIO, X520]);
    let mut choice = NicChoice::new(&ports, Some(&found));
    let chosen: Vec<_> = ports.iter().map(|port| search(&mut choice, port, &[], 1).0).collect();
    assert_eq!(chosen, [Some(0), Some(1)]);
    let mut choice = NicChoice::new(&ports, Some(&found[..1]));
    let chosen: Vec<_> = ports.iter().map(|port| search(&mut choice, port, &[], 1)).collect();
    assert_eq!(chosen[1], none("b", "no further NIC for which there is a driver"));
}

#[test]
fn a_port_with_a_mistake_gets_none_and_so_does_every_port_without_a_scan() {
    let ports = ports(&["first\nvlan = 'x'", "00:01.0"]);
    assert_eq!(ports[0].device, None);
    let found = found(&[VIRTIO]);
    let mut choice = NicChoice::new(&ports, Some(&found));
    assert_eq!(search(&mut choice, &ports[0], &[], 1), none("first", "there is a mistake in its entry"));
    let mut choice = NicChoice::new(&ports, None);
    assert_eq!(search(&mut choice, &ports[0], &[], 1), none("first", "there is a mistake in its entry"));
    assert_eq!(search(&mut choice, &ports[1], &[], 1), none("00:01.0", "PCI was not scanned"));
}

#[test]
fn the_report_says_how_many_receive_queues_there_are() {
    let queues = |steering: &str, count| {
        let (ports, found) = (ports(&[&format!("first\nsteering = '{steering}'\nname = 'lan'")]), found(&[X520]));
        let (_, said) = search(&mut NicChoice::new(&ports, Some(&found)), &ports[0], &[], count);
        let said = said.strip_prefix("uplink lan: 82599 SFP+ at 00:01.0, 02:00:00:00:00:09").unwrap();
        said.split_once("; no IOMMU").unwrap().0.to_owned()
    };
    assert_eq!(queues("none", 1), "");
    assert_eq!(queues("flows", 1), ", with one receive queue, so that there is nothing to steer");
    assert_eq!(queues("addresses", 1), ", with one receive queue, so that there is nothing to steer");
    assert_eq!(queues("flows", 4), ", 4 receive queues for flows");
    assert_eq!(queues("addresses", 3), ", 3 receive queues for guests' addresses");
}

fn kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(vec![X520, VIRTIO, DISK])
}

proptest! {
    /// Whatever is found, named and broken.
    #[test]
    fn each_port_gets_a_working_nic_of_its_own_and_every_failure_is_named(
        kinds in vec(kind(), 0..7),
        bad in vec(0_usize..7, 0..4),
        devices in Just(vec!["first", "00:01.0", "00:02.0", "00:05.0", "01:00.0"]).prop_shuffle(),
        count in 0_usize..5,
    ) {
        let devices = &devices[..count];
        let chosen = all(devices, &kinds, &bad);
        let mut numbers: Vec<usize> = chosen.iter().filter_map(|(number, _)| *number).collect();
        for (device, (number, said)) in devices.iter().zip(&chosen) {
            let usable = |number: usize| kinds[number].2.is_some() && !bad.contains(&number);
            let at = |number: usize| format!("00:{:02x}.0", number + 1);
            match number {
                Some(number) => {
                    prop_assert!(usable(*number));
                    prop_assert!(*device == "first" || *device == at(*number));
                    prop_assert!(said.contains(&format!(" at {}, ", at(*number))), "{}", said);
                }
                None => {
                    let may_have = |n: &usize| *device == at(*n) || (*device == "first" && !devices.contains(&&*at(*n)));
                    prop_assert!(!(0..kinds.len()).any(|n| usable(n) && may_have(&n)), "{}", said);
                }
            }
            // Candidates before the one that was opened.
            let may_try = |n: &usize| {
                kinds[*n].2.is_some()
                    && (*device == at(*n) || (*device == "first" && !devices.contains(&&*at(*n))))
            };
            let tried = (0..number.unwrap_or(kinds.len())).filter(may_try);
            prop_assert_eq!(said.matches(": it does not start").count(), tried.count());
        }
        numbers.sort_unstable();
        numbers.dedup();
        prop_assert_eq!(numbers.len(), chosen.iter().filter(|(number, _)| number.is_some()).count());
    }
}

#[test]
fn a_nic_without_a_driver_is_named_with_what_it_would_need() {
    let no_uplink = |port: &str, why: &str| format!("no uplink {port}, its guests reach other guests only: {why}");
    let named = all(&["00:02.0"], &[DISK, X540], &[]);
    let expected = no_uplink("00:02.0", "there is no driver for the Intel X540 at 00:02.0: it would need much");
    assert_eq!(named, [(None, expected)]);
    let first = all(&["first"], &[DISK, X540], &[]);
    let expected =
        no_uplink("first", "no NIC for which there is a driver; the Intel X540 at 00:02.0: it would need much");
    assert_eq!(first, [(None, expected)]);
    assert_eq!(all(&["first"], &[X540, X520], &[])[0].0, Some(1), "the next one is taken");
}
