//! A request that goes through a bounce buffer. It is divided into parts, one after another: a block of which only some
//! sectors are meant, or a run of whole blocks.
//!
//! | request | block in part | whole blocks |
//! |---|---|---|
//! | read | read to the buffer, sectors copied to the guest | the same |
//! | write | read to the buffer, sectors copied from the guest, written | copied from the guest, written |
//! | zeroes | read to the buffer, sectors zeroed, written | told to the storage |

use alloc::vec::Vec;

use memory::GuestMemory;
use virtio::chain::{Segment, Span};
use virtio::config::MAX_QUEUE_SIZE;

use super::volume::{BLOCK, Emulated, EmulationCounters, PER_BLOCK, PER_BLOCK_WIDE};
use crate::storage::{Operation, Request, SECTOR, Status, Storage, Submitted, Tag};

/// Bytes of a bounce buffer.
pub const BUFFER: u64 = 16 * BLOCK as u64;

/// Blocks of a bounce buffer.
const BUFFER_BLOCKS: u32 = (BUFFER / BLOCK as u64) as u32;

/// A part of a request.
#[derive(Clone, Copy)]
struct Part {
    /// First block beneath.
    block: u64,
    blocks: u32,
    /// Sectors of the first block that are not meant.
    skipped: u32,
    /// Sectors that are meant.
    sectors: u32,
}

impl Part {
    /// Returns the first part of `left` sectors from `at` on, 1 or more. `most`: most whole blocks.
    fn first(at: u64, left: u32, most: u32) -> Self {
        let (block, skipped) = (at / PER_BLOCK_WIDE, (at % PER_BLOCK_WIDE) as u32);
        if skipped != 0 || left < PER_BLOCK {
            return Self { block, blocks: 1, skipped, sectors: left.min(PER_BLOCK.saturating_sub(skipped)) };
        }
        let blocks = (left / PER_BLOCK).min(most);
        Self { block, blocks, skipped, sectors: blocks.saturating_mul(PER_BLOCK) }
    }

    const fn is_whole(&self) -> bool {
        self.sectors == self.blocks.saturating_mul(PER_BLOCK)
    }
}

/// What comes next for the current part.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Its blocks are to be read to the buffer.
    Fill,
    /// The sectors are to be moved between buffer and guest.
    Move,
    /// Its blocks are to be written.
    Store,
    /// It is done.
    Next,
}

/// The request.
pub struct Slot<V> {
    tag: Tag,
    volume: V,
    counters: Option<&'static EmulationCounters>,
    operation: Operation,
    /// The sector that comes next, and how many are left, without those of the current part.
    at: u64,
    left: u32,
    part: Part,
    step: Step,
    in_flight: bool,
    /// How the part in flight ended, if not well. Or the request was cancelled.
    failed: Option<Status>,
    memory: GuestMemory,
    /// The guest's buffer that comes next. It may have been shortened.
    next: usize,
    /// Address of the bounce buffer.
    buffer: u64,
}

/// An empty list for the buffers of a request.
pub fn buffers() -> Vec<Segment> {
    Vec::with_capacity(usize::from(MAX_QUEUE_SIZE))
}

impl<V: Copy> Slot<V> {
    /// Makes a slot for a read, a write or zeroes. The bounce buffer is at `buffer`. The guest's buffers are put in `buffers`,
    /// which belongs to the slot from now on. Returns `None` if there are no sectors, or more buffers than a chain can have.
    pub fn new(
        of: Emulated<V>,
        tag: Tag,
        request: &Request<'_>,
        buffer: u64,
        buffers: &mut Vec<Segment>,
    ) -> Option<Self> {
        buffers.clear();
        for segment in request.data.segments() {
            if buffers.len() == buffers.capacity() {
                return None;
            }
            buffers.push(segment);
        }
        if request.blocks == 0 {
            return None;
        }
        Some(Self {
            tag,
            volume: of.volume,
            counters: of.counters,
            operation: request.operation,
            at: request.first,
            left: request.blocks,
            part: Part { block: 0, blocks: 0, skipped: 0, sectors: 0 },
            step: Step::Next,
            in_flight: false,
            failed: None,
            memory: request.memory.clone(),
            next: 0,
            buffer,
        })
    }

    pub const fn tag(&self) -> Tag {
        self.tag
    }

    pub const fn volume(&self) -> V {
        self.volume
    }

    pub const fn is_in_flight(&self) -> bool {
        self.in_flight
    }

