//! The loop of an I/O core. A turn handles requests of drivers and of the control core, visits queues that hold work,
//! and publishes completions.

use core::sync::atomic::{Ordering, fence};

use virtio::chain::Segments;
use virtio::phase::Phase;

use crate::backend::Backend;
use crate::bits::SetBits;
use crate::clock::Clock;
use crate::control::{Attachment, Command, Control, Reply};
use crate::deliver::Deliver;
use crate::device::Device;
use crate::devices::Devices;
use crate::follow::Follower;
use crate::maps::Maps;
use crate::observe::{self, Observer, Unobserved};
use crate::schedule::{GuestWeight, QueueId, Schedule, Served, Visit};
use crate::slots::{MAX_SLOTS, SlotSet};

/// An engine: its devices by slot, its back-end, and its schedule.
pub struct Engine<B: Backend, S, D> {
    control: &'static Control<B::Config>,
    backend: B,
    schedule: S,
    deliver: D,
    devices: Devices,
    /// The last generation of each slot's devices. It keeps tokens distinct when a slot gets another device.
    generations: [u32; MAX_SLOTS],
    /// Slots that are being detached. They are not visited any more. The back-end may still hold requests of theirs.
    detaching: SlotSet,
    /// Those of them whose requests are completed, not dropped.
    draining: SlotSet,
    /// The slot that the command of this turn wants detached.
    asked: Option<usize>,
    /// For each slot: the queues that the schedule knows, one bit each, and the guest with its weight.
    scheduled: [(u16, GuestWeight); MAX_SLOTS],
    /// Slots to handle in the next turn even if they do not ring the doorbell.
    unfinished: SlotSet,
    /// Completions were published in this turn.
    published: bool,
    /// All completions of this turn are published already, and no more will come.
    all_published: bool,
    /// The queue of the last visit of this turn that took requests, and when that visit ended.
    last_visit: Option<(QueueId, u64)>,
    /// Ticks above which a turn counts as a long one.
    long: u64,
    /// The map of its core. `None`: all guests' memory is mapped.
    maps: Option<&'static dyn Maps>,
    /// Buffers of a chain while it is taken from a ring for later.
    scratch: Segments,
    /// Queues whose requests are followed, while an observer wants that.
    follower: Follower,
}

impl<B: Backend, S: Schedule, D: Deliver> Engine<B, S, D> {
    /// An engine without devices.
    pub fn new(control: &'static Control<B::Config>, backend: B, schedule: S, deliver: D) -> Self {
        Self {
            control,
            backend,
            schedule,
            deliver,
            devices: Devices::new(),
            generations: [0; MAX_SLOTS],
            detaching: SlotSet::NONE,
            draining: SlotSet::NONE,
            asked: None,
            scheduled: [(0, GuestWeight::of_guest(0)); MAX_SLOTS],
            unfinished: SlotSet::NONE,
            published: false,
            all_published: false,
            last_visit: None,
            long: u64::MAX,
            maps: None,
            scratch: Segments::new(),
            follower: Follower::new(),
        }
    }

    /// Sets the number of ticks above which a turn counts as a long one.
    pub const fn set_long_turn(&mut self, ticks: u64) {
        self.long = ticks;
    }

    /// Sets the map of its core. Call it before a device is attached.
    pub const fn set_maps(&mut self, maps: &'static dyn Maps) {
        self.maps = Some(maps);
    }

