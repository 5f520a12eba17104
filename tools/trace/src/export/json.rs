//! Exports a trace as JSON, one record a line, for scripts.
//!
//! A line is a record (`kind` and `tsc` among its keys) or a loss (`lost`). Numbers are as the machine wrote them; `ns` is
//! `tsc` in nanoseconds. Numbers above 2^53 are exact in the text, which not every reader of JSON keeps.

use std::io::{self, Write};

use serde::Serialize;
use trace::Kind;
use trace::record::NO_GUEST;

use crate::model::{Event, Names, Trace, amount, slot};

/// A record.
#[derive(Serialize)]
struct Line<'a> {
    core: u32,
    number: u64,
    tsc: u64,
    ns: u64,
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    guest: Option<String>,
    unit: u8,
    code: u8,
    /// What the code is called.
    #[serde(skip_serializing_if = "Option::is_none")]
    meaning: Option<String>,
    /// Ticks.
    span: u32,
    a: u64,
    b: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    amount: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    symbol: Option<&'a str>,
}

/// Records that are missing.
#[derive(Serialize)]
struct Lost {
    lost: u64,
    core: u32,
    number: u64,
}

/// Writes the losses first, then the records in the order of time. `symbol` names the function of an exit's RIP.
///
/// # Errors
/// `out` fails.
pub fn write<'a>(trace: &Trace, symbol: impl Fn(&Event) -> Option<&'a str>, out: &mut impl Write) -> io::Result<()> {
    for loss in &trace.losses {
        line(&Lost { lost: loss.records, core: loss.core, number: loss.number }, out)?;
    }
    for event in &trace.events {
        line(&of(event, trace, symbol(event)), out)?;
    }
    Ok(())
}

fn line(value: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}

fn of<'a>(event: &Event, trace: &Trace, symbol: Option<&'a str>) -> Line<'a> {
    let record = &event.record;
    let has_slot = matches!(
        record.known_kind(),
        Some(
            Kind::Visit
                | Kind::Completion
                | Kind::Taken
                | Kind::FrameIn
                | Kind::FrameSwitched
                | Kind::FrameOut
                | Kind::FrameDropped
                | Kind::DiskSubmitted
                | Kind::DiskCompleted
        )
    );
    Line {
        core: event.core,
        number: event.number,
        tsc: record.tsc,
        ns: trace.clock.nanoseconds(record.tsc),
        kind: trace.names.kind(record.kind),
        guest: (record.guest != NO_GUEST).then(|| trace.names.guest(record.guest)),
        unit: record.unit,
        code: record.code,
        meaning: meaning(event, &trace.names),
        span: record.span,
        a: record.a,
        b: record.b,
        slot: has_slot.then(|| slot(record)),
        amount: has_slot.then(|| amount(record)),
        symbol,
    }
}

/// What the code of a record is called. None: it has no name.
#[must_use]
pub fn meaning(event: &Event, names: &Names) -> Option<String> {
    use trace::record::{
        BEFORE_START, BUSY, BY_CALL, BY_NMI, DIRECT, ENDS_GUEST, IDLE, IO_CHECK, NOTIFIED, POSTED, SUPPRESSED,
        SYSTEM_ERROR, WITHHELD,
    };
    let record = &event.record;
    let fixed = |text: &str| Some(text.to_owned());
    match (record.known_kind()?, record.code) {
        (Kind::Exit, code) => Some(names.reason(code)),
        (Kind::Life, code) => {
            let why = names.stop(record.a).map(|why| format!(" {why}")).unwrap_or_default();
            Some(format!("{}{why}", names.state(code)))
        }
        (Kind::Nmi, SYSTEM_ERROR) => fixed("serr"),
        (Kind::Nmi, IO_CHECK) => fixed("iochk"),
        (Kind::MachineCheck, BEFORE_START) => fixed("before-start"),
        (Kind::MachineCheck, WITHHELD) => fixed("withheld"),
        (Kind::MachineCheck, ENDS_GUEST) => fixed("ends-guest"),
        (Kind::FrameDropped, code) => Some(names.cause(code)),
        (Kind::Turn, BUSY) => fixed("busy"),
        (Kind::Turn, IDLE) => fixed("idle"),
        (Kind::Completion, NOTIFIED) => fixed("notified"),
        (Kind::Completion, SUPPRESSED) => fixed("suppressed"),
        (Kind::Delivery | Kind::Kick, BY_NMI) => fixed("nmi"),
        (Kind::Delivery, POSTED) => fixed("posted"),
        (Kind::Delivery, DIRECT) => fixed("direct"),
        (Kind::Kick, BY_CALL) => fixed("call"),
        _ => None,
    }
}
