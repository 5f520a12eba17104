//! A request in flight: what is left of it, and its buffers.

use std::{io, ptr};

use anyhow::{Context as _, Result};
use block::storage::{Request, Status};
use memory::copy::copy;
use virtio::config::MAX_QUEUE_SIZE;

/// Bytes of a bounce buffer, a multiple of every block size.
const BOUNCE: u64 = 128 << 10;
/// Bounce buffers. More requests that need one wait in their queues.
const BOUNCES: usize = 64;
/// Alignment of bounce buffers.
const PAGE: usize = 4096;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
    Flush,
    /// Discards blocks. They read as zeroes.
    Discard,
    /// Writes zeroes, and may release the blocks.
    Unmap,
    /// Writes zeroes, and keeps the blocks.
    Zero,
    /// The same, with the file system without an operation for it.
    WriteZeroes,
}

/// What the next operation works on.
pub enum Step {
    /// The guest's buffers.
    Direct { list: *const libc::iovec, count: u32 },
    /// A bounce buffer.
    Bounced(usize),
    /// The buffer with zeroes.
    Zeroes,
    /// Nothing: it makes writes durable.
    Flush,
    /// A range, with this mode of `fallocate`.
    Range(i32),
}

/// A request.
pub struct Progress {
    pub fd: i32,
    pub kind: Kind,
    pub durable: bool,
    pub cancelled: bool,
    /// The file's byte that comes next, and how many there are.
    pub at: u64,
    pub left: u64,
    /// The bounce buffer, if it has one.
    pub bounce: Option<usize>,
    /// The guest's buffers. What was moved is cut off.
    buffers: Vec<libc::iovec>,
    /// The first that was not moved.
    next: usize,
}

// SAFETY: the pointers are those of a guest's memory, which any thread may use. The engine's thread alone has the value.
unsafe impl Send for Progress {}

impl Progress {
    /// No request.
    pub fn idle() -> Self {
        let buffers = Vec::with_capacity(usize::from(MAX_QUEUE_SIZE));
        Self {
            fd: -1,
            kind: Kind::Flush,
            durable: false,
            cancelled: false,
            at: 0,
            left: 0,
            bounce: None,
            buffers,
            next: 0,
        }
    }

    /// Begins a request, without buffers yet.
    pub fn begin(&mut self, fd: i32, at: u64, left: u64) {
        (self.fd, self.at, self.left, self.next) = (fd, at, left, 0);
        (self.durable, self.cancelled, self.bounce) = (false, false, None);
        self.buffers.clear();
    }

    /// Takes the request's buffers. Returns false if there are more than a chain can have, or one is not in the guest's
    /// memory. Neither happens, because the chain was checked.
    pub fn take_buffers(&mut self, request: &Request<'_>) -> bool {
        request.data.segments().all(|segment| {
            let Ok(start) = request.memory.translate(segment.gpa, segment.len.into()) else { return false };
            if self.buffers.len() == self.buffers.capacity() {
                return false;
            }
            self.buffers.push(libc::iovec { iov_base: start.cast(), iov_len: segment.len as usize });
            true
        })
    }

    /// Whether the kernel takes the buffers as they are.
    pub fn is_aligned(&self, memory: usize, block: usize) -> bool {
        let fits = |one: &libc::iovec| one.iov_base.addr().is_multiple_of(memory) && one.iov_len.is_multiple_of(block);
        self.buffers.len() <= libc::UIO_MAXIOV as usize && self.buffers.iter().all(fits)
    }

    /// What the next operation works on.
    pub fn step(&self) -> Step {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        match (self.kind, self.bounce) {
            (Kind::Read | Kind::Write, Some(buffer)) => Step::Bounced(buffer),
            (Kind::Read | Kind::Write, None) => {
                let rest = self.buffers.get(self.next..).unwrap_or_default();
                Step::Direct { list: rest.as_ptr(), count: rest.len() as u32 }
            }
            (Kind::Flush, _) => Step::Flush,
            (Kind::Discard | Kind::Unmap, _) => Step::Range(libc::FALLOC_FL_PUNCH_HOLE | KEEP),
            (Kind::Zero, _) => Step::Range(libc::FALLOC_FL_ZERO_RANGE | KEEP),
            (Kind::WriteZeroes, _) => Step::Zeroes,
        }
    }

    /// Bytes of the next part that goes through a buffer of ours.
    pub fn part(&self) -> u32 {
        self.left.min(BOUNCE) as u32
    }

    /// Calls `each` for the pieces of the next `bytes` of the buffers, with the number of bytes before each.
    fn pieces(&self, mut bytes: usize, mut each: impl FnMut(*mut u8, usize, usize)) {
        let mut before = 0;
        for buffer in self.buffers.iter().skip(self.next) {
            let len = buffer.iov_len.min(bytes);
            if len == 0 {
                break;
            }
            each(buffer.iov_base.cast(), len, before);
            (before, bytes) = (before + len, bytes - len);
        }
    }

