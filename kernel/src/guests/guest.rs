//! One guest: what it keeps for as long as sidecore runs, and its life from start to stop.

#![allow(unsafe_code, reason = "makes guest memory from frames")]

use super::{
    console::{Console, Reader},
    target::Target,
    vcpu::{self, VcpuJob},
};
use crate::{
    arch::{apic, idt, time},
    cores::Core,
    engines, mem,
    rules::{self, Rules},
    start, virt,
};
use alloc::{boxed::Box, format, string::String, sync::Arc, vec::Vec};
use config::{Completion, Offloads, Restart};
use control::{
    Backoff, Count, Event, ExitCount, GuestState, GuestSummary, PhysicalRange, Port, StopReason, VcpuCounters,
};
use core::sync::atomic::Ordering;
use engine::{
    control::Reply,
    net,
    schedule::Share,
    shared::{DeviceConfig, Features, Shared},
};
use machine::{
    layout,
    machine::{Machine, Settings, Signal, Stop},
    reason::Histogram,
    vcpu::Interrupts,
};
use memory::{
    GuestMemory, Region,
    swap::Shadow,
    tables::{Access, MapError, Tables},
};

use spin::Mutex;

/// A network device of a guest.
struct Nic {
    port: usize,
    shared: &'static Shared,
    mac: [u8; 6],
    rules: Option<Rules>,
}

/// What a guest has from the moment it is configured.
struct Kept {
    memory: GuestMemory,
    nested_root: u64,
    /// For a guest with a shadow IDT: its nested tables, which can change.
    shadow: Option<&'static Mutex<Shadow>>,
    nics: Vec<Nic>,
    vcpus: Vec<vcpu::Kept>,
    /// Bytes the hypervisor spent on it beside its memory.
    bytes: u64,
}

/// A guest.
pub struct Guest {
    /// Its number, in the order of the configuration.
    number: usize,
    config: config::Guest,
    cores: Vec<&'static Core>,
    kept: Result<Kept, String>,
    console: &'static Console,
    reader: Reader,
    state: GuestState,
    reason: Option<StopReason>,
    starts: u64,
    /// The machine of its present or last life.
    machine: Option<Arc<Machine>>,
    /// When the power button's time limit runs out.
    kill_at: Option<u64>,
    start_again: bool,
    /// When it was started last.
    started: u64,
    backoff: Backoff,
    /// When `restart = "always"` starts it again.
    restart_at: Option<u64>,
}

