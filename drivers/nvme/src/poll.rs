//! Takes completions, watches the time of commands, and carries out the controller's orders.

#![allow(unsafe_code, reason = "copies from bounce pages to what requests name")]

use crate::bounce::NONE;
use crate::command::Code;
use crate::dma::Dma;
use crate::gate::{Order, Trouble};
use crate::queue::{ALONE, Ending, IoQueue, Place, next_use, slot_of};
use crate::registers::Registers;
use crate::request::Status;

/// Microseconds between two looks at the commands' deadlines.
const CHECK_TIME: u64 = 50_000;
/// How often a command is given to the device again, after a reset or a transient error.
const MAX_RETRIES: u8 = 3;

/// What the next completion was.
enum Any {
    /// The last of a request.
    Answer(u32, Status),
    /// Another one.
    More,
    /// There is none.
    Empty,
    /// It cannot be true.
    Broken,
}

impl<R: Registers, D: Dma> IoQueue<R, D> {
    /// Gives the answers that have come to `sink`, with the requests' identifiers. Returns how many. `now`: in
    /// microseconds, of a clock that never goes back.
    #[inline]
    pub fn poll(&mut self, now: u64, mut sink: impl FnMut(u32, Status)) -> u32 {
        let ticket = self.gate.ticket();
        if ticket != self.ticket || self.pending_order {
            self.ticket = ticket;
            self.prepared.forget();
            self.obey(now);
        }
        let mut count = 0_u32;
        while let Some((id, status)) = self.finished.pop_front() {
            sink(id, status);
            count = count.wrapping_add(1);
        }
        if self.broken || !matches!(self.ticket.order(), Order::Open | Order::Drain) {
            return count;
        }
        let mut taken = 0_u16;
        // A device that is faster than this loop does not keep the engine in it: one lap, and the good ones after it. So
        // neither number wraps.
        while taken < self.ring.entries() {
            let good = self.take_good(&mut sink);
            count = count.wrapping_add(good.into());
            taken = taken.wrapping_add(good);
            match self.take_any() {
                Any::Answer(id, status) => {
                    sink(id, status);
                    count = count.wrapping_add(1);
                }
                Any::More => {}
                Any::Empty => break,
                Any::Broken => return count,
            }
            taken = taken.wrapping_add(1);
        }
        if taken != 0 {
            self.ring.release(&self.registers);
        }
        if now >= self.next_check {
            self.watch(now);
        }
        count
    }

    /// Takes completions up to the end of the queue, as long as they are of commands that succeeded and have no other in
    /// their request. Returns how many. What it does not take is checked, and judged, by [`IoQueue::take_any`].
    #[inline(always)]
    fn take_good(&mut self, sink: &mut impl FnMut(u32, Status)) -> u16 {
        let mut good = self.ring.good_ones();
        let (before, mut free) = (good.left(), self.free);
        while let Some(cid) = good.cid() {
            let index = slot_of(cid);
            let Some(slot) = self.slots.get_mut(usize::from(index)).filter(|slot| slot.is_alone(cid)) else { break };
            good.take();
            slot.command.make_empty(next_use(cid));
            slot.state.place = Place::Nowhere;
            slot.state.next = free;
            free = index;
            sink(slot.id, Status::Ok);
        }
        let left = good.left();
        let taken = before.wrapping_sub(left);
        self.ring.took(left);
        self.free = free;
        self.ended = self.ended.wrapping_add(taken.into());
        taken
    }

    /// Takes the next completion.
    #[inline(never)]
    fn take_any(&mut self) -> Any {
        let Some(completion) = self.ring.pop() else { return Any::Empty };
        if !self.ring.fits(&completion) {
            self.give_up(Trouble::BadCompletion);
            return Any::Broken;
        }
        let Some(index) = self.find(completion.cid) else {
            self.give_up(Trouble::UnknownCommand);
            return Any::Broken;
        };
        match self.completed(index, completion.status) {
            Some((id, status)) => Any::Answer(id, status),
            None => Any::More,
        }
    }

    /// Asks for a request to be ended early. Its answer comes by [`IoQueue::poll`] as always, because the device uses
    /// the segments until then. Returns false if no request has this identifier.
    pub fn cancel(&mut self, id: u32) -> bool {
        let mut found = self.finished.iter().any(|(finished, _)| *finished == id);
        for index in 0..self.slots.len() as u16 {
            let Some(slot) = self.slots.get_mut(usize::from(index)) else { break };
            let owner = match slot.state.request {
                ALONE => Some(slot.id),
                request => self.requests.get(usize::from(request)).map(|request| request.id),
            };
            if slot.state.place == Place::Nowhere || owner != Some(id) {
                continue;
            }
            found = true;
            if slot.state.place == Place::Waiting {
                self.finish_later(index, Status::Cancelled);
            } else if slot.state.ending == Ending::No {
                (slot.state.ending, slot.state.abort_wanted) = (Ending::Cancelled, true);
                self.next_check = 0;
            }
        }
        found
    }

    /// A command was completed. Returns its request's answer if it was the last.
    #[inline(always)]
    fn completed(&mut self, index: u16, code: Code) -> Option<(u32, Status)> {
        let status = if code.is_success() { Status::Ok } else { self.failed(index, code)? };
        self.finish(index, status)
    }

