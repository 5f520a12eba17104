//! Exports a trace in Perfetto's format, for <https://ui.perfetto.dev> and its trace processor.
//!
//! Tracks: `cores` with one track a core, `guests` with one a guest and below it one a vCPU, `queues` with one a queue,
//! `ports` with one a port. A record with a span is a slice, any other is an instant. Each record is on the track of its
//! core, and on that of its vCPU, queue or port as well. Time stamps are ns since the TSC was 0.

pub mod nest;
pub mod schema;

use std::collections::BTreeMap;
use std::io::{self, Write};

use prost::Message as _;
use trace::Kind;
use trace::record::NO_GUEST;

use self::nest::{Interval, Step};
use self::schema::{Annotation, Clocks, Data, EventType, Packet, Track, TrackEvent, Value};
use super::json::meaning;
use crate::model::{Event, Loss, Trace, amount, slot};

/// All packets are of one sequence: the writer of the file.
const SEQUENCE: u32 = 1;

/// A track. The order is that of the viewer, and of the numbers in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Cores,
    Core(u32),
    Guests,
    Guest(u8),
    Vcpu(u8, u8),
    Queues,
    /// Core of the engine, slot, queue.
    Queue(u32, u32, u8),
    Ports,
    /// Core of the engine, slot, port.
    Port(u32, u32, u8),
}

impl Place {
    fn parent(self) -> Option<Self> {
        match self {
            Self::Cores | Self::Guests | Self::Queues | Self::Ports => None,
            Self::Core(_) => Some(Self::Cores),
            Self::Guest(_) => Some(Self::Guests),
            Self::Vcpu(guest, _) => Some(Self::Guest(guest)),
            Self::Queue(..) => Some(Self::Queues),
            Self::Port(..) => Some(Self::Ports),
        }
    }

    fn name(self, trace: &Trace) -> String {
        let names = &trace.names;
        match self {
            Self::Cores => "cores".to_owned(),
            Self::Core(core) => names.core(core),
            Self::Guests => "guests".to_owned(),
            Self::Guest(guest) => names.guest(guest),
            Self::Vcpu(guest, unit) => format!("{} vCPU {unit}", names.guest(guest)),
            Self::Queues => "queues".to_owned(),
            Self::Queue(core, slot, unit) => {
                format!("{} queue {unit}, engine on core {core}", names.device(core, slot))
            }
            Self::Ports => "ports".to_owned(),
            Self::Port(core, slot, unit) => format!("{} port {unit}, engine on core {core}", names.device(core, slot)),
        }
    }

    /// Where else than on its core's track an event is.
    fn of(event: &Event) -> Option<Self> {
        let record = &event.record;
        let guest = (record.guest != NO_GUEST).then_some(record.guest);
        match record.known_kind()? {
            Kind::Exit | Kind::Entry | Kind::Injection | Kind::Delivery | Kind::Kick => {
                guest.map(|guest| Self::Vcpu(guest, record.unit))
            }
            Kind::Life => guest.map(Self::Guest),
            Kind::Visit | Kind::Completion | Kind::Taken | Kind::DiskSubmitted | Kind::DiskCompleted => {
                Some(Self::Queue(event.core, slot(record), record.unit))
            }
            Kind::FrameIn | Kind::FrameSwitched | Kind::FrameOut | Kind::FrameDropped => {
                Some(Self::Port(event.core, slot(record), record.unit))
            }
            Kind::Turn | Kind::Moved | Kind::Nmi | Kind::MachineCheck => None,
        }
    }
}

/// Something on a track.
#[derive(Clone, Copy)]
enum Item<'a> {
    Event(&'a Event),
    Loss(&'a Loss),
}

impl Item<'_> {
    fn interval(&self, trace: &Trace) -> Interval {
        let clock = &trace.clock;
        match self {
            Self::Event(event) => {
                let (begin, span) = (event.record.tsc, event.record.span);
                let end = clock.nanoseconds(begin.saturating_add(u64::from(span)));
                Interval { begin: clock.nanoseconds(begin), end, instant: span == 0 }
            }
            Self::Loss(loss) => {
                let at = clock.nanoseconds(loss.before.unwrap_or_default());
                Interval { begin: at, end: at, instant: true }
            }
        }
    }
}

/// Writes the trace. Every packet is encoded on its own; the file's size is about 100 bytes a record and track.
///
/// # Errors
/// `out` fails.
pub fn write(trace: &Trace, out: &mut impl Write) -> io::Result<()> {
    let mut tracks: BTreeMap<Place, Vec<Item<'_>>> = BTreeMap::new();
    for event in &trace.events {
        tracks.entry(Place::Core(event.core)).or_default().push(Item::Event(event));
        if let Some(place) = Place::of(event) {
            tracks.entry(place).or_default().push(Item::Event(event));
        }
    }
    for loss in trace.losses.iter().filter(|loss| loss.before.is_some()) {
        tracks.entry(Place::Core(loss.core)).or_default().push(Item::Loss(loss));
    }
    let mut parents: Vec<Place> = tracks.keys().copied().collect();
    while let Some(place) = parents.pop() {
        if let Some(parent) = place.parent() {
            tracks.entry(parent).or_default();
            parents.push(parent);
        }
    }
    let numbers: BTreeMap<Place, u64> = tracks.keys().copied().zip(1..).collect();

    packet(first(trace), out)?;
    for (&place, &number) in &numbers {
        let track = Track {
            uuid: Some(number),
            name: Some(place.name(trace)),
            parent_uuid: place.parent().and_then(|parent| numbers.get(&parent).copied()),
            child_ordering: Some(schema::EXPLICIT),
            rank: i32::try_from(number).ok(),
        };
        packet(Packet { data: Some(Data::Track(track)), ..Packet::default() }, out)?;
    }
    for (place, items) in &tracks {
        let number = numbers.get(place).copied().unwrap_or_default();
        let intervals: Vec<Interval> = items.iter().map(|item| item.interval(trace)).collect();
        nest::walk(&intervals, |step| packet(of_step(step, items, number, trace), out))?;
    }
    Ok(())
}

