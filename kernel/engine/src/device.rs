//! A virtual device as the engine sees it: its queues in use, its guest's memory, and what is to be told its driver at
//! the end of a turn.

#![allow(unsafe_code, reason = "its queues live as long as its memory")]

use memory::GuestMemory;

use crate::backend::{Attends, Ones};
use crate::chain::Segments;
use crate::fault::Fault;
use crate::msix::MsixState;
use crate::ports::PortSet;
use crate::queue::{Queue, QueueState, Request, Run, Token, Wish};
use crate::requests::{Kicked, Requests, Watch};
use crate::schedule::Glance;
use crate::shared::{CONFIG_BYTES, Deliver, Features, ISR_QUEUE, MAX_QUEUES, Phase, QueueConfig, Shared, VECTORS};

/// The version of [`DeviceState`] that this code writes and reads.
pub const STATE_VERSION: u32 = 1;

/// A quiesced device as plain data: all there is to know to go on with it elsewhere, over the same guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceState {
    /// [`STATE_VERSION`].
    pub version: u32,
    /// Virtio device type.
    pub device_type: u16,
    /// The engine was serving it.
    pub running: bool,
    /// DEVICE_NEEDS_RESET stands in the status.
    pub needs_reset: bool,
    /// Negotiated features.
    pub features: u64,
    /// MSI-X entry for configuration changes.
    pub config_vector: u16,
    /// ISR status.
    pub isr: u8,
    /// Device-specific configuration.
    pub config: [u8; CONFIG_BYTES],
    /// The queues; those that are enabled were in use if the device was running.
    pub queues: [QueueState; MAX_QUEUES],
    /// MSI-X table, pending bits and control.
    pub msix: MsixState<VECTORS>,
}

/// Why a saved state is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadState {
    /// The version is not [`STATE_VERSION`].
    Version(u32),
    /// It is of another type of device.
    DeviceType(u16),
    /// It uses features that this device does not offer.
    Features(u64),
    /// One of its queues is not acceptable.
    Queue(Fault),
}

/// A virtual device attached to an engine.
pub struct Device {
    number: usize,
    shared: &'static Shared,
    memory: GuestMemory,
    features: Features,
    /// Changes with each activation, so that a token of an earlier life is known.
    generation: u32,
    running: bool,
    queues: [Option<Queue>; MAX_QUEUES],
    requests: Requests,
    watches: [Watch; MAX_QUEUES],
    /// Queues whose driver notifies whatever `requests` says, a bit each.
    notified: u16,
    /// Queues that each turn is to look at, a bit each.
    visited: u16,
    /// Queues with completions to publish, a bit each.
    dirty: u16,
    /// Queues whose completions were published, and whose driver's wish for an interrupt is still to be looked at.
    published: u16,
    config_changed: bool,
    /// Ports whose devices share memory with this one; its own among them.
    kin: PortSet,
}

