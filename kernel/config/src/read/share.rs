//! Reads `cache` and `bandwidth` of an engine or a guest.

use crate::section::Section;
use crate::share::Share;

pub(crate) fn read(section: &mut Section<'_, '_>) -> Share {
    let mut percent = |key, least| {
        let (percent, _) = section.integer(key, least)?;
        u8::try_from(percent).ok()
    };
    Share { cache: percent("cache", 1..=90), bandwidth: percent("bandwidth", 10..=100) }
}
