//! Reads `[[stage]]`.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::{Range, RangeInclusive};

use control::is_name;
use toml::de::DeTable;

use crate::config::Config;
use crate::limits::{MAX_NETS, MAX_VLAN};
use crate::mac::Mac;
use crate::mistake::{Mistake, Place, Source};
use crate::section::{Section, TextOrInteger};
use crate::stage::{Action, PROTOCOLS, Rule, Stage};

const KEYS: [&str; 17] = [
    "name",
    "action",
    "to",
    "bits_per_second",
    "frames_per_second",
    "burst",
    "ether_type",
    "vlan",
    "source_mac",
    "destination_mac",
    "protocol",
    "source",
    "destination",
    "source_port",
    "destination_port",
    "opening",
    "icmp_type",
];
/// Most stages.
pub(crate) const MOST: usize = 256;
/// Least bytes of a burst: the longest frame that a guest may send.
const MIN_BURST: u32 = 65_550;
/// Least frames of a burst, if the file gives no burst.
const FRAMES_AT_ONCE: u64 = 32;

/// The stages that ports may name.
pub(crate) struct Stages {
    good: Vec<String>,
    bad: Vec<String>,
}

impl Stages {
    /// Returns the index of the stage with this name.
    pub fn find(&self, name: &str) -> Result<usize, String> {
        if let Some(number) = self.good.iter().position(|good| good == name) {
            return Ok(number);
        }
        if self.bad.iter().any(|bad| bad == name) {
            return Err(format!("[[stage]] `{name}` has a mistake of its own"));
        }
        let names: Vec<&str> = self.good.iter().map(String::as_str).collect();
        Err(match control::nearest(name, names.iter().copied()) {
            Some(meant) => format!("no [[stage]] `{name}`; did you mean `{meant}`?"),
            None if names.is_empty() => format!("no [[stage]] `{name}`; there is none"),
            None => format!("no [[stage]] `{name}`; there are: {}", names.join(", ")),
        })
    }
}

/// Reads all stages into the configuration.
pub(crate) fn read_all(source: Source<'_>, top: &mut Section<'_, '_>, config: &mut Config) -> Stages {
    let mut stages = Stages { good: Vec::new(), bad: Vec::new() };
    for (index, (span, table)) in top.tables("stage", "stage").into_iter().enumerate() {
        if index == MOST {
            top.complain(span, format!("expected at most {MOST} stages"));
            break;
        }
        let (name, stage, mut mistakes) = read(source, table, span, &stages);
        top.mistakes.append(&mut mistakes);
        match stage {
            Some(stage) => {
                stages.good.push(stage.name.clone());
                config.stages.push(stage);
            }
            None => stages.bad.extend(name),
        }
    }
    stages
}

fn read(
    source: Source<'_>,
    table: &DeTable<'_>,
    span: Range<usize>,
    before: &Stages,
) -> (Option<String>, Option<Stage>, Vec<Mistake>) {
    let mut section = Section::new(source, table, span, "[[stage]]", &KEYS);
    let name = read_name(&mut section, before);
    let rule = read_rule(&mut section);
    let action = read_action(&mut section);
    let place = section.at("to");
    let mistakes = section.mistakes;
    let stage = match (&name, action) {
        (Some(name), Some(action)) if mistakes.is_empty() => Some(Stage { name: name.clone(), action, rule, place }),
        _ => None,
    };
    (name, stage, mistakes)
}

fn read_name(section: &mut Section<'_, '_>, before: &Stages) -> Option<String> {
    let expected = "a text of 1 to 32 letters, digits, `-`, `_` and `.`";
    let silent = section.mistakes.len();
    let Some((name, place)) = section.string("name", expected) else {
        if section.mistakes.len() == silent {
            let place = section.place();
            section.complain_at(&place, "a stage needs a `name`, by which ports name it");
        }
        return None;
    };
    if !is_name(name) {
        section.complain_at(&place, format!("`name` must be {expected}"));
        return None;
    }
    if before.good.iter().chain(&before.bad).any(|other| other == name) {
        section.complain_at(&place, "another stage has this name; expected one of its own");
    }
    Some(name.into())
}

