//! How long exits, turns and visits take: histograms that each core keeps of its own work, and the control core reads.
//!
//! A guest's core has a histogram for each reason of an exit, an engine's core one for each of [`Time`]. They are recorded while
//! the class `histograms` is on. Each time that it is switched on, a new period begins at zero.

use super::{Role, Traced, on, owned};
use crate::{arch::time, engines};
use ::control::{Durations, Latency, NoMemory, collect, copy};
use ::trace::{
    Classes,
    histogram::{Histogram, Totals},
};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use machine::reason::Reason;

/// The number of the period. Only the control core changes it.
static PERIOD: AtomicU64 = AtomicU64::new(0);

/// What takes time on an engine's core.
#[derive(Clone, Copy)]
pub enum Time {
    /// A turn that moved requests.
    BusyTurn,
    /// A turn that moved none.
    IdleTurn,
    /// A visit to a queue.
    Visit,
}

impl Time {
    const ALL: [Self; 3] = [Self::BusyTurn, Self::IdleTurn, Self::Visit];

    const fn name(self) -> &'static str {
        match self {
            Self::BusyTurn => "busy-turn",
            Self::IdleTurn => "idle-turn",
            Self::Visit => "visit",
        }
    }
}

/// Histograms of a core: of a guest's if `is_guest`, otherwise of the control core or an engine's.
pub const fn histograms(is_guest: bool) -> u64 {
    if is_guest { Reason::ALL.len() as u64 } else { Time::ALL.len() as u64 }
}

/// Begins a period: everything is recorded anew.
pub fn begin() {
    PERIOD.store(PERIOD.load(Relaxed).wrapping_add(1).max(1), Relaxed);
}

/// Records how many ticks an exit took.
#[inline]
pub fn exit(histograms: &[Histogram], reason: Reason, ticks: u64) {
    if let Some(histogram) = histograms.get(reason as usize) {
        histogram.record(PERIOD.load(Relaxed), ticks);
    }
}

/// Records how many ticks something took on the engine's core `core`, which calls it.
pub fn engine(core: usize, what: Time, ticks: u64) {
    if let Some(histogram) = owned(core).and_then(|owned| owned.histograms.get(what as usize)) {
        histogram.record(PERIOD.load(Relaxed), ticks);
    }
}

/// Adds up the histograms with this number of these cores.
fn totals(cores: impl Iterator<Item = usize>, number: usize, period: u64) -> Totals {
    let mut totals = Totals::default();
    let histograms = cores.filter_map(|core| owned(core)?.histograms.get(number));
    histograms.for_each(|histogram| totals.add(histogram, period));
    totals
}

/// Returns what the cores have recorded in this period, for the request `id`: exits by guest and reason, then the engines'.
///
/// # Errors
/// There is no memory for it.
pub(super) fn read(cores: &[Traced], id: Option<u64>) -> Result<Latency, NoMemory> {
    let period = PERIOD.load(Relaxed);
    // The cores of a guest follow each other, but another guest's core may be between them.
    let is_first = |at: usize, role: Role| cores.iter().take(at).all(|before| before.role != role);
    let guests = cores.iter().enumerate().filter(|&(at, traced)| match traced.role {
        Role::Guest(_) => is_first(at, traced.role),
        Role::Control | Role::Engine => false,
    });
    let exits = guests.flat_map(|(_, traced)| {
        let own = move || cores.iter().filter(|other| other.role == traced.role).map(|other| other.core);
        let of = move |(number, reason): (usize, &Reason)| Durations::of(reason.name(), &totals(own(), number, period));
        let named = |durations| Ok(Durations { guest: Some(copy(&traced.user)?), ..durations });
        Reason::ALL.iter().enumerate().filter_map(of).map(named)
    });
    let engines = engines::all().iter().flat_map(|engine| {
        let of = move |what: Time| {
            Durations::of(what.name(), &totals(core::iter::once(engine.core()), what as usize, period))
        };
        let named = |durations| Ok(Durations { engine: Some(engine.id() as u64), ..durations });
        Time::ALL.into_iter().filter_map(of).map(named)
    });
    Ok(Latency { id, on: on(Classes::HISTOGRAMS), tsc_hz: time::rates().tsc, rows: collect(exits.chain(engines))? })
}
