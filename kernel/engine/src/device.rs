//! A virtual device in the engine: its queues in use, its guest's memory, and the notifications that are due at the end
//! of a turn.

#![allow(unsafe_code, reason = "its queues live as long as its memory")]

use memory::GuestMemory;

use virtio::chain::Segments;
use virtio::config::{Features, MAX_QUEUES, QueueConfig, VECTORS};
use virtio::fault::Fault;
use virtio::phase::Phase;
use virtio::queue::{Backlog, Batch, Queue, QueueState, Request, Token, UsedNotification};
use virtio::shared::{ISR_QUEUE, Shared};
use virtio::state::{BadState, DeviceState, STATE_VERSION};

use crate::bits::SetBits;
use crate::deliver::Deliver;
use crate::observe::{Completion, Notification, Observer};
use crate::offered::Offered;
use crate::order::{Order, Track};
use crate::requests::{KickEffect, QueueTraffic, Requests, ServiceMode};
use crate::schedule::QueueId;
use crate::slots::SlotSet;

/// Most descriptors of a chain on a queue that holds buffers to fill. A network driver needs 18 for a frame of 64 KiB in
/// pages of 4 KiB, and Linux's posts 19. Other guests wait while the engine walks a chain that only its receiver chose.
pub const MOST_OFFERED: u16 = 64;

/// A virtual device that is attached to an engine.
pub struct Device {
    number: usize,
    shared: &'static Shared,
    memory: GuestMemory,
    features: Features,
    /// Changes with each activation, so a token of an earlier activation is recognized.
    generation: u32,
    running: bool,
    queues: [Option<Queue>; MAX_QUEUES],
    requests: Requests,
    traffic: [QueueTraffic; MAX_QUEUES],
    /// Queues whose driver always notifies, whatever `requests` says, one bit each.
    notified: u16,
    /// Queues are looked at after their kicks only, and nothing else is written to their rings.
    kicks_only: bool,
    /// What such queues have offered that nobody visits.
    offered: Offered,
    /// Queues whose last visit ended although they may hold more requests, one bit each.
    interrupted: u16,
    /// Queues in the visited set, one bit each.
    visited: u16,
    /// Queues that have completions to publish, one bit each.
    dirty: u16,
    /// Queues whose completions were published and whose driver was not notified yet, one bit each.
    published: u16,
    config_changed: bool,
    /// Slots whose devices share memory with this one, its own slot included.
    shares_memory: SlotSet,
    /// Requests are completed in the order in which they were taken.
    order: Option<Order>,
}

impl Device {
    /// A device that is not running yet. [`Deliver`] gets `number`. `generation` is the last generation of the slot.
    #[must_use]
    pub fn new(
        number: usize,
        shared: &'static Shared,
        memory: GuestMemory,
        requests: Requests,
        generation: u32,
    ) -> Self {
        Self {
            number,
            shared,
            memory,
            features: Features::empty(),
            generation,
            running: false,
            queues: [const { None }; MAX_QUEUES],
            requests,
            traffic: [QueueTraffic::UNUSED; MAX_QUEUES],
            notified: 0,
            kicks_only: false,
            offered: Offered::NONE,
            interrupted: 0,
            visited: 0,
            dirty: 0,
            published: 0,
            config_changed: false,
            shares_memory: SlotSet::NONE,
            order: None,
        }
    }

    /// Has requests completed in the order in which they were taken. Each is published by itself, and `track` is told.
    /// Back-ends call it when the device is activated.
    pub fn keep_order(&mut self, track: &'static dyn Track) {
        self.order = Some(Order::new(track));
    }

    /// Slots whose devices share memory with this one.
    #[inline]
    pub fn shares_memory(&self) -> SlotSet {
        self.shares_memory
    }

    pub(crate) fn shares_memory_mut(&mut self) -> &mut SlotSet {
        &mut self.shares_memory
    }

