//! Reads the boot loader's information (multiboot2 specification 3.4 to 3.6): memory map, modules, command line, RSDP,
//! symbol table, framebuffer.
//!
//! GRUB is trusted. Still, nothing is read outside the information and outside each tag, and every loop ends.

/// Types of tags (3.6).
const COMMAND_LINE: u32 = 1;
const MODULE: u32 = 3;
const MEMORY_MAP: u32 = 6;
const FRAMEBUFFER: u32 = 8;
const ELF_SECTIONS: u32 = 9;
const EFI_SYSTEM_TABLE: u32 = 12;
const OLD_RSDP: u32 = 14;
const NEW_RSDP: u32 = 15;

/// Bytes of a tag's type and size. Tags begin at multiples of it.
const TAG: usize = 8;
/// Type of usable memory (3.6.8).
const AVAILABLE: u32 = 1;
/// Bytes of an entry of the memory map, at least.
const AREA: usize = 24;
/// Bytes of an ELF-64 section header, and the type of a symbol table.
const SECTION: usize = 64;
const SYMTAB: u32 = 2;

/// A file that the boot loader loaded beside the kernel. Its addresses are in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Module<'a> {
    /// Its name: the first word after the path in GRUB's `module2` line.
    pub name: &'a str,
    /// Physical address of its first byte.
    pub start: u64,
    /// Physical address behind its last byte.
    pub end: u64,
}

/// A section of the image: physical address and length in bytes. Their sum does not overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// Physical address.
    pub address: u64,
    /// Length in bytes.
    pub size: u64,
}

impl Section {
    /// Physical address behind its last byte.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.address + self.size
    }
}

/// The screen as the boot loader has left it (3.6.12). Nothing of it is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framebuffer {
    /// Physical address of its first byte.
    pub address: u64,
    /// Bytes from one line to the next.
    pub pitch: u32,
    /// Pixels of a line, or characters of a row.
    pub width: u32,
    /// Lines, or rows of characters.
    pub height: u32,
    /// Bits of a pixel, or of a character.
    pub bits: u8,
    /// How it is read.
    pub content: FramebufferContent,
}

/// How the memory of a [`Framebuffer`] is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramebufferContent {
    /// Pixels with red, green and blue: the lowest bit of each, and the number of its bits.
    Rgb([(u8, u8); 3]),
    /// VGA's text mode.
    Text,
    /// Another type, such as 0: pixels with the numbers of colours.
    Other(u8),
}

/// The information.
#[derive(Clone, Copy, Debug)]
pub struct Information<'a> {
    tags: &'a [u8],
}

