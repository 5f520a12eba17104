//! Requests of a queue taken and completed by runs: what the fast way of a back-end uses of a [`Queue`].
//!
//! The ring is looked up once for a run. Requests are looked at without being taken, as many as are wanted; used entries
//! are written in the same order; and [`Run::finish`] takes and completes so many of them. A run knows only chains of the
//! usual form and says nothing about others: whoever finds one takes it by [`Queue::pop`], which knows every form and every
//! fault.
//!
//! What is done for each request is made for either form of ring ([`Entries`]); which one it is, is asked once a run.

use memory::GuestMemory;
use memory::copy::Copier;
use memory::span::{self, Piece, Row, Slots, Span, Window};

use super::packed::{self, AVAIL, USED};
use super::{Queue, Ring, Token, either};
use crate::chain::{DESCRIPTOR_BYTES, Descriptor, INDIRECT, NEXT, WRITE};

/// The requests of one queue from the next one on.
pub(crate) struct Run<'d> {
    queue: &'d mut Queue,
    memory: &'d GuestMemory,
    /// The device's queues with completions to publish.
    dirty: &'d mut u16,
}

/// A look at some of them.
#[derive(Clone, Copy)]
pub(crate) enum Look<'d> {
    Split(SplitLook<'d>),
    Packed(PackedLook<'d>),
}

/// Requests that were looked at, as a ring of one form has them. Where the ring ends, they end.
pub(crate) trait Entries<'d>: Copy {
    /// Where their used entries go.
    type Used: Used;

    /// How many there are, at most.
    fn len(&self) -> usize;

    /// Whether requests that a back-end holds were taken from this queue, and are not to be found there again.
    fn holding(&self) -> bool;

    /// The first descriptor of request `i`. None if it breaks a rule. One that is not there is neither readable nor writable, and
    /// no chain of two. `HOLDING` is [`Entries::holding`], or true.
    fn first<const HOLDING: bool>(&self, run: &Run<'d>, i: usize) -> Option<First>;

    /// The descriptor of that number, behind one that names it as its next. None also where it is not named.
    fn after(&self, next: u16) -> Option<First>;

    /// The two descriptors of an indirect table that is this. None if they are no chain of two.
    fn both(&self, head: u16, table: [[u64; 2]; 2]) -> Option<[First; 2]>;

    /// Where their used entries go.
    fn used(&self) -> Self::Used;
}

/// Where used entries go.
pub(crate) trait Used: Copy {
    /// How many have room.
    fn len(&self) -> usize;

    /// The same of requests that are written into.
    fn written(self) -> Self;

    /// Writes that of request `i`: its name, which is the lower half of `mark`, and how many bytes were written into it, none or, if
    /// they are [`Used::written`], some.
    fn set(&self, i: usize, mark: u32, bytes: u32);

    /// Has the lines of the first `count` fetched, to be written.
    fn prefetch(&self, count: usize);
}

/// Of a split ring.
#[derive(Clone, Copy)]
pub(crate) struct SplitLook<'d> {
    avail: Row<'d, u16>,
    desc: Slots<'d, [u64; 2]>,
    used: Row<'d, [u32; 2]>,
    holding: bool,
}

/// Of a packed ring. Each request is one descriptor.
#[derive(Clone, Copy)]
pub(crate) struct PackedLook<'d> {
    offered: Row<'d, [u64; 2]>,
    /// AVAIL and USED of an offered descriptor, where they stand in its second half.
    is_offered: u64,
    used: PackedUsed<'d>,
}

/// Descriptors of a packed ring that are used next.
#[derive(Clone, Copy)]
pub(crate) struct PackedUsed<'d> {
    descriptors: Row<'d, [u64; 2]>,
    /// The flags of a used descriptor, where they stand in its second half.
    flags: u64,
    /// Those of the first one: they differ, for the driver not to see it yet.
    first: u64,
}

impl<'d> Entries<'d> for SplitLook<'d> {
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
    fn first<const HOLDING: bool>(&self, run: &Run<'d>, i: usize) -> Option<First> {
        let head = self.avail.get(i)?;
        if HOLDING && run.queue.holds(head) {
            return None;
        }
        let (addr, len, flags) = self.desc.get(head)?;
        Some(First { name: u32::from(head), addr, len, flags })
    }

    fn after(&self, next: u16) -> Option<First> {
        let (addr, len, flags) = self.desc.get(next)?;
        Some(First { name: u32::from(next), addr, len, flags })
    }

    fn both(&self, head: u16, table: [[u64; 2]; 2]) -> Option<[First; 2]> {
        let both = table.map(|[addr, rest]| First {
            name: u32::from(head),
            addr,
            len: rest as u32,
            flags: (rest >> 32) as u32,
        });
        // Its next is the second.
        const LINKED: u32 = 1 << 16 | NEXT as u32;
        (both[0].flags & (FLAGS | 0xffff << 16) == LINKED).then_some(both)
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
    fn set(&self, i: usize, mark: u32, bytes: u32) {
        Row::set(self, i, [u32::from(mark as u16), bytes]);
    }

    #[inline(always)]
    fn prefetch(&self, count: usize) {
        self.prefetch_to_write(count);
    }
}

