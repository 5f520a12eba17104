//! What happens rarely: frames that were dropped, by port and cause; states of guests and errors of the machine, one by one.

use std::collections::BTreeMap;

use serde::Serialize;
use trace::Kind;
use trace::record::NO_GUEST;

use crate::export::json::meaning;
use crate::model::{Event, Trace, amount, slot};

/// Frames that were dropped at a port because of one cause.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Drops {
    /// The port's device, with its guest.
    pub device: String,
    /// The cause.
    pub cause: String,
    /// How many frames.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A state of a guest, an NMI of the machine, or a machine check.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Told {
    /// Cycles since the first record of the trace.
    pub at: u64,
    /// Its guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest: Option<String>,
    /// What it is, and what its code is called.
    pub what: String,
    /// NMIs, or a machine check's physical address. None: there is no such number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
}

/// The drops of a trace: what has the most frames first.
pub(super) fn drops(trace: &Trace) -> Vec<Drops> {
    let mut sums: BTreeMap<(u32, u32, u8), (u64, u64)> = BTreeMap::new();
    let dropped = |event: &&Event| event.record.known_kind() == Some(Kind::FrameDropped);
    for Event { core, record, .. } in trace.events.iter().filter(dropped) {
        let (frames, bytes) = sums.entry((*core, slot(record), record.code)).or_default();
        *frames = frames.saturating_add(1);
        *bytes = bytes.saturating_add(amount(record).into());
    }
    let row = |((core, slot, cause), (frames, bytes))| Drops {
        device: trace.names.device(core, slot),
        cause: trace.names.cause(cause),
        frames,
        bytes,
    };
    let mut drops: Vec<Drops> = sums.into_iter().map(row).collect();
    drops.sort_by_key(|drops| std::cmp::Reverse(drops.frames));
    drops
}

/// What the control core has told, in the order of time.
pub(super) fn told(trace: &Trace) -> Vec<Told> {
    let first = trace.events.first().map_or(0, |event| event.record.tsc);
    let of = |event: &Event| {
        let record = &event.record;
        let number = match record.known_kind()? {
            Kind::Life => None,
            Kind::Nmi => Some(record.a),
            Kind::MachineCheck => (record.a != 0).then_some(record.a),
            _ => return None,
        };
        let meaning = meaning(event, &trace.names).unwrap_or_else(|| record.code.to_string());
        Some(Told {
            at: record.tsc.saturating_sub(first),
            guest: (record.guest != NO_GUEST).then(|| trace.names.guest(record.guest)),
            what: format!("{} {meaning}", trace.names.kind(record.kind)),
            number,
        })
    };
    trace.events.iter().filter_map(of).collect()
}
