//! Completes requests that the storage has ended, many in one call. The device and its ring are looked up once for
//! successive reads and writes of one queue that have succeeded. All other requests are completed one by one
//! ([`crate::backend`]).

use alloc::boxed::Box;

use memory::GuestMemory;
use memory::span::{Piece, Span};
use virtio::queue::Complete;

use crate::counters::BlockCounters;
use crate::flushes::Flushes;
use crate::in_flight::{Direction, InFlight, Transfer};
use crate::outcome::{self, OK};
use crate::storage::{MAX_TAGS, Operation, Status, Tag};

/// Room for as many requests as there are tags.
pub type Room = Box<[(Tag, Status); MAX_TAGS]>;

/// Makes it.
pub fn room() -> Room {
    Box::new([(Tag(0), Status::Ok); MAX_TAGS])
}

/// Requests that have ended, in the order in which the storage said so.
pub struct Ended<'r> {
    requests: &'r mut [(Tag, Status); MAX_TAGS],
    count: usize,
}

impl<'r> Ended<'r> {
    /// None.
    pub const fn new(room: &'r mut Room) -> Self {
        Self { requests: room, count: 0 }
    }

    /// Adds one. There is room: each tag in flight ends once.
    #[inline(always)]
    pub fn push(&mut self, tag: Tag, status: Status) {
        if let Some(place) = self.requests.get_mut(self.count) {
            *place = (tag, status);
            self.count = self.count.wrapping_add(1);
        }
    }

    /// All of them.
    pub fn all(&self) -> &[(Tag, Status)] {
        self.requests.get(..self.count).unwrap_or_default()
    }
}

/// What requests of one device are completed with.
pub struct Queue<'b> {
    pub slot: u8,
    pub memory: &'b GuestMemory,
    /// The region of memory that is searched first.
    pub region: Span<'b>,
    pub in_flight: &'b mut InFlight,
    /// Requests of the device that are in flight.
    pub own_in_flight: &'b mut u16,
    pub counters: &'b BlockCounters,
    pub flushes: &'b mut Flushes,
}

/// What was done with requests from the beginning of a list.
#[derive(Default)]
pub struct Done {
    /// Requests that were taken from the list.
    pub taken: u16,
    /// Those of them whose tokens were stale.
    pub stale: u16,
    /// A status byte is not in the guest's memory: the device must fail. This does not happen, because the buffer was
    /// checked when the request was taken.
    pub lost: bool,
}

impl Queue<'_> {
    /// Completes requests from the beginning of a list, as long as they are reads and writes of one queue that have
    /// succeeded.
    #[inline(always)]
    pub fn complete<C: Complete>(self, mut completer: C, ended: &[(Tag, Status)]) -> Done {
        let Self { slot, memory, mut region, in_flight, own_in_flight, counters, flushes } = self;
        let mut done = Done::default();
        let origin = completer.origin();
        for (tag, status) in ended {
            if *status != Status::Ok {
                break;
            }
            let Some(transfer) = in_flight.remove_transfer(*tag, slot, origin) else { break };
            let Transfer { token, direction, bytes, status, .. } = transfer;
            done.taken = done.taken.wrapping_add(1);
            match region.piece(status, 1).and_then(Piece::first::<1>) {
                Some(byte) => byte.store(OK),
                None => {
                    let Some(other) = memory.region_of(status, 1) else {
                        done.lost = true;
                        break;
                    };
                    region = memory.span(other);
                    if let Some(byte) = region.piece(status, 1).and_then(Piece::first::<1>) {
                        byte.store(OK);
                    }
                }
            }
            if direction == Direction::Read {
                let (_, used) = outcome::answer(Operation::Read, bytes, Status::Ok);
                if !completer.complete(token, used) {
                    done.stale = done.stale.wrapping_add(1);
                    continue;
                }
                outcome::count(counters, Operation::Read, Status::Ok, bytes);
            } else {
                const WRITE: Operation = Operation::Write { durable: false };
                if direction == Direction::Write {
                    flushes.wrote();
                }
                let (_, used) = outcome::answer(WRITE, bytes, Status::Ok);
                if !completer.complete(token, used) {
                    done.stale = done.stale.wrapping_add(1);
                    continue;
                }
                outcome::count(counters, WRITE, Status::Ok, bytes);
            }
        }
        completer.finish();
        *own_in_flight = own_in_flight.saturating_sub(done.taken);
        done
    }
}
