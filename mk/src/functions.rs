//! The functions of an ELF file, for what looks at the built image's instructions.

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use goblin::elf::{Elf, sym};

/// A function of the image.
pub struct Function<'a> {
    /// Its name as in the source, without the compiler's hash.
    pub name: String,
    /// The address of its first byte, as linked.
    pub start: u64,
    /// Offset of its first byte in the file.
    pub offset: usize,
    /// Its bytes.
    pub code: &'a [u8],
}

/// Returns the functions of an ELF file by address. A label of assembly has no size: it ends where the next one begins.
///
/// # Errors
/// A symbol lies outside of the file, or has no name.
pub fn of<'a>(elf: &Elf<'_>, image: &'a [u8]) -> Result<Vec<Function<'a>>> {
    let text: HashMap<usize, _> = elf.section_headers.iter().enumerate().filter(|(_, s)| s.is_executable()).collect();
    // The linker script's labels may lie at the end of a section, or beyond it.
    let inside =
        |s: &sym::Sym| text.get(&s.st_shndx).is_some_and(|t| (t.sh_addr..t.sh_addr + t.sh_size).contains(&s.st_value));
    let mut symbols: Vec<_> =
        elf.syms.iter().filter(|s| matches!(s.st_type(), sym::STT_FUNC | sym::STT_NOTYPE) && inside(s)).collect();
    // Of several names for one address the one with a size comes first.
    symbols.sort_by_key(|s| (s.st_value, u64::MAX - s.st_size));
    symbols.dedup_by_key(|s| s.st_value);
    let ends: Vec<u64> = symbols.iter().skip(1).map(|s| s.st_value).chain([u64::MAX]).collect();
    symbols
        .iter()
        .zip(ends)
        .map(|(symbol, next)| {
            let section = text[&symbol.st_shndx];
            let end = if symbol.st_size == 0 { next } else { symbol.st_value + symbol.st_size };
            let end = end.min(section.sh_addr + section.sh_size);
            let offset = |address: u64| (address - section.sh_addr + section.sh_offset) as usize;
            let first = offset(symbol.st_value);
            let code = image.get(first..offset(end)).context("a symbol outside of the file")?;
            let name = elf.strtab.get_at(symbol.st_name).context("a symbol without a name")?;
            // "#" leaves out the hash. The compiler appends ".llvm." and a number to names that it makes known.
            let name = format!("{:#}", rustc_demangle::demangle(name));
            let name = name.split(" (.llvm.").next().unwrap_or(&name).to_owned();
            Ok(Function { name, start: symbol.st_value, offset: first, code })
        })
        .collect()
}