    /// The status for a command's error. `None`: it is tried again.
    #[cold]
    fn failed(&mut self, index: u16, code: Code) -> Option<Status> {
        let state = &mut self.slots.get_mut(usize::from(index))?.state;
        let aborted = code.type_and_code() == Code::ABORTED;
        match state.ending {
            Ending::TimedOut if aborted => Some(Status::TimedOut),
            Ending::Cancelled if aborted => Some(Status::Cancelled),
            Ending::No if code.is_transient() && state.retries < MAX_RETRIES => {
                state.retries = state.retries.saturating_add(1);
                state.place = Place::Waiting;
                self.waiting = true;
                None
            }
            _ => Some(Status::Device(code)),
        }
    }

    /// Frees a command. Returns its request's answer if it was the last.
    fn finish(&mut self, index: u16, status: Status) -> Option<(u32, Status)> {
        let slot = self.slots.get_mut(usize::from(index))?;
        let (owner, id, list) = (slot.state.request, slot.id, core::mem::replace(&mut slot.bounce, NONE));
        if list != NONE {
            let copy = slot.command.is_read() && status == Status::Ok;
            // SAFETY: the request is not answered yet, so the promise of its segments holds.
            unsafe { self.bounce.release(&self.dma, list, copy) };
        }
        self.put_back(index);
        if owner == ALONE {
            return Some((id, status));
        }
        self.shared_slots = self.shared_slots.saturating_sub(1);
        let request = self.requests.get_mut(usize::from(owner))?;
        request.left = request.left.saturating_sub(1);
        if request.status == Status::Ok {
            request.status = status;
        }
        if request.left != 0 {
            return None;
        }
        let answer = (request.id, request.status);
        self.free_requests.push(owner);
        Some(answer)
    }

    /// Frees a command. If it was its request's last, the next poll gives the answer.
    fn finish_later(&mut self, index: u16, status: Status) {
        if let Some(answer) = self.finish(index, status) {
            self.finished.push_back(answer);
        }
    }

    /// Looks at the commands' deadlines, and gives the device again what waits for that.
    #[cold]
    fn watch(&mut self, now: u64) {
        self.next_check = now.saturating_add(CHECK_TIME);
        let mut hung = false;
        for slot in self.slots.iter_mut().filter(|slot| slot.state.is_at_device()) {
            let state = &mut slot.state;
            let is_late = state.ending == Ending::TimedOut;
            let allowed = if is_late { self.config.abort_time } else { self.config.command_time };
            if now.saturating_sub(slot.since) >= allowed {
                if is_late {
                    hung = true;
                    break;
                }
                state.abort_wanted |= state.ending == Ending::No;
                state.ending = Ending::TimedOut;
                slot.since = now;
            }
            if state.abort_wanted && self.gate.ask_abort(slot.command.cid()) {
                state.abort_wanted = false;
            }
        }
        if hung {
            self.give_up(Trouble::TimedOut);
        } else if self.waiting {
            self.issue_waiting(now);
        }
    }

    fn issue_waiting(&mut self, now: u64) {
        self.waiting = false;
        for index in 0..self.slots.len() as u16 {
            let slot = self.slots.get_mut(usize::from(index));
            if let Some(slot) = slot.filter(|slot| slot.state.place == Place::Waiting) {
                slot.command = slot.command.with_cid(next_use(slot.command.cid()));
                self.ended = self.ended.wrapping_add(1);
                self.issue(index, now);
            }
        }
        self.ring.notify(&self.registers);
    }

    /// Carries out the controller's last order.
    #[cold]
    fn obey(&mut self, now: u64) {
        self.pending_order = false;
        match self.ticket.order() {
            Order::Quiesce => {}
            Order::Reclaim => self.reclaim(),
            Order::Open => {
                self.next_check = now;
                self.issue_waiting(now);
            }
            Order::Drain => {
                if self.waiting && !self.broken {
                    self.issue_waiting(now);
                }
                let idle = self.broken || self.used_slots() == 0;
                self.pending_order = !idle;
            }
            Order::Close => {
                self.broken = false;
                for index in 0..self.slots.len() as u16 {
                    if self.slots.get(usize::from(index)).is_some_and(|slot| slot.state.place != Place::Nowhere) {
                        self.finish_later(index, Status::Gone);
                    }
                }
                self.waiting = false;
            }
        }
        if !self.pending_order {
            self.gate.obeyed(self.ticket);
        }
    }

    /// Takes all commands back from a device that was reset, and makes the queue empty.
    fn reclaim(&mut self) {
        self.broken = false;
        self.ring.reset(self.gate.stride());
        for index in 0..self.slots.len() as u16 {
            let Some(slot) = self.slots.get_mut(usize::from(index)) else { break };
            if !slot.state.is_at_device() {
                continue;
            }
            let status = match slot.state.ending {
                Ending::TimedOut => Status::TimedOut,
                Ending::Cancelled => Status::Cancelled,
                Ending::No if slot.state.retries >= MAX_RETRIES => Status::Reset,
                Ending::No => {
                    slot.state.retries = slot.state.retries.saturating_add(1);
                    slot.state.place = Place::Waiting;
                    self.waiting = true;
                    continue;
                }
            };
            self.finish_later(index, status);
        }
    }
}
