//! Whole files: what is read from a good one, and what is said about a bad one.

use std::collections::BTreeSet;

use proptest::prelude::*;

use core::net::IpAddr;

use ::trace::Classes;

use super::*;
use crate::mac::{Mac, derived_mac};
use crate::share::Share;
use crate::stage::Action;
use crate::trace::Trace;
use crate::{
    Block, Cache, Completion, DEFAULT_OVERLAY, Disk, Guest, GuestDevice, Identity, Net, NotifyBar, Requests, Restart,
    Rules, Scheduling, SplitLock, Topology, Vlan, check_memory, check_modules, default_config, plan,
};

const GOOD: &str = include_str!("../../examples/two-guests.toml");
const BAD: &str = include_str!("../../examples/mistakes.toml");
const POLICIES: &str = include_str!("../../examples/policies.toml");
const MINIMAL: &str = "[[guest]]\nname = 'a'\nmemory = '64M'\nkernel = 'k'\n";

/// Network device `n` of a guest.
fn nth_net(guest: &Guest, n: usize) -> &Net {
    guest.nets().nth(n).expect("it has as many network devices")
}

fn mistakes(text: &str) -> Vec<String> {
    parse("f", text).explain()
}

fn one(text: &str) -> String {
    let all = mistakes(text);
    assert_eq!(all.len(), 1, "{all:#?}");
    all[0].clone()
}

#[test]
fn a_good_file_is_read_as_it_is_written() {
    let Parsed { config, mistakes, .. } = parse("sidecore.toml", GOOD);
    assert_eq!(mistakes, []);
    assert_eq!((config.log, config.control), (Level::Info, Control::default()));
    assert_eq!(config.engines.iter().map(|engine| engine.core).collect::<Vec<_>>(), [Some(1)]);
    let [alpha, beta] = &config.guests[..] else { panic!("two guests: {config:#?}") };
    assert_eq!((alpha.name.as_str(), alpha.vcpus, alpha.memory), ("alpha", 1, 512 << 20));
    assert_eq!((alpha.kernel.as_str(), alpha.initrd.as_deref()), ("vmlinuz", Some("initrd")));
    assert_eq!(alpha.cmdline, "console=ttyS0 quiet");
    assert_eq!((alpha.restart, alpha.completion, alpha.autostart), (Restart::Always, Completion::Auto, true));
    assert_eq!(nth_net(alpha, 0).mac, Mac([2, 0, 0, 0, 0, 1]));
    assert_eq!((beta.vcpus, beta.cores.as_deref(), beta.restart), (2, Some(&[3, 4][..]), Restart::Never));
}

#[test]
fn what_may_be_left_out_has_a_default() {
    let Parsed { config, mistakes, .. } = parse("f", MINIMAL);
    assert_eq!(mistakes, []);
    let Guest { vcpus, initrd, cmdline, cores, devices, .. } = &config.guests[0];
    assert_eq!(config.guests[0].requests, Requests::Poll);
    assert_eq!((*vcpus, initrd, cmdline.as_str(), cores, devices.len()), (1, &None, "", &None, 0));
    assert_eq!(parse("f", "").config, Config { file: "f".into(), ..Config::default() });
    let config = parse("f", format!("{MINIMAL}[[guest.net]]\n[[guest.net]]\n")).config;
    assert_eq!(nth_net(&config.guests[0], 1).mac, derived_mac("a", 1));
}

#[test]
fn the_way_of_requests_is_one_of_three_words() {
    for (word, requests) in [("poll", Requests::Poll), ("notify", Requests::Notify), ("adaptive", Requests::Adaptive)] {
        let Parsed { config, mistakes, .. } = parse("f", format!("{MINIMAL}requests = '{word}'\n"));
        assert_eq!((mistakes, config.guests[0].requests), (Vec::new(), requests));
    }
}

#[test]
fn scheduling_and_weights_are_fine_and_equal_unless_the_file_says_otherwise() {
    let Parsed { config, mistakes, .. } = parse("f", format!("[[engine]]\n{MINIMAL}"));
    assert_eq!(mistakes, []);
    assert_eq!((config.engines[0].scheduling, config.guests[0].weight), (Scheduling::Fine, 1));
    let Parsed { config, mistakes, .. } =
        parse("f", format!("[[engine]]\nscheduling = 'per-device'\n{MINIMAL}weight = 16\n"));
    assert_eq!(mistakes, []);
    assert_eq!((config.engines[0].scheduling, config.guests[0].weight), (Scheduling::PerDevice, 16));
}

#[test]
fn every_mistake_has_its_own_message_and_the_good_guest_remains() {
    let Parsed { mut config, mut mistakes, .. } = parse("sidecore.toml", BAD);
    mistakes.extend(check_modules(&mut config, &["vmlinuz", "initrd"]));
    let names: Vec<_> = config.guests.iter().map(|guest| guest.name.as_str()).collect();
    assert_eq!(names, ["good"]);
    let messages: BTreeSet<_> = mistakes.iter().map(|mistake| mistake.message.as_str()).collect();
    assert_eq!((mistakes.len(), messages.len()), (13, 13), "{mistakes:#?}");
    for mistake in &mistakes {
        let line = BAD.lines().nth(mistake.line as usize - 1).unwrap();
        assert!(mistake.value == "[[guest]]" || line.contains(&mistake.value), "{mistake} is not in line: {line}");
    }
    let shown = |guest: &str| {
        let mistake = mistakes.iter().find(|mistake| mistake.guest.as_deref() == Some(guest)).unwrap();
        (mistake.value.as_str(), mistake.message.as_str())
    };
    assert_eq!(shown("unknown-key"), ("memroy", "no such key in [[guest]]; did you mean `memory`?"));
    assert_eq!(shown("wrong-type").0, "\"two\"");
    assert_eq!(shown("no-such-port"), ("\"up\"", "no [[port]] has this name; there is none"));
    assert_eq!(shown("no-kernel").0, "[[guest]]");
}

