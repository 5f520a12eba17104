//! Takes and completes many requests of a [`Queue`] in one call. This is the fast path of a back-end.
//!
//! A batch looks up the ring once. [`Batch::peek`] shows the next requests without taking them. The back-end writes the
//! used entries in the same order. [`Batch::finish`] takes and completes the requests.
//!
//! A batch handles only short chains of the common form. It ends at any other chain, without a fault. The caller takes
//! that chain with [`Queue::pop`], which knows every form and every fault.
//!
//! The code per request is compiled for each ring format ([`Entries`]). The format is tested once per batch.

use memory::GuestMemory;
use memory::copy::Copier;
use memory::ring::{Row, Slots};
use memory::span::{self, Pairs, Piece, Span, Window};

use super::packed::{self, AVAIL, USED};
use super::request::Token;
use super::ring::{Queue, Ring, either};
use crate::chain::{ChainDescriptor, ChainLimits, DESCRIPTOR_BYTES, Descriptor, INDIRECT, NEXT, WRITE};

/// The requests of one queue, from the next one on.
pub struct Batch<'d> {
    pub(super) queue: &'d mut Queue,
    memory: &'d GuestMemory,
    /// The device's queues that have completions to publish, one bit each.
    pub(super) dirty: &'d mut u16,
}

/// What a buffer is for. The batch remembers a region of memory for each purpose: a driver may have its tables and headers
/// in another region than its data, and one remembered region would then be the wrong one for every other buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Payload.
    Data,
    /// Indirect tables, headers and status bytes of requests.
    Control,
}

impl Purpose {
    /// Which of the two belongs to it.
    #[inline(always)]
    pub(super) const fn of<T>(self, [data, control]: &[T; 2]) -> &T {
        match self {
            Self::Data => data,
            Self::Control => control,
        }
    }

    /// The same.
    #[inline(always)]
    pub(super) const fn of_mut<T>(self, [data, control]: &mut [T; 2]) -> &mut T {
        match self {
            Self::Data => data,
            Self::Control => control,
        }
    }
}

/// The next requests of a queue, not taken yet.
#[derive(Clone, Copy)]
pub enum Peek<'d> {
    /// Requests of a split ring.
    Split(SplitPeek<'d>),
    /// Requests of a packed ring.
    Packed(PackedPeek<'d>),
}

/// The peeked requests of one ring format. They end where the ring ends.
#[allow(clippy::len_without_is_empty, reason = "how many there are is asked once, before they are looked at")]
pub trait Entries<'d>: Copy {
    /// Where their used entries go.
    type Used: Used;

    /// The number of requests, at most.
    fn len(&self) -> usize;

    /// Whether a back-end holds requests of this queue. A request that is held must not be taken again.
    fn holding(&self) -> bool;

    /// Reads the first descriptor of request `i`. Returns:
    /// - `Some`: the descriptor. If request `i` is not offered, the descriptor is neither readable nor writable, and
    ///   starts no chain of two.
    /// - `None`: the ring entry breaks a rule.
    ///
    /// The caller sets `HOLDING` to the value of [`Entries::holding`], or to true.
    fn first<const HOLDING: bool>(&self, batch: &Batch<'d>, i: usize) -> Option<RingDescriptor>;

    /// Reads descriptor `next` of the ring, which another descriptor names as its next. Returns `None` if there is no
    /// such descriptor, or if the ring format has no next fields.
    fn after(&self, next: u16) -> Option<RingDescriptor>;

    /// Reads `table` as an indirect table of two descriptors; the request's id is `head`. Returns `None` if the two are
    /// not a chain.
    fn both(&self, head: u16, table: [[u64; 2]; 2]) -> Option<[RingDescriptor; 2]>;

    /// The table in which chains without an indirect table are linked. `None` if the ring format has no next fields.
    fn chained(&self) -> Option<Pairs<'d>>;

    /// Decodes entry `index` of a table with `count` descriptors. Returns the descriptor, and the index of the next one.
    fn of_table(pair: [u64; 2], index: u32, count: u32) -> (ChainDescriptor, u32);

    /// Where their used entries go.
    fn used(&self) -> Self::Used;
}

/// Where used entries go.
#[allow(clippy::len_without_is_empty, reason = "how many have room is asked once, before they are written")]
pub trait Used: Copy {
    /// The number of used entries.
    fn len(&self) -> usize;

    /// Returns the used entries for requests into which the device writes.
    fn written(self) -> Self;

    /// Writes the used entry of request `i`. The request's id is the lower half of `label`. `bytes` is the number of
    /// bytes that the device wrote: 0, or more than 0 after [`Used::written`].
    fn set(&self, i: usize, label: u32, bytes: u32);

    /// Prefetches the cache lines of the first `count` entries for writing.
    fn prefetch(&self, count: usize);
}

/// Requests of a split ring.
#[derive(Clone, Copy)]
pub struct SplitPeek<'d> {
    avail: Row<'d, u16>,
    desc: Slots<'d, [u64; 2]>,
    used: Row<'d, [u32; 2]>,
    holding: bool,
}

