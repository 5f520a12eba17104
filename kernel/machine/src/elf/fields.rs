//! The header and the program headers of an ELF file, of both classes (gABI 4.1, "ELF Header", "Program Header").

use super::error::Error;

/// The first four bytes of an ELF file.
const MAGIC: &[u8] = b"\x7fELF";

/// Most program headers of a file. Linux has 5.
const MAX_HEADERS: u64 = 64;
const TYPE_EXEC: u64 = 2;
const MACHINE_386: u64 = 3;
const MACHINE_X86_64: u64 = 62;
pub(super) const LOAD: u64 = 1;
pub(super) const NOTE: u64 = 4;

/// A segment to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Offset of its bytes in the file.
    pub offset: u64,
    /// Number of its bytes in the file. They are within the file.
    pub file_size: u64,
    /// Physical address of its first byte.
    pub address: u64,
    /// Bytes in memory, at least 1 and at least `file_size`. Those that are not in the file are zero. The end does not
    /// wrap.
    pub size: u64,
    /// Offset of its program header in the file, for errors.
    pub header: u64,
}

/// Whether a file is an ELF file, by its first bytes.
#[must_use]
pub fn is_elf(file: &[u8]) -> bool {
    file.starts_with(MAGIC)
}

/// The places of the fields, which differ between the classes.
struct Layout {
    /// Bytes of an address or offset.
    word: usize,
    /// Bytes of the ELF header.
    header: usize,
    /// e_phoff, e_phentsize, e_phnum.
    phoff: usize,
    phentsize: usize,
    phnum: usize,
    /// Bytes of a program header, and the places of p_offset, p_paddr, p_filesz, p_memsz and p_align in it.
    entry: usize,
    offset: usize,
    paddr: usize,
    filesz: usize,
    memsz: usize,
    align: usize,
}

const ELF32: Layout = Layout {
    word: 4,
    header: 52,
    phoff: 28,
    phentsize: 42,
    phnum: 44,
    entry: 32,
    offset: 4,
    paddr: 12,
    filesz: 16,
    memsz: 20,
    align: 28,
};

const ELF64: Layout = Layout {
    word: 8,
    header: 64,
    phoff: 32,
    phentsize: 54,
    phnum: 56,
    entry: 56,
    offset: 8,
    paddr: 24,
    filesz: 32,
    memsz: 40,
    align: 48,
};

/// A file whose ELF header is checked.
pub(super) struct Fields<'a> {
    file: &'a [u8],
    layout: &'static Layout,
}

/// The place of the program headers. All of them are within the file.
pub(super) struct Headers {
    start: u64,
    /// Their number, 1 to [`MAX_HEADERS`].
    pub(super) count: u64,
}

/// A program header. Its bytes are within the file.
pub(super) struct ProgramHeader {
    /// p_type.
    pub(super) kind: u64,
    pub(super) offset: u64,
    pub(super) file_size: u64,
    address: u64,
    /// Bytes in memory.
    pub(super) size: u64,
    pub(super) align: u64,
    /// Its own offset in the file.
    at: u64,
}

impl Segment {
    /// Physical address after its last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }
}

impl ProgramHeader {
    pub(super) fn segment(&self) -> Segment {
        let Self { offset, file_size, address, size, at, .. } = *self;
        Segment { offset, file_size, address, size, header: at }
    }
}

impl<'a> Fields<'a> {
    /// Checks the ELF header.
    pub(super) fn new(file: &'a [u8]) -> Result<Self, Error> {
        let at_first = Self { file, layout: &ELF32 };
        at_first.reaches(ELF32.header as u64, "the ELF header")?;
        let magic = at_first.number(0, 4);
        expect("the magic number", 0, magic, file.starts_with(MAGIC), "0x464c457f (\\x7fELF)")?;
        let class = at_first.number(4, 1);
        let layout = match class {
            1 => &ELF32,
            2 => &ELF64,
            _ => return Err(field("EI_CLASS", 4, class, "1 (ELF32) or 2 (ELF64)")),
        };
        let fields = Self { file, layout };
        fields.reaches(layout.header as u64, "the ELF header")?;
        let data = fields.number(5, 1);
        expect("EI_DATA", 5, data, data == 1, "1 (little-endian)")?;
        let version = fields.number(6, 1);
        expect("EI_VERSION", 6, version, version == 1, "1")?;
        let kind = fields.number(16, 2);
        expect("e_type", 16, kind, kind == TYPE_EXEC, "2 (an executable file)")?;
        let machine = fields.number(18, 2);
        let x86 = [MACHINE_386, MACHINE_X86_64].contains(&machine);
        expect("e_machine", 18, machine, x86, "3 (EM_386) or 62 (EM_X86_64)")?;
        Ok(fields)
    }