    /// The part in flight has ended.
    pub fn answered(&mut self, status: Status) {
        self.in_flight = false;
        self.after(status);
    }

    /// Nothing more is begun. Returns whether a part is in flight.
    pub fn cancel(&mut self) -> bool {
        self.failed = Some(Status::Failed);
        self.in_flight
    }

    /// The storage has read or written the part's blocks.
    fn after(&mut self, status: Status) {
        match (status, self.step) {
            (Status::Ok, Step::Fill) => self.step = Step::Move,
            (Status::Ok, _) => self.step = Step::Next,
            (status, _) => self.failed = self.failed.or(Some(status)),
        }
    }

    /// Goes on until the storage works or is busy. Returns how the request ended, if it did. No part is in flight.
    pub fn go_on<S: Storage<Volume = V>>(
        &mut self,
        storage: &mut S,
        bounce: &GuestMemory,
        buffers: &mut [Segment],
        now: u64,
    ) -> Option<Status> {
        loop {
            if self.failed.is_some() {
                return self.failed;
            }
            let operation = match self.step {
                Step::Next if self.left == 0 => return Some(Status::Ok),
                Step::Next => {
                    self.begin_part();
                    continue;
                }
                Step::Move => {
                    let moved = self.move_sectors(bounce, buffers);
                    self.step = if self.operation == Operation::Read { Step::Next } else { Step::Store };
                    self.failed = if moved.is_none() { Some(Status::Failed) } else { None };
                    continue;
                }
                Step::Fill => Operation::Read,
                Step::Store => match self.operation {
                    // A block of which a part was zeroed is data.
                    Operation::WriteZeroes { durable, .. } if !self.part.is_whole() => Operation::Write { durable },
                    operation => operation,
                },
            };
            let bytes = self.part.blocks.wrapping_mul(BLOCK);
            let buffer = [Segment { gpa: self.buffer, len: bytes }];
            let data = match operation {
                Operation::WriteZeroes { .. } => Span::new(&[], 0),
                _ => Span::new(&buffer, bytes),
            };
            let Part { block, blocks, .. } = self.part;
            let request = Request { operation, first: block, blocks, data, memory: bounce };
            match storage.submit(self.volume, self.tag, &request, now) {
                Submitted::Done(status) => self.after(status),
                Submitted::Pending => {
                    self.in_flight = true;
                    return None;
                }
                Submitted::Busy => return None,
            }
        }
    }

    /// Begins the next part.
    fn begin_part(&mut self) {
        let is_zeroes = matches!(self.operation, Operation::WriteZeroes { .. });
        let most = if is_zeroes { u32::MAX } else { BUFFER_BLOCKS };
        self.part = Part::first(self.at, self.left, most);
        self.at = self.at.saturating_add(self.part.sectors.into());
        self.left = self.left.saturating_sub(self.part.sectors);
        let is_whole = self.part.is_whole();
        self.step = match self.operation {
            Operation::Read => Step::Fill,
            _ if !is_whole => Step::Fill,
            Operation::WriteZeroes { .. } => Step::Store,
            _ => Step::Move,
        };
        if let (false, Some(counters)) = (is_whole, self.counters) {
            let counter =
                if self.operation == Operation::Read { &counters.partial_reads } else { &counters.partial_writes };
            counter.add(1);
        }
    }

    /// Moves the part's sectors between the buffer and the guest, or zeroes them. Returns `None` if the guest's buffers are
    /// not its memory or too short. This does not happen: they were checked.
    fn move_sectors(&mut self, bounce: &GuestMemory, buffers: &mut [Segment]) -> Option<()> {
        let mut at = self.buffer.saturating_add(u64::from(self.part.skipped).saturating_mul(SECTOR));
        let mut left = self.part.sectors.saturating_mul(SECTOR as u32);
        if matches!(self.operation, Operation::WriteZeroes { .. }) {
            return bounce.zero(at, left.into()).ok();
        }
        while left != 0 {
            let segment = buffers.get_mut(self.next)?;
            let len = segment.len.min(left);
            let moved = match self.operation {
                Operation::Read => self.memory.copy_from(segment.gpa, bounce, at, len.into()),
                _ => bounce.copy_from(at, &self.memory, segment.gpa, len.into()),
            };
            moved.ok()?;
            *segment = Segment { gpa: segment.gpa.wrapping_add(len.into()), len: segment.len.saturating_sub(len) };
            self.next = self.next.saturating_add(usize::from(segment.len == 0));
            at = at.saturating_add(len.into());
            left = left.saturating_sub(len);
        }
        Some(())
    }
}
