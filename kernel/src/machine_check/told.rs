//! What the cores tell the control core about errors. Any core tells, also from a machine check. Nobody waits.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use mca::{Error, Location, Status};

/// Errors that wait for the control core, at most.
const ENTRIES: usize = 64;
const FREE: u8 = 0;
const WRITING: u8 = 1;
const FULL: u8 = 2;

/// What follows from an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing: it is from before the start.
    LeftByFirmware,
    /// Nobody ends. A guest whose memory it is does not start again.
    Withhold,
    /// The guest whose memory it is ends, and does not start again.
    EndGuest,
    /// The machine stops. Nobody is told this, it is only printed.
    Stop,
}

/// An error, the core that found it, and what follows.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// Number of the core.
    pub core: usize,
    /// The error.
    pub error: Error,
    /// What follows.
    pub kind: Kind,
}

struct Entry {
    state: AtomicU8,
    /// Core, bank, kind, status, address, start and bytes of the location (0: none).
    words: [AtomicU64; 7],
}

static TOLD: [Entry; ENTRIES] =
    [const { Entry { state: AtomicU8::new(FREE), words: [const { AtomicU64::new(0) }; 7] } }; ENTRIES];

/// Tells an error. Returns false if too many wait.
pub fn tell(told: &Told) -> bool {
    let take =
        |entry: &&Entry| entry.state.compare_exchange(FREE, WRITING, Ordering::Acquire, Ordering::Relaxed).is_ok();
    let Some(entry) = TOLD.iter().find(take) else { return false };
    let Error { bank, status, location } = told.error;
    let (address, start, bytes) = location.map_or((0, 0, 0), |l| (l.address, l.start, l.bytes));
    let values = [told.core as u64, bank.into(), told.kind as u64, status.into_bits(), address, start, bytes];
    for (word, value) in entry.words.iter().zip(values) {
        word.store(value, Ordering::Relaxed);
    }
    entry.state.store(FULL, Ordering::Release);
    true
}

/// Gives everything that was told to `take`.
pub fn take_all(take: &mut impl FnMut(&Told)) {
    for entry in TOLD.iter().filter(|entry| entry.state.load(Ordering::Acquire) == FULL) {
        let [core, bank, kind, status, address, start, bytes] =
            entry.words.each_ref().map(|word| word.load(Ordering::Relaxed));
        entry.state.store(FREE, Ordering::Release);
        let kind = match kind {
            k if k == Kind::LeftByFirmware as u64 => Kind::LeftByFirmware,
            k if k == Kind::Withhold as u64 => Kind::Withhold,
            _ => Kind::EndGuest,
        };
        let location = (bytes != 0).then_some(Location { address, start, bytes });
        let error = Error { bank: bank as u8, status: Status::from_bits(status), location };
        take(&Told { core: core as usize, error, kind });
    }
}
