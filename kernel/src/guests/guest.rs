//! One guest: carries out the actions of its [`Life`] and observes its cores.
//!
//! `lifecycle` decides when to start, stop, kill and restart. This file does it. It brings the guest up on its cores,
//! and has its devices detached from the engine when the cores have returned. The engine answers in later ticks.

pub mod streams;

use super::{
    console::{Console, Drain, Reader, Typed},
    counts::{self, exits},
    device::Device,
    resources::Resources,
    room::{JOBS_BYTES, LIFE_BYTES, MAX_DAMAGED},
    signal,
    target::Target,
    vcpu::VcpuJob,
};
use crate::{
    arch::time,
    cores::Core,
    engines::{self, Answer},
    heap::{self, For},
    maps::{AtWork, While},
    modules, trace, virt,
};
use alloc::{boxed::Box, string::String, sync::Arc, vec::Vec};
use config::{Completion, Restart, Setting};
use control::{
    Event, GuestState, GuestSummary, Joined, NoMemory, PhysicalRange, StopReason, Text, VcpuCounters, sentence,
};
use core::{fmt, ops::Range, sync::atomic::Ordering};
use engine::schedule::GuestWeight;
use lifecycle::{Action, Devices, End, Life, Outcome, Refused, Report, Seen, Step, explain_pending};
use machine::{
    machine::{Machine, Settings, Stop},
    split_lock::SplitLocks,
    vcpu::Interrupts,
    virtio_pci::NotifyBar,
};
use mca::Location;
use memory::maps::GuestLayout;
use rtrb::Consumer;

/// A guest.
pub struct Guest {
    /// Its number, in the order of the configuration.
    number: usize,
    config: config::Guest,
    cores: Vec<&'static Core>,
    /// Its resources, or why it cannot be started.
    resources: Result<Resources, String>,
    console: &'static Console,
    /// The other end of the console's queue.
    output: Consumer<u8>,
    /// Bytes dropped by the console of which the reader knows.
    known_dropped: u64,
    typed: Typed,
    reader: Reader,
    life: Life,
    /// Which of its devices the engine has.
    devices: Devices,
    /// The machine of its present or last life.
    machine: Option<Arc<Machine>>,
    /// Its memory is zeroes: no life has used it since it was zeroed.
    clean: bool,
    /// The machine's addresses at which its memory is damaged. It stays with the guest, and nobody touches it.
    damaged: heapless::Vec<Range<u64>, MAX_DAMAGED>,
    /// An error at this physical address has ended it.
    hit: Option<u64>,
    /// Its cores zero its memory. Then this follows.
    zeroing: Option<Zeroing>,
}

/// What follows when the guest's memory has been zeroed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Zeroing {
    /// A life begins.
    BeforeLife,
    /// A life has ended, and is reported now.
    AfterLife,
}

impl Guest {
    /// Takes the guest's resources. `slot` is the engine's slot for the guest's first device; the others follow. `all`
    /// is the whole configuration.
    pub fn new(
        number: usize,
        all: &config::Config,
        config: config::Guest,
        cores: Vec<&'static Core>,
        slot: usize,
    ) -> Self {
        let resources = Resources::take(number, all, &config, &cores, slot);
        let _own = For::guest(number);
        let devices = config.devices.len();
        let (console, output) = Console::new();
        Self {
            number,
            life: Life::new(config.restart == Restart::Always),
            config,
            cores,
            resources,
            devices: Devices::new(devices),
            console: Box::leak(Box::new(console)),
            output,
            known_dropped: 0,
            typed: Typed::new(),
            reader: Reader::new(),
            machine: None,
            clean: false,
            damaged: heapless::Vec::new(),
            hit: None,
            zeroing: None,
        }
    }

