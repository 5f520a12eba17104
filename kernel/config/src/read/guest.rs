//! Reads one `[[guest]]` with its devices.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use control::is_name;
use toml::de::DeTable;

use super::block;
use super::rules;
use super::stage::Stages;
use crate::config::Config;
use crate::guest::{
    Completion, Console, Entropy, Guest, GuestDevice, Net, NotifyBar, Offloads, Places, Requests, Restart, SplitLock,
};
use crate::limits::{
    DEFAULT_MTU, MAX_CMDLINE, MAX_CONSOLE_PORTS, MAX_CONSOLES, MAX_DEVICES, MAX_ENTROPIES, MAX_MEMORY, MAX_MTU,
    MAX_NETS, MAX_PAIRS, MAX_VCPUS, MEMORY_UNIT, MIN_MEMORY, MIN_MTU, WEIGHTS,
};
use crate::mac::{Mac, derived_mac};
use crate::management::is_reserved_port;
use crate::mistake::{Mistake, Place, Source};
use crate::section::Section;
use crate::size;

const KEYS: [&str; 22] = [
    "name",
    "vcpus",
    "memory",
    "spare",
    "kernel",
    "firmware",
    "initrd",
    "cmdline",
    "completion",
    "requests",
    "split_lock",
    "notify_bar",
    "weight",
    "cache",
    "bandwidth",
    "restart",
    "autostart",
    "cores",
    "net",
    "block",
    "entropy",
    "console",
];
const NET_KEYS: [&str; 9] =
    ["mac", "mtu", "port", "queues", "offloads", "packed", "anti_spoofing", "addresses", "static"];

/// Reads a guest. `config` contains the guests before it.
pub(crate) fn read(
    source: Source<'_>,
    table: &DeTable<'_>,
    span: Range<usize>,
    config: &Config,
    stages: &Stages,
) -> Result<Guest, Vec<Mistake>> {
    let mut section = Section::new(source, table, span, "[[guest]]", &KEYS);
    let name = read_name(&mut section, config);
    let guest = name.clone().and_then(|(name, place)| read_rest(source, &mut section, config, stages, name, place));
    let mistakes = section.mistakes;
    match guest {
        Some(guest) if mistakes.is_empty() => Ok(guest),
        _ => Err(mistakes
            .into_iter()
            .map(|mistake| match &name {
                Some((name, _)) => mistake.of_guest(name),
                None => mistake,
            })
            .collect()),
    }
}

fn read_name(section: &mut Section<'_, '_>, config: &Config) -> Option<(String, Place)> {
    let expected = "a text of 1 to 32 letters, digits, `-`, `_` and `.`";
    let before = section.mistakes.len();
    let Some((name, place)) = section.string("name", expected) else {
        if section.mistakes.len() == before {
            let place = section.place();
            section.complain_at(&place, "a guest needs a `name`");
        }
        return None;
    };
    if !is_name(name) {
        section.complain_at(&place, format!("`name` must be {expected}"));
        return None;
    }
    if let Some(first) = config.guests.iter().find(|guest| guest.name == name) {
        let line = first.places.name.line;
        section.complain_at(&place, format!("another guest, in line {line}, has this name; expected one of its own"));
        return None;
    }
    Some((name.into(), place))
}

