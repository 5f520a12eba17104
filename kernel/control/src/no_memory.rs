//! Allocations that may fail. What an operator, a script or a guest can ask for while guests run allocates by these functions
//! only, because Rust's other ones end the machine when there is no memory.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::fmt::Write as _;

use crate::Text;

/// There was no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

/// What an error says that there is no memory to write down.
pub const OUT_OF_MEMORY: &str = "out of memory";

impl fmt::Display for NoMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(OUT_OF_MEMORY)
    }
}

impl From<NoMemory> for Text {
    fn from(_: NoMemory) -> Self {
        Self::Borrowed(OUT_OF_MEMORY)
    }
}

/// Copies a text.
///
/// # Errors
/// There is no memory.
pub fn copy(text: &str) -> Result<String, NoMemory> {
    let mut out = String::new();
    out.try_reserve_exact(text.len()).map_err(|_| NoMemory)?;
    out.push_str(text);
    Ok(out)
}

/// Adds an item to a list.
///
/// # Errors
/// There is no memory.
pub fn push<T>(list: &mut Vec<T>, item: T) -> Result<(), NoMemory> {
    list.try_reserve(1).map_err(|_| NoMemory)?;
    list.push(item);
    Ok(())
}

/// Makes a list of items.
///
/// # Errors
/// There is no memory for the list or an item.
pub fn collect<T>(items: impl IntoIterator<Item = Result<T, NoMemory>>) -> Result<Vec<T>, NoMemory> {
    let mut list = Vec::new();
    items.into_iter().try_for_each(|item| push(&mut list, item?))?;
    Ok(list)
}

/// Makes a text of a value.
///
/// # Errors
/// There is no memory.
pub fn write(value: impl fmt::Display) -> Result<String, NoMemory> {
    let mut out = String::new();
    write!(Growing(&mut out), "{value}").map_err(|_| NoMemory)?;
    Ok(out)
}

/// Makes a sentence for an operator. It is [`OUT_OF_MEMORY`] if there is no memory for it.
#[must_use]
pub fn sentence(value: impl fmt::Display) -> Text {
    write(value).map_or(Text::Borrowed(OUT_OF_MEMORY), Text::Owned)
}

/// A string that takes text. Writing fails if there is no memory.
struct Growing<'a>(&'a mut String);

impl fmt::Write for Growing<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.try_reserve(text.len()).map_err(|_| fmt::Error)?;
        self.0.push_str(text);
        Ok(())
    }
}
