//! Starts sidecore as GRUB would (multiboot2 3.3 and 3.6): loads its ELF file, makes its information, and leaves 64-bit mode.

use boot::information::Information;
use core::{mem, ptr, slice};

core::arch::global_asm!(include_str!("handover.s"));

unsafe extern "C" {
    static image_start: u8;
    static image_end: u8;
    fn hand_over(entry: u32, information: u32, magic: u32) -> !;
}

/// Where sidecore's image may be: multiples of this.
const ALIGNMENT: u64 = 2 << 20;
/// Bytes for sidecore's information. It is behind the image: as GRUB's, in memory that the memory map calls usable.
const MOST: usize = 64 << 10;

/// Types of tags: command line, module, memory map, ELF sections, load address, end.
const END: u32 = 0;
const COMMAND_LINE: u32 = 1;
const MODULE: u32 = 3;
const MEMORY_MAP: u32 = 6;
const ELF_SECTIONS: u32 = 9;
const LOAD_BASE: u32 = 21;
/// Bytes of an entry of the memory map, and the type of reserved memory.
const AREA: usize = 24;
const RESERVED: u32 = 2;

/// Loads sidecore, which is the first module, and starts it. `bytes`: GRUB's information.
pub fn start(bytes: &[u8], info: Information<'_>) -> ! {
    let own = (address(&raw const image_start), address(&raw const image_end));
    let module = info.modules().next().expect("no module");
    let at = ptr::with_exposed_provenance(module.start as usize);
    // SAFETY: GRUB has put the module there. It is mapped, and nobody writes to it.
    let file = unsafe { slice::from_raw_parts(at, (module.end - module.start) as usize) };
    let image = Image(file);
    let (first, end) =
        image.segments().fold((u64::MAX, 0), |(first, end), s| (s.at.min(first), (s.at + s.bytes).max(end)));
    let information = address(bytes.as_ptr());
    let busy = [own, (information, information + bytes.len() as u64)];
    let busy = || busy.into_iter().chain(info.modules().map(|module| (module.start, module.end)));
    let image_bytes = (end - first).next_multiple_of(4096);
    let needed = image_bytes + MOST as u64;
    let fits = |at: &u64| busy().all(|(start, behind)| at + needed <= start || behind <= *at);
    let place = info
        .usable()
        .flat_map(|(start, behind)| {
            let behind = behind.min(4 << 30).saturating_sub(needed);
            (start.next_multiple_of(ALIGNMENT)..=behind).step_by(ALIGNMENT as usize).filter(|at| *at != 0)
        })
        .find(fits)
        .expect("no room for sidecore");
    for segment in image.segments() {
        let to = ptr::with_exposed_provenance_mut::<u8>((segment.at - first + place) as usize);
        // SAFETY: the place is usable memory that nobody has, for all segments: checked above.
        unsafe {
            to.write_bytes(0, segment.bytes as usize);
            to.copy_from_nonoverlapping(segment.content.as_ptr(), segment.content.len());
        }
    }
    let information = place + image_bytes;
    // SAFETY: as above. The memory is aligned and mapped, and any bytes are bytes.
    let buffer = unsafe { &mut *ptr::with_exposed_provenance_mut::<[u8; MOST]>(information as usize) };
    buffer.fill(0);
    let mut tags = Writer { buffer, at: 8, tag: 8 };
    copy(bytes, &mut tags, info, own, place);
    let length = tags.at as u32;
    tags.buffer[..4].copy_from_slice(&length.to_le_bytes());
    let entry = (image.entry() - first + place) as u32;
    // SAFETY: sidecore's entry is there, and its information is complete.
    unsafe { hand_over(entry, information as u32, boot::MULTIBOOT2_MAGIC) }
}

fn address<T>(of: *const T) -> u64 {
    of.expose_provenance() as u64
}

