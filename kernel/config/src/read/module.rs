//! Reads `[[module]]`.

use alloc::format;
use core::ops::Range;

use toml::de::DeTable;

use crate::mistake::{Mistake, Source};
use crate::module::{Module, Sha256};
use crate::section::Section;
use alloc::vec::Vec;

/// Reads a `[[module]]`. `before` are those before it. One with a wrong hash stays in the list without it, so that no
/// guest uses that module unchecked.
pub(crate) fn read(
    source: Source<'_>,
    table: &DeTable<'_>,
    span: Range<usize>,
    before: &[Module],
) -> (Option<Module>, Vec<Mistake>) {
    let mut section = Section::new(source, table, span, "[[module]]", &["name", "sha256"]);
    let place = section.at("sha256");
    let named = section.string("name", "the name of a boot module");
    if !section.has("name") {
        let at = section.place();
        section.complain_at(&at, "`name` is missing: the name of a boot module");
    }
    if let Some((name, at)) = &named
        && let Some(other) = before.iter().find(|module| module.name == *name)
    {
        let line = other.place.line;
        section.complain_at(at, format!("the module in line {line} has this name; expected one of its own"));
        return (None, section.mistakes);
    }
    let expected = "64 hexadecimal digits, as `sha256sum` prints them";
    let sha256 = match section.string("sha256", expected) {
        Some((text, at)) => {
            let read = Sha256::parse(text);
            if read.is_none() {
                section.complain_at(&at, format!("expected {expected}"));
            }
            read
        }
        None => {
            if !section.has("sha256") {
                section.complain_at(&place, format!("`sha256` is missing: {expected}"));
            }
            None
        }
    };
    (named.map(|(name, _)| Module { name: name.into(), sha256, place }), section.mistakes)
}
