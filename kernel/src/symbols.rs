//! Names for a backtrace, from the symbol table that GRUB loads beside the image (multiboot2 3.6.7, ELF-64 symbol
//! table). Without the table, a backtrace has addresses, which `addr2line` understands.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
#![allow(unsafe_code, reason = "reads the symbol table where GRUB put it")]

use core::{ffi::CStr, fmt, ptr, slice};
use multiboot2::BootInformation;
use spin::Once;

#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

struct Symbols {
    table: &'static [Symbol],
    strings: &'static [u8],
}

static SYMBOLS: Once<Symbols> = Once::new();

const FUNCTION: u8 = 2;
const SYMTAB: u32 = 2;

/// An ELF-64 section header.
#[repr(C)]
#[derive(Clone, Copy)]
struct Section {
    name: u32,
    kind: u32,
    flags: u64,
    address: u64,
    offset: u64,
    size: u64,
    link: u32,
    info: u32,
    align: u64,
    entry: u64,
}

/// Finds the symbol table. Returns the memory ranges that it occupies. The caller must reserve them.
pub fn find(info: &BootInformation<'_>) -> [(u64, u64); 2] {
    let Some(tag) = info.elf_sections_tag() else { return Default::default() };
    if tag.entry_size() as usize != size_of::<Section>() {
        return Default::default();
    }
    // The section headers follow the tag's fixed part of 20 bytes (multiboot2 3.6.7). They are aligned only to 4 bytes.
    let headers = ptr::from_ref(tag).cast::<u8>().wrapping_add(20).cast::<Section>();
    let count = tag.number_of_sections() as usize;
    // SAFETY: the tag says that `count` headers follow. The multiboot2 crate has checked that the tag lies within the
    // boot information.
    let section = |i: usize| (i < count).then(|| unsafe { headers.add(i).read_unaligned() });
    let Some(symtab) = (0..count).filter_map(section).find(|s| s.kind == SYMTAB) else { return Default::default() };
    let Some(strtab) = section(symtab.link as usize) else { return Default::default() };
    if symtab.address == 0 || strtab.address == 0 || symtab.address % 8 != 0 {
        return Default::default();
    }
    const SYMBOL: usize = size_of::<Symbol>();
    SYMBOLS.call_once(|| Symbols {
        // SAFETY: GRUB loaded both sections to the addresses in the headers. The caller reserves the ranges, and nobody
        // writes to them.
        table: unsafe {
            slice::from_raw_parts(ptr::with_exposed_provenance(symtab.address as usize), symtab.size as usize / SYMBOL)
        },
        // SAFETY: as above.
        strings: unsafe {
            slice::from_raw_parts(ptr::with_exposed_provenance(strtab.address as usize), strtab.size as usize)
        },
    });
    [symtab, strtab].map(|s| (s.address, s.address.saturating_add(s.size)))
}

/// Prints an address of code as a name and an offset, or as a number if there is no symbol for it.
pub struct Named(pub u64);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self.0, 0)
    }
}

/// Prints `address` as the name of the function that contains the byte `before` it, and an offset.
pub fn write(f: &mut fmt::Formatter<'_>, address: u64, before: u64) -> fmt::Result {
    match name(address.wrapping_sub(before)) {
        Some((name, offset)) => write!(f, "{:#} +{:#x}", rustc_demangle::demangle(name), offset.saturating_add(before)),
        None => write!(f, "{address:#x}"),
    }
}

/// Returns the function that contains `address`, and the offset in it.
fn name(address: u64) -> Option<(&'static str, u64)> {
    let symbols = SYMBOLS.get()?;
    let s = symbols.table.iter().find(|s| {
        s.info & 15 == FUNCTION && address.checked_sub(s.value).is_some_and(|offset| offset < s.size.max(1))
    })?;
    let name = CStr::from_bytes_until_nul(symbols.strings.get(s.name as usize..)?).ok()?;
    Some((name.to_str().ok()?, address.checked_sub(s.value)?))
}