fn read_action(section: &mut Section<'_, '_>) -> Option<Action> {
    #[derive(Clone, Copy, PartialEq)]
    enum Word {
        Allow,
        Deny,
        Count,
        Mirror,
        Limit,
    }
    const WORDS: [(&str, Word); 5] = [
        ("allow", Word::Allow),
        ("deny", Word::Deny),
        ("count", Word::Count),
        ("mirror", Word::Mirror),
        ("limit", Word::Limit),
    ];
    if !section.has("action") {
        let place = section.place();
        section.complain_at(&place, "a stage needs an `action`: allow, deny, count, mirror or limit");
    }
    let word = section.word("action", &WORDS)?;
    let of = |keys: &[&'static str], owner: Word, name: &str, section: &mut Section<'_, '_>| {
        for key in keys.iter().filter(|key| word != owner && section.has(key)).copied().collect::<Vec<_>>() {
            let place = section.at(key);
            section.complain_at(&place, format!("`{key}` belongs to `action = \"{name}\"`"));
        }
    };
    of(&["to"], Word::Mirror, "mirror", section);
    of(&["bits_per_second", "frames_per_second", "burst"], Word::Limit, "limit", section);
    match word {
        Word::Allow => Some(Action::Allow),
        Word::Deny => Some(Action::Deny),
        Word::Count => Some(Action::Count),
        Word::Mirror => read_mirror(section),
        Word::Limit => read_limit(section),
    }
}

fn read_mirror(section: &mut Section<'_, '_>) -> Option<Action> {
    let expected = "the guest that gets the copies, like \"watcher\", or \"watcher:1\" for its second network device";
    if !section.has("to") {
        let place = section.place();
        section.complain_at(&place, format!("a mirror needs `to`: {expected}"));
    }
    let (text, place) = section.string("to", expected)?;
    let (guest, net) = text.split_once(':').unwrap_or((text, "0"));
    match net.parse::<usize>() {
        Ok(net) if is_name(guest) && net < MAX_NETS => Some(Action::Mirror { guest: guest.into(), net }),
        _ => {
            section.complain_at(&place, format!("expected {expected}"));
            None
        }
    }
}

fn read_limit(section: &mut Section<'_, '_>) -> Option<Action> {
    let silent = section.mistakes.len();
    let frames = section.integer("frames_per_second", 1..=1_000_000_000).map(|(value, _)| u64::from(value));
    let expected = "bits a second from \"8K\" to \"1000G\" (K, M and G are powers of 1000)";
    let bits = section.string("bits_per_second", expected).and_then(|(text, place)| {
        let found = bits(text);
        if found.is_none() {
            section.complain_at(&place, format!("expected {expected}"));
        }
        found
    });
    let bytes = section.has("bits_per_second");
    if bytes == section.has("frames_per_second") {
        let place = section.at("action");
        section.complain_at(&place, "a limit needs either `bits_per_second` or `frames_per_second`");
    }
    let least = if bytes { MIN_BURST } else { 1 };
    let burst = section.integer("burst", least..=1 << 30).map(|(value, _)| u64::from(value));
    if section.mistakes.len() != silent {
        return None;
    }
    let rate = bits.map(|bits| bits / 8).or(frames)?;
    let at_once = if bytes { u64::from(MIN_BURST) } else { FRAMES_AT_ONCE };
    // The default burst is ten milliseconds of the rate.
    Some(Action::Limit { rate, burst: burst.unwrap_or_else(|| (rate / 100).clamp(at_once, 1 << 30)), bytes })
}

/// Reads bits per second, for example `100M`.
fn bits(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(['K', 'M', 'G']);
    let unit = match text.get(digits.len()..)? {
        "" => 1,
        "K" => 1000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        _ => return None,
    };
    let number: u64 = digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())??;
    number.checked_mul(unit).filter(|bits| (8000..=1_000_000_000_000).contains(bits))
}

fn read_rule(section: &mut Section<'_, '_>) -> Rule {
    let number = |found: Option<(u32, Place)>| found.and_then(|(value, _)| u16::try_from(value).ok());
    let rule = Rule {
        ether_type: number(section.integer("ether_type", 0x600..=0xffff)),
        vlan: number(section.integer("vlan", 1..=u32::from(MAX_VLAN))),
        source_mac: read_mac(section, "source_mac"),
        destination_mac: read_mac(section, "destination_mac"),
        protocol: read_protocol(section),
        source: read_prefix(section, "source"),
        destination: read_prefix(section, "destination"),
        source_port: read_ports(section, "source_port"),
        destination_port: read_ports(section, "destination_port"),
        opening: section.boolean("opening"),
        icmp_type: section.integer("icmp_type", 0..=255).and_then(|(value, _)| u8::try_from(value).ok()),
    };
    if let (Some((source, _)), Some((destination, _))) = (rule.source, rule.destination)
        && source.is_ipv4() != destination.is_ipv4()
    {
        let place = section.at("destination");
        section.complain_at(&place, "no packet goes from IPv4 to IPv6; expected an address of the kind of `source`");
    }
    let mut of = |key: &str, protocols: &[u8], names: &str, optional: bool| {
        let right = rule.protocol.map_or(optional, |protocol| protocols.contains(&protocol));
        if section.has(key) && !right && (rule.protocol.is_some() || !section.has("protocol")) {
            let place = section.at(key);
            section.complain_at(&place, format!("`{key}` is of {names}; expected `protocol` to be that"));
        }
    };
    for key in ["source_port", "destination_port"] {
        of(key, &[6, 17, 132, 136], "tcp, udp, sctp (132) or udplite (136)", true);
    }
    of("opening", &[6], "tcp", false);
    of("icmp_type", &[1, 58], "icmp or icmpv6", false);
    rule
}

