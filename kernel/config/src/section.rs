//! Reads a TOML table key by key. Each unexpected thing becomes a mistake.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::{Range, RangeInclusive};

use control::Permissions;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::mistake::{Mistake, Place, Source};

/// A table of the file, and the context for its mistakes.
pub(crate) struct Section<'a, 'i> {
    source: Source<'a>,
    table: &'a DeTable<'i>,
    span: Range<usize>,
    name: &'static str,
    pub mistakes: Vec<Mistake>,
}

/// A text or a whole number.
pub(crate) enum TextOrInteger<'a> {
    Text(&'a str),
    Integer(u32),
}

/// A value and its place.
pub(crate) type Found<T> = Option<(T, Place)>;

impl<'a, 'i> Section<'a, 'i> {
    /// Makes the section for the table `name`. Only `keys` are allowed in it.
    pub fn new(
        source: Source<'a>,
        table: &'a DeTable<'i>,
        span: Range<usize>,
        name: &'static str,
        keys: &[&'static str],
    ) -> Self {
        let mut section = Self { source, table, span, name, mistakes: Vec::new() };
        for key in table.keys().filter(|key| !keys.contains(&key.get_ref().as_ref())) {
            let expected = match control::nearest(key.get_ref(), keys.iter().copied()) {
                None if keys.is_empty() => format!("no such key in {name}; it has none"),
                Some(meant) => format!("no such key in {name}; did you mean `{meant}`?"),
                None => format!("no such key in {name}; there are: {}", keys.join(", ")),
            };
            section.complain(key.span(), expected);
        }
        section
    }

    /// Returns the place of the table's beginning.
    pub fn place(&self) -> Place {
        self.source.place(self.span.clone())
    }

    pub fn complain(&mut self, span: Range<usize>, message: impl Into<String>) {
        self.mistakes.push(self.source.mistake(span, message));
    }

    /// Adds a mistake at the place of a value found before.
    pub fn complain_at(&mut self, place: &Place, message: impl Into<String>) {
        self.mistakes.push(Mistake::new(self.source.file, place, message));
    }

    /// Returns the place of the value of `key`, or of the table if there is no such key.
    pub fn at(&self, key: &str) -> Place {
        self.get(key).map_or_else(|| self.place(), |(span, _)| self.source.place(span))
    }

    fn get(&self, key: &str) -> Option<(Range<usize>, &'a DeValue<'i>)> {
        let (_, value) = self.table.iter().find(|(name, _)| name.get_ref() == key)?;
        Some((value.span(), value.get_ref()))
    }

    /// Reads a value of the type that `read` accepts. `expected` describes it.
    fn typed<T>(&mut self, key: &str, expected: &str, read: impl Fn(&'a DeValue<'i>) -> Option<T>) -> Found<T> {
        let (span, value) = self.get(key)?;
        match read(value) {
            Some(value) => Some((value, self.source.place(span))),
            None => {
                self.complain(
                    span,
                    format!("`{key}` of {} is {expected}, not of type {}", self.name, value.type_str()),
                );
                None
            }
        }
    }

    pub fn string(&mut self, key: &str, expected: &str) -> Found<&'a str> {
        self.typed(key, expected, |value| match value {
            DeValue::String(text) => Some(text.as_ref()),
            _ => None,
        })
    }

    pub fn boolean(&mut self, key: &str) -> Option<bool> {
        self.typed(key, "true or false", DeValue::as_bool).map(|(value, _)| value)
    }

    pub fn integer(&mut self, key: &str, range: RangeInclusive<u32>) -> Found<u32> {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        // A number that does not fit still has the right type.
        let (value, place) = self.typed(key, &expected, |value| Some(integer(value.as_integer()?)))?;
        match value.filter(|value| range.contains(value)) {
            Some(value) => Some((value, place)),
            None => {
                self.complain_at(&place, format!("`{key}` of {} must be {expected}", self.name));
                None
            }
        }
    }

    /// Reads a list of permissions by name.
    pub fn permissions(&mut self, key: &str) -> Option<Permissions> {
        let (found, _) = self.list(key, "a list of permissions, like [\"view\"]", usize::MAX, |value| {
            let Some(name) = value.as_str() else { return Err(String::new()) };
            Permissions::read(name).map_err(|why| why.to_string())
        })?;
        Some(found.into_iter().fold(Permissions::empty(), |all, one| all | one))
    }