fn read_rest(
    source: Source<'_>,
    section: &mut Section<'_, '_>,
    config: &Config,
    stages: &Stages,
    name: String,
    name_place: Place,
) -> Option<Guest> {
    let mut places = Places { name: name_place.clone(), ..Places::default() };
    let (vcpus, vcpus_place) = section.integer("vcpus", 1..=MAX_VCPUS).unwrap_or((1, name_place.clone()));
    let memory = read_memory(section, &mut places);
    let spare = section.boolean("spare").unwrap_or(false);
    let kernel = if spare { read_no_kernel(section) } else { read_kernel(section, &mut places) };
    let firmware = kernel.as_ref().is_some_and(|(_, firmware)| *firmware);
    let initrd = section.string("initrd", "the name of a boot module").map(|(initrd, place)| {
        if firmware {
            section.complain_at(&place, "firmware finds its own; expected no `initrd` beside `firmware`");
        }
        places.initrd = place;
        String::from(initrd)
    });
    let cmdline = read_cmdline(section);
    places.completion = section.at("completion");
    let completion = read_completion(section);
    let requests = section.word("requests", &Requests::WORDS);
    let split_lock = section.word("split_lock", &SplitLock::WORDS);
    let notify_bar = section.word("notify_bar", &NotifyBar::WORDS);
    let share = super::share::read(section);
    let weight = section.integer("weight", WEIGHTS).map_or(1, |(weight, _)| weight);
    let restart = section.word("restart", &Restart::WORDS);
    let autostart = section.boolean("autostart");
    places.cores = vcpus_place;
    let cores = read_cores(section, config, vcpus, &mut places);
    let devices = read_devices(source, section, config, stages, &name);
    Some(Guest {
        name,
        vcpus,
        memory: memory?,
        spare,
        kernel: kernel?.0,
        firmware,
        initrd,
        cmdline,
        completion,
        requests: requests.unwrap_or_default(),
        split_lock: split_lock.unwrap_or_default(),
        // Not every firmware knows notification words in I/O space.
        notify_bar: notify_bar.unwrap_or(if firmware { NotifyBar::Memory } else { NotifyBar::Io }),
        weight: u16::try_from(weight).unwrap_or(1),
        share,
        restart: restart.unwrap_or_default(),
        autostart: autostart.unwrap_or(true),
        cores,
        devices,
        places,
    })
}

/// Reads a required key. Without it the guest is left out.
fn required<'a>(section: &mut Section<'a, '_>, key: &str, expected: &str) -> Option<(&'a str, Place)> {
    let before = section.mistakes.len();
    let found = section.string(key, expected);
    if found.is_none() && section.mistakes.len() == before {
        let place = section.place();
        section.complain_at(&place, format!("a guest needs `{key}`: {expected}"));
    }
    found
}

fn read_memory(section: &mut Section<'_, '_>, places: &mut Places) -> Option<u64> {
    let (text, place) = required(section, "memory", "a size like \"512M\" or \"2G\"")?;
    places.memory = place.clone();
    let (least, most) = (size::show(MIN_MEMORY), size::show(MAX_MEMORY));
    let message = match size::parse(text) {
        None => "expected a size like \"512M\" or \"2G\"".into(),
        Some(memory) if memory < MIN_MEMORY => format!("too little memory: a guest needs at least {least}"),
        Some(memory) if memory > MAX_MEMORY => format!("too much memory: a guest can have at most {most}"),
        Some(memory) if !memory.is_multiple_of(MEMORY_UNIT) => {
            format!("expected a multiple of {}, the size of a page of guest memory", size::show(MEMORY_UNIT))
        }
        Some(memory) => return Some(memory),
    };
    section.complain_at(&place, message);
    None
}

/// Reads a guest that is spare: what it starts is not known yet.
fn read_no_kernel(section: &mut Section<'_, '_>) -> Option<(String, bool)> {
    for key in ["kernel", "firmware", "initrd", "cmdline"] {
        if section.has(key) {
            let place = section.at(key);
            section
                .complain_at(&place, format!("expected no `{key}` beside `spare`: `apply` says later what it starts"));
        }
    }
    Some((String::new(), false))
}

/// Reads `kernel` or `firmware`. Returns the name of the module, and whether it is firmware.
fn read_kernel(section: &mut Section<'_, '_>, places: &mut Places) -> Option<(String, bool)> {
    let before = section.mistakes.len();
    let firmware = section.string("firmware", "the name of a boot module that is an ELF file with a PVH entry");
    let Some((firmware, place)) = firmware else {
        if section.mistakes.len() > before {
            return None;
        }
        let expected = "the name of a boot module that is a bzImage or an ELF file with a PVH entry";
        let (kernel, place) = required(section, "kernel", expected)?;
        places.kernel = place;
        return Some((kernel.into(), false));
    };
    if let Some((_, place)) = section.string("kernel", "the name of a boot module") {
        section.complain_at(&place, "expected either `kernel` or `firmware`");
    }
    places.kernel = place;
    Some((firmware.into(), true))
}

