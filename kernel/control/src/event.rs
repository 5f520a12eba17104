//! The events that sidecore sends on COM2: one JSON object per line. The member `event` names the kind.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};

use crate::no_memory::NoMemory;
use crate::terminal::is_deceptive;
use crate::{Counters, GuestState, Latency, Record, StopReason, Text, TraceState};

/// One line of COM2.
///
/// ```
/// use control::{Event, GuestState, StopReason};
/// let event = Event::Guest {
///     guest: "a".into(),
///     state: GuestState::Stopped,
///     reason: Some(StopReason::TripleFault),
///     detail: None,
/// };
/// let line = event.to_line().unwrap();
/// assert_eq!(line, "{\"event\":\"guest\",\"guest\":\"a\",\"state\":\"stopped\",\"reason\":\"triple-fault\"}\n");
/// assert_eq!(Event::from_line(&line), Ok(event));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// The first line: sidecore's version, and the machine.
    Boot {
        /// Version of sidecore.
        version: Text,
        /// Facts about the machine that it runs on.
        #[serde(flatten)]
        platform: Platform,
    },
    /// One entry of the capability report.
    Report(ReportEntry),
    /// A mistake in the configuration file.
    ConfigError {
        /// File name as given on the module's command line.
        file: String,
        /// Line, from 1.
        line: u64,
        /// Column, from 1.
        #[serde(default)]
        column: u64,
        /// The text that was wrong.
        value: String,
        /// What was expected.
        message: String,
        /// The guest that does not start because of it. `None` if it concerns the whole file.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        guest: Option<String>,
    },
    /// A guest changed its state.
    Guest {
        /// The guest's name.
        guest: String,
        /// Its state now.
        state: GuestState,
        /// Why it stopped.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<StopReason>,
        /// Details of the reason, for a person.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    },
    /// A line that a guest wrote to its console.
    Console {
        /// The guest's name.
        guest: String,
        /// The line, without its end.
        line: String,
    },
    /// Output of a guest's console as it comes, with its ends of lines, while somebody follows it. With an `id` it is the answer to
    /// `follow`, and has what came before.
    Output {
        /// The `id` of the command that asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<u64>,
        /// The guest's name.
        guest: String,
        /// How many bytes of its output came before these since sidecore's start.
        at: u64,
        /// The bytes, one character each, U+0000 to U+00FF.
        text: String,
    },
    /// Output of a named port of a guest's console device, while the port is open.
    Port {
        /// The guest's name.
        guest: String,
        /// The port's name.
        port: String,
        /// The bytes, one character each, U+0000 to U+00FF.
        text: String,
    },
    /// Output was dropped here, because it came faster than COM2 sends. There is room again.
    Dropped {
        /// The guest whose output it was. `None`: events of sidecore's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        guest: Option<String>,
        /// Whole events.
        messages: u64,
        /// Bytes: of these events, and of the guest's output that did not become an event.
        bytes: u64,
    },
    /// A line of the log.
    Log {
        /// How important.
        level: Level,
        /// The line.
        text: String,
    },
    /// All counters, on request and at the end.
    Counters(Counters),
    /// The audit, on request; and to the management guest, without an `id`, each new record of it.
    Audit {
        /// The `id` of the command that asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<u64>,
        /// The records: those of the cables and then those of the management guest's channel, the oldest first.
        records: Vec<Record>,
    },
    /// The configuration that runs, on request.
    Config {
        /// The `id` of the command that asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<u64>,
        /// It, as a file `sidecore.toml`.
        text: String,
    },
    /// The modules, on request.
    Modules {
        /// The `id` of the command that asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<u64>,
        /// Those of the boot, then those that were put.
        modules: Vec<ModuleSummary>,
    },
    /// What a file changes of guests, in the answer to `apply`; and how far it is, in the answer to `applied`.
    Applied {
        /// The `id` of the command that asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<u64>,
        /// The state.
        state: ApplyState,
        /// Lines for a person.
        text: String,
    },
    /// A piece of a trace: see the crate `trace`. The pieces in their order are the whole.
    Trace {
        /// Its bytes in base64 (RFC 4648, with padding).
        data: String,
        /// Whether it was the last piece.
        #[serde(default, skip_serializing_if = "core::ops::Not::not")]
        end: bool,
    },
    /// The answer to `trace show`.
    TraceState(TraceState),
    /// The answer to `latency`.
    Latency(Latency),
    /// The answer to a command.
    Reply {
        /// The command's `id`, if it had one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<u64>,
        /// Whether the command was carried out. For `start` and `stop`: whether it has begun.
        ok: bool,
        /// Why not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<Text>,
        /// For `list`: the guests.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        guests: Option<Vec<GuestSummary>>,
        /// For `version`: the version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<Text>,
    },
    /// A core made no progress in the hypervisor. The watchdog has asked it where it is, and its guest is asked to stop.
    Stuck {
        /// The core.
        core: u64,
        /// The guest whose vCPU it runs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        guest: Option<String>,
        /// Seconds without progress.
        seconds: u64,
        /// Where it is: its RIP. `None` if it does not take the NMI.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rip: Option<u64>,
        /// The same as a function and an offset.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<String>,
    },
    /// The hypervisor panicked. Nothing follows. [`crate::write_panic`] writes it, without the heap.
    Panic {
        /// The message.
        message: String,
        /// The place: file, line and column.
        location: String,
        /// The backtrace, innermost first: names if known, otherwise addresses.
        backtrace: Vec<String>,
    },
    /// The last line: why sidecore ends.
    End {
        /// Why.
        reason: Text,
    },
}

