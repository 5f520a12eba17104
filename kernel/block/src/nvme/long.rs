//! A request with more data than the driver takes. It is divided into parts, and one part is in flight at a time. An
//! engine has one such request at a time. Firmware reads whole files by one request.

#![allow(unsafe_code, reason = "shortens segments that a device was given")]

use alloc::vec::Vec;

use memory::GuestMemory;
use nvme::dma::{Dma, Segment};
use nvme::registers::Registers;
use nvme::{IoQueue, Refused, Request};
use virtio::config::MAX_QUEUE_SIZE;

use crate::storage::{Status, Tag};

/// Bit of a driver's request identifier: it is a part of a long request. Tags are shorter.
const PART: u32 = 1 << 16;

/// The request in progress.
struct Progress {
    queue: usize,
    tag: Tag,
    /// What no part has moved yet. The identifier is that of all parts.
    rest: Request,
    /// The first segment that is not moved yet. Its moved bytes are cut off.
    next: usize,
    /// A part is in flight.
    in_flight: bool,
    /// How the request ends when no part is in flight any more.
    ends: Option<Status>,
    /// It keeps the segments' memory mapped.
    _memory: GuestMemory,
}

/// The place for one long request.
pub struct Long {
    progress: Option<Progress>,
    segments: Vec<Segment>,
}

impl Default for Long {
    fn default() -> Self {
        Self { progress: None, segments: Vec::with_capacity(usize::from(MAX_QUEUE_SIZE)) }
    }
}

impl Long {
    /// Takes a request with data, of at most [`MAX_QUEUE_SIZE`] segments. Returns false if there is another one.
    pub fn begin(
        &mut self,
        queue: usize,
        tag: Tag,
        request: &Request,
        segments: &[Segment],
        memory: &GuestMemory,
    ) -> bool {
        if self.progress.is_some() || segments.len() > self.segments.capacity() {
            return false;
        }
        self.segments.clear();
        self.segments.extend_from_slice(segments);
        let rest = Request { id: PART | u32::from(tag.0), ..*request };
        let _memory = memory.clone();
        self.progress = Some(Progress { queue, tag, rest, next: 0, in_flight: false, ends: None, _memory });
        true
    }

    /// The index of the request's queue, if there is a request.
    pub fn queue(&self) -> Option<usize> {
        self.progress.as_ref().map(|progress| progress.queue)
    }

    /// Submits the next part to the request's queue, if none is in flight. Returns true if it was taken. `part` is a list to
    /// use meanwhile.
    pub fn go_on<R: Registers, D: Dma>(
        &mut self,
        queue: &mut IoQueue<R, D>,
        part: &mut Vec<Segment>,
        now: u64,
    ) -> bool {
        let Some(progress) = self.progress.as_mut().filter(|p| !p.in_flight && p.ends.is_none()) else { return false };
        let Progress { rest, next, in_flight, ends, .. } = progress;
        if rest.blocks == 0 {
            *ends = Some(Status::Ok);
            return false;
        }
        let found = queue.limits(rest.namespace).zip(queue.namespace(rest.namespace));
        let Some((limits, format)) = found else {
            *ends = Some(Status::Failed);
            return false;
        };
        let blocks = rest.blocks.min(limits.data_blocks);
        let Some(after) = cut(&self.segments, *next, u64::from(blocks) << format.shift, part) else {
            *ends = Some(Status::Failed);
            return false;
        };
        match queue.submit(&Request { blocks, ..*rest }, part, now) {
            Ok(()) => {
                let (segment, left) = after;
                if let Some(place) = self.segments.get_mut(segment) {
                    *place = end_of(*place, left);
                }
                (*next, *in_flight) = (segment, true);
                rest.first = rest.first.saturating_add(blocks.into());
                rest.blocks = rest.blocks.saturating_sub(blocks);
                true
            }
            Err(Refused::Busy) => false,
            Err(_) => {
                *ends = Some(Status::Failed);
                false
            }
        }
    }

    /// The part in flight has ended.
    pub fn part_ended(&mut self, status: Status) {
        if let Some(progress) = &mut self.progress {
            progress.in_flight = false;
            if status != Status::Ok && progress.ends.is_none() {
                progress.ends = Some(status);
            }
        }
    }

    /// Returns the request if it has ended, and how.
    pub fn take_ended(&mut self) -> Option<(Tag, Status)> {
        let progress = self.progress.as_ref().filter(|progress| !progress.in_flight)?;
        let ended = (progress.tag, progress.ends?);
        self.progress = None;
        Some(ended)
    }

    /// Ends a request early. Returns `None` if it is not the one here. Otherwise: whether it has ended at once.
    pub fn cancel<R: Registers, D: Dma>(&mut self, tag: Tag, queues: &mut [IoQueue<R, D>]) -> Option<bool> {
        let progress = self.progress.as_mut().filter(|progress| progress.tag == tag)?;
        progress.ends = Some(Status::Cancelled);
        if progress.in_flight {
            if let Some(queue) = queues.get_mut(progress.queue) {
                queue.cancel(progress.rest.id);
            }
            return Some(false);
        }
        self.progress = None;
        Some(true)
    }
}

/// Fills `part` with the first `bytes` of `segments` from the index `next` on. Returns the index of the segment in which
/// the rest begins, and the bytes of it that are left. Returns `None` if the segments are shorter.
fn cut(segments: &[Segment], next: usize, mut bytes: u64, part: &mut Vec<Segment>) -> Option<(usize, u32)> {
    part.clear();
    for (index, segment) in segments.iter().enumerate().skip(next) {
        let len = u64::from(segment.len()).min(bytes) as u32;
        // SAFETY: the beginning of a segment, for which the promise was made.
        part.push(unsafe { Segment::new(segment.address(), len) });
        bytes = bytes.saturating_sub(len.into());
        if bytes == 0 {
            let left = segment.len().saturating_sub(len);
            return Some(if left == 0 { (index.saturating_add(1), u32::MAX) } else { (index, left) });
        }
    }
    None
}

/// The last `left` bytes of a segment, or all of it if it is not longer.
const fn end_of(segment: Segment, left: u32) -> Segment {
    let cut = segment.len().saturating_sub(left);
    // SAFETY: the end of a segment, for which the promise was made.
    unsafe { Segment::new(segment.address().wrapping_add(cut as u64), segment.len().saturating_sub(cut)) }
}
