//! The record and the log of this boot, in all places.

#![allow(unsafe_code, reason = "names the memory of the areas")]

use super::{cmos, store};
use boots::{
    area::{AREA, Before, Keeper},
    cper,
    record::{self, Record},
};
use core::{
    fmt::{self, Write},
    ptr, slice,
    sync::atomic::{AtomicBool, AtomicU8, Ordering},
};
use memory::frames::Frames;
use spin::Mutex;

/// Ends of two areas, where modules do not lie. They are low, so that the memory above them stays in one piece for guests.
const AREA_ENDS: [u64; 2] = [32 << 20, 64 << 20];
/// The third area begins behind image and modules, at a multiple of this. So it is where it was if a module has become a little larger.
const STEP: u64 = 4 << 20;
/// Most areas.
const AREAS: usize = AREA_ENDS.len() + 1;
/// Most bytes of log that the firmware's store gets.
const STORE_LOG: usize = 7 << 10;
const _: () = assert!(STORE_LOG <= u16::MAX as usize);

static KEEPER: Mutex<Option<Keeper<'static>>> = Mutex::new(None);
static BEFORE: Mutex<Option<Before<'static>>> = Mutex::new(None);
/// Lines of an earlier boot are being shown. They are not this boot's, so they are not in its log.
static QUOTES: AtomicBool = AtomicBool::new(false);

/// Takes the areas out of the free memory, and begins the log of this boot. `used`: the end of image and modules. Returns start and end
/// (exclusive) of each area.
pub fn begin(frames: &mut Frames, used: u64) -> heapless::Vec<(u64, u64), AREAS> {
    let starts = AREA_ENDS.into_iter().map(|end| end.saturating_sub(AREA as u64));
    let behind = used.checked_next_multiple_of(STEP).filter(|behind| *behind < 4 << 30);
    let taken = starts.chain(behind).filter(|start| frames.take(*start, AREA as u64));
    let taken: heapless::Vec<_, AREAS> = taken.map(|start| (start, start.saturating_add(AREA as u64))).collect();
    let areas = taken.iter().map(|&(start, _)| {
        // SAFETY: the memory was free, is taken now, and lies below 4 GiB, so it is mapped at its physical address from the
        // boot on. Nobody else names it, and bytes may have any value.
        unsafe { slice::from_raw_parts(ptr::with_exposed_provenance::<AtomicU8>(start as usize), AREA) }
    });
    let (keeper, before) = Keeper::begin(areas);
    *KEEPER.lock() = Some(keeper);
    *BEFORE.lock() = before;
    taken
}

/// What the boot before has left in memory.
pub fn before() -> Option<Before<'static>> {
    *BEFORE.lock()
}

/// In how many areas of memory the log is.
pub fn areas() -> usize {
    KEEPER.lock().as_ref().map_or(0, Keeper::areas)
}

/// What is written from now on is, or is not, a quotation of another boot's log.
pub fn quote(quotes: bool) {
    QUOTES.store(quotes, Ordering::Relaxed);
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
/// As for [`crate::console::break_locks`].
pub unsafe fn break_locks() {
    // SAFETY: the caller's promise.
    unsafe {
        KEEPER.force_unlock();
        store::break_lock();
    }
}

/// Replaces the record of this boot, in all places.
pub fn keep(change: impl FnOnce(Record) -> Record) {
    let record = {
        let mut keeper = KEEPER.lock();
        let Some(keeper) = keeper.as_mut() else { return };
        keeper.set(change(keeper.record()));
        keeper.record()
    };
    cmos::write(record.attempts, &record.config);
    let head = cper::head(cper::Kind::Boot, record::BYTES as u16);
    let written = store::with(|store| store.write(&[&head, &record.bytes()]));
    if let Some(Err(why)) = written {
        log::warn!("the firmware's store (ERST) does not take the record of this boot: {why}");
    }
}

/// Writes the end of this boot's log to the firmware's store.
///
/// # Errors
/// The firmware does not take it.
pub fn store_log() -> Result<(), erst::Error> {
    let mut text = [0; STORE_LOG];
    let most = store::room().saturating_sub(cper::HEAD as u64).min(STORE_LOG as u64) as usize;
    let len = match (KEEPER.lock().as_ref(), text.get_mut(..most)) {
        (Some(keeper), Some(text)) => keeper.log(text),
        _ => 0,
    };
    let text = text.get(..len).unwrap_or_default();
    if text.is_empty() {
        return Ok(());
    }
    let head = cper::head(cper::Kind::Log, text.len() as u16);
    store::with(|store| store.write(&[&head, text])).unwrap_or(Ok(()))
}
