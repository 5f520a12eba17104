//! Guests: made from the configuration, started and stopped. Everything here runs on the control core, except [`vcpu`]
//! (a guest's cores) and [`target`] (the engine's core).
//!
//! ```text
//!  Guests ─▶ guest.rs ─┬─▶ lifecycle     decides: start, stop, kill, restart
//!                      ├─▶ resources.rs  memory, nested tables, device.rs: taken once, kept over all lives
//!                      ├─▶ engines.rs    attaches and detaches the devices
//!                      └─▶ vcpu.rs       one job for each core of the guest
//! ```
//!
//! A guest keeps its memory, its nested tables, its disks and the shared state of its devices for as long as sidecore
//! runs. Everything else (the machine, the memory's contents, the engine's devices) is made new at each start. So of a
//! former life nothing is left but the contents of the disks.

mod console;
mod counts;
mod device;
mod disk;
mod guest;
mod ports;
mod resources;
mod room;
mod signal;
mod stuck;
pub mod target;
mod vcpu;

use crate::{
    cores, heap, interrupts,
    machine_check::{self, Kind, Told},
    mem, trace, virt,
};
use alloc::vec::Vec;
use config::{Config, Plan, Setting};
use console::Drain;
use control::{Counters, Event, GuestSummary, Hypervisor, Joined, NoMemory, Pause, Text, Turns, Way, sentence};
use core::sync::atomic::Ordering;
use guest::Guest;
pub use guest::streams::OwnPort;
use lifecycle::{Order, Refused, Seen};
use mca::Owner;
use memory::maps::GuestLayout;
pub use room::{PART_BYTES, heap};
use stuck::Watcher;

/// Bytes of output that a guest may send in a tick, each counted as it comes and as it goes. COM2 takes a fraction of it, if
/// it is a real one.
const OUTPUT_BYTES: usize = 4 << 10;

/// Bytes of the heap for two copies of a guest's configuration, at most. A command line is the longest of it.
const VALUES_BYTES: usize = 64 << 10;

/// All guests of the configuration.
pub struct Guests {
    guests: Vec<Guest>,
    /// Their turns at COM2.
    turns: Turns,
    watcher: Watcher,
    end_when_stopped: bool,
    stop_seconds: u32,
}

impl Guests {
    /// Sets up every guest of the plan: memory, tables, devices. Starts none. A guest that lacks something is in the
    /// list too. A start of it fails and says why.
    pub fn new(config: &Config, plan: &Plan) -> Self {
        let guests = config.guests.iter().zip(&plan.guests).enumerate().map(|(number, (c, cores))| {
            let cores = cores.iter().filter_map(|&i| cores::get(i as usize)).collect();
            Guest::new(number, config, c.clone(), cores, config.device_number(number, 0))
        });
        let guests: Vec<_> = guests.collect();
        let memory = |(number, guest): (usize, &Guest)| -> Vec<_> {
            guest.regions().map(|range| (range.start, range.start.saturating_add(range.bytes), number)).collect()
        };
        machine_check::set_guests(guests.iter().enumerate().flat_map(memory));
        Self {
            turns: Turns::new(guests.len()),
            watcher: Watcher::new(),
            guests,
            end_when_stopped: config.control.end_when_guests_stop,
            stop_seconds: config.control.stop_seconds,
        }
    }

    /// Returns each guest's part of the memory, by number. A guest without its resources has none.
    pub fn layouts(&self) -> Vec<GuestLayout> {
        self.guests.iter().map(Guest::layout).collect()
    }

    /// Each guest's name, and whether [`start_all`](Self::start_all) starts it.
    pub fn starts(&self) -> impl Iterator<Item = (&str, bool)> + Clone {
        self.guests.iter().map(|guest| (guest.name(), virt::available() && guest.autostart()))
    }

    /// Starts every guest with `autostart`.
    pub fn start_all(&mut self) {
        if virt::available() {
            for guest in self.guests.iter_mut().filter(|g| g.autostart()) {
                // The start is not refused, because no guest runs yet.
                let _ = guest.start();
            }
        }
    }