#[test]
fn every_way_of_completion_that_is_there_is_taken_by_its_name() {
    for (name, completion) in [
        ("auto", Completion::Auto),
        ("inject", Completion::Inject),
        ("direct", Completion::Direct),
        ("eli", Completion::Eli),
    ] {
        let file = format!("[[guest]]\nname = \"a\"\nmemory = \"64M\"\nkernel = \"k\"\ncompletion = \"{name}\"\n");
        let parsed = crate::parse("x", file.as_bytes());
        assert_eq!(parsed.mistakes.len(), 0, "{name}");
        assert_eq!(parsed.config.guests[0].completion, completion);
    }
}

#[test]
fn com2_may_ask_for_what_the_file_allows() {
    let com2 = |text: &str| {
        let parsed = parse("f", format!("{text}{MINIMAL}"));
        assert_eq!(parsed.config.guests.len(), 1);
        (parsed.config.com2, parsed.mistakes.first().map(|mistake| mistake.message.clone()))
    };
    assert_eq!(com2(""), (Permissions::all(), None));
    assert_eq!(com2("[com2]\n"), (Permissions::all(), None));
    let two = Permissions::VIEW | Permissions::OPERATE;
    assert_eq!(com2("[com2]\nallow = ['view', 'operate']\n"), (two, None));
    assert_eq!(com2("[com2]\nallow = []\n"), (Permissions::empty(), None));
    // A mistake does not open what somebody wanted to close.
    for (text, message) in [
        ("[com2]\nallow = ['vew']\n", "no permission `vew`; did you mean `view`?"),
        ("[com2]\nallow = ['root']\n", "no permission `root`; there are: view, profile, console, capture, operate"),
        ("[com2]\nallow = 'view'\n", "`allow` of [com2] is a list of permissions, like [\"view\"], not of type string"),
        ("[com2]\nallow = [1]\n", "`allow` is a list of permissions, like [\"view\"]"),
        ("[com2]\nalow = ['view']\n", "no such key in [com2]; did you mean `allow`?"),
    ] {
        assert_eq!(com2(text), (Permissions::VIEW, Some(message.to_owned())), "{text}");
    }
}

#[test]
fn the_trace_has_a_size_of_its_own_and_classes_that_are_written() {
    let trace = |text: &str| {
        let parsed = parse("f", format!("{text}{MINIMAL}"));
        assert_eq!(parsed.config.guests.len(), 1);
        let Trace { memory, on } = parsed.config.trace;
        (memory, on, parsed.mistakes.first().map(|mistake| mistake.message.clone()))
    };
    let none = Classes::empty();
    assert_eq!(trace(""), (128 << 10, none, None));
    let two = Classes::EXITS | Classes::VISITS;
    assert_eq!(trace("[trace]\nmemory = '64M'\non = ['visits', 'exits']\n"), (64 << 20, two, None));
    assert_eq!(trace("[trace]\nmemory = '0K'\n"), (0, none, None));
    assert_eq!(trace("[trace]\nmemory = '4KiB'\n"), (4096, none, None));
    for memory in ["2K", "65K", "128M", "-4K", "K", "1.5K", "4096"] {
        let (bytes, _, message) = trace(&format!("[trace]\nmemory = '{memory}'\n"));
        assert_eq!(bytes, 128 << 10);
        assert!(message.is_some_and(|message| message.contains("a power of two")), "{memory}");
    }
    for (on, message) in [
        ("['exit']", "no class `exit`; did you mean `exits`?"),
        ("['exits,visits']", "`on` is a list of classes, like [\"exits\"]"),
        ("[1]", "`on` is a list of classes, like [\"exits\"]"),
        ("['exits', 'exits']", "it stands twice in `on`"),
    ] {
        assert_eq!(trace(&format!("[trace]\non = {on}\n")), (128 << 10, none, Some(message.to_owned())), "{on}");
    }
}

#[test]
fn a_mistake_outside_the_guests_leaves_them_alone() {
    for text in [
        "[log]\nlevel = 'loud'\n",
        "[lgo]\n",
        "[control]\nstop_seconds = 0\n",
        "[[engine]]\nscheduling = 'fien'\n",
        "[[port]]\nname = 'up'\n",
        "[[port]]\n",
        "[[port]]\ndevice = 'eth0'\n",
        "[[stage]]\naction = 'deny'\n",
        "log = 3\n",
    ] {
        let text = format!("{text}{MINIMAL}");
        let parsed = parse("f", &text);
        assert_eq!((parsed.mistakes.len(), parsed.config.guests.len()), (1, 1), "{text}");
        assert_eq!(parsed.mistakes[0].guest, None);
    }
    assert!(one("[log]\nlevel = 'wran'\n").contains("did you mean \"warn\"?"));
    assert!(one("[[engine]]\n[[engine]]\n").contains("not available yet: a second engine"));
}

