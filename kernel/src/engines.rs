//! The machine's engines, in a table by id.
//!
//! An [`Engine`] contains everything about one engine: its core, its interface to the control core, the interrupt
//! targets of its devices, its uplinks, its NUMA node. Two engines share nothing. Attaching, detaching and counting
//! name the engine.
//!
//! The control core makes the table once, when the machine starts.

mod backends;
mod delivery;
mod engine;
mod limits;
mod look;
mod timers;
mod watcher;

use crate::{arch::time, cores, report};
use alloc::vec::Vec;
use control::{Text, sentence};
use spin::Once;

pub use backends::Config;
pub use engine::{Answer, Engine, NewDevice, Setup};

/// Seconds for which the light of a port blinks if nothing else is asked for, and most of them.
const IDENTIFY: u32 = 10;
const MOST_IDENTIFY: u32 = 600;

/// The engines by id.
static TABLE: Once<Vec<&'static Engine>> = Once::new();

/// Makes the engines. An engine's id is its index. Call it once.
// It has half of the boot core's stack for itself, so that must not become part of the caller's frame.
#[inline(never)]
pub fn make_all(setups: Vec<Setup>) {
    let engines = setups.into_iter().enumerate().map(|(id, setup)| Engine::make(id, setup)).collect();
    TABLE.call_once(|| engines);
}

/// Starts the engines on their cores, which have their maps now. Call it once.
pub fn launch() {
    all().iter().for_each(|engine| engine.launch());
}

/// Reports how the engines' cores were raised to full speed, and how long something else had them then. Waits for those that have not
/// done it yet. All of them do it at the same time.
pub fn report_speed() {
    /// Microseconds. An emulated core may be late.
    const PATIENCE: u64 = 5_000_000;
    let until = time::tsc().saturating_add(time::micros(PATIENCE));
    for engine in all() {
        while engine.speed().watched().is_none() && time::tsc() < until {
            core::hint::spin_loop();
        }
        let core = engine.core() as u32;
        let others = cores::count().saturating_sub(1);
        report::add_all([match engine.speed().outcome() {
            Some(outcome) => findings::speed::raised(core, outcome, others),
            None => findings::speed::unknown(core),
        }]);
        report::add_all(
            engine
                .speed()
                .watched()
                .map(|(watched, is_virtual)| findings::speed::gap(core, watched, time::rates().tsc, is_virtual)),
        );
    }
}

/// The id and the core of each engine.
pub fn cores() -> impl Iterator<Item = (usize, usize)> + Clone {
    all().iter().map(|engine| (engine.id(), engine.core()))
}

/// Has each engine choose the loop with or without observers, after something was switched on or off.
pub fn choose_loops() {
    all().iter().for_each(|engine| engine.choose_loop());
}

/// All engines, in the order of their ids.
pub fn all() -> &'static [&'static Engine] {
    TABLE.get().map_or(&[], Vec::as_slice)
}

/// Returns the engine with this id.
pub fn get(id: usize) -> Option<&'static Engine> {
    all().get(id).copied()
}

/// Blinks the light of an uplink's port.
///
/// # Errors
/// There is no such uplink, its NIC has no light that can, or it is to be too long.
pub fn identify(uplink: &str, seconds: u64) -> Result<(), Text> {
    let seconds = match u32::try_from(seconds) {
        Ok(0) => IDENTIFY,
        Ok(seconds @ 1..=MOST_IDENTIFY) => seconds,
        _ => return Err(sentence(format_args!("a light blinks for 1 to {MOST_IDENTIFY} seconds"))),
    };
    let mut uplinks = all().iter().flat_map(|engine| engine.uplinks());
    let known = uplinks.find(|known| known.name() == uplink);
    known.ok_or("there is no such uplink; `show engine` has their names")?.blink(seconds)
}

/// Takes the engines' answers, and gives them the next commands. Called once a tick.
pub fn service() {
    all().iter().for_each(|engine| engine.service());
}

/// Runs one turn of the engine that shares the control core. Returns false if no engine shares it.
pub fn turn() -> bool {
    all().iter().any(|engine| engine.turn_on_control_core())
}
