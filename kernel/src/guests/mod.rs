//! Guests: made from the configuration, started, stopped, started again; all from the control core.
//!
//! ```text
//!            start                 last vCPU home
//!  stopped ─────────▶ running ──────────────────────▶ stopped ── restart = "always" ──▶ running
//!                        │ stop: power button               ▲
//!                        └──▶ stopping ── time limit: kill ─┘
//! ```
//!
//! A guest keeps its memory, its nested tables and its ports' shared state for as long as sidecore runs; everything
//! else (the machine, the memory's contents, the engine's devices) is made anew at each start, so that nothing of a
//! former life is left.

mod console;
mod guest;
pub mod target;
mod vcpu;

use crate::{arch::idt, cores, mem, virt};
use alloc::{format, string::String, vec::Vec};
use config::{Config, Plan};
use control::{Counters, GuestSummary, Hypervisor};
use core::sync::atomic::Ordering;
use guest::Guest;

/// All guests of the configuration.
pub struct Guests {
    guests: Vec<Guest>,
    end_when_stopped: bool,
    stop_seconds: u32,
    memory_without_guests: u64,
}

impl Guests {
    /// Sets up every guest of the plan: memory, tables, ports. None is started yet. A guest for which something is
    /// missing is there, does not start, and says why.
    pub fn new(config: &Config, plan: &Plan) -> Self {
        let memory_without_guests = mem::used();
        let mut next = 0;
        let guests = config.guests.iter().zip(&plan.guests).enumerate().map(|(number, (c, cores))| {
            let cores = cores.iter().filter_map(|&i| cores::get(i as usize)).collect();
            let port = next;
            next += c.nets.len();
            Guest::new(number, config, c.clone(), cores, port)
        });
        Self {
            guests: guests.collect(),
            end_when_stopped: config.control.end_when_guests_stop,
            stop_seconds: config.control.stop_seconds,
            memory_without_guests,
        }
    }

    /// Starts every guest that is to start with the machine.
    pub fn start_all(&mut self) {
        if virt::available() {
            self.guests.iter_mut().filter(|g| g.autostart()).for_each(Guest::start);
        }
    }

    /// Presses every running guest's power button, for good: none is started again.
    pub fn stop_all(&mut self) {
        let seconds = self.stop_seconds;
        for g in &mut self.guests {
            g.stay_down();
            g.stop(seconds);
        }
    }

    /// The guest of that name.
    ///
    /// # Errors
    /// There is none; the text names the one most like it.
    pub fn find(&self, name: &str) -> Result<usize, String> {
        self.guests.iter().position(|g| g.name() == name).ok_or_else(|| {
            let names: Vec<&str> = self.guests.iter().map(Guest::name).collect();
            match control::nearest(name, &names) {
                Some(meant) => format!("no guest `{name}`; did you mean `{meant}`?"),
                None => format!("no guest `{name}`; there are: {}", names.join(", ")),
            }
        })
    }

    /// Starts a guest that is stopped.
    ///
    /// # Errors
    /// No such guest, it runs already, or the machine cannot run guests.
    pub fn start(&mut self, name: &str) -> Result<(), String> {
        let i = self.find(name)?;
        if !virt::available() {
            return Err("this machine has neither SVM nor VT-x, so no guest can run".into());
        }
        if !self.guests[i].is_stopped() {
            return Err(format!("guest `{name}` is running"));
        }
        self.guests[i].start();
        Ok(())
    }

    /// Presses a guest's power button; after the time limit it is killed. One that waits for its next life has no more.
    ///
    /// # Errors
    /// No such guest, or it does not run.
    pub fn stop(&mut self, name: &str) -> Result<(), String> {
        let seconds = self.stop_seconds;
        let i = self.find(name)?;
        if self.guests[i].is_waiting() {
            self.guests[i].stay_down();
            return Ok(());
        }
        self.running(name)?.stop(seconds);
        Ok(())
    }

    /// Stops a guest at once.
    ///
    /// # Errors
    /// No such guest, or it does not run.
    pub fn kill(&mut self, name: &str) -> Result<(), String> {
        self.running(name)?.kill();
        Ok(())
    }

    /// Stops a guest at once and starts it again; one that is stopped is started.
    ///
    /// # Errors
    /// No such guest, or the machine cannot run guests.
    pub fn restart(&mut self, name: &str) -> Result<(), String> {
        let i = self.find(name)?;
        if self.guests[i].is_stopped() {
            return self.start(name);
        }
        self.guests[i].restart();
        Ok(())
    }

    /// Types into a guest's console.
    ///
    /// # Errors
    /// No such guest, or it does not run.
    pub fn input(&mut self, name: &str, bytes: &[u8]) -> Result<(), String> {
        self.running(name)?.input(bytes);
        Ok(())
    }

    /// Shows the end of a guest's console to whoever attaches.
    pub fn show_backlog(&self, name: &str) {
        if let Some(g) = self.guests.iter().find(|g| g.name() == name) {
            g.show_backlog();
        }
    }

    fn running(&mut self, name: &str) -> Result<&mut Guest, String> {
        let i = self.find(name)?;
        if self.guests[i].is_stopped() {
            Err(format!("guest `{name}` is not running"))
        } else {
            Ok(&mut self.guests[i])
        }
    }

    /// Looks after every guest; once a tick. `attached`: whose console has COM1.
    pub fn poll(&mut self, attached: Option<&str>) {
        for g in &mut self.guests {
            let has_terminal = attached == Some(g.name());
            g.poll(has_terminal);
        }
    }

    /// Whether none runs, and none is about to.
    pub fn all_stopped(&self) -> bool {
        self.guests.iter().all(|g| g.is_stopped() && !g.is_waiting())
    }

    /// Whether the machine should end now: all guests have stopped, and the configuration asks for it.
    pub fn wants_end(&self) -> bool {
        self.end_when_stopped && self.all_stopped()
    }

    /// All guests, in the order of the configuration.
    pub fn list(&self) -> Vec<GuestSummary> {
        self.guests.iter().map(Guest::summary).collect()
    }

    /// Everything that is counted.
    pub fn counters(&self, id: Option<u64>) -> Counters {
        Counters {
            id,
            tsc: crate::arch::time::tsc(),
            tsc_hz: crate::arch::time::rates().tsc,
            hypervisor: Hypervisor {
                memory: mem::used(),
                memory_without_guests: self.memory_without_guests,
                log_dropped: crate::console::DROPPED.load(Ordering::Relaxed),
                stray_interrupts: idt::STRAY.load(Ordering::Relaxed),
                machine_nmis: idt::MACHINE_NMIS.load(Ordering::Relaxed),
            },
            guests: self.guests.iter().map(Guest::counters).collect(),
            engines: crate::engines::counters().into_iter().collect(),
        }
    }
}
