//! Reads the rules of a port: the keys that `[[guest.net]]` and `[[port]]` have in common, and the keys of
//! anti-spoofing.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

use toml::de::DeValue;

use super::stage::Stages;
use crate::limits::{MAX_ADDRESSES, MAX_STAGES, MAX_STATIC, MAX_VLAN};
use crate::mac::Mac;
use crate::rules::{DEFAULT_STORM, Identity, Rules, Vlan};
use crate::section::{Section, integer};

/// Keys of anti-spoofing. Only `[[guest.net]]` has them.
pub(crate) const IDENTITY_KEYS: [&str; 3] = ["anti_spoofing", "addresses", "static"];
/// Keys that both tables have.
pub(crate) const KEYS: [&str; 6] = ["vlan", "vlans", "native", "storm", "tx", "rx"];

/// Reads [`KEYS`].
pub(crate) fn read(section: &mut Section<'_, '_>, stages: &Stages) -> Rules {
    Rules {
        vlan: read_vlan(section),
        storm: match section.integer("storm", 0..=100_000_000) {
            Some((0, _)) => None,
            Some((value, _)) => Some(value),
            None => Some(DEFAULT_STORM),
        },
        tx: read_chain(section, "tx", stages),
        rx: read_chain(section, "rx", stages),
    }
}

fn read_vlan(section: &mut Section<'_, '_>) -> Vlan {
    let range = 1..=u32::from(MAX_VLAN);
    let number = |value: u32| u16::try_from(value).unwrap_or_default();
    let access = section.integer("vlan", range.clone()).map(|(value, _)| number(value));
    let native = section.integer("native", range.clone()).map(|(value, _)| number(value));
    let expected = "a list of numbers of VLANs from 1 to 4094, like [7, 9]";
    let vlans = section.list("vlans", expected, usize::from(MAX_VLAN), |value| {
        let found = value.as_integer().and_then(integer).filter(|found| range.contains(found));
        found.map(number).ok_or_else(String::new)
    });
    if section.has("vlan") && section.has("vlans") {
        let place = section.at("vlans");
        section.complain_at(&place, "expected either `vlan`, for frames without a tag, or `vlans`, for tagged ones");
    } else if section.has("native") && !section.has("vlans") {
        let place = section.at("native");
        section
            .complain_at(&place, "`native` is the VLAN of untagged frames where others are tagged: `vlans` is missing");
    }
    match (access, vlans) {
        (_, Some((vlans, place))) if vlans.is_empty() => {
            section.complain_at(&place, format!("`vlans` is empty; expected {expected}"));
            Vlan::Plain
        }
        (_, Some((vlans, _))) => Vlan::Trunk { vlans, native },
        (Some(vlan), None) => Vlan::Access(vlan),
        (None, None) => Vlan::Plain,
    }
}

fn read_chain(section: &mut Section<'_, '_>, key: &str, stages: &Stages) -> Vec<usize> {
    let expected = "a list of names of [[stage]], like [\"no-telnet\"]";
    let found = section.list(key, expected, MAX_STAGES, |value| {
        let DeValue::String(name) = value else { return Err(String::new()) };
        stages.find(name)
    });
    found.map_or_else(Vec::new, |(chain, _)| chain)
}

/// Reads the addresses of a guest's port. `others` finds the guest of a device that was read before, by its MAC
/// address.
pub(crate) fn read_identity<'n>(section: &mut Section<'_, '_>, others: impl Fn(Mac) -> Option<&'n str>) -> Identity {
    let anti_spoofing = section.boolean("anti_spoofing").unwrap_or(true);
    let expected = "a list of IP addresses, like [\"10.0.0.2\", \"fd00::2\"]";
    let addresses = section.list("addresses", expected, MAX_ADDRESSES, |value| {
        let DeValue::String(text) = value else { return Err(String::new()) };
        let address: IpAddr = text.parse().map_err(|_| String::new())?;
        let one = !address.is_multicast() && !address.is_unspecified() && !address.is_loopback();
        if one { Ok(address) } else { Err("expected an address of one machine's, which is not its loopback".into()) }
    });
    if let Some((_, place)) = &addresses
        && !anti_spoofing
    {
        section.complain_at(place, "`addresses` are those that anti-spoofing lets through: it is switched off here");
    }
    let expected = "a list of MAC addresses, like [\"02:00:00:00:00:02\"]";
    let fixed = section.list("static", expected, MAX_STATIC, |value| {
        let DeValue::String(text) = value else { return Err(String::new()) };
        let mac = Mac::parse(text)?;
        match others(mac) {
            Some(guest) => Err(format!("{mac} is the address of another network device, of guest `{guest}`")),
            None => Ok(mac),
        }
    });
    let list = |found: Option<(Vec<_>, _)>| found.map_or_else(Vec::new, |(list, _)| list);
    Identity { anti_spoofing, addresses: addresses.map_or_else(Vec::new, |(list, _)| list), fixed: list(fixed) }
}
