//! Names for a backtrace, from the symbol table that GRUB loads beside the image (multiboot2 3.6.7, ELF-64 symbol
//! table). Its addresses are those of the file, wherever GRUB has put the image. Without the table, a backtrace has
//! addresses of the file, which `addr2line` understands.

#![allow(unsafe_code, reason = "reads the symbol table where GRUB put it")]

use crate::mem;
use boot::information::Information;
use core::{ffi::CStr, fmt, ptr, slice};
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

/// Finds the symbol table. Returns the memory ranges that it occupies. The caller must reserve them.
pub fn find(info: Information<'_>) -> [(u64, u64); 2] {
    let Some([symtab, strtab]) = info.symbols() else { return Default::default() };
    const SYMBOL: usize = size_of::<Symbol>();
    SYMBOLS.call_once(|| Symbols {
        // SAFETY: GRUB loaded both sections to the addresses in the headers, the first one to a multiple of 8. The caller
        // reserves the ranges, and nobody writes to them.
        table: unsafe {
            slice::from_raw_parts(ptr::with_exposed_provenance(symtab.address as usize), symtab.size as usize / SYMBOL)
        },
        // SAFETY: as above.
        strings: unsafe {
            slice::from_raw_parts(ptr::with_exposed_provenance(strtab.address as usize), strtab.size as usize)
        },
    });
    [symtab, strtab].map(|s| (s.address, s.end()))
}

/// Prints an address of code as a name and an offset, or as a number if there is no symbol for it.
pub struct Named(pub u64);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self.0, 0)
    }
}

/// Prints `address` as the name of the function that contains the byte `before` it, and an offset. Without a name: the
/// number, which is the file's for code of the image.
pub fn write(f: &mut fmt::Formatter<'_>, address: u64, before: u64) -> fmt::Result {
    match name(address.wrapping_sub(before)) {
        Some((name, offset)) => write!(f, "{:#} +{:#x}", rustc_demangle::demangle(name), offset.saturating_add(before)),
        None => write!(f, "{:#x}", in_file(address)),
    }
}

/// Returns the address in the file of an address of the image. Other addresses stay as they are.
fn in_file(address: u64) -> u64 {
    let (start, end) = mem::image();
    if (start..end).contains(&address) { address.wrapping_sub(mem::moved_by()) } else { address }
}

/// Returns the function that contains `address`, and the offset in it.
fn name(address: u64) -> Option<(&'static str, u64)> {
    let symbols = SYMBOLS.get()?;
    let address = in_file(address);
    let s = symbols.table.iter().find(|s| {
        s.info & 15 == FUNCTION && address.checked_sub(s.value).is_some_and(|offset| offset < s.size.max(1))
    })?;
    let name = CStr::from_bytes_until_nul(symbols.strings.get(s.name as usize..)?).ok()?;
    Some((name.to_str().ok()?, address.checked_sub(s.value)?))
}
