//! Reads `[[port]]`.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::Range;

use toml::de::DeTable;

use super::name::is_name;
use super::rules;
use super::stage::Stages;
use crate::mistake::{Mistake, Source};
use crate::section::Section;
use crate::uplink::{PciDevice, Steering, Uplink};

/// Reads a `[[port]]`. `before` are the ports before it. A port with a mistake stays in the list and lets no frame
/// through. So its frames do not take the next port instead.
pub(crate) fn read(
    source: Source<'_>,
    table: &DeTable<'_>,
    span: Range<usize>,
    before: &[Uplink],
    stages: &Stages,
) -> (Uplink, Vec<Mistake>) {
    let keys: Vec<&str> = ["device", "name", "steering"].into_iter().chain(rules::KEYS).collect();
    let mut section = Section::new(source, table, span, "[[port]]", &keys);
    let place = section.at("device");
    let device = read_device(&mut section, before);
    let name = read_name(&mut section, device, before);
    let words = [("none", Steering::None), ("flows", Steering::Flows), ("addresses", Steering::Addresses)];
    let steering = section.word("steering", &words).unwrap_or_default();
    let rules = rules::read(&mut section, stages);
    let device = device.filter(|_| section.mistakes.is_empty());
    (Uplink { name: name.unwrap_or_default(), device, steering, rules, place }, section.mistakes)
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
