//! Finds the symbols of a Linux kernel inside of it: the table from which it makes `/proc/kallsyms`.
//!
//! Follows scripts/kallsyms.c of Linux. The table has no header, so it is found by its structure. Its parts, each at a
//! multiple of eight bytes:
//!
//! | part | content |
//! |---|---|
//! | number of symbols | u32 |
//! | names | for each symbol a length (one byte, or two of seven bits each from 128 on) and so many tokens of a byte |
//! | markers | u32 for each 256th symbol: its offset in the names |
//! | sequence (6.2 to 6.4 here) | three bytes for each symbol |
//! | token table | 256 texts, each with a zero behind it |
//! | token index | u16 for each token: its offset in the token table |
//!
//! The first character of a name is its type. Addresses are differences from a base, `i32` for each symbol, then the base as
//! u64. They stand behind the token index, or before Linux 6.5 in front of the number of symbols.
//!
//! Each part has to fit to all others, or the table is not taken. The file may be hostile: all work and memory is bounded.

use std::ops::Range;

use anyhow::{Context as _, Result, ensure};

/// Symbols for each marker.
const PER_MARKER: usize = 256;
/// Tokens.
const TOKENS: usize = 256;
/// Bytes of the token index.
const INDEX_BYTES: usize = TOKENS * 2;
/// Most bytes of a name, with its type (KSYM_NAME_LEN).
const LONGEST_NAME: usize = 512;
/// Most bytes of a token. A token is a part of a name.
const LONGEST_TOKEN: usize = LONGEST_NAME;
/// Fewest symbols of a kernel. Fewer than this would fit to chance bytes, and no kernel has them.
const FEWEST: usize = 2 * PER_MARKER;
/// Most symbols of a kernel. Debian's have 150,000.
const MOST: usize = 1 << 21;
/// Most bytes of all names together. Debian's have 3 MiB.
const MOST_TEXT: usize = 128 << 20;
/// Most entries of names that the search for their beginning looks at, for each byte of the file.
const WORK: usize = 4;

/// A symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Its address as the kernel was linked. Those of per-CPU variables are offsets.
    pub address: u64,
    /// Its type, as `nm` has it.
    pub kind: u8,
    /// Its name. Bytes that are no UTF-8 are replaced.
    pub name: String,
}

/// Finds the symbols of the kernel with these bytes, in the order of its table.
///
/// # Errors
/// The kernel has no such table: it was built without CONFIG_KALLSYMS, or its table has a form that this program does not know.
pub fn of(kernel: &[u8]) -> Result<Vec<Symbol>> {
    let mut work = kernel.len().saturating_mul(WORK);
    let mut found = None;
    for at in (0..kernel.len()).step_by(8) {
        let Some(tokens) = Tokens::with_index_at(kernel, at) else { continue };
        found = found.or(Some("names"));
        let Some((start, count)) = names_before(kernel, &tokens, &mut work) else { continue };
        found = Some("addresses");
        let Some(addresses) = addresses(kernel, &tokens, start, count) else { continue };
        return symbols(&tokens, kernel.get(start..).unwrap_or_default(), &addresses);
    }
    let what = found.unwrap_or("tokens");
    Err(anyhow::anyhow!("the kernel has no table of symbols (kallsyms) of a known form: its {what} were not found"))
}

/// The tokens that names are made of.
struct Tokens<'a> {
    texts: Vec<&'a [u8]>,
    /// Where the token table begins and the token index ends, in the file.
    place: Range<usize>,
}

impl<'a> Tokens<'a> {
    /// The tokens whose index is at `at`. None: there is no index, or no table before it to which it fits.
    fn with_index_at(file: &'a [u8], at: usize) -> Option<Self> {
        let end = at.checked_add(INDEX_BYTES)?;
        let (pairs, _) = file.get(at..end)?.as_chunks::<2>();
        let offsets = || pairs.iter().map(|&pair| usize::from(u16::from_le_bytes(pair)));
        // A token has a byte at least, and its zero.
        let rises = |(before, after): (usize, usize)| after.checked_sub(before).is_some_and(|length| length >= 2);
        if offsets().next() != Some(0) || !offsets().zip(offsets().skip(1)).all(rises) {
            return None;
        }
        let last = offsets().next_back()?;
        // The length of the last token is not in the index.
        (1..=LONGEST_TOKEN.next_multiple_of(8)).find_map(|more| {
            let start = at.checked_sub(last)?.checked_sub(more)?;
            if !start.is_multiple_of(8) {
                return None;
            }
            let table = file.get(start..at)?;
            let mut texts = Vec::with_capacity(TOKENS);
            for (from, to) in offsets().zip(offsets().skip(1)) {
                texts.push(text(table.get(from..to)?)?);
            }
            let rest = table.get(last..)?;
            let length = rest.iter().position(|&byte| byte == 0)?;
            let (token, padding) = rest.split_at_checked(length)?;
            let fits = length > 0 && padding.len() <= 8 && padding.iter().all(|&byte| byte == 0);
            texts.push(fits.then_some(token)?);
            Some(Self { texts, place: start..end })
        })
    }

    /// The whole of a name, with its type.
    fn expand(&self, entry: &[u8]) -> Option<Vec<u8>> {
        let mut name = Vec::new();
        for &token in entry {
            name.extend_from_slice(self.texts.get(usize::from(token))?);
            if name.len() > LONGEST_NAME {
                return None;
            }
        }
        Some(name)
    }
}

