//! Descriptors and descriptor chains (virtio 1.3 2.7.5, 2.8.5 to 2.8.7). Walks a chain from its head and returns a
//! checked list of buffers.
//!
//! Each descriptor is read once, in two 64-bit loads. The checks use that copy. What the guest writes there afterwards
//! has no effect.

use memory::GuestMemory;
use memory::span::Piece;

use crate::config::MAX_QUEUE_SIZE;
use crate::fault::Fault;

/// Bytes of a descriptor.
pub(crate) const DESCRIPTOR_BYTES: u64 = 16;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// A descriptor as it was read.
#[derive(Clone, Copy)]
pub(crate) struct Descriptor {
    pub addr: u64,
    pub len: u32,
    pub flags: u16,
    /// The index of the next descriptor.
    next: u16,
}

impl Descriptor {
    fn read(memory: &GuestMemory, table: u64, index: u32, outside: Fault) -> Result<Self, Fault> {
        let at = table.wrapping_add(u64::from(index) * DESCRIPTOR_BYTES);
        let addr = memory.read_u64(at).map_err(|_| outside)?;
        let rest = memory.read_u64(at.wrapping_add(8)).map_err(|_| outside)?;
        Ok(Self { addr, len: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 })
    }

    /// Reads a descriptor of a packed ring, and its buffer id (2.8.13).
    fn read_packed(memory: &GuestMemory, table: u64, index: u32, outside: Fault) -> Result<(Self, u16), Fault> {
        let at = table.wrapping_add(u64::from(index) * DESCRIPTOR_BYTES);
        let addr = memory.read_u64(at).map_err(|_| outside)?;
        let rest = memory.read_u64(at.wrapping_add(8)).map_err(|_| outside)?;
        Ok(Self::of_packed(addr, rest))
    }

    /// Decodes the two halves of a packed ring's descriptor. Returns the descriptor and its buffer id.
    pub(crate) const fn of_packed(addr: u64, rest: u64) -> (Self, u16) {
        (Self { addr, len: rest as u32, flags: (rest >> 48) as u16, next: 0 }, (rest >> 32) as u16)
    }
}

/// A descriptor of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainDescriptor {
    /// Guest-physical address of its buffer.
    pub addr: u64,
    /// Bytes of its buffer.
    pub len: u32,
    /// WRITE and INDIRECT as the driver set them. Others may be set too.
    pub(crate) flags: u16,
    /// It is the last one.
    pub last: bool,
}

impl ChainDescriptor {
    /// Whether it names a buffer that the device reads.
    #[must_use]
    #[inline(always)]
    pub const fn is_readable(&self) -> bool {
        self.flags & (WRITE | INDIRECT) == 0
    }

    /// Whether it names a buffer that the device writes.
    #[must_use]
    #[inline(always)]
    pub const fn is_writable(&self) -> bool {
        self.flags & (WRITE | INDIRECT) == WRITE
    }
}

/// The limits of a queue's chains.
#[derive(Clone, Copy, Debug)]
pub struct ChainLimits {
    /// Most descriptors of a chain.
    pub descriptors: u16,
    /// A chain may be in an indirect table.
    pub indirect: bool,
}

impl ChainLimits {
    /// Whether the driver may use an indirect table of so many descriptors.
    #[must_use]
    pub const fn allows_table(&self, descriptors: u16) -> bool {
        self.indirect && descriptors <= self.descriptors
    }
}

/// A buffer that was checked to be in the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Guest-physical address.
    pub gpa: u64,
    /// Length in bytes, not zero.
    pub len: u32,
}

const SEGMENTS: usize = MAX_QUEUE_SIZE as usize + 256;

/// Buffers of the chains taken from a queue, in order. There is room for 256 buffers and one chain of the greatest
/// length.
#[derive(Debug, Default)]
pub struct Segments(heapless::Vec<Segment, SEGMENTS>);

