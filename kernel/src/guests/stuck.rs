//! The control core's part of the watchdog: it looks at all other cores. A guest whose core makes no progress in the
//! hypervisor is asked to stop.

use super::guest::Guest;
use crate::{
    arch::time,
    console, cores, engines, symbols,
    watchdog::{self, CONTROL_CORE, PERIOD},
};
use ::watchdog::{Pace, Seen, Verdict, Watched};
use alloc::vec::Vec;
use control::{Event, NoMemory};
use core::fmt;

/// The control core's watch over all others.
pub struct Watcher {
    pace: Pace,
    cores: Vec<Watched>,
}

impl Watcher {
    /// Nobody was looked at yet.
    pub fn new() -> Self {
        let cores = (0..cores::numbered()).map(|_| Watched::default()).collect();
        Self { pace: Pace::new(time::micros(PERIOD)), cores }
    }

    /// Looks at the cores if that is due. Called once a tick.
    pub fn tick(&mut self, guests: &[Guest]) {
        let Some(ticks) = self.pace.due(time::tsc()) else { return };
        let (limit, seconds) = (watchdog::limit(), watchdog::seconds());
        for (index, watched) in self.cores.iter_mut().enumerate().skip(CONTROL_CORE + 1) {
            let Some(core) = cores::get(index) else { continue };
            if let Some(engine) = engines::all().iter().find(|engine| engine.core() == index) {
                watchdog::carry_out(index, watched.look(Seen::Working(engine.turns()), ticks, limit));
                continue;
            }
            if let Some(rip) = watchdog::take_answer(index) {
                watched.answered();
                tell(guests, index, Some(rip), seconds);
            }
            match watched.look(core.seen(), ticks, limit) {
                Verdict::Fine => {}
                Verdict::Stuck => watchdog::ask_where(index),
                Verdict::Silent => tell(guests, index, None, seconds.saturating_mul(2)),
                Verdict::Recovered => {
                    watchdog::ask_no_more(index);
                    log::warn!("watchdog: core {index} makes progress again");
                }
            }
        }
    }
}

/// Tells that a guest's core has made no progress in the hypervisor for `seconds`, and asks that guest to stop. `rip` is `None`
/// if the core does not take the NMI.
fn tell(guests: &[Guest], core: usize, rip: Option<u64>, seconds: u64) {
    let guest = guests.iter().find(|guest| guest.has_core(core));
    let name = guest.map(Guest::name);
    let line = fmt::from_fn(|f| {
        write!(f, "core {core} has made no progress in the hypervisor for {seconds} s, ")?;
        match rip {
            Some(rip) => write!(f, "at {}", symbols::Named(rip)),
            None => f.write_str("and takes no NMI"),
        }
    });
    log::error!("watchdog: {line}; guest {}: it is to stop", name.unwrap_or("none"));
    console::send_event(event(core, name, rip, seconds));
    if let Some(guest) = guest {
        guest.stuck(line);
    }
}

fn event(core: usize, guest: Option<&str>, rip: Option<u64>, seconds: u64) -> Result<Event, NoMemory> {
    let guest = guest.map(control::copy).transpose()?;
    let at = rip.map(|rip| control::write(symbols::Named(rip))).transpose()?;
    Ok(Event::Stuck { core: core as u64, guest, seconds, rip, at })
}