/// Copies GRUB's tags as sidecore is to see them: without this program's own words, module and symbols, with sidecore's place, and with this
/// program's memory as reserved.
fn copy(bytes: &[u8], tags: &mut Writer<'_>, info: Information<'_>, own: (u64, u64), place: u64) {
    let words = info.command_line().unwrap_or_default().split_whitespace();
    tags.begin(COMMAND_LINE);
    for word in words.filter(|word| !word.starts_with("remapping=")) {
        tags.put(word.as_bytes());
        tags.put(b" ");
    }
    tags.put(&[0]);
    tags.end();
    tags.begin(LOAD_BASE);
    tags.put(&(place as u32).to_le_bytes());
    tags.end();
    let (mut rest, mut own_module) = (&bytes[8..], true);
    while let Some((kind, len)) = double(rest, 0).zip(double(rest, 4)).filter(|(kind, _)| *kind != END) {
        let body = &rest[8..len as usize];
        rest = rest.get((len as usize).next_multiple_of(8)..).unwrap_or(&[]);
        match kind {
            COMMAND_LINE | LOAD_BASE | ELF_SECTIONS => {}
            MODULE if mem::take(&mut own_module) => {}
            MEMORY_MAP => {
                tags.begin(MEMORY_MAP);
                tags.put(&body[..8]);
                assert_eq!(double(body, 0), Some(AREA as u32), "entries of the memory map have another size");
                body[8..].chunks_exact(AREA).for_each(|area| tags.areas(area, own));
                tags.end();
            }
            _ => {
                tags.begin(kind);
                tags.put(body);
                tags.end();
            }
        }
    }
    tags.begin(END);
    tags.end();
}

/// 32 bits. `None`: they are not all there.
fn double(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// 64 bits of a structure that has them.
fn quad(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

/// Writes tags.
struct Writer<'a> {
    buffer: &'a mut [u8; MOST],
    /// Where the next byte goes. Between tags it is a multiple of 8.
    at: usize,
    /// Where the tag begins.
    tag: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.buffer[self.at..][..bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    /// Begins a tag.
    fn begin(&mut self, kind: u32) {
        self.tag = self.at;
        self.put(&kind.to_le_bytes());
        self.put(&[0; 4]);
    }

    /// Ends it: its length is known.
    fn end(&mut self) {
        let len = (self.at - self.tag) as u32;
        self.buffer[self.tag + 4..][..4].copy_from_slice(&len.to_le_bytes());
        self.at = self.at.next_multiple_of(8);
    }

    /// Writes an entry of the memory map. What of it is `own` becomes an entry of its own, which is reserved.
    fn areas(&mut self, area: &[u8], own: (u64, u64)) {
        let (start, kind) = (quad(area, 0), double(area, 16));
        let end = start + quad(area, 8);
        let (from, to) = (own.0.clamp(start, end), own.1.clamp(start, end));
        for (start, end, kind) in [(start, from, kind), (from, to, Some(RESERVED)), (to, end, kind)] {
            if start < end {
                self.put(&start.to_le_bytes());
                self.put(&(end - start).to_le_bytes());
                self.put(&kind.unwrap_or(RESERVED).to_le_bytes());
                self.put(&[0; 4]);
            }
        }
    }
}

/// An ELF-64 file (System V gABI, chapters 4 and 5).
struct Image<'a>(&'a [u8]);

/// A part that is loaded.
struct Segment<'a> {
    /// Its address in the file.
    at: u64,
    /// Its bytes in memory. What `content` lacks is zero.
    bytes: u64,
    content: &'a [u8],
}

impl<'a> Image<'a> {
    fn entry(&self) -> u64 {
        quad(self.0, 24)
    }

    fn segments(&self) -> impl Iterator<Item = Segment<'a>> {
        const LOAD: u32 = 1;
        let (file, table) = (self.0, quad(self.0, 32) as usize);
        let count = u16::from_le_bytes([file[56], file[57]]);
        let headers = file[table..].chunks_exact(56).take(count.into());
        headers.filter(|header| double(header, 0) == Some(LOAD)).map(|header| Segment {
            at: quad(header, 16),
            bytes: quad(header, 40),
            content: &file[quad(header, 8) as usize..][..quad(header, 32) as usize],
        })
    }
}
