//! Namespaces of NVMe disks: the storage over the I/O queues that an engine owns. The driver is the crate `nvme`.
//!
//! Data goes between the device and the guest's memory. A request becomes one request of the driver, which splits it
//! into commands. `long` divides a request that is too long for the driver.

#![allow(unsafe_code, reason = "gives a device the guest's memory")]

mod at_start;
mod caches;
mod long;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::num::NonZero;

use memory::GuestMemory;
use nvme::dma::{Dma, Segment};
use nvme::registers::Registers;
use nvme::{Format, IoQueue, Limits, Operation as Command, Refused, Request as Ask, Status as Answer};
use virtio::chain::{Segment as Buffer, Span};
use virtio::config::MAX_QUEUE_SIZE;

use crate::storage::{Geometry, One, Operation, Request, Status, Storage, Submitted, Tag, Target, Visitor};
pub use at_start::AtStart;
use caches::Caches;
use long::Long;

/// Most segments of a request. A driver's configuration must have at least so many.
pub const MAX_SEGMENTS: u32 = MAX_QUEUE_SIZE as u32;

/// A namespace of one of the queues' controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Index of the queue, in the order in which they were given to [`Nvme::new`].
    pub queue: usize,
    /// Namespace identifier.
    pub id: u32,
    /// Its shape.
    pub geometry: Geometry,
}

/// Returns the shape of a namespace. `volatile_cache`: the controller has a volatile write cache and it is on.
///
/// # Errors
/// Its blocks have neither 512 nor 4,096 bytes. Returns the bytes.
pub const fn geometry(
    format: &Format,
    limits: &Limits,
    read_only: bool,
    volatile_cache: bool,
) -> Result<Geometry, u32> {
    let block_bytes = format.block_bytes();
    if block_bytes != 512 && block_bytes != 4096 {
        return Err(block_bytes);
    }
    Ok(Geometry {
        block_bytes,
        blocks: format.blocks,
        physical_bytes: block_bytes,
        read_only: read_only || format.read_only,
        volatile_cache,
        max_discard: limits.deallocate_blocks,
        discard_bytes: block_bytes,
        max_zeroes: limits.zero_blocks,
    })
}

/// The NVMe namespaces of an engine.
pub struct Nvme<R, D> {
    queues: Box<[IoQueue<R, D>]>,
    /// [`IoQueue::namespace_changes`] of each queue, as it was last looked at.
    seen: Box<[u32]>,
    /// The engine's ticks in a microsecond.
    ticks: NonZero<u64>,
    /// What is added to a host address to get the bus address.
    offset: u64,
    /// Segments of the request that is being submitted.
    segments: Vec<Segment>,
    long: Long,
    caches: Caches,
}

impl<R: Registers, D: Dma> Nvme<R, D> {
    /// Takes the engine's I/O queues. `ticks` of the engine's clock are a microsecond. The bus address of a guest's
    /// memory is its host address plus `offset`, which may wrap.
    #[must_use]
    pub fn new(queues: Vec<IoQueue<R, D>>, ticks: u64, offset: u64) -> Self {
        let segments = Vec::with_capacity(usize::from(MAX_QUEUE_SIZE));
        let seen = queues.iter().map(IoQueue::namespace_changes).collect();
        let caches = Caches::new(queues.len());
        Self {
            queues: queues.into_boxed_slice(),
            seen,
            ticks: NonZero::new(ticks).unwrap_or(NonZero::<u64>::MIN),
            offset,
            segments,
            long: Long::default(),
            caches,
        }
    }
}

/// Fills `into` with the segments of a request's data. Returns false if there are more than a chain can have, or one of
/// them is not in the guest's memory. This does not happen, because the chain was checked.
fn translate(data: Span<'_>, memory: &GuestMemory, offset: u64, into: &mut Vec<Segment>) -> bool {
    into.clear();
    data.segments().all(|segment| {
        let Ok(at) = memory.translate(segment.gpa, segment.len.into()) else { return false };
        if into.len() == usize::from(MAX_QUEUE_SIZE) {
            return false;
        }
        // SAFETY: the bytes are the guest's memory, and its owner gets that memory back only after every request of the
        // device was answered: `cancel` does not say that a request has ended before the driver has answered it. Nobody
        // forms references to guest memory.
        into.push(unsafe { Segment::new((at.expose_provenance() as u64).wrapping_add(offset), segment.len) });
        true
    })
}

/// The outcome of a submission that the driver refused.
const fn refused(why: Refused) -> Submitted {
    match why {
        Refused::Busy => Submitted::Busy,
        Refused::Unsupported => Submitted::Done(Status::Unsupported),
        Refused::Gone | Refused::Namespace | Refused::Range | Refused::Length | Refused::TooLong => {
            Submitted::Done(Status::Failed)
        }
    }
}

/// The status of a request that has ended.
const fn status(answer: Answer) -> Status {
    match answer {
        Answer::Ok => Status::Ok,
        Answer::Cancelled => Status::Cancelled,
        answer if answer.is_unsupported() => Status::Unsupported,
        _ => Status::Failed,
    }
}

/// A namespace that was looked up.
struct Volume<'n, R, D> {
    queue: &'n mut IoQueue<R, D>,
    /// What is added to a host address to get the bus address.
    offset: u64,
    namespace: Namespace,
    /// The time in microseconds.
    now: u64,
    segments: &'n mut Vec<Segment>,
    long: &'n mut Long,
    caches: &'n mut Caches,
}

