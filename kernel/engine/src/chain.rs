//! Descriptors and descriptor chains (virtio 1.3 2.7.5): the walk from a head to a checked list of buffers in the
//! host's own memory.
//!
//! Each descriptor is read once, in two 64-bit loads, and checked in that copy; what the guest writes there afterwards
//! is never looked at.

use memory::GuestMemory;

use crate::fault::Fault;
use crate::shared::MAX_QUEUE_SIZE;

/// Bytes of a descriptor.
pub(crate) const DESCRIPTOR_BYTES: u64 = 16;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

struct Descriptor {
    addr: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    fn read(memory: &GuestMemory, table: u64, index: u32, outside: Fault) -> Result<Self, Fault> {
        let at = table.wrapping_add(u64::from(index) * DESCRIPTOR_BYTES);
        let addr = memory.read_u64(at).map_err(|_| outside)?;
        let rest = memory.read_u64(at.wrapping_add(8)).map_err(|_| outside)?;
        Ok(Self { addr, len: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 })
    }
}

/// A buffer of the guest's, checked to lie within its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Guest-physical address.
    pub gpa: u64,
    /// Length in bytes, not zero.
    pub len: u32,
}

const SEGMENTS: usize = MAX_QUEUE_SIZE as usize + 256;

/// Buffers of the chains taken from a queue, in order. A chain of the greatest length has room behind 256 others.
#[derive(Debug, Default)]
pub struct Segments(heapless::Vec<Segment, SEGMENTS>);

impl Segments {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self(heapless::Vec::new())
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether another chain of any allowed length has room.
    #[must_use]
    pub fn has_room(&self) -> bool {
        SEGMENTS - self.0.len() >= usize::from(MAX_QUEUE_SIZE)
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> &[Segment] {
        &self.0
    }
}

/// A chain in [`Segments`]: its device-readable buffers come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    first: usize,
    writable: usize,
    end: usize,
    /// Bytes the device may read.
    pub readable_bytes: u32,
    /// Bytes the device may write.
    pub writable_bytes: u32,
}

impl Chain {
    /// The device-readable buffers.
    #[must_use]
    pub fn readable<'s>(&self, segments: &'s Segments) -> &'s [Segment] {
        segments.0.get(self.first..self.writable).unwrap_or(&[])
    }

    /// The device-writable buffers.
    #[must_use]
    pub fn writable<'s>(&self, segments: &'s Segments) -> &'s [Segment] {
        segments.0.get(self.writable..self.end).unwrap_or(&[])
    }
}

/// Where a chain's descriptors are.
pub(crate) struct Table {
    /// Guest-physical address of the descriptor table.
    pub desc: u64,
    /// Descriptors in it.
    pub size: u16,
    /// INDIRECT_DESC was negotiated.
    pub indirect: bool,
}

/// Walks the chain at `head` and appends its buffers to `segments`.
pub(crate) fn walk(memory: &GuestMemory, table: &Table, head: u16, segments: &mut Segments) -> Result<Chain, Fault> {
    let first = segments.0.len();
    let mut chain = Chain { first, writable: first, end: first, readable_bytes: 0, writable_bytes: 0 };
    match follow(memory, table, head, segments, &mut chain) {
        Ok(()) => Ok(chain),
        Err(fault) => {
            segments.0.truncate(first);
            Err(fault)
        }
    }
}

fn follow(
    memory: &GuestMemory,
    table: &Table,
    head: u16,
    segments: &mut Segments,
    chain: &mut Chain,
) -> Result<(), Fault> {
    let (mut base, mut entries, mut in_table, mut outside) =
        (table.desc, u32::from(table.size), false, Fault::RingAddress);
    let mut index = u32::from(head);
    // A chain has no more descriptors than the queue, those of an indirect table included; so the walk ends even if
    // the guest links it into a loop.
    let mut left = table.size;
    let mut total = 0u32;
    loop {
        if index >= entries {
            return Err(Fault::Next);
        }
        let d = Descriptor::read(memory, base, index, outside)?;
        if d.flags & INDIRECT != 0 {
            if !table.indirect {
                return Err(Fault::IndirectNotNegotiated);
            }
            if in_table {
                return Err(Fault::IndirectNested);
            }
            if d.flags & NEXT != 0 {
                return Err(Fault::IndirectNext);
            }
            if d.len == 0 || !u64::from(d.len).is_multiple_of(DESCRIPTOR_BYTES) {
                return Err(Fault::IndirectLength);
            }
            memory.translate(d.addr, u64::from(d.len)).map_err(|_| Fault::IndirectTable)?;
            (base, entries, in_table, outside) = (d.addr, d.len / DESCRIPTOR_BYTES as u32, true, Fault::IndirectTable);
            index = 0;
            continue;
        }
        left = left.checked_sub(1).ok_or(Fault::ChainTooLong)?;
        if d.len == 0 {
            return Err(Fault::ZeroLength);
        }
        total = total.checked_add(d.len).ok_or(Fault::LengthWraps)?;
        memory.translate(d.addr, u64::from(d.len)).map_err(|_| Fault::Buffer)?;
        if d.flags & WRITE != 0 {
            chain.writable_bytes += d.len;
        } else if chain.writable_bytes != 0 {
            return Err(Fault::Order);
        } else {
            chain.readable_bytes += d.len;
            chain.writable += 1;
        }
        // Room was checked before the walk; a full list would be our own mistake, and costs the guest its device only.
        segments.0.push(Segment { gpa: d.addr, len: d.len }).map_err(|_| Fault::ChainTooLong)?;
        chain.end += 1;
        if d.flags & NEXT == 0 {
            return Ok(());
        }
        index = u32::from(d.next);
    }
}
