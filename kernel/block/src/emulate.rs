//! Blocks of 512 bytes on volumes with blocks of 4,096.
//!
//! A request of whole blocks goes to the storage beneath as it is. Any other read or write goes through a bounce buffer: a
//! block that is written in part is read, changed and written (`slot`).
//!
//! **Order.** Between the read and the write of a block nobody else may change it, or one of the two changes is lost. So a
//! request that changes blocks waits while another one in flight changes some of the same blocks. It is answered with
//! [`Submitted::Busy`], and the back-end tries it again. Reads never wait: a driver that reads what it writes at the same
//! time gets either.
//!
//! **Fairness.** The bounce buffers are few, and all devices of an engine share them. A device gets one more only while more
//! are free than it has. So one device alone has half of them, several have equal shares, and one that comes later finds
//! one (Choudhury and Hahne, "Dynamic queue length thresholds", IEEE/ACM Transactions on Networking 6(2), 1998).
//!
//! A discard covers only the whole blocks within its range. A flush covers all that was completed before it, as ever.

mod slot;
mod volume;

use alloc::boxed::Box;
use alloc::vec::Vec;

use engine::devices::table;
use memory::GuestMemory;
use virtio::chain::Segment;

use crate::storage::{Geometry, MAX_TAGS, Operation, Plain, Request, Status, Storage, Submitted, Tag, Visitor};
use slot::{BUFFER, Slot};
use volume::{BLOCK, PER_BLOCK, PER_BLOCK_WIDE};
pub use volume::{Emulated, EmulationCounters};

/// Requests of an engine that go through bounce buffers at the same time. Drivers that know the size of the physical blocks
/// have few of them.
const SLOTS: usize = 8;
/// Bytes of memory for the bounce buffers of an engine.
pub const BOUNCE_BYTES: u64 = SLOTS as u64 * BUFFER;

/// What a tag in flight stands for.
#[derive(Clone, Copy)]
enum Role {
    /// A request that went to the storage beneath, and changes no emulated blocks. So is every tag that is not in flight.
    Plain,
    /// A request of whole blocks that changes them.
    Change,
    /// A request in a slot.
    Slot(usize),
}

/// Blocks that a request in flight changes.
struct Change<V> {
    tag: Tag,
    volume: V,
    /// First block beneath, and the block behind the last.
    range: (u64, u64),
}

/// The place of a request that goes through a bounce buffer.
struct Place<V> {
    slot: Option<Slot<V>>,
    /// The guest's buffers of that request.
    buffers: Vec<Segment>,
}

/// A storage whose volumes may have emulated blocks.
pub struct Emulate<S: Storage> {
    storage: S,
    bounce: GuestMemory,
    slots: Box<[Place<S::Volume>]>,
    changes: Vec<Change<S::Volume>>,
    roles: Roles,
}

/// What the tags stand for.
struct Roles {
    roles: Box<[Role; MAX_TAGS]>,
    /// How many are not [`Role::Plain`].
    special: usize,
}

impl Roles {
    fn set(&mut self, tag: Tag, role: Role) {
        let is_special = |role: &Role| usize::from(!matches!(role, Role::Plain));
        if let Some(place) = self.roles.get_mut(usize::from(tag.0)) {
            self.special = self.special.saturating_sub(is_special(place)).saturating_add(is_special(&role));
            *place = role;
        }
    }

    fn get(&self, tag: Tag) -> Role {
        self.roles.get(usize::from(tag.0)).copied().unwrap_or(Role::Plain)
    }
}

impl<S: Storage<Volume: PartialEq>> Emulate<S> {
    /// Makes it. `bounce` has [`BOUNCE_BYTES`] from address 0 on, which nobody else uses. If no volume is emulated it may be
    /// empty.
    #[must_use]
    pub fn new(storage: S, bounce: GuestMemory) -> Self {
        let roles = Roles { roles: table(|| Role::Plain), special: 0 };
        let slots = (0..SLOTS).map(|_| Place { slot: None, buffers: slot::buffers() }).collect();
        Self { storage, bounce, slots, changes: Vec::with_capacity(MAX_TAGS), roles }
    }

