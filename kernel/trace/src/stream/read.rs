//! Reads blocks from any bytes. Nothing of them is trusted: a damaged block is skipped to the next magic number.

use core::str;

use super::{
    BLOCK_BYTES, CAPTURES, CHUNK, CHUNK_BYTES, Clock, HEADER, HEADER_BYTES, KERNEL, KernelAddresses, MAGIC,
    MAX_CONTENT, NAME_BYTES, NOTHING, SCOPE, Scope, Table, VERSION, check,
};
use crate::capture::HEAD_BYTES;
use crate::record::RECORD_BYTES;
use crate::{Captured, Record};

/// The next part of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// A good block, and the number of bytes that it has.
    Block(Block<'a>, usize),
    /// So many bytes that are no good block, at least one. Skip them.
    Damaged(usize),
    /// The bytes end within what may be a block, or there are none. Add more and try again. A block is never longer than
    /// [`BLOCK_BYTES`] plus [`MAX_CONTENT`].
    Incomplete,
}

/// A block whose check is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block<'a> {
    /// Names and clock.
    Header(Header<'a>),
    /// Records of a core.
    Chunk(Chunk<'a>),
    /// Captured frames of a core.
    Captures(Captures<'a>),
    /// Addresses in a guest's kernel.
    Kernel(KernelAddresses),
    /// What the chunks after it leave out on purpose.
    Scope(Scope),
    /// A block that this version does not know, or a header of another version.
    Unknown {
        /// What it is.
        what: u8,
        /// Its content.
        content: &'a [u8],
    },
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// The time.
    pub clock: Clock,
    names: &'a [u8],
}

/// A name of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name<'a> {
    /// Number of the [`Table`]. A newer writer may have others.
    pub table: u8,
    /// Its number in the table.
    pub number: u32,
    /// What it belongs to: see [`Table`].
    pub belongs_to: Option<u32>,
    /// The name. It may be empty or have control characters.
    pub name: &'a str,
}

/// A chunk: records of one core that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// The core.
    pub core: u32,
    /// Number of the first record, or of the next one if there is none.
    pub first: u64,
    /// Records of this core lost since its chunk before.
    pub lost: u64,
    records: &'a [u8],
}

/// Captured frames of one core that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Captures<'a> {
    /// The core.
    pub core: u32,
    /// Number of the first frame, or of the next one if there is none.
    pub first: u64,
    /// Captured frames of this core lost since its captures before.
    pub lost: u64,
    count: usize,
    frames: &'a [u8],
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

impl<'a> Header<'a> {
    fn new(content: &'a [u8]) -> Option<Self> {
        let version = content.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))?;
        if version != VERSION {
            return None;
        }
        let clock = Clock { tsc_khz: u64_at(content, 8)?, wall: u64_at(content, 16)?, tsc: u64_at(content, 24)? };
        Some(Self { clock, names: content.get(HEADER_BYTES..)? })
    }

    /// Its names, in the order of the header. It ends at one that is cut off, or is not UTF-8.
    pub fn names(&self) -> impl Iterator<Item = Name<'a>> + Clone + use<'a> {
        let mut rest = self.names;
        core::iter::from_fn(move || {
            let (&table, &len) = (rest.first()?, rest.get(1)?);
            let (number, parent) = (u32_at(rest, 4)?, u32_at(rest, 8)?);
            let end = NAME_BYTES.saturating_add(usize::from(len));
            let name = str::from_utf8(rest.get(NAME_BYTES..end)?).ok()?;
            rest = rest.get(end..)?;
            Some(Name { table, number, belongs_to: (parent != NOTHING).then_some(parent), name })
        })
    }

    /// The name with this number.
    #[must_use]
    pub fn name(&self, table: Table, number: u32) -> Option<Name<'a>> {
        self.names().find(|name| name.table == table as u8 && name.number == number)
    }
}

impl<'a> Chunk<'a> {
    fn new(content: &'a [u8]) -> Option<Self> {
        let (core, count) = (u32_at(content, 0)?, u32_at(content, 4)?);
        let (first, lost) = (u64_at(content, 8)?, u64_at(content, 16)?);
        let records = content.get(CHUNK_BYTES..)?;
        let bytes = usize::try_from(count).ok()?.checked_mul(RECORD_BYTES)?;
        (records.len() == bytes).then_some(Self { core, first, lost, records })
    }