/// Requests of a packed ring. Each request is one descriptor.
#[derive(Clone, Copy)]
pub struct PackedPeek<'d> {
    offered: Row<'d, [u64; 2]>,
    /// AVAIL and USED of an offered descriptor, at their place in its second half.
    is_offered: u64,
    used: PackedUsed<'d>,
}

/// The descriptors of a packed ring that are used next.
#[derive(Clone, Copy)]
pub struct PackedUsed<'d> {
    descriptors: Row<'d, [u64; 2]>,
    /// The flags of a used descriptor, at their place in its second half.
    flags: u64,
    /// The flags of the first one. They differ while the driver must not see it as used.
    first: u64,
}

impl<'d> Entries<'d> for SplitPeek<'d> {
    type Used = Row<'d, [u32; 2]>;

    #[inline(always)]
    fn len(&self) -> usize {
        self.avail.len().min(self.used.len())
    }

    #[inline(always)]
    fn holding(&self) -> bool {
        self.holding
    }

    #[inline(always)]
    fn first<const HOLDING: bool>(&self, batch: &Batch<'d>, i: usize) -> Option<RingDescriptor> {
        let head = self.avail.get(i)?;
        if HOLDING && batch.queue.holds(head) {
            return None;
        }
        let (addr, len, flags) = self.desc.get(head)?;
        Some(RingDescriptor { label: u32::from(head), addr, len, flags })
    }

    fn after(&self, next: u16) -> Option<RingDescriptor> {
        let (addr, len, flags) = self.desc.get(next)?;
        Some(RingDescriptor { label: u32::from(next), addr, len, flags })
    }

    fn both(&self, head: u16, table: [[u64; 2]; 2]) -> Option<[RingDescriptor; 2]> {
        let both = table.map(|[addr, rest]| RingDescriptor {
            label: u32::from(head),
            addr,
            len: rest as u32,
            flags: (rest >> 32) as u32,
        });
        // NEXT is set, and the next field is 1.
        const LINKED: u32 = 1 << 16 | NEXT as u32;
        (both[0].flags & (FLAGS | 0xffff << 16) == LINKED).then_some(both)
    }

    #[inline(always)]
    fn chained(&self) -> Option<Pairs<'d>> {
        Some(self.desc.pairs())
    }

    #[inline(always)]
    fn of_table([addr, rest]: [u64; 2], _: u32, _: u32) -> (ChainDescriptor, u32) {
        let flags = (rest >> 32) as u16;
        let last = flags & NEXT == 0;
        (ChainDescriptor { addr, len: rest as u32, flags, last }, (rest >> 48) as u32)
    }

    #[inline(always)]
    fn used(&self) -> Self::Used {
        self.used
    }
}

impl Used for Row<'_, [u32; 2]> {
    #[inline(always)]
    fn len(&self) -> usize {
        Row::len(self)
    }

    #[inline(always)]
    fn written(self) -> Self {
        self
    }

    #[inline(always)]
    fn set(&self, i: usize, label: u32, bytes: u32) {
        Row::set(self, i, [u32::from(label as u16), bytes]);
    }

    #[inline(always)]
    fn prefetch(&self, count: usize) {
        self.prefetch_to_write(count);
    }
}

