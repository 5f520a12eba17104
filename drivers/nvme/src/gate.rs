//! How the controller's owner and the owner of an I/O queue work together, on different cores and without locks.
//!
//! ```text
//!   controller ── order ──▶ queue        stop, take commands back, go on
//!   controller ◀── seen ─── queue        the last order that the queue has carried out
//!   controller ◀── trouble, abort ─ queue
//! ```
//!
//! A reset: the controller orders [`Order::Quiesce`] and waits until each queue has seen it. From then on no queue
//! writes a doorbell. The controller ends all DMA, then orders [`Order::Reclaim`]. A queue makes itself empty and keeps
//! its requests. [`Order::Open`] lets it submit them again.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What the controller orders a queue to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Order {
    /// Touch neither the queue's memory nor its doorbells.
    Quiesce = 0,
    /// The device does no DMA: take all commands back and make the queue empty.
    Reclaim = 1,
    /// Work.
    Open = 2,
    /// Take no more requests. Seen once every command is completed.
    Drain = 3,
    /// The device does no DMA and is not used any more: answer all requests with an error.
    Close = 4,
}

impl Order {
    const fn of(word: u64) -> Self {
        match word & 7 {
            1 => Self::Reclaim,
            2 => Self::Open,
            3 => Self::Drain,
            4 => Self::Close,
            _ => Self::Quiesce,
        }
    }
}

/// A numbered order, so that the same order given again is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

impl Ticket {
    /// Before the first order.
    pub(crate) const FIRST: Self = Self(0);

    /// The order.
    #[inline(always)]
    pub(crate) const fn order(self) -> Order {
        Order::of(self.0)
    }
}

/// Why a queue asks for a reset of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Trouble {
    /// A command was neither completed in time nor aborted.
    TimedOut = 1,
    /// A completion names a command that is not outstanding: forged, doubled, or for an older command.
    UnknownCommand = 2,
    /// A completion names another queue, or a head beyond the queue's end.
    BadCompletion = 3,
}

/// What the two share.
#[derive(Debug)]
pub(crate) struct Gate {
    order: AtomicU64,
    seen: AtomicU64,
    trouble: AtomicU32,
    /// A command to abort: its identifier plus one. 0: none.
    abort: AtomicU32,
    /// Completions that cannot be true, since the start.
    rejected: AtomicU32,
    /// CAP.DSTRD, set before [`Order::Reclaim`].
    stride: AtomicU32,
}

impl Gate {
    pub(crate) const fn new() -> Self {
        Self {
            order: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            trouble: AtomicU32::new(0),
            abort: AtomicU32::new(0),
            rejected: AtomicU32::new(0),
            stride: AtomicU32::new(0),
        }
    }

    /// Gives an order. Only the controller calls it.
    pub(crate) fn give(&self, order: Order) {
        let number = (self.order.load(Ordering::Relaxed) >> 3).wrapping_add(1);
        self.order.store(number << 3 | order as u64, Ordering::Release);
    }

    /// Whether the queue has carried out the last order.
    pub(crate) fn is_obeyed(&self) -> bool {
        self.seen.load(Ordering::Acquire) == self.order.load(Ordering::Relaxed)
    }

    /// The last order. Only the queue calls it.
    #[inline(always)]
    pub(crate) fn ticket(&self) -> Ticket {
        Ticket(self.order.load(Ordering::Acquire))
    }

    /// The queue has carried out an order.
    pub(crate) fn obeyed(&self, ticket: Ticket) {
        self.seen.store(ticket.0, Ordering::Release);
    }

    /// The queue asks for a reset.
    pub(crate) fn report(&self, trouble: Trouble) {
        if trouble != Trouble::TimedOut {
            self.rejected.fetch_add(1, Ordering::Relaxed);
        }
        self.trouble.store(trouble as u32, Ordering::Release);
    }

    /// What the queue has reported. The controller forgets it when a reset begins.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        match self.trouble.load(Ordering::Acquire) {
            1 => Some(Trouble::TimedOut),
            2 => Some(Trouble::UnknownCommand),
            3 => Some(Trouble::BadCompletion),
            _ => None,
        }
    }

    /// Forgets what the queue has reported. The queue is quiet.
    pub(crate) fn forget(&self) {
        self.trouble.store(0, Ordering::Release);
        self.abort.store(0, Ordering::Release);
    }

    /// The queue asks for a command to be aborted. Returns false if an earlier one was not taken yet.
    pub(crate) fn ask_abort(&self, cid: u16) -> bool {
        self.abort.compare_exchange(0, u32::from(cid) + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Takes the command to abort.
    pub(crate) fn take_abort(&self) -> Option<u16> {
        if self.abort.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.abort.swap(0, Ordering::AcqRel).checked_sub(1).map(|cid| cid as u16)
    }

    /// Completions that cannot be true.
    pub(crate) fn rejected(&self) -> u32 {
        self.rejected.load(Ordering::Relaxed)
    }

    /// Sets CAP.DSTRD for the queue.
    pub(crate) fn set_stride(&self, stride: u8) {
        self.stride.store(u32::from(stride), Ordering::Relaxed);
    }

    /// CAP.DSTRD.
    pub(crate) fn stride(&self) -> u8 {
        self.stride.load(Ordering::Relaxed) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::{Gate, Order, Trouble};

    #[test]
    fn an_order_counts_as_obeyed_only_by_its_own_ticket() {
        let gate = Gate::new();
        gate.give(Order::Reclaim);
        let first = gate.ticket();
        gate.give(Order::Reclaim);
        gate.obeyed(first);
        assert!(!gate.is_obeyed() && first.order() == Order::Reclaim);
        gate.obeyed(gate.ticket());
        assert!(gate.is_obeyed());
    }

    #[test]
    fn one_abort_waits_at_a_time_and_command_0_is_one() {
        let gate = Gate::new();
        assert_eq!(gate.take_abort(), None);
        assert!(gate.ask_abort(0) && !gate.ask_abort(7));
        assert_eq!((gate.take_abort(), gate.take_abort()), (Some(0), None));
        gate.report(Trouble::BadCompletion);
        assert_eq!((gate.trouble(), gate.rejected()), (Some(Trouble::BadCompletion), 1));
        gate.forget();
        assert_eq!(gate.trouble(), None);
    }
}