/// Facts about the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// The virtualization extension in use. `None` if the machine has neither.
    pub virtualization: Option<Virtualization>,
    /// Logical processors that run.
    pub cores: u64,
    /// Usable RAM in bytes.
    pub memory: u64,
}

/// The two back-ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Virtualization {
    /// AMD SVM.
    Svm,
    /// Intel VT-x.
    Vmx,
}

/// One sentence of the capability report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportEntry {
    /// What the sentence is about.
    pub kind: ReportKind,
    /// The sentence.
    pub text: Text,
}

/// What an entry of the capability report says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReportKind {
    /// Something is present and used.
    Found,
    /// Something required is missing, and sidecore stops. The text says what would help.
    RequiredMissing,
    /// Something optional is missing. The text says what is used instead.
    Fallback,
    /// Something the operator should know.
    Warning,
    /// How something was divided or chosen, for example the cores.
    Decision,
}

impl ReportKind {
    /// The word before the sentence on a console.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Found => "found",
            Self::RequiredMissing => "MISSING",
            Self::Fallback => "fallback",
            Self::Warning => "warning",
            Self::Decision => "decided",
        }
    }
}

impl fmt::Display for ReportEntry {
    /// As a line of a console, without its end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {:>8}: {}", self.kind.label(), self.text)
    }
}

/// A guest in the answer to `list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestSummary {
    /// Name.
    pub name: String,
    /// State.
    pub state: GuestState,
    /// Core of each vCPU.
    pub cores: Vec<u64>,
    /// RAM in bytes.
    pub memory: u64,
    /// The place of its RAM in the machine's memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<PhysicalRange>,
    /// Why it last stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<StopReason>,
}

/// A module in the answer to `modules`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleSummary {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Its SHA-256 in hexadecimal digits.
    pub sha256: String,
    /// It was put while the machine runs.
    pub put: bool,
}

/// How far the last `apply` is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApplyState {
    /// Nothing was applied, or it was only looked at, or there was nothing to do.
    #[default]
    Nothing,
    /// It is being carried out.
    Running,
    /// It is carried out.
    Done,
    /// It is carried out, and goes back without `confirm`.
    Unconfirmed,
    /// It could not be carried out; the text says what was.
    Failed,
}

/// A range of the machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhysicalRange {
    /// Physical address of its first byte.
    pub start: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// How important a line of the log is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Something does not work.
    Error,
    /// Something works less well than it could.
    Warn,
    /// A normal event.
    #[default]
    Info,
    /// Something that helps to find an error.
    Debug,
    /// Everything.
    Trace,
}

impl Level {
    /// All levels by name, the most important first.
    pub const NAMES: [&'static str; 5] = ["error", "warn", "info", "debug", "trace"];

    /// The level called `name`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "error" => Self::Error,
            "warn" => Self::Warn,
            "info" => Self::Info,
            "debug" => Self::Debug,
            "trace" => Self::Trace,
            _ => return None,
        })
    }
}

