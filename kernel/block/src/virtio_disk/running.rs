//! A request that is divided into parts.

use alloc::vec::Vec;

use memory::GuestMemory;
use virtio::chain::{Segment, Span};
use virtio::config::MAX_QUEUE_SIZE;
use virtio_blk::{Hal, Operation, PARTS, Part, Refused, SECTOR, Status as Answer, Transport, VirtioBlk};

use crate::storage::{Request, Status, Tag};

/// Most requests that a device works on.
pub(super) const REQUESTS: usize = 32;

/// A place for a request.
pub(super) struct Running {
    /// The request. `None`: the place is free.
    tag: Option<Tag>,
    operation: Operation,
    /// First sector on the disk, and the number of sectors.
    first: u64,
    sectors: u64,
    /// Sectors that were offered.
    offered: u64,
    /// The first sector of each part in flight, from the request's beginning. `None`: no such part.
    parts: [Option<u64>; PARTS],
    /// Whether a part is to be offered that has no data: a flush, a discard, zeroes.
    whole: bool,
    /// A flush follows the data.
    then_flush: bool,
    /// That flush is in flight. No other part is.
    flushes: bool,
    /// The first failure of a part, or how it ends so far.
    status: Status,
    memory: GuestMemory,
    segments: Vec<Segment>,
}

impl Running {
    pub(super) fn new() -> Self {
        Self {
            tag: None,
            operation: Operation::Flush,
            first: 0,
            sectors: 0,
            offered: 0,
            parts: [None; PARTS],
            whole: false,
            then_flush: false,
            flushes: false,
            status: Status::Ok,
            memory: GuestMemory::new(),
            segments: Vec::with_capacity(MAX_QUEUE_SIZE.into()),
        }
    }

    pub(super) const fn is_free(&self) -> bool {
        self.tag.is_none()
    }

    fn is_in_flight(&self) -> bool {
        self.parts.iter().any(Option::is_some)
    }

    /// Takes a request. Returns false if it has more buffers than a chain can have.
    pub(super) fn begin(
        &mut self,
        tag: Tag,
        operation: Operation,
        request: &Request<'_>,
        sectors_in_block: u64,
        then_flush: bool,
    ) -> bool {
        self.segments.clear();
        for segment in request.data.segments() {
            if self.segments.len() == self.segments.capacity() {
                return false;
            }
            self.segments.push(segment);
        }
        self.whole = !matches!(operation, Operation::Read | Operation::Write);
        self.operation = operation;
        self.first = request.first.saturating_mul(sectors_in_block);
        self.sectors = u64::from(request.blocks).saturating_mul(sectors_in_block);
        self.offered = 0;
        self.then_flush = then_flush;
        self.flushes = false;
        self.status = Status::Ok;
        self.memory = request.memory.clone();
        self.tag = Some(tag);
        true
    }

    /// Offers the next part. `index` is the place of this request. Returns false if it has none to offer now.
    pub(super) fn offer<H: Hal, T: Transport>(&mut self, index: u32, device: &mut VirtioBlk<H, T>, now: u64) -> bool {
        if self.is_free() || self.status != Status::Ok {
            return false;
        }
        let Some(number) = self.parts.iter().position(Option::is_none) else { return false };
        let mut part = Part {
            id: index.saturating_mul(PARTS as u32).saturating_add(number as u32),
            operation: self.operation,
            first: self.first,
            sectors: self.sectors as u32,
        };
        let at = self.offered;
        if self.whole {
            if self.is_in_flight() {
                return false;
            }
        } else if at < self.sectors {
            part.first = part.first.saturating_add(at);
            part.sectors = self.sectors.saturating_sub(at).min(device.shape().part_sectors.into()) as u32;
        } else if self.then_flush && !self.is_in_flight() {
            part = Part { operation: Operation::Flush, first: 0, sectors: 0, ..part };
        } else {
            return false;
        }
        let (memory, segments, sectors) = (&self.memory, &self.segments, self.sectors);
        let fill =
            |data: &mut [u8]| bytes(segments, sectors, at, data.len()).is_some_and(|b| b.read(memory, data).is_ok());
        match device.submit(&part, now, fill) {
            Ok(()) => {
                if let Some(place) = self.parts.get_mut(number) {
                    *place = Some(at);
                }
                if self.whole {
                    self.whole = false;
                    self.offered = self.sectors;
                } else if part.operation == Operation::Flush {
                    (self.then_flush, self.flushes) = (false, true);
                } else {
                    self.offered = self.offered.saturating_add(part.sectors.into());
                }
                true
            }
            Err(Refused::Busy) => false,
            Err(Refused::Length | Refused::Data | Refused::Gone) => {
                self.status = Status::Failed;
                false
            }
        }
    }

    fn part_ended(&mut self, number: usize, answer: Answer, data: &[u8]) {
        let Some(at) = self.parts.get_mut(number).and_then(Option::take) else { return };
        let ended = match answer {
            Answer::Ok if data.is_empty() || self.status != Status::Ok => Status::Ok,
            Answer::Ok if self.write_buffers(at, data) => Status::Ok,
            Answer::Failed | Answer::Unsupported if self.flushes => Status::FlushFailed,
            Answer::Ok | Answer::Failed => Status::Failed,
            Answer::Unsupported => Status::Unsupported,
        };
        if self.status == Status::Ok {
            self.status = ended;
        }
    }

    /// Copies data to the buffers, from sector `at` on.
    fn write_buffers(&self, at: u64, data: &[u8]) -> bool {
        let place = bytes(&self.segments, self.sectors, at, data.len());
        place.is_some_and(|place| place.write(&self.memory, data).is_ok())
    }

    /// Returns the request if it has ended, and how. `gone`: the device works no more.
    pub(super) fn take_ended(&mut self, gone: bool) -> Option<(Tag, Status)> {
        let tag = self.tag?;
        let is_complete = !self.whole && self.offered == self.sectors && !self.then_flush;
        if self.is_in_flight() || !(is_complete || gone || self.status != Status::Ok) {
            return None;
        }
        self.free();
        Some((tag, if self.status == Status::Ok && !is_complete { Status::Failed } else { self.status }))
    }

    /// Ends a request early. Returns true if it is this one and has ended. Otherwise the parts in flight end first: a
    /// later write of the same sectors must not be overtaken by them.
    pub(super) fn cancel(&mut self, tag: Tag) -> bool {
        if self.tag != Some(tag) {
            return false;
        }
        self.status = Status::Cancelled;
        let ended = !self.is_in_flight();
        if ended {
            self.free();
        }
        ended
    }

    fn free(&mut self) {
        self.tag = None;
        self.memory = GuestMemory::new();
    }
}

/// A part of a request has ended.
pub(super) fn part_ended(running: &mut [Running], part: u32, answer: Answer, data: &[u8]) {
    let (index, number) = (part as usize / PARTS, part as usize % PARTS);
    if let Some(request) = running.get_mut(index) {
        request.part_ended(number, answer, data);
    }
}

/// Returns `len` bytes of the buffers, from sector `at` on. `None`: they are shorter.
fn bytes(segments: &[Segment], sectors: u64, at: u64, len: usize) -> Option<Span<'_>> {
    let all = Span::new(segments, u32::try_from(sectors.saturating_mul(SECTOR.into())).ok()?);
    let (_, rest) = all.split_at(u32::try_from(at.saturating_mul(SECTOR.into())).ok()?)?;
    Some(rest.split_at(u32::try_from(len).ok()?)?.0)
}