impl<'d> Entries<'d> for PackedPeek<'d> {
    type Used = PackedUsed<'d>;

    #[inline(always)]
    fn len(&self) -> usize {
        self.offered.len().min(self.used.len())
    }

    /// Always false: the driver alone chooses the ids of a packed ring.
    #[inline(always)]
    fn holding(&self) -> bool {
        false
    }

    #[inline(always)]
    fn first<const HOLDING: bool>(&self, _: &Batch<'d>, i: usize) -> Option<RingDescriptor> {
        let [addr, rest] = self.offered.get(i)?;
        let rest = rest ^ self.is_offered;
        let (Descriptor { len, flags, .. }, _) = Descriptor::of_packed(addr, rest);
        Some(RingDescriptor { label: (rest >> 32) as u32, addr, len, flags: u32::from(flags) })
    }

    fn after(&self, _: u16) -> Option<RingDescriptor> {
        None
    }

    fn both(&self, head: u16, table: [[u64; 2]; 2]) -> Option<[RingDescriptor; 2]> {
        let both = table.map(|[addr, rest]| {
            let (Descriptor { len, flags, .. }, _) = Descriptor::of_packed(addr, rest);
            // No other flag has a meaning there (2.8.7).
            RingDescriptor { label: u32::from(head), addr, len, flags: u32::from(flags & (WRITE | INDIRECT)) }
        });
        both[0].is_readable().then_some(both)
    }

    fn chained(&self) -> Option<Pairs<'d>> {
        None
    }

    #[inline(always)]
    fn of_table([addr, rest]: [u64; 2], index: u32, count: u32) -> (ChainDescriptor, u32) {
        let (Descriptor { len, flags, .. }, _) = Descriptor::of_packed(addr, rest);
        // The whole table is the chain. NEXT has no meaning in it (2.8.7).
        let next = index.wrapping_add(1);
        (ChainDescriptor { addr, len, flags, last: next == count }, next)
    }

    #[inline(always)]
    fn used(&self) -> Self::Used {
        self.used
    }
}

impl Used for PackedUsed<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.descriptors.len()
    }

    #[inline(always)]
    fn written(self) -> Self {
        let write = packed::used_word(0, 0, WRITE);
        Self { flags: self.flags | write, first: self.first | write, ..self }
    }

    #[inline(always)]
    fn set(&self, i: usize, label: u32, bytes: u32) {
        let flags = if i == 0 { self.first } else { self.flags };
        self.descriptors.set_second(i, packed::used_word(u32::from(label as u16), bytes, 0) | flags);
    }

    #[inline(always)]
    fn prefetch(&self, count: usize) {
        self.descriptors.prefetch_to_write(count);
    }
}

/// The first descriptor of a chain.
#[derive(Clone, Copy)]
pub struct RingDescriptor {
    /// The lower half is the request's id: the descriptor's index in a split ring, the buffer id in a packed ring. The
    /// upper half is 0 in a split ring, and the flags in a packed ring.
    label: u32,
    addr: u64,
    len: u32,
    /// The flags. In a split ring, the next descriptor's index is in the upper half. In a packed ring, AVAIL and USED
    /// are 0 if the descriptor is offered.
    flags: u32,
}

/// The flags that are tested. AVAIL and USED have no meaning in a split ring. A driver that sets them there is still
/// served, but one request at a time.
const FLAGS: u32 = (NEXT | WRITE | INDIRECT | AVAIL | USED) as u32;

impl RingDescriptor {
    /// The request's id.
    #[inline(always)]
    pub const fn id(&self) -> u16 {
        self.label as u16
    }

    /// The label. Its lower half is the request's id. Its highest bit and bit 16 are 0 if the request is a chain of
    /// one.
    #[inline(always)]
    pub const fn label(&self) -> u32 {
        self.label
    }

    /// Whether the request is a chain of one that the device reads.
    #[inline(always)]
    pub const fn is_readable(&self) -> bool {
        self.flags & FLAGS == 0
    }

    /// Whether the request is a chain of one that the device writes.
    #[inline(always)]
    pub const fn is_writable(&self) -> bool {
        self.flags & FLAGS == WRITE as u32
    }

    /// Finds the buffer in `window`. Returns its first `N` bytes and the buffer; `None` if it is not in the window.
    #[inline(always)]
    pub fn within<'d, const N: usize>(&self, window: &Window<'d, N>) -> Option<(span::Prefix<'d, N>, Piece<'d>)> {
        window.piece(self.addr, self.len)
    }

    /// Whether the request is a chain in an indirect table.
    #[inline(always)]
    pub(super) const fn is_table(&self) -> bool {
        self.flags & FLAGS == INDIRECT as u32
    }

    /// Whether another descriptor of the ring follows, and the device reads this one.
    #[inline(always)]
    pub(super) const fn is_linked(&self) -> bool {
        self.flags & FLAGS == NEXT as u32
    }

    /// The guest-physical address of the buffer.
    #[inline(always)]
    pub(super) const fn addr(&self) -> u64 {
        self.addr
    }

    /// The flags. The next descriptor's index is in the upper half if the ring is split.
    #[inline(always)]
    pub(super) const fn flags(&self) -> u32 {
        self.flags
    }

    /// The length of the buffer in bytes.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty, reason = "a descriptor is not a collection")]
    pub const fn len(&self) -> u32 {
        self.len
    }
}

