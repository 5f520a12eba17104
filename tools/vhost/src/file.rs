//! Files as disks: the storage over io_uring, without the page cache (O_DIRECT).
//!
//! | file | what it does |
//! |---|---|
//! | `disk` | opens a file, and finds its shape and its alignments |
//! | `progress` | a request in flight: what is left of it, and its buffers |
//!
//! The kernel reads and writes the guest's memory if all buffers of a request are aligned as the file wants it. Otherwise
//! the data goes through a bounce buffer, in parts. A request is one operation of the ring at a time.
//!
//! A visit's operations are submitted by one system call. Completions are found in the ring, without one.

#![allow(unsafe_code, reason = "gives the kernel the guest's memory")]

mod disk;
mod progress;

use anyhow::{Context as _, Result};
use block::storage::{Geometry, MAX_TAGS, Operation, Request, Status, Storage, Submitted, Tag};
use io_uring::{IoUring, opcode, squeue, types};

pub use disk::FileDisk;
use progress::{Bounces, Kind, Progress, Step};

/// The files of an engine, which share one ring.
pub struct Files {
    /// None: no disk is a file.
    ring: Option<IoUring>,
    /// The requests in flight, by tag.
    requests: Box<[Progress]>,
    bounces: Bounces,
    /// Operations are in the ring that the kernel was not told of.
    unsubmitted: bool,
    /// Ended operations: tag and result.
    ended: Vec<(u16, i32)>,
}

impl Files {
    /// Makes it. `any`: there is a file.
    ///
    /// # Errors
    /// Linux refuses a ring.
    pub fn new(any: bool) -> Result<Self> {
        let count = if any { MAX_TAGS } else { 0 };
        // A tag has one operation at a time, so the ring is never full.
        let ring = any.then(|| IoUring::new(MAX_TAGS as u32)).transpose().with_context(|| {
            "a file as a disk needs io_uring, which is not allowed here (a container may forbid the system call, or \
             kernel.io_uring_disabled is set)"
        })?;
        Ok(Self {
            ring,
            requests: (0..count).map(|_| Progress::idle()).collect(),
            bounces: Bounces::new(any)?,
            unsubmitted: false,
            ended: Vec::with_capacity(2 * count),
        })
    }

    /// Puts the next operation of a request into the ring.
    fn push(&mut self, tag: Tag) -> bool {
        let Some(request) = self.requests.get_mut(usize::from(tag.0)) else { return false };
        let entry = entry(request, &self.bounces).user_data(tag.0.into());
        let Some(ring) = &mut self.ring else { return false };
        // SAFETY: the file is never closed. The buffers, and the list of them, stay until the operation has ended:
        // `cancel` says that a request is in flight until then, so a guest keeps its memory. Nobody forms references to
        // guest memory.
        let pushed = unsafe { ring.submission().push(&entry) }.is_ok();
        self.unsubmitted |= pushed;
        pushed
    }

    /// Tells the kernel of new operations. If it cannot take all of them now, the next call tries again.
    fn submit_all(&mut self) {
        if !self.unsubmitted {
            return;
        }
        if let Some(ring) = &mut self.ring {
            self.unsubmitted = ring.submit().is_err() || !ring.submission().is_empty();
        }
    }
}

/// The next operation of a request.
fn entry(request: &Progress, bounces: &Bounces) -> squeue::Entry {
    let fd = types::Fd(request.fd);
    let (at, len) = (request.at, request.part());
    let durable = if request.durable { libc::RWF_DSYNC } else { 0 };
    match request.step() {
        Step::Direct { list, count } if request.kind == Kind::Read => {
            opcode::Readv::new(fd, list, count).offset(at).build()
        }
        Step::Direct { list, count } => opcode::Writev::new(fd, list, count).offset(at).rw_flags(durable).build(),
        Step::Bounced(buffer) if request.kind == Kind::Read => {
            opcode::Read::new(fd, bounces.start(buffer), len).offset(at).build()
        }
        Step::Bounced(buffer) => {
            request.gather(bounces.start(buffer));
            opcode::Write::new(fd, bounces.start(buffer), len).offset(at).rw_flags(durable).build()
        }
        Step::Zeroes => opcode::Write::new(fd, bounces.zeroes(), len).offset(at).build(),
        Step::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        Step::Range(mode) => opcode::Fallocate::new(fd, request.left).offset(at).mode(mode).build(),
    }
}

impl Storage for Files {
    type Volume = &'static FileDisk;

    fn geometry(&self, disk: Self::Volume) -> Geometry {
        disk.geometry
    }

    fn submit(&mut self, disk: Self::Volume, tag: Tag, request: &Request<'_>, _: u64) -> Submitted {
        let Some(place) = self.requests.get_mut(usize::from(tag.0)) else { return Submitted::Busy };
        let block = u64::from(disk.geometry.block_bytes);
        place.begin(disk.fd(), request.first * block, u64::from(request.blocks) * block);
        match request.operation {
            Operation::Flush => place.kind = Kind::Flush,
            Operation::Discard => place.kind = Kind::Discard,
            Operation::WriteZeroes { unmap, durable } => {
                place.kind = if unmap { Kind::Unmap } else { Kind::Zero };
                place.durable = durable;
            }
            Operation::Read | Operation::Write { .. } => {
                let write = request.operation != Operation::Read;
                place.kind = if write { Kind::Write } else { Kind::Read };
                place.durable = request.operation == Operation::Write { durable: true };
                if !place.take_buffers(request) {
                    return Submitted::Done(Status::Failed);
                }
                if !place.is_aligned(disk.memory_alignment, block as usize) {
                    match self.bounces.take() {
                        Some(buffer) => place.bounce = Some(buffer),
                        None => return Submitted::Busy,
                    }
                }
            }
        }
        if self.push(tag) { Submitted::Pending } else { Submitted::Done(Status::Failed) }
    }

    fn notify(&mut self) {
        self.submit_all();
    }

    fn poll(&mut self, _: u64, ended: &mut impl FnMut(Tag, Status)) {
        self.submit_all();
        let Some(ring) = &mut self.ring else { return };
        self.ended.clear();
        let room = self.ended.capacity();
        self.ended.extend(ring.completion().take(room).map(|entry| (entry.user_data() as u16, entry.result())));
        for n in 0..self.ended.len() {
            let Some(&(number, result)) = self.ended.get(n) else { break };
            let Some(request) = self.requests.get_mut(usize::from(number)) else { continue };
            let status = match request.ended(result, &self.bounces) {
                // The next part.
                None if self.push(Tag(number)) => continue,
                None => Status::Failed,
                Some(status) => status,
            };
            if let Some(buffer) = self.requests.get_mut(usize::from(number)).and_then(|request| request.bounce.take()) {
                self.bounces.give_back(buffer);
            }
            ended(Tag(number), status);
        }
        self.submit_all();
    }

    /// An operation cannot be taken back. The request ends when the kernel has let go of the buffers.
    fn cancel(&mut self, _: Self::Volume, tag: Tag) -> bool {
        if let Some(request) = self.requests.get_mut(usize::from(tag.0)) {
            request.cancelled = true;
        }
        false
    }
}