    /// The storage beneath.
    #[cfg(test)]
    pub(crate) const fn inner(&mut self) -> &mut S {
        &mut self.storage
    }

    /// The counters of a volume whose blocks are emulated. `None`: they are as they are beneath.
    #[inline(always)]
    fn counters(&self, of: Emulated<S::Volume>) -> Option<&'static EmulationCounters> {
        of.counters.filter(|_| self.storage.geometry(of.volume).block_bytes == BLOCK)
    }

    /// Whether a request in flight changes some of these blocks.
    fn is_changing(&self, volume: S::Volume, (first, end): (u64, u64)) -> bool {
        self.changes.iter().any(|change| change.volume == volume && change.range.0 < end && first < change.range.1)
    }

    /// A request of whole blocks, in sectors, for the storage beneath.
    fn submit_whole(
        &mut self,
        volume: S::Volume,
        tag: Tag,
        request: &Request<'_>,
        changes: Option<(u64, u64)>,
        now: u64,
    ) -> Submitted {
        let (first, blocks) = (request.first / PER_BLOCK_WIDE, request.blocks / PER_BLOCK);
        let answer = self.storage.submit(volume, tag, &Request { first, blocks, ..*request }, now);
        if answer == Submitted::Pending {
            if changes.is_some() {
                self.roles.set(tag, Role::Change);
            }
            self.changes.extend(changes.map(|range| Change { tag, volume, range }));
        }
        answer
    }

    /// A request for a slot.
    fn submit_partial(
        &mut self,
        of: Emulated<S::Volume>,
        tag: Tag,
        request: &Request<'_>,
        changes: Option<(u64, u64)>,
        now: u64,
    ) -> Submitted {
        let own = self.slots.iter().flat_map(|place| &place.slot).filter(|slot| slot.volume() == of.volume).count();
        let free = self.slots.iter().filter(|place| place.slot.is_none()).count();
        if own >= free {
            return Submitted::Busy;
        }
        let free = self.slots.iter_mut().enumerate().find(|(_, place)| place.slot.is_none());
        let Some((index, Place { slot: place, buffers })) = free else { return Submitted::Busy };
        let Some(slot) = Slot::new(of, tag, request, (index as u64).saturating_mul(BUFFER), buffers) else {
            return Submitted::Done(Status::Failed);
        };
        let slot = place.insert(slot);
        if let Some(status) = slot.go_on(&mut self.storage, &self.bounce, buffers, now) {
            *place = None;
            return Submitted::Done(status);
        }
        self.roles.set(tag, Role::Slot(index));
        self.changes.extend(changes.map(|range| Change { tag, volume: of.volume, range }));
        Submitted::Pending
    }
}

/// Forgets the blocks that a request changes, and what its tag stood for.
fn forget<V>(changes: &mut Vec<Change<V>>, roles: &mut Roles, tag: Tag) {
    roles.set(tag, Role::Plain);
    if let Some(at) = changes.iter().position(|change| change.tag == tag) {
        changes.swap_remove(at);
    }
}

impl<S: Storage<Volume: PartialEq>> Storage for Emulate<S> {
    type Volume = Emulated<S::Volume>;

    fn geometry(&self, of: Self::Volume) -> Geometry {
        of.geometry(&self.storage.geometry(of.volume))
    }

    fn are_flushed_together(one: Self::Volume, other: Self::Volume) -> bool {
        S::are_flushed_together(one.volume, other.volume)
    }

    fn take_size_change(&mut self) -> bool {
        self.storage.take_size_change()
    }

    fn blocks(&self, of: Self::Volume) -> u64 {
        of.geometry(&Geometry { blocks: self.storage.blocks(of.volume), ..self.storage.geometry(of.volume) }).blocks
    }

