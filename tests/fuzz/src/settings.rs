//! `sidecore.toml`, put together from pieces of good files, from any values and from any bytes, on machines of all kinds. Each mistake
//! has a place in the file. What is left of the configuration keeps the limits, its guests have memory and the modules they name,
//! and the plan gives no core, and no thread of a core, to two users. What is shown of it is read as the same configuration.

use config::{
    Completion, Config, ControllerKind, Extent, FoundController, FoundFunction, FoundNamespace, Guest, GuestDevice,
    MAX_BLOCKS, MAX_CONSOLES, MAX_DEVICES, MAX_ENGINES, MAX_ENTROPIES, MAX_GUESTS, MAX_MEMORY, MAX_MTU, MAX_NETS,
    MAX_UPLINKS, MAX_VCPUS, MAX_WEIGHT, MEMORY_UNIT, MIN_MEMORY, MIN_MTU, Machine, Mistake, NicChoice, NicNeeds, Plan,
    Sha256, Smt, Topology, thread_bits,
};

use crate::input::Input;
use crate::planted::planted;

/// Most lines of a file.
const MOST_LINES: u64 = 60;
/// Boot modules of the machine.
const MODULES: [&str; 3] = ["vmlinuz", "initrd", "disk"];
/// Heads of tables.
const TABLES: [&str; 13] = [
    "[log]",
    "[trace]",
    "[control]",
    "[[module]]",
    "[[engine]]",
    "[[port]]",
    "[[stage]]",
    "[[guest]]",
    "[[guest.net]]",
    "[[guest.block]]",
    "[[guest.entropy]]",
    "[[guest.console]]",
    "[[guest]]",
];
/// Keys of all tables.
const KEYS: [&str; 58] = [
    "smt",
    "level",
    "end_when_guests_stop",
    "stop_seconds",
    "name",
    "sha256",
    "core",
    "scheduling",
    "pci",
    "driver",
    "steering",
    "gateway",
    "vlan",
    "vlans",
    "untagged",
    "vcpus",
    "memory",
    "kernel",
    "firmware",
    "initrd",
    "cmdline",
    "completion",
    "requests",
    "notify_bar",
    "weight",
    "restart",
    "autostart",
    "cores",
    "mac",
    "port",
    "mtu",
    "queues",
    "offloads",
    "packed",
    "addresses",
    "static",
    "anti_spoofing",
    "ingress",
    "egress",
    "disk",
    "ram",
    "overlay",
    "partition",
    "serial",
    "read_only",
    "writeback",
    "cache",
    "ports",
    "match",
    "action",
    "to",
    "ether_type",
    "source",
    "destination_port",
    "bits_per_second",
    "frames_per_second",
    "spare",
    "modules",
];
/// Values of all kinds.
const VALUES: [&str; 48] = [
    "'separate'",
    "'share'",
    "'info'",
    "true",
    "false",
    "0",
    "1",
    "2",
    "7",
    "64",
    "-1",
    "1500",
    "99999999999",
    "'a'",
    "'b'",
    "'vmlinuz'",
    "'initrd'",
    "'disk'",
    "'64M'",
    "'1G'",
    "'2T'",
    "'18446744073709551615G'",
    "'auto'",
    "'posted'",
    "'eli'",
    "'poll'",
    "'notify'",
    "'always'",
    "'02:00:00:00:00:01'",
    "'02:00:00:00:00:02'",
    "['10.0.0.1', 'fd00::1']",
    "[]",
    "[1]",
    "[2, 3]",
    "[0]",
    "[1, 1]",
    "'00:05.0'",
    "'nvme0/1'",
    "'nvme:00:04.0'",
    "'vda'",
    "{ vlan = 5 }",
    "{ source = '10.0.0.0/8', protocol = 6 }",
    "'allow'",
    "'deny'",
    "'mirror'",
    "'a:1'",
    "'6000-6063'",
    "1.5",
];