#[test]
fn a_file_that_is_not_toml_gives_one_mistake_and_no_guest() {
    let parsed = parse("f", format!("{MINIMAL}[[guest\n"));
    assert!(parsed.config.guests.is_empty());
    let [mistake] = &parsed.mistakes[..] else { panic!("{parsed:#?}") };
    assert_eq!((mistake.line, mistake.value.as_str()), (5, "[[guest"));
    assert!(mistake.message.starts_with("not TOML"), "{mistake}");
    let parsed = parse("f", b"# \xff\n");
    assert_eq!(parsed.explain(), ["f:1:3: byte 0xff: not UTF-8, so that no guest is known: expected a text file"]);
}

#[test]
fn further_mistakes_are_explained_as_well() {
    let with = |rest: &str| one(&format!("{MINIMAL}{rest}\n"));
    for (rest, expected) in [
        ("cores = [1, 1]\nvcpus = 2", "it stands twice in `cores`"),
        ("cores = [1, 2]", "expected as many cores as vCPUs: 2 for 1"),
        ("cores = ['x']", "a list of core numbers"),
        ("cores = 1", "not of type integer"),
        ("autostart = 'yes'", "true or false"),
        ("cmdline = \"a\\u0000b\"", "without control characters"),
        ("net = 3", "write [[guest.net]]"),
        ("[guest.net]\nmac = '02:00:00:00:00:01'", "write [[guest.net]]"),
        ("[[guest.net]]\nqueues = 5", "1 to 4"),
        ("[[guest.net]]\npacked = 1", "true or false"),
        ("[[guest.net]]\noffloads = 'tsu'", "must be one of \"tso\", \"csum\", \"none\"; did you mean \"tso\"?"),
        ("[[guest.net]]\nport = 'up'", "no [[port]] has this name; there is none"),
        ("[[guest.net]]\nport = 1", "the name of a [[port]], not of type integer"),
        ("[[guest.net]]\nmac = '02:00'", "six pairs"),
        ("[[guest.net]]\nmtu = 9217", "from 576 to 9216"),
        ("[[guest.block]]", "needs `disk`: \"ram\", \"vda\" to"),
        (
            "[[guest.block]]\ndisk = 'nvme1'",
            "must be \"ram\", \"vda\" to \"vdz\", \"nvme:SERIAL\", \"nvme:PCI-ADDRESS\", \"nvme0\"",
        ),
        ("[[guest.block]]\ndisk = 'nvme0'\npartition = ''", "expected a partition's label or its GUID"),
        ("[[guest.block]]\ndisk = 'nvme0'\nwipe = true\nreadonly = true", "a disk with `readonly` cannot be wiped"),
        ("[[guest.block]]\ndisk = 'ram'\nsize = '8M'\nemulate = true", "expected no `emulate`"),
        ("[[guest.block]]\ndisk = 'ram'\nsize = '8M'\nwipe = true", "expected no `wipe`"),
        ("[[guest.block]]\ndisk = 'vda'\nwipe = true", "only NVMe disks can be wiped"),
        ("[[guest.block]]\ndisk = 'vda'\nsize = '8M'", "`size` is for RAM disks only"),
        ("[[guest.block]]\ndisk = 'nvme:S'\nsize = '8M'", "`size` is for RAM disks only"),
        ("[[guest.block]]\ndisk = 'ram'\nsize = '8M'\npartition = 'x'", "a RAM disk has no partitions"),
        ("[[guest.block]]\ndisk = 'ram'", "needs `module`, the name of a boot module, or `size`"),
        ("[[guest.block]]\ndisk = 'ram'\nsize = '0M'", "a size from 1M to 1024G"),
        ("[[guest.block]]\ndisk = 'ram'\nsize = '5'", "a size like \"64M\""),
        ("[[guest.block]]\ndisk = 'ram'\nsize = '8M'\nreadonly = true", "would be useless"),
        (
            "[[guest.block]]\ndisk = 'ram'\nsize = '8M'\noverlay = '1M'",
            "a disk of `size`, or with `readonly`, has none",
        ),
        ("[[guest.block]]\ndisk = 'ram'\nmodule = 'm'\noverlay = '1M'\nreadonly = true", "has none"),
        ("[[guest.block]]\ndisk = 'ram'\nsize = '8M'\nserial = '123456789012345678901'", "1 to 20 printable"),
        ("[[guest.block]]\ndisk = 'ram'\nsize = '8M'\nserial = 'a b'", "without spaces"),
        ("[[guest.block]]\ndisk = 'ram'\nsize = '8M'\ncache = 'none'", "one of \"writeback\", \"writethrough\""),
        ("[[guest.block]]\ndisk = 'ram'\nsize = '8M'\nqueues = 9", "from 1 to 8"),
        ("[[guest.block]]\ndisk = 'ram'\nsize = '8M'\nfile = 'x'", "no such key in [[guest.block]]"),
        ("block = 3", "write [[guest.block]]"),
        ("[[guest.entropy]]\nrate = 5", "no such key in [[guest.entropy]]; it has none"),
        ("[[guest.entropy]]\n[[guest.entropy]]", "at most 1 entropy device"),
        ("entropy = 3", "write [[guest.entropy]]"),
        ("[[guest.console]]\nport = ['a']", "no such key in [[guest.console]]; did you mean `ports`?"),
        ("[[guest.console]]\nports = ['a', 'b', 'c']", "expected at most 2 in `ports`"),
        ("[[guest.console]]\nports = ['a', 'a']", "it stands twice in `ports`"),
        ("[[guest.console]]\nports = ['a b']", "`ports` is a list of names"),
        ("[[guest.console]]\nports = 'a'", "a list of names"),
        ("[[guest.console]]\n[[guest.console]]", "at most 1 console device"),
        ("console = 'hvc0'", "write [[guest.console]]"),
        ("vcpus = 99999999999999999999", "from 1 to 8"),
        ("vcpus = -1", "from 1 to 8"),
        ("vcpus = 1.5", "not of type float"),
        ("completion = 'injekt'", "did you mean \"inject\"?"),
        ("requests = 'pol'", "must be one of \"poll\", \"notify\", \"adaptive\"; did you mean \"poll\"?"),
        ("requests = true", "not of type boolean"),
        ("firmware = 'fw'", "expected either `kernel` or `firmware`"),
        ("firmware = 1", "an ELF file with a PVH entry, not of type integer"),
        ("split_lock = 'slo'", "must be one of \"slow\", \"kill\", \"allow\"; did you mean \"slow\"?"),
        ("notify_bar = 'mem'", "must be one of \"io\", \"memory\""),
        ("weight = 0", "from 1 to 16"),
        ("weight = 17", "from 1 to 16"),
    ] {
        assert!(with(rest).contains(expected), "{}", with(rest));
    }
    assert!(one("[[guest]]\n").contains("needs a `name`"));
    assert!(one("[[guest]]\nname = 'a b'\n").contains("letters, digits"));
    let long = format!("{MINIMAL}cmdline = '{}'\n", "x".repeat(2048));
    assert!(one(&long).contains("at most 2047 bytes, got 2048"));
    let many: String = (0..40).map(|n| format!("[[guest]]\nname = 'g{n}'\nmemory = '64M'\nkernel = 'k'\n")).collect();
    assert!(one(&many).contains("at most 32 guests"));
    assert!(
        one("[[engine]]\ncore = 1\n[[guest]]\nname='a'\nmemory='64M'\nkernel='k'\ncores=[1]\n")
            .contains("is an engine")
    );
    let two = format!("{MINIMAL}cores=[1]\n{}cores=[1]\n", MINIMAL.replace("'a'", "'b'"));
    assert!(one(&two).contains("belongs to guest `a`"));
}