    /// What it shares with the control core.
    pub const fn control(&self) -> &'static Control<B::Config> {
        self.control
    }

    /// Its back-end.
    pub const fn backend(&self) -> &B {
        &self.backend
    }

    /// Its back-end, to configure it.
    pub const fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    /// The number of queues in the visited set: those that are polled or were kicked.
    #[must_use]
    pub fn visited_queues(&self) -> u32 {
        self.scheduled.iter().map(|(queues, _)| queues.count_ones()).sum()
    }

    /// Runs one turn at time `now` (ticks of any steady clock). Returns how many requests it moved.
    #[inline(never)]
    pub fn turn(&mut self, now: u64) -> u32 {
        self.timed_turn(now, &|| now, &Unobserved)
    }

    fn timed_turn(&mut self, now: u64, clock: &impl Clock, observer: &impl Observer) -> u32 {
        if let Some(command) = self.control.take() {
            self.carry_out(command, now);
        }
        self.handle_doorbell(now);
        if let Some(slot) = self.asked.take() {
            let reply = self.try_to_detach(slot, observer);
            self.control.answer(reply);
        }
        let mut moved = self.backend.poll(&mut self.devices, now);
        if moved != 0 {
            // These completions must not wait for a visit. The time to publish them must not be charged to a guest.
            self.publish(0);
        }
        // The limits of a turn are far below 2^32 requests.
        let (mut time, mut visited) = (now, 0);
        while let Some(visit) =
            self.schedule.next(|id| self.devices.get(id.slot()).is_some_and(|d| d.is_idle(id.queue())))
        {
            visited = visit.queue.slot();
            moved = self.visit(&visit, &mut time, clock, observer).wrapping_add(moved);
        }
        self.complete(visited, observer);
        moved
    }

    /// Publishes completions. Slot `last` is published after all others. If `last` is the visited slot, each receiver
    /// sees its completions before the sender sees its own.
    #[inline]
    fn publish(&mut self, last: usize) {
        let mut others = self.devices.touched();
        others.remove(last);
        for slot in others {
            self.published |= self.devices.get_untouched(slot).is_some_and(Device::publish);
        }
        self.published |= self.devices.get_untouched(last).is_some_and(Device::publish);
    }

    /// Ends the turn. Publishes what was not published yet, and sends each interrupt at most once. One fence serves all
    /// queues.
    fn complete(&mut self, visited: usize, observer: &impl Observer) {
        if !core::mem::take(&mut self.all_published) {
            self.publish(visited);
        }
        if core::mem::take(&mut self.published) {
            fence(Ordering::SeqCst);
        }
        let follows = self.follower.begin(observer);
        for slot in self.devices.take_touched() {
            if let Some(device) = self.devices.get_untouched(slot) {
                if follows {
                    self.follower.published(slot, device.published(), device.generation());
                }
                device.notify(slot, &self.deliver, observer);
            }
        }
    }

    /// Runs a turn at time `now` and adds its time to the counters. `observer` watches it if the control core wants
    /// that. Returns when the turn ended; the next turn starts then.
    pub fn counted_turn(&mut self, now: u64, clock: &impl Clock, observer: &impl Observer) -> u64 {
        let observed = self.control.observed();
        let moved =
            if observed { self.timed_turn(now, clock, observer) } else { self.timed_turn(now, clock, &Unobserved) };
        if moved == 0 {
            // A hint, not a sleep. It gives time to the core's other thread, or to another core of an emulator.
            core::hint::spin_loop();
        }
        let end = clock.now();
        clock.expire_timers(end);
        if let Some((queue, ended)) = self.last_visit.take() {
            // Since the visit, its completions were published and the interrupts were sent: for a flood, to many devices.
            let ticks = end.wrapping_sub(ended);
            self.schedule.charge(queue, ticks);
            if let Some(device) = self.devices.get(queue.slot()) {
                device.shared().counters().engine_cycles.add(ticks);
            }
        }
        let counters = &self.control.counters;
        let (turns, cycles) = if moved == 0 {
            (&counters.idle_turns, &counters.idle_cycles)
        } else {
            (&counters.busy_turns, &counters.busy_cycles)
        };
        let spent = end.wrapping_sub(now);
        turns.add(1);
        cycles.add(spent);
        if spent > self.long {
            counters.long_turns.add(1);
            if moved == 0 {
                let longest = &counters.longest_idle_turn;
                longest.add(spent.saturating_sub(longest.get()));
            }
        }
        counters.requests.add(u64::from(moved));
        if observed {
            if self.follower.begin(observer) {
                self.follower.turn_ends(&self.devices, end, observer);
            }
            observer.turn(&observe::Turn { begin: now, end, requests: moved });
        }
        end
    }

    /// Visits a queue, in as many portions as the schedule decides. `time` is updated to the end of the last portion.
    /// Returns how many requests were taken.
    fn visit(&mut self, visit: &Visit, time: &mut u64, clock: &impl Clock, observer: &impl Observer) -> u32 {
        let (slot, queue) = (visit.queue.slot(), visit.queue.queue());
        self.control.counters.visits.add(1);
        let mut portion = Some(visit.portion);
        let first = *time;
        let begun = if self.follower.begin(observer) {
            self.devices.get(slot).and_then(|device| self.follower.visit_begins(device, queue, first))
        } else {
            None
        };
        let (mut all, mut spent) = (Served::default(), 0);
        while let Some(p) = portion {
            let served = self.backend.serve(&mut self.devices, slot, queue, &p, *time);
            all.add(served);
            let begin = *time;
            if served.requests != 0 {
                // This is the last visit of the turn. Publish before the time is counted: a driver may wait for this
                // request alone.
                if self.schedule.one_visit_a_turn() && served.emptied(&p) {
                    self.publish(slot);
                    self.all_published = true;
                }
                *time = clock.now();
                clock.expire_timers(*time);
                spent = time.wrapping_sub(begin).wrapping_add(spent);
            }
            let devices = &self.devices;
            portion = self.schedule.go_on(served, time.wrapping_sub(begin), *time, |other| {
                devices.get(other.slot())?.backlog(other.queue())
            });
        }
        let Served { requests, bytes } = all;
        if requests != 0 {
            self.last_visit = Some((visit.queue, *time));
        }
        if let Some(device) = self.devices.get_mut(slot) {
            if let (Some(begun), 1..) = (begun, requests) {
                self.follower.visited(device, visit.queue, begun, requests, observer);
            }
            device.after_visit(queue, requests, || all.emptied(&visit.portion), *time);
            device.shared().counters().engine_cycles.add(spent);
        }
        self.reschedule(slot, 0);
        observer.visit(&observe::Visit { queue: visit.queue, begin: first, end: *time, requests, bytes });
        requests
    }

    /// Tells the schedule which queues of a slot to visit. `announced` are the queues that were kicked, one bit each.
    #[inline]
    fn reschedule(&mut self, slot: usize, announced: u64) {
        let detaching = self.detaching.contains(slot);
        let wanted = self.devices.get(slot).filter(|_| !detaching).map_or(0, Device::to_visit);
        if self.scheduled.get(slot).is_some_and(|(scheduled, _)| *scheduled != wanted) {
            self.change_schedule(slot, wanted, announced);
        }
    }

    #[cold]
    fn change_schedule(&mut self, slot: usize, wanted: u16, announced: u64) {
        let Some((scheduled, share)) = self.scheduled.get_mut(slot) else { return };
        let changed = core::mem::replace(scheduled, wanted) ^ wanted;
        for queue in SetBits(changed.into()).map(|queue| queue as u16) {
            let id = QueueId::new(slot, queue);
            if wanted & 1 << queue != 0 {
                self.schedule.enter(id, *share, announced & 1 << queue != 0);
            } else {
                self.schedule.leave(id);
            }
        }
    }

    /// Carries out a command of the control core.
    #[cold]
    #[inline(never)]
    fn carry_out(&mut self, command: Command<B::Config>, now: u64) {
        match command {
            Command::Attach(attachment) => {
                let reply = self.attach(attachment, now);
                self.control.answer(reply);
            }
            Command::Detach { slot } => self.start_detaching(slot, false),
            Command::Drain { slot } => self.start_detaching(slot, true),
            Command::Reweigh(share) => {
                self.schedule.reweigh(share);
                let of_guest = self.scheduled.iter_mut().filter(|(_, known)| known.guest == share.guest);
                of_guest.for_each(|(_, known)| *known = share);
                self.control.answer(Reply::Reweighed);
            }
            Command::Run(errand) => {
                errand.run();
                self.control.answer(Reply::Done);
            }
        }
    }

    fn attach(&mut self, attachment: Attachment<B::Config>, now: u64) -> Reply {
        let Attachment { slot, number, shared, memory, requests, share, config, state } = attachment;
        let Some(&generation) = self.generations.get(slot) else { return Reply::NoSuchSlot };
        if self.devices.get(slot).is_some() {
            return Reply::Occupied;
        }
        if let Some(maps) = self.maps {
            maps.map(share.guest);
        }
        let mut device = Device::new(number, shared, memory, requests, generation);
        if let Some(state) = &state
            && let Err(error) = device.restore(state)
        {
            if let Some(maps) = self.maps {
                maps.unmap(share.guest);
            }
            return Reply::BadState(error);
        }
        self.backend.attached(slot, shared.device(), config);
        if state.is_none() {
            self.backend.attached_anew(slot, &mut device);
        }
        if device.running() {
            self.backend.activated(slot, &mut device, true);
        }
        device.start_service(|queue| self.backend.service_mode(slot, queue), None, now);
        device.take_offered(&mut self.scratch);
        self.devices.attach(slot, device);
        shared.connect(self.control.doorbell.button(slot));
        // Its driver may have acted before there was an engine to kick.
        self.unfinished.insert(slot);
        if let Some(scheduled) = self.scheduled.get_mut(slot) {
            *scheduled = (0, share);
        }
        self.reschedule(slot, 0);
        Reply::Attached
    }

    fn start_detaching(&mut self, slot: usize, drain: bool) {
        if slot >= MAX_SLOTS {
            return self.control.answer(Reply::NoSuchSlot);
        }
        if self.devices.get(slot).is_none() {
            return self.control.answer(Reply::Vacant);
        }
        self.detaching.insert(slot);
        if drain {
            self.draining.insert(slot);
        } else {
            self.draining.remove(slot);
        }
        self.reschedule(slot, 0);
        self.asked = Some(slot);
    }

    /// Detaches the device of a slot if the back-end holds nothing of it. Otherwise the control core asks again. So a
    /// command is answered in its turn, however long a disk takes, and several devices can be detached at a time.
    #[cold]
    #[inline(never)]
    fn try_to_detach(&mut self, slot: usize, observer: &impl Observer) -> Reply {
        if self.draining.contains(slot) && self.devices.get(slot).is_some_and(Device::holds_requests) {
            // The back-end completes them in its next calls.
            self.backend.reclaim(&mut self.devices);
            return Reply::Detaching;
        }
        if !self.backend.cancel(&mut self.devices, slot) {
            return Reply::Detaching;
        }
        self.detaching.remove(slot);
        self.draining.remove(slot);
        self.backend.detached(slot);
        let state = self.devices.detach(slot).and_then(|mut device| {
            device.shared().connect(None);
            device.publish();
            fence(Ordering::SeqCst);
            device.notify(slot, &self.deliver, observer);
            if let Some(generation) = self.generations.get_mut(slot) {
                *generation = device.generation();
            }
            device.save()
        });
        if let (Some(maps), Some((_, share))) = (self.maps, self.scheduled.get(slot)) {
            maps.unmap(share.guest);
        }
        Reply::Detached(state)
    }

    /// Handles the slots that rang the doorbell. It activates and resets devices as their drivers ask, and adds kicked
    /// queues to the visited set.
    fn handle_doorbell(&mut self, now: u64) {
        let mut rung = self.control.doorbell.take();
        rung.insert_all(core::mem::take(&mut self.unfinished));
        for slot in rung {
            let Some(device) = self.devices.get_mut(slot) else { continue };
            // Read before the phase: a later change rings again.
            let queues = device.shared().take_rung();
            match device.shared().phase() {
                Phase::Idle => {}
                Phase::Running => {
                    device.on_kick(queues, now);
                    if device.has_offered() {
                        device.take_offered(&mut self.scratch);
                    }
                    if device.shared().queues_change() {
                        self.change_queues(slot, now);
                    }
                }
                Phase::Activating => self.activate(slot, queues, now),
                Phase::Resetting => self.reset(slot),
            }
            self.reschedule(slot, queues);
        }
    }

    /// Begins to serve a device whose driver has set it up. `queues` are the queues it has kicked, one bit each.
    ///
    /// This function, [`Self::reset`] and [`Self::try_to_detach`] hold whole devices on the stack. Inlined into a turn, they
    /// would give the turn a stack of several pages, and each turn touches each page of its stack.
    #[cold]
    #[inline(never)]
    fn activate(&mut self, slot: usize, queues: u64, now: u64) {
        let Some(device) = self.devices.get_mut(slot) else { return };
        device.activate();
        self.backend.activated(slot, device, false);
        device.start_service(|queue| self.backend.service_mode(slot, queue), Some(queues), now);
        device.take_offered(&mut self.scratch);
        // The driver may have changed queues before this step. Its kick is taken already.
        if device.shared().queues_change() {
            self.change_queues(slot, now);
        }
    }

    /// Resets a device, if nothing can touch its driver's buffers any more. Otherwise the next turn tries again.
    #[cold]
    #[inline(never)]
    fn reset(&mut self, slot: usize) {
        let Some(device) = self.devices.get_mut(slot) else { return };
        device.stop();
        if !self.backend.cancel(&mut self.devices, slot) {
            self.unfinished.insert(slot);
        } else if let Some(device) = self.devices.get_mut(slot) {
            device.reset();
        }
    }

    /// Takes single queues of a slot out of use or into use, as the driver asks.
    #[cold]
    fn change_queues(&mut self, slot: usize, now: u64) {
        // Requests of a failed device are not completed. It is enough that the back-end holds none of them.
        let failed = self.devices.get(slot).is_some_and(|device| !device.running());
        let free = if failed {
            self.backend.cancel(&mut self.devices, slot)
        } else {
            self.backend.reclaim(&mut self.devices);
            false
        };
        let Some(device) = self.devices.get_mut(slot) else { return };
        device.start_queues(|queue| self.backend.service_mode(slot, queue), now);
        device.take_offered(&mut self.scratch);
        if device.stop_queues(free) {
            self.unfinished.insert(slot);
        }
    }
}

/// Runs turns until the control core asks the engine to stop. `clock`, such as the TSC, gives back-ends the time and
/// measures the engine's cycles. `observer` watches while the control core wants that ([`Control::observe`]).
pub fn run<B: Backend, S: Schedule, D: Deliver>(
    engine: &mut Engine<B, S, D>,
    clock: &impl Clock,
    observer: &impl Observer,
) {
    let control = engine.control();
    let mut now = clock.now();
    while !control.stopping() {
        now = engine.counted_turn(now, clock, observer);
    }
}
