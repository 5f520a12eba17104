//! Requests of a queue taken and completed by runs: what the fast way of a back-end uses of a [`Queue`].
//!
//! The rings are looked up once for a run. Requests are looked at without being taken, as many as are wanted; used entries
//! are written in the same order; and [`Run::finish`] takes and completes so many of them. A run knows only chains of the
//! usual form and says nothing about others: whoever finds one takes it by [`Queue::pop`], which knows every form and every
//! fault.

use memory::GuestMemory;
use memory::copy::Copier;
use memory::span::{Piece, Row, Slots, Span};

use super::{Queue, Token};
use crate::chain::{INDIRECT, NEXT, WRITE};

/// The requests of one queue from the next one on.
pub(crate) struct Run<'d> {
    queue: &'d mut Queue,
    memory: &'d GuestMemory,
    /// The device's queues with completions to publish.
    dirty: &'d mut u16,
}

/// Where used entries go.
pub(crate) type UsedRow<'d> = Row<'d, [u32; 2]>;

/// A look at some of them. The rows end where their ring does, so there may be less of the one than of the other.
#[derive(Clone, Copy)]
pub(crate) struct Look<'d> {
    avail: Row<'d, u16>,
    desc: Slots<'d, [u64; 2]>,
    /// Where their used entries go.
    pub used: UsedRow<'d>,
    /// Requests held by a back-end were taken from this queue.
    pub holding: bool,
}

/// The first descriptor of a chain.
#[derive(Clone, Copy)]
pub(crate) struct First {
    /// Its number, which names the request.
    pub head: u16,
    addr: u64,
    len: u32,
    /// The flags, and above them the number of the next descriptor.
    flags: u32,
}

const FLAGS: u32 = (NEXT | WRITE | INDIRECT) as u32;

impl First {
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

    /// Bytes of its buffer.
    #[inline(always)]
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }
}

impl Look<'_> {
    /// For how many requests there is an entry in both rings.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.avail.len().min(self.used.len())
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

    /// How many requests there are. None if the driver's index breaks a rule.
    #[inline(always)]
    pub(crate) fn available(&mut self) -> Option<u16> {
        self.queue.available(self.memory).ok()
    }

    /// Looks at the next requests, `most` of them or what is available. None if the rings cannot be used this way.
    #[inline(always)]
    pub(crate) fn look(&mut self, most: usize) -> Option<Look<'d>> {
        let most = most.min(usize::from(self.available()?));
        let queue = &*self.queue;
        let (avail, desc, used) = queue.rings?;
        Some(Look {
            avail: avail.row(queue.next_avail, most),
            desc,
            used: used.row(queue.next_used, most),
            holding: queue.in_flight != 0,
        })
    }

    /// The first descriptor of request `i` of a look. None if it breaks a rule.
    /// `HOLDING` is [`Look::holding`], or true.
    #[inline(always)]
    pub(crate) fn first<const HOLDING: bool>(&self, look: &Look<'d>, i: usize) -> Option<First> {
        let head = look.avail.get(i)?;
        if HOLDING && self.queue.holds(head) {
            return None;
        }
        let (addr, len, flags) = look.desc.get(head)?;
        Some(First { head, addr, len, flags })
    }

    /// The region that held the last buffer: most often the next one's too.
    #[inline(always)]
    pub(crate) fn span(&self) -> Span<'d> {
        self.memory.span(usize::from(self.queue.region))
    }

    /// The buffer of a descriptor, which is looked for in `span` first; that is where it was found, afterwards.
    #[inline(always)]
    pub(crate) fn buffer(&mut self, span: &mut Span<'d>, first: &First) -> Option<Piece<'d>> {
        match span.piece(first.addr, first.len()) {
            Some(piece) => Some(piece),
            None => {
                *span = self.elsewhere(first.addr, first.len())?;
                span.piece(first.addr, first.len())
            }
        }
    }

    /// Finds another region, and remembers it.
    #[cold]
    #[inline(never)]
    fn elsewhere(&mut self, gpa: u64, len: u32) -> Option<Span<'d>> {
        let region = self.memory.region_of(gpa, len)?;
        self.queue.region = region as u8;
        Some(self.span())
    }

    /// The buffers of a chain of two that the device reads.
    pub(crate) fn two(&mut self, look: &Look<'d>, first: &First) -> Option<[Piece<'d>; 2]> {
        if first.flags & FLAGS != u32::from(NEXT) {
            return None;
        }
        let next = (first.flags >> 16) as u16;
        let (addr, len, flags) = look.desc.get(next)?;
        let second = First { head: next, addr, len, flags };
        let fits = first.len().checked_add(second.len()).is_some();
        if !second.is_readable() || first.len() == 0 || second.len() == 0 || !fits {
            return None;
        }
        let mut span = self.span();
        Some([self.buffer(&mut span, first)?, self.buffer(&mut span, &second)?])
    }

    /// Takes the next `count` requests, and completes them with the used entries that were written.
    #[inline(always)]
    pub(crate) fn finish(self, count: usize) {
        if count == 0 {
            return;
        }
        let Self { queue, memory, dirty } = self;
        queue.next_avail = queue.next_avail.wrapping_add(count as u16);
        queue.next_used = queue.next_used.wrapping_add(count as u16);
        // The used ring is in the guest's memory: it was found there by `look`.
        let _ = queue.keep_event_ahead(memory);
        *dirty |= 1 << queue.index;
    }

    /// Takes the next request, whose chain begins at `head`, to be completed later. None if that one is out already.
    #[inline(always)]
    pub(crate) fn hold(&mut self, head: u16) -> Option<Token> {
        let queue = &mut *self.queue;
        if queue.holds(head) {
            return None;
        }
        queue.set_held(head, true);
        queue.in_flight += 1;
        let position = queue.next_avail;
        queue.next_avail = position.wrapping_add(1);
        Some(Token { queue: queue.index, generation: queue.generation, head, position })
    }

    /// Gives back the request that was taken last.
    pub(crate) fn rewind(&mut self, token: Token) {
        self.queue.rewind(token);
    }

    /// Ends a run whose requests were taken one by one.
    #[inline(always)]
    pub(crate) fn finish_held(self) {
        // As in `finish`.
        let _ = self.queue.keep_event_ahead(self.memory);
    }
}
