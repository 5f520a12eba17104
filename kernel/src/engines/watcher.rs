//! What sees an engine's turns, visits and completions: its profile (`watch on`), and the trace of its core.

use crate::{
    arch::CoreIndex,
    trace::{self, latency::Time},
};
use ::trace::{
    Captured, Classes, Kind, Record,
    frames::{Destination, FIRST_UPLINK_CAUSE, Fate, Port, write_batch},
    record::{BUSY, IDLE, NO_GUEST, NOTIFIED, SUPPRESSED},
};
use block::watch::DiskWatcher;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use engine::{
    observe::{Completion, Measured, Notification, Observer, QueueValue, Turn, Visit},
    profile::Profile,
    schedule::QueueId,
    slots::MAX_SLOTS,
};
use net::watch::{Batch, FrameWatcher, Seen, Step, UplinkStep};

/// The classes for which queues are followed.
const FOLLOWING: Classes = Classes::HISTOGRAMS.union(Classes::VISITS);

/// The observer of an engine.
pub struct Watcher {
    /// The engine's core.
    core: CoreIndex,
    /// What is counted while `watch` is on.
    pub profile: Profile,
    /// `watch` is on.
    watched: AtomicBool,
    /// `watch` has been on at any time.
    was_watched: AtomicBool,
    /// The guest of each slot's device.
    guests: [AtomicU8; MAX_SLOTS],
}

impl Watcher {
    /// Makes the observer of the engine on this core.
    pub fn new(core: CoreIndex) -> Self {
        Self {
            core,
            profile: Profile::new(),
            watched: AtomicBool::new(false),
            was_watched: AtomicBool::new(false),
            guests: [const { AtomicU8::new(NO_GUEST) }; MAX_SLOTS],
        }
    }

    /// Notes whose device is in a slot. Call it before the device is attached.
    pub fn set_guest(&self, slot: usize, guest: usize) {
        if let Some(place) = self.guests.get(slot) {
            place.store(trace::guest_number(Some(guest)), Relaxed);
        }
    }

    /// Switches the profile on or off.
    pub fn watch(&self, on: bool) {
        self.watched.store(on, Relaxed);
        self.was_watched.fetch_or(on, Relaxed);
    }

    /// Whether the profile has been on at any time.
    pub fn was_watched(&self) -> bool {
        self.was_watched.load(Relaxed)
    }

    /// Whether anything is to be observed now.
    pub fn is_needed(&self) -> bool {
        let classes = Classes::TURNS | Classes::IDLE_TURNS | Classes::VISITS | Classes::HISTOGRAMS;
        self.watched.load(Relaxed) || trace::on(classes)
    }

    fn write(&self, record: Record) {
        if let Some(ring) = trace::ring(self.core) {
            ring.write(record);
        }
    }

    /// The guest of the device in a slot.
    fn guest(&self, slot: usize) -> u8 {
        self.guests.get(slot).map_or(NO_GUEST, |guest| guest.load(Relaxed))
    }

    /// The port with a slot. There are fewer than 2^16.
    fn port(&self, slot: usize) -> Port {
        Port { slot: slot as u16, guest: self.guest(slot) }
    }

    /// An instant of the device in a slot.
    fn of_slot(&self, slot: usize, kind: Kind, tsc: u64) -> Record {
        let guest = self.guest(slot);
        Record { guest, a: (slot as u64) << 32, ..Record::new(kind, tsc) }
    }

    /// An instant of a queue, with the slot of its device.
    fn of_queue(&self, queue: QueueId, kind: Kind, tsc: u64) -> Record {
        // A device has fewer than 256 queues.
        Record { unit: queue.queue() as u8, ..self.of_slot(queue.slot(), kind, tsc) }
    }
}

impl FrameWatcher for Watcher {
    fn dropped(&self, port: usize, cause: u8, bytes: u32) {
        if trace::on(Classes::DROPS) {
            let mut record = self.of_slot(port, Kind::FrameDropped, crate::arch::time::tsc());
            record.code = cause;
            record.a |= u64::from(bytes);
            self.write(record);
        }
    }

    fn seen(&self, frame: &Seen<'_>) {
        let tsc = frame.at.unwrap_or_else(crate::arch::time::tsc);
        let Port { slot, guest } = self.port(frame.port);
        let mut captured = Captured::new(tsc, slot, frame.way, frame.len);
        (captured.guest, captured.dropped) = (guest, frame.dropped);
        trace::capture(self.core, captured, frame.bytes);
    }

    fn step(&self, step: Step, port: usize, len: u32) {
        let port = self.port(port);
        let now = crate::arch::time::tsc;
        self.write(match step {
            Step::Taken(at) => port.record(Kind::FrameIn, at, len),
            Step::Switched(to) => Record { b: to.to_b(), ..port.record(Kind::FrameSwitched, now(), len) },
            Step::Given => port.record(Kind::FrameOut, now(), len),
        });
    }