impl<R: Registers, D: Dma> Target for Volume<'_, R, D> {
    #[inline(always)]
    fn submit(&mut self, tag: Tag, request: &Request<'_>) -> Submitted {
        // One buffer: most requests.
        let transfer = match request.operation {
            Operation::Read => Some(Command::Read),
            Operation::Write { durable } => Some(Command::Write { fua: durable }),
            _ => None,
        };
        let Request { operation, first, blocks, data, memory } = *request;
        if let (Some(operation), Some(piece)) = (transfer, data.piece()) {
            let ask = Ask { id: tag.0.into(), namespace: self.namespace.id, operation, first, blocks };
            let at = (piece.address() as u64).wrapping_add(self.offset);
            // SAFETY: as in `translate`.
            let segment = unsafe { Segment::new(at, piece.len()) };
            if self.queue.submit_page(&ask, segment, self.now).is_some() {
                return Submitted::Pending;
            }
        }
        let (buffers, place) = data.place();
        self.submit_any(tag, operation, first, blocks, memory, buffers, place)
    }
}

impl<R: Registers, D: Dma> Volume<'_, R, D> {
    /// Submits a request of any form. Its fields are arguments of their own, and of its data there is the place of a
    /// [`Span`]: so a caller keeps them in registers.
    #[inline(never)]
    #[allow(clippy::too_many_arguments, reason = "as above")]
    fn submit_any(
        &mut self,
        tag: Tag,
        operation: Operation,
        first: u64,
        blocks: u32,
        memory: &GuestMemory,
        buffers: &[Buffer],
        place: (u32, u32),
    ) -> Submitted {
        let Self { queue, offset, namespace, now, segments, long, caches } = self;
        let Namespace { queue: index, id, geometry } = *namespace;
        let operation = match operation {
            Operation::Read => Command::Read,
            Operation::Write { durable } => Command::Write { fua: durable },
            Operation::Flush if cfg!(feature = "lose-flushes") => return Submitted::Done(Status::Ok),
            Operation::Flush if geometry.volatile_cache && caches.have_lost(index, id) => {
                return Submitted::Done(Status::Failed);
            }
            Operation::Flush => Command::Flush,
            Operation::Discard => Command::Deallocate,
            Operation::WriteZeroes { unmap, durable } => Command::WriteZeroes { deallocate: unmap, fua: durable },
        };
        let ask = Ask { id: tag.0.into(), namespace: id, operation, first, blocks };
        if !translate(Span::within(buffers, place), memory, *offset, segments) {
            return Submitted::Done(Status::Failed);
        }
        match queue.submit(&ask, segments, *now) {
            Ok(()) => Submitted::Pending,
            Err(Refused::TooLong) if !segments.is_empty() => {
                if long.begin(index, tag, &ask, segments, memory) {
                    long.go_on(queue, segments, *now);
                    Submitted::Pending
                } else {
                    Submitted::Busy
                }
            }
            Err(why) => refused(why),
        }
    }
}

impl<R: Registers, D: Dma> Storage for Nvme<R, D> {
    type Volume = Namespace;

    fn are_flushed_together(one: Namespace, other: Namespace) -> bool {
        (one.queue, one.id) == (other.queue, other.id)
    }

    fn geometry(&self, namespace: Namespace) -> Geometry {
        namespace.geometry
    }

    fn take_size_change(&mut self) -> bool {
        let mut changed = false;
        for (seen, queue) in self.seen.iter_mut().zip(&self.queues) {
            let now = queue.namespace_changes();
            changed |= core::mem::replace(seen, now) != now;
        }
        changed
    }

    fn blocks(&self, namespace: Namespace) -> u64 {
        let format = self.queues.get(namespace.queue).and_then(|queue| queue.namespace(namespace.id));
        format.filter(|f| f.block_bytes() == namespace.geometry.block_bytes).map_or(0, |format| format.blocks)
    }

    fn submit(&mut self, namespace: Namespace, tag: Tag, request: &Request<'_>, now: u64) -> Submitted {
        One { tag, request }.submit(self, namespace, now)
    }

    #[inline(always)]
    fn visit<V: Visitor>(&mut self, namespace: Namespace, now: u64, visitor: V) -> Option<V::Output> {
        let Self { queues, ticks, offset, segments, long, caches, .. } = self;
        let (now, offset) = (now / *ticks, *offset);
        let queue = queues.get_mut(namespace.queue)?;
        Some(visitor.visit(&mut Volume { queue, offset, namespace, now, segments, long, caches }))
    }

    fn notify(&mut self) {
        self.queues.iter_mut().for_each(IoQueue::notify);
    }

    #[inline]
    fn wants_poll(&self) -> bool {
        self.queues.iter().zip(&self.seen).any(|(queue, seen)| queue.wants_poll() || queue.namespace_changes() != *seen)
    }

    fn poll(&mut self, now: u64, ended: &mut impl FnMut(Tag, Status)) {
        let now = now / self.ticks;
        let Self { queues, long, segments, caches, .. } = self;
        for (index, queue) in queues.iter_mut().enumerate() {
            if queue.outstanding() == 0 && !queue.wants_poll() {
                continue;
            }
            queue.poll(now, |id, answer| match u16::try_from(id) {
                Ok(tag) => ended(Tag(tag), status(answer)),
                Err(_) => long.part_ended(status(answer)),
            });
            if queue.is_closed() {
                caches.lose(index);
            }
        }
        let of_long = long.queue().and_then(|queue| queues.get_mut(queue));
        if of_long.is_some_and(|queue| long.go_on(queue, segments, now)) {
            self.notify();
        }
        if let Some((tag, status)) = self.long.take_ended() {
            ended(tag, status);
        }
    }

    fn cancel(&mut self, _: Self::Volume, tag: Tag) -> bool {
        if let Some(ended) = self.long.cancel(tag, &mut self.queues) {
            return ended;
        }
        // The driver answers a cancelled request when the device has let go of the segments.
        !self.queues.iter_mut().any(|queue| queue.cancel(tag.0.into()))
    }
}
