//! What this boot leaves for the next one, and what the boot before has left: how often the configuration was tried, and the log.
//!
//! There are two places. ACPI's ERST, where the firmware has one, outlives a cut of the power. It gets the record of each boot, and the log
//! of one that fails. Memory outlives a reset, unless firmware clears it or somebody writes there. It gets the record and the log,
//! as the log is written. There are up to four areas, so that one of them is left. They lie low, where they part no memory
//! that a guest could have in one piece.
//!
//! Only the boot core uses this, or the core that panics.

#![allow(unsafe_code, reason = "names the memory of the areas, and reaches the registers of the firmware's store")]

use crate::{arch::time, console, facts::facts, mem, options, power, report, settings};
use alloc::{format, string::String, vec, vec::Vec};
use boots::{
    area::{AREA, Before, Keeper, LOG},
    attempts, clean, cper,
    record::{Record, State},
};
use config::Sha256;
use core::{
    fmt::{self, Write},
    ptr, slice,
    sync::atomic::{AtomicBool, AtomicU8, Ordering},
};
use erst::{Bus, Error, Register, Space, Store, Table};
use memory::frames::Frames;
use spin::Mutex;
use x86_64::instructions::port::Port;

/// The configuration that is taken if `sidecore.toml` does not come to run.
pub const PREVIOUS: &str = "previous.toml";

/// Ends of the areas. GRUB loads modules upwards from the image, and firmware has its own memory at the top.
const AREA_ENDS: [u64; 4] = [32 << 20, 64 << 20, 128 << 20, 256 << 20];
/// Lines of the log of the boot before that the report has.
const LINES: usize = 16;
/// Most bytes of the range in which the firmware takes records.
const MOST_RANGE: u64 = 1 << 20;
/// Most bytes of a record that are read.
const MOST_STORED: u64 = 64 << 10;
/// Most bytes of log that the firmware's store gets.
const STORE_LOG: usize = 7 << 10;
/// Seconds from a failure to a reset, if there is another configuration to try.
const PATIENCE: u64 = 10;
const PAGE: u64 = 4096;

static KEEPER: Mutex<Option<Keeper<'static>>> = Mutex::new(None);
static BEFORE: Mutex<Option<Before<'static>>> = Mutex::new(None);
/// The pages of registers that are mapped, and the range in which the firmware takes records.
static MAPPED: Mutex<Mapped> = Mutex::new(Mapped { pages: Vec::new(), range: (0, 0) });
/// Whether this boot took `previous.toml`.
static TOOK_PREVIOUS: AtomicBool = AtomicBool::new(false);
/// Lines of an earlier boot are being shown. They are not this boot's, so they are not in its log.
static QUOTES: AtomicBool = AtomicBool::new(false);
/// Whether a failure resets the machine, if the command line says nothing.
static RETRIES: AtomicBool = AtomicBool::new(false);

/// What of the firmware's store can be reached.
struct Mapped {
    pages: Vec<u64>,
    range: (u64, u64),
}

/// Takes the areas out of the free memory, and begins the log of this boot.
pub fn begin(frames: &mut Frames) {
    let areas = AREA_ENDS.into_iter().filter_map(|end| {
        let start = end.saturating_sub(AREA as u64);
        // SAFETY: the memory was free, is taken now, and lies below 4 GiB, so it is mapped at its physical address from the
        // boot on. Nobody else names it, and bytes may have any value.
        frames
            .take(start, AREA as u64)
            .then(|| unsafe { slice::from_raw_parts(ptr::with_exposed_provenance::<AtomicU8>(start as usize), AREA) })
    });
    let (keeper, before) = Keeper::begin(areas);
    *KEEPER.lock() = Some(keeper);
    *BEFORE.lock() = before;
}

/// Adds to the log of this boot.
pub fn log(args: fmt::Arguments<'_>) {
    struct Log<'a>(&'a mut Keeper<'static>);
    impl Write for Log<'_> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.append(text.as_bytes());
            Ok(())
        }
    }
    if let Some(keeper) = KEEPER.lock().as_mut().filter(|_| !QUOTES.load(Ordering::Relaxed)) {
        let _ = Log(keeper).write_fmt(args);
    }
}

