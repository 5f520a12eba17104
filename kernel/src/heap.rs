//! The heap: the control core's part, a small one for everybody, and a part for each guest.
//!
//! ```text
//!  control core's   nearly everything: configuration, report, commands and answers    control core, engines' cores
//!  everybody's      what guests' cores use besides their guest: cores, engines, jobs  every core
//!  a guest's        its machine, its devices, its console                             the same as the first, and its own
//!                                                                                     cores while they work for it
//! ```
//!
//! The last column says who maps it. The control core allocates from its own part, other cores from everybody's. [`For`]
//! chooses another part. If a guest's part is full, everybody's is used. What was allocated is given back to the part that it
//! is in.

#![allow(unsafe_code, reason = "the global allocator")]

use crate::{
    arch::{MAX_CORES, number},
    mem::{self, FRAMES, LAYOUT},
};
use alloc::{
    alloc::{GlobalAlloc, Layout},
    vec::Vec,
};
use config::MAX_GUESTS;
use control::NoMemory;
use core::{
    ptr,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};
use memory::{
    frames::{OutOfMemory, PAGE},
    maps::Range,
};
use talc::{TalcLock, source::Manual};

/// Bytes of the control core's part. It holds the configuration, ACPI facts and what the control core has of guests. Packets
/// never pass through it. With the feature `count` it is larger, because each counted load has guests with 8 MiB on the heap.
const BYTES: u64 = if cfg!(feature = "count") { 64 << 20 } else { 4 << 20 };
/// Bytes of everybody's part without the cores: the engines, the decoder's tables, SVM's permission maps.
const SHARED_BYTES: u64 = 512 << 10;
/// Bytes of everybody's part for each core, at most: the core, its GDT and TSS, its map, and the box of its job.
const CORE_BYTES: u64 = 3 << 10;
/// Bytes of memory given to a part that it needs for itself, at most.
const OVERHEAD: u64 = 4096;

type Part = TalcLock<spin::Mutex<()>, Manual>;

#[global_allocator]
static HEAP: Heap = Heap {
    control: Part::new(Manual),
    everybody: Part::new(Manual),
    guests: [const { Part::new(Manual) }; MAX_GUESTS],
    ranges: [const { [AtomicU64::new(0), AtomicU64::new(0)] }; MAX_GUESTS],
    shared: [const { [AtomicU64::new(0), AtomicU64::new(0)] }; 2],
};

/// Whose part each core allocates from: [`CONTROL`], [`EVERYBODY`], or the number of a guest.
static OWNERS: [AtomicUsize; MAX_CORES] = {
    let mut owners = [const { AtomicUsize::new(EVERYBODY) }; MAX_CORES];
    owners[0] = AtomicUsize::new(CONTROL);
    owners
};
/// The control core.
const CONTROL: usize = usize::MAX;
/// Everybody.
const EVERYBODY: usize = usize::MAX - 1;

/// An allocation for a guest did not fit in its part.
static FULL: AtomicBool = AtomicBool::new(false);

struct Heap {
    control: Part,
    everybody: Part,
    guests: [Part; MAX_GUESTS],
    /// Start and end (exclusive) of each guest's part. Written once, before anything is allocated from it.
    ranges: [[AtomicU64; 2]; MAX_GUESTS],
    /// The same for everybody's part: the range of the start, and the one for the cores.
    shared: [[AtomicU64; 2]; 2],
}

impl Heap {
    /// The part that this core allocates from, and whether it is a guest's.
    fn own(&self) -> (&Part, bool) {
        let owner = OWNERS.get(number::current()).map_or(EVERYBODY, |owner| owner.load(Ordering::Relaxed));
        let made = |guest: usize| self.ranges.get(guest).is_some_and(|[_, end]| end.load(Ordering::Relaxed) != 0);
        match owner {
            EVERYBODY => (&self.everybody, false),
            guest if made(guest) => self.guests.get(guest).map_or((&self.control, false), |part| (part, true)),
            // A guest without a part never runs. Only the control core works for it.
            _ => (&self.control, false),
        }
    }