#[test]
fn devices_are_in_the_order_of_their_functions_and_numbered_over_all_guests() {
    let other = MINIMAL.replace("'a'", "'b'");
    let text =
        format!("{MINIMAL}[[guest.entropy]]\n[[guest.net]]\n[[guest.net]]\n{other}[[guest.net]]\n[[guest.entropy]]\n");
    let Parsed { config, mistakes, .. } = parse("f", text);
    assert_eq!(mistakes, []);
    let kinds =
        config.guests.iter().map(|guest| guest.devices.iter().map(|d| matches!(d, GuestDevice::Net(_))).collect());
    assert_eq!(kinds.collect::<Vec<Vec<bool>>>(), [vec![true, true, false], vec![true, false]]);
    assert_eq!(config.guests.iter().map(|guest| guest.entropies().count()).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(config.guests[0].entropies().next().map(|entropy| entropy.place.line), Some(5));
    assert_eq!(
        [(0, 0), (0, 2), (1, 0), (1, 1)].map(|(guest, device)| config.device_number(guest, device)),
        [0, 2, 3, 4]
    );
    assert_eq!(
        [1, 2, 3, 4, 5].map(|device| config.device_at(device)),
        [Some(("a", "net", 1)), Some(("a", "entropy", 0)), Some(("b", "net", 0)), Some(("b", "entropy", 0)), None]
    );
    let numbers = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("c", 0)];
    assert_eq!(numbers.map(|(name, net)| config.net_number(name, net)), [Some(0), Some(1), None, Some(3), None, None]);
}

#[test]
fn block_devices_are_read_as_they_are_written() {
    let text = format!(
        "{MINIMAL}[[guest.entropy]]\n[[guest.block]]\ndisk = 'ram'\nsize = '64M'\n[[guest.block]]\ndisk = 'ram'\n\
         module = 'root.img'\noverlay = '16M'\nserial = 'root'\ncache = 'writethrough'\nqueues = 4\npacked = true\n\
         [[guest.block]]\ndisk = 'ram'\nmodule = 'data'\nreadonly = true\n[[guest.block]]\ndisk = 'ram'\n\
         module = 'root.img'\n[[guest.net]]\n"
    );
    let Parsed { mut config, mistakes, .. } = parse("f", text);
    assert_eq!(mistakes, []);
    let guest = &config.guests[0];
    let kinds: Vec<_> = guest.devices.iter().map(std::mem::discriminant).collect();
    assert!(matches!(guest.devices[0], GuestDevice::Net(_)) && kinds[1..5].iter().all(|kind| *kind == kinds[1]));
    let [empty, root, data, defaults] = &guest.blocks().collect::<Vec<_>>()[..] else { panic!("{guest:#?}") };
    let place = empty.place.clone();
    assert_eq!(place.line, 8);
    let disk = Disk::Ram { bytes: 64 << 20 };
    let (serial, cache) = ("disk0".into(), Cache::WriteBack);
    assert_eq!(
        **empty,
        Block {
            disk,
            partition: None,
            emulate: false,
            wipe: false,
            read_only: false,
            serial,
            cache,
            queues: 1,
            packed: false,
            place
        }
    );
    let disk = Disk::Module { name: "root.img".into(), overlay: 16 << 20, size: None, unpacked: None };
    let (serial, cache, place) = ("root".into(), Cache::WriteThrough, root.place.clone());
    assert_eq!(
        **root,
        Block {
            disk,
            partition: None,
            emulate: false,
            wipe: false,
            read_only: false,
            serial,
            cache,
            queues: 4,
            packed: true,
            place
        }
    );
    assert_eq!((data.read_only, data.memory(), data.module()), (true, 0, Some("data")));
    assert_eq!(defaults.memory(), DEFAULT_OVERLAY);
    assert_eq!(guest.memory_with_disks(), (64 + 64 + 16 + 64) << 20);
    let mistakes = check_modules(&mut config, &["k", "root.img"]);
    let [mistake] = &mistakes[..] else { panic!("{mistakes:?}") };
    assert_eq!((mistake.line, mistake.value.as_str()), (19, "'data'"));
    assert!(mistake.message.contains("no boot module `data` for the disk"), "{mistake}");
    assert!(config.guests.is_empty());
}