impl Guest {
    /// Takes what the guest needs. `port` is the first of its ports of the switch; `all` is the whole configuration.
    pub fn new(
        number: usize,
        all: &config::Config,
        config: config::Guest,
        cores: Vec<&'static Core>,
        port: usize,
    ) -> Self {
        let kept = Kept::take(all, &config, cores.len(), port);
        Self {
            number,
            config,
            cores,
            kept,
            console: Box::leak(Box::new(Console::new())),
            reader: Reader::new(),
            state: GuestState::Stopped,
            reason: None,
            starts: 0,
            machine: None,
            kill_at: None,
            start_again: false,
            started: 0,
            backoff: Backoff::default(),
            restart_at: None,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Whether it starts with the machine.
    pub fn autostart(&self) -> bool {
        self.config.autostart
    }

    /// Whether it does not run.
    pub fn is_stopped(&self) -> bool {
        self.state == GuestState::Stopped
    }

    /// Whether it has ended by itself and waits for its next life.
    pub fn is_waiting(&self) -> bool {
        self.restart_at.is_some()
    }

    /// Starts it; a guest that cannot be started says why.
    pub fn start(&mut self) {
        self.stay_down();
        self.started = time::tsc();
        self.enter(GuestState::Starting, None, None);
        match self.bring_up() {
            Ok(()) => {
                self.starts += 1;
                self.enter(GuestState::Running, None, None);
            }
            Err(why) => {
                self.enter(GuestState::Stopped, Some(StopReason::NotStarted), Some(why));
            }
        }
    }

    fn bring_up(&mut self) -> Result<(), String> {
        let kept = self.kept.as_ref().map_err(Clone::clone)?;
        if let Some(core) = self.cores.iter().find(|c| c.is_busy()) {
            return Err(format!("core {} is busy", core.index));
        }
        let module = |name: &str| {
            let modules = &start::facts().modules;
            modules.iter().find(|m| m.name == name).ok_or_else(|| format!("there is no boot module `{name}`"))
        };
        let kernel = module(&self.config.kernel)?;
        let initrd = self.config.initrd.as_deref().map(module).transpose()?;
        for r in kept.memory.regions() {
            kept.memory.zero(r.gpa, r.size).map_err(|e| format!("{e}"))?;
        }
        for nic in &kept.nics {
            nic.shared.restart();
        }
        self.console.clear_input();
        for v in &kept.vcpus {
            v.histogram.clear();
        }
        let machine = Machine::new(Settings {
            name: self.config.name.clone(),
            memory: kept.memory.clone(),
            vcpus: self.cores.len(),
            kernel: kernel.bytes(),
            initrd: initrd.map(start::Module::bytes),
            cmdline: &self.config.cmdline,
            nics: kept.nics.iter().map(|n| n.shared).collect(),
            interrupts: match self.config.completion {
                Completion::Direct | Completion::Eli => Interrupts::Owned,
                Completion::Posted => Interrupts::Virtualized,
                Completion::Auto | Completion::Inject => Interrupts::Emulated,
            },
            watched: !kept.nics.is_empty() && engines::watches_timers(),
            shadow: kept.shadow,
            platform: virt::guest_platform(),
        })
        .map_err(|e| format!("{e}"))?;
        let machine = Arc::new(machine);
        let share = Share { guest: self.number, weight: self.config.weight };
        for nic in &kept.nics {
            let target = Target::new(machine.clone(), self.cores.clone());
            if let Err(reply) =
                engines::attach(nic.port, nic.shared, kept.memory.clone(), self.config.requests, share, target)
            {
                for attached in kept.nics.iter().take_while(|other| other.port != nic.port) {
                    engines::detach(attached.port);
                }
                return Err(format!("port {} of the switch: {reply:?}", nic.port));
            }
        }
        for (index, core) in self.cores.iter().enumerate() {
            let job = VcpuJob {
                index,
                machine: machine.clone(),
                cores: self.cores.clone(),
                console: self.console,
                kept: kept.vcpus[index],
                nested_root: kept.nested_root,
            };
            // It was idle above, and only this core gives out work.
            core.give(move |core| job.run(core));
        }
        self.machine = Some(machine);
        Ok(())
    }

    /// Presses its power button, and kills it if it has not stopped after `seconds`.
    pub fn stop(&mut self, seconds: u32) {
        if self.state != GuestState::Running {
            return;
        }
        if let Some(machine) = &self.machine {
            machine.press_power_button(|s| signal(&self.cores, s));
        }
        self.kill_at = Some(time::tsc() + time::rates().tsc * u64::from(seconds));
        self.enter(GuestState::Stopping, None, None);
    }

    /// Stops it at once.
    pub fn kill(&mut self) {
        if let Some(machine) = &self.machine {
            machine.request_stop(Stop::Killed, |s| signal(&self.cores, s));
        }
        self.kill_at = None;
    }

    /// Stops it at once and starts it when it is down.
    pub fn restart(&mut self) {
        self.start_again = true;
        self.kill();
    }

    /// Takes back that it is to be started again.
    pub fn stay_down(&mut self) {
        self.start_again = false;
        self.restart_at = None;
    }

    /// Types into its console.
    pub fn input(&mut self, bytes: &[u8]) {
        self.console.type_in(bytes);
        self.hand_over_input();
    }

    /// Gives the guest's UART as much of what was typed as it takes.
    fn hand_over_input(&self) {
        if let Some(machine) = self.machine.as_ref().filter(|_| self.console.has_input()) {
            machine.type_in(|| self.console.typed(), |s| signal(&self.cores, s));
        }
    }

    /// Shows the end of its console's output.
    pub fn show_backlog(&self) {
        self.reader.show_backlog();
    }

    /// Looks after it: console, time limit, vCPUs that came home.
    pub fn poll(&mut self, attached: bool) {
        self.reader.drain(&self.config.name, self.console, attached);
        if self.is_stopped() {
            if self.restart_at.is_some_and(|at| time::tsc() >= at) {
                self.start();
            }
            return;
        }
        self.hand_over_input();
        if let Some(machine) = &self.machine {
            machine.tick(time::tsc(), |s| signal(&self.cores, s));
            self.cores.iter().filter(|c| !c.answered()).for_each(|_| machine.count_late_kick());
        }
        if self.kill_at.is_some_and(|at| time::tsc() >= at) {
            self.kill();
        }
        if self.cores.iter().all(|c| !c.is_busy()) {
            self.wind_up();
        }
    }

    /// All vCPUs are home: takes the devices back and says why it ended.
    fn wind_up(&mut self) {
        if let Ok(kept) = &self.kept {
            for nic in &kept.nics {
                if !matches!(engines::detach(nic.port), Reply::Detached(_)) {
                    log::error!("guest {}: the engine did not give port {} back", self.config.name, nic.port);
                }
            }
        }
        self.reader.drain(&self.config.name, self.console, false);
        self.reader.flush(&self.config.name);
        let (reason, detail) = match self.machine.as_ref().and_then(|m| m.stopped()) {
            Some(Stop::PowerOff) => (StopReason::PowerOff, None),
            Some(Stop::Reset) => (StopReason::Reset, None),
            Some(Stop::TripleFault) => (StopReason::TripleFault, None),
            Some(Stop::Killed) => (StopReason::Killed, None),
            Some(Stop::Failed(why)) => (StopReason::Failed, Some(why)),
            None => (StopReason::Failed, Some("its vCPUs ended without a reason".into())),
        };
        self.kill_at = None;
        let wanted = self.state == GuestState::Stopping || reason == StopReason::Killed;
        self.enter(GuestState::Stopped, Some(reason), detail);
        if self.start_again {
            self.start();
        } else if self.config.restart == Restart::Always && !wanted {
            self.start_later();
        }
    }

    /// After an end of its own: at once, or later if it ends all the time.
    fn start_later(&mut self) {
        let lived = (time::tsc() - self.started) / time::micros(1000);
        match self.backoff.ended(lived) {
            0 => self.start(),
            wait => {
                log::info!("guest {}: starts again in {} s", self.config.name, wait / 1000);
                self.restart_at = Some(time::tsc() + time::micros(1000 * wait));
            }
        }
    }

    fn enter(&mut self, state: GuestState, reason: Option<StopReason>, detail: Option<String>) {
        self.state = state;
        self.reason = reason.or(self.reason);
        match (&reason, &detail) {
            (Some(r), Some(d)) => log::info!("guest {}: {}: {}: {d}", self.config.name, state.name(), r.name()),
            (Some(r), None) => log::info!("guest {}: {}: {}", self.config.name, state.name(), r.name()),
            _ => log::info!("guest {}: {}", self.config.name, state.name()),
        }
        let event = Event::Guest { guest: self.config.name.clone(), state, reason, detail };
        crate::console::send(event.to_line().as_bytes());
    }

    /// For `list`.
    pub fn summary(&self) -> GuestSummary {
        let regions = self.kept.as_ref().into_iter().flat_map(|kept| kept.memory.regions());
        GuestSummary {
            name: self.config.name.clone(),
            state: self.state,
            cores: self.cores.iter().map(|c| c.index as u64).collect(),
            memory: self.config.memory,
            regions: regions
                .map(|r| PhysicalRange { start: r.host.expose_provenance() as u64, bytes: r.size })
                .collect(),
            reason: self.reason,
        }
    }

    /// Everything counted of it.
    pub fn counters(&self) -> control::Guest {
        let kept = self.kept.as_ref().ok();
        let vcpus = kept.into_iter().flat_map(|k| &k.vcpus).zip(&self.cores);
        control::Guest {
            name: self.config.name.clone(),
            state: self.state,
            starts: self.starts,
            memory: self.config.memory,
            kept: kept.map_or(0, |k| k.bytes),
            vcpus: vcpus.map(|(v, core)| VcpuCounters { core: core.index as u64, exits: exits(v.histogram) }).collect(),
            console_dropped: self.console.dropped.load(Ordering::Relaxed),
            shadow_idt: self.machine.as_ref().map(|m| counts(m.shadow_report())).unwrap_or_default(),
            refusals: self.machine.as_ref().map(|m| counts(m.refusals())).unwrap_or_default(),
            ports: kept.into_iter().flat_map(|k| &k.nics).map(Nic::counters).collect(),
        }
    }
}

/// Tells the core of one of a guest's vCPUs something.
pub fn signal(cores: &[&'static Core], signal: Signal) {
    match signal {
        Signal::Kick(vcpu) => {
            if let Some(core) = cores.get(vcpu) {
                core.kick();
            }
        }
        Signal::Call(vcpu, vector) => {
            if let Some(core) = cores.get(vcpu) {
                core.call(vector);
            }
        }
        Signal::Interrupt(vcpu, vector) => {
            if let Some(core) = cores.get(vcpu) {
                apic::send_fixed(core.apic_id, vector);
            }
        }
        Signal::Notify(vcpu) => {
            if let Some(core) = cores.get(vcpu) {
                apic::send_fixed(core.apic_id, idt::NOTIFICATION);
            }
        }
    }
}

fn exits(histogram: &Histogram) -> Vec<ExitCount> {
    histogram
        .iter()
        .filter(|&(_, count, _)| count != 0)
        .map(|(reason, count, cycles)| ExitCount { reason: reason.name().into(), count, cycles })
        .collect()
}

fn counts(all: impl Iterator<Item = (&'static str, u64)>) -> Vec<Count> {
    all.filter(|&(_, count)| count != 0).map(|(kind, count)| Count { kind: kind.into(), count }).collect()
}

impl Nic {
    fn counters(&self) -> Port {
        let c = self.shared.counters();
        let m = self.mac;
        let drop_causes = [
            "tx_bad_length",
            "tx_bad_header",
            "tx_bad_source",
            "tx_spoofed_mac",
            "tx_spoofed_address",
            "tx_unreadable",
            "tx_vlan",
            "tx_denied",
            "tx_limited",
            "tx_storm",
            "tx_no_destination",
            "rx_denied",
            "rx_limited",
            "rx_unreadable",
            "rx_no_buffer",
            "rx_too_large",
            "rx_not_running",
            "interrupts_refused",
        ];
        Port {
            mac: format!("{:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}", m[0], m[1], m[2], m[3], m[4], m[5]),
            rx_packets: c.rx_packets.get(),
            rx_bytes: c.rx_bytes.get(),
            tx_packets: c.tx_packets.get(),
            tx_bytes: c.tx_bytes.get(),
            drops: counts(c.iter().filter(|(name, _)| drop_causes.contains(name))),
            checksums: c.rx_checksums.get(),
            segments: c.rx_segments.get(),
            interrupts: c.interrupts.get(),
            kicks: c.kicks.get(),
            arms: c.arms.get(),
            polls: c.polls.get(),
            engine_cycles: c.engine_cycles.get(),
            commands: c.commands.get(),
            resets: c.resets.get(),
            stale_tokens: c.stale_tokens.get(),
            ring_errors: c.faults.get(),
            stages: self.rules.iter().flat_map(Rules::counters).collect(),
        }
    }
}

impl Kept {
    fn take(all: &config::Config, config: &config::Guest, vcpus: usize, port: usize) -> Result<Self, String> {
        let before = mem::used();
        let at = mem::FRAMES.lock().guest(config.memory).map_err(|e| format!("its memory: {e}"))?;
        let (low, high) = layout::memory_split(config.memory);
        let mut memory = GuestMemory::new();
        let mut tables = virt::nested_tables().map_err(|e| format!("its nested tables: {e}"))?;
        for (gpa, size, host) in [(0, low, at), (layout::HIGH_MEMORY, high, at + low)] {
            if size == 0 {
                continue;
            }
            let region = Region { gpa, size, host: core::ptr::with_exposed_provenance_mut(host as usize) };
            // SAFETY: the frames were free, are mapped at their physical address, and are this guest's for good.
            unsafe { memory.add(region) }.map_err(|r| format!("its memory: {r:?} does not fit"))?;
            map(&mut tables, gpa, host, size).map_err(|e| format!("its nested tables: {e}"))?;
        }
        let nested_root = tables.root();
        let shadow = if config.completion == Completion::Eli {
            let shadow = Shadow::new(tables, &mut *mem::FRAMES.lock()).map_err(|e| format!("its shadow IDT: {e}"))?;
            Some(&*Box::leak(Box::new(Mutex::new(shadow))))
        } else {
            None
        };
        let mut nics = Vec::new();
        for (n, port) in config.nets.iter().zip(port..) {
            if port >= engine::backend::MAX_PORTS {
                return Err(format!("the switch has {} ports and all are taken", engine::backend::MAX_PORTS));
            }
            let mac = n.mac.0;
            let rules = rules::of_guest(all, n);
            let mut device = DeviceConfig {
                policy: rules.as_ref().map(|r| r.policy),
                uplink: n.port.and_then(|port| u8::try_from(port).ok()),
                ..net::config(mac, n.mtu, n.queues)
            };
            device.features.remove(match n.offloads {
                Offloads::Segmentation => Features::empty(),
                Offloads::Checksum => Features::NET_SEGMENTATION,
                Offloads::None => Features::NET_SEGMENTATION | Features::NET_CHECKSUM,
            });
            device.features.set(Features::RING_PACKED, n.packed);
            // Its frames may leave by an uplink.
            device.features.remove(Features::IN_ORDER);
            nics.push(Nic { port, shared: Box::leak(Box::new(Shared::new(device))), mac, rules });
        }
        let vcpus = (0..vcpus).map(|_| vcpu::Kept::take()).collect::<Result<_, _>>()?;
        Ok(Self { memory, nested_root, shadow, nics, vcpus, bytes: mem::used() - before })
    }
}

fn map(tables: &mut Tables, gpa: u64, host: u64, size: u64) -> Result<(), MapError> {
    tables.map(gpa, host, size, Access::RWX, &mut *mem::FRAMES.lock())
}
