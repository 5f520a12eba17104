//! Reads `[trace]`.

use alloc::string::{String, ToString};

use ::trace::Classes;

use crate::section::Section;
use crate::size;
use crate::trace::{MAX_TRACE, Trace};

/// The keys of `[trace]`.
pub const KEYS: [&str; 2] = ["memory", "on"];

/// Reads a size: as elsewhere, or in KiB.
fn bytes(text: &str) -> Option<u64> {
    let kibibytes = ["K", "KB", "KiB"].into_iter().find_map(|unit| text.strip_suffix(unit));
    match kibibytes {
        Some(number) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
            number.parse::<u64>().ok()?.checked_mul(1024)
        }
        Some(_) => None,
        None => size::parse(text),
    }
}

/// Reads the table. What is wrong in it has its default.
pub fn read(section: &mut Section<'_, '_>) -> Trace {
    let default = Trace::default();
    let expected = "a size that is a power of two from \"4K\" to \"64M\", or \"0K\" for no traces";
    let memory = section.string("memory", expected).and_then(|(text, place)| {
        let memory =
            bytes(text).filter(|&bytes| bytes == 0 || bytes.is_power_of_two() && (4096..=MAX_TRACE).contains(&bytes));
        if memory.is_none() {
            section.complain_at(&place, alloc::format!("`memory` of [trace] is {expected}"));
        }
        memory
    });
    let on = section.list("on", "a list of classes, like [\"exits\"]", usize::MAX, |value| {
        let Some(name) = value.as_str() else { return Err(String::new()) };
        if name.is_empty() || name.contains(',') {
            return Err(String::new());
        }
        control::trace::classes(name).map_err(|why| why.to_string())
    });
    let on = on.map(|(classes, _)| classes.into_iter().fold(Classes::empty(), Classes::union));
    Trace { memory: memory.unwrap_or(default.memory), on: on.unwrap_or(default.on) }
}