impl Segments {
    /// An empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self(heapless::Vec::new())
    }

    /// Removes all buffers.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Appends a buffer that was checked to be in the guest's memory. Returns false if the list is full.
    #[inline]
    pub fn push(&mut self, buffer: Segment) -> bool {
        self.0.push(buffer).is_ok()
    }

    /// All buffers.
    #[must_use]
    pub fn all(&self) -> &[Segment] {
        &self.0
    }

    /// Appends a chain that was taken into another list, where it had these `buffers`. Returns it as a chain of this list,
    /// or `None` if there is no room.
    pub fn append(&mut self, chain: &Chain, buffers: &[Segment]) -> Option<Chain> {
        let first = self.0.len();
        self.0.extend_from_slice(buffers).ok()?;
        let writable = first.saturating_add(chain.writable.saturating_sub(chain.first));
        Some(Chain { first, writable, end: self.0.len(), ..*chain })
    }
}

/// A chain in [`Segments`]. Its device-readable buffers come first.
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
    /// All its buffers.
    #[must_use]
    pub fn all<'s>(&self, segments: &'s Segments) -> &'s [Segment] {
        segments.0.get(self.first..self.end).unwrap_or(&[])
    }

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

    /// The bytes that the device may read.
    #[must_use]
    pub fn readable_span<'s>(&self, segments: &'s Segments) -> Span<'s> {
        Span::new(self.readable(segments), self.readable_bytes)
    }

    /// The bytes that the device may write.
    #[must_use]
    pub fn writable_span<'s>(&self, segments: &'s Segments) -> Span<'s> {
        Span::new(self.writable(segments), self.writable_bytes)
    }
}

/// A run of bytes of a chain's buffers. It may begin and end within a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Span<'s> {
    buffers: &'s [Segment],
    /// Bytes of the first buffer that do not belong to the run.
    skipped: u32,
    len: u32,
    /// The same bytes in the guest's memory, if they were found there as one piece.
    piece: Option<Piece<'s>>,
}

impl<'s> Span<'s> {
    /// All bytes of `buffers`, whose lengths add up to `len`.
    #[must_use]
    pub const fn new(buffers: &'s [Segment], len: u32) -> Self {
        Self { buffers, skipped: 0, len, piece: None }
    }

    /// Its length in bytes.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether its length is 0.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Splits it after its first `at` bytes. Returns `None` if it is shorter.
    #[must_use]
    pub fn split_at(self, at: u32) -> Option<(Self, Self)> {
        let rest = self.len.checked_sub(at)?;
        let (mut buffers, mut skipped) = (self.buffers, u64::from(self.skipped).saturating_add(at.into()));
        while let [first, more @ ..] = buffers
            && let Some(beyond) = skipped.checked_sub(first.len.into())
        {
            (buffers, skipped) = (more, beyond);
        }
        let begin = Self { len: at, piece: None, ..self };
        Some((begin, Self { buffers, skipped: skipped as u32, len: rest, piece: None }))
    }

    /// All bytes of one buffer. `piece` are these bytes as they were found in the guest's memory.
    #[must_use]
    #[inline(always)]
    pub const fn of_one(buffer: &'s [Segment; 1], piece: Piece<'s>) -> Self {
        Self { buffers: buffer, skipped: 0, len: piece.len(), piece: Some(piece) }
    }

    /// `len` bytes of `buffers`, which begin behind the first `skipped` ones of the first buffer.
    #[must_use]
    #[inline]
    pub const fn within(buffers: &'s [Segment], (skipped, len): (u32, u32)) -> Self {
        Self { buffers, skipped, len, piece: None }
    }

    /// What [`Span::within`] makes the same run of.
    #[must_use]
    #[inline(always)]
    pub const fn place(self) -> (&'s [Segment], (u32, u32)) {
        (self.buffers, (self.skipped, self.len))
    }

