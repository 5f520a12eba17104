//! What this boot leaves for the next one, and what the boot before has left: how often the configuration was tried, and the log.
//!
//! There are two places, and a third one for the count alone. ACPI's ERST, where the firmware has one, outlives a cut of the power. It gets the record of each boot, and the log
//! of one that fails. Memory outlives a reset, unless firmware clears it or somebody writes there. It gets the record and the log,
//! as the log is written. There are up to three areas, so that one of them is left. They lie low or beside the boot modules, where
//! they part no memory that a guest could have in one piece. The count of attempts is also in a byte of the CMOS memory, if the operator
//! names one.
//!
//! Only the boot core uses this, or the core that panics.

pub mod cmos;
pub mod failure;
pub mod kept;
mod store;

use crate::{halt::halt, options, report};
use alloc::{format, string::String, vec};
use boots::{
    area::LOG,
    attempts, clean, cper,
    record::{Record, State},
};
use config::Sha256;
use control::QUOTED;
use core::sync::atomic::{AtomicBool, Ordering};
use erst::Error;
use kept::keep;

/// The configuration that is taken if `sidecore.toml` does not come to run.
pub const PREVIOUS: &str = "previous.toml";

/// Lines of the log of the boot before that the report has.
const LINES: usize = 16;
/// Most bytes of a record that are read.
const MOST_STORED: u64 = 64 << 10;

/// Whether this boot took `previous.toml`.
static TOOK_PREVIOUS: AtomicBool = AtomicBool::new(false);

/// Makes the firmware's store reachable. Call it before the cores have maps of their own.
pub fn open_store() {
    if let Err(why) = store::open() {
        report::warning(why);
    }
}

