//! The end of a boot that fails.

use super::kept::{keep, store_log};
use crate::{arch::time, console, machine_watchdog, options, power};
use boots::record::{Record, State};
use core::sync::atomic::{AtomicBool, Ordering};

/// Seconds from a failure to a reset, if there is another configuration to try.
const PATIENCE: u64 = 10;

/// Whether a failure resets the machine, if the command line says nothing.
static RETRIES: AtomicBool = AtomicBool::new(false);

/// Says whether a failure resets the machine, if the command line does not.
pub fn set_retries(retries: bool) {
    RETRIES.store(retries, Ordering::Relaxed);
}

/// Whether a failure resets the machine, if the command line says nothing. Then a later boot can take the other configuration.
pub fn retries() -> bool {
    RETRIES.load(Ordering::Relaxed)
}

/// Notes that the machine stops by a failure, which the log has already. Resets the machine after a while, if that is to be.
pub fn fails() {
    keep(|record| Record { state: State::Failed, ..record });
    if let Err(why) = store_log() {
        console::print(format_args!("the firmware's store (ERST) does not take the log: {why}\n"));
    }
    let seconds = match options::panic() {
        Some(seconds) => seconds,
        None if RETRIES.load(Ordering::Relaxed) => PATIENCE,
        None => 0,
    };
    if seconds != 0 && time::known_rates().is_some() {
        console::print(format_args!("the machine is reset in {seconds} s\n"));
        console::flush();
        for _ in 0..seconds {
            machine_watchdog::feed_now();
            time::delay_micros(1_000_000);
        }
        power::reset();
    }
    if options::panic() == Some(0) {
        // The machine is to stand still.
        machine_watchdog::end();
    } else if machine_watchdog::feed_now() {
        console::print(format_args!("the machine's watchdog resets it soon\n"));
        console::flush();
    }
}