/// A token without the zero behind it, which is its only one.
fn text(bytes: &[u8]) -> Option<&[u8]> {
    let (&end, text) = bytes.split_last()?;
    (end == 0 && !text.contains(&0)).then_some(text)
}

/// Finds the names before the token table. Returns where they begin, and how many there are.
fn names_before(file: &[u8], tokens: &Tokens<'_>, work: &mut usize) -> Option<(usize, usize)> {
    let table = tokens.place.start;
    // A name has two bytes at least.
    (0..table).step_by(8).rev().find_map(|at| {
        let (count, start) = (count_at(file, at)?, at.checked_add(8)?);
        let between = padded(count.checked_mul(3)?)?;
        let length = padded(count.div_ceil(PER_MARKER).checked_mul(4)?)?;
        // Without sequences between the markers and the token table, or with them.
        [0, between].into_iter().find_map(|between| {
            let markers = table.checked_sub(between)?.checked_sub(length)?;
            let names = file.get(start..markers)?;
            are_names(names, file.get(markers..)?, count, work).then_some((start, count))
        })
    })
}

/// The number of symbols, if there may be one at `at`.
fn count_at(file: &[u8], at: usize) -> Option<usize> {
    let count = usize::try_from(u64_at(file, at)?).ok()?;
    (FEWEST..=MOST).contains(&count).then_some(count)
}

/// Whether `names` has exactly `count` names, and each marker is where it says.
fn are_names(names: &[u8], markers: &[u8], count: usize, work: &mut usize) -> bool {
    let mut rest = names;
    for number in 0..count {
        if number.is_multiple_of(PER_MARKER) {
            let marker = u32_at(markers, number.div_euclid(PER_MARKER).saturating_mul(4));
            let offset = names.len().saturating_sub(rest.len());
            if marker.and_then(|marker| usize::try_from(marker).ok()) != Some(offset) {
                return false;
            }
        }
        let Some(left) = work.checked_sub(1) else { return false };
        *work = left;
        let Some((_, after)) = entry(rest) else { return false };
        rest = after;
    }
    // Up to the next multiple of eight.
    rest.len() < 8 && rest.iter().all(|&byte| byte == 0)
}

/// Splits the first name off: its tokens, and what follows.
fn entry(names: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&first, rest) = names.split_first()?;
    let (length, rest) = match first {
        0 => return None,
        1..128 => (usize::from(first), rest),
        128.. => {
            let (&second, rest) = rest.split_first()?;
            (usize::from(first & 127) | usize::from(second) << 7, rest)
        }
    };
    rest.split_at_checked(length)
}

/// The addresses of all symbols: behind the token index, or before the number of symbols.
fn addresses(file: &[u8], tokens: &Tokens<'_>, names: usize, count: usize) -> Option<Vec<u64>> {
    let offsets = padded(count.checked_mul(4)?)?;
    let before = names.checked_sub(16).and_then(|base| base.checked_sub(offsets));
    [Some(tokens.place.end), before].into_iter().flatten().find_map(|at| addresses_at(file, at, offsets, count))
}

/// The addresses whose differences are at `at`, in `length` bytes with padding, and the base behind them.
fn addresses_at(file: &[u8], at: usize, length: usize, count: usize) -> Option<Vec<u64>> {
    let base = u64_at(file, at.checked_add(length)?)?;
    let (offsets, _) = file.get(at..)?.get(..count.checked_mul(4)?)?.as_chunks::<4>();
    let numbers = || offsets.iter().map(|&bytes| i32::from_le_bytes(bytes));
    // CONFIG_KALLSYMS_ABSOLUTE_PERCPU: negative ones are differences from the base, the others are addresses of their own.
    // Without it all are differences, and no kernel has 2 GiB.
    let has_absolute = numbers().any(i32::is_negative);
    let address = |number: i32| match u64::try_from(number) {
        Ok(number) if has_absolute => number,
        Ok(number) => base.wrapping_add(number),
        // -1 is the base itself.
        Err(_) => base.wrapping_add(u64::from(!number.cast_unsigned())),
    };
    let addresses: Vec<u64> = numbers().map(address).collect();
    // A kernel is in the upper half, and its table is sorted.
    (base >> 63 == 1 && addresses.is_sorted()).then_some(addresses)
}

/// Puts names and addresses together.
fn symbols(tokens: &Tokens<'_>, mut names: &[u8], addresses: &[u64]) -> Result<Vec<Symbol>> {
    let mut symbols = Vec::with_capacity(addresses.len());
    let mut text = 0_usize;
    for &address in addresses {
        let (found, rest) = entry(names).context("the names of the kernel's symbols end early")?;
        names = rest;
        let whole = tokens.expand(found).context("the kernel has a symbol with too long a name")?;
        let Some((&kind, name)) = whole.split_first() else { continue };
        text = text.saturating_add(name.len());
        ensure!(text <= MOST_TEXT, "the names of the kernel's symbols are too long");
        symbols.push(Symbol { address, kind, name: String::from_utf8_lossy(name).into_owned() });
    }
    Ok(symbols)
}

fn padded(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(8)
}

fn u32_at(file: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*file.get(at..)?.first_chunk()?))
}

fn u64_at(file: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*file.get(at..)?.first_chunk()?))
}

#[cfg(test)]
pub mod tests;