#[test]
fn a_guest_whose_disks_do_not_fit_is_left_out() {
    let text = format!("{MINIMAL}[[guest.block]]\ndisk = 'ram'\nsize = '64M'\n");
    let mut config = parse("f", text).config;
    assert!(check_memory(&mut config.clone(), 128 << 20).is_empty());
    let mistakes = check_memory(&mut config, 127 << 20);
    assert!(mistakes[0].message.contains("its RAM disks want 128M"), "{}", mistakes[0]);
}

#[test]
fn two_disks_of_a_guest_have_different_serial_numbers() {
    let disk = "[[guest.block]]\ndisk = 'ram'\nsize = '8M'\nserial = 'x'\n";
    assert!(one(&format!("{MINIMAL}{disk}{disk}")).contains("another disk of this guest has this serial number"));
}

#[test]
fn a_console_comes_last_and_has_the_ports_that_are_named() {
    let text = format!("{MINIMAL}[[guest.console]]\nports = ['commands', 'trace']\n[[guest.net]]\n[[guest.entropy]]\n");
    let Parsed { config, mistakes, .. } = parse("f", text);
    assert_eq!(mistakes, []);
    let [GuestDevice::Net(_), GuestDevice::Entropy(_), GuestDevice::Console(console)] = &config.guests[0].devices[..]
    else {
        panic!("{:?}", config.guests[0].devices)
    };
    assert_eq!((&console.ports[..], console.place.line), (&["commands".into(), "trace".into()][..], 5));
    let Parsed { config, .. } = parse("f", format!("{MINIMAL}[[guest.console]]\n"));
    assert!(matches!(&config.guests[0].devices[..], [GuestDevice::Console(console)] if console.ports.is_empty()));
}

#[test]
fn a_guest_has_as_many_devices_as_functions_fit_on_its_bus() {
    let with = |nets: usize| format!("{MINIMAL}{}[[guest.entropy]]\n", "[[guest.net]]\n".repeat(nets));
    assert_eq!(parse("f", with(7)).config.guests[0].devices.len(), 8);
    let mistake = one(&with(8));
    assert!(mistake.starts_with("f:13:") && mistake.contains("at most 8 devices of all kinds"), "{mistake}");
    assert!(mistake.ends_with("(guest `a` does not start)"), "{mistake}");
}

#[test]
fn the_rules_of_ports_are_read_as_they_are_written() {
    let Parsed { config, mistakes, .. } = parse("sidecore.toml", POLICIES);
    assert_eq!(mistakes, []);
    let names: Vec<_> = config.stages.iter().map(|stage| stage.name.as_str()).collect();
    assert_eq!(names, ["no-telnet", "mail-gate", "syns", "watched", "no-mail", "modest"]);
    let [port] = &config.uplinks[..] else { panic!("one uplink: {config:#?}") };
    assert_eq!(port.rules.vlan, Vlan::Trunk { vlans: vec![7, 9], native: None });
    assert_eq!((port.rules.storm, &port.rules.rx[..], &port.rules.tx[..]), (Some(2000), &[0][..], &[5][..]));
    let [web, router, watcher] = &config.guests[..] else { panic!("three guests: {config:#?}") };
    let net = nth_net(web, 0);
    assert_eq!(
        (&net.rules.vlan, &net.rules.tx[..], &net.rules.rx[..]),
        (&Vlan::Access(7), &[1, 4, 3][..], &[0, 2][..])
    );
    assert_eq!(net.identity.addresses, ["10.0.0.2", "fd00::2"].map(|a| a.parse::<IpAddr>().unwrap()));
    let net = nth_net(router, 0);
    assert_eq!(net.rules.vlan, Vlan::Trunk { vlans: vec![7, 9], native: Some(20) });
    assert_eq!(net.identity.fixed, [Mac([2, 0, 0, 0, 1, 0])]);
    assert!(net.identity.anti_spoofing && !nth_net(watcher, 0).identity.anti_spoofing);
    let stages = &config.stages;
    assert_eq!(stages[0].action, Action::Deny);
    assert_eq!((stages[0].rule.protocol, stages[0].rule.destination_port.clone()), (Some(6), Some(23..=23)));
    let mail = ("10.0.0.16".parse().unwrap(), 28);
    assert_eq!((stages[1].rule.destination, &stages[1].action), (Some(mail), &Action::Allow));
    assert_eq!((stages[2].rule.opening, &stages[2].action), (Some(true), &Action::Count));
    assert_eq!(stages[3].action, Action::Mirror { guest: "watcher".into(), net: 0 });
    assert_eq!(stages[4].rule.destination_port, Some(25..=26));
    assert_eq!(stages[5].action, Action::Limit { rate: 12_500_000, burst: 1 << 20, bytes: true });
}