    /// The part with this address.
    fn part_of(&self, at: *mut u8) -> &Part {
        let at = at.addr() as u64;
        let within =
            |[start, end]: &[AtomicU64; 2]| (start.load(Ordering::Relaxed)..end.load(Ordering::Relaxed)).contains(&at);
        if self.shared.iter().any(within) {
            return &self.everybody;
        }
        let guest = self.ranges.iter().position(within).and_then(|guest| self.guests.get(guest));
        guest.unwrap_or(&self.control)
    }
}

// SAFETY: each part is an allocator of its own with its own memory. Memory is given back to the part that it is in.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (part, is_guests) = self.own();
        // SAFETY: the caller's promise.
        let at = unsafe { part.alloc(layout) };
        if !at.is_null() || !is_guests {
            return at;
        }
        FULL.store(true, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.everybody.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, and the part is the one that `at` is from.
        unsafe { self.part_of(at).dealloc(at, layout) }
    }
}

/// Gives the control core's part and everybody's their memory. Nothing may allocate before this has run.
///
/// # Errors
/// There is no memory for them below 4 GiB. The boot tables map no more than that.
pub fn start() -> Result<(), OutOfMemory> {
    const ALL: u64 = BYTES + SHARED_BYTES;
    let at = FRAMES.lock().host(ALL, 4096)?;
    if at.saturating_add(ALL) > 4 << 30 {
        return Err(OutOfMemory { bytes: ALL, free: 0 });
    }
    let shared = at.saturating_add(BYTES);
    // SAFETY: the frames were free, and from now on only the heap uses them. They are below 4 GiB (checked above). The
    // boot tables map all memory below 4 GiB at its physical address.
    unsafe {
        claim(&HEAP.control, at, BYTES);
        share(0, shared, SHARED_BYTES);
    }
    Ok(())
}

/// Gives everybody's part memory for so many cores. Call it once, before they are made.
///
/// # Errors
/// There is not so much memory.
pub fn extend_for_cores(cores: usize) -> Result<(), OutOfMemory> {
    let bytes = CORE_BYTES.saturating_mul(cores as u64).saturating_add(OVERHEAD).next_multiple_of(PAGE);
    let at = mem::pages(bytes)?;
    // SAFETY: `pages` returns mapped memory that nobody else has. From now on only the heap uses it.
    unsafe { share(1, at, bytes) };
    Ok(())
}

/// Gives everybody's part a range of memory, the first or the second one.
///
/// # Safety
/// As for [`claim`].
unsafe fn share(number: usize, at: u64, bytes: u64) {
    let Some([start, end]) = HEAP.shared.get(number) else { return };
    start.store(at, Ordering::Relaxed);
    end.store(at.saturating_add(bytes), Ordering::Relaxed);
    // SAFETY: the caller's promise.
    unsafe { claim(&HEAP.everybody, at, bytes) };
    LAYOUT.lock().heap.push((at, at.saturating_add(bytes)));
}

/// Gives the control core's part more memory, for good. Call it only before the cores have maps of their own.
///
/// # Errors
/// There is not so much memory.
pub fn extend(bytes: u64) -> Result<(), OutOfMemory> {
    let at = FRAMES.lock().host(bytes, 4096)?;
    // SAFETY: the frames were free, and from now on only the heap uses them. All memory is mapped at its physical address:
    // this is called after `enable_paging`, and before the cores have maps of their own.
    unsafe { claim(&HEAP.control, at, bytes) };
    Ok(())
}

/// Makes sure that the control core's part has `bytes` in one piece, and gives it that much more memory if not. Call it where
/// [`extend`] may be called.
///
/// # Errors
/// There is not so much memory.
pub fn ensure_room(bytes: usize) -> Result<(), OutOfMemory> {
    has_room(bytes).or_else(|NoMemory| extend((bytes as u64).saturating_add(OVERHEAD)))
}