    /// Its part of the memory.
    pub fn layout(&self) -> GuestLayout {
        self.resources.as_ref().map(Resources::layout).unwrap_or_default()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Whether it starts with the machine.
    pub fn autostart(&self) -> bool {
        self.config.autostart && !self.config.spare
    }

    /// Whether its memory is being filled.
    pub fn is_starting(&self) -> bool {
        self.life.state() == GuestState::Starting
    }

    /// Whether it neither runs nor waits for its next life.
    pub fn is_down(&self) -> bool {
        self.life.is_down()
    }

    /// Whether its place is spare: it has nothing to start.
    pub const fn is_spare(&self) -> bool {
        self.config.spare
    }

    /// How it is, for changes.
    pub fn seen(&self) -> Seen {
        if self.life.is_down() {
            Seen::Down
        } else if self.life.is_up() {
            Seen::Up
        } else {
            Seen::Between
        }
    }

    /// Gives it the values of another configuration of the same place. While it runs, only those may differ that need no restart.
    pub fn give(&mut self, config: config::Guest) {
        if config.weight != self.config.weight {
            self.reweigh(config.weight);
        }
        self.life.set_always(config.restart == Restart::Always);
        self.config = config;
    }

    fn reweigh(&self, weight: u16) {
        let share = GuestWeight { guest: self.number, weight };
        engines::all().iter().for_each(|engine| engine.reweigh(share));
    }

    /// Whether sidecore may end: it is down, or the time that a shutdown waits for it is over.
    pub fn is_over(&self) -> bool {
        self.life.is_over(time::now_millis())
    }

    /// Reports that sidecore ends without waiting for it any longer.
    pub fn report_left_behind(&self) {
        let devices = Joined(self.pending_devices());
        log::error!("guest {}: is not down, and sidecore ends without it; pending: {devices}", self.config.name);
    }

    /// Starts it. If it cannot be brought up, its report says why.
    ///
    /// # Errors
    /// It runs already.
    pub fn start(&mut self) -> Result<(), Refused> {
        self.command(Life::start)
    }

    /// Presses its power button, and kills it if it has not stopped after `seconds`. A guest that waits for its next
    /// life stays down.
    ///
    /// # Errors
    /// It does not run.
    pub fn stop(&mut self, seconds: u32) -> Result<(), Refused> {
        self.command(|life| life.stop(time::now_millis(), seconds))
    }

    /// Stops it at once.
    ///
    /// # Errors
    /// It does not run.
    pub fn kill(&mut self) -> Result<(), Refused> {
        self.command(Life::kill)
    }

    /// Stops it at once, and starts it when it is down. If it is stopped already, it starts.
    ///
    /// # Errors
    /// sidecore is about to end.
    pub fn restart(&mut self) -> Result<(), Refused> {
        self.command(Life::restart)
    }

    /// Changes a value of its configuration, also for its later lives.
    ///
    /// # Errors
    /// It is not for this guest.
    pub fn set(&mut self, setting: Setting, managed: Option<&String>) -> Result<(), Text> {
        setting.apply(&mut self.config, managed)?;
        match setting {
            Setting::Weight(weight) => self.reweigh(weight),
            Setting::Restart(restart) => self.life.set_always(restart == Restart::Always),
        }
        Ok(())
    }

    /// Stops it as [`Guest::stop`] does. It is never started again.
    pub fn shut_down(&mut self, seconds: u32) {
        let _own = For::guest(self.number);
        self.life.shut_down(time::now_millis(), seconds);
        self.carry_out();
    }

    /// Notes an uncorrected error in its memory. If `ends`, it is stopped at once. It never starts again, and nobody touches the
    /// memory any more that may be damaged.
    pub fn memory_error(&mut self, location: &Location, ends: bool) {
        let damaged = location.start..location.start.saturating_add(location.bytes);
        if !self.damaged.contains(&damaged)
            && self.damaged.push(damaged).is_err()
            && let Some(last) = self.damaged.last_mut()
        {
            // Too many to look for: none of it is touched.
            *last = 0..u64::MAX;
        }
        if ends {
            self.hit.get_or_insert(location.address);
            // It may be down already.
            let _ = self.kill();
        }
    }

    /// Whether this core is one of its vCPUs'.
    pub fn has_core(&self, core: usize) -> bool {
        self.cores.iter().any(|it| it.index == core)
    }

    /// Has its vCPUs exit at each end of an interrupt of this vector, or no more.
    ///
    /// # Errors
    /// It does not run, or its completion mode is not `posted`.
    pub fn watch_eoi(&self, vector: Option<u8>) -> Result<(), Text> {
        let Some(machine) = &self.machine else {
            return Err(sentence(format_args!("guest `{}` does not run", self.config.name)));
        };
        if !machine.watch_eoi(vector, |s| signal::send(&self.cores, s)) {
            return Err(sentence(format_args!(
                "guest `{}` is not served in the mode `posted`: in `inject` each end of an interrupt exits anyway, in the \
                 other modes none does",
                self.config.name
            )));
        }
        if let Some(vector) = vector {
            log::warn!(
                "guest {}: each end of an interrupt {vector:#x} costs an exit until `trace eoi {} off`, or until it stops",
                self.config.name,
                self.config.name
            );
        }
        Ok(())
    }

    /// Asks it to stop, because one of its cores makes no progress in the hypervisor. It is down when that core has come back.
    pub fn stuck(&self, why: impl fmt::Display) {
        if let Some(machine) = &self.machine {
            machine.request_stop(Stop::failed(why), |s| signal::send(&self.cores, s));
        }
    }

    fn command(&mut self, command: impl FnOnce(&mut Life) -> Result<(), Refused>) -> Result<(), Refused> {
        let _own = For::guest(self.number);
        let result = command(&mut self.life);
        self.carry_out();
        result
    }

    /// Carries out the actions that its life asks for.
    fn carry_out(&mut self) {
        while let Some(action) = self.life.next_action() {
            match action {
                Action::Report(report) => self.report(report),
                Action::BringUp => self.zero(Zeroing::BeforeLife),
                Action::PressPowerButton => {
                    if let Some(machine) = &self.machine {
                        machine.press_power_button(|s| signal::send(&self.cores, s));
                    }
                }
                Action::StopVcpus => {
                    if let Some(machine) = &self.machine {
                        let stop = self.hit.map_or(Stop::Killed, Stop::memory_error);
                        machine.request_stop(stop, |s| signal::send(&self.cores, s));
                    }
                }
                Action::DetachDevices => {
                    self.devices.detach();
                    self.ask_engine();
                }
                Action::ReportPending { state, waited } => {
                    let detail = fmt::from_fn(|f| match self.zeroing {
                        Some(_) => write!(f, "its memory is still being zeroed after {} s", waited / 1000),
                        None => write!(f, "{}", explain_pending(state, waited, self.pending_devices())),
                    });
                    let name = &self.config.name;
                    log::warn!("guest {name}: {}: {detail}", state.name());
                    trace::life(self.number, state, None);
                    let event = control::copy(name).and_then(|guest| {
                        Ok(Event::Guest { guest, state, reason: None, detail: Some(control::write(&detail)?) })
                    });
                    crate::console::send_event(event);
                }
                Action::AnnounceRestart { wait } => {
                    log::info!("guest {}: starts again in {} s", self.config.name, wait / 1000);
                }
            }
        }
    }

    /// Has its memory zeroed by its own cores, which are idle. The control core only waits for that, from tick to tick. What
    /// follows happens at once if the memory is zeroes already, or if there is none.
    fn zero(&mut self, then: Zeroing) {
        let memory = self.resources.as_ref().ok().filter(|_| !self.clean).map(|has| &has.memory);
        // A core that is busy belongs to another guest. Then bringing up is refused below.
        if let Some(memory) = memory.filter(|_| !self.cores.is_empty() && self.cores_are_idle().is_ok()) {
            let parts = self.cores.len() as u64;
            let number = self.number;
            for (part, core) in (0..parts).zip(&self.cores) {
                let (memory, damaged) = (memory.clone(), self.damaged.clone());
                core.give(move |core| {
                    // It may take long, in one step.
                    core.rests();
                    let _mapped = AtWork::of(core, number);
                    memory.zero_part(part, parts, &damaged);
                });
            }
            self.zeroing = Some(then);
        } else {
            self.follow(then);
        }
    }

    /// Goes on when its cores have zeroed its memory.
    fn check_zeroing(&mut self) {
        if let Some(then) = self.zeroing
            && self.cores_are_idle().is_ok()
        {
            self.zeroing = None;
            self.clean = true;
            self.follow(then);
            self.carry_out();
        }
    }

    /// Whether none of its cores has a job.
    ///
    /// # Errors
    /// The sentence that names one that has.
    fn cores_are_idle(&self) -> Result<(), Text> {
        match self.cores.iter().find(|core| core.is_busy()) {
            Some(core) => Err(sentence(format_args!("core {} is busy", core.index))),
            None => Ok(()),
        }
    }

    fn follow(&mut self, then: Zeroing) {
        match then {
            Zeroing::AfterLife => self.life.devices_detached(time::now_millis()),
            Zeroing::BeforeLife => match self.prepare() {
                Ok(()) => {
                    self.devices.attach();
                    self.ask_engine();
                }
                Err(why) => self.life.not_brought_up(why),
            },
        }
    }

    fn report(&self, report: Report) {
        log::info!("{}", report.line(&self.config.name));
        trace::life(self.number, report.state, report.end.as_ref().map(|end| end.reason));
        crate::console::send_event(report.event(&self.config.name));
    }

    /// The names of the devices about which the engine's answer is due.
    fn pending_devices(&self) -> impl Iterator<Item: fmt::Display> + Clone {
        let devices = self.resources.as_ref().map_or(&[][..], |has| &has.devices);
        self.devices.pending().filter_map(|device| devices.get(device)).map(Device::name)
    }

    /// Takes the engine's answers about its devices, and asks what is to be asked next.
    fn ask_engine(&mut self) {
        let Self { resources, devices: states, machine, cores, config, number, .. } = self;
        let devices = resources.as_ref().map_or(&[][..], |has| &has.devices);
        for (index, device) in devices.iter().enumerate() {
            match device.answer() {
                None => {}
                Some(Answer::Attached) => states.attached(index),
                Some(Answer::NotAttached(why)) => states.not_attached(index, device.refusal(why)),
                Some(Answer::Held) => states.held(index),
                Some(Answer::Reweighed | Answer::Looked) => {}
                Some(Answer::Detached(had)) => {
                    if !had {
                        log::error!("guest {}: its engine did not have its {}", config.name, device.name());
                    }
                    states.detached(index);
                }
            }
        }
        while let Some(step) = states.next_step() {
            let (Ok(has), Some(machine)) = (resources.as_ref(), machine.as_ref()) else { return };
            match step {
                Step::Attach(index) => {
                    let share = GuestWeight { guest: *number, weight: config.weight };
                    let target = Target::new(machine.clone(), cores.clone());
                    let device = devices.get(index).ok_or_else(|| "it has no such device".into());
                    let asked =
                        device.and_then(|device| device.attach(has.memory.clone(), config.requests, share, target));
                    if let Err(why) = asked {
                        states.not_attached(index, why);
                    }
                }
                Step::Detach(index) => devices.get(index).into_iter().for_each(Device::detach),
            }
        }
        match self.devices.outcome() {
            None => {}
            Some(Outcome::Attached) => match self.give_out_vcpus() {
                Ok(()) => self.life.brought_up(time::now_millis()),
                // Its devices are detached, in this tick and later ones.
                Err(why) => self.devices.abandon(why),
            },
            Some(Outcome::NotAttached(why)) => self.life.not_brought_up(why),
            Some(Outcome::Detached) => {
                self.finish_output(Drain::Detached);
                // Of a dead guest nothing stays.
                self.zero(Zeroing::AfterLife);
            }
        }
    }

    /// Builds its machine in its memory, which is zeroes.
    fn prepare(&mut self) -> Result<(), Text> {
        // The output of the life before is not kept any longer.
        self.finish_output(Drain::AtOnce);
        if let Some(damaged) = self.damaged.first() {
            return Err(sentence(format_args!(
                "its memory is damaged at physical address {:#x}, where a machine check found an uncorrected error; restart \
                 the machine, which tests its memory and may leave the damaged part out",
                damaged.start
            )));
        }
        let has = self.resources.as_ref().map_err(sentence)?;
        self.cores_are_idle()?;
        // The machine and its devices' rings are made on the heap, by code that cannot refuse.
        heap::has_room(LIFE_BYTES)?;
        {
            // Its cores' jobs are in everybody's part.
            let _everybody = For::everybody();
            heap::has_room(JOBS_BYTES)?;
        }
        let modules = modules::all();
        let kernel = modules.contents(&self.config.kernel)?;
        let initrd = self.config.initrd.as_deref().map(|name| modules.contents(name)).transpose()?;
        if !self.clean {
            return Err("its memory could not be zeroed".into());
        }
        self.clean = false;
        for device in &has.devices {
            device.shared.restart();
            if self.config.firmware {
                device.shared.serve_after_kicks_only();
            }
        }
        self.typed.clear();
        for v in &has.vcpus {
            v.histogram.clear();
        }
        let mapped = While::loading(self.number);
        let machine = Machine::new(Settings {
            name: self.config.name.clone(),
            memory: has.memory.clone(),
            vcpus: self.cores.len(),
            kernel,
            firmware: self.config.firmware,
            notify: match self.config.notify_bar {
                config::NotifyBar::Io => NotifyBar::Io,
                config::NotifyBar::Memory => NotifyBar::Memory,
            },
            initrd,
            cmdline: &self.config.cmdline,
            devices: has.devices.iter().map(|device| device.shared).collect(),
            interrupts: match self.config.completion {
                Completion::Direct | Completion::Eli => Interrupts::Owned,
                Completion::Posted => Interrupts::Virtualized,
                Completion::Auto | Completion::Inject => Interrupts::Emulated,
            },
            split_locks: match self.config.split_lock {
                config::SplitLock::Slow => SplitLocks::Slow,
                config::SplitLock::Kill => SplitLocks::Kill,
                config::SplitLock::Allow => SplitLocks::Allow,
            },
            watched: has.devices.iter().any(Device::has_timers_watched),
            shadow: has.shadow,
            splitter: has.splitter,
            platform: virt::guest_platform(),
        })
        .map_err(sentence)?;
        drop(mapped);
        let machine = Arc::new(machine);
        #[cfg(feature = "read-memory")]
        crate::read_memory::tell_machine(self.number, &*machine);
        self.machine = Some(machine);
        Ok(())
    }

    /// Gives its vCPUs to its cores. Its devices are attached.
    fn give_out_vcpus(&self) -> Result<(), Text> {
        let has = self.resources.as_ref().map_err(sentence)?;
        let machine = self.machine.as_ref().ok_or("it has no machine")?;
        self.cores_are_idle()?;
        for (index, (core, kept)) in self.cores.iter().zip(&has.vcpus).enumerate() {
            let job = VcpuJob {
                guest: self.number,
                index,
                machine: machine.clone(),
                cores: self.cores.clone(),
                console: self.console,
                kept: *kept,
                nested_root: has.nested_root,
            };
            // This succeeds: the core was idle above, and only this core gives out jobs.
            core.give(move |core| job.run(core));
        }
        Ok(())
    }

    /// Checks its clock and whether its vCPUs have returned. Called once a tick.
    pub fn poll(&mut self) {
        let _own = For::guest(self.number);
        self.check_zeroing();
        if !self.life.is_up() {
            if self.life.awaits_devices() {
                self.ask_engine();
            }
            self.life.tick(time::now_millis());
            self.carry_out();
            return;
        }
        self.hand_over_input();
        self.resources.iter().flat_map(|has| &has.devices).for_each(|device| device.report(&self.config.name));
        if let Some(machine) = &self.machine {
            machine.tick(time::tsc(), |s| signal::send(&self.cores, s));
            self.cores.iter().filter(|c| !c.answered()).for_each(|_| machine.count_late_kick());
        }
        self.life.tick(time::now_millis());
        self.carry_out();
        if self.cores_are_idle().is_ok() {
            self.life.vcpus_home(self.machine.as_ref().and_then(|m| m.stopped()).map(end));
            self.carry_out();
        }
    }

    /// The place of its memory in the machine's.
    pub fn regions(&self) -> impl Iterator<Item = PhysicalRange> {
        let regions = self.resources.as_ref().into_iter().flat_map(|has| has.memory.regions());
        regions.map(|r| PhysicalRange { start: r.host.expose_provenance() as u64, bytes: r.size })
    }

    /// Returns its line for the command `list`.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn summary(&self) -> Result<GuestSummary, NoMemory> {
        Ok(GuestSummary {
            name: control::copy(&self.config.name)?,
            state: self.life.state(),
            cores: control::collect(self.cores.iter().map(|c| Ok(c.index as u64)))?,
            memory: self.config.memory,
            regions: control::collect(self.regions().map(Ok))?,
            reason: self.life.reason(),
        })
    }