/// Counts this boot's attempt of `file`, which is `sidecore.toml`, says what the boot before has left, and returns the name of the configuration
/// to take.
pub fn attempt(file: &'static str, hashes: &[(&str, Sha256)]) -> &'static str {
    let config = hashes.iter().find(|(name, _)| *name == file).map_or([0; 32], |(_, hash)| hash.0);
    let has_previous = hashes.iter().any(|(name, _)| *name == PREVIOUS);
    let in_memory = kept::before().map(|before| before.record);
    let stored = read_record();
    // Each place has the last boot, or an older one if it could not be written.
    let before = in_memory.into_iter().chain(stored).max_by_key(|record| record.boot);
    // Where the record is lost, the count may be left.
    let failed = if before.is_none() { cmos::attempts(&config) } else { None };
    let attempts = match failed {
        Some(failed) => attempts::with_failed(failed),
        None => attempts::with_this_one(before.as_ref(), &config),
    };
    let boot = before.map_or(0, |before| before.boot).saturating_add(1);
    let areas = kept::areas();
    keep(|_| Record { boot, attempts, state: State::Booting, config });
    describe(areas, boot, before);
    if let Some(place) = cmos::named() {
        report::found(match failed {
            Some(failed) => {
                format!("byte {place:#x} of the CMOS memory has the count: {file} has failed {failed} times")
            }
            None => format!("byte {place:#x} of the CMOS memory gets the count of attempts"),
        });
    }
    let is_kept = areas > 0 || store::is_open() || cmos::named().is_some();
    failure::set_retries(has_previous && is_kept);
    if !attempts::takes_previous(attempts) {
        return file;
    }
    let failed = attempts.saturating_sub(1);
    if has_previous {
        TOOK_PREVIOUS.store(true, Ordering::Relaxed);
        report::warning(format!(
            "{file} was tried {failed} times and has not come to run: {PREVIOUS} is taken, until {file} is changed"
        ));
        PREVIOUS
    } else {
        report::warning(format!(
            "{file} was tried {failed} times and has not come to run, and there is no boot module {PREVIOUS} to take instead"
        ));
        file
    }
}

/// This boot runs `file`, with which the operator would not reach the machine. If the next boot can take `previous.toml`, it does: the
/// attempts of `file` are used up, and the machine is reset. Otherwise this one goes on, and the report says what is wrong.
pub fn out_of_reach(file: &str, why: &str) {
    // With `previous.toml` itself it would be the same again.
    if file == PREVIOUS || !failure::retries() || options::panic() == Some(0) {
        return report::warning(format!("{why}, so nobody reaches the machine by its network"));
    }
    keep(|record| Record { attempts: attempts::LIMIT, ..record });
    halt(format_args!("{why}, so nobody would reach the machine by its network: the next boot takes {PREVIOUS}"))
}

/// Whether this boot took `previous.toml` because the other file has not come to run.
pub fn took_previous() -> bool {
    TOOK_PREVIOUS.load(Ordering::Relaxed)
}

/// Notes that the control loop begins.
pub fn runs() {
    keep(|record| Record { state: State::Running, ..record });
}

/// Notes that this boot has come to run: its guests have started, and nothing has failed for a while. The firmware's store may take a while for
/// it, which is bounded, and happens once.
pub fn has_come_to_run() {
    keep(succeeded);
}

/// Notes that the machine ends in order.
pub fn ends() {
    keep(|record| Record { state: State::Ended, ..succeeded(record) });
}

/// The record of a boot that counts as a success of its configuration.
fn succeeded(record: Record) -> Record {
    Record { attempts: attempts::after_success(record.attempts, took_previous()), ..record }
}

/// The record of the boot before in the firmware's store.
fn read_record() -> Option<Record> {
    let mut bytes = vec![0; 1 << 10];
    let read = store::with(|store| store.read(cper::BOOT_ID, &mut bytes).map(<[u8]>::len))?;
    match read {
        Ok(len) => {
            let found = cper::read(bytes.get(..len)?).filter(|found| found.section == cper::SIDECORE)?;
            Record::read(found.body.first_chunk()?)
        }
        Err(Error::NotFound) => None,
        Err(why) => {
            report::warning(format!("the firmware's store (ERST) does not give the record of the boot before: {why}"));
            None
        }
    }
}

/// Says what is kept, and what the boot before has left.
fn describe(areas: usize, boot: u64, before: Option<Record>) {
    let places = match (store::is_open(), areas) {
        (true, 0) => String::from("in the firmware's store (ERST)"),
        (true, areas) => format!("in the firmware's store (ERST), and in memory at {areas} places"),
        (false, 0) => {
            report::fallback(
                "no ERST, and boot modules lie where memory would be kept: nothing is known of the boot before",
            );
            return;
        }
        (false, areas) => {
            format!("in memory at {areas} places, which a cut of the power clears, and some firmware too")
        }
    };
    report::found(format!("boot {boot}; what it leaves for the next one is {places}"));
    let Some(before) = before else {
        report::fallback("nothing is known of the boot before");
        return;
    };
    let said = format!("boot {} {}", before.boot, before.state.words());
    if before.state == State::Ended {
        report::found(said);
        show_stored(false);
        return;
    }
    let in_memory = kept::before().filter(|kept| kept.record.boot == before.boot);
    let mut text = vec![0; LOG];
    let len = match in_memory {
        Some(kept) => kept.slot.log(&mut text),
        None => 0,
    };
    if len > 0 {
        report::warning(format!("{said}; its last lines are"));
        show_lines(text.get(..len).unwrap_or_default());
    } else {
        report::warning(said);
    }
    show_stored(len == 0);
}

/// Says what logs the firmware's store has, with the last lines of the first one. `with_own`: sidecore's own too.
fn show_stored(with_own: bool) {
    let (mut bytes, mut room) = (vec![0; store::room().min(MOST_STORED) as usize], vec![0; LOG]);
    let Some(Ok(ids)) = store::with(|store| store.ids()) else { return };
    let mut logs = 0_usize;
    for id in ids.into_iter().filter(|id| with_own || *id != cper::LOG_ID) {
        let Some(Ok(len)) = store::with(|store| store.read(id, &mut bytes).map(<[u8]>::len)) else { continue };
        let found = bytes.get(..len).and_then(cper::read);
        let Some(text) = found.and_then(|found| found.text(&mut room)) else { continue };
        if logs == 0 {
            let whose = if id == cper::LOG_ID { "sidecore" } else { "another system" };
            report::warning(format!("the firmware's store (ERST) has a log of {whose}; its last lines are"));
            show_lines(text);
        }
        logs = logs.saturating_add(1);
    }
    if logs > 1 {
        report::warning(format!(
            "the firmware's store (ERST) has {logs} logs; a Linux shows all of them in /sys/fs/pstore"
        ));
    }
}

fn show_lines(text: &[u8]) {
    for line in clean::lines(clean::last_lines(text, LINES)) {
        let line: String = line.take(200).collect();
        report::warning(format!("{QUOTED}{line}"));
    }
}