fn double(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn quad(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The text up to the first NUL.
fn text(bytes: &[u8]) -> Option<&str> {
    core::str::from_utf8(bytes.split(|byte| *byte == 0).next()?).ok()
}

impl<'a> Information<'a> {
    /// The length in bytes of the information that begins with these eight bytes.
    #[must_use]
    pub const fn len_of(head: [u8; TAG]) -> u32 {
        let [a, b, c, d, ..] = head;
        u32::from_le_bytes([a, b, c, d])
    }

    /// The information in these bytes. Returns `None` if they are fewer than it says.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let len = Self::len_of(*bytes.first_chunk()?) as usize;
        Some(Self { tags: bytes.get(TAG..len)? })
    }

    /// Its length in bytes, from its address on.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "it has a head at least")]
    pub const fn len(self) -> u64 {
        (TAG + self.tags.len()) as u64
    }

    /// Returns what is in the tags of a type, without their heads. The tags end at the end tag, or at one that is cut off.
    fn tags(self, kind: u32) -> impl Iterator<Item = &'a [u8]> {
        let mut rest = self.tags;
        core::iter::from_fn(move || {
            loop {
                let (found, len) = (double(rest, 0)?, double(rest, 4)? as usize);
                // The end tag.
                if found == 0 {
                    return None;
                }
                let body = rest.get(TAG..len)?;
                rest = rest.get(len.next_multiple_of(TAG)..).unwrap_or(&[]);
                if found == kind {
                    return Some(body);
                }
            }
        })
    }

    /// Returns the ranges that the memory map calls usable, from first address to the address behind the last.
    pub fn usable(self) -> impl Iterator<Item = (u64, u64)> {
        self.tags(MEMORY_MAP).take(1).flat_map(|map| {
            // An entry may be longer than today's.
            let size = double(map, 0).map_or(0, |size| size as usize);
            let areas = map.get(8..).filter(|_| size >= AREA).unwrap_or(&[]);
            areas.chunks_exact(size.max(AREA)).filter_map(|area| {
                let (start, len) = (quad(area, 0)?, quad(area, 8)?);
                (double(area, 16)? == AVAILABLE).then_some((start, start.checked_add(len)?))
            })
        })
    }

    /// Returns the modules in the boot loader's order. One with an impossible range is left out.
    pub fn modules(self) -> impl Iterator<Item = Module<'a>> {
        self.tags(MODULE).filter_map(|module| {
            let (start, end) = (double(module, 0)?.into(), double(module, 4)?.into());
            let line = module.get(8..).and_then(text).unwrap_or("");
            let name = line.split_whitespace().next().unwrap_or("");
            (end >= start).then_some(Module { name, start, end })
        })
    }

    /// Returns the kernel's command line. GRUB leaves the kernel's own path out of it.
    #[must_use]
    pub fn command_line(self) -> Option<&'a str> {
        self.tags(COMMAND_LINE).next().and_then(text)
    }

    /// Returns the copy of the RSDP, the new one if there is one.
    #[must_use]
    pub fn rsdp(self) -> Option<&'a [u8]> {
        self.tags(NEW_RSDP).next().or_else(|| self.tags(OLD_RSDP).next())
    }

    /// Returns the physical address of EFI's system table, of 64 bits, if the machine has booted by UEFI.
    #[must_use]
    pub fn efi_system_table(self) -> Option<u64> {
        self.tags(EFI_SYSTEM_TABLE).find_map(|tag| quad(tag, 0)).filter(|at| *at != 0)
    }

    /// Returns the screen.
    #[must_use]
    pub fn framebuffer(self) -> Option<Framebuffer> {
        let tag = self.tags(FRAMEBUFFER).next()?;
        let [bits, kind] = *tag.get(20..)?.first_chunk()?;
        let content = match kind {
            1 => {
                // GRUB has two reserved bytes before the colours, the specification has one.
                let [red, red_bits, green, green_bits, blue, blue_bits] = *tag.get(24..)?.first_chunk()?;
                FramebufferContent::Rgb([(red, red_bits), (green, green_bits), (blue, blue_bits)])
            }
            2 => FramebufferContent::Text,
            other => FramebufferContent::Other(other),
        };
        let [pitch, width, height] = [double(tag, 8)?, double(tag, 12)?, double(tag, 16)?];
        Some(Framebuffer { address: quad(tag, 0)?, pitch, width, height, bits, content })
    }

    /// Returns the image's symbol table and its strings, where the boot loader has put them (3.6.7).
    #[must_use]
    pub fn symbols(self) -> Option<[Section; 2]> {
        let tag = self.tags(ELF_SECTIONS).next()?;
        let (count, size) = (double(tag, 0)? as usize, double(tag, 4)? as usize);
        let headers = tag.get(12..).filter(|_| size == SECTION)?.as_chunks::<SECTION>().0;
        let headers = headers.get(..count)?;
        let symbols = headers.iter().find(|header| double(&header[..], 4) == Some(SYMTAB))?;
        let strings = headers.get(double(symbols, 40)? as usize)?;
        let section = |header: &[u8]| {
            let section = Section { address: quad(header, 16)?, size: quad(header, 32)? };
            (section.address != 0 && section.address.checked_add(section.size).is_some()).then_some(section)
        };
        Some([section(symbols).filter(|symbols| symbols.address.is_multiple_of(8))?, section(strings)?])
    }
}

#[cfg(test)]
mod tests;