#[test]
fn a_port_without_rules_is_guarded_by_its_address_and_nothing_else() {
    let Parsed { config, mistakes, .. } = parse("f", format!("{MINIMAL}[[guest.net]]\n"));
    assert_eq!(mistakes, []);
    let net = nth_net(&config.guests[0], 0);
    assert_eq!((&net.rules, &net.identity), (&Rules::default(), &Identity::default()));
    assert!(net.identity.anti_spoofing && net.identity.addresses.is_empty());
}

#[test]
fn storms_are_limited_unless_the_limit_is_switched_off() {
    for (text, storm) in [("", Some(10_000)), ("storm = 0", None), ("storm = 1", Some(1))] {
        let text = format!(
            "[[guest]]\nname = 'a'\nmemory = '64M'\nkernel = 'k'\n[[guest.net]]\n{text}\n[[port]]\ndevice = 'first'\n{text}"
        );
        let config = parse("c", &text).config;
        assert_eq!((nth_net(&config.guests[0], 0).rules.storm, config.uplinks[0].rules.storm), (storm, storm));
    }
}

#[test]
fn what_a_limit_does_not_say_follows_from_its_rate() {
    for (text, rate, burst, bytes) in [
        ("frames_per_second = 5", 5, 32, false),
        ("frames_per_second = 1000000", 1_000_000, 10_000, false),
        ("frames_per_second = 7\nburst = 1", 7, 1, false),
        ("bits_per_second = '8K'", 1000, 65_550, true),
        ("bits_per_second = '1000G'", 125_000_000_000, 1 << 30, true),
        ("bits_per_second = '9000'", 1125, 65_550, true),
    ] {
        let Parsed { config, mistakes, .. } = parse("f", format!("[[stage]]\nname = 's'\naction = 'limit'\n{text}\n"));
        assert_eq!((mistakes, config.stages[0].action.clone()), (Vec::new(), Action::Limit { rate, burst, bytes }));
    }
}

#[test]
fn mistakes_in_the_rules_of_a_port_leave_its_guest_out() {
    let stage = "[[stage]]\nname = 'good'\naction = 'count'\n[[stage]]\nname = 'bad'\naction = 'dney'\n";
    for (rest, value, expected) in [
        ("vlan = 0", "0", "from 1 to 4094"),
        ("vlan = 4095", "4095", "from 1 to 4094"),
        ("vlans = [7, 4095]", "4095", "from 1 to 4094"),
        ("vlans = [7, 7]", "7", "stands twice"),
        ("vlans = []", "[]", "is empty"),
        ("vlans = 7", "7", "not of type integer"),
        ("vlan = 7\nvlans = [7]", "[7]", "either `vlan`"),
        ("vlan = 7\nnative = 8", "8", "`vlans` is missing"),
        ("native = 8", "8", "`vlans` is missing"),
        ("storm = -1", "-1", "from 0 to 100000000"),
        ("addresses = '10.0.0.1'", "'10.0.0.1'", "a list of IP addresses"),
        ("addresses = ['10.0.0.1', '10.0.0']", "'10.0.0'", "a list of IP addresses"),
        ("addresses = ['10.0.0.1/24']", "'10.0.0.1/24'", "a list of IP addresses"),
        ("addresses = ['224.0.0.1']", "'224.0.0.1'", "of one machine's"),
        ("addresses = ['::']", "'::'", "of one machine's"),
        ("addresses = ['127.0.0.1']", "'127.0.0.1'", "of one machine's"),
        ("addresses = ['fd00::1', 'fd00:0::1']", "'fd00:0::1'", "stands twice"),
        ("addresses = ['fd00::1']\nanti_spoofing = false", "['fd00::1']", "switched off here"),
        ("anti_spoofing = 'no'", "'no'", "true or false"),
        ("static = ['02:00']", "'02:00'", "six pairs"),
        ("static = ['02:00:00:00:00:99']", "'02:00:00:00:00:99'", "of guest `first`"),
        ("mac = '02:00:00:00:00:98'", "'02:00:00:00:00:98'", "of guest `first`"),
        ("tx = 'good'", "'good'", "a list of names"),
        ("tx = ['god']", "'god'", "did you mean `good`?"),
        ("rx = ['bad']", "'bad'", "has a mistake of its own"),
        ("rx = ['good', 'good']", "'good'", "stands twice"),
        ("vaddresses = []", "vaddresses", "did you mean `addresses`?"),
    ] {
        let first = "[[guest]]\nname = 'first'\nmemory = '64M'\nkernel = 'k'\n[[guest.net]]\n\
                     mac = '02:00:00:00:00:99'\nstatic = ['02:00:00:00:00:98']\n";
        let parsed = parse("f", format!("{stage}{first}{MINIMAL}[[guest.net]]\n{rest}\n"));
        assert_eq!(parsed.config.guests.len(), 1, "{rest}");
        let of_guest: Vec<_> = parsed.mistakes.iter().filter(|mistake| mistake.guest.is_some()).collect();
        let [mistake] = &of_guest[..] else { panic!("{rest}: {:#?}", parsed.explain()) };
        assert_eq!((mistake.value.as_str(), mistake.guest.as_deref()), (value, Some("a")), "{mistake}");
        assert!(mistake.message.contains(expected), "{mistake}");
    }
    let many: String = (10..30).map(|n| format!("'10.0.0.{n}', ")).collect();
    assert!(one(&format!("{MINIMAL}[[guest.net]]\naddresses = [{many}]\n")).contains("at most 16"));
}

