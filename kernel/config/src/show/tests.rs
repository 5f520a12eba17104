//! What is shown is read as the same configuration.

use proptest::prelude::*;

use super::*;
use crate::{Config, MAX_FILE, Sha256, parse};

const GOOD: [&str; 3] = [
    include_str!("../../examples/two-guests.toml"),
    include_str!("../../examples/policies.toml"),
    include_str!("../../examples/mistakes.toml"),
];

/// Every key with a value that is not its default, and texts that need care.
const EVERYTHING: &str = r#"
smt = "share"
[log]
level = "trace"
[control]
end_when_guests_stop = true
stop_seconds = 3600
[com2]
allow = []
[management]
guest = "m"
allow = ["view", "operate"]
modules = "1G"
[trace]
memory = "4K"
on = ["exits", "idle-turns"]
[[module]]
name = 'C:\vmlinuz "new"'
sha256 = "ed8f0dbdbefe3994093937f5ee934818ae902b88cb0b6bc423811c10d55b87b0"
[[engine]]
core = 1
scheduling = "per-device"
cache = 20
bandwidth = 100
[[port]]
device = "01:00.0"
name = "lan"
steering = "flows"
optics = "any"
gateway = ["fd00::1", "02:00:00:00:ff:01", "10.0.0.1"]
vlans = [7, 9]
native = 20
storm = 0
tx = ["s1"]
rx = ["s1", "s0"]
[[port]]
device = "first"
steering = "addresses"
vlan = 4094
storm = 1
[[stage]]
name = "s0"
action = "limit"
bits_per_second = "8001"
[[stage]]
name = "s1"
action = "limit"
frames_per_second = 1000
burst = 1
protocol = "tcp"
source_port = "0-65535"
destination_port = 23
opening = false
[[stage]]
name = "s2"
action = "mirror"
to = "m:1"
ether_type = 0x600
vlan = 1
source_mac = "02:00:00:00:00:01"
destination_mac = "ff:ff:ff:ff:ff:ff"
[[stage]]
name = "s3"
action = "allow"
protocol = 1
source = "10.0.0.0/8"
destination = "0.0.0.0/0"
icmp_type = 255
[[stage]]
name = "s4"
action = "count"
protocol = 132
source = "fd00::1"
[[stage]]
name = "s5"
action = "limit"
bits_per_second = "1000G"
[[guest]]
name = "a"
vcpus = 2
memory = "1026M"
kernel = "C:\\vmlinuz \"new\""
initrd = "it's \"quoted\""
cmdline = "é 'a' \"b\" \\ c"
completion = "direct"
requests = "adaptive"
split_lock = "kill"
notify_bar = "memory"
weight = 16
cache = 90
bandwidth = 10
restart = "always"
autostart = false
cores = [3, 2]
[[guest.net]]
mac = "02:00:00:00:00:01"
mtu = 9216
queues = 4
port = "first"
offloads = "csum"
packed = true
addresses = ["10.0.0.2", "fd00::2"]
static = ["02:00:00:00:01:00"]
[[guest.net]]
anti_spoofing = false
offloads = "none"
vlans = [1, 4094]
tx = ["s0", "s4"]
[[guest.block]]
disk = "ram"
module = "root.img"
overlay = "1G"
size = "2G"
serial = "disk1"
[[guest.block]]
disk = "ram"
size = "1M"
cache = "writethrough"
queues = 8
packed = true
[[guest.block]]
disk = "ram"
module = "root.img"
readonly = true
[[guest.block]]
disk = "nvme:SERIAL NUMBER/7"
partition = "my \"root\""
emulate = true
wipe = true
[[guest.console]]
ports = ["commands", "trace"]
[[guest.entropy]]
[[guest]]
name = "b"
memory = "64M"
firmware = "CLOUDHV.fd"
notify_bar = "io"
split_lock = "allow"
completion = "eli"
requests = "notify"
[[guest.console]]
[[guest]]
name = "m"
memory = "1G"
firmware = "CLOUDHV.fd"
completion = "inject"
[[guest.net]]
[[guest.net]]
[[guest.block]]
disk = "eui:001B448B44000001"
[[guest.block]]
disk = "vdb"
"#;