    fn batch(&self, batch: &Batch<'_>) {
        let Some(ring) = trace::ring(self.core) else { return };
        let fate = match batch.to {
            None => Fate::Refused,
            Some(Destination::Port(to)) if batch.given => Fate::Given(self.port(to.into())),
            Some(to) => Fate::Switched(to),
        };
        let stamps = (batch.at, crate::arch::time::tsc());
        write_batch(ring, self.port(batch.from), fate, stamps, batch.lengths);
    }

    fn at_uplink(&self, uplink: usize, step: UplinkStep, lengths: &[u32]) {
        let now = crate::arch::time::tsc;
        match step {
            UplinkStep::Received(at) => {
                self.write_at_uplink(uplink, |port, len| port.record(Kind::FrameIn, at, len), lengths);
            }
            UplinkStep::Switched(to) => {
                let (at, b) = (now(), to.to_b());
                let record = |port: Port, len| Record { b, ..port.record(Kind::FrameSwitched, at, len) };
                self.write_at_uplink(uplink, record, lengths);
            }
            UplinkStep::Given => {
                let at = now();
                self.write_at_uplink(uplink, |port, len| port.record(Kind::FrameOut, at, len), lengths);
            }
            UplinkStep::Dropped(drop) if trace::on(Classes::DROPS) => {
                let (at, code) = (now(), FIRST_UPLINK_CAUSE | drop as u8);
                let record = |port: Port, len| Record { code, ..port.record(Kind::FrameDropped, at, len) };
                self.write_at_uplink(uplink, record, lengths);
            }
            UplinkStep::Dropped(_) => {}
        }
    }
}

impl Watcher {
    /// Writes a record of each frame at an uplink.
    fn write_at_uplink(&self, uplink: usize, record: impl Fn(Port, u32) -> Record, lengths: &[u32]) {
        // There are fewer than 256.
        let port = Port::uplink(uplink as u8);
        lengths.iter().for_each(|&len| self.write(record(port, len)));
    }
}

impl DiskWatcher for Watcher {
    fn request(&self, seen: &block::watch::Seen) {
        let (kind, code, b) = match seen.step {
            block::watch::Step::Submitted { kind, sector } => (Kind::DiskSubmitted, kind, sector),
            block::watch::Step::Completed { status, bytes } => (Kind::DiskCompleted, status, bytes),
        };
        let mut record = self.of_slot(seen.slot, kind, crate::arch::time::tsc());
        // A device has fewer than 256 queues.
        (record.unit, record.code, record.b) = (seen.queue as u8, code, b);
        record.a |= u64::from(seen.number);
        self.write(record);
    }
}

impl Observer for Watcher {
    fn turn(&self, turn: &Turn) {
        if self.watched.load(Relaxed) {
            self.profile.turn(turn);
        }
        if trace::on(Classes::HISTOGRAMS) {
            let what = if turn.requests == 0 { Time::IdleTurn } else { Time::BusyTurn };
            trace::engine_time(self.core, what, turn.end.wrapping_sub(turn.begin));
        }
        let (class, code) = if turn.requests == 0 { (Classes::IDLE_TURNS, IDLE) } else { (Classes::TURNS, BUSY) };
        if trace::on(class) {
            let record = Record { code, a: turn.requests.into(), ..Record::new(Kind::Turn, turn.begin) };
            self.write(record.until(turn.end));
        }
    }

    fn visit(&self, visit: &Visit) {
        if self.watched.load(Relaxed) {
            self.profile.visit(visit);
        }
        if trace::on(Classes::HISTOGRAMS) {
            trace::engine_time(self.core, Time::Visit, visit.end.wrapping_sub(visit.begin));
        }
        if trace::on(Classes::VISITS) {
            let mut record = self.of_queue(visit.queue, Kind::Visit, visit.begin).until(visit.end);
            record.a |= u64::from(visit.requests);
            record.b = visit.bytes;
            self.write(record);
        }
    }

    fn period(&self) -> u64 {
        if trace::on(FOLLOWING) { trace::latency::FOLLOWED | trace::latency::period() } else { 0 }
    }

    /// What is measured is known where it is called, so little is left of it there.
    #[inline(always)]
    fn queue(&self, value: &QueueValue) {
        if trace::on(Classes::HISTOGRAMS) {
            trace::queue_value(self.core, value);
        }
        if value.what == Measured::Taken && trace::on(Classes::VISITS) {
            self.write(Record { b: value.value, ..self.of_queue(value.queue, Kind::Taken, value.at) });
        }
    }

    fn completion(&self, completion: &Completion) {
        if self.watched.load(Relaxed) {
            self.profile.completion(completion);
        }
        if trace::on(Classes::VISITS) {
            let mut record = self.of_queue(completion.queue, Kind::Completion, crate::arch::time::tsc());
            record.code = match completion.notification {
                Notification::Interrupt => NOTIFIED,
                Notification::Suppressed => SUPPRESSED,
            };
            self.write(record);
        }
    }
}