    fn submit(&mut self, of: Self::Volume, tag: Tag, request: &Request<'_>, now: u64) -> Submitted {
        let counters = self.counters(of);
        let (Some(counters), false) = (counters, request.operation == Operation::Flush) else {
            return self.storage.submit(of.volume, tag, request, now);
        };
        let Some(end) = request.first.checked_add(request.blocks.into()) else {
            return Submitted::Done(Status::Failed);
        };
        let covered = (request.first / PER_BLOCK_WIDE, end.div_ceil(PER_BLOCK_WIDE));
        let changes = (request.operation != Operation::Read).then_some(covered);
        if changes.is_some_and(|range| self.is_changing(of.volume, range)) {
            counters.overlaps.add(1);
            return Submitted::Busy;
        }
        if request.first.is_multiple_of(PER_BLOCK_WIDE) && request.blocks.is_multiple_of(PER_BLOCK) {
            return self.submit_whole(of.volume, tag, request, changes, now);
        }
        if request.operation != Operation::Discard {
            return self.submit_partial(of, tag, request, changes, now);
        }
        let end = end.saturating_sub(end % PER_BLOCK_WIDE);
        let Some(first) = request.first.checked_next_multiple_of(PER_BLOCK_WIDE) else {
            return Submitted::Done(Status::Failed);
        };
        match end.checked_sub(first).and_then(|sectors| u32::try_from(sectors).ok()) {
            None | Some(0) => Submitted::Done(Status::Ok),
            Some(blocks) => self.submit_whole(of.volume, tag, &Request { first, blocks, ..*request }, changes, now),
        }
    }

    #[inline(always)]
    fn visit<V: Visitor>(&mut self, of: Self::Volume, now: u64, visitor: V) -> Option<V::Output> {
        if self.counters(of).is_some() {
            return Some(visitor.visit(&mut Plain { storage: self, volume: of, now }));
        }
        self.storage.visit(of.volume, now, visitor)
    }

    fn notify(&mut self) {
        self.storage.notify();
    }

    #[inline]
    fn wants_poll(&self) -> bool {
        self.storage.wants_poll()
    }

    fn poll(&mut self, now: u64, ended: &mut impl FnMut(Tag, Status)) {
        if self.roles.special == 0 {
            return self.storage.poll(now, ended);
        }
        let Self { storage, bounce, slots, changes, roles } = self;
        storage.poll(now, &mut |tag, status| match roles.get(tag) {
            Role::Slot(index) => {
                if let Some(Place { slot: Some(slot), .. }) = slots.get_mut(index) {
                    slot.answered(status);
                }
            }
            Role::Change => {
                forget(changes, roles, tag);
                ended(tag, status);
            }
            Role::Plain => ended(tag, status),
        });
        let mut submitted = false;
        for Place { slot: place, buffers } in slots {
            let Some(slot) = place.as_mut().filter(|slot| !slot.is_in_flight()) else { continue };
            match slot.go_on(storage, bounce, buffers, now) {
                None => submitted |= slot.is_in_flight(),
                Some(status) => {
                    let tag = slot.tag();
                    *place = None;
                    forget(changes, roles, tag);
                    ended(tag, status);
                }
            }
        }
        if submitted {
            storage.notify();
        }
    }

    fn cancel(&mut self, of: Self::Volume, tag: Tag) -> bool {
        let has_ended = match self.roles.get(tag) {
            Role::Slot(index) => {
                let place = self.slots.get_mut(index).map(|place| &mut place.slot);
                let Some(place) = place.filter(|slot| slot.as_ref().is_some_and(|slot| slot.tag() == tag)) else {
                    return false;
                };
                let is_in_flight = place.as_mut().is_some_and(Slot::cancel);
                let has_ended = !is_in_flight || self.storage.cancel(of.volume, tag);
                if has_ended {
                    *place = None;
                }
                has_ended
            }
            Role::Plain | Role::Change => self.storage.cancel(of.volume, tag),
        };
        if has_ended {
            forget(&mut self.changes, &mut self.roles, tag);
        }
        has_ended
    }
}