fn read_mac(section: &mut Section<'_, '_>, key: &str) -> Option<Mac> {
    let (text, place) = section.string(key, "a text like \"02:00:00:00:00:01\"")?;
    match Mac::parse_any(text) {
        Ok(mac) => Some(mac),
        Err(expected) => {
            section.complain_at(&place, expected);
            None
        }
    }
}

fn read_protocol(section: &mut Section<'_, '_>) -> Option<u8> {
    let expected = "\"tcp\", \"udp\", \"icmp\", \"icmpv6\" or a number from 0 to 255";
    let (found, place) = section.text_or_integer("protocol", expected)?;
    let protocol = match found {
        TextOrInteger::Text(word) => PROTOCOLS.iter().find(|(name, _)| *name == word).map(|(_, number)| *number),
        TextOrInteger::Integer(number) => u8::try_from(number).ok(),
    };
    if protocol.is_none() {
        section.complain_at(&place, format!("`protocol` is {expected}"));
    }
    protocol
}

fn read_prefix(section: &mut Section<'_, '_>, key: &str) -> Option<(IpAddr, u8)> {
    let expected = "an IP address or the beginning of some, like \"10.0.0.0/24\" or \"fd00::1\"";
    let (text, place) = section.string(key, expected)?;
    let prefix = || {
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().ok()?;
        let all = if address.is_ipv4() { 32 } else { 128 };
        let bits =
            bits.map_or(Some(all), |bits| bits.parse().ok().filter(|bits| *bits <= all && !text.contains('+')))?;
        Some((address, bits))
    };
    let found = prefix();
    match found {
        None => section.complain_at(&place, format!("`{key}` is {expected}")),
        Some((address, bits)) if !is_beginning(address, bits) => {
            let message =
                format!("{address} has more than {bits} bits that are not 0; expected the first address of these");
            section.complain_at(&place, message);
        }
        _ => {}
    }
    found
}

/// Whether all bits after the first `bits` are 0.
fn is_beginning(address: IpAddr, bits: u8) -> bool {
    let rest = |all: u32, trailing: u32| trailing.min(all) >= all.saturating_sub(u32::from(bits));
    match address {
        IpAddr::V4(v4) => rest(32, v4.to_bits().trailing_zeros()),
        IpAddr::V6(v6) => rest(128, v6.to_bits().trailing_zeros()),
    }
}

fn read_ports(section: &mut Section<'_, '_>, key: &str) -> Option<RangeInclusive<u16>> {
    let expected = "a port from 0 to 65535, or a text like \"6000-6063\"";
    let (found, place) = section.text_or_integer(key, expected)?;
    let range = match found {
        TextOrInteger::Integer(port) => u16::try_from(port).ok().map(|port| port..=port),
        TextOrInteger::Text(text) => text.split_once('-').and_then(|(first, last)| {
            let port = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u16>().ok())?;
            Some(port(first)?..=port(last)?).filter(|range| !range.is_empty())
        }),
    };
    if range.is_none() {
        section.complain_at(&place, format!("`{key}` is {expected}"));
    }
    range
}

/// Checks that the guest and the device of each `mirror` exist. Call it once the guests are known.
pub(crate) fn check_mirrors(config: &Config) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    for stage in &config.stages {
        let Action::Mirror { guest: name, net } = &stage.action else { continue };
        let message = match config.guests.iter().find(|guest| guest.name == *name) {
            None => format!("no guest `{name}`, so nobody gets the copies"),
            Some(guest) if guest.nets().count() <= *net => {
                format!("guest `{name}` has {} network devices, so nobody gets the copies", guest.nets().count())
            }
            Some(_) => continue,
        };
        mistakes.push(Mistake::new(&config.file, &stage.place, message));
    }
    mistakes
}
