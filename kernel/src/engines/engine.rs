//! One engine: its core, its interface to the control core, its devices' targets, its uplinks.

#![allow(unsafe_code, reason = "asks for the widest copy routine")]

use super::{
    backends::{Backends, Config},
    delivery::{TargetDelivery, Targets},
    limits,
    look::CoreLook,
    timers::TscAndTimers,
    watcher::Watcher,
};
use crate::{
    arch::{random, time, vector},
    cache,
    cores::{self, Core},
    disks,
    guests::target::Target,
    heap::For,
    maps, options, report,
    speed::CoreSpeed,
    trace,
    uplink::{ConfiguredUplink, KnownUplink},
};
use ::control::{NoMemory, Utilisation};
use ::trace::Watch;
use alloc::{boxed::Box, format, vec::Vec};
use block::{backend::Block, pair::Pair as Storages, ram::Ram};
use config::{MAX_GUESTS, Scheduling};
use engine::{
    control::{Attachment, Command, Control, Reply},
    engine::Engine as Loop,
    pair::Pair,
    schedule::{Chosen, GuestWeight},
    slots::MAX_SLOTS,
};
use entropy::backend::Entropy;
use lifecycle::Asks;
use memory::{GuestMemory, copy::Copier};
use net::backend::Net;
use spin::{Mutex, Once};
use virtio::shared::Shared;
use virtio_console::{backend::Console, bell::Bell};

/// The number of the question that has the engine look at its core. Slots and guests have the numbers below.
const LOOK: usize = MAX_SLOTS.saturating_add(MAX_GUESTS);

/// What an engine's core runs.
type IoLoop = Loop<Backends, Chosen, TargetDelivery>;

/// The parts of an engine to make.
pub struct Setup {
    /// Its core. `None` if it shares the control core.
    pub core: Option<&'static Core>,
    /// The NUMA node of that core, if the machine reports it.
    pub node: Option<u32>,
    /// The schedule of its queues.
    pub scheduling: Scheduling,
    /// Its uplinks, in the order of the configuration.
    pub uplinks: Vec<ConfiguredUplink>,
    /// What it has of the machine's disks.
    pub disks: disks::EngineDisks,
}

/// A guest's device, for an engine to serve.
pub struct NewDevice {
    /// The engine's slot for it.
    pub slot: usize,
    /// The state that the device shares with its transport.
    pub shared: &'static Shared,
    /// Its guest's memory.
    pub memory: GuestMemory,
    /// How the engine learns of its requests.
    pub requests: config::Requests,
    /// Its guest and that guest's weight.
    pub share: GuestWeight,
    /// Its back-end, and what the back-end must know of the device.
    pub config: Config,
    /// Where its interrupts go.
    pub target: Target,
}

/// An engine's answer to a question about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It has the device.
    Attached,
    /// It does not take the device; the text says why.
    NotAttached(&'static str),
    /// It does not have the device, and does not touch the guest's memory any more. False: it never had it.
    Detached(bool),
    /// It still has requests of the device. Ask again.
    Held,
    /// A guest's weight is changed. It is about no device.
    Reweighed,
    /// Its core was looked at. It is about no device.
    Looked,
}

/// An engine, as the control core sees it.
pub struct Engine {
    id: usize,
    /// The index of its core.
    core: usize,
    node: Option<u32>,
    control: Control<Config>,
    /// The control core's questions to it.
    asks: Mutex<Asks<Command<Config>, Answer>>,
    /// What sees its turns while `watch` is on, or the trace.
    observer: Watcher,
    targets: Targets,
    /// Rung for console devices that have input, or whose ports were opened or closed.
    console_bell: Bell,
    /// How busy it is. Only the control core uses it.
    utilisation: Mutex<Utilisation>,
    uplinks: Vec<KnownUplink>,
    /// What it looks at on its core once a second.
    look: CoreLook,
    copier: Copier,
    /// Its loop until its core has it. If it shares the control core, the loop stays here and the control core runs the
    /// turns.
    io_loop: Mutex<Option<Box<IoLoop>>>,
}

