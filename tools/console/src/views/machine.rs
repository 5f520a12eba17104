//! The machine: cores by their role, and what the hypervisor keeps, missed or did not expect.

use std::collections::BTreeMap;

use control::{ReportKind, Virtualization};

use crate::clean::{NAME, clean};
use crate::rates::{Pair, exits};
use crate::sheet::text::wrap;
use crate::sheet::{Column, Sheet, Table, Tone, Value, binary, number, words};
use crate::state::State;

/// What a core does.
struct Core {
    role: &'static str,
    /// The vCPU or engine that runs on it, or empty.
    of: String,
    /// The engine's busy time or the guest's time in the hypervisor, as a part of the core's time.
    load: Option<f64>,
    /// Exits in a second, if it runs a vCPU.
    exits: Option<f64>,
    tone: Tone,
}

/// Most cores that are listed although no vCPU or engine is on them.
const MAX_CORES: u64 = 1024;
/// Characters of a line of the report, so that it fits into 80 columns with its kind.
const REPORT: usize = 70;

/// The sheet.
pub fn sheet(state: &State, pair: &Pair<'_>) -> Sheet {
    let mut main = Table::new(
        "cores",
        "Cores (load: an engine's busy turns, a guest's time in the hypervisor)",
        &[
            number("core", "core", 0),
            words("role", "role", 0),
            words("of", "of", 0),
            number("load", "load", 0),
            words("bar", "", 1),
            number("exits_per_second", "exits/s", 2),
        ],
    );
    for (n, core) in cores(state, pair) {
        let cells = vec![
            n.into(),
            core.role.into(),
            Value::Text(core.of),
            Value::Share(core.load),
            Value::Bar(core.load),
            core.exits.into(),
        ];
        main.row(n.to_string(), core.tone, cells);
    }
    let mut report = Table::new("report", "Report (Enter: all of it)", &COLUMNS);
    for (n, (kind, text)) in state.report.iter().enumerate() {
        if *kind != ReportKind::Found {
            let (kind, tone) = named(*kind);
            report.row(n.to_string(), tone, vec![kind.into(), Value::Text(text.clone())]);
        }
    }
    Sheet { key: "machine", facts: facts(state, pair), main, more: vec![report] }
}

/// The whole capability report, in lines of 80 columns.
pub fn report(state: &State) -> Sheet {
    let mut main = Table::new("report", "Report", &COLUMNS);
    for (n, (kind, text)) in state.report.iter().enumerate() {
        let (kind, tone) = named(*kind);
        for (part, line) in wrap(text, REPORT).into_iter().enumerate() {
            let kind = if part == 0 { kind } else { "" };
            main.row(format!("{n}.{part}"), tone, vec![kind.into(), Value::Text(line)]);
        }
    }
    Sheet { key: "report", facts: Vec::new(), main, more: Vec::new() }
}

/// Columns of the report.
const COLUMNS: [Column; 2] = [words("kind", "kind", 0), words("text", "text", 0)];

const fn named(kind: ReportKind) -> (&'static str, Tone) {
    match kind {
        ReportKind::Found => ("found", Tone::Plain),
        ReportKind::RequiredMissing => ("missing", Tone::Bad),
        ReportKind::Fallback => ("fallback", Tone::Plain),
        ReportKind::Warning => ("warning", Tone::Warning),
        ReportKind::Decision => ("decided", Tone::Plain),
    }
}

fn facts(state: &State, pair: &Pair<'_>) -> Vec<String> {
    let hypervisor = &pair.now.hypervisor;
    let version = state.version.as_deref().unwrap_or("(version unknown)");
    let platform = state.platform.as_ref().map_or(String::new(), |platform| {
        let extension = match platform.virtualization {
            Some(Virtualization::Svm) => "SVM",
            Some(Virtualization::Vmx) => "VT-x",
            None => "no virtualization",
        };
        format!(", {extension}, {} cores, {}", platform.cores, binary(platform.memory))
    });
    let uptime = pair.now.tsc.checked_div(pair.now.tsc_hz).unwrap_or(0);
    let mut facts = vec![
        format!("sidecore {version}{platform}; TSC {} MHz, up {uptime} s", pair.now.tsc_hz / 1_000_000),
        format!(
            "hypervisor: keeps {} ({} without guests), heap {} of {}",
            binary(hypervisor.memory),
            binary(hypervisor.memory_without_guests),
            binary(hypervisor.heap.used),
            binary(hypervisor.heap.size)
        ),
    ];
    let [com1, com2] = hypervisor.serial;
    let checks = hypervisor.machine_checks;
    let missed: Vec<String> = [
        ("lines of the log dropped", hypervisor.log_dropped),
        ("pieces of output dropped on COM1", com1.dropped),
        ("pieces of output dropped on COM2", com2.dropped),
        ("losses of input on COM1", com1.overruns),
        ("losses of input on COM2", com2.overruns),
        ("interrupts that nobody expected", hypervisor.stray_interrupts),
        ("system errors", hypervisor.system_errors),
        ("I/O checks", hypervisor.io_checks),
        ("corrected memory or CPU errors", checks.corrected),
        ("deferred errors", checks.deferred),
        ("guests ended by an error", checks.ended),
        ("guests not shown", state.hidden as u64),
        ("lines that were no events", state.noise),
    ]
    .into_iter()
    .filter(|(_, count)| *count > 0)
    .map(|(what, count)| format!("{count} {what}"))
    .collect();
    facts.push(if missed.is_empty() { "nothing dropped, no errors".into() } else { missed.join(", ") });
    facts
}

fn cores(state: &State, pair: &Pair<'_>) -> BTreeMap<u64, Core> {
    let mut cores: BTreeMap<u64, Core> = BTreeMap::new();
    let all = state.platform.as_ref().map_or(1, |platform| platform.cores.min(MAX_CORES));
    for core in 0..all {
        let role = if core == 0 { "control" } else { "free" };
        cores.insert(core, Core { role, of: String::new(), load: None, exits: None, tone: Tone::Quiet });
    }
    for guest in &pair.now.guests {
        let before = pair.guest(guest);
        for (n, vcpu) in guest.vcpus.iter().enumerate() {
            let then = before.and_then(|before| before.vcpus.get(n)).map(exits);
            let (count, cycles) = exits(vcpu);
            let load = pair.share(cycles, then.map(|(_, cycles)| cycles));
            let exits = pair.rate(count, then.map(|(count, _)| count));
            let of = format!("{} vCPU {n}, {}", clean(&guest.name, NAME / 2), guest.state.name());
            let tone = if guest.state == control::GuestState::Running { Tone::Plain } else { Tone::Quiet };
            cores.insert(vcpu.core, Core { role: "guest", of, load, exits, tone });
        }
    }
    for engine in &pair.now.engines {
        let before = pair.engine(engine);
        let load = pair.share(engine.busy_cycles, before.map(|before| before.busy_cycles));
        let role = if engine.core == 0 { "control, engine" } else { "engine" };
        let of = format!("engine {}", engine.id);
        cores.insert(engine.core, Core { role, of, load, exits: None, tone: Tone::Plain });
    }
    cores
}