/// A key and its values.
type Key = (&'static str, &'static [&'static str]);

/// Tables with each of their keys and values that are good, or nearly.
const GOOD: [(&str, &[Key]); 14] = [
    (
        "[trace]",
        &[("memory", &["'256K'", "'0K'", "'3K'", "'64M'"]), ("on", &["['exits', 'visits']", "['frames']", "[]"])],
    ),
    ("[log]", &[("level", &["'info'", "'trace'"])]),
    ("[control]", &[("end_when_guests_stop", &["true", "false"]), ("stop_seconds", &["1", "3600", "0"])]),
    (
        "[[module]]",
        &[
            ("name", &["'vmlinuz'", "'disk'", "'none'"]),
            ("sha256", &["'ed8f0dbdbefe3994093937f5ee934818ae902b88cb0b6bc423811c10d55b87b0'", SUM, "'e'"]),
        ],
    ),
    (
        "[[engine]]",
        &[("core", &["1", "0", "9"]), ("scheduling", &["'fine'", "'per-device'"]), ("cache", &["20", "90", "91"])],
    ),
    (
        "[[port]]",
        &[
            ("device", &["'first'", "'01:00.0'", "'1f:1f.7'", "'vda'"]),
            ("name", &["'lan'", "'wan'"]),
            ("steering", &["'none'", "'flows'", "'addresses'"]),
            ("gateway", &["['10.0.0.1', '02:00:00:00:ff:01']", "['fd00::1']"]),
            ("vlan", &["7", "4095"]),
            ("vlans", &["[7, 9]", "[0]"]),
            ("native", &["7", "20"]),
            ("storm", &["0", "10000"]),
            ("tx", &["['s0', 's1']", "[]"]),
            ("rx", &["['s1']", "['missing']"]),
        ],
    ),
    (
        "[[stage]]",
        &[
            ("name", &["'s0'", "'s1'", "'s2'"]),
            ("action", &["'deny'", "'allow'", "'count'", "'mirror'", "'limit'"]),
            ("to", &["'g1'", "'g1:1'", "'nobody'"]),
            ("protocol", &["'tcp'", "'udp'", "'icmp'", "'icmpv6'", "47"]),
            ("destination_port", &["23", "'6000-6063'", "'9-8'"]),
            ("source_port", &["23", "'0-65535'", "65536"]),
            ("source", &["'10.0.0.0/24'", "'fd00::1'", "'10.0.0.0/33'"]),
            ("destination", &["'10.0.0.7'", "'fe80::/10'"]),
            ("ether_type", &["0x800", "0x5ff"]),
            ("vlan", &["7", "5000"]),
            ("source_mac", &["'02:00:00:00:00:01'"]),
            ("destination_mac", &["'ff:ff:ff:ff:ff:ff'", "'02:00'"]),
            ("icmp_type", &["134", "8", "256"]),
            ("opening", &["true", "false"]),
            ("bits_per_second", &["'100M'", "'1K'", "'0'"]),
            ("frames_per_second", &["100", "0"]),
            ("burst", &["3000", "1"]),
        ],
    ),
    (
        "[[guest]]",
        &[
            ("name", &["'g1'", "'g2'", "'g3'", "'g4'"]),
            ("vcpus", &["1", "2", "8"]),
            ("memory", &["'64M'", "'128M'", "'1G'", "'65M'"]),
            ("kernel", &["'vmlinuz'"]),
            ("firmware", &["'disk'"]),
            ("initrd", &["'initrd'"]),
            ("cmdline", &["'console=ttyS0 quiet'", "''"]),
            ("completion", &["'auto'", "'posted'", "'eli'", "'direct'", "'inject'"]),
            ("requests", &["'poll'", "'notify'", "'adaptive'"]),
            ("split_lock", &["'slow'", "'kill'", "'allow'"]),
            ("notify_bar", &["'io'", "'memory'"]),
            ("weight", &["1", "16", "17"]),
            ("cache", &["10", "90"]),
            ("bandwidth", &["10", "100", "9"]),
            ("restart", &["'never'", "'always'"]),
            ("autostart", &["true", "false"]),
            ("cores", &["[2]", "[2, 3]", "[0]"]),
            ("spare", &["true", "false"]),
        ],
    ),
    (
        "[[guest.net]]",
        &[
            ("mac", &["'02:00:00:00:00:01'", "'02:00:00:00:00:02'", "'03:00:00:00:00:01'"]),
            ("mtu", &["576", "1500", "9216", "9217"]),
            ("queues", &["1", "4", "5"]),
            ("port", &["'lan'", "'wan'"]),
            ("offloads", &["'tso'", "'csum'", "'none'"]),
            ("packed", &["true", "false"]),
            ("anti_spoofing", &["true", "false"]),
            ("addresses", &["['10.0.0.2', 'fd00::2']", "['10.0.0.1']"]),
            ("static", &["['02:00:00:00:01:00']", "['02:00:00:00:00:01']"]),
            ("vlan", &["7", "0"]),
            ("vlans", &["[7, 9]", "[9, 9]"]),
            ("native", &["20", "9"]),
            ("storm", &["0", "5"]),
            ("tx", &["['s0', 's2']", "['s1', 's1']"]),
            ("rx", &["[]", "['s1']"]),
        ],
    ),
    (
        "[[guest.block]]",
        &[
            (
                "disk",
                &[
                    "'ram'",
                    "'nvme:S1'",
                    "'nvme:01:00.0'",
                    "'nvme0/2'",
                    "'eui:0011223344556677'",
                    "'vda'",
                    "'vdz'",
                    "'nvme:02:00.0/1'",
                    "'nvme:S2'",
                    "'nvme:S3'",
                    "'nvme:08:00.0'",
                    "'eui:0011223344556677/1'",
                ],
            ),
            ("partition", &["'root'", "'12345678-1234-1234-1234-123456789abc'"]),
            ("emulate", &["true", "false"]),
            ("wipe", &["true", "false"]),
            ("module", &["'disk'", "'initrd'"]),
            ("overlay", &["'16M'", "'1K'"]),
            ("size", &["'64M'", "'1M'"]),
            ("readonly", &["true", "false"]),
            ("serial", &["'root'", "'123456789012345678901'"]),
            ("cache", &["'writeback'", "'writethrough'"]),
            ("queues", &["1", "8"]),
            ("packed", &["true", "false"]),
        ],
    ),
    ("[[guest.entropy]]", &[]),
    ("[[guest.console]]", &[("ports", &["['commands', 'trace']", "['a', 'a']", "['a', 'b', 'c']"])]),
    ("smt = 'separate'", &[]),
    ("[management]", &[("guest", &["'g1'", "'g2'"]), ("modules", &["'64M'", "'1G'", "'2G'", "'1K'"])]),
];
/// The SHA-256 that the modules have.
const SUM: &str = "'0000000000000000000000000000000000000000000000000000000000000000'";

/// A table of good keys, most of them with good values. A bit of `chosen` for each key.
fn good_table(input: &mut Input<'_>, file: &mut Vec<u8>) {
    let (table, keys) = GOOD[usize::from(input.byte()) % GOOD.len()];
    file.extend(table.bytes());
    let (chosen, first) = (input.wide(), input.byte());
    for (number, (key, values)) in keys.iter().enumerate() {
        // The first keys are those without which the table is refused.
        if number > 1 + usize::from(first % 3) && chosen >> number & 1 == 0 {
            continue;
        }
        let value = input.byte();
        let value = if value >= 240 {
            VALUES[usize::from(value) % VALUES.len()]
        } else {
            values[usize::from(value) % values.len()]
        };
        file.extend(format!("\n{key} = {value}").bytes());
    }
}

/// A file: tables of good keys, lines of keys and values, or of anything.
fn file(input: &mut Input<'_>) -> Vec<u8> {
    let mut file = Vec::new();
    for number in 0..input.within(0, MOST_LINES) {
        match input.byte() {
            0..16 => file.extend(TABLES[usize::from(input.byte()) % TABLES.len()].bytes()),
            16..112 => good_table(input, &mut file),
            // A guest that is good so far.
            112..176 => {
                let cores = ["", "cores = [1]\n", "cores = [2, 3]\nvcpus = 2\n", "vcpus = 2", "vcpus = 3"]
                    [usize::from(input.byte() % 5)];
                let memory = ["64M", "128M", "1G"][usize::from(input.byte() % 3)];
                let guest = format!("[[guest]]\nname = 'g{number}'\nmemory = '{memory}'\nkernel = 'vmlinuz'\n{cores}");
                file.extend(guest.bytes());
            }
            176..240 => {
                file.extend(KEYS[usize::from(input.byte()) % KEYS.len()].bytes());
                file.extend(b" = ");
                file.extend(VALUES[usize::from(input.byte()) % VALUES.len()].bytes());
            }
            _ => file.extend((0..input.byte() % 16).map(|_| input.byte())),
        }
        file.push(b'\n');
    }
    file
}

fn check_mistakes(mistakes: &[Mistake], file: &[u8]) {
    let lines = file.split(|byte| *byte == b'\n').count() as u32;
    for mistake in mistakes {
        assert!((1..=lines).contains(&mistake.line) && mistake.column > 0, "{mistake:?} in {lines} lines");
        let shown = mistake.to_string();
        let event = control::Event::from(mistake.clone());
        let told = matches!(event, control::Event::ConfigError { line, .. } if line == u64::from(mistake.line));
        assert!(told, "{mistake:?}");
        assert!(!mistake.message.is_empty() && !shown.contains('\n'), "{shown:?}");
    }
}

fn check_guest(guest: &Guest, config: &Config) {
    assert!(!guest.name.is_empty() && guest.name.len() <= 32, "{guest:?}");
    let name = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    assert!(guest.name.bytes().all(name), "{guest:?}");
    assert_eq!(config.guests.iter().filter(|other| other.name == guest.name).count(), 1, "{} is unique", guest.name);
    assert!((1..=MAX_VCPUS).contains(&guest.vcpus) && (1..=MAX_WEIGHT).contains(&guest.weight), "{guest:?}");
    assert!((MIN_MEMORY..=MAX_MEMORY).contains(&guest.memory) && guest.memory.is_multiple_of(MEMORY_UNIT), "{guest:?}");
    assert!(guest.cores.as_ref().is_none_or(|cores| cores.len() == guest.vcpus as usize), "{guest:?}");
    let count = |is: fn(&GuestDevice) -> bool| guest.devices.iter().filter(|device| is(device)).count();
    assert!(guest.devices.len() <= MAX_DEVICES, "{guest:?}");
    assert!(count(|d| matches!(d, GuestDevice::Net(_))) <= MAX_NETS);
    assert!(count(|d| matches!(d, GuestDevice::Block(_))) <= MAX_BLOCKS);
    assert!(count(|d| matches!(d, GuestDevice::Entropy(_))) <= MAX_ENTROPIES);
    assert!(count(|d| matches!(d, GuestDevice::Console(_))) <= MAX_CONSOLES);
    for net in guest.nets() {
        assert!((MIN_MTU..=MAX_MTU).contains(&net.mtu), "{net:?}");
        assert!(net.uplink.is_none_or(|uplink| uplink < config.uplinks.len()), "{net:?}");
        let twins = config.guests.iter().flat_map(|guest| guest.nets()).filter(|other| other.mac == net.mac).count();
        assert_eq!(twins, 1, "{:?} is unique", net.mac);
    }
}

/// No core has two users, and no two users have threads of one physical core.
fn check_plan(plan: &Plan, config: &Config, topology: &Topology) {
    assert_eq!(plan.guests.len(), config.guests.len());
    for (cores, guest) in plan.guests.iter().zip(&config.guests) {
        assert_eq!(cores.len(), guest.vcpus as usize, "{plan:?}");
    }
    let mut ours = plan.engines.clone();
    ours.push(plan.control);
    ours.sort_unstable();
    ours.dedup();
    let mut users: Vec<&[u32]> = plan.guests.iter().map(Vec::as_slice).collect();
    users.push(&ours);
    let mut all: Vec<u32> = users.concat();
    all.extend(plan.spare.iter().chain(&plan.given_up));
    all.sort_unstable();
    assert_eq!(all, (0..topology.cores()).collect::<Vec<_>>(), "each core is somewhere once: {plan:?}");
    if config.smt == Smt::Share {
        return;
    }
    for (number, one) in users.iter().enumerate() {
        for other in &users[number + 1..] {
            let siblings = one.iter().any(|core| other.iter().any(|sibling| topology.siblings(*core, *sibling)));
            assert!(!siblings, "{one:?} and {other:?} share a physical core: {plan:?}");
        }
    }
}

/// Disks of the machine: an NVMe controller with two namespaces, one of them with a partition table, and a virtio disk.
fn disks(is_large: bool) -> Vec<FoundController> {
    let namespace = |id, blocks, table| FoundNamespace {
        id,
        blocks,
        table,
        unique: vec!["0011223344556677".into()],
        ..FoundNamespace::default()
    };
    let [mut small, _] = crate::gpt_image::both();
    let table = small.read();
    let namespaces = vec![namespace(1, small.last() + 1, Some(table)), namespace(2, 4096, None)];
    let nvme = FoundController { kind: ControllerKind::Nvme, at: (1, 0, 0), serial: Ok("S1".into()), namespaces };
    let broken = FoundController { at: (2, 0, 0), serial: Err("it hangs".into()), ..nvme.clone() };
    let disk = FoundNamespace { id: 1, blocks: 2048, ..FoundNamespace::default() };
    let kind = ControllerKind::Virtio(0);
    let virtio = FoundController { kind, at: (3, 0, 0), serial: Ok(String::new()), namespaces: vec![disk] };
    // Another controller that shows the second namespace too, one whose namespace cannot be used, and one of the same serial.
    let twin = FoundNamespace { shared: true, ..namespace(2, 4096, None) };
    let unusable = FoundNamespace { unusable: Some("its blocks have metadata".into()), ..FoundNamespace::default() };
    let second = FoundController { at: (5, 0, 0), serial: Ok("S2".into()), namespaces: vec![twin], ..nvme.clone() };
    let third = FoundController { at: (6, 0, 0), serial: Ok("S3".into()), namespaces: vec![unusable], ..nvme.clone() };
    let fourth = FoundController { at: (8, 0, 0), serial: Ok("S3".into()), namespaces: Vec::new(), ..nvme.clone() };
    if is_large { vec![nvme, broken, virtio, second, third, fourth] } else { vec![nvme, broken, virtio] }
}

/// No two guests have the same block, unless both only read it.
fn check_extents(config: &Config, found: &[FoundController]) {
    let extents: Vec<_> = config
        .guests
        .iter()
        .enumerate()
        .flat_map(|(n, guest)| guest.blocks().map(move |block| (n, block)))
        .filter_map(|(n, block)| {
            let extent = Extent::of(block, found, None).expect("what is left has its disk")?;
            Some((n, block.read_only, extent))
        })
        .collect();
    for (n, (guest, reads, one)) in extents.iter().enumerate() {
        let blocks = found[one.controller].namespaces[one.namespace].blocks;
        assert!(one.blocks > 0 && one.first + one.blocks <= blocks, "{one:?} of {blocks} blocks");
        for (other_guest, other_reads, other) in &extents[n + 1..] {
            let same = (one.controller, one.namespace) == (other.controller, other.namespace);
            let apart = one.first + one.blocks <= other.first || other.first + other.blocks <= one.first;
            assert!(guest == other_guest || !same || apart || *reads && *other_reads, "{one:?} and {other:?}");
        }
    }
}

/// No NIC has two uplinks.
fn check_nics(config: &Config, input: &mut Input<'_>) {
    let function = |bus, name| FoundFunction { at: (bus, 0, 0), vendor: 0x8086, device: 0x10fb, name, needs: None };
    let found =
        [function(1, Some("a NIC")), function(4, None), function(5, Some("another")), function(7, Some("one more"))];
    let scanned = !input.byte().is_multiple_of(8);
    let mut choice = NicChoice::new(&config.uplinks, scanned.then_some(&found[..]));
    let mut taken = Vec::new();
    for uplink in &config.uplinks {
        let mut search = choice.search(uplink);
        loop {
            match search.candidate() {
                Ok(number) if input.byte().is_multiple_of(3) => {
                    assert!(found[number].name.is_some(), "there is a driver");
                    search.failed("it does not work");
                }
                Ok(number) => {
                    taken.push(number);
                    let queues = 1 + u16::from(input.byte() % 4);
                    assert!(!search.opened(config::Mac([2, 0, 0, 0, 0, 1]), queues).is_empty());
                    break;
                }
                Err(why) => {
                    assert!(!why.is_empty());
                    break;
                }
            }
        }
    }
    let named = |number: &usize| {
        config
            .uplinks
            .iter()
            .filter(|u| format!("{:?}", u.device).contains(&format!("At({}, 0, 0)", found[*number].at.0)))
            .count()
    };
    for (n, number) in taken.iter().enumerate() {
        // An address that two entries name is a mistake of the file, which is reported there.
        assert!(!taken[..n].contains(number) || named(number) > 1, "a NIC of two uplinks: {taken:?}");
    }
}

/// Any CPU's leaves: the number of thread bits is one of an APIC ID.
fn check_leaves(input: &mut Input<'_>) {
    let leaves: Vec<[u32; 4]> = (0..4).map(|_| std::array::from_fn(|_| input.wide() as u32)).collect();
    let (last, last_extended, kind) = (u32::from(input.byte() % 0x24), u32::from(input.byte() % 0x24), input.byte());
    let bits = thread_bits(|leaf, level| {
        assert!(leaf <= last || (0x8000_0000..=0x8000_0000 + last_extended).contains(&leaf), "no leaf beyond the last");
        match leaf {
            0 => [last, 0, 0, 0],
            0x8000_0000 => [0x8000_0000 + last_extended, 0, 0, 0],
            0xb | 0x1f if kind & 1 != 0 => [0; 4],
            _ => {
                let [a, b, c, d] = leaves[(leaf ^ level) as usize % leaves.len()];
                // Most levels are of a kind that there is.
                [a, b, if kind & 2 != 0 { c & !0xff00 | ((level + u32::from(kind >> 4)) % 3) << 8 } else { c }, d]
            }
        }
    });
    assert!(bits < 32, "{bits} bits of an APIC ID");
}

/// The numbers of devices are those of their order, and no two are the same. Each uplink's NIC has queues.
fn check_numbers(config: &Config) {
    let mut next = 0;
    for (n, guest) in config.guests.iter().enumerate() {
        let mut nets = 0;
        for (device, kind) in guest.devices.iter().enumerate() {
            assert_eq!(config.device_number(n, device), next);
            if matches!(kind, GuestDevice::Net(_)) {
                assert_eq!(config.net_number(&guest.name, nets), Some(next));
                nets += 1;
            }
            next += 1;
        }
        assert_eq!(config.net_number(&guest.name, nets), None);
    }
    for uplink in &config.uplinks {
        let needs = NicNeeds::of(uplink, next, 1514);
        assert!((1..=64).contains(&needs.queues.count) && needs.queues.buffers > 0, "{needs:?}");
        assert!(needs.vlans.into_iter().flatten().all(|vlan| (1..4095).contains(vlan)), "{needs:?}");
    }
}

/// What is shown of a configuration is read as the same one.
fn check_shown(config: &Config) {
    let shown = config::Shown(config).to_string();
    if shown.len() > config::MAX_FILE {
        return;
    }
    let again = config::parse(&config.file, &shown).config;
    assert_eq!(again.written(), config.clone().written(), "{shown}");
}

/// What two files change of a configuration that runs: what is refused has a place in the file, and what is not leads to the guests of
/// the file, with the places that they have. From there the way back is open.
fn check_difference(runs: &Config, file: &[u8], modules: &[&str], refusal: impl Fn(Completion) -> Option<String>) {
    let runs = runs.clone().written();
    let shown = config::Shown(&runs).to_string();
    let apply = |runs: &Config, text: &[u8]| {
        let hash_of = |name: &str| modules.contains(&name).then_some(Sha256([0; 32]));
        let changes = config::difference(runs, "f", text, Machine { modules, hash_of, refusal: &refusal })?;
        let after = config::after(runs, &changes);
        Ok::<_, Vec<Mistake>>((changes, after))
    };
    let fixed =
        |guest: &Guest| (guest.memory, guest.vcpus, guest.cores.clone(), guest.completion, guest.devices.clone());
    // What had a mistake at boot has one in what is shown of it.
    let may_go_back = match apply(&runs, shown.as_bytes()) {
        Err(mistakes) => {
            check_mistakes(&mistakes, shown.as_bytes());
            false
        }
        Ok((changes, after)) => {
            assert!(changes.is_empty() && after == runs, "{changes:?}");
            true
        }
    };
    match apply(&runs, file) {
        Err(mistakes) => check_mistakes(&mistakes, file),
        Ok((changes, after)) => {
            assert_eq!(after.guests.len(), runs.guests.len());
            for (old, new) in runs.guests.iter().zip(&after.guests) {
                assert_eq!((&old.name, fixed(old)), (&new.name, fixed(new)));
                let times = changes.iter().filter(|change| change.guest.name == old.name).count();
                assert_eq!(times, usize::from(old != new), "{old:?} becomes {new:?}: {changes:?}");
            }
            if may_go_back {
                let (back, again) = apply(&after, shown.as_bytes()).expect("the way back");
                assert_eq!((back.len(), again), (changes.len(), runs));
            }
        }
    }
}

/// Runs one input.
///
/// # Panics
/// A file was read wrongly.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let cores = 1 + u32::from(input.byte() % 10);
    let ids: Vec<u32> = (0..cores).map(|core| core ^ u32::from(input.byte() & 1)).collect();
    let distinct = ids.iter().all(|id| ids.iter().filter(|other| *other == id).count() == 1);
    let ids = if distinct { ids } else { (0..cores).collect() };
    let topology = Topology::new(&ids, u32::from(input.byte() % 3));
    let available = input.within(0, 0x1000) << 20;
    let modules = &MODULES[..usize::from(input.byte() % 4)];
    let file = file(&mut input);

    let parsed = config::parse("sidecore.toml", &file);
    check_mistakes(&parsed.mistakes, &file);
    let mut config = parsed.config;
    assert!(
        config.guests.len() <= MAX_GUESTS && config.engines.len() <= MAX_ENGINES && config.uplinks.len() <= MAX_UPLINKS
    );
    config.guests.iter().for_each(|guest| check_guest(guest, &config));
    check_shown(&config);

    let found = if input.byte().is_multiple_of(4) { Vec::new() } else { disks(input.flag()) };
    let refused = input.byte();
    let refusal = |how: Completion| {
        let has = how == Completion::Inject || refused >> (how as u8 % 8) & 1 == 0;
        (!has).then(|| "this machine has it not".to_owned())
    };
    check_nics(&config, &mut input);
    let _ = (config::open_ports(&config), config::parse_rules("rules.toml", &String::from_utf8_lossy(&file), &[], &[]));
    let packed = input.byte();
    let sizes = move |name: &str| match packed.wrapping_add(name.len() as u8) % 5 {
        0 => Some(Ok(Some(1 << 20 | u64::from(packed)))),
        1 => Some(Ok(None)),
        2 => Some(Err("it is cut off".to_owned())),
        _ => None,
    };
    let mistakes = [
        config::check_modules(&mut config, modules),
        config::check_packed(&mut config, sizes),
        config::check_hashes(&mut config, |name| modules.contains(&name).then_some(Sha256([0; 32]))),
        config::check_completion(&mut config, refusal),
        config::check_disks(&mut config, &found, None),
        config::check_memory(&mut config, available),
    ]
    .concat();
    check_mistakes(&mistakes, &file);
    for guest in &config.guests {
        assert!(guest.modules().all(|name| modules.contains(&name)), "{guest:?}");
        assert_eq!(guest.kernel.is_empty(), guest.spare, "{guest:?}");
    }
    for block in config.guests.iter().flat_map(|guest| guest.blocks()) {
        // A disk over a compressed module has a size, one over another module has that of the module.
        if let (Some(name), config::Disk::Module { unpacked, .. }) = (block.module(), &block.disk) {
            assert_eq!(unpacked.is_some(), sizes(name).is_some(), "{block:?}");
        }
    }
    check_numbers(&config);
    check_leaves(&mut input);
    check_extents(&config, &found);
    assert!(
        config.guests.iter().all(|guest| refusal(guest.completion).is_none() && guest.completion != Completion::Auto)
    );
    let memory: u64 = config.guests.iter().map(Guest::memory_with_disks).sum();
    assert!(memory <= available, "{memory} of {available} bytes");
    let (mut plan, mistakes) = config::plan(&mut config, &topology);
    check_mistakes(&mistakes, &file);
    if planted() {
        plan.spare.push(plan.control);
    }
    check_plan(&plan, &config, &topology);
    check_shown(&config);
    assert_eq!(plan.control_is_engine(), plan.engines.contains(&plan.control));
    let (mut default, said) = config::default_config(&topology, modules);
    assert!(!said.is_empty() && default.guests.len() <= MAX_GUESTS);
    let (of_default, _) = config::plan(&mut default, &topology);
    check_plan(&of_default, &default, &topology);
    config.guests.iter().for_each(|guest| check_guest(guest, &config));
    check_difference(&config, &file, modules, refusal);
    check_difference(
        &config,
        config::Shown(&config).to_string().replace("vmlinuz", "initrd").as_bytes(),
        modules,
        refusal,
    );
}

crate::planted::tests!(any_file_gives_a_configuration_within_the_limits, 512, 0..500);