impl Engine {
    /// Makes an engine.
    pub fn make(id: usize, setup: Setup) -> &'static Self {
        let copier = copier();
        let (uplinks, known): (Vec<_>, Vec<_>) =
            setup.uplinks.into_iter().map(|ConfiguredUplink { path, known }| (path, known)).unzip();
        let asks = Mutex::new(Asks::new(LOOK.saturating_add(1)));
        // Guests' cores ring its doorbells.
        let shared = For::everybody();
        let engine: &'static Self = Box::leak(Box::new(Self {
            id,
            core: setup.core.map_or(0, |core| core.index),
            node: setup.node,
            control: Control::new(),
            asks,
            observer: Watcher::new(setup.core.map_or(0, |core| core.index)),
            targets: Targets::new(),
            console_bell: Bell::new(),
            utilisation: Mutex::new(Utilisation::new(time::rates().tsc)),
            uplinks: known,
            look: CoreLook::new(),
            copier,
            io_loop: Mutex::new(None),
        }));
        drop(shared);
        let seed = time::tsc().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut net = Net::new(seed, limits::address_age());
        net.watch(Watch { watcher: &engine.observer, on: &trace::ON });
        for path in uplinks {
            // This succeeds: the engine has room for as many uplinks as the configuration allows.
            path.add_to(&mut net);
        }
        let rare = Pair::new(Entropy::new(random::source(), limits::entropy()), Console::new(&engine.console_bell));
        let storages = Storages::new(Ram::new(), setup.disks.into_storage());
        let mut block = Block::new(storages);
        block.watch(Watch { watcher: &engine.observer, on: &trace::ON });
        let backends = Pair::new(net, Pair::new(block, rare));
        let delivery = TargetDelivery(&engine.targets);
        // The loop is large, and it is on the stack before it is on the heap. Only the boot core's stack has room for
        // it.
        let mut io_loop = Box::new(Loop::new(&engine.control, backends, limits::schedule(setup.scheduling), delivery));
        io_loop.set_long_turn(limits::long_turn());
        report::decision(format!("the engine copies with {}", copier.name()));
        report::decision(random::describe());
        *engine.io_loop.lock() = Some(io_loop);
        engine
    }

    /// Starts it on its core, which has its map now and nothing to do. One that shares the control core only has that raised to full speed.
    pub fn launch(&'static self) {
        let mut held = self.io_loop.lock();
        if let (Some(io_loop), Some(map)) = (held.as_mut(), maps::of(self.core)) {
            io_loop.set_maps(map);
        }
        if self.shares_control_core() {
            self.speed().raise();
            self.speed().watch();
        } else if let Some(core) = cores::get(self.core)
            && let Some(mut io_loop) = held.take()
        {
            core.give(move |_| {
                self.speed().raise();
                self.speed().watch();
                options::self_test_on_engine_core();
                vector::enable();
                cache::join(None);
                engine::engine::run(&mut io_loop, &TscAndTimers::new(&self.targets), &self.observer);
            });
        }
    }

    /// Its core's speed.
    pub const fn speed(&self) -> &CoreSpeed {
        &self.look.speed
    }

    /// Its id.
    pub const fn id(&self) -> usize {
        self.id
    }

    /// The index of its core.
    pub const fn core(&self) -> usize {
        self.core
    }

    /// The turns that it has made. It makes one after the other, as long as it works.
    pub fn turns(&self) -> u64 {
        let c = &self.control.counters;
        c.busy_turns.get().wrapping_add(c.idle_turns.get())
    }

    /// Whether it shares the control core.
    const fn shares_control_core(&self) -> bool {
        self.core == 0
    }

    /// Whether it can watch the guests' timers. An engine that shares the control core cannot, because the control core
    /// may be busy for long.
    pub const fn watches_timers(&self) -> bool {
        !self.shares_control_core()
    }

    /// Runs one turn if it shares the control core. Returns false if it does not.
    pub fn turn_on_control_core(&self) -> bool {
        if !self.shares_control_core() {
            return false;
        }
        let mut io_loop = self.io_loop.lock();
        let Some(io_loop) = io_loop.as_mut() else { return false };
        io_loop.counted_turn(time::tsc(), &time::tsc, &self.observer);
        true
    }

    /// Takes its answer if there is one, and gives it the next command. Reads once a second how busy it was. Called once a tick. It
    /// waits for nothing: an engine
    /// answers after a turn or two, and what a disk still holds is asked for again.
    #[expect(
        clippy::result_large_err,
        reason = "a command that goes back to its queue is not boxed: nothing allocates here"
    )]
    pub fn service(&'static self) {
        let reply = || {
            Some(match self.control.reply()? {
                Reply::Attached => Answer::Attached,
                Reply::Occupied => Answer::NotAttached("the slot has a device already"),
                Reply::NoSuchSlot => Answer::NotAttached("there is no such slot"),
                Reply::BadState(_) => Answer::NotAttached("its saved state is refused"),
                Reply::Detached(_) => Answer::Detached(true),
                Reply::Vacant => Answer::Detached(false),
                Reply::Detaching => Answer::Held,
                Reply::Reweighed => Answer::Reweighed,
                Reply::Done => Answer::Looked,
            })
        };
        {
            let mut asks = self.asks.lock();
            if self.look.is_due() {
                asks.ask_anew(LOOK, Command::Run(&self.look));
            }
            asks.step(reply, |command| self.control.submit(command));
            asks.forget(MAX_SLOTS);
        }
        let counters = &self.control.counters;
        let cycles = || (counters.busy_cycles.get(), counters.idle_cycles.get());
        self.utilisation.lock().tick(time::tsc(), cycles);
        self.uplinks.iter().for_each(KnownUplink::tell_changes);
    }

    /// Its uplinks, as the control core knows them.
    pub fn uplinks(&self) -> &[KnownUplink] {
        &self.uplinks
    }

    /// Asks it to attach a device. [`Engine::answer`] has the answer later.
    ///
    /// # Errors
    /// There is no such slot, or a device has it.
    pub fn attach(&self, device: NewDevice) -> Result<(), &'static str> {
        let NewDevice { slot, shared, memory, requests, share, config, target } = device;
        self.observer.set_guest(slot, share.guest);
        if !self.targets.set(slot, target) {
            return Err("the slot has a device already");
        }
        let requests = limits::requests(requests);
        let memory = memory.copied_by(self.copier);
        let attachment = Attachment { slot, number: slot, shared, memory, requests, share, config, state: None };
        self.asks.lock().ask(slot, Command::Attach(attachment));
        Ok(())
    }

    /// Asks it to detach a device, once or again. Call it only when the cores of the device's guest have stopped.
    /// [`Engine::answer`] has the answer later. Until the answer is [`Answer::Detached`] the engine and the disks may use
    /// the guest's memory.
    pub fn detach(&self, slot: usize) {
        self.targets.unwatch(slot);
        self.asks.lock().ask(slot, Command::Detach { slot });
    }

    /// Takes its answer to the last question about a slot.
    pub fn answer(&self, slot: usize) -> Option<Answer> {
        let answer = self.asks.lock().take(slot)?;
        match answer {
            Answer::Attached => self.targets.watch(slot),
            // The engine has no device there.
            Answer::NotAttached(_) | Answer::Detached(_) => self.targets.remove(slot),
            Answer::Held | Answer::Reweighed | Answer::Looked => {}
        }
        Some(answer)
    }

    /// Has it change the weight of a guest. What it is asked later it does later.
    pub fn reweigh(&self, share: GuestWeight) {
        self.asks.lock().ask_anew(MAX_SLOTS.saturating_add(share.guest), Command::Reweigh(share));
    }

    /// Makes it look at the console device of a slot.
    pub fn ring_console(&self, slot: usize) {
        self.console_bell.ring(slot);
    }

    /// Switches the engine's profile on or off.
    pub fn watch(&self, on: bool) {
        self.observer.watch(on);
        self.choose_loop();
    }

    /// Chooses the loop with or without observers, by whether anything is to be observed.
    pub fn choose_loop(&self) {
        self.control.observe(self.observer.is_needed());
    }

    fn watched(&self) -> Result<control::Watched, NoMemory> {
        Ok(control::Watched {
            visits: control::collect(self.observer.profile.visits().map(Ok))?,
            empty_visits: self.observer.profile.empty_visits.get(),
            longest_turn: self.observer.profile.longest_turn.get(),
            notified: self.observer.profile.notified.get(),
            suppressed: self.observer.profile.suppressed.get(),
        })
    }

    /// Returns the counters of its time and its uplinks.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn counters(&self) -> Result<control::Engine, NoMemory> {
        let c = &self.control.counters;
        let utilisation = self.utilisation.lock();
        Ok(control::Engine {
            id: self.id as u64,
            core: self.core as u64,
            node: self.node.map(u64::from),
            busy_turns: c.busy_turns.get(),
            idle_turns: c.idle_turns.get(),
            busy_cycles: c.busy_cycles.get(),
            idle_cycles: c.idle_cycles.get(),
            busy_permille_second: utilisation.second(),
            busy_permille_minute: utilisation.minute(),
            long_turns: c.long_turns.get(),
            longest_idle_turn: c.longest_idle_turn.get(),
            speed_permille: self.speed().permille(),
            throttled_seconds: self.speed().throttled(),
            throttled_by: self.speed().throttled_by()?,
            smis: self.speed().smis(),
            watched: if self.observer.was_watched() { Some(self.watched()?) } else { None },
            uplinks: control::collect(self.uplinks.iter().map(KnownUplink::counters))?,
        })
    }
}

/// Returns the copy routine for the engines' cores: the widest that this CPU has. It needs vector registers, which an
/// engine's core enables before its first turn. The control core enables them here, because it may run an engine.
fn copier() -> Copier {
    static COPIER: Once<Copier> = Once::new();
    *COPIER.call_once(|| {
        vector::enable();
        // SAFETY: an engine's core enables the same vector registers before its first turn. That core and this one run
        // no guest, and host code keeps nothing in vector registers. All cores are alike.
        unsafe { Copier::widest() }
    })
}