#[test]
fn a_stage_with_a_mistake_is_none_and_says_what_was_expected() {
    let of = |rest: &str| one(&format!("[[stage]]\nname = 's'\n{rest}\n{MINIMAL}[[guest.net]]\n"));
    for (rest, expected) in [
        ("", "a stage needs an `action`"),
        ("action = 'dney'", "did you mean \"deny\"?"),
        ("action = 'deny'\nport = 3", "no such key in [[stage]]"),
        ("action = 'deny'\nto = 'a'", "`to` belongs to `action = \"mirror\"`"),
        ("action = 'deny'\nburst = 3", "`burst` belongs to `action = \"limit\"`"),
        ("action = 'mirror'", "a mirror needs `to`"),
        ("action = 'mirror'\nto = 'a:x'", "expected the guest that gets the copies"),
        ("action = 'mirror'\nto = 'b'", "no guest `b`, so nobody gets the copies"),
        ("action = 'mirror'\nto = 'a:1'", "guest `a` has 1 network devices"),
        ("action = 'limit'", "either `bits_per_second` or `frames_per_second`"),
        ("action = 'limit'\nframes_per_second = 1\nbits_per_second = '1M'", "either `bits_per_second`"),
        ("action = 'limit'\nbits_per_second = '1k'", "from \"8K\" to \"1000G\""),
        ("action = 'limit'\nbits_per_second = '7K'", "from \"8K\" to \"1000G\""),
        ("action = 'limit'\nbits_per_second = '1M'\nburst = 1500", "from 65550 to"),
        ("action = 'limit'\nframes_per_second = 0", "from 1 to 1000000000"),
        ("action = 'deny'\nether_type = 0x5ff", "from 1536 to 65535"),
        ("action = 'deny'\nvlan = 4095", "from 1 to 4094"),
        ("action = 'deny'\nsource_mac = 'x'", "six pairs"),
        ("action = 'deny'\nprotocol = 'tpc'", "a number from 0 to 255"),
        ("action = 'deny'\nprotocol = 256", "a number from 0 to 255"),
        ("action = 'deny'\nsource = '10.0.0.0/33'", "an IP address or the beginning of some"),
        ("action = 'deny'\nsource = '10.0.0.1/24'", "more than 24 bits that are not 0"),
        ("action = 'deny'\nsource = 'fd00::/8'\ndestination = '10.0.0.0/8'", "of the kind of `source`"),
        ("action = 'deny'\nprotocol = 'tcp'\ndestination_port = 65536", "a port from 0 to 65535"),
        ("action = 'deny'\nprotocol = 'tcp'\ndestination_port = '9-8'", "a port from 0 to 65535"),
        ("action = 'deny'\nprotocol = 'icmp'\ndestination_port = 8", "is of tcp, udp"),
        ("action = 'deny'\nopening = true", "`opening` is of tcp"),
        ("action = 'deny'\nprotocol = 'tcp'\nicmp_type = 8", "is of icmp or icmpv6"),
    ] {
        assert!(of(rest).contains(expected), "{rest}: {}", of(rest));
    }
    assert!(one("[[stage]]\naction = 'deny'\n").contains("needs a `name`"));
    assert!(one("[[stage]]\nname = 'a b'\naction = 'deny'\n").contains("letters, digits"));
    let twice = "[[stage]]\nname = 's'\naction = 'deny'\n".repeat(2);
    assert!(one(&twice).contains("another stage has this name"));
    let good = parse("f", "[[stage]]\nname = 's'\naction = 'deny'\ndestination_mac = 'ff:ff:ff:ff:ff:ff'\n");
    assert_eq!((good.mistakes.len(), good.config.stages.len()), (0, 1), "groups are sent to");
}

#[test]
fn an_uplink_with_a_mistake_keeps_its_place_and_has_no_device() {
    for rest in ["vlan = 0", "rx = ['nobody']", "vlans = []", "addresses = ['10.0.0.1']"] {
        let parsed = parse("f", format!("[[port]]\ndevice = 'first'\n{rest}\n{MINIMAL}"));
        let [port] = &parsed.config.uplinks[..] else { panic!("{parsed:#?}") };
        assert_eq!((parsed.mistakes.len(), port.device, parsed.config.guests.len()), (1, None, 1), "{rest}");
    }
}

#[test]
fn firmware_takes_the_place_of_kernel_and_initrd() {
    let text = |rest: &str| format!("[[guest]]\nname = 'a'\nmemory = '64M'\nfirmware = 'CLOUDHV.fd'\n{rest}");
    let Parsed { config, mistakes, .. } = parse("f", text(""));
    assert_eq!(mistakes, []);
    let guest = &config.guests[0];
    assert_eq!((guest.kernel.as_str(), guest.firmware, guest.notify_bar), ("CLOUDHV.fd", true, NotifyBar::Memory));
    assert_eq!(parse("f", text("notify_bar = 'io'\n")).config.guests[0].notify_bar, NotifyBar::Io);
    let guest = &parse("f", MINIMAL).config.guests[0];
    assert_eq!((guest.firmware, guest.notify_bar), (false, NotifyBar::Io));
    assert!(one(&text("initrd = 'initrd'\n")).contains("expected no `initrd` beside `firmware`"));
    let mut config = config;
    let [missing] = &check_modules(&mut config, &["vmlinuz"])[..] else { panic!() };
    assert_eq!(missing.message, "no boot module `CLOUDHV.fd` for the firmware; there are: vmlinuz");
}

