//! The way of frames and requests by stages: how long each stage took, where the trace has the events at both its ends.
//!
//! | stage | from | to | paired by |
//! |---|---|---|---|
//! | `visit to completion` | begin of a visit | requests published | engine, slot, queue: the next one |
//! | `completion to signal` | requests published, guest told | interrupt or kick sent to a vCPU's core | engine, guest: the next one |
//! | `completion to taken` | requests published | the engine's next look at which the driver had taken them | one record |
//! | `kick to injection` | kick sent to a vCPU's core | an interrupt injected | guest, vCPU: the next one |
//! | `frame in to switched` | frame taken | destination chosen | engine, slot, length: in their order |
//! | `frame switched to out` | destination chosen | frame given to a port | engine, slot of that port, length: in their order |
//! | `frame switched to NIC` | uplink chosen | frame given to a NIC | engine, length: in their order |
//! | `disk` | request submitted | request completed | engine, slot, queue, number |
//!
//! When the driver has taken requests is an upper bound. Not all of them have such a record.
//!
//! A begin that comes before the end of the one before it takes its place. A kick may have another cause than a completion.
//! An interrupt that needs no exit (`posted`, `direct`, `eli`) is not seen any more once it was sent.
//!
//! Records do not name frames. Frames of one port with the same length count as taken in their order. What waits on a core
//! is forgotten at a loss of that core's records, because its other end may be among those. A kick is forgotten at a loss of
//! any core's records, because any core may have injected its interrupt.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;
use trace::Kind;
use trace::frames::{Destination, FIRST_UPLINK};
use trace::record::{INTERRUPT, NOTIFIED};

use super::row::Row;
use crate::model::{Event, Trace, amount, slot};
use crate::statistics::Times;

/// A stage.
#[derive(Debug, Serialize)]
pub struct Stage {
    /// Its name: what it is from and to.
    pub stage: &'static str,
    /// The figures.
    #[serde(flatten)]
    pub row: Row,
    /// Beginnings whose end is not in the trace.
    pub without_end: u64,
}

/// The stages, in their order on the way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    VisitCompletion,
    CompletionSignal,
    CompletionTaken,
    KickInjection,
    FrameInSwitched,
    FrameSwitchedOut,
    FrameSwitchedNic,
    Disk,
}

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Self::VisitCompletion => "visit to completion",
            Self::CompletionSignal => "completion to signal",
            Self::CompletionTaken => "completion to taken",
            Self::KickInjection => "kick to injection",
            Self::FrameInSwitched => "frame in to switched",
            Self::FrameSwitchedOut => "frame switched to out",
            Self::FrameSwitchedNic => "frame switched to NIC",
            Self::Disk => "disk",
        }
    }
}

/// Any core may end the stage.
const ANY_CORE: u32 = u32::MAX;

/// What pairs the two ends of a stage: the stage, the core that waits or [`ANY_CORE`], and two numbers.
type Key = (Way, u32, u64, u64);

/// A begin that waits for its end.
#[derive(Clone, Copy)]
struct Begin {
    /// TSC.
    at: u64,
    /// Losses of its core before it.
    losses: u64,
}

/// Begins that wait for their ends, and what was measured.
#[derive(Default)]
struct Ways {
    waiting: BTreeMap<Key, VecDeque<Begin>>,
    times: BTreeMap<Way, Times>,
    without_end: BTreeMap<Way, u64>,
    /// Losses of each core so far, and under [`ANY_CORE`] of all. What waited before one is forgotten.
    losses: BTreeMap<u32, u64>,
}

impl Ways {
    /// Something begins. `queue`: others that wait stay, and end before it. Otherwise it takes the place of what waits.
    fn begin(&mut self, key: Key, at: u64, queue: bool) {
        let losses = self.losses_of(key.1);
        let waiting = self.waiting.entry(key).or_default();
        if !queue {
            add(&mut self.without_end, key.0, waiting.len() as u64);
            waiting.clear();
        }
        waiting.push_back(Begin { at, losses });
    }

    /// What waits the longest with this key ends. Without effect if nothing waits.
    fn end(&mut self, key: Key, at: u64) {
        let losses = self.losses_of(key.1);
        let Some(waiting) = self.waiting.get_mut(&key) else { return };
        while let Some(begin) = waiting.pop_front() {
            if begin.losses == losses {
                let ticks = at.saturating_sub(begin.at);
                self.times.entry(key.0).or_default().add(u32::try_from(ticks).unwrap_or(u32::MAX));
                return;
            }
            add(&mut self.without_end, key.0, 1);
        }
    }

    fn losses_of(&self, core: u32) -> u64 {
        self.losses.get(&core).copied().unwrap_or_default()
    }

    /// Records of this core are missing here.
    fn lose(&mut self, core: u32) {
        for key in [core, ANY_CORE] {
            let losses = self.losses.entry(key).or_default();
            *losses = losses.saturating_add(1);
        }
    }
}

fn add(counts: &mut BTreeMap<Way, u64>, way: Way, more: u64) {
    let count = counts.entry(way).or_default();
    *count = count.saturating_add(more);
}