    /// Copies the next part of the buffers to a bounce buffer.
    pub fn gather(&self, to: *mut u8) {
        self.pieces(self.part() as usize, |from, len, before| {
            // SAFETY: `from` is in the guest's memory, which stays until the request has ended. The part is not longer
            // than a bounce buffer.
            unsafe { copy(to.wrapping_add(before), from, len) };
        });
    }

    /// Cuts off bytes that were moved.
    fn advance(&mut self, mut bytes: usize) {
        (self.at, self.left) = (self.at + bytes as u64, self.left.saturating_sub(bytes as u64));
        while let Some(buffer) = self.buffers.get_mut(self.next).filter(|_| bytes != 0) {
            let len = buffer.iov_len.min(bytes);
            (buffer.iov_base, buffer.iov_len) = (buffer.iov_base.wrapping_byte_add(len), buffer.iov_len - len);
            bytes -= len;
            self.next += usize::from(buffer.iov_len == 0);
        }
    }

    /// Takes the result of an operation: a negative error or, of a transfer, bytes. Returns how the request has ended,
    /// `None` if there is a next operation.
    pub fn ended(&mut self, result: i32, bounces: &Bounces) -> Option<Status> {
        if self.cancelled {
            return Some(Status::Failed);
        }
        let unsupported = result == -libc::EOPNOTSUPP;
        match (self.kind, u32::try_from(result)) {
            (_, Err(_)) if again(-result) => None,
            (Kind::Discard, Err(_)) if unsupported => Some(Status::Unsupported),
            (Kind::Unmap | Kind::Zero, Err(_)) if unsupported => {
                self.kind = Kind::WriteZeroes;
                None
            }
            (_, Err(_)) => Some(Status::Failed),
            (Kind::Unmap | Kind::Zero, Ok(_)) => self.zeroed(),
            (Kind::Flush | Kind::Discard, Ok(_)) => Some(Status::Ok),
            // The file has become shorter.
            (Kind::Read | Kind::Write | Kind::WriteZeroes, Ok(0)) => Some(Status::Failed),
            (kind, Ok(bytes)) => {
                let bytes = u64::from(bytes).min(self.left) as usize;
                if let (Kind::Read, Some(buffer)) = (kind, self.bounce) {
                    let from = bounces.start(buffer);
                    self.pieces(bytes, |to, len, before| {
                        // SAFETY: as in `gather`, in the other direction.
                        unsafe { copy(to, from.wrapping_add(before), len) };
                    });
                }
                self.advance(bytes);
                match (self.left, kind) {
                    (0, Kind::WriteZeroes) => self.zeroed(),
                    (0, _) => Some(Status::Ok),
                    _ => None,
                }
            }
        }
    }

    /// All zeroes are written. If they are to be durable, a flush is the next operation.
    fn zeroed(&mut self) -> Option<Status> {
        if !std::mem::take(&mut self.durable) {
            return Some(Status::Ok);
        }
        self.kind = Kind::Flush;
        None
    }
}

/// Whether an operation is to be tried again.
fn again(error: i32) -> bool {
    matches!(io::Error::from_raw_os_error(error).kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

/// Buffers of ours, aligned for any file.
pub struct Bounces {
    start: *mut u8,
    free: Vec<usize>,
}

// SAFETY: memory that this value owns. The engine's thread alone has it.
unsafe impl Send for Bounces {}

impl Bounces {
    /// Maps the buffers, which are never unmapped, if there are to be `any`. Linux gives a page of them when it is first
    /// used.
    pub fn new(any: bool) -> Result<Self> {
        if !any {
            return Ok(Self { start: ptr::null_mut(), free: Vec::new() });
        }
        // One more, for zeroes.
        let layout = std::alloc::Layout::from_size_align((BOUNCES + 1) * BOUNCE as usize, PAGE)?;
        // SAFETY: the size is not 0.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        (!start.is_null())
            .then(|| Self { start, free: (0..BOUNCES).collect() })
            .context("there is no memory for bounce buffers")
    }

    /// The beginning of a buffer.
    pub fn start(&self, buffer: usize) -> *mut u8 {
        self.start.wrapping_add(buffer.min(BOUNCES) * BOUNCE as usize)
    }

    /// A buffer with zeroes, which nobody writes.
    pub fn zeroes(&self) -> *const u8 {
        self.start(BOUNCES)
    }

    /// Takes a buffer.
    pub fn take(&mut self) -> Option<usize> {
        self.free.pop()
    }

    /// Gives a buffer back.
    pub fn give_back(&mut self, buffer: usize) {
        // There is room: the buffer was taken from this list.
        self.free.push(buffer);
    }
}