impl Event {
    /// The line, with its end.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn to_line(&self) -> Result<String, NoMemory> {
        let mut bytes = Vec::new();
        let len = loop {
            // A line is written as often as it does not fit, so the steps are large.
            let size = bytes.len().saturating_mul(4).max(SHORT_LINE);
            if size > MAX_EVENT {
                return Err(NoMemory);
            }
            bytes.try_reserve_exact(size.saturating_sub(bytes.len())).map_err(|_| NoMemory)?;
            bytes.resize(size, 0);
            // The only error is that the line is longer.
            if let Ok(len) = serde_json_core::to_slice(self, &mut bytes) {
                break len;
            }
        };
        bytes.truncate(len);
        finish(String::from_utf8(bytes).unwrap_or_default())
    }

    /// Reads a line.
    ///
    /// # Errors
    /// A sentence that says what is wrong and where.
    pub fn from_line(line: &str) -> Result<Self, String> {
        serde_json::from_str(line.trim_end()).map_err(|error| error.to_string())
    }

    /// Makes a reply for success.
    #[must_use]
    pub const fn done(id: Option<u64>) -> Self {
        Self::Reply { id, ok: true, error: None, guests: None, version: None }
    }

    /// Makes a reply for a failure. It says why.
    #[must_use]
    pub const fn refused(id: Option<u64>, error: Text) -> Self {
        Self::Reply { id, ok: false, error: Some(error), guests: None, version: None }
    }
}

/// Bytes that are taken for a line at first.
const SHORT_LINE: usize = 256;
/// Most bytes that are taken for a line, before characters are escaped. The counters of 64 vCPUs have 130 KiB.
const MAX_EVENT: usize = 1 << 20;

