//! The loop of an I/O core: attends to what drivers and the control core ask for, visits the queues that hold work,
//! and completes.

use core::sync::atomic::{Ordering, fence};

use crate::backend::{Backend, Devices, MAX_PORTS};
use crate::control::{Attachment, Command, Control, Reply};
use crate::device::Device;
use crate::ports::PortSet;
use crate::schedule::{QueueId, Schedule, Share, Visit};
use crate::shared::{Deliver, Phase};

/// An engine: the devices of its ports, the back-end that serves them, and what decides their order.
pub struct Engine<B, S, D> {
    control: &'static Control,
    backend: B,
    schedule: S,
    deliver: D,
    devices: Devices,
    /// The last generation that a device of each port had: tokens stay apart even if the port changes hands.
    generations: [u32; MAX_PORTS],
    /// A port that is to be detached as soon as the back-end lets go of it.
    detaching: Option<usize>,
    /// Queues of each port that the schedule knows, a bit each, and whose they are.
    scheduled: [(u16, Share); MAX_PORTS],
    /// Ports to be looked after in the next turn even if they do not ring.
    unfinished: PortSet,
    /// Something was published in this turn.
    published: bool,
    /// All that was completed in this turn was published, and nothing more will be.
    all_published: bool,
    /// A turn of more ticks than this is a long one.
    long: u64,
}

impl<B: Backend, S: Schedule, D: Deliver> Engine<B, S, D> {
    /// With no devices.
    pub fn new(control: &'static Control, backend: B, schedule: S, deliver: D) -> Self {
        Self {
            control,
            backend,
            schedule,
            deliver,
            devices: Devices::new(),
            generations: [0; MAX_PORTS],
            detaching: None,
            scheduled: [(0, Share::of_guest(0)); MAX_PORTS],
            unfinished: PortSet::NONE,
            published: false,
            all_published: false,
            long: u64::MAX,
        }
    }

    /// Has turns of more than so many ticks of the clock counted as long ones.
    pub const fn set_long_turn(&mut self, ticks: u64) {
        self.long = ticks;
    }

    /// The seat it shares with the control core.
    pub const fn control(&self) -> &'static Control {
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

    /// Queues that are visited: those that are polled or have been announced.
    #[must_use]
    pub fn visited_queues(&self) -> u32 {
        self.scheduled.iter().map(|(queues, _)| queues.count_ones()).sum()
    }

    /// One turn at time `now` (ticks of any steady clock): how many requests were moved.
    pub fn turn(&mut self, now: u64) -> u32 {
        self.timed_turn(now, &|| now)
    }

    fn timed_turn(&mut self, now: u64, clock: &impl Fn() -> u64) -> u32 {
        self.obey(now);
        self.attend(now);
        self.finish_detaching();
        let mut moved = self.backend.poll(&mut self.devices, now);
        if moved != 0 {
            // No visit is to wait for these, and no guest to pay for them.
            self.publish(0);
        }
        let (mut time, mut visited) = (now, 0);
        while let Some(visit) =
            self.schedule.next(|id| self.devices.get(id.port()).is_some_and(|d| d.is_idle(id.queue())))
        {
            visited = visit.queue.port();
            moved += self.visit(&visit, &mut time, clock);
        }
        self.complete(visited);
        moved
    }

    /// Shows drivers what was completed, that of port `last` after all others: whoever was given something sees it as early as can
    /// be, if that is the port visited.
    #[inline]
    fn publish(&mut self, last: usize) {
        let mut others = self.devices.touched();
        others.remove(last);
        for port in others {
            self.published |= self.devices.get_untouched(port).is_some_and(Device::publish);
        }
        self.published |= self.devices.get_untouched(last).is_some_and(Device::publish);
    }

    /// One used index for each queue, but for those that were shown before, and one interrupt a turn, however many frames it took or
    /// gave. One fence is enough for all.
    fn complete(&mut self, visited: usize) {
        if !core::mem::take(&mut self.all_published) {
            self.publish(visited);
        }
        if core::mem::take(&mut self.published) {
            fence(Ordering::SeqCst);
        }
        for port in self.devices.take_touched() {
            if let Some(device) = self.devices.get_untouched(port) {
                device.tell(&self.deliver);
            }
        }
    }

