//! Reads `[[port]]`.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::Range;

use control::is_name;
use toml::de::DeTable;

use super::rules;
use super::stage::Stages;
use crate::limits::MAX_GATEWAY;
use crate::mac::Mac;
use crate::mistake::{Mistake, Source};
use crate::section::Section;
use crate::uplink::{Gateway, Optics, PciDevice, Steering, Uplink};

/// Reads a `[[port]]`. `before` are the ports before it. A port with a mistake stays in the list and lets no frame
/// through. So its frames do not take the next port instead.
pub(crate) fn read(
    source: Source<'_>,
    table: &DeTable<'_>,
    span: Range<usize>,
    before: &[Uplink],
    stages: &Stages,
) -> (Uplink, Vec<Mistake>) {
    let keys: Vec<&str> = ["device", "name", "steering", "optics", "gateway"].into_iter().chain(rules::KEYS).collect();
    let mut section = Section::new(source, table, span, "[[port]]", &keys);
    let place = section.at("device");
    let device = read_device(&mut section, before);
    let name = read_name(&mut section, device, before);
    let steering = section.word("steering", &Steering::WORDS).unwrap_or_default();
    let optics = section.word("optics", &Optics::WORDS).unwrap_or_default();
    let gateway = read_gateway(&mut section);
    let rules = rules::read(&mut section, stages);
    let device = device.filter(|_| section.mistakes.is_empty());
    (Uplink { name: name.unwrap_or_default(), device, steering, optics, gateway, rules, place }, section.mistakes)
}

fn read_device(section: &mut Section<'_, '_>, before: &[Uplink]) -> Option<PciDevice> {
    let expected = "\"first\" or a PCI address like \"01:00.0\"";
    let Some((text, place)) = section.string("device", expected) else {
        if !section.has("device") {
            let place = section.place();
            section.complain_at(&place, format!("`device` is missing: {expected}"));
        }
        return None;
    };
    let Some(device) = PciDevice::parse(text) else {
        section.complain_at(&place, format!("expected {expected}"));
        return None;
    };
    if let Some(other) = before.iter().find(|port| port.device == Some(device)) {
        let line = other.place.line;
        section.complain_at(&place, format!("the port in line {line} has this device; expected one of its own"));
        return None;
    }
    Some(device)
}

/// An address of a gateway.
#[derive(PartialEq)]
enum GatewayAddress {
    Ip(IpAddr),
    Mac(Mac),
}

/// Reads the addresses of the gateway.
fn read_gateway(section: &mut Section<'_, '_>) -> Gateway {
    let expected = "a list of IP and MAC addresses, like [\"10.0.0.1\", \"02:00:00:00:00:01\"]";
    let found = section.list("gateway", expected, MAX_GATEWAY, |value| {
        let text = value.as_str().ok_or_else(String::new)?;
        match (text.parse::<IpAddr>(), Mac::parse(text)) {
            (Ok(address), _) if address.is_multicast() || address.is_unspecified() || address.is_loopback() => {
                Err("expected an address of one machine's, which is not its loopback".into())
            }
            (Ok(address), _) => Ok(GatewayAddress::Ip(address)),
            (Err(_), Ok(mac)) => Ok(GatewayAddress::Mac(mac)),
            (Err(_), Err(why)) if Mac::parse_any(text).is_ok() => Err(why.into()),
            (Err(_), Err(_)) => Err(String::new()),
        }
    });
    let mut gateway = Gateway::default();
    for address in found.into_iter().flat_map(|(list, _)| list) {
        match address {
            GatewayAddress::Ip(address) => gateway.addresses.push(address),
            GatewayAddress::Mac(mac) => gateway.macs.push(mac),
        }
    }
    gateway
}

/// Reads the name. Returns `None` if there is no usable name.
fn read_name(section: &mut Section<'_, '_>, device: Option<PciDevice>, before: &[Uplink]) -> Option<String> {
    let expected = "a text of 1 to 32 letters, digits, `-`, `_` and `.`";
    let (name, place) = match section.string("name", expected) {
        Some((name, place)) if is_name(name) => (String::from(name), place),
        Some((_, place)) => {
            section.complain_at(&place, format!("`name` must be {expected}"));
            return None;
        }
        None => (device?.to_string(), section.at("device")),
    };
    if let Some(other) = before.iter().find(|port| port.name == name) {
        let line = other.place.line;
        section.complain_at(&place, format!("the port in line {line} has this name; expected one of its own"));
        return None;
    }
    Some(name)
}

#[cfg(test)]
mod tests;