    /// Its bytes in the guest's memory, if they are known to be one piece.
    #[must_use]
    #[inline(always)]
    pub const fn piece(&self) -> Option<Piece<'s>> {
        self.piece
    }

    /// Its buffers. The first and the last are cut to the run.
    pub fn segments(self) -> impl Iterator<Item = Segment> + 's {
        let (mut skipped, mut left) = (self.skipped, self.len);
        self.buffers.iter().map_while(move |buffer| {
            let len = buffer.len.saturating_sub(skipped).min(left);
            let segment = Segment { gpa: buffer.gpa.wrapping_add(skipped.into()), len };
            (skipped, left) = (0, left.saturating_sub(len));
            (len != 0).then_some(segment)
        })
    }

    /// Copies bytes to the buffers in their order, as many as both have. Returns how many.
    ///
    /// # Errors
    /// A buffer is not in the guest's memory. This does not happen: buffers were checked when the chain was walked.
    pub fn write(self, memory: &GuestMemory, bytes: &[u8]) -> Result<u32, Fault> {
        let mut written: usize = 0;
        for segment in self.segments() {
            let rest = bytes.get(written..).unwrap_or(&[]);
            let now = rest.get(..segment.len as usize).unwrap_or(rest);
            memory.write(segment.gpa, now).map_err(|_| Fault::Buffer)?;
            written = written.saturating_add(now.len());
            if written == bytes.len() {
                break;
            }
        }
        Ok(written as u32)
    }

    /// Fills `bytes` from the buffers in their order, as far as both go. Returns how many bytes it copied.
    ///
    /// # Errors
    /// As for [`Span::write`].
    pub fn read(self, memory: &GuestMemory, bytes: &mut [u8]) -> Result<u32, Fault> {
        let (mut read, all) = (0_usize, bytes.len());
        for segment in self.segments() {
            let end = all.min(read.saturating_add(segment.len as usize));
            memory.read(segment.gpa, bytes.get_mut(read..end).unwrap_or(&mut [])).map_err(|_| Fault::Buffer)?;
            read = end;
            if read == all {
                break;
            }
        }
        Ok(read as u32)
    }
}

/// Where a chain's descriptors are.
pub(crate) struct Table {
    /// Guest-physical address of the descriptor table.
    pub desc: u64,
    /// Descriptors in it.
    pub size: u16,
    /// Most descriptors of a chain, at most `size`.
    pub longest: u16,
    /// INDIRECT_DESC was negotiated.
    pub indirect: bool,
}

impl Table {
    /// Whether the driver may use an indirect table of so many descriptors.
    pub(crate) const fn allows_tables_of(&self, descriptors: u16) -> bool {
        self.indirect && descriptors <= self.longest
    }
}

/// A walk in progress: the buffers found so far, and the limits on what may follow.
struct Walk<'w> {
    memory: &'w GuestMemory,
    segments: &'w mut Segments,
    chain: Chain,
    /// Descriptors that may still follow. A chain has at most [`Table::longest`] descriptors, those of an indirect table
    /// included. So a walk ends even if the guest links descriptors into a loop.
    left: u16,
    total: u32,
}

impl<'w> Walk<'w> {
    fn new(memory: &'w GuestMemory, table: &Table, segments: &'w mut Segments) -> Self {
        let first = segments.0.len();
        let chain = Chain { first, writable: first, end: first, readable_bytes: 0, writable_bytes: 0 };
        Self { memory, segments, chain, left: table.longest, total: 0 }
    }

    /// Checks a descriptor's buffer and appends it.
    fn buffer(&mut self, d: &Descriptor) -> Result<(), Fault> {
        self.left = self.left.checked_sub(1).ok_or(Fault::ChainTooLong)?;
        if d.len == 0 {
            return Err(Fault::ZeroLength);
        }
        self.total = self.total.checked_add(d.len).ok_or(Fault::LengthWraps)?;
        self.memory.translate(d.addr, u64::from(d.len)).map_err(|_| Fault::Buffer)?;
        // Nothing below wraps: both counts of bytes together are `total`, and the list has room for every index.
        let chain = &mut self.chain;
        if d.flags & WRITE != 0 {
            chain.writable_bytes = chain.writable_bytes.wrapping_add(d.len);
        } else if chain.writable_bytes != 0 {
            return Err(Fault::Order);
        } else {
            chain.readable_bytes = chain.readable_bytes.wrapping_add(d.len);
            chain.writable = chain.writable.wrapping_add(1);
        }
        // The caller has checked for room. A full list would be our own bug. It costs only this guest its device.
        self.segments.0.push(Segment { gpa: d.addr, len: d.len }).map_err(|_| Fault::ChainTooLong)?;
        chain.end = chain.end.wrapping_add(1);
        Ok(())
    }