    /// A turn at time `now`, and its time added to the counters. The time when it ended, at which the next begins.
    pub fn counted_turn(&mut self, now: u64, clock: impl Fn() -> u64) -> u64 {
        let moved = self.timed_turn(now, &clock);
        if moved == 0 {
            // A hint, not a sleep: it leaves the core's other thread, or an emulator's other core, some time.
            core::hint::spin_loop();
        }
        let end = clock();
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
        }
        counters.requests.add(u64::from(moved));
        end
    }

    /// Visits a queue, in as many portions as the schedule wants; `time` is when the last portion ended. How many
    /// requests were taken.
    fn visit(&mut self, visit: &Visit, time: &mut u64, clock: &impl Fn() -> u64) -> u32 {
        let (port, queue) = (visit.queue.port(), visit.queue.queue());
        self.control.counters.visits.add(1);
        let mut portion = Some(visit.portion);
        let (mut requests, mut spent) = (0, 0);
        while let Some(p) = portion {
            let served = self.backend.serve(&mut self.devices, port, queue, &p, *time);
            requests += served.requests;
            let begin = *time;
            if served.requests != 0 {
                // Nothing more comes in this turn: whoever waits for a lone frame has it before its time is counted.
                if self.schedule.one_visit_a_turn() && served.emptied(&p) {
                    self.publish(port);
                    self.all_published = true;
                }
                *time = clock();
                spent += time.wrapping_sub(begin);
            }
            let devices = &self.devices;
            portion = self.schedule.go_on(served, time.wrapping_sub(begin), *time, |other| {
                devices.get(other.port())?.glance(other.queue())
            });
        }
        if let Some(device) = self.devices.get_mut(port) {
            device.was_visited(queue, requests, *time);
            device.shared().counters().engine_cycles.add(spent);
        }
        self.reschedule(port, 0);
        requests
    }

    /// Tells the schedule which queues of a port are to be visited; `announced` are those that have been notified.
    #[inline]
    fn reschedule(&mut self, port: usize, announced: u64) {
        let detaching = self.detaching == Some(port);
        let wanted = self.devices.get(port).filter(|_| !detaching).map_or(0, Device::to_visit);
        if self.scheduled.get(port).is_some_and(|(scheduled, _)| *scheduled != wanted) {
            self.change_schedule(port, wanted, announced);
        }
    }

    #[cold]
    fn change_schedule(&mut self, port: usize, wanted: u16, announced: u64) {
        let Some((scheduled, share)) = self.scheduled.get_mut(port) else { return };
        let mut changed = core::mem::replace(scheduled, wanted) ^ wanted;
        while changed != 0 {
            let queue = changed.trailing_zeros() as u16;
            changed &= changed - 1;
            let id = QueueId::new(port, queue);
            if wanted & 1 << queue != 0 {
                self.schedule.enter(id, *share, announced & 1 << queue != 0);
            } else {
                self.schedule.leave(id);
            }
        }
    }

    /// Takes up what the control core asks for.
    fn obey(&mut self, now: u64) {
        let Some(command) = self.control.take() else { return };
        match command {
            Command::Attach(attachment) => {
                let reply = self.attach(attachment, now);
                self.control.answer(reply);
            }
            Command::Detach { port } if port >= MAX_PORTS => self.control.answer(Reply::NoSuchPort),
            Command::Detach { port } if self.devices.get(port).is_none() => self.control.answer(Reply::Vacant),
            Command::Detach { port } => {
                self.detaching = Some(port);
                self.reschedule(port, 0);
            }
        }
    }

    fn attach(&mut self, attachment: Attachment, now: u64) -> Reply {
        let Attachment { port, number, shared, memory, requests, share, state } = attachment;
        let Some(&generation) = self.generations.get(port) else { return Reply::NoSuchPort };
        if self.devices.get(port).is_some() {
            return Reply::Occupied;
        }
        let mut device = Device::new(number, shared, memory, requests, generation);
        if let Some(state) = &state
            && let Err(error) = device.restore(state)
        {
            return Reply::BadState(error);
        }
        self.backend.attached(port, shared.device());
        if device.running() {
            self.backend.activated(port, &mut device, true);
        }
        device.watch(|queue| self.backend.attends(port, queue), now);
        self.devices.attach(port, device);
        shared.connect(Some((&self.control.doorbell, port)));
        // What its driver did before there was an engine to ring for.
        self.unfinished.insert(port);
        if let Some(slot) = self.scheduled.get_mut(port) {
            *slot = (0, share);
        }
        self.reschedule(port, 0);
        Reply::Attached
    }

    /// Lets go of the port that is to be detached, as soon as the back-end has.
    fn finish_detaching(&mut self) {
        let Some(port) = self.detaching else { return };
        if !self.backend.cancel(&mut self.devices, port) {
            return;
        }
        self.detaching = None;
        self.backend.detached(port);
        let state = self.devices.detach(port).and_then(|mut device| {
            device.shared().connect(None);
            device.publish();
            fence(Ordering::SeqCst);
            device.tell(&self.deliver);
            if let Some(generation) = self.generations.get_mut(port) {
                *generation = device.generation();
            }
            device.save()
        });
        self.control.answer(Reply::Detached(state));
    }

    /// Looks after the ports that have rung: activates and resets devices as their drivers ask, and takes notified
    /// queues into the set that is visited.
    fn attend(&mut self, now: u64) {
        let mut rung = self.control.doorbell.take();
        rung.insert_all(core::mem::take(&mut self.unfinished));
        for port in rung {
            let Some(device) = self.devices.get_mut(port) else { continue };
            // Before the phase: a change after this look rings anew.
            let queues = device.shared().take_rung();
            match device.shared().phase() {
                Phase::Idle => {}
                Phase::Running => {
                    device.kicked(queues, now);
                    if device.shared().queues_change() {
                        self.change_queues(port, now);
                    }
                }
                Phase::Activating => {
                    device.activate();
                    self.backend.activated(port, device, false);
                    device.watch(|queue| self.backend.attends(port, queue), now);
                    // Asked for before it ran: that bell has been taken.
                    if device.shared().queues_change() {
                        self.change_queues(port, now);
                    }
                }
                Phase::Resetting => {
                    // The driver gets its reset only when nothing can touch its buffers any more.
                    device.stop();
                    if !self.backend.cancel(&mut self.devices, port) {
                        self.unfinished.insert(port);
                    } else if let Some(device) = self.devices.get_mut(port) {
                        device.reset();
                    }
                }
            }
            self.reschedule(port, queues);
        }
    }

    /// Takes single queues of a port out of use, and into it, as its driver asks.
    #[cold]
    fn change_queues(&mut self, port: usize, now: u64) {
        // A device that has failed gets no request back: there it is enough that the back-end holds none.
        let failed = self.devices.get(port).is_some_and(|device| !device.running());
        let free = if failed {
            self.backend.cancel(&mut self.devices, port)
        } else {
            self.backend.reclaim(&mut self.devices);
            false
        };
        let Some(device) = self.devices.get_mut(port) else { return };
        device.start_queues(|queue| self.backend.attends(port, queue), now);
        if device.stop_queues(free) {
            self.unfinished.insert(port);
        }
    }
}

/// Turns the engine until its control core asks it to stop. `clock` is the one that the switch's ages and the engine's
/// cycles are counted by, such as the TSC.
pub fn run<B: Backend, S: Schedule, D: Deliver>(engine: &mut Engine<B, S, D>, clock: impl Fn() -> u64) {
    let control = engine.control();
    let mut now = clock();
    while !control.stopping() {
        now = engine.counted_turn(now, &clock);
    }
}

// It is made on the boot core's stack on its way to the heap, its large tables are not.
const _: () = assert!(
    size_of::<Engine<crate::net::Net, crate::schedule::Chosen, ()>>() < 160 << 10,
    "an engine without its tables is to stay below 160 KiB"
);