/// The first packet: nothing of another writer is to be remembered. With the wall clock, if it is known.
fn first(trace: &Trace) -> Packet {
    let at = trace.events.first().map_or(0, |event| trace.clock.nanoseconds(event.record.tsc));
    let data = trace.clock.wall_at_zero().map(|wall| {
        let clock = |id, timestamp| schema::Clock { clock_id: Some(id), timestamp: Some(timestamp) };
        Data::Clocks(Clocks {
            clocks: vec![clock(schema::CLOCK, at), clock(schema::WALL_CLOCK, wall.saturating_add(at))],
        })
    });
    Packet {
        timestamp: Some(at),
        first: Some(true),
        sequence_flags: Some(schema::STATE_CLEARED),
        data,
        ..Packet::default()
    }
}

/// Writes one packet.
fn packet(mut packet: Packet, out: &mut impl Write) -> io::Result<()> {
    packet.sequence = Some(SEQUENCE);
    out.write_all(&schema::Trace { packet: vec![packet] }.encode_to_vec())
}

fn of_step(step: Step, items: &[Item<'_>], track: u64, trace: &Trace) -> Packet {
    let (at, kind, which, cut) = match step {
        Step::Begin { which, at, cut } => (at, EventType::SliceBegin, Some(which), cut),
        Step::Instant { which, at } => (at, EventType::Instant, Some(which), false),
        Step::End { at } => (at, EventType::SliceEnd, None, false),
    };
    let mut event = TrackEvent { r#type: Some(kind as i32), track_uuid: Some(track), ..TrackEvent::default() };
    match which.and_then(|which| items.get(which)) {
        Some(Item::Event(of)) => {
            event.name = Some(name(of, trace));
            event.categories = vec![trace.names.kind(of.record.kind)];
            event.annotations = annotations(of, trace);
            if cut {
                event.annotations.push(annotation("cut", Value::Flag(true)));
            }
        }
        Some(Item::Loss(loss)) => {
            event.name = Some(format!("{} records lost before this", loss.records));
            event.categories = vec!["loss".to_owned()];
            event.annotations = vec![annotation("records", Value::Number(loss.records))];
        }
        None => {}
    }
    Packet { timestamp: Some(at), data: Some(Data::Event(event)), ..Packet::default() }
}

/// The name of a slice or instant: few different ones, so that the viewer can sum them up.
fn name(event: &Event, trace: &Trace) -> String {
    let kind = trace.names.kind(event.record.kind);
    match (event.record.known_kind(), meaning(event, &trace.names)) {
        (Some(Kind::Exit), Some(reason)) => reason,
        (_, Some(meaning)) => format!("{kind} {meaning}"),
        (_, None) => kind,
    }
}

fn annotation(name: &str, value: Value) -> Annotation {
    Annotation { name: Some(name.to_owned()), value: Some(value) }
}

fn number(name: &str, value: u64) -> Annotation {
    annotation(name, Value::Number(value))
}

/// What the viewer shows of an event when it is selected.
fn annotations(event: &Event, trace: &Trace) -> Vec<Annotation> {
    let record = &event.record;
    let mut all = vec![number("tsc", record.tsc), number("record", event.number)];
    if record.span == u32::MAX {
        all.push(annotation("longer", Value::Flag(true)));
    }
    let mut device = |amount_of: Option<&str>| {
        let name = trace.names.device(event.core, slot(record));
        all.extend([annotation("device", Value::Text(name)), number("unit", record.unit.into())]);
        all.extend(amount_of.map(|of| number(of, amount(record).into())));
    };
    match record.known_kind() {
        Some(Kind::Exit) => {
            all.extend(trace.has_rips().then(|| annotation("rip", Value::Address(record.a))));
            all.push(annotation("qualification", Value::Address(record.b)));
        }
        Some(Kind::Injection) => all.push(number("vector", record.code.into())),
        Some(Kind::Delivery) => all.push(number("vector", record.a)),
        Some(Kind::Turn) => all.push(number("requests", record.a)),
        Some(Kind::Visit) => {
            device(Some("requests"));
            all.push(number("bytes", record.b));
        }
        Some(Kind::Completion) => device(None),
        Some(Kind::Taken) => {
            device(None);
            all.push(number("ticks", record.b));
        }
        Some(Kind::FrameIn | Kind::FrameOut | Kind::FrameDropped) => device(Some("bytes")),
        Some(Kind::FrameSwitched) => {
            device(Some("bytes"));
            all.push(annotation("destinations", Value::Address(record.b)));
        }
        Some(Kind::DiskSubmitted) => {
            device(Some("request"));
            all.extend([number("type", record.code.into()), number("sector", record.b)]);
        }
        Some(Kind::DiskCompleted) => {
            device(Some("request"));
            all.extend([number("status", record.code.into()), number("bytes", record.b)]);
        }
        Some(Kind::Entry | Kind::Kick | Kind::Life) => {}
        Some(Kind::Moved | Kind::Nmi | Kind::MachineCheck) | None => {
            all.extend([number("a", record.a), annotation("b", Value::Address(record.b))]);
        }
    }
    all
}