/// Frees the locks for a panic.
///
/// # Safety
/// As for [`console::break_locks`].
pub unsafe fn break_locks() {
    // SAFETY: the caller's promise.
    unsafe {
        KEEPER.force_unlock();
        MAPPED.force_unlock();
    }
}

/// Makes the firmware's store reachable. Call it before the cores have maps of their own.
pub fn open_store() {
    let Some(table) = &facts().platform.store else { return };
    let mut mapped = MAPPED.lock();
    for Register { address, .. } in table.registers().filter(|register| register.space == Space::Memory) {
        let page = address & !(PAGE - 1);
        if !mapped.pages.contains(&page) {
            // What is mapped already is memory of another device or of the firmware, and can be reached too.
            let _ = mem::map_device(page, PAGE);
            mapped.pages.push(page);
        }
    }
    drop(mapped);
    match Store::open(table, Firmware).map(|store| store.range()) {
        Ok((at, len)) if at != 0 && (1 << 10..=MOST_RANGE).contains(&len) => {
            let start = at & !(PAGE - 1);
            let end = at.saturating_add(len).next_multiple_of(PAGE);
            for page in (start..end).step_by(PAGE as usize) {
                let _ = mem::map_device(page, PAGE);
            }
            MAPPED.lock().range = (at, len);
        }
        Ok((at, len)) => {
            report::warning(format!("the firmware's store (ERST) takes records of {len} bytes at {at:#x}: not used"));
        }
        Err(why) => report::warning(format!("the firmware's store (ERST) is not used: {why}")),
    }
}

/// Counts this boot's attempt of `sidecore.toml`, says what the boot before has left, and returns the name of the configuration
/// to take.
pub fn attempt(hashes: &[(&str, Sha256)]) -> &'static str {
    let config = hashes.iter().find(|(name, _)| *name == settings::FILE).map_or([0; 32], |(_, hash)| hash.0);
    let has_previous = hashes.iter().any(|(name, _)| *name == PREVIOUS);
    let in_memory = BEFORE.lock().as_ref().map(|before| before.record);
    let stored = read_record();
    // Each place has the last boot, or an older one if it could not be written.
    let before = in_memory.into_iter().chain(stored).max_by_key(|record| record.boot);
    let attempts = attempts::with_this_one(before.as_ref(), &config);
    let boot = before.map_or(0, |before| before.boot).saturating_add(1);
    let areas = KEEPER.lock().as_ref().map_or(0, Keeper::areas);
    keep(|_| Record { boot, attempts, state: State::Booting, config });
    describe(areas, boot, before);
    let is_kept = areas > 0 || can_store();
    RETRIES.store(has_previous && is_kept, Ordering::Relaxed);
    if !attempts::takes_previous(attempts) {
        return settings::FILE;
    }
    let failed = attempts.saturating_sub(1);
    let file = settings::FILE;
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

/// Notes that the control loop begins.
pub fn runs() {
    keep(|record| Record {
        attempts: attempts::after_success(record.attempts, TOOK_PREVIOUS.load(Ordering::Relaxed)),
        state: State::Running,
        ..record
    });
}

/// Notes that the machine ends in order.
pub fn ends() {
    keep(|record| Record { state: State::Ended, ..record });
}

/// Notes that the machine stops by a failure, which the log has already. Resets the machine after a while, if that is to be.
pub fn fails() {
    keep(|record| Record { state: State::Failed, ..record });
    store_log();
    let seconds = match options::panic() {
        Some(seconds) => seconds,
        None if RETRIES.load(Ordering::Relaxed) => PATIENCE,
        None => 0,
    };
    if seconds != 0 && time::known_rates().is_some() {
        console::print(format_args!("the machine is reset in {seconds} s\n"));
        console::flush();
        time::delay_micros(seconds.saturating_mul(1_000_000));
        power::reset();
    }
}