/// Ends a line. Escapes what JSON allows in a string and a terminal takes for more than text: DEL, C1 controls, separators of
/// lines, characters that turn the direction of writing. Outside of strings there is none.
fn finish(mut json: String) -> Result<String, NoMemory> {
    // Most lines have nothing of that.
    if json.bytes().all(|byte| byte < 0x7f) {
        json.try_reserve_exact(1).map_err(|_| NoMemory)?;
        json.push('\n');
        return Ok(json);
    }
    let mut line = String::new();
    let escapes = json.chars().filter(|&character| is_deceptive(character)).count();
    line.try_reserve_exact(json.len().saturating_add(escapes.saturating_mul(6)).saturating_add(1))
        .map_err(|_| NoMemory)?;
    for character in json.chars() {
        if is_deceptive(character) {
            // There is room: a character from the basic plane has six.
            let _ = write!(line, "\\u{:04x}", u32::from(character));
        } else {
            line.push(character);
        }
    }
    line.push('\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Block, Console, ConsolePort, Count, Engine, Entropy, ExitCount, Guest, Hypervisor, Port, VcpuCounters,
    };

    #[test]
    fn a_sentence_of_the_report_stands_behind_its_label() {
        let entry = ReportEntry { kind: ReportKind::RequiredMissing, text: "no VT-x".into() };
        assert_eq!(entry.to_string(), "   MISSING: no VT-x");
        assert_eq!(ReportEntry { kind: ReportKind::Fallback, ..entry }.to_string(), "  fallback: no VT-x");
    }

    fn round_trip(event: &Event) -> String {
        let line = event.to_line().unwrap();
        assert_eq!(line.matches('\n').count(), 1, "one line: {line}");
        assert_eq!(Event::from_line(&line).as_ref(), Ok(event));
        line
    }

    #[test]
    fn every_event_comes_back_as_it_went() {
        let events = [
            Event::Boot {
                version: "0.1.0".into(),
                platform: Platform { virtualization: Some(Virtualization::Svm), cores: 4, memory: 1 << 30 },
            },
            Event::Report(ReportEntry { kind: ReportKind::RequiredMissing, text: "no SVM".into() }),
            Event::ConfigError {
                file: "sidecore.toml".into(),
                line: 3,
                column: 7,
                value: "1X".into(),
                message: "a size".into(),
                guest: Some("a".into()),
            },
            Event::Guest { guest: "a".into(), state: GuestState::Running, reason: None, detail: None },
            Event::Console { guest: "a".into(), line: "tab\t\u{1b}[0m \"quoted\"\nnot a new line".into() },
            Event::Output { id: Some(2), guest: "a".into(), at: 7, text: "login: \r\u{9b}".into() },
            Event::Output { id: None, guest: "a".into(), at: 0, text: String::new() },
            Event::Dropped { guest: Some("a".into()), messages: 3, bytes: 300 },
            Event::Log { level: Level::Warn, text: "x".into() },
            Event::Audit {
                id: Some(3),
                records: {
                    let mut audit = crate::Audit::new();
                    let cable = crate::Caller::cable(crate::Way::Com1, crate::Permissions::all());
                    let key = crate::Caller::named(crate::Way::Channel, "anna", crate::Permissions::VIEW);
                    let stop = crate::Note::from(&crate::Command::Stop("a".into()));
                    audit.note(1, &cable, &stop, crate::Outcome::Done, "");
                    audit.note(2, &key, &stop, crate::Outcome::Refused, "no permission");
                    let anna = key.with_sender(crate::Sender::new("anna", "10.0.0.5"));
                    audit.report(3, &anna, crate::Notice::Login, "", "").unwrap();
                    audit.copy().unwrap()
                },
            },
            Event::Config { id: Some(4), text: "[log]\nlevel = \"info\"\n".into() },
            Event::Modules {
                id: Some(5),
                modules: [ModuleSummary { name: "k".into(), bytes: 7, sha256: "00".into(), put: true }].into(),
            },
            Event::Applied { id: Some(6), state: ApplyState::Unconfirmed, text: "guest c: added\n".into() },
            Event::done(Some(7)),
            Event::refused(None, "no guest `b`".into()),
            Event::End { reason: "shutdown".into() },
        ];
        for event in &events {
            round_trip(event);
        }
    }

    #[test]
    fn no_line_has_a_byte_that_a_terminal_obeys() {
        let nasty: String = ('\0'..='\u{2fff}').collect();
        let line = round_trip(&Event::Console { guest: "a".into(), line: nasty });
        assert!(line.trim_end().chars().all(|c| c >= ' ' && !is_deceptive(c)), "{line}");
    }

    #[test]
    fn a_guest_that_writes_an_event_makes_a_text_of_it() {
        let fake = Event::End { reason: "shutdown".into() }.to_line().unwrap();
        let line = round_trip(&Event::Console { guest: "a".into(), line: format!("x\n{fake}") });
        assert!(line.starts_with(r#"{"event":"console","guest":"a","line":"x\n{\"event\""#), "{line}");
    }

    #[test]
    fn counters_keep_every_bit_of_a_u64() {
        let big = u64::MAX - 1;
        let event = Event::Counters(Counters {
            id: Some(big),
            tsc: big,
            tsc_hz: 1,
            hypervisor: Hypervisor { memory: big, memory_without_guests: 1, ..Hypervisor::default() },
            guests: [Guest {
                name: "a".into(),
                state: GuestState::Running,
                starts: 1,
                memory: big,
                kept: big,
                console_dropped: 0,
                lines_dropped: 0,
                input_dropped: 0,
                vcpus: [VcpuCounters {
                    core: 2,
                    exits: [ExitCount { reason: "hlt".into(), count: big, cycles: u64::MAX }].into(),
                }]
                .into(),
                shadow_idt: [Count { kind: "shadowed".into(), count: big }].into(),
                refusals: [Count { kind: "msr".into(), count: big }].into(),
                ports: [Port { rx_packets: big, ..Port::default() }].into(),
                blocks: [Block { size: big, ..Block::default() }].into(),
                entropy: [Entropy { bytes: big, ..Entropy::default() }].into(),
                consoles: [Console {
                    ports: [ConsolePort { output_dropped: big, ..ConsolePort::default() }].into(),
                    ..Console::default()
                }]
                .into(),
            }]
            .into(),
            engines: [Engine { core: 1, busy_turns: big, ..Engine::default() }].into(),
        });
        let line = round_trip(&event);
        assert!(line.contains("18446744073709551614"), "{line}");
    }

    #[test]
    fn a_line_that_is_no_event_is_refused_by_what_is_wrong_with_it() {
        let error = Event::from_line(r#"{"event":"gest"}"#).unwrap_err();
        assert!(error.contains("gest"), "{error}");
    }
}