    /// Whether a guest's memory is being filled.
    pub fn are_starting(&self) -> bool {
        self.guests.iter().any(Guest::is_starting)
    }

    /// Presses every running guest's power button. No guest is started again.
    pub fn shut_down(&mut self) {
        let seconds = self.stop_seconds;
        self.guests.iter_mut().for_each(|g| g.shut_down(seconds));
    }

    /// The names of the guests, in the order of the configuration.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.guests.iter().map(Guest::name)
    }

    /// The guest of that name.
    ///
    /// # Errors
    /// No guest has this name; the text names the most similar one.
    pub fn find(&self, name: &str) -> Result<usize, Text> {
        self.guests.iter().position(|g| g.name() == name).ok_or_else(|| {
            let names = self.guests.iter().map(Guest::name);
            match control::nearest(name, names.clone()) {
                Some(meant) => sentence(format_args!("no guest `{name}`; did you mean `{meant}`?")),
                None => sentence(format_args!("no guest `{name}`; there are: {}", Joined(names))),
            }
        })
    }

    /// Starts a guest that is stopped.
    ///
    /// # Errors
    /// No such guest, it runs already, or the machine cannot run guests.
    pub fn start(&mut self, name: &str) -> Result<(), Text> {
        self.not_spare(name)?;
        self.command_where_guests_can_run(name, Guest::start)
    }

    /// Presses a guest's power button. After the time limit it is killed. A guest that waits for its next life stays
    /// down.
    ///
    /// # Errors
    /// No such guest, or it does not run.
    pub fn stop(&mut self, name: &str) -> Result<(), Text> {
        let seconds = self.stop_seconds;
        self.command(name, |guest| guest.stop(seconds))
    }

    /// Stops a guest at once.
    ///
    /// # Errors
    /// No such guest, or it does not run.
    pub fn kill(&mut self, name: &str) -> Result<(), Text> {
        self.command(name, Guest::kill)
    }

    /// Stops a guest at once and starts it again. A guest that is stopped is started.
    ///
    /// # Errors
    /// No such guest, or the machine cannot run guests.
    pub fn restart(&mut self, name: &str) -> Result<(), Text> {
        self.not_spare(name)?;
        self.command_where_guests_can_run(name, Guest::restart)
    }

    /// Types into a guest's console.
    ///
    /// # Errors
    /// No such guest, or it does not run.
    pub fn input(&mut self, name: &str, bytes: &[u8]) -> Result<(), Text> {
        self.command(name, |guest| guest.input(bytes))
    }

    /// Opens or closes a named port of a guest's console device.
    ///
    /// # Errors
    /// No such guest or port.
    pub fn open_port(&mut self, name: &str, port: &str, open: bool) -> Result<(), Text> {
        self.named(name)?.open_port(port, open)
    }

    /// Gives bytes to a named port of a guest's console device.
    ///
    /// # Errors
    /// No such guest or port, or it does not take all the bytes now. Then it gets none.
    pub fn port_input(&mut self, name: &str, port: &str, bytes: &[u8]) -> Result<(), Text> {
        self.named(name)?.port_input(port, bytes)
    }

    /// Changes a value of a guest's configuration. `config`: the one that `show config` shows.
    ///
    /// # Errors
    /// No such guest, or the value is not for it.
    pub fn set(&mut self, name: &str, setting: Setting, config: &mut Config) -> Result<(), Text> {
        let number = self.find(name)?;
        let managed = config.management.as_ref().map(|management| &management.guest);
        let (Some(guest), Some(shown)) = (self.guests.get_mut(number), config.guests.get_mut(number)) else {
            return Err("no such guest".into());
        };
        guest.set(setting, managed)?;
        setting.apply(shown, managed)
    }

    /// Has a guest exit at each end of an interrupt of this vector, or no more.
    ///
    /// # Errors
    /// No such guest, it does not run, or its mode is not `posted`.
    pub fn watch_eoi(&self, name: &str, vector: Option<u8>) -> Result<(), Text> {
        let number = self.find(name)?;
        self.guests.get(number).map_or(Ok(()), |guest| guest.watch_eoi(vector))
    }

    /// How guest `number` is, for changes.
    pub fn seen(&self, number: usize) -> Seen {
        self.guests.get(number).map_or(Seen::Down, Guest::seen)
    }

    /// Carries out an order for guest `number`. `wanted`: its new values. `shown`: its entry in what `show config` shows.
    ///
    /// # Errors
    /// It could not be started.
    pub fn obey(
        &mut self,
        order: Order,
        number: usize,
        wanted: &config::Guest,
        shown: &mut config::Guest,
    ) -> Result<(), Text> {
        match order {
            Order::Stop => {
                // It is refused if the guest has ended meanwhile.
                let _ = self.stop(&wanted.name);
                Ok(())
            }
            Order::Give => {
                // It is copied twice, by code that cannot refuse.
                heap::has_room(VALUES_BYTES)?;
                let guest = self.guests.get_mut(number).ok_or("no such guest")?;
                guest.give(wanted.clone());
                shown.clone_from(wanted);
                Ok(())
            }
            Order::Start => self.start(&wanted.name),
        }
    }

    /// # Errors
    /// The guest has nothing to start.
    fn not_spare(&mut self, name: &str) -> Result<(), Text> {
        match self.named(name)?.is_spare() {
            true => Err(sentence(format_args!("the place of guest `{name}` is spare: `apply` says what it starts"))),
            false => Ok(()),
        }
    }

    fn named(&mut self, name: &str) -> Result<&mut Guest, Text> {
        let number = self.find(name)?;
        self.guests.get_mut(number).ok_or_else(|| "no such guest".into())
    }

    fn command(&mut self, name: &str, command: impl FnOnce(&mut Guest) -> Result<(), Refused>) -> Result<(), Text> {
        command(self.named(name)?).map_err(|refused| refused.explain(name))
    }

    fn command_where_guests_can_run(
        &mut self,
        name: &str,
        command: impl FnOnce(&mut Guest) -> Result<(), Refused>,
    ) -> Result<(), Text> {
        self.find(name)?;
        if !virt::available() {
            return Err("this machine has neither SVM nor VT-x, so no guest can run".into());
        }
        self.command(name, command)
    }

    /// A port of guest `number` for sidecore's own use.
    pub fn own_port(&self, number: usize, name: &str) -> Option<OwnPort<'_>> {
        self.guests.get(number)?.own_port(name)
    }

    /// Returns the last output of a guest's console, for an operator who has just attached.
    pub fn backlog(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.guests.iter().filter(move |guest| guest.name() == name).flat_map(Guest::backlog)
    }

    /// Has a guest's output sent by this way as it comes. Returns the answer to the command `id`.
    ///
    /// # Errors
    /// No such guest, or there is no memory.
    pub fn follow(&mut self, name: &str, way: Way, id: Option<u64>) -> Result<Event, Text> {
        Ok(self.named(name)?.follow_output(way, id)?)
    }

    /// No more of a guest's output is sent by this way as it comes.
    ///
    /// # Errors
    /// No such guest.
    pub fn unfollow(&mut self, name: &str, way: Way) -> Result<(), Text> {
        self.named(name)?.unfollow_output(way);
        Ok(())
    }

    /// Nobody follows a guest by this way any more.
    pub fn unfollow_all(&mut self, way: Way) {
        self.guests.iter_mut().for_each(|guest| guest.unfollow_output(way));
    }

    /// Polls every guest. Called once a tick. `attached` is the guest whose console has COM1.
    pub fn poll(&mut self, attached: Option<&str>) {
        let guests = &mut self.guests;
        machine_check::tick(|told| memory_error(guests, told));
        interrupts::tell_machine_nmis();
        heap::tell_full();
        self.watcher.tick(guests);
        if let Some(guest) = guests.iter_mut().find(|guest| attached == Some(guest.name())) {
            guest.drain(OUTPUT_BYTES, Drain::Attached);
        }
        self.turns.tick(OUTPUT_BYTES, |number, most| match guests.get_mut(number) {
            Some(guest) if attached != Some(guest.name()) => guest.drain(most, Drain::Detached),
            _ => (0, Pause::Idle),
        });
        guests.iter_mut().for_each(Guest::tell_followers);
        guests.iter_mut().for_each(Guest::poll);
    }

    /// Sends all output that waits. The machine ends.
    pub fn finish_output(&mut self) {
        self.guests.iter_mut().for_each(|guest| guest.finish_output(Drain::AtOnce));
    }

    /// Whether all guests are down: none runs, and none waits for its next life.
    pub fn all_stopped(&self) -> bool {
        self.guests.iter().all(Guest::is_down)
    }

    /// Whether a shutdown need not wait any more: all guests are down, or the time that it waits for them is over. Those
    /// that are not down are reported.
    pub fn all_over(&self) -> bool {
        let over = self.guests.iter().all(Guest::is_over);
        if over {
            self.guests.iter().filter(|guest| !guest.is_down()).for_each(Guest::report_left_behind);
        }
        over
    }

    /// Whether the machine should end now: all guests have stopped, and the configuration asks for it.
    pub fn wants_end(&self) -> bool {
        self.end_when_stopped && self.all_stopped()
    }

    /// All guests, in the order of the configuration.
    ///
    /// # Errors
    /// There is no memory for the list.
    pub fn list(&self) -> Result<Vec<GuestSummary>, NoMemory> {
        control::collect(self.guests.iter().map(Guest::summary))
    }

    /// Returns all counters, for the request `id`.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn counters(&self, id: Option<u64>) -> Result<Counters, NoMemory> {
        let memory = mem::used();
        // Engines come first. What an engine counted for a guest before the turns that this shows is then in the guest's
        // counters, so a reader can wait for turns.
        let engines = control::collect(crate::engines::all().iter().map(|engine| engine.counters()))?;
        let guests = control::collect(self.guests.iter().map(Guest::counters))?;
        let memory_without_guests = guests.iter().fold(memory, |rest, guest| rest.saturating_sub(guest.kept));
        Ok(Counters {
            id,
            tsc: crate::arch::time::tsc(),
            tsc_hz: crate::arch::time::rates().tsc,
            hypervisor: Hypervisor {
                memory,
                memory_without_guests,
                heap: heap::usage(),
                log_dropped: crate::console::DROPPED.load(Ordering::Relaxed),
                serial: crate::console::counters(),
                stray_interrupts: interrupts::STRAY.load(Ordering::Relaxed),
                system_errors: interrupts::SYSTEM_ERRORS.load(Ordering::Relaxed),
                io_checks: interrupts::IO_CHECKS.load(Ordering::Relaxed),
                other_nmis: interrupts::OTHER_NMIS.load(Ordering::Relaxed),
                machine_checks: machine_check::counters(),
            },
            guests,
            engines,
        })
    }
}

/// Logs an error that a core has told, and has the guest end whose memory it is, if it must.
fn memory_error(guests: &mut [Guest], told: &Told) {
    let number = told.error.location.and_then(|location| match machine_check::owner(location.address) {
        Owner::Guest(number) => Some((number, location)),
        Owner::Hypervisor | Owner::Nobody => None,
    });
    trace::machine_check(told, number.map(|(number, _)| number));
    let hit = number.and_then(|(number, location)| Some((guests.get_mut(number)?, location)));
    let Some((guest, location)) = hit.filter(|_| told.kind != Kind::LeftByFirmware) else {
        return log::warn!("{told}: nothing has to be done");
    };
    let ends = told.kind == Kind::EndGuest;
    log::warn!("{told}, {}{}", guest.name(), if ends { ": it ends" } else { ": it goes on, and will not start again" });
    guest.memory_error(&location, ends);
}