/// Replaces the record of this boot, in all places.
fn keep(change: impl FnOnce(Record) -> Record) {
    let record = {
        let mut keeper = KEEPER.lock();
        let Some(keeper) = keeper.as_mut() else { return };
        keeper.set(change(keeper.record()));
        keeper.record()
    };
    let written = with_store(|store| match cper::head(cper::Kind::Boot, record.bytes().len()) {
        Some(head) => store.write(&[&head, &record.bytes()]),
        None => Ok(()),
    });
    if let Some(Err(why)) = written {
        log::warn!("the firmware's store (ERST) does not take the record of this boot: {why}");
    }
}

/// The record of the boot before in the firmware's store.
fn read_record() -> Option<Record> {
    let mut bytes = vec![0; 1 << 10];
    let read = with_store(|store| store.read(cper::BOOT_ID, &mut bytes).map(<[u8]>::len))?;
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

/// Writes the end of this boot's log to the firmware's store.
fn store_log() {
    let mut text = [0; STORE_LOG];
    let most = MAPPED.lock().range.1.saturating_sub(cper::HEAD as u64).min(STORE_LOG as u64) as usize;
    let len = match (KEEPER.lock().as_ref(), text.get_mut(..most)) {
        (Some(keeper), Some(text)) => keeper.log(text),
        _ => 0,
    };
    let text = text.get(..len).unwrap_or_default();
    let Some(head) = cper::head(cper::Kind::Log, text.len()).filter(|_| !text.is_empty()) else { return };
    if let Some(Err(why)) = with_store(|store| store.write(&[&head, text])) {
        console::print(format_args!("the firmware's store (ERST) does not take the log: {why}\n"));
    }
}

/// Says what is kept, and what the boot before has left.
fn describe(areas: usize, boot: u64, before: Option<Record>) {
    let places = match (can_store(), areas) {
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
        show_stored(true);
        return;
    }
    let in_memory = BEFORE.lock().filter(|kept| kept.record.boot == before.boot);
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
    show_stored(len > 0);
}

/// Says what logs the firmware's store has, with the last lines of the first one. `is_shown`: not sidecore's own, which is known.
fn show_stored(is_shown: bool) {
    let (mut bytes, mut room) = (vec![0; MAPPED.lock().range.1.min(MOST_STORED) as usize], vec![0; LOG]);
    let Some(Ok(ids)) = with_store(|store| store.ids()) else { return };
    let mut more = 0_usize;
    for id in ids.into_iter().filter(|id| *id != cper::LOG_ID || !is_shown) {
        let Some(Ok(len)) = with_store(|store| store.read(id, &mut bytes).map(<[u8]>::len)) else { continue };
        let found = bytes.get(..len).and_then(cper::read);
        let Some(text) = found.and_then(|found| found.text(&mut room)) else { continue };
        if more == 0 {
            let whose = if id == cper::LOG_ID { "sidecore" } else { "another system" };
            report::warning(format!("the firmware's store (ERST) has a log of {whose}; its last lines are"));
            show_lines(text);
        }
        more = more.saturating_add(1);
    }
    if more > 1 {
        report::warning(format!(
            "the firmware's store (ERST) has {more} logs; a Linux shows all of them in /sys/fs/pstore"
        ));
    }
}

fn show_lines(text: &[u8]) {
    QUOTES.store(true, Ordering::Relaxed);
    for line in clean::lines(clean::last_lines(text, LINES)) {
        let line: String = line.take(200).collect();
        report::warning(format!("| {line}"));
    }
    QUOTES.store(false, Ordering::Relaxed);
}

/// Whether the firmware's store can be used.
fn can_store() -> bool {
    MAPPED.lock().range.1 != 0
}

/// Uses the firmware's store, if there is one.
fn with_store<R>(with: impl FnOnce(&mut Store<'_, Firmware>) -> Result<R, Error>) -> Option<Result<R, Error>> {
    if !can_store() {
        return None;
    }
    let table: &Table = facts().platform.store.as_ref()?;
    Some(Store::open(table, Firmware).and_then(|mut store| with(&mut store)))
}

/// The registers of the firmware's store.
struct Firmware;

impl Firmware {
    /// A register in memory, if it is in a page that is mapped for the store and at a multiple of its size.
    fn register(address: u64, bytes: u8) -> Option<usize> {
        let is_mapped = MAPPED.lock().pages.contains(&(address & !(PAGE - 1)));
        (is_mapped && address.is_multiple_of(bytes.into())).then_some(address as usize)
    }

    /// Bytes of the range of records.
    fn range(address: u64, bytes: usize) -> Option<usize> {
        let (at, len) = MAPPED.lock().range;
        let behind = address.checked_add(bytes as u64)?;
        (at <= address && behind <= at.saturating_add(len)).then_some(address as usize)
    }
}

impl Bus for Firmware {
    fn read(&mut self, space: Space, address: u64, bytes: u8) -> Option<u64> {
        match space {
            Space::Memory => {
                let at = Self::register(address, bytes)?;
                // SAFETY: ACPI names the register, its page is mapped, and it is aligned.
                Some(unsafe {
                    match bytes {
                        1 => ptr::with_exposed_provenance::<u8>(at).read_volatile().into(),
                        2 => ptr::with_exposed_provenance::<u16>(at).read_volatile().into(),
                        4 => ptr::with_exposed_provenance::<u32>(at).read_volatile().into(),
                        _ => ptr::with_exposed_provenance::<u64>(at).read_volatile(),
                    }
                })
            }
            Space::Ports => {
                let port = u16::try_from(address).ok()?;
                // SAFETY: ACPI names the port for this purpose.
                unsafe {
                    match bytes {
                        1 => Some(Port::<u8>::new(port).read().into()),
                        2 => Some(Port::<u16>::new(port).read().into()),
                        4 => Some(Port::<u32>::new(port).read().into()),
                        _ => None,
                    }
                }
            }
        }
    }

    fn write(&mut self, space: Space, address: u64, bytes: u8, value: u64) -> Option<()> {
        match space {
            Space::Memory => {
                let at = Self::register(address, bytes)?;
                // SAFETY: as in `read`.
                unsafe {
                    match bytes {
                        1 => ptr::with_exposed_provenance_mut::<u8>(at).write_volatile(value as u8),
                        2 => ptr::with_exposed_provenance_mut::<u16>(at).write_volatile(value as u16),
                        4 => ptr::with_exposed_provenance_mut::<u32>(at).write_volatile(value as u32),
                        _ => ptr::with_exposed_provenance_mut::<u64>(at).write_volatile(value),
                    }
                }
            }
            Space::Ports => {
                let port = u16::try_from(address).ok()?;
                // SAFETY: as in `read`.
                unsafe {
                    match bytes {
                        1 => Port::<u8>::new(port).write(value as u8),
                        2 => Port::<u16>::new(port).write(value as u16),
                        4 => Port::<u32>::new(port).write(value as u32),
                        _ => return None,
                    }
                }
            }
        }
        Some(())
    }

    fn load(&mut self, address: u64, to: &mut [u8]) -> Option<()> {
        let from = ptr::with_exposed_provenance::<u8>(Self::range(address, to.len())?);
        for (index, byte) in to.iter_mut().enumerate() {
            // SAFETY: the range of records is mapped, and all bytes are within it.
            *byte = unsafe { from.add(index).read_volatile() };
        }
        Some(())
    }

    fn store(&mut self, address: u64, from: &[u8]) -> Option<()> {
        let to = ptr::with_exposed_provenance_mut::<u8>(Self::range(address, from.len())?);
        for (index, byte) in from.iter().enumerate() {
            // SAFETY: as in `load`.
            unsafe { to.add(index).write_volatile(*byte) };
        }
        Some(())
    }

    fn wait(&mut self, micros: u64) {
        time::delay_micros(micros);
    }
}