    /// Returns all its counters.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn counters(&self) -> Result<control::Guest, NoMemory> {
        let has = self.resources.as_ref().ok();
        let vcpus = has.into_iter().flat_map(|has| &has.vcpus).zip(&self.cores);
        let vcpus = vcpus.map(|(v, core)| Ok(VcpuCounters { core: core.index as u64, exits: exits(v.histogram)? }));
        let machine = self.machine.as_ref();
        let mut counters = control::Guest {
            name: control::copy(&self.config.name)?,
            state: self.life.state(),
            starts: self.life.starts(),
            memory: self.config.memory,
            kept: has.map_or(0, |has| has.bytes),
            vcpus: control::collect(vcpus)?,
            console_dropped: self.console.dropped.load(Ordering::Relaxed),
            lines_dropped: self.reader.dropped,
            input_dropped: self.typed.dropped,
            shadow_idt: machine.map(|m| counts::by_name(m.shadow_report())).transpose()?.unwrap_or_default(),
            refusals: machine.map(|m| counts::by_name(m.refusals())).transpose()?.unwrap_or_default(),
            ports: Vec::new(),
            blocks: Vec::new(),
            entropy: Vec::new(),
            consoles: Vec::new(),
        };
        has.into_iter().flat_map(|has| &has.devices).try_for_each(|device| device.count(&mut counters))?;
        Ok(counters)
    }
}

/// Converts a machine's stop to the reason that the operator sees.
fn end(stop: Stop) -> End {
    let (reason, detail) = match stop {
        Stop::PowerOff => (StopReason::PowerOff, None),
        Stop::Reset => (StopReason::Reset, None),
        Stop::TripleFault(place) => (StopReason::TripleFault, Some(sentence(place))),
        Stop::Killed => (StopReason::Killed, None),
        Stop::MemoryError(place) => (StopReason::MemoryError, Some(sentence(place))),
        Stop::Failed(why) => (StopReason::Failed, Some(sentence(why))),
    };
    End { reason, detail }
}