    /// Its records, in the order in which the core wrote them.
    pub fn records(&self) -> impl ExactSizeIterator<Item = Record> + DoubleEndedIterator + Clone + use<'a> {
        self.records.as_chunks().0.iter().map(Record::from_bytes)
    }

    /// Number of its records.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.records.len() / RECORD_BYTES
    }
}

impl<'a> Captures<'a> {
    fn new(content: &'a [u8]) -> Option<Self> {
        let (core, count) = (u32_at(content, 0)?, usize::try_from(u32_at(content, 4)?).ok()?);
        let (first, lost) = (u64_at(content, 8)?, u64_at(content, 16)?);
        let frames = content.get(CHUNK_BYTES..)?;
        if count > frames.len() / HEAD_BYTES {
            return None;
        }
        let captures = Self { core, first, lost, count, frames };
        let bytes = captures.frames().map(|frame| frame.stored()).sum::<usize>();
        (captures.frames().count() == count && bytes == frames.len()).then_some(captures)
    }

    /// Its frames, in the order in which the core wrote them.
    pub fn frames(&self) -> impl Iterator<Item = Captured> + Clone + use<'a> {
        let mut rest = self.frames;
        core::iter::from_fn(move || {
            let (frame, len) = Captured::read(rest)?;
            rest = rest.get(len..)?;
            Some(frame)
        })
    }

    /// Number of its frames.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }
}

/// Reads what is at the beginning of these bytes.
#[must_use]
pub fn step(bytes: &[u8]) -> Step<'_> {
    if let Some(block) = whole(bytes) {
        return block;
    }
    // The next magic number, or the part of one at the end.
    let next = (1..bytes.len()).find(|&at| {
        let rest = bytes.get(at..).unwrap_or_default();
        let len = rest.len().min(MAGIC.len());
        rest.get(..len) == MAGIC.get(..len)
    });
    Step::Damaged(next.unwrap_or(bytes.len()))
}

/// Reads the block at the beginning of these bytes. `None`: there is none.
fn whole(bytes: &[u8]) -> Option<Step<'_>> {
    let magic = bytes.len().min(MAGIC.len());
    if bytes.get(..magic) != MAGIC.get(..magic) {
        return None;
    }
    let Some((head, rest)) = bytes.split_at_checked(BLOCK_BYTES) else { return Some(Step::Incomplete) };
    let (what, len) = (*head.get(4)?, usize::try_from(u32_at(head, 8)?).ok()?);
    if len > MAX_CONTENT || head.get(5..8)? != [0; 3] {
        return None;
    }
    let Some(content) = rest.get(..len) else { return Some(Step::Incomplete) };
    if u32_at(head, 12)? != check(head.get(4..12)?, content) {
        return None;
    }
    let unknown = Block::Unknown { what, content };
    let block = match what {
        HEADER => Header::new(content).map_or(unknown, Block::Header),
        CHUNK => Chunk::new(content).map_or(unknown, Block::Chunk),
        CAPTURES => Captures::new(content).map_or(unknown, Block::Captures),
        KERNEL => KernelAddresses::of_content(content).map_or(unknown, Block::Kernel),
        SCOPE => Scope::of_content(content).map_or(unknown, Block::Scope),
        _ => unknown,
    };
    Some(Step::Block(block, BLOCK_BYTES.saturating_add(len)))
}

/// Reads a whole trace: its blocks in their order, and for each run of bytes that are no good block, how many they are.
/// A block that is cut off at the end is such bytes too.
pub fn blocks(bytes: &[u8]) -> impl Iterator<Item = Result<Block<'_>, usize>> + Clone {
    let mut rest = bytes;
    core::iter::from_fn(move || {
        let mut damaged = 0_usize;
        loop {
            let skipped = match step(rest) {
                Step::Block(..) if damaged > 0 => return Some(Err(damaged)),
                Step::Block(block, len) => {
                    rest = rest.get(len..).unwrap_or_default();
                    return Some(Ok(block));
                }
                Step::Damaged(len) => len,
                Step::Incomplete if rest.is_empty() => return (damaged > 0).then_some(Err(damaged)),
                // The rest of the bytes may hold a block: the length that was read may be wrong.
                Step::Incomplete => 1,
            };
            rest = rest.get(skipped..).unwrap_or_default();
            damaged = damaged.saturating_add(skipped);
        }
    })
}