impl<'d> Entries<'d> for PackedLook<'d> {
    type Used = PackedUsed<'d>;

    #[inline(always)]
    fn len(&self) -> usize {
        self.offered.len().min(self.used.len())
    }

    /// A buffer's id is its driver's affair.
    #[inline(always)]
    fn holding(&self) -> bool {
        false
    }

    #[inline(always)]
    fn first<const HOLDING: bool>(&self, _: &Run<'d>, i: usize) -> Option<First> {
        let [addr, rest] = self.offered.get(i)?;
        let rest = rest ^ self.is_offered;
        let (Descriptor { len, flags, .. }, _) = Descriptor::of_packed(addr, rest);
        Some(First { name: (rest >> 32) as u32, addr, len, flags: u32::from(flags) })
    }

    fn after(&self, _: u16) -> Option<First> {
        None
    }

    fn both(&self, head: u16, table: [[u64; 2]; 2]) -> Option<[First; 2]> {
        let both = table.map(|[addr, rest]| {
            let (Descriptor { len, flags, .. }, _) = Descriptor::of_packed(addr, rest);
            // No other flag has a meaning there (2.8.7).
            First { name: u32::from(head), addr, len, flags: u32::from(flags & (WRITE | INDIRECT)) }
        });
        both[0].is_readable().then_some(both)
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
    fn set(&self, i: usize, mark: u32, bytes: u32) {
        let flags = if i == 0 { self.first } else { self.flags };
        self.descriptors.set_second(i, packed::used_word(u32::from(mark as u16), bytes, 0) | flags);
    }

    #[inline(always)]
    fn prefetch(&self, count: usize) {
        self.descriptors.prefetch_to_write(count);
    }
}

/// The first descriptor of a chain.
#[derive(Clone, Copy)]
pub(crate) struct First {
    /// What names the request is its lower half: its number, or in a packed ring its id. Above it are 0 or, in a packed ring, the flags.
    name: u32,
    addr: u64,
    len: u32,
    /// The flags, and in a split ring above them the number of the next descriptor. In a packed ring those by which it is seen
    /// whether it is offered are 0 if it is.
    flags: u32,
}

/// Those that are looked at. In a split ring two of them have no meaning; a driver that sets them all the same is served as well, but
/// not by runs.
const FLAGS: u32 = (NEXT | WRITE | INDIRECT | AVAIL | USED) as u32;

impl First {
    /// What names the request.
    #[inline(always)]
    pub(crate) const fn head(&self) -> u16 {
        self.name as u16
    }

    /// A number whose lower half that is, and whose highest bit and bit 16 are 0 if it is a chain of one.
    #[inline(always)]
    pub(crate) const fn mark(&self) -> u32 {
        self.name
    }

    /// The device only reads it, and it is a chain of one.
    #[inline(always)]
    pub(crate) const fn is_readable(&self) -> bool {
        self.flags & FLAGS == 0
    }

    /// The device writes it, and it is a chain of one.
    #[inline(always)]
    pub(crate) const fn is_writable(&self) -> bool {
        self.flags & FLAGS == WRITE as u32
    }

    /// Its buffer, and the first `N` bytes from where that begins, if it is found in `window`.
    #[inline(always)]
    pub(crate) fn within<'d, const N: usize>(&self, window: &Window<'d, N>) -> Option<(span::First<'d, N>, Piece<'d>)> {
        window.piece(self.addr, self.len)
    }

    /// Bytes of its buffer.
    #[inline(always)]
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }
}

