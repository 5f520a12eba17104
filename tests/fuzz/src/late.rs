//! A storage that keeps requests until it is told to end them, in any order. It checks that the back-end keeps its side of
//! the contract (`block::storage`): requests are within the volume, tags are unique, nobody is cancelled twice.

use std::collections::BTreeMap;

use block::storage::{Geometry, MAX_TAGS, Operation, Request, Status, Storage, Submitted, Tag};
use memory::GuestMemory;
use virtio::chain::Segment;

/// Bytes of its blocks.
pub const BLOCK_BYTES: u32 = 512;

struct Held {
    volume: usize,
    operation: Operation,
    first: u64,
    blocks: u32,
    segments: Vec<Segment>,
    memory: GuestMemory,
    cancelled: bool,
}

/// The storage. Its volumes have the same size.
pub struct Late {
    geometry: Geometry,
    volumes: [Vec<u8>; 2],
    held: BTreeMap<u16, Held>,
    ended: Vec<(Tag, Status)>,
    /// Most requests that it takes at a time.
    pub depth: usize,
    /// A request that is cancelled ends at once.
    pub cancels: bool,
}

impl Late {
    /// Two volumes of zeroes with so many blocks.
    pub fn new(blocks: u64) -> Self {
        let geometry = Geometry {
            block_bytes: BLOCK_BYTES,
            blocks,
            physical_bytes: BLOCK_BYTES,
            read_only: false,
            volatile_cache: true,
            max_discard: blocks as u32,
            discard_bytes: BLOCK_BYTES,
            max_zeroes: blocks as u32,
        };
        let volume = || vec![0; blocks as usize * BLOCK_BYTES as usize];
        let volumes = [volume(), volume()];
        Self { geometry, volumes, held: BTreeMap::new(), ended: Vec::new(), depth: MAX_TAGS, cancels: false }
    }

    /// Requests that it has.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Requests of this volume that it has.
    pub fn held_of(&self, volume: usize) -> usize {
        self.held.values().filter(|held| held.volume == volume).count()
    }

    /// Zeroes a volume. None of its requests may be held.
    pub fn clear(&mut self, volume: usize) {
        assert_eq!(self.held_of(volume), 0);
        self.volumes[volume].fill(0);
    }

    /// Ends one of the requests that it has. One that fails moves nothing.
    pub fn end(&mut self, which: usize, status: Status) {
        self.end_with(which, |_| status);
    }

    /// The same, with a status that depends on the volume.
    pub fn end_with(&mut self, which: usize, status: impl Fn(usize) -> Status) {
        let Some(tag) = self.held.keys().nth(which % self.held.len().max(1)).copied() else { return };
        let status = self.held.get(&tag).map_or(Status::Ok, |held| status(held.volume));
        self.end_tag(tag, status);
    }

    /// Ends all requests of a volume.
    pub fn end_all(&mut self, volume: usize) {
        let tags: Vec<u16> = self.held.iter().filter(|(_, held)| held.volume == volume).map(|(tag, _)| *tag).collect();
        tags.into_iter().for_each(|tag| self.end_tag(tag, Status::Ok));
    }

    fn end_tag(&mut self, tag: u16, status: Status) {
        let Some(held) = self.held.remove(&tag) else { return };
        let block = BLOCK_BYTES as usize;
        let (mut at, all) = (held.first as usize * block, held.blocks as usize * block);
        let volume = &mut self.volumes[held.volume];
        match held.operation {
            _ if status != Status::Ok => {}
            Operation::Discard | Operation::WriteZeroes { .. } => volume[at..at + all].fill(0),
            Operation::Flush => {}
            Operation::Read | Operation::Write { .. } => {
                for segment in held.segments {
                    let part = &mut volume[at..at + segment.len as usize];
                    let moved = if held.operation == Operation::Read {
                        held.memory.write(segment.gpa, part)
                    } else {
                        held.memory.read(segment.gpa, part)
                    };
                    assert!(moved.is_ok(), "a buffer outside of memory: {segment:?}");
                    at += segment.len as usize;
                }
            }
        }
        self.ended.push((Tag(tag), status));
    }
}

impl Storage for Late {
    type Volume = usize;

    fn geometry(&self, _: usize) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, volume: usize, tag: Tag, request: &Request<'_>, _: u64) -> Submitted {
        let &Request { operation, first, blocks, data, memory } = request;
        let bytes: u64 = data.segments().map(|segment| u64::from(segment.len)).sum();
        let (wanted, least) = match operation {
            Operation::Read | Operation::Write { .. } => (u64::from(blocks) * u64::from(BLOCK_BYTES), 1),
            Operation::Flush => (0, 0),
            Operation::Discard | Operation::WriteZeroes { .. } => (0, 1),
        };
        assert!(first + u64::from(blocks) <= self.geometry.blocks, "blocks beyond the end: {first}, {blocks}");
        assert!(bytes == wanted && blocks >= least, "{operation:?} of {blocks} blocks has {bytes} bytes");
        for segment in data.segments() {
            assert!(memory.translate(segment.gpa, segment.len.into()).is_ok(), "outside of memory: {segment:?}");
        }
        assert!(usize::from(tag.0) < MAX_TAGS && !self.ended.iter().any(|(ended, _)| *ended == tag));
        if self.held.len() >= self.depth {
            return Submitted::Busy;
        }
        let (segments, memory) = (data.segments().collect(), memory.clone());
        let held = Held { volume, operation, first, blocks, segments, memory, cancelled: false };
        assert!(self.held.insert(tag.0, held).is_none(), "a tag is used once at a time");
        Submitted::Pending
    }

    fn poll(&mut self, _: u64, ended: &mut impl FnMut(Tag, Status)) {
        self.ended.drain(..).for_each(|(tag, status)| ended(tag, status));
    }

    fn cancel(&mut self, _: Self::Volume, tag: Tag) -> bool {
        if self.ended.iter().any(|(ended, _)| *ended == tag) {
            return false;
        }
        let held = self.held.get_mut(&tag.0).expect("it is in flight");
        assert!(!core::mem::replace(&mut held.cancelled, true), "cancelled once");
        self.cancels && self.held.remove(&tag.0).is_some()
    }
}
