//! What lies beneath a virtual disk: the trait that RAM disks, NVMe queues and virtio disks implement.
//!
//! A storage belongs to one engine and is polled by it. It has volumes: whole disks, or parts of disks. Each virtual
//! device has one volume. Requests of different volumes share the storage's queue.
//!
//! Requests complete late and in any order. Data goes directly between the device and the guest's memory: the storage
//! gets the checked buffers, and may use them until the request has ended.

use memory::GuestMemory;
use virtio::chain::Span;

/// Bytes of a sector, the unit of a virtio block device (virtio 1.3 5.2).
pub const SECTOR: u64 = 512;

/// Names a request in flight. The back-end chooses it; the storage gives it back. It is less than
/// [`MAX_TAGS`], and unique among the requests in flight of a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(pub u16);

/// The number of tags: most requests of an engine that are in flight at the same time.
pub const MAX_TAGS: usize = 1024;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Fills the buffers from the blocks.
    Read,
    /// Writes the buffers to the blocks. `durable`: it completes only when the blocks survive a loss of power.
    Write {
        /// The data must not stay in a volatile cache (NVMe: FUA).
        durable: bool,
    },
    /// Makes all completed writes of the volume survive a loss of power. It has no blocks and no buffers.
    Flush,
    /// The contents of the blocks are no longer needed. Has no buffers.
    Discard,
    /// Writes zeroes. Has no buffers. `unmap`: the storage may release the blocks. `durable`: as of a write.
    WriteZeroes {
        /// The blocks may be released.
        unmap: bool,
        /// The zeroes must not stay in a volatile cache.
        durable: bool,
    },
}

impl Operation {
    /// Whether its failure may say that other writes are lost: it flushes, or the storage may flush behind it.
    #[inline(always)]
    pub(crate) const fn tells_of_flushes(self) -> bool {
        match self {
            Self::Read | Self::Discard | Self::Write { durable: false } | Self::WriteZeroes { durable: false, .. } => {
                false
            }
            Self::Flush | Self::Write { durable: true } | Self::WriteZeroes { durable: true, .. } => true,
        }
    }
}

/// A checked request. The blocks are within the volume. The buffers are in the guest's memory, and their length is that
/// of the blocks.
#[derive(Clone, Copy, Debug)]
pub struct Request<'r> {
    /// What it does.
    pub operation: Operation,
    /// First block, in blocks of the volume's [`Geometry::block_bytes`].
    pub first: u64,
    /// Number of blocks. It is 0 for a flush only.
    pub blocks: u32,
    /// The guest's buffers. They may have any alignment and any number of segments.
    pub data: Span<'r>,
    /// The guest's memory.
    pub memory: &'r GuestMemory,
}

impl Request<'_> {
    /// Bytes of its blocks. A range that is only named counts too: the storage may have to write it.
    #[must_use]
    #[inline]
    pub const fn bytes(&self, geometry: &Geometry) -> u64 {
        (self.blocks as u64).wrapping_mul(geometry.block_bytes as u64)
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It succeeded.
    Ok,
    /// It failed. Read buffers may be partly filled.
    Failed,
    /// It was to be durable, and the flush that the storage sent behind it failed. This says of other writes what a failed
    /// [`Operation::Flush`] says.
    FlushFailed,
    /// It was cancelled, and says nothing of the disk.
    Cancelled,
    /// The storage does not have this operation.
    Unsupported,
}

/// The answer to a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// It has ended. The tag is free.
    Done(Status),
    /// It is in flight. [`Storage::poll`] reports its end with the tag.
    Pending,
    /// There is no room now. Nothing has happened; the caller tries again in a later turn.
    Busy,
}

/// A volume's shape. Only its size changes while a device has the volume: see [`Storage::blocks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a block: 512 or 4096.
    pub block_bytes: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of a physical block, a power of two and at least `block_bytes`. Smaller writes may be slower.
    pub physical_bytes: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// Completed writes may be lost with power until a flush.
    pub volatile_cache: bool,
    /// Most blocks of a discard; 0 if the volume has no discard.
    pub max_discard: u32,
    /// Discards release blocks in units of this many bytes, a multiple of `block_bytes`.
    pub discard_bytes: u32,
    /// Most blocks of a request to write zeroes; 0 if the volume cannot.
    pub max_zeroes: u32,
}