impl<'d> Look<'d> {
    /// How many requests there are, at most: none only if there is none.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Split(look) => look.len(),
            Self::Packed(look) => look.len(),
        }
    }

    /// Whether there is none.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'d> Run<'d> {
    #[inline(always)]
    pub(crate) fn new(queue: &'d mut Queue, memory: &'d GuestMemory, dirty: &'d mut u16) -> Self {
        Self { queue, memory, dirty }
    }

    /// The copy routine for the buffers.
    pub(crate) fn copier(&self) -> Copier {
        self.memory.copier()
    }

    /// Looks at the next requests, `most` of them or what is available. None if the ring cannot be used this
    /// way, or its driver's index breaks a rule.
    #[inline(always)]
    pub(crate) fn look(&mut self, most: usize) -> Option<Look<'d>> {
        let holding = self.queue.in_flight != 0;
        match &mut self.queue.ring {
            Ring::Split(ring) => {
                let available = usize::from(ring.available().ok()?);
                let (avail, desc, used) = ring.rings?;
                let most = most.min(available);
                let (avail, used) = (avail.row(ring.next_avail, most), used.row(ring.next_used, most));
                Some(Look::Split(SplitLook { avail, desc, used, holding }))
            }
            Ring::Packed(ring) => {
                let none = ring.available().ok()? == 0;
                let (entries, size) = (ring.entries?, ring.size());
                let most = if none { 0 } else { most.min(usize::from(ring.offerable())) };
                let flags = ring.next_used.used(size);
                let hide = if ring.next_used == ring.published { USED } else { 0 };
                Some(Look::Packed(PackedLook {
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

    /// Whether no request is known of behind the next `count`.
    #[inline(always)]
    pub(crate) fn ends_behind(&self, count: usize) -> bool {
        either!(&self.queue.ring, ring => ring.ends_behind(count as u16))
    }

    /// The region that held the last buffer: most often the next one's too.
    #[inline(always)]
    pub(crate) fn span(&self) -> Span<'d> {
        self.memory.span(usize::from(self.queue.region))
    }

    /// The buffer of a descriptor, and the region that holds it, where the next ones are looked for.
    #[inline(always)]
    pub(crate) fn elsewhere(&mut self, first: &First) -> Option<(Piece<'d>, Span<'d>)> {
        self.find(first.addr, first.len())
    }

    /// The buffer of a descriptor.
    #[inline(always)]
    pub(crate) fn buffer(&mut self, first: &First) -> Option<Piece<'d>> {
        match self.span().piece(first.addr, first.len()) {
            Some(piece) => Some(piece),
            None => Some(self.elsewhere(first)?.0),
        }
    }

    /// The same, of an address and a length: to hand on the descriptor itself, each one would have to be kept in memory.
    #[cold]
    #[inline(never)]
    fn find(&mut self, gpa: u64, len: u32) -> Option<(Piece<'d>, Span<'d>)> {
        let region = self.memory.region_of(gpa, len)?;
        self.queue.region = region as u8;
        let span = self.span();
        Some((span.piece(gpa, len)?, span))
    }

    /// The buffers of a chain of two that the device reads; the second descriptor is found in `look`, or both are in an indirect
    /// table.
    pub(crate) fn two<L: Entries<'d>>(&mut self, look: &L, first: &First) -> Option<[Piece<'d>; 2]> {
        const LINKED: u32 = NEXT as u32;
        const TABLE: u32 = INDIRECT as u32;
        let [first, second] = match first.flags & FLAGS {
            LINKED => [*first, look.after((first.flags >> 16) as u16)?],
            TABLE => look.both(first.head(), self.table_of_two(first)?)?,
            _ => return None,
        };
        let fits = first.len().checked_add(second.len()).is_some();
        if !second.is_readable() || first.len() == 0 || second.len() == 0 || !fits {
            return None;
        }
        Some([self.buffer(&first)?, self.buffer(&second)?])
    }

    /// The indirect table of two descriptors that a descriptor names.
    fn table_of_two(&mut self, first: &First) -> Option<[[u64; 2]; 2]> {
        const BYTES: usize = 2 * DESCRIPTOR_BYTES as usize;
        let allowed = either!(&self.queue.ring, ring => ring.table().allows_tables_of(2));
        if !allowed || first.len() as usize != BYTES {
            return None;
        }
        let table = self.buffer(first)?.first::<BYTES>()?;
        Some([[table.load_u64::<0>(), table.load_u64::<8>()], [table.load_u64::<16>(), table.load_u64::<24>()]])
    }

    /// Takes the next `count` requests, and completes them with the used entries that were written. `wrote`: the device
    /// wrote into them. `show`: the driver sees them at once, and not only at the end of the visit.
    #[inline(always)]
    pub(crate) fn finish(self, count: usize, wrote: bool, show: bool) {
        if count == 0 {
            return;
        }
        let Self { queue, memory, dirty } = self;
        match &mut queue.ring {
            Ring::Split(ring) => ring.advance(memory, count as u16),
            Ring::Packed(ring) => ring.advance(count as u16, wrote),
        }
        if show {
            either!(&mut queue.ring, ring => ring.publish());
        }
        *dirty |= 1 << queue.index;
    }

    /// Takes the next request, which has this name, to be completed later. None if that one is out already, in a split ring.
    #[inline(always)]
    pub(crate) fn hold(&mut self, name: u16) -> Option<Token> {
        let Queue { ring, index, generation, in_flight, .. } = &mut *self.queue;
        let taken = match ring {
            Ring::Split(ring) => ring.hold(name)?,
            Ring::Packed(ring) => ring.hold(name),
        };
        *in_flight += 1;
        Some(Token { queue: *index, generation: *generation, taken })
    }

    /// Gives back the request that was taken last.
    pub(crate) fn rewind(&mut self, token: Token) {
        self.queue.rewind(token);
    }

    /// Ends a run whose requests were taken one by one.
    #[inline(always)]
    pub(crate) fn finish_held(&mut self) {
        if let Ring::Split(ring) = &mut self.queue.ring {
            ring.were_held(self.memory);
        }
    }
}