    /// Reads a list of core numbers without duplicates.
    pub fn cores(&mut self, key: &str) -> Found<Vec<u32>> {
        self.list(key, "a list of core numbers, like [2, 3]", usize::MAX, |value| {
            value.as_integer().and_then(integer).ok_or_else(String::new)
        })
    }

    /// Reads a list of up to `most` values of one kind, without duplicates. If a value is wrong, `read` says why, or
    /// nothing if `expected` is enough.
    pub fn list<T: PartialEq>(
        &mut self,
        key: &str,
        expected: &str,
        most: usize,
        read: impl Fn(&'a DeValue<'i>) -> Result<T, String>,
    ) -> Found<Vec<T>> {
        let (list, place) = self.typed(key, expected, DeValue::as_array)?;
        let mut found: Vec<T> = Vec::new();
        let mut complaints = Vec::new();
        for item in list.iter() {
            match read(item.get_ref()) {
                Ok(one) if found.contains(&one) => {
                    complaints.push((item.span(), format!("it stands twice in `{key}`")))
                }
                Ok(_) if found.len() == most => {
                    complaints.push((item.span(), format!("expected at most {most} in `{key}`")));
                    break;
                }
                Ok(one) => found.push(one),
                Err(why) if why.is_empty() => complaints.push((item.span(), format!("`{key}` is {expected}"))),
                Err(why) => complaints.push((item.span(), why)),
            }
        }
        let good = complaints.is_empty();
        for (span, message) in complaints {
            self.complain(span, message);
        }
        good.then_some((found, place))
    }

    /// Reads a value that may be a text or a whole number.
    pub fn text_or_integer(&mut self, key: &str, expected: &str) -> Found<TextOrInteger<'a>> {
        self.typed(key, expected, |value| match value {
            DeValue::String(text) => Some(TextOrInteger::Text(text.as_ref())),
            _ => Some(TextOrInteger::Integer(value.as_integer().and_then(integer)?)),
        })
    }

    /// Whether the table has `key`.
    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Reads one of a few words.
    pub fn word<T: Copy>(&mut self, key: &str, words: &[(&'static str, T)]) -> Option<T> {
        let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        let expected = format!("one of \"{}\"", names.join("\", \""));
        let (text, place) = self.string(key, &expected)?;
        if let Some((_, value)) = words.iter().find(|(name, _)| *name == text) {
            return Some(*value);
        }
        let hint = control::nearest(text, names.iter().copied())
            .map_or(String::new(), |meant| format!("; did you mean \"{meant}\"?"));
        self.complain_at(&place, format!("`{key}` of {} must be {expected}{hint}", self.name));
        None
    }

    /// Reads a table in this table.
    pub fn table(&mut self, key: &str) -> Option<(Range<usize>, &'a DeTable<'i>)> {
        let (span, value) = self.get(key)?;
        match value.as_table() {
            Some(table) => Some((span, table)),
            None => {
                self.complain(span, format!("`{key}` is a table, written [{key}]"));
                None
            }
        }
    }

    /// Reads the tables of an array of tables, `[[path]]`.
    pub fn tables(&mut self, key: &str, path: &str) -> Vec<(Range<usize>, &'a DeTable<'i>)> {
        let Some((span, value)) = self.get(key) else { return Vec::new() };
        let Some(list) = value.as_array() else {
            self.complain(span, format!("there can be several of it: write [[{path}]]"));
            return Vec::new();
        };
        let mut tables = Vec::new();
        for item in list.iter() {
            match item.get_ref().as_table() {
                Some(table) => tables.push((Spanned::span(item), table)),
                None => self.complain(item.span(), format!("`{key}` is a list of tables, written [[{path}]]")),
            }
        }
        tables
    }
}

/// Returns the number if it fits.
pub(crate) fn integer(value: &toml::de::DeInteger<'_>) -> Option<u32> {
    u32::from_str_radix(value.as_str(), value.radix()).ok()
}
