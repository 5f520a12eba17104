//! Names the functions in which guests were at their exits, with the symbols that the user gave for each guest.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use trace::Kind;

use crate::model::{Event, Names, clean};
use crate::symbols::{Choice, Symbols};

/// Symbols by number of the guest.
#[derive(Debug, Default)]
pub struct Resolver(BTreeMap<u8, Symbols>);

impl Resolver {
    /// Reads the files of all choices.
    ///
    /// # Errors
    /// A guest that the trace does not have, or a file without symbols.
    pub fn new(choices: &[Choice], names: &Names) -> Result<Self> {
        let mut all = BTreeMap::new();
        for choice in choices {
            let number = names.guests.iter().find(|(_, name)| **name == choice.guest).map(|(&number, _)| number);
            let Some(number) = number else { bail!("--symbols: no guest `{}` in this trace", clean(&choice.guest)) };
            all.insert(number, Symbols::read(choice)?);
        }
        Ok(Self(all))
    }

    /// The function in which an exit's guest was, and how far behind its start. None: the record is no exit, the guest has
    /// no symbols, or none has this address.
    #[must_use]
    pub fn function(&self, event: &Event) -> Option<(&str, u64)> {
        let record = &event.record;
        (record.known_kind() == Some(Kind::Exit)).then(|| self.0.get(&record.guest)?.find(record.a)).flatten()
    }

    /// The function's name for stacks. None: the guest has no symbols, and stacks have no level for them.
    #[must_use]
    pub fn frame(&self, event: &Event) -> Option<String> {
        self.0.get(&event.record.guest)?;
        Some(self.function(event).map_or_else(|| format!("{:#x}", event.record.a), |(name, _)| name.to_owned()))
    }
}