impl Device {
    /// A device that is not running yet. `number` is what [`Deliver`] is told,
    /// `generation` the last that this port's tokens had.
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
            watches: [Watch::UNUSED; MAX_QUEUES],
            notified: 0,
            visited: 0,
            dirty: 0,
            published: 0,
            config_changed: false,
            kin: PortSet::NONE,
        }
    }

    /// Ports whose devices share memory with this one.
    #[inline]
    pub(crate) fn kin(&self) -> PortSet {
        self.kin
    }

    pub(crate) fn kin_mut(&mut self) -> &mut PortSet {
        &mut self.kin
    }

    /// What it shares with its transport.
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

    /// Whether its queues may be used: activated, not broken, not reset.
    #[must_use]
    pub fn running(&self) -> bool {
        self.running
    }

    /// Whether it is running and `queue` is in use.
    #[must_use]
    pub fn has_queue(&self, queue: u16) -> bool {
        self.in_use(queue).is_some()
    }

    /// A queue, if it is in use.
    #[inline]
    fn in_use(&self, queue: u16) -> Option<&Queue> {
        self.queues.get(usize::from(queue))?.as_ref().filter(|_| self.running)
    }

    /// Requests taken and not completed, on all queues.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.queues.iter().flatten().map(|q| u32::from(q.in_flight())).sum()
    }

    /// How many requests a queue is known to hold, at least. Zero if it is not in use.
    #[inline]
    pub fn available(&mut self, queue: u16) -> u16 {
        self.with(queue, |q, _| q.available()).unwrap_or(0)
    }

    /// Takes the next request of a queue; its buffers are appended to `segments`, which must have room for a chain.
    pub fn pop(&mut self, queue: u16, segments: &mut Segments) -> Option<Request> {
        self.with(queue, |q, memory| q.pop(memory, segments)).flatten()
    }

    /// Gives back the request taken last; see [`Queue::rewind`].
    pub fn rewind(&mut self, token: Token) -> bool {
        self.with(token.queue, |q, _| Ok(q.rewind(token))).unwrap_or(false)
    }

    /// Completes a request of which the device wrote `written` bytes. False if a reset or a fault came before; then
    /// nothing happens but that it is counted.
    pub fn complete(&mut self, token: Token, written: u32) -> bool {
        let bit = 1 << token.queue;
        let done = self.with(token.queue, |q, memory| q.complete(memory, token, written)).unwrap_or(false);
        if done {
            self.dirty |= bit;
        } else {
            self.shared.counters().stale_tokens.add(1);
        }
        done
    }

    /// The requests of a queue from the next one on, to be taken by runs. None if it is not in use.
    #[inline(always)]
    pub(crate) fn run(&mut self, queue: u16) -> Option<Run<'_>> {
        let used = self.queues.get_mut(usize::from(queue)).filter(|_| self.running)?.as_mut()?;
        Some(Run::new(used, &self.memory, &mut self.dirty))
    }

    /// Asks the driver to notify, and looks again: how many requests came meanwhile. See [`Queue::arm`].
    pub fn arm(&mut self, queue: u16) -> u16 {
        self.with(queue, |q, memory| q.arm(memory)).unwrap_or(0)
    }

    /// Asks the driver not to notify.
    pub fn disarm(&mut self, queue: u16) {
        self.with(queue, |q, memory| q.disarm(memory));
    }

    /// Its configuration has changed: its driver, if there is one, is told at the end of the turn.
    pub fn tell_config_changed(&mut self) {
        self.config_changed |= self.running;
    }

    /// Begins to attend to its queues in use.
    pub(crate) fn watch(&mut self, attends: impl Fn(u16) -> Attends, now: u64) {
        for queue in 0..MAX_QUEUES as u16 {
            if self.has_queue(queue) {
                self.watch_queue(queue, attends(queue), now);
            }
        }
    }

    /// Begins to attend to a queue in use.
    fn watch_queue(&mut self, queue: u16, attends: Attends, now: u64) {
        let bit = 1 << queue;
        match attends {
            Attends::Never => return,
            Attends::AsConfigured => {}
            Attends::Notified => self.notified |= bit,
        }
        let requests = self.requests(queue);
        if let Some(watch) = self.watches.get_mut(usize::from(queue)) {
            *watch = Watch::new(requests, now);
            self.visited |= bit;
        }
    }

    /// Lets go of the queues that the driver wants to be reset, each as soon as none of its requests is out, or at once if the
    /// back-end is `free` of them. Whether some still have one.
    pub(crate) fn stop_queues(&mut self, free: bool) -> bool {
        let mut waits = false;
        let stopping = self.shared.stopping();
        for queue in (0..MAX_QUEUES as u16).filter(|&q| stopping & 1 << q != 0) {
            let bit = 1 << queue;
            self.visited &= !bit;
            self.watches[usize::from(queue)] = Watch::UNUSED;
            if !free && self.queues[usize::from(queue)].as_ref().is_some_and(|queue| queue.in_flight() != 0) {
                waits = true;
                continue;
            }
            self.queues[usize::from(queue)] = None;
            self.notified &= !bit;
            self.dirty &= !bit;
            self.published &= !bit;
            self.shared.counters().queue_resets.add(1);
            self.shared.queue_stopped(queue);
        }
        waits
    }

    /// Takes the queues into use that the driver has set up since its device runs.
    pub(crate) fn start_queues(&mut self, attends: impl Fn(u16) -> Attends, now: u64) {
        let starting = self.shared.take_starting();
        for queue in (0..MAX_QUEUES as u16).filter(|&q| starting & 1 << q != 0) {
            let state = QueueState::start(self.shared.queue(queue), self.features);
            if !self.running || self.has_queue(queue) || !state.config.enabled {
                continue;
            }
            match self.set_up_queue(queue, &state) {
                Ok(()) => self.watch_queue(queue, attends(queue), now),
                Err(fault) => self.fail(fault),
            }
        }
    }

    /// How the engine learns of a queue's requests.
    #[inline]
    fn requests(&self, queue: u16) -> Requests {
        if self.notified >> queue & 1 == 0 { self.requests } else { Requests::Notify }
    }

    /// What a look at a queue finds, without taking anything from it.
    #[inline]
    pub(crate) fn glance(&self, queue: u16) -> Option<Glance> {
        self.in_use(queue).map(Queue::glance)
    }

    /// Whether a visit to a queue would find nothing, and change nothing: one that is polled whatever its load, and holds no request.
    #[inline]
    pub(crate) fn is_idle(&self, queue: u16) -> bool {
        matches!(self.requests(queue), Requests::Poll) && self.in_use(queue).is_some_and(Queue::is_empty)
    }

    /// Queues to be visited, a bit each.
    #[inline]
    pub(crate) fn to_visit(&self) -> u16 {
        if self.running { self.visited } else { 0 }
    }

    /// The driver has notified some queues, a bit each.
    pub(crate) fn kicked(&mut self, queues: u64, now: u64) {
        for queue in (0..MAX_QUEUES as u16).filter(|&q| queues & 1 << q != 0) {
            let requests = self.requests(queue);
            match self.watches[usize::from(queue)].kicked(requests, now) {
                Kicked::Nothing => continue,
                Kicked::Poll => self.shared.counters().polls.add(1),
                Kicked::Drain => {}
            }
            self.disarm(queue);
            self.visited |= 1 << queue;
        }
    }

    /// A visit to a queue took `served` requests. A queue that is to wait for its driver is armed and looked at once
    /// more: what came in between was offered by a driver that did not know yet that it has to notify.
    #[inline]
    pub(crate) fn was_visited(&mut self, queue: u16, served: u32, now: u64) {
        let requests = self.requests(queue);
        let Some(watch) = self.watches.get_mut(usize::from(queue)) else { return };
        if !watch.visited(requests, served, now) {
            return;
        }
        if self.arm(queue) != 0 {
            self.disarm(queue);
        } else if let Some(watch) = self.watches.get_mut(usize::from(queue)) {
            watch.armed();
            self.visited &= !(1 << queue);
            self.shared.counters().arms.add(1);
        }
    }

    /// The guest broke a rule: the device stops until its driver resets it.
    pub fn fail(&mut self, fault: Fault) {
        if !self.running {
            return;
        }
        self.running = false;
        self.config_changed = true;
        self.shared.count_fault(fault);
        self.shared.set_needs_reset();
    }

    /// Takes the device into use as its driver configured it. Answers [`Phase::Activating`].
    pub(crate) fn activate(&mut self) {
        self.forget();
        self.running = true;
        self.features = Features::from_bits_retain(self.shared.negotiated());
        let configured = core::array::from_fn(|i| QueueState::start(self.shared.queue(i as u16), self.features));
        let set_up =
            if self.shared.accepts(self.features.bits()) { self.set_up(&configured) } else { Err(Fault::Features) };
        self.shared.counters().activations.add(1);
        if let Err(fault) = set_up {
            self.fail(fault);
        }
        if !self.shared.step(Phase::Activating, Phase::Running) {
            // The driver has changed its mind already; the reset is answered in the next turn.
            self.forget();
        }
    }

    /// Takes and completes nothing any more; for the time until the back-end has let go of its tokens.
    pub(crate) fn stop(&mut self) {
        self.running = false;
    }

    /// The generation of the tokens given out last.
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// Lets go of the guest's queues. Answers [`Phase::Resetting`]; the back-end holds no token any more, or only such
    /// as it can do nothing with.
    pub(crate) fn reset(&mut self) {
        self.forget();
        self.shared.counters().resets.add(1);
        self.shared.acknowledge_reset();
    }

    /// The device as plain data; None while a request is out, or a change of phase or of a queue unanswered.
    #[must_use]
    pub fn save(&self) -> Option<DeviceState> {
        let phase = self.shared.phase();
        if matches!(phase, Phase::Activating | Phase::Resetting) || self.shared.queues_change() {
            return None;
        }
        let mut queues = [QueueState { config: QueueConfig::RESET, avail: 0, used: 0 }; MAX_QUEUES];
        for (i, (state, queue)) in queues.iter_mut().zip(&self.queues).enumerate() {
            state.config = self.shared.queue(i as u16);
            // A queue of a broken device will be set up anew before it is used again.
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

    /// Goes on from a saved state, over the same guest memory. None of the guest's cores may run meanwhile.
    ///
    /// # Errors
    /// The state is not for this device; the device is as it was, not running.
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

    /// Shows the driver what was completed. Whether there was anything: then comes a full fence, and [`Device::tell`].
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        let dirty = core::mem::take(&mut self.dirty);
        self.published |= dirty;
        for queue in Ones(u32::from(dirty)) {
            // Even if the device has failed since: what was completed before that is the driver's.
            if let Some(queue) = self.queues.get_mut(queue).and_then(Option::as_mut) {
                queue.publish();
            }
        }
        dirty != 0
    }

    /// Interrupts the driver, if it wants that for what was published, once for each MSI-X entry. A device that has failed since
    /// then is told by its configuration alone.
    pub(crate) fn tell(&mut self, deliver: &impl Deliver) {
        if self.published == 0 && !self.config_changed {
            return;
        }
        let counters = self.shared.counters();
        let mut entries = 0u32;
        for queue in Ones(u32::from(core::mem::take(&mut self.published))).map(|queue| queue as u16) {
            match self.with(queue, |q, memory| q.wish(memory)) {
                Some(Wish::Interrupt) => match self.shared.queue_vector(queue) {
                    vector if usize::from(vector) < VECTORS => entries |= 1 << vector,
                    _ => self.shared.set_isr(ISR_QUEUE),
                },
                Some(Wish::Quiet) => counters.interrupts_suppressed.add(1),
                Some(Wish::Nothing) | None => {}
            }
        }
        if core::mem::take(&mut self.config_changed) && usize::from(self.shared.config_vector()) < VECTORS {
            entries |= 1 << self.shared.config_vector();
        }
        for entry in Ones(entries).map(|entry| entry as u16) {
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
        if let Some(slot) = self.queues.get_mut(usize::from(queue)) {
            *slot = Some(new);
        }
        Ok(())
    }

    fn forget(&mut self) {
        self.running = false;
        self.queues = [const { None }; MAX_QUEUES];
        self.features = Features::empty();
        self.watches = [Watch::UNUSED; MAX_QUEUES];
        self.notified = 0;
        self.visited = 0;
        self.dirty = 0;
        self.published = 0;
        self.config_changed = false;
    }

    /// Does something with a queue in use; a broken rule fails the device.
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