    /// Finds the program headers.
    pub(super) fn program_headers(&self) -> Result<Headers, Error> {
        let Layout { word, phoff, phentsize, phnum, entry, .. } = *self.layout;
        let size = self.number(phentsize, 2);
        let right = size == entry as u64;
        let expected = if word == 4 { "32, the size of an ELF32 program header" } else { "56, as ELF64 has it" };
        expect("e_phentsize", phentsize as u64, size, right, expected)?;
        let count = self.number(phnum, 2);
        expect("e_phnum", phnum as u64, count, (1..=MAX_HEADERS).contains(&count), "1 to 64 program headers")?;
        let start = self.number(phoff, word);
        let Some(end) = start.checked_add(count.saturating_mul(size)) else {
            return Err(field("e_phoff", phoff as u64, start, "an offset in the file"));
        };
        self.reaches(end, "the last program header")?;
        Ok(Headers { start, count })
    }

    /// Reads program header `number`, which is below the count.
    pub(super) fn program_header(&self, headers: &Headers, number: u64) -> Result<ProgramHeader, Error> {
        let Layout { word, entry, offset, paddr, filesz, memsz, align, .. } = *self.layout;
        let at = headers.start.saturating_add(number.saturating_mul(entry as u64));
        let of = |place: usize| at.saturating_add(place as u64);
        let read = |place: usize| self.number(of(place) as usize, word);
        let header = ProgramHeader {
            kind: self.number(at as usize, 4),
            offset: read(offset),
            file_size: read(filesz),
            address: read(paddr),
            size: read(memsz),
            align: read(align),
            at,
        };
        // Other kinds are not used, so their fields do not matter.
        if ![LOAD, NOTE].contains(&header.kind) {
            return Ok(ProgramHeader { offset: 0, file_size: 0, ..header });
        }
        let Some(end) = header.offset.checked_add(header.file_size) else {
            return Err(field("p_offset", of(offset), header.offset, "an offset in the file"));
        };
        self.reaches(end, "a segment")?;
        if header.kind == LOAD {
            let enough = header.file_size <= header.size;
            expect("p_memsz", of(memsz), header.size, enough, "at least p_filesz")?;
            let wraps = header.address.checked_add(header.size).is_none();
            expect("p_paddr", of(paddr), header.address, !wraps, "an end below 2^64")?;
        }
        Ok(header)
    }

    /// Returns bytes of the file. The caller has checked that they are there.
    pub(super) fn bytes(&self, offset: u64, len: u64) -> &'a [u8] {
        self.file.get(offset as usize..).and_then(|rest| rest.get(..len as usize)).unwrap_or_default()
    }

    fn reaches(&self, needed: u64, what: &'static str) -> Result<(), Error> {
        let len = self.file.len() as u64;
        if len >= needed { Ok(()) } else { Err(Error::TooShort { len, needed, what }) }
    }

    /// Reads a little-endian number of up to 8 bytes. It is zero beyond the end, but `reaches` has checked that.
    fn number(&self, offset: usize, size: usize) -> u64 {
        let bytes = self.file.get(offset..).and_then(|rest| rest.get(..size)).unwrap_or_default();
        bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }
}

fn field(name: &'static str, offset: u64, value: u64, expected: &'static str) -> Error {
    Error::Field { name, offset, value, expected }
}

fn expect(name: &'static str, offset: u64, value: u64, good: bool, expected: &'static str) -> Result<(), Error> {
    if good { Ok(()) } else { Err(field(name, offset, value, expected)) }
}