/// Whether this core can allocate `bytes` in one piece. Only the control core allocates more than a few bytes while guests run,
/// so it finds them there.
///
/// # Errors
/// It cannot.
pub fn has_room(bytes: usize) -> Result<(), NoMemory> {
    Vec::<u8>::new().try_reserve_exact(bytes).map_err(|_| NoMemory)
}

/// The size of all parts together, and how much of them is in use.
pub fn usage() -> control::Heap {
    of_parts([&HEAP.control, &HEAP.everybody].into_iter().chain(&HEAP.guests))
}

/// The same of everybody's part.
pub fn usage_of_everybody() -> control::Heap {
    of_parts(core::iter::once(&HEAP.everybody))
}

fn of_parts<'a>(parts: impl Iterator<Item = &'a Part>) -> control::Heap {
    parts.fold(control::Heap { size: 0, used: 0 }, |all, part| {
        let counters = *part.lock().counters();
        control::Heap {
            size: all.size.saturating_add(counters.claimed_bytes as u64),
            used: all.used.saturating_add(counters.claimed_bytes.saturating_sub(counters.available_bytes) as u64),
        }
    })
}

/// Makes the part of the guest with this number. Call it once for a guest. Returns the part's memory.
///
/// # Errors
/// There is no memory for it.
pub fn make_part(guest: usize, bytes: u64) -> Result<Range, OutOfMemory> {
    let start = mem::pages(bytes)?;
    let range = (start, start.saturating_add(bytes.next_multiple_of(PAGE)));
    if let (Some(part), Some([first, end])) = (HEAP.guests.get(guest), HEAP.ranges.get(guest)) {
        first.store(range.0, Ordering::Relaxed);
        end.store(range.1, Ordering::Relaxed);
        // SAFETY: `pages` returns mapped memory that nobody else has. From now on only this part uses it.
        unsafe { claim(part, start, bytes) };
    }
    Ok(range)
}

/// Whether the heap has its memory.
pub fn is_ready() -> bool {
    FRAMES.try_lock().is_none_or(|f| f.used_by_host() >= BYTES)
}

/// Logs it, once, if an allocation did not fit in its guest's part. The control core calls it once a tick.
pub fn tell_full() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if FULL.load(Ordering::Relaxed) && !TOLD.swap(true, Ordering::Relaxed) {
        log::warn!("a guest's part of the heap is full: memory that all guests' cores map is used for it from now on");
    }
}

/// Gives memory to a part.
///
/// # Safety
/// It is mapped at its physical address, and nobody else uses it.
unsafe fn claim(part: &Part, at: u64, bytes: u64) {
    // SAFETY: the caller's promise.
    unsafe { part.lock().claim(ptr::with_exposed_provenance_mut(at as usize), bytes as usize) };
}

/// This core allocates from one part as long as this lives.
pub struct For {
    /// The owner before.
    before: usize,
}

impl For {
    /// From a guest's part. The core maps that part.
    pub fn guest(number: usize) -> Self {
        Self::owner(number)
    }

    /// From everybody's part: what a guest's core uses while it does not map its guest, or what several guests' cores use.
    pub fn everybody() -> Self {
        Self::owner(EVERYBODY)
    }

    /// From the control core's part. Only the control core may call it.
    pub fn control() -> Self {
        Self::owner(CONTROL)
    }

    fn owner(owner: usize) -> Self {
        let core = OWNERS.get(number::current());
        Self { before: core.map_or(owner, |core| core.swap(owner, Ordering::Relaxed)) }
    }
}

impl Drop for For {
    fn drop(&mut self) {
        if let Some(core) = OWNERS.get(number::current()) {
            core.store(self.before, Ordering::Relaxed);
        }
    }
}