/// A volume that was looked up, for the requests of one visit to a queue.
pub trait Target {
    /// As [`Storage::submit`].
    fn submit(&mut self, tag: Tag, request: &Request<'_>) -> Submitted;
}

/// What works with a [`Target`]. It is compiled for each kind of target.
pub trait Visitor {
    /// What it returns.
    type Output;

    /// Does it.
    fn visit(self, target: &mut impl Target) -> Self::Output;
}

/// One request, for [`Storage::visit`].
pub(crate) struct One<'r> {
    pub tag: Tag,
    pub request: &'r Request<'r>,
}

impl One<'_> {
    /// Submits it to a volume of a storage.
    pub fn submit<S: Storage>(self, storage: &mut S, volume: S::Volume, now: u64) -> Submitted {
        storage.visit(volume, now, self).unwrap_or(Submitted::Done(Status::Failed))
    }
}

impl Visitor for One<'_> {
    type Output = Submitted;

    fn visit(self, target: &mut impl Target) -> Submitted {
        target.submit(self.tag, self.request)
    }
}

/// A volume of a storage that looks it up anew for each request.
pub(crate) struct Plain<'s, S: Storage> {
    pub storage: &'s mut S,
    pub volume: S::Volume,
    pub now: u64,
}

impl<S: Storage> Target for Plain<'_, S> {
    #[inline(always)]
    fn submit(&mut self, tag: Tag, request: &Request<'_>) -> Submitted {
        self.storage.submit(self.volume, tag, request, self.now)
    }
}

/// Storage that an engine polls.
pub trait Storage: Sized {
    /// A handle to a volume. A device has it while it is attached, and again when it is attached the next time.
    type Volume: Copy + Send + 'static;

    /// Whether a flush of the one volume makes the writes of the other durable too: they are parts of the same disk.
    fn are_flushed_together(_: Self::Volume, _: Self::Volume) -> bool {
        false
    }

    /// The shape of a volume.
    fn geometry(&self, volume: Self::Volume) -> Geometry;

    /// Whether a volume's size may have changed since the last call. Then [`Storage::wants_poll`] is true before.
    fn take_size_change(&mut self) -> bool {
        false
    }

    /// Blocks of a volume now. 0: it is gone, or has another block size. Everything else of its shape stays.
    fn blocks(&self, volume: Self::Volume) -> u64 {
        self.geometry(volume).blocks
    }

    /// Starts a request. If it answers [`Submitted::Pending`], the storage may use the buffers until the request has
    /// ended; it must keep what it needs of `request`. `now` is the engine's time in ticks.
    fn submit(&mut self, volume: Self::Volume, tag: Tag, request: &Request<'_>, now: u64) -> Submitted;

    /// Looks a volume up, and has `visitor` submit requests to it. A storage over others has the volume looked up there, so
    /// that a request does not go through all layers. `now` is the engine's time in ticks. Returns `None` if there is no
    /// such volume.
    #[inline(always)]
    fn visit<V: Visitor>(&mut self, volume: Self::Volume, now: u64, visitor: V) -> Option<V::Output> {
        Some(visitor.visit(&mut Plain { storage: self, volume, now }))
    }

    /// Tells the device of the requests that were submitted since the last call. The engine calls it once for a batch.
    fn notify(&mut self) {}

    /// Whether [`Storage::poll`] has to be called now although no request is in flight. The engine asks in each turn.
    fn wants_poll(&self) -> bool {
        false
    }

    /// Reports requests that have ended, each once. The storage does not use their buffers any more. The engine calls
    /// it in each turn while a request is in flight.
    fn poll(&mut self, now: u64, ended: &mut impl FnMut(Tag, Status));

    /// Ends a request early. Returns true if it has ended: its buffers are not used any more, and `poll` does not
    /// report it. Returns false if it is still in flight: `poll` reports it, with any status, as soon as the device has
    /// let go of the buffers. It is called at most once for a request. `volume` is the request's.
    fn cancel(&mut self, volume: Self::Volume, tag: Tag) -> bool;
}