    /// Checks the indirect table that descriptor `d` names. Returns the number of its descriptors.
    fn table(&self, d: &Descriptor, table: &Table) -> Result<u32, Fault> {
        if !table.indirect {
            return Err(Fault::IndirectNotNegotiated);
        }
        if d.flags & NEXT != 0 {
            return Err(Fault::IndirectNext);
        }
        if d.len == 0 || !u64::from(d.len).is_multiple_of(DESCRIPTOR_BYTES) {
            return Err(Fault::IndirectLength);
        }
        self.memory.translate(d.addr, u64::from(d.len)).map_err(|_| Fault::IndirectTable)?;
        const BYTES: u32 = DESCRIPTOR_BYTES as u32;
        Ok(d.len / BYTES)
    }

    /// Ends the walk. Returns the chain, or removes its buffers if the walk failed.
    fn end<T>(self, walked: Result<T, Fault>) -> Result<(Chain, T), Fault> {
        if walked.is_err() {
            self.segments.0.truncate(self.chain.first);
        }
        walked.map(|value| (self.chain, value))
    }
}

/// Walks the chain at `head` of a split ring's table and appends its buffers to `segments`.
pub(crate) fn walk(memory: &GuestMemory, table: &Table, head: u16, segments: &mut Segments) -> Result<Chain, Fault> {
    let mut walk = Walk::new(memory, table, segments);
    let walked = follow(&mut walk, table, head);
    walk.end(walked).map(|(chain, ())| chain)
}

fn follow(walk: &mut Walk<'_>, table: &Table, head: u16) -> Result<(), Fault> {
    let (mut base, mut entries, mut in_table, mut outside) =
        (table.desc, u32::from(table.size), false, Fault::RingAddress);
    let mut index = u32::from(head);
    loop {
        if index >= entries {
            return Err(Fault::Next);
        }
        let d = Descriptor::read(walk.memory, base, index, outside)?;
        if d.flags & INDIRECT != 0 {
            if in_table {
                return Err(Fault::IndirectNested);
            }
            entries = walk.table(&d, table)?;
            (base, in_table, outside) = (d.addr, true, Fault::IndirectTable);
            index = 0;
            continue;
        }
        walk.buffer(&d)?;
        if d.flags & NEXT == 0 {
            return Ok(());
        }
        index = u32::from(d.next);
    }
}

/// The id and the size of a chain in a packed ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// The buffer id. It is that of the last descriptor.
    pub id: u16,
    /// Descriptors of the ring that it occupies.
    pub descriptors: u16,
}

/// Walks the chain that starts with `first` at index `slot` of a packed ring, and appends its buffers to `segments`.
/// The chain may occupy up to `most` descriptors of the ring.
pub(crate) fn walk_packed(
    memory: &GuestMemory,
    table: &Table,
    slot: u16,
    first: (Descriptor, u16),
    most: u16,
    segments: &mut Segments,
) -> Result<(Chain, Named), Fault> {
    let mut walk = Walk::new(memory, table, segments);
    let walked = follow_packed(&mut walk, table, slot, first, most);
    walk.end(walked)
}

fn follow_packed(
    walk: &mut Walk<'_>,
    table: &Table,
    mut slot: u16,
    (mut d, mut id): (Descriptor, u16),
    most: u16,
) -> Result<Named, Fault> {
    let mut descriptors: u16 = 1;
    loop {
        if d.flags & INDIRECT != 0 {
            // The whole table is the chain. NEXT has no meaning in it (2.8.7).
            for index in 0..walk.table(&d, table)? {
                let (inner, _) = Descriptor::read_packed(walk.memory, d.addr, index, Fault::IndirectTable)?;
                if inner.flags & INDIRECT != 0 {
                    return Err(Fault::IndirectNested);
                }
                walk.buffer(&inner)?;
            }
        } else {
            walk.buffer(&d)?;
        }
        if d.flags & NEXT == 0 {
            return Ok(Named { id, descriptors });
        }
        if descriptors >= most {
            return Err(Fault::ChainTooLong);
        }
        descriptors = descriptors.wrapping_add(1);
        let next = slot.wrapping_add(1);
        slot = if next == table.size { 0 } else { next };
        (d, id) = Descriptor::read_packed(walk.memory, table.desc, u32::from(slot), Fault::RingAddress)?;
    }
}
