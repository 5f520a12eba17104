//! A transfer that is too long for one turn. An engine works on one at a time, and moves a part of it in each turn.
//! Firmware reads files of many MiB by one request.

use alloc::boxed::Box;

use engine::devices::table;
use memory::GuestMemory;
use virtio::chain::{Segment, Span};
use virtio::config::MAX_QUEUE_SIZE;

use super::disk::{Direction, RamDisk};
use crate::storage::{Status, Tag};

/// The transfer in progress.
struct Transfer {
    disk: &'static RamDisk,
    tag: Tag,
    direction: Direction,
    /// The disk's byte that comes next.
    at: u64,
    memory: GuestMemory,
    /// The buffer that comes next, and how many there are.
    next: usize,
    count: usize,
}

/// The place for one long transfer.
pub struct Long {
    transfer: Option<Transfer>,
    /// Its buffers. A buffer that was moved in part has been shortened.
    buffers: Box<[Segment; MAX_QUEUE_SIZE as usize]>,
}

impl Default for Long {
    fn default() -> Self {
        Self { transfer: None, buffers: table(|| Segment { gpa: 0, len: 0 }) }
    }
}

impl Long {
    /// Begins a transfer. Returns false if there is another one, or if it has more buffers than a chain can have.
    pub fn begin(
        &mut self,
        disk: &'static RamDisk,
        tag: Tag,
        direction: Direction,
        at: u64,
        (data, memory): (Span<'_>, &GuestMemory),
    ) -> bool {
        if self.transfer.is_some() {
            return false;
        }
        let mut count = 0_usize;
        for segment in data.segments() {
            let Some(place) = self.buffers.get_mut(count) else { return false };
            *place = segment;
            count = count.saturating_add(1);
        }
        let memory = memory.clone();
        self.transfer = Some(Transfer { disk, tag, direction, at, memory, next: 0, count });
        true
    }

    /// Moves up to `bytes`. Returns how the transfer ended, if it did.
    pub fn go_on(&mut self, mut bytes: u32) -> Option<(Tag, Status)> {
        let transfer = self.transfer.as_mut()?;
        let Transfer { disk, tag, direction, at, memory, next, count } = transfer;
        let mut ended = None;
        while ended.is_none() && bytes != 0 {
            let Some(buffer) = self.buffers.get_mut(*next).filter(|_| next < count) else {
                ended = Some((*tag, Status::Ok));
                break;
            };
            let now = Segment { gpa: buffer.gpa, len: buffer.len.min(bytes) };
            if !disk.transfer_one(*direction, *at, memory, now) {
                ended = Some((*tag, Status::Failed));
            }
            *at = at.saturating_add(now.len.into());
            bytes = bytes.saturating_sub(now.len);
            let left = buffer.len.saturating_sub(now.len);
            *buffer = Segment { gpa: buffer.gpa.wrapping_add(now.len.into()), len: left };
            *next = next.saturating_add(usize::from(left == 0));
        }
        if ended.is_none() && next >= count {
            ended = Some((*tag, Status::Ok));
        }
        if ended.is_some() {
            self.transfer = None;
        }
        ended
    }

    /// Ends a transfer. The guest's memory is not used any more.
    pub fn cancel(&mut self, tag: Tag) -> bool {
        self.transfer.take_if(|transfer| transfer.tag == tag).is_some()
    }
}