/// Shows it and reads it again. Returns the mistakes in what was shown.
fn check(config: &Config) -> Vec<crate::Mistake> {
    let shown = Shown(config).to_string();
    if shown.len() > MAX_FILE {
        return Vec::new();
    }
    let again = parse(&config.file, &shown);
    assert_eq!(again.config.clone().written(), config.clone().written(), "{shown}");
    assert_eq!(Shown(&again.config).to_string(), shown);
    again.mistakes
}

#[test]
fn every_key_is_shown_and_read_as_it_was() {
    let parsed = parse("f", EVERYTHING);
    assert_eq!(parsed.mistakes, []);
    assert_eq!(check(&parsed.config), []);
    let shown = Shown(&parsed.config).to_string();
    // What has its default here is only what cannot be together with what is given.
    for line in EVERYTHING.lines().filter(|line| line.contains(" = ")) {
        let key = line.split(' ').next().unwrap();
        assert!(shown.lines().any(|shown| shown.split(' ').next() == Some(key)), "{key} is not in:\n{shown}");
    }
}

#[test]
fn the_examples_are_shown_and_read_as_they_were() {
    for text in GOOD {
        let parsed = parse("f", text);
        assert_eq!(check(&parsed.config), []);
    }
}

#[test]
fn a_configuration_of_defaults_has_only_the_head() {
    assert_eq!(Shown(&Config::default()).to_string(), HEAD);
    assert!(HEAD.lines().all(|line| line.starts_with("# ") && line.len() <= 100));
}

#[test]
fn a_port_and_a_module_with_a_mistake_stay_as_they_are() {
    let parsed =
        parse("f", "[[port]]\ndevice = 'first'\nvlan = 0\n[[port]]\ndevice = 'first'\n[[module]]\nname = 'k'\n");
    assert_eq!(parsed.mistakes.len(), 3, "{parsed:#?}");
    let said: Vec<_> = check(&parsed.config).into_iter().map(|mistake| mistake.message).collect();
    assert!(said.iter().all(|message| message.contains("is missing")) && said.len() == 3, "{said:#?}");
    let shown = Shown(&parsed.config).to_string();
    assert!(shown.contains("[[port]]\n# its entry had a mistake: no frame passes\nname = \"first\"\n"), "{shown}");
}

#[test]
fn a_management_guest_that_was_left_out_manages_nothing() {
    let text = "[management]\nguest = 'm'\n[[guest]]\nname = 'm'\nmemory = '64M'\nkernel = 'k'\n";
    let mut config = parse("f", text).config;
    assert!(Shown(&config).to_string().contains("[management]\nguest = \"m\"\nallow = [\"view\"]\n"));
    config.guests.clear();
    assert_eq!(Shown(&config).to_string(), HEAD);
    assert_eq!(parse("f", HEAD).config.written(), config.written());
}

#[test]
fn what_was_found_out_about_the_machine_is_not_shown() {
    let text = "[[guest]]\nname = 'a'\nmemory = '64M'\nkernel = 'k'\n[[guest.block]]\ndisk = 'ram'\nmodule = 'r.zst'\n";
    let mut config = parse("f", text).config;
    let before = Shown(&config).to_string();
    let mistakes = crate::check_packed(&mut config, |name| (name == "r.zst").then_some(Ok(Some(4 << 20))));
    assert_eq!((mistakes, Shown(&config).to_string()), (Vec::new(), before));
    assert_eq!(check(&config), []);
}

#[test]
fn two_values_that_differ_are_not_shown_as_the_same() {
    let sum = |digit: u8| Some(Sha256([digit; 32]));
    let module = |sha256| crate::Module { name: "k".into(), sha256, place: crate::Place::default() };
    let shown = |modules| Shown(&Config { modules, ..Config::default() }).to_string();
    assert_ne!(shown(vec![module(sum(1))]), shown(vec![module(sum(2))]));
}