impl<'d> Peek<'d> {
    /// The number of requests, at most. It is 0 only if there is none.
    #[inline(always)]
    pub fn len(&self) -> usize {
        match self {
            Self::Split(peek) => peek.len(),
            Self::Packed(peek) => peek.len(),
        }
    }

    /// Whether there is no request.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'d> Batch<'d> {
    /// Starts a batch. `dirty` is the device's set of queues that have completions to publish, one bit each.
    #[inline(always)]
    pub fn new(queue: &'d mut Queue, memory: &'d GuestMemory, dirty: &'d mut u16) -> Self {
        Self { queue, memory, dirty }
    }

    /// The guest's memory.
    #[must_use]
    #[inline(always)]
    pub const fn memory(&self) -> &'d GuestMemory {
        self.memory
    }

    /// The limits of the queue's chains.
    #[must_use]
    #[inline(always)]
    pub fn limits(&self) -> ChainLimits {
        let table = either!(&self.queue.ring, ring => ring.table());
        ChainLimits { descriptors: table.size, indirect: table.indirect }
    }

    /// The copy routine for the buffers.
    pub fn copier(&self) -> Copier {
        self.memory.copier()
    }

    /// Shows the next requests, up to `most`, without taking them. Returns `None` if the ring cannot be used for
    /// batches, or if the driver's index breaks a rule.
    #[inline(always)]
    pub fn peek(&mut self, most: usize) -> Option<Peek<'d>> {
        let holding = self.queue.in_flight != 0;
        match &mut self.queue.ring {
            Ring::Split(ring) => {
                let available = usize::from(ring.available().ok()?);
                let (avail, desc, used) = ring.rings?;
                let most = most.min(available);
                let (avail, used) = (avail.row(ring.next_avail, most), used.row(ring.next_used, most));
                Some(Peek::Split(SplitPeek { avail, desc, used, holding }))
            }
            Ring::Packed(ring) => {
                let none = ring.available().ok()? == 0;
                let (entries, size) = (ring.entries?, ring.size());
                let most = if none { 0 } else { most.min(usize::from(ring.offerable())) };
                let flags = ring.next_used.used(size);
                let hide = if ring.next_used == ring.published { USED } else { 0 };
                Some(Peek::Packed(PackedPeek {
                    offered: entries.row(ring.next_avail.slot(size), most),
                    is_offered: packed::used_word(0, 0, ring.next_avail.offered(size)),
                    used: PackedUsed {
                        descriptors: entries.row(ring.next_used.slot(size), most),
                        flags: packed::used_word(0, 0, flags),
                        first: packed::used_word(0, 0, flags ^ hide),
                    },
                }))
            }
        }
    }

    /// Whether no request is known after the next `count`.
    #[inline(always)]
    pub fn ends_after(&self, count: usize) -> bool {
        either!(&self.queue.ring, ring => ring.ends_after(count as u16))
    }

    /// The memory region of the last buffer of this purpose. Most often it holds the next one too.
    #[inline(always)]
    pub fn span(&self, purpose: Purpose) -> Span<'d> {
        self.memory.span(usize::from(*purpose.of(&self.queue.regions)))
    }

    /// Finds the data of a descriptor in any region. Returns the buffer and its region. `Batch::buffer` then looks
    /// for later data in that region first.
    #[inline(always)]
    pub fn locate(&mut self, first: &RingDescriptor) -> Option<(Piece<'d>, Span<'d>)> {
        self.find(first.addr, first.len(), Purpose::Data)
    }

    /// The data of a descriptor.
    #[inline(always)]
    pub fn buffer(&mut self, first: &RingDescriptor) -> Option<Piece<'d>> {
        self.piece(first, Purpose::Data)
    }

    /// The buffer of a descriptor.
    #[inline(always)]
    fn piece(&mut self, first: &RingDescriptor, purpose: Purpose) -> Option<Piece<'d>> {
        match self.span(purpose).piece(first.addr, first.len()) {
            Some(piece) => Some(piece),
            None => Some(self.find(first.addr, first.len(), purpose)?.0),
        }
    }

    /// [`Batch::locate`] by address, length and purpose. It does not take the descriptor, because the compiler would then
    /// keep each descriptor in memory.
    #[cold]
    #[inline(never)]
    pub(super) fn find(&mut self, gpa: u64, len: u32, purpose: Purpose) -> Option<(Piece<'d>, Span<'d>)> {
        let region = self.memory.region_of(gpa, len)?;
        *purpose.of_mut(&mut self.queue.regions) = region as u8;
        let span = self.span(purpose);
        Some((span.piece(gpa, len)?, span))
    }

    /// Finds the two buffers of a chain of two that the device reads. The second descriptor is in the ring, or both are
    /// in an indirect table. Returns `None` for any other chain.
    pub fn chain_of_two<L: Entries<'d>>(&mut self, peek: &L, first: &RingDescriptor) -> Option<[Piece<'d>; 2]> {
        const LINKED: u32 = NEXT as u32;
        const TABLE: u32 = INDIRECT as u32;
        let [first, second] = match first.flags & FLAGS {
            LINKED => [*first, peek.after((first.flags >> 16) as u16)?],
            TABLE => peek.both(first.id(), self.table_of_two(first)?)?,
            _ => return None,
        };
        let fits = first.len().checked_add(second.len()).is_some();
        if !second.is_readable() || first.len() == 0 || second.len() == 0 || !fits {
            return None;
        }
        Some([self.buffer(&first)?, self.buffer(&second)?])
    }

    /// Reads the indirect table of two descriptors that `first` names.
    fn table_of_two(&mut self, first: &RingDescriptor) -> Option<[[u64; 2]; 2]> {
        const BYTES: usize = 2 * DESCRIPTOR_BYTES as usize;
        let allowed = either!(&self.queue.ring, ring => ring.table().allows_tables_of(2));
        if !allowed || first.len() as usize != BYTES {
            return None;
        }
        let table = self.piece(first, Purpose::Control)?.first::<BYTES>()?;
        Some([[table.load_u64::<0>(), table.load_u64::<8>()], [table.load_u64::<16>(), table.load_u64::<24>()]])
    }

    /// Takes the next `count` requests and completes them with the used entries that were written.
    /// - `wrote`: the device wrote into their buffers.
    /// - `show`: publish them now, not only at the end of the visit.
    #[inline(always)]
    pub fn finish(mut self, count: usize, wrote: bool, show: bool) {
        if count == 0 {
            return;
        }
        self.complete(count, wrote);
        if show {
            either!(&mut self.queue.ring, ring => ring.publish());
        }
    }

    /// As [`Batch::finish`] without `show`. The batch goes on with the requests after these. Entries that were peeked
    /// stay valid.
    #[inline(always)]
    pub fn complete(&mut self, count: usize, wrote: bool) {
        if count == 0 {
            return;
        }
        match &mut self.queue.ring {
            Ring::Split(ring) => ring.advance(self.memory, count as u16),
            Ring::Packed(ring) => ring.advance(count as u16, wrote),
        }
        *self.dirty |= 1 << self.queue.index;
    }

    /// Takes the next request, whose id is `id`, to complete it later. Returns `None` if the ring is split and a
    /// request with this id is held already.
    #[inline(always)]
    pub fn hold(&mut self, id: u16) -> Option<Token> {
        (!self.queue.holds(id)).then(|| self.hold_next(id))
    }

    /// The same for a request whose first descriptor was read after all that are held now were taken: [`Entries::first`]
    /// has looked whether it is one of them.
    #[inline(always)]
    pub fn hold_next(&mut self, id: u16) -> Token {
        let Queue { ring, origin, in_flight, .. } = &mut *self.queue;
        let taken = either!(ring, ring => ring.hold(id));
        *in_flight = in_flight.wrapping_add(1);
        Token { origin: *origin, taken }
    }

    /// Puts back the request that was taken last.
    pub fn rewind(&mut self, token: Token) {
        self.queue.rewind(token);
    }

    /// Ends a batch whose requests were taken one by one.
    #[inline(always)]
    pub fn finish_held(&mut self) {
        if let Ring::Split(ring) = &mut self.queue.ring {
            ring.were_held(self.memory);
        }
    }
}
