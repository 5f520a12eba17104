//! What a trace says: exits by guest and reason, the engines' turns and visits, the stages of frames and requests.
//!
//! The columns of exits are those of `perf kvm stat`. Times are cycles of the TSC in the report itself and become
//! microseconds when it is printed, so that sums from the records can be compared exactly.

pub mod engine;
pub mod exits;
pub mod journey;
pub mod rare;
pub mod rips;
pub mod row;
pub mod text;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::clock::Clock;
use crate::model::Trace;
use crate::resolve::{Note, Resolver};

/// A report. Its JSON has the same keys.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Cycles a millisecond.
    pub tsc_khz: u64,
    /// Whether the trace named that frequency. False: cycles are shown as nanoseconds.
    pub tsc_known: bool,
    /// Cycles from the first record to the last.
    pub cycles: u64,
    /// Records that are there.
    pub records: u64,
    /// Records that are missing. Everything below is of the others.
    pub lost: u64,
    /// Records that are missing, by core.
    pub lost_by_core: BTreeMap<u32, u64>,
    /// Captured frames that are there. `export` writes them.
    pub captured: u64,
    /// Captured frames that are missing.
    pub captured_lost: u64,
    /// Bytes that were no sound part of a trace.
    pub damaged_bytes: u64,
    /// There is one record for so many exits of a vCPU for the same reason: what follows of exits is of those. None: that has
    /// changed in the trace.
    pub exits_one_of: Option<u32>,
    /// Whether the records of exits have the guest's RIP.
    pub has_rips: bool,
    /// Exits by guest.
    pub guests: Vec<exits::Guest>,
    /// What is known of guests' symbols, if some were given.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub symbols: Vec<Note>,
    /// Where exits came from, if asked for and the trace has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rips: Option<Vec<rips::Place>>,
    /// Engines by core.
    pub engines: Vec<engine::Engine>,
    /// Stages of frames and requests.
    pub journey: Vec<journey::Stage>,
    /// Frames that were dropped, by port and cause.
    pub drops: Vec<rare::Drops>,
    /// States of guests, NMIs of the machine and machine checks, in the order of time.
    pub told: Vec<rare::Told>,
}

impl Report {
    /// Reports on a trace. `rips`: also where exits came from, at most so many places a guest and reason.
    #[must_use]
    pub fn new(trace: &Trace, resolver: &Resolver, rips: Option<usize>) -> Self {
        let mut lost_by_core: BTreeMap<u32, u64> = BTreeMap::new();
        for loss in &trace.losses {
            let lost = lost_by_core.entry(loss.core).or_default();
            *lost = lost.saturating_add(loss.records);
        }
        Self {
            tsc_khz: trace.clock.khz(),
            tsc_known: trace.clock.is_known(),
            cycles: trace.ticks(),
            records: trace.events.len() as u64,
            lost: trace.lost(),
            lost_by_core,
            captured: trace.captures.len() as u64,
            captured_lost: trace.captures_lost,
            damaged_bytes: trace.damage.bytes,
            exits_one_of: trace.exits_one_of(),
            has_rips: trace.has_rips(),
            guests: exits::of(trace),
            symbols: resolver.notes(),
            rips: rips.filter(|_| trace.has_rips()).map(|most| rips::of(trace, resolver, most)),
            engines: engine::of(trace),
            journey: journey::of(trace),
            drops: rare::drops(trace),
            told: rare::told(trace),
        }
    }

    fn clock(&self) -> Clock {
        Clock::new(self.tsc_khz, None)
    }
}