#[test]
fn split_locks_are_slow_unless_the_file_says_otherwise() {
    let of = |rest: &str| parse("f", format!("{MINIMAL}{rest}")).config.guests[0].split_lock;
    assert_eq!(of(""), SplitLock::Slow);
    for (word, meant) in [("slow", SplitLock::Slow), ("kill", SplitLock::Kill), ("allow", SplitLock::Allow)] {
        assert_eq!(of(&format!("split_lock = '{word}'\n")), meant);
    }
}

#[test]
fn a_mistake_becomes_the_event_of_com2() {
    let mistake = parse("f", "[[guest]]\nname = 'a'\nmemory = '1X'\nkernel = 'k'\n").mistakes.remove(0);
    let control::Event::ConfigError { file, line, value, guest, .. } = mistake.into() else { panic!() };
    assert_eq!((file.as_str(), line, value.as_str(), guest.as_deref()), ("f", 3, "'1X'", Some("a")));
}

/// Text that looks enough like the file to get past the TOML parser often.
fn lines() -> impl Strategy<Value = String> {
    let key = prop::sample::select(vec![
        "name",
        "vcpus",
        "memory",
        "kernel",
        "firmware",
        "initrd",
        "cmdline",
        "completion",
        "requests",
        "split_lock",
        "notify_bar",
        "weight",
        "scheduling",
        "restart",
        "cores",
        "net",
        "mac",
        "level",
        "action",
        "to",
        "bits_per_second",
        "burst",
        "protocol",
        "source",
        "source_port",
        "opening",
        "vlan",
        "vlans",
        "native",
        "storm",
        "tx",
        "addresses",
        "static",
        "anti_spoofing",
    ]);
    let value = prop_oneof![
        prop::sample::select(vec![
            "1",
            "0",
            "-1",
            "'a'",
            "'64M'",
            "'1G'",
            "true",
            "[1]",
            "[[1]]",
            "{}",
            "{mac='x'}",
            "1e9",
            "'auto'",
            "1979-05-27",
            "['a']",
            "'deny'",
            "'mirror'",
            "'limit'",
            "'1M'",
            "'10.0.0.0/8'",
            "'1-2'",
            "['::1', 'fd00::1']",
            "['02:00:00:00:00:01']",
        ])
        .prop_map(String::from),
        "'\\PC{0,20}'",
    ];
    let line = prop_oneof![
        4 => (key, value).prop_map(|(key, value)| format!("{key} = {value}")),
        2 => prop::sample::select(vec!["[[guest]]", "[[guest.net]]", "[log]", "[control]", "[[engine]]", "[[port]]", "[[stage]]", "[guest]"])
            .prop_map(String::from),
    ];
    prop::collection::vec(line, 0..24).prop_map(|lines| lines.join("\n"))
}

fn use_all(contents: &[u8]) {
    let Parsed { mut config, mistakes, .. } = parse("f", contents);
    for mistake in &mistakes {
        assert!(mistake.line > 0 && !mistake.value.is_empty() && !mistake.message.is_empty());
    }
    check_modules(&mut config, &["vmlinuz", "a"]);
    check_memory(&mut config, 1 << 30);
    let (plan, _) = plan(&mut config, &Topology::one_thread_each(4));
    assert_eq!(plan.guests.len(), config.guests.len());
    let _ = default_config(&Topology::one_thread_each(4), &[]);
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        use_all(&bytes);
    }

    #[test]
    fn no_text_panics(text in "\\PC*") {
        use_all(text.as_bytes());
    }

    #[test]
    fn rules_with_a_piece_cut_out_do_not_panic(start in 0..POLICIES.len(), length in 0_usize..80) {
        let end = (start + length).min(POLICIES.len());
        use_all(&[&POLICIES.as_bytes()[..start], &POLICIES.as_bytes()[end..]].concat());
    }

    #[test]
    fn no_lines_of_the_right_look_panic(text in lines()) {
        use_all(text.as_bytes());
    }

    #[test]
    fn a_good_file_with_a_piece_cut_out_does_not_panic(start in 0..GOOD.len(), length in 0_usize..80) {
        let end = (start + length).min(GOOD.len());
        use_all(&[&GOOD.as_bytes()[..start], &GOOD.as_bytes()[end..]].concat());
    }
}

#[test]
fn shares_of_cache_and_bandwidth_are_percents() {
    let text =
        "[[engine]]\ncache = 20\n[[guest]]\nname = 'a'\nmemory = '64M'\nkernel = 'k'\ncache = 10\nbandwidth = 50\n";
    let parsed = parse("f", text);
    assert_eq!(parsed.mistakes, []);
    let share = |cache, bandwidth| Share { cache, bandwidth };
    assert_eq!(parsed.config.engines[0].share, share(Some(20), None));
    assert_eq!(parsed.config.guests[0].share, share(Some(10), Some(50)));
    for wrong in ["cache = 0", "cache = 91", "bandwidth = 9", "bandwidth = 101", "cache = '10'"] {
        let parsed = parse("f", format!("[[guest]]\nname = 'a'\nmemory = '64M'\nkernel = 'k'\n{wrong}\n"));
        assert_eq!(parsed.mistakes.len(), 1, "{wrong}");
    }
}