fn read_cmdline(section: &mut Section<'_, '_>) -> String {
    let Some((cmdline, place)) = section.string("cmdline", "a text") else { return String::new() };
    if cmdline.len() > MAX_CMDLINE {
        section.complain_at(&place, format!("expected at most {MAX_CMDLINE} bytes, got {}", cmdline.len()));
    } else if cmdline.chars().any(char::is_control) {
        section.complain_at(&place, "expected one line without control characters");
    }
    cmdline.into()
}

fn read_completion(section: &mut Section<'_, '_>) -> Completion {
    section.word("completion", &Completion::WORDS).unwrap_or_default()
}

fn read_cores(section: &mut Section<'_, '_>, config: &Config, vcpus: u32, places: &mut Places) -> Option<Vec<u32>> {
    let (cores, place) = section.cores("cores")?;
    if cores.len() as u64 != u64::from(vcpus) {
        let message = format!("expected as many cores as vCPUs: {} for {vcpus}", cores.len());
        section.complain_at(&place, message);
    }
    for core in &cores {
        let other = config.guests.iter().find(|guest| guest.cores.as_ref().is_some_and(|taken| taken.contains(core)));
        if *core == 0 {
            section.complain_at(&place, "core 0 is the control core; expected another");
        } else if config.engines.iter().any(|engine| engine.core == Some(*core)) {
            section.complain_at(&place, format!("core {core} is an engine; expected another"));
        } else if let Some(other) = other {
            section.complain_at(&place, format!("core {core} belongs to guest `{}`; expected another", other.name));
        }
    }
    places.cores = place;
    Some(cores)
}

/// Reads the uplink that a network device names.
fn read_uplink(section: &mut Section<'_, '_>, config: &Config) -> Option<usize> {
    let (name, place) = section.string("port", "the name of a [[port]]")?;
    let found = config.uplinks.iter().position(|uplink| uplink.name == name && !name.is_empty());
    if found.is_none() {
        let names: Vec<&str> =
            config.uplinks.iter().map(|uplink| &*uplink.name).filter(|name| !name.is_empty()).collect();
        let expected = match control::nearest(name, names.iter().copied()) {
            Some(meant) => format!("no [[port]] has this name; did you mean \"{meant}\"?"),
            None if names.is_empty() => "no [[port]] has this name; there is none".into(),
            None => format!("no [[port]] has this name; there are: {}", names.join(", ")),
        };
        section.complain_at(&place, expected);
    }
    found
}

/// Reads all devices, in the order of [`Guest::devices`].
fn read_devices(
    source: Source<'_>,
    section: &mut Section<'_, '_>,
    config: &Config,
    stages: &Stages,
    name: &str,
) -> Vec<GuestDevice> {
    let nets = read_nets(source, section, config, stages, name);
    let blocks = block::read(source, section);
    let entropies = read_entropies(source, section);
    let nets = nets.into_iter().map(|net| (Place::default(), GuestDevice::Net(net)));
    let blocks = blocks.into_iter().map(|block| (block.place.clone(), GuestDevice::Block(block)));
    let entropies = entropies.into_iter().map(|entropy| (entropy.place.clone(), GuestDevice::Entropy(entropy)));
    let consoles = read_consoles(source, section);
    let consoles = consoles.into_iter().map(|console| (console.place.clone(), GuestDevice::Console(console)));
    let mut devices = Vec::new();
    for (place, device) in nets.chain(blocks).chain(entropies).chain(consoles) {
        if devices.len() == MAX_DEVICES {
            section.complain_at(&place, format!("expected at most {MAX_DEVICES} devices of all kinds"));
            break;
        }
        devices.push(device);
    }
    devices
}