/// The stages that a trace has. Stages without a pair are left out.
pub(super) fn of(trace: &Trace) -> Vec<Stage> {
    let mut ways = Ways::default();
    let mut losses: BTreeMap<u32, VecDeque<u64>> = BTreeMap::new();
    for loss in &trace.losses {
        losses.entry(loss.core).or_default().extend(loss.before);
    }
    for event in &trace.events {
        if let Some(waiting) = losses.get_mut(&event.core) {
            while waiting.pop_front_if(|at| *at <= event.record.tsc).is_some() {
                ways.lose(event.core);
            }
        }
        take(&mut ways, event);
    }
    for (key, waiting) in &ways.waiting {
        add(&mut ways.without_end, key.0, waiting.len() as u64);
    }
    let without_end = ways.without_end;
    ways.times
        .into_iter()
        .map(|(way, times)| Stage {
            stage: way.name(),
            row: Row::alone(times),
            without_end: without_end.get(&way).copied().unwrap_or_default(),
        })
        .collect()
}

fn take(ways: &mut Ways, event: &Event) {
    let (core, record) = (event.core, &event.record);
    let at = record.tsc;
    let queue = (u64::from(slot(record)), u64::from(record.unit));
    let frame = (u64::from(slot(record)), u64::from(amount(record)));
    match record.known_kind() {
        Some(Kind::Visit) => ways.begin((Way::VisitCompletion, core, queue.0, queue.1), at, false),
        Some(Kind::Completion) => {
            ways.end((Way::VisitCompletion, core, queue.0, queue.1), at);
            if record.code == NOTIFIED {
                ways.begin((Way::CompletionSignal, core, record.guest.into(), 0), at, false);
            }
        }
        Some(Kind::Taken) => {
            let ticks = u32::try_from(record.b).unwrap_or(u32::MAX);
            ways.times.entry(Way::CompletionTaken).or_default().add(ticks);
        }
        Some(Kind::Delivery | Kind::Kick) => {
            ways.end((Way::CompletionSignal, core, record.guest.into(), 0), at);
            if record.known_kind() == Some(Kind::Kick) {
                ways.begin((Way::KickInjection, ANY_CORE, record.guest.into(), record.unit.into()), at, false);
            }
        }
        Some(Kind::Injection) if record.b == INTERRUPT => {
            ways.end((Way::KickInjection, ANY_CORE, record.guest.into(), record.unit.into()), at);
        }
        Some(Kind::FrameIn) => ways.begin((Way::FrameInSwitched, core, frame.0, frame.1), at, true),
        Some(Kind::FrameSwitched) => {
            ways.end((Way::FrameInSwitched, core, frame.0, frame.1), at);
            match Destination::from_b(record.b) {
                Some(Destination::Port(to)) => ways.begin((Way::FrameSwitchedOut, core, to.into(), frame.1), at, true),
                // The record does not say which uplink.
                Some(Destination::Uplink) => ways.begin((Way::FrameSwitchedNic, core, 0, frame.1), at, true),
                // A frame for several ports, or for nobody, has no such stage.
                Some(Destination::Several | Destination::Nobody) | None => {}
            }
        }
        Some(Kind::FrameOut) if frame.0 >= FIRST_UPLINK.into() => {
            ways.end((Way::FrameSwitchedNic, core, 0, frame.1), at);
        }
        Some(Kind::FrameOut) => ways.end((Way::FrameSwitchedOut, core, frame.0, frame.1), at),
        Some(Kind::DiskSubmitted) => ways.begin((Way::Disk, core, record.a, queue.1), at, false),
        Some(Kind::DiskCompleted) => ways.end((Way::Disk, core, record.a, queue.1), at),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use trace::Record;
    use trace::record::{BY_NMI, DIRECT, NON_MASKABLE, SUPPRESSED};

    use super::*;
    use crate::clock::Clock;
    use crate::model::{Damage, Loss, Names};

    fn stages(records: &[(u32, Record)], losses: Vec<Loss>) -> Vec<(&'static str, u64, u32, u64)> {
        let events = records.iter().zip(0..).map(|(&(core, record), number)| Event { core, number, record }).collect();
        let trace = Trace::new(Clock::new(1, None), Names::default(), events, losses, Damage::default());
        of(&trace).iter().map(|s| (s.stage, s.row.samples, s.row.max, s.without_end)).collect()
    }

    fn at(tsc: u64, kind: Kind, code: u8, a: u64) -> Record {
        Record { code, a, guest: 0, ..Record::new(kind, tsc) }
    }

    #[test]
    fn a_completion_is_followed_to_the_injection() {
        let records = [
            (1, at(100, Kind::Visit, 0, 3 << 32 | 2)),
            (1, at(110, Kind::Completion, NOTIFIED, 3 << 32)),
            (1, at(112, Kind::Kick, BY_NMI, 0)),
            (2, Record { b: NON_MASKABLE, ..at(130, Kind::Injection, 2, 0) }),
            (2, at(150, Kind::Injection, 0x41, 0)),
        ];
        let found = stages(&records, Vec::new());
        assert_eq!(
            found,
            [("visit to completion", 1, 10, 0), ("completion to signal", 1, 2, 0), ("kick to injection", 1, 38, 0)]
        );
    }

    #[test]
    fn a_suppressed_interrupt_and_one_without_exit_end_the_way() {
        let records = [
            (1, at(100, Kind::Visit, 0, 0)),
            (1, at(105, Kind::Completion, SUPPRESSED, 0)),
            (1, at(200, Kind::Delivery, DIRECT, 0x41)),
            (2, at(210, Kind::Injection, 0x41, 0)),
        ];
        assert_eq!(stages(&records, Vec::new()), [("visit to completion", 1, 5, 0)]);
    }

    #[test]
    fn a_record_of_what_was_taken_is_a_stage_of_its_own() {
        let records = [
            (1, at(100, Kind::Completion, NOTIFIED, 3 << 32)),
            (1, Record { b: 70, ..at(170, Kind::Taken, 0, 3 << 32) }),
        ];
        assert_eq!(stages(&records, Vec::new()), [("completion to taken", 1, 70, 0)]);
    }

    #[test]
    fn an_end_of_another_queue_vector_or_engine_is_not_taken() {
        let visit = at(100, Kind::Visit, 0, 0);
        let completion = at(105, Kind::Completion, SUPPRESSED, 0);
        assert_eq!(stages(&[(1, visit), (1, Record { unit: 1, ..completion })], Vec::new()), []);
        assert_eq!(stages(&[(1, visit), (1, Record { a: 1 << 32, ..completion })], Vec::new()), []);
        assert_eq!(stages(&[(1, visit), (3, completion)], Vec::new()), []);
    }

    #[test]
    fn frames_of_one_length_are_taken_in_their_order() {
        let frame = |tsc, kind, length: u64| (1, at(tsc, kind, 0, 2 << 32 | length));
        let switched = |tsc, length: u64, to: Destination| {
            (1, Record { b: to.to_b(), ..at(tsc, Kind::FrameSwitched, 0, 2 << 32 | length) })
        };
        let records = [
            frame(10, Kind::FrameIn, 60),
            frame(11, Kind::FrameIn, 60),
            frame(12, Kind::FrameIn, 1500),
            switched(20, 60, Destination::Port(5)),
            switched(31, 60, Destination::Port(5)),
            (1, at(33, Kind::FrameOut, 0, 5 << 32 | 60)),
            // What leaves the machine is given to a NIC. What comes from there is given to a port.
            frame(40, Kind::FrameIn, 1500),
            switched(42, 1500, Destination::Uplink),
            (1, at(47, Kind::FrameOut, 0, u64::from(FIRST_UPLINK) << 32 | 1500)),
            (1, at(50, Kind::FrameIn, 0, u64::from(FIRST_UPLINK) << 32 | 90)),
            (
                1,
                Record {
                    b: Destination::Port(5).to_b(),
                    ..at(51, Kind::FrameSwitched, 0, u64::from(FIRST_UPLINK) << 32 | 90)
                },
            ),
            (1, at(53, Kind::FrameOut, 0, 5 << 32 | 90)),
        ];
        assert_eq!(
            stages(&records, Vec::new()),
            [
                ("frame in to switched", 4, 30, 1),
                ("frame switched to out", 2, 13, 1),
                ("frame switched to NIC", 1, 5, 0)
            ]
        );
    }

    #[test]
    fn a_loss_ends_what_waited_on_that_core_only() {
        let disk = |core, tsc, kind| (core, at(tsc, kind, 0, 7));
        let records = [
            disk(1, 10, Kind::DiskSubmitted),
            disk(2, 11, Kind::DiskSubmitted),
            disk(1, 50, Kind::DiskCompleted),
            disk(2, 51, Kind::DiskCompleted),
        ];
        assert_eq!(stages(&records, Vec::new()), [("disk", 2, 40, 0)]);
        let loss = Loss { core: 1, number: 1, records: 5, before: Some(50) };
        assert_eq!(stages(&records, vec![loss]), [("disk", 1, 40, 1)]);
    }

    #[test]
    fn a_loss_on_any_core_ends_a_kick() {
        let records =
            [(1, at(10, Kind::Kick, BY_NMI, 0)), (2, at(90, Kind::Injection, 0x41, 0)), (1, at(91, Kind::Turn, 0, 0))];
        assert_eq!(stages(&records, Vec::new()), [("kick to injection", 1, 80, 0)]);
        for core in [1, 2] {
            let more = [
                (core, at(50, Kind::Turn, 0, 0)),
                (1, at(100, Kind::Kick, BY_NMI, 0)),
                (2, at(105, Kind::Injection, 0x41, 0)),
            ];
            let mut records = [&records[..], &more].concat();
            records.sort_by_key(|(_, record)| record.tsc);
            let loss = Loss { core, number: 1, records: 5, before: Some(50) };
            assert_eq!(stages(&records, vec![loss]), [("kick to injection", 1, 5, 1)], "core {core}");
        }
    }
}