    /// The state that it shares with its transport.
    #[must_use]
    pub fn shared(&self) -> &'static Shared {
        self.shared
    }

    /// Its guest's memory.
    #[must_use]
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// Negotiated features.
    #[must_use]
    pub fn features(&self) -> Features {
        self.features
    }

    /// Whether its queues may be used: it is activated, not failed, not reset.
    #[must_use]
    pub fn running(&self) -> bool {
        self.running
    }

    /// Whether it is running and a request is in flight.
    pub(crate) fn holds_requests(&self) -> bool {
        self.running && self.queues.iter().flatten().any(|queue| queue.in_flight() != 0)
    }

    /// Whether it is running and `queue` is in use.
    #[must_use]
    pub fn has_queue(&self, queue: u16) -> bool {
        self.in_use(queue).is_some()
    }

    /// A queue, if it is in use.
    #[inline]
    pub(crate) fn in_use(&self, queue: u16) -> Option<&Queue> {
        self.queues.get(usize::from(queue))?.as_ref().filter(|_| self.running)
    }

    /// Returns how many requests a queue holds, at least. Returns 0 if it is not in use.
    #[inline]
    pub fn available(&mut self, queue: u16) -> u16 {
        if self.offered.has(queue) {
            return self.offered.available(queue);
        }
        self.with(queue, |q, _| q.available()).unwrap_or(0)
    }

    /// Takes the next request of a queue and appends its buffers to `segments`, which must have room for a chain.
    pub fn pop(&mut self, queue: u16, segments: &mut Segments) -> Option<Request> {
        if self.offered.has(queue) {
            return if self.running { self.offered.pop(queue, segments) } else { None };
        }
        let request = self.with(queue, |q, memory| q.pop(memory, segments)).flatten()?;
        if let Some(order) = &mut self.order {
            order.taken(&request.token);
        }
        Some(request)
    }

    /// Puts back the request that was taken last; see [`Queue::rewind`].
    pub fn rewind(&mut self, token: Token) -> bool {
        if self.offered.has(token.queue()) {
            return self.offered.rewind(token);
        }
        let (queue, position) = (token.queue(), token.position());
        let back = self.with(queue, |q, _| Ok(q.rewind(token))).unwrap_or(false);
        if let (true, Some(order)) = (back, &mut self.order) {
            order.rewound(queue, position);
        }
        back
    }

    /// The position of the next request of a queue; see [`Queue::place`]. Returns `None` if its requests are taken at kicks
    /// only.
    #[must_use]
    pub fn place(&self, queue: u16) -> Option<u16> {
        if self.offered.has(queue) { None } else { self.in_use(queue).map(Queue::place) }
    }

    /// Remembers that the next requests of a queue are too small for `need` bytes; see [`Queue::remember_short`].
    pub fn remember_short(&mut self, queue: u16, need: u32, end: Option<u16>) {
        if !self.offered.has(queue) {
            self.with(queue, |q, _| {
                q.remember_short(need, end);
                Ok(())
            });
        }
    }

    /// Whether the next requests of a queue are known to be too small for `need` bytes; see [`Queue::known_short`].
    #[must_use]
    #[inline]
    pub fn known_short(&self, queue: u16, need: u32) -> Option<bool> {
        self.in_use(queue)?.known_short(need)
    }

    /// Notes that the present visit to a queue ends although the queue may hold more requests, because the back-end cannot
    /// take them now. The queue is visited again.
    pub fn interrupt_visit(&mut self, queue: u16) {
        self.interrupted |= 1 << queue;
    }

    /// Completes a request into which the device wrote `written` bytes. Returns false if a reset or a fault came first.
    /// The token is then counted as stale, and nothing else happens. A back-end that has many to complete can do so in a
    /// [`Device::batch`].
    pub fn complete(&mut self, token: Token, written: u32) -> bool {
        if self.order.is_some() {
            return self.complete_in_order(token, written);
        }
        let bit = 1 << token.queue();
        if self.offered.has(token.queue()) {
            self.offered.completed(&token);
        }
        let done = self.with(token.queue(), |q, memory| q.complete(memory, token, written)).unwrap_or(false);
        if done {
            self.dirty |= bit;
        } else {
            self.shared.counters().stale_tokens.add(1);
        }
        done
    }

    /// The same, if requests are completed in the order in which they were taken. A request waits for those before it.
    #[cold]
    fn complete_in_order(&mut self, token: Token, written: u32) -> bool {
        let queue = token.queue();
        let known = self.running && self.order.as_mut().is_some_and(|order| order.ended(token, written));
        if !known {
            self.shared.counters().stale_tokens.add(1);
        }
        while let Some((track, token, written)) = self.order.as_mut().and_then(|order| order.next(queue)) {
            let done = self.with(queue, |q, memory| {
                let (from, to) = q.completion(&token);
                track.completing(queue, from, to);
                let done = q.complete(memory, token, written)?;
                q.publish();
                track.completed(queue, from, to);
                Ok(done)
            });
            if done == Some(true) {
                self.dirty |= 1 << queue;
            }
        }
        known
    }

    /// Starts a batch of a queue's requests. Returns `None` if the queue is not in use, if its requests are taken at
    /// kicks only, or if requests are completed in order.
    #[inline(always)]
    pub fn batch(&mut self, queue: u16) -> Option<Batch<'_>> {
        if self.offered.has(queue) || self.order.is_some() {
            return None;
        }
        let used = self.queues.get_mut(usize::from(queue)).filter(|_| self.running)?.as_mut()?;
        Some(Batch::new(used, &self.memory, &mut self.dirty))
    }

    /// Enables the driver's notifications and reads the ring again. Returns how many requests it holds. See
    /// [`Queue::arm`].
    pub fn arm(&mut self, queue: u16) -> u16 {
        self.with(queue, |q, memory| q.arm(memory)).unwrap_or(0)
    }

    /// Disables the driver's notifications.
    pub fn disarm(&mut self, queue: u16) {
        self.with(queue, |q, memory| q.disarm(memory));
    }

    /// Notes that its configuration has changed. The driver is notified at the end of the turn.
    pub fn notify_config_change(&mut self) {
        self.config_changed |= self.running;
    }

    /// Starts the service of its queues in use. `kicked`: the queues that were kicked since the driver started the device,
    /// one bit each. `None`: it was started before, and kicks may be lost.
    pub(crate) fn start_service(&mut self, service_mode: impl Fn(u16) -> ServiceMode, kicked: Option<u64>, now: u64) {
        for queue in 0..MAX_QUEUES as u16 {
            if self.has_queue(queue) {
                self.start_queue_service(queue, service_mode(queue), kicked.is_none(), now);
            }
        }
        if let Some(kicked) = kicked.filter(|_| self.kicks_only) {
            self.on_kick(kicked, now);
        }
    }

    /// Starts the service of a queue in use. `look`: kicks may be lost, so a queue that is looked at after its kicks only is
    /// looked at once.
    fn start_queue_service(&mut self, queue: u16, service_mode: ServiceMode, look: bool, now: u64) {
        let bit = 1 << queue;
        match service_mode {
            ServiceMode::Unserved => {
                self.with(queue, |q, _| {
                    q.limit_chains(MOST_OFFERED);
                    Ok(())
                });
                if self.kicks_only {
                    // The driver must notify of each buffer, because the ring is not read otherwise.
                    self.arm(queue);
                    self.offered.start(queue);
                }
                return;
            }
            ServiceMode::AsConfigured => {}
            ServiceMode::Notified => self.notified |= bit,
        }
        if self.kicks_only {
            self.notified |= bit;
            // A queue begins with notifications disabled. Without a lost kick nothing is taken here: the driver may kick later
            // for what would be taken, and use the ring's memory for something else when that kick is handled.
            let offered = self.arm(queue) != 0;
            if let Some(traffic) = self.traffic.get_mut(usize::from(queue)) {
                *traffic = QueueTraffic::KICKS_ONLY;
                if offered && look {
                    traffic.kicked();
                    self.visited |= bit;
                }
            }
            return;
        }
        let requests = self.requests(queue);
        if let Some(traffic) = self.traffic.get_mut(usize::from(queue)) {
            *traffic = QueueTraffic::new(requests, now);
            self.visited |= bit;
        }
    }

    /// Takes what drivers have offered on queues that nobody visits, after a kick or at the start of such a queue.
    /// `scratch` is used meanwhile.
    #[cold]
    pub(crate) fn take_offered(&mut self, scratch: &mut Segments) {
        for queue in SetBits(u32::from(self.offered.take_due())).map(|queue| queue as u16) {
            while !self.offered.is_full() {
                scratch.clear();
                let Some(request) = self.with(queue, |q, memory| q.pop(memory, scratch)).flatten() else { break };
                if let Err(token) = self.offered.hold(request, scratch) {
                    self.with(queue, |q, _| Ok(q.rewind(token)));
                    break;
                }
            }
        }
    }

    /// Whether [`Device::take_offered`] has something to do.
    #[inline]
    pub(crate) const fn has_offered(&self) -> bool {
        self.offered.is_due()
    }

    /// Releases the queues that the driver wants to reset. A queue is released when none of its requests is in flight.
    /// If `free`, the back-end holds none of them, and the queue is released at once. Returns whether some queue must
    /// still wait.
    pub(crate) fn stop_queues(&mut self, free: bool) -> bool {
        let mut waits = false;
        let stopping = self.shared.stopping();
        for queue in (0..MAX_QUEUES as u16).filter(|&q| stopping & 1 << q != 0) {
            let bit = 1 << queue;
            self.visited &= !bit;
            // They go back to the ring in reverse order, as it wants them.
            while let Some(token) = self.offered.release(queue) {
                self.with(queue, |q, _| Ok(q.rewind(token)));
            }
            if let Some(traffic) = self.traffic.get_mut(usize::from(queue)) {
                *traffic = QueueTraffic::UNUSED;
            }
            let Some(place) = self.queues.get_mut(usize::from(queue)) else { continue };
            if !free && place.as_ref().is_some_and(|queue| queue.in_flight() != 0) {
                waits = true;
                continue;
            }
            *place = None;
            if let Some(order) = &mut self.order {
                order.forget(queue);
            }
            self.notified &= !bit;
            self.dirty &= !bit;
            self.published &= !bit;
            self.offered.stop(queue);
            self.shared.counters().queue_resets.add(1);
            self.shared.queue_stopped(queue);
        }
        waits
    }

    /// Takes into use the queues that the driver has set up since activation.
    pub(crate) fn start_queues(&mut self, service_mode: impl Fn(u16) -> ServiceMode, now: u64) {
        let starting = self.shared.take_starting();
        for queue in (0..MAX_QUEUES as u16).filter(|&q| starting & 1 << q != 0) {
            let state = QueueState::start(self.shared.queue(queue), self.features);
            if !self.running || self.has_queue(queue) || !state.config.enabled {
                continue;
            }
            match self.set_up_queue(queue, &state) {
                Ok(()) => self.start_queue_service(queue, service_mode(queue), true, now),
                Err(fault) => self.fail(fault),
            }
        }
    }

    /// How the engine learns of a queue's requests.
    #[inline]
    fn requests(&self, queue: u16) -> Requests {
        if self.notified >> queue & 1 == 0 { self.requests } else { Requests::Notify }
    }

    /// Reads a queue's backlog without taking anything.
    #[inline]
    pub(crate) fn backlog(&self, queue: u16) -> Option<Backlog> {
        self.in_use(queue).map(Queue::backlog)
    }

    /// Whether a visit to the queue would find nothing and change nothing: the queue is always polled and holds no
    /// request.
    #[inline]
    pub(crate) fn is_idle(&self, queue: u16) -> bool {
        matches!(self.requests(queue), Requests::Poll) && self.in_use(queue).is_some_and(Queue::is_empty)
    }

    /// Queues to visit, one bit each.
    #[inline]
    pub(crate) fn to_visit(&self) -> u16 {
        if self.running { self.visited } else { 0 }
    }

    /// Handles the driver's notification of `queues`, one bit each.
    pub(crate) fn on_kick(&mut self, queues: u64, now: u64) {
        for queue in (0..MAX_QUEUES as u16).filter(|&q| queues & 1 << q != 0) {
            if self.offered.has(queue) {
                self.offered.kicked(queue);
                continue;
            }
            let requests = self.requests(queue);
            let Some(traffic) = self.traffic.get_mut(usize::from(queue)) else { continue };
            match traffic.on_kick(requests, now) {
                KickEffect::Nothing => continue,
                KickEffect::Poll => self.shared.counters().polls.add(1),
                KickEffect::Drain => {}
            }
            if self.kicks_only {
                traffic.kicked();
            } else {
                self.disarm(queue);
            }
            self.visited |= 1 << queue;
        }
    }

    /// Handles the end of a visit that took `served` requests. `emptied` says whether the queue was empty then. A queue
    /// that is to wait for its driver is armed and read again. If it holds a request then, its driver did not know yet
    /// that it must notify.
    #[inline]
    pub(crate) fn after_visit(&mut self, queue: u16, served: u32, emptied: impl FnOnce() -> bool, now: u64) {
        let requests = self.requests(queue);
        let Some(traffic) = self.traffic.get_mut(usize::from(queue)) else { return };
        if traffic.on_visit(requests, served, now) {
            self.wait_for_driver(queue, emptied());
        }
    }

    /// Has a queue wait for its driver's next notification, if it is empty.
    #[inline(never)]
    fn wait_for_driver(&mut self, queue: u16, emptied: bool) {
        if self.kicks_only {
            return self.after_kick(queue, emptied);
        }
        if self.arm(queue) != 0 {
            self.disarm(queue);
        } else if let Some(traffic) = self.traffic.get_mut(usize::from(queue)) {
            traffic.armed();
            self.visited &= !(1 << queue);
            self.shared.counters().arms.add(1);
        }
    }

    /// Handles the end of a visit to a queue that is looked at after its kicks only. The driver's notifications were never
    /// disabled, so the queue need not be armed. Its ring may be gone as soon as the driver sees its requests completed.
    #[cold]
    fn after_kick(&mut self, queue: u16, emptied: bool) {
        let interrupted = self.interrupted & 1 << queue != 0;
        self.interrupted &= !(1 << queue);
        if emptied && !interrupted {
            if let Some(traffic) = self.traffic.get_mut(usize::from(queue)) {
                traffic.armed();
            }
            self.visited &= !(1 << queue);
        }
    }

    /// Stops the device because the guest broke a rule. Its driver must reset it.
    pub fn fail(&mut self, fault: Fault) {
        if !self.running {
            return;
        }
        self.running = false;
        self.config_changed = true;
        self.shared.count_fault(fault);
        self.shared.set_needs_reset();
    }

    /// Activates the device with its driver's configuration. Answers [`Phase::Activating`].
    pub(crate) fn activate(&mut self) {
        self.forget();
        self.running = true;
        self.features = Features::from_bits_retain(self.shared.negotiated());
        self.kicks_only = self.shared.kicks_only();
        let configured = core::array::from_fn(|i| QueueState::start(self.shared.queue(i as u16), self.features));
        let set_up =
            if self.shared.accepts(self.features.bits()) { self.set_up(&configured) } else { Err(Fault::Features) };
        self.shared.counters().activations.add(1);
        if let Err(fault) = set_up {
            self.fail(fault);
        }
        if !self.shared.step(Phase::Activating, Phase::Running) {
            // The driver has requested a reset already. The next turn answers it.
            self.forget();
        }
    }

    /// Stops taking and completing requests, until the back-end has released its tokens.
    pub(crate) fn stop(&mut self) {
        self.running = false;
    }

    /// The generation of the newest tokens.
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// Releases the guest's queues. Answers [`Phase::Resetting`]. The back-end holds no token any more, or only stale
    /// ones.
    pub(crate) fn reset(&mut self) {
        self.forget();
        self.shared.counters().resets.add(1);
        self.shared.acknowledge_reset();
    }

    /// Saves the device as plain data. Returns `None` while a request is in flight, or while a change of phase or of a
    /// queue is not answered.
    #[must_use]
    pub fn save(&self) -> Option<DeviceState> {
        let phase = self.shared.phase();
        if matches!(phase, Phase::Activating | Phase::Resetting) || self.shared.queues_change() {
            return None;
        }
        let mut queues = [QueueState { config: QueueConfig::RESET, avail: 0, used: 0 }; MAX_QUEUES];
        for (i, (state, queue)) in queues.iter_mut().zip(&self.queues).enumerate() {
            state.config = self.shared.queue(i as u16);
            // A queue of a failed device is set up again before its next use.
            if let (true, Some(queue)) = (self.running, queue) {
                (state.avail, state.used) = queue.positions()?;
            }
        }
        Some(DeviceState {
            version: STATE_VERSION,
            device_type: self.shared.device().device_type,
            running: phase == Phase::Running,
            needs_reset: self.shared.needs_reset(),
            features: self.features.bits(),
            config_vector: self.shared.config_vector(),
            isr: self.shared.isr(),
            config: self.shared.config(),
            queues,
            msix: self.shared.msix.save(),
        })
    }

    /// Restores a saved state, over the same guest memory. None of the guest's cores may run meanwhile.
    ///
    /// # Errors
    /// The state is not for this device. The device stays stopped.
    pub fn restore(&mut self, state: &DeviceState) -> Result<(), BadState> {
        if state.version != STATE_VERSION {
            return Err(BadState::Version(state.version));
        }
        if state.device_type != self.shared.device().device_type {
            return Err(BadState::DeviceType(state.device_type));
        }
        if state.running && !self.shared.accepts(state.features) {
            return Err(BadState::Features(state.features));
        }
        self.forget();
        self.features = Features::from_bits_retain(state.features);
        if state.running && !state.needs_reset {
            self.set_up(&state.queues).map_err(|fault| {
                self.forget();
                BadState::Queue(fault)
            })?;
            self.running = true;
        }
        self.shared.restore(state);
        Ok(())
    }

    /// Publishes completions. Returns whether there were any. Then a full fence must follow, and [`Device::notify`].
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        let dirty = core::mem::take(&mut self.dirty);
        self.published |= dirty;
        for queue in SetBits(u32::from(dirty)) {
            // This is done even if the device has failed since: earlier completions belong to the driver.
            if let Some(queue) = self.queues.get_mut(queue).and_then(Option::as_mut) {
                queue.publish();
            }
        }
        dirty != 0
    }

    /// Queues whose completions were published and whose driver was not notified yet, one bit each.
    #[inline]
    pub(crate) const fn published(&self) -> u16 {
        self.published
    }

    /// Sends the interrupts that the driver wants for published completions, at most one for each MSI-X entry. A device
    /// that has failed since gets the configuration change interrupt only. `slot` is its own, for the observer.
    #[inline]
    pub(crate) fn notify(&mut self, slot: usize, deliver: &impl Deliver, observer: &impl Observer) {
        if self.published == 0 && !self.config_changed {
            return;
        }
        let counters = self.shared.counters();
        let mut entries = 0u32;
        for queue in SetBits(u32::from(core::mem::take(&mut self.published))).map(|queue| queue as u16) {
            let notification = match self.with(queue, |q, memory| q.used_notification(memory)) {
                Some(UsedNotification::Wanted) => {
                    match self.shared.queue_vector(queue) {
                        vector if usize::from(vector) < VECTORS => entries |= 1 << vector,
                        _ => self.shared.set_isr(ISR_QUEUE),
                    }
                    Notification::Interrupt
                }
                Some(UsedNotification::Suppressed) => {
                    counters.interrupts_suppressed.add(1);
                    Notification::Suppressed
                }
                Some(UsedNotification::Nothing) | None => continue,
            };
            observer.completion(&Completion { queue: QueueId::new(slot, queue), notification });
        }
        if core::mem::take(&mut self.config_changed) && usize::from(self.shared.config_vector()) < VECTORS {
            entries |= 1 << self.shared.config_vector();
        }
        for entry in SetBits(entries).map(|entry| entry as u16) {
            let Some(message) = self.shared.msix.raise(entry) else {
                counters.interrupts_masked.add(1);
                continue;
            };
            match message.decode() {
                Ok(interrupt) if deliver.deliver(self.number, interrupt) => counters.interrupts.add(1),
                _ => counters.interrupts_refused.add(1),
            }
        }
    }

    fn set_up(&mut self, states: &[QueueState; MAX_QUEUES]) -> Result<(), Fault> {
        self.generation = self.generation.wrapping_add(1);
        for (queue, state) in (0..).zip(states).filter(|(_, state)| state.config.enabled) {
            self.set_up_queue(queue, state)?;
        }
        Ok(())
    }

    fn set_up_queue(&mut self, queue: u16, state: &QueueState) -> Result<(), Fault> {
        let max = self.shared.max_queue_size();
        // SAFETY: the memory is the device's own, and is dropped with the queues.
        let new = unsafe { Queue::new(&self.memory, queue, self.generation, self.features, max, state)? };
        if let Some(place) = self.queues.get_mut(usize::from(queue)) {
            *place = Some(new);
        }
        Ok(())
    }

    fn forget(&mut self) {
        self.running = false;
        self.order = None;
        self.queues = [const { None }; MAX_QUEUES];
        self.features = Features::empty();
        self.traffic = [QueueTraffic::UNUSED; MAX_QUEUES];
        self.notified = 0;
        self.kicks_only = false;
        self.offered = Offered::NONE;
        self.interrupted = 0;
        self.visited = 0;
        self.dirty = 0;
        self.published = 0;
        self.config_changed = false;
    }

    /// Calls `f` with a queue in use. If `f` returns a fault, the device fails.
    #[inline]
    fn with<T>(&mut self, queue: u16, f: impl FnOnce(&mut Queue, &GuestMemory) -> Result<T, Fault>) -> Option<T> {
        if !self.running {
            return None;
        }
        let q = self.queues.get_mut(usize::from(queue))?.as_mut()?;
        match f(q, &self.memory) {
            Ok(value) => Some(value),
            Err(fault) => {
                self.fail(fault);
                None
            }
        }
    }
}
