//! What is said on COM2 about a trace: the commands, and the events that answer them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::model::clean_text;

/// Most characters of a sentence of the machine that are shown.
const SENTENCE: usize = 500;

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask<'a> {
    /// Cores write records.
    On {
        /// Names of classes with commas between them. Empty: the machine chooses.
        classes: &'a str,
        /// When a core's ring is full, new records are dropped, not the oldest.
        stop: bool,
    },
    /// The machine sends what its cores have written and write, until the trace is off and everything is sent.
    Save,
    /// Cores write nothing more.
    Off,
    /// The frames of a guest's port are captured, or not any more.
    Capture {
        /// The guest.
        guest: &'a str,
        /// The filter in the words of the machine. `off` ends the capture.
        filter: &'a str,
    },
    /// The machine sends captured frames, until no port is captured and everything is sent.
    Captures,
}

/// A command as it is written.
#[derive(Serialize)]
struct Wire<'a> {
    command: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    step: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    classes: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    guest: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    filter: &'a str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stop: bool,
    id: u64,
}

/// The number of a program's first command. Several programs may share a COM2, and each sees all answers, so each numbers its commands
/// from a place of its own.
#[must_use]
pub fn first_id() -> u64 {
    (u64::from(std::process::id()) << 20) | 1
}

impl Ask<'_> {
    /// The command as a line of COM2, without its end. `id`: the answer will have it.
    #[must_use]
    pub fn to_line(&self, id: u64) -> String {
        let nothing = Wire { command: "trace", step: "", classes: "", guest: "", filter: "", stop: false, id };
        let wire = match *self {
            Self::On { classes, stop } => Wire { step: "on", classes, stop, ..nothing },
            Self::Save => Wire { step: "save", ..nothing },
            Self::Off => Wire { step: "off", ..nothing },
            Self::Capture { guest, filter } => Wire { command: "capture", guest, filter, ..nothing },
            Self::Captures => Wire { command: "captures", ..nothing },
        };
        // Texts and numbers always serialise.
        serde_json::to_string(&wire).unwrap_or_default()
    }
}

/// What a line of COM2 says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// The next bytes of the trace, and whether they are the last.
    Trace(Vec<u8>, bool),
    /// An event of the trace that cannot be decoded.
    BrokenTrace,
    /// The answer to a command with this `id`: why it was refused, or that it was not.
    Answer(u64, Result<(), String>),
    /// Something else, or no event at all.
    Other,
}

/// The members of events that matter here. Others are left alone.
#[derive(Deserialize)]
struct Line<'a> {
    event: &'a str,
    data: Option<&'a str>,
    #[serde(default)]
    end: bool,
    id: Option<u64>,
    ok: Option<bool>,
    error: Option<String>,
}

/// Reads a line.
#[must_use]
pub fn read(line: &[u8]) -> Said {
    let Ok(line) = serde_json::from_slice::<Line<'_>>(line) else { return Said::Other };
    match line {
        Line { event: "trace", data: Some(data), end, .. } => {
            STANDARD.decode(data).map_or(Said::BrokenTrace, |bytes| Said::Trace(bytes, end))
        }
        Line { event: "trace", .. } => Said::BrokenTrace,
        Line { event: "reply", id: Some(id), ok: Some(ok), error, .. } => {
            let sentence = || clean_text(&error.unwrap_or_else(|| "without a reason".to_owned()), SENTENCE);
            Said::Answer(id, if ok { Ok(()) } else { Err(sentence()) })
        }
        _ => Said::Other,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn commands_are_those_that_the_machine_reads() {
        let on = Ask::On { classes: "exits,visits", stop: true };
        assert_eq!(on.to_line(7), r#"{"command":"trace","step":"on","classes":"exits,visits","stop":true,"id":7}"#);
        assert_eq!(Ask::On { classes: "", stop: false }.to_line(1), r#"{"command":"trace","step":"on","id":1}"#);
        assert_eq!(Ask::Save.to_line(2), r#"{"command":"trace","step":"save","id":2}"#);
        assert_eq!(Ask::Off.to_line(3), r#"{"command":"trace","step":"off","id":3}"#);
    }

    #[test]
    fn the_machine_reads_these_commands_and_its_events_are_read_here() {
        let read_there =
            |ask: Ask<'_>| control::Request::from_line(&ask.to_line(7)).map(|request| (request.id, request.command));
        let command = |step, stop, classes: &str| control::Command::Trace { step, stop, classes: classes.into() };
        let expected = |step, stop, classes| Ok((Some(7), command(step, stop, classes)));
        let on = Ask::On { classes: "exits,visits", stop: true };
        assert_eq!(read_there(on), expected(control::TraceStep::On, true, "exits,visits"));
        assert_eq!(read_there(Ask::Save), expected(control::TraceStep::Save, false, ""));
        assert_eq!(read_there(Ask::Off), expected(control::TraceStep::Off, false, ""));
        let capture = control::Command::Capture { guest: "a".into(), filter: "in,net=1".into() };
        assert_eq!(read_there(Ask::Capture { guest: "a", filter: "in,net=1" }), Ok((Some(7), capture)));
        assert_eq!(read_there(Ask::Captures), Ok((Some(7), control::Command::Captures)));
        let said = |event: control::Event| read(event.to_line().unwrap().trim_end().as_bytes());
        assert_eq!(said(control::Event::done(Some(7))), Said::Answer(7, Ok(())));
        assert_eq!(said(control::Event::refused(Some(7), "x".into())), Said::Answer(7, Err("x".to_owned())));
        assert_eq!(read(control::trace::trace_line("AAEC").concat().as_bytes()), Said::Trace(vec![0, 1, 2], false));
        assert_eq!(read(control::trace::TRACE_END.as_bytes()), Said::Trace(vec![], true));
    }

    #[test]
    fn events_of_the_trace_and_answers_are_read_and_others_left_alone() {
        let said = |line: &str| read(line.as_bytes());
        assert_eq!(said(r#"{"event":"trace","data":"AAEC"}"#), Said::Trace(vec![0, 1, 2], false));
        assert_eq!(said(r#"{"event":"trace","data":"","end":true}"#), Said::Trace(vec![], true));
        assert_eq!(said(r#"{"event":"trace","data":"AAE"}"#), Said::BrokenTrace);
        assert_eq!(said(r#"{"event":"reply","id":7,"ok":true}"#), Said::Answer(7, Ok(())));
        let refused = said(r#"{"event":"reply","id":7,"ok":false,"error":"no class `x\u001b[2J`"}"#);
        assert_eq!(refused, Said::Answer(7, Err("no class `x?[2J`".to_owned())));
        for other in
            ["", "{}", r#"{"event":"console","guest":"a","line":"x"}"#, r#"{"event":"trace-state","cores":[]}"#]
        {
            assert_eq!(said(other), Said::Other, "{other}");
        }
    }

    #[test]
    fn what_a_guest_writes_to_its_console_is_no_trace() {
        let line = r#"{"event":"console","guest":"a","line":"{\"event\":\"trace\",\"data\":\"AAEC\"}"}"#;
        assert_eq!(read(line.as_bytes()), Said::Other);
    }

    proptest! {
        #[test]
        fn any_line_is_read(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&line);
        }
    }
}