fn read_consoles(source: Source<'_>, section: &mut Section<'_, '_>) -> Vec<Console> {
    let mut consoles = Vec::new();
    for (span, table) in section.tables("console", "guest.console") {
        if consoles.len() == MAX_CONSOLES {
            section.complain(span, format!("expected at most {MAX_CONSOLES} console device"));
            break;
        }
        let mut console = Section::new(source, table, span, "[[guest.console]]", &["ports"]);
        let expected = "a list of names: 1 to 32 letters, digits, `-`, `_` and `.`";
        let ports = console.list("ports", expected, MAX_CONSOLE_PORTS, |value| {
            match value.as_str().filter(|name| is_name(name)) {
                Some(name) if is_reserved_port(name) => Err("only the guest of [management] has a port of this name, \
                                                             without naming it; expected another"
                    .into()),
                Some(name) => Ok(String::from(name)),
                None => Err(String::new()),
            }
        });
        consoles.push(Console { ports: ports.map(|(ports, _)| ports).unwrap_or_default(), place: console.place() });
        section.mistakes.append(&mut console.mistakes);
    }
    consoles
}

fn read_entropies(source: Source<'_>, section: &mut Section<'_, '_>) -> Vec<Entropy> {
    let mut entropies = Vec::new();
    for (span, table) in section.tables("entropy", "guest.entropy") {
        if entropies.len() == MAX_ENTROPIES {
            section.complain(span, format!("expected at most {MAX_ENTROPIES} entropy device"));
            break;
        }
        let mut entropy = Section::new(source, table, span, "[[guest.entropy]]", &[]);
        entropies.push(Entropy { place: entropy.place() });
        section.mistakes.append(&mut entropy.mistakes);
    }
    entropies
}

fn read_nets(
    source: Source<'_>,
    section: &mut Section<'_, '_>,
    config: &Config,
    stages: &Stages,
    name: &str,
) -> Vec<Net> {
    let keys: Vec<&str> = NET_KEYS.into_iter().chain(rules::KEYS).collect();
    let mut nets: Vec<Net> = Vec::new();
    for (index, (span, table)) in (0..=u8::MAX).zip(section.tables("net", "guest.net")) {
        if usize::from(index) == MAX_NETS {
            section.complain(span, format!("expected at most {MAX_NETS} network devices"));
            break;
        }
        let mut net = Section::new(source, table, span, "[[guest.net]]", &keys);
        let uplink = read_uplink(&mut net, config);
        let queues = net.integer("queues", 1..=MAX_PAIRS).map_or(1, |(queues, _)| queues as u16);
        let mtu = net
            .integer("mtu", MIN_MTU.into()..=MAX_MTU.into())
            .and_then(|(mtu, _)| u16::try_from(mtu).ok())
            .unwrap_or(DEFAULT_MTU);
        let offloads = net.word("offloads", &Offloads::WORDS).unwrap_or_default();
        let packed = net.boolean("packed").unwrap_or(false);
        let given = net.string("mac", "a text like \"02:00:00:00:00:01\"");
        let place = given.as_ref().map_or_else(|| net.place(), |(_, place)| place.clone());
        let owner = |mac: Mac| {
            let others = config.guests.iter().flat_map(|guest| guest.nets().map(move |net| (net, &*guest.name)));
            others.chain(nets.iter().map(|net| (net, name))).find(|(net, _)| net.has(mac)).map(|(_, name)| name)
        };
        let identity = rules::read_identity(&mut net, owner);
        let rules = rules::read(&mut net, stages);
        match given.map_or(Ok(derived_mac(name, index)), |(text, _)| Mac::parse(text)) {
            Ok(mac) => {
                if let Some(other) = owner(mac) {
                    net.complain_at(
                        &place,
                        format!("{mac} is the address of another network device, of guest `{other}`"),
                    );
                }
                for mac in identity.fixed.iter().chain([&mac]) {
                    if config.uplinks.iter().any(|uplink| uplink.gateway.macs.contains(mac)) {
                        net.complain_at(&place, format!("{mac} is the address of a gateway; expected another"));
                    }
                }
                nets.push(Net { mac, uplink, mtu, queues, offloads, packed, identity, rules });
            }
            Err(expected) => net.complain_at(&place, expected),
        }
        section.mistakes.append(&mut net.mistakes);
    }
    nets
}