/// A file of a stage, an uplink and a guest with any of their values.
fn files() -> impl Strategy<Value = String> {
    let text = r#"[ -~é\t]{0,30}"#;
    let option = |key: &'static str, values: &'static [&'static str]| {
        prop::option::of(prop::sample::select(values)).prop_map(move |value| match value {
            Some(value) => format!("{key} = {value}\n"),
            None => String::new(),
        })
    };
    let basic = |text: &str| format!("{text:?}");
    let stage = (
        prop::sample::select(&["'deny'", "'limit'\nbits_per_second = '9999M'", "'limit'\nframes_per_second = 77"][..]),
        option("source", &["'10.0.0.0/9'", "'fd00::/8'", "'::/0'"]),
        option("source_port", &["7", "'7-7'", "'1-65535'"]),
        option("burst", &["70000", "1073741824"]),
    )
        .prop_map(|(action, source, port, burst)| {
            let burst = if action.contains("limit") { burst } else { String::new() };
            format!("[[stage]]\nname = 's'\naction = {action}\nprotocol = 'udp'\n{source}{port}{burst}")
        });
    let port = (
        option("vlan", &["7", "4094"]),
        option("storm", &["0", "10000", "100000000"]),
        option("rx", &["['s']", "[]"]),
        option("gateway", &["['02:00:00:00:ff:01', '10.0.0.1']", "[]"]),
    )
        .prop_map(|(vlan, storm, rx, gateway)| format!("[[port]]\ndevice = 'first'\n{vlan}{storm}{rx}{gateway}"));
    let guest = (
        text,
        text,
        text,
        option("memory", &["'64M'", "'66M'", "'1G'"]),
        option("cores", &["[5]"]),
        option("restart", &["'always'", "'never'"]),
        option("serial", &["'disk0'", "'disk1'", "'x\"y'"]),
        option("vlans", &["[7]", "[1, 2, 3]"]),
    )
        .prop_map(move |(kernel, cmdline, partition, memory, cores, restart, serial, vlans)| {
            let memory = if memory.is_empty() { "memory = '2G'\n".into() } else { memory };
            format!(
                "[[guest]]\nname = 'g'\n{memory}kernel = {}\ncmdline = {}\n{cores}{restart}[[guest.net]]\n{vlans}\
                 [[guest.block]]\ndisk = 'vda'\npartition = {}\n{serial}[[guest.block]]\ndisk = 'ram'\nsize = '3M'\n",
                basic(&kernel),
                basic(&cmdline.replace('\t', " ")),
                basic(&format!("p{partition}")),
            )
        });
    (stage, port, guest).prop_map(|(stage, port, guest)| stage + &port + &guest)
}

proptest! {
    #[test]
    fn any_values_are_shown_and_read_as_they_were(text in files()) {
        let parsed = parse("f", &text);
        let serials = parsed.mistakes.iter().filter(|mistake| mistake.message.contains("serial")).count();
        prop_assert_eq!(parsed.mistakes.len(), serials, "{}\n{:#?}", text, parsed.mistakes);
        prop_assert_eq!(parsed.config.guests.len(), usize::from(serials == 0));
        prop_assert_eq!(check(&parsed.config), []);
    }

    #[test]
    fn a_file_with_a_piece_cut_out_is_shown_and_read_as_it_was(start in 0..EVERYTHING.len(), length in 0_usize..200) {
        let end = (start + length).min(EVERYTHING.len());
        let text = [&EVERYTHING.as_bytes()[..start], &EVERYTHING.as_bytes()[end..]].concat();
        check(&parse("f", text).config);
    }
}

#[test]
fn a_port_with_a_mistake_has_no_address_for_a_name() {
    let parsed = parse("f", "[[port]]\ndevice = '01:00.0'\nvlan = 0\n");
    assert_eq!((parsed.mistakes.len(), parsed.config.uplinks[0].name.as_str()), (1, "01:00.0"));
    assert_eq!(check(&parsed.config).len(), 1);
    assert!(!Shown(&parsed.config).to_string().contains("01:00.0"));
}
