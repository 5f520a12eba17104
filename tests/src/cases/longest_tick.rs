//! The control core's longest tick, while the management guest does its worst. On Bochs the TSC counts instructions, so this is a
//! count and no time.

use anyhow::{Context as _, Result, ensure};
use control::{Counters, Event, TICK_INSTRUCTIONS, TraceStep};

use super::trace::command;
use crate::boot::{Boot, alone};
use crate::guests::{Guest, server, with_entries};
use crate::platform::BOCHS;
use crate::scenario::{Context, Scenario, seconds};

/// A line for the shell that reads all answers while `$line` runs, which writes to file 3, until a last command is answered. So nothing is left
/// for the next attack.
macro_rules! all_answers_of {
    ($line:expr) => {
        concat!(
            "(timeout 60 grep -m1 '\"id\":7[,}]' <&3 >/dev/null & ",
            $line,
            "; printf '\\n{\"command\":\"version\",\"id\":7}\\n' >&3; wait) 3<>$P"
        )
    };
}

/// The same, for a command that is sent so often, as fast as it is taken.
macro_rules! answered {
    ($line:literal, $times:literal) => {
        all_answers_of!(concat!("yes '{\"command\":\"", $line, "\"}' | head -n ", $times, " >&3"))
    };
}

/// What the management guest sends, lines for its shell, and the least bytes that sidecore has to take of it.
const ATTACKS: [(&str, &str, u64); 6] = [
    ("nothing", "sleep 1", 0),
    (
        "counters, and no answer read",
        concat!("yes '{\"command\":\"counters\"}' | head -n 200 | timeout 2 cat >$P; ", all_answers_of!("true")),
        4 << 10,
    ),
    ("counters", answered!("counters", 100), 100 * 23),
    ("report", answered!("report", 100), 100 * 21),
    ("audit", answered!("audit", 100), 100 * 20),
    ("commands that it may not give", answered!("kill\",\"guest\":\"a", 2000), 2000 * 31),
];

/// This scenario.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "a management guest floods its channel with commands that have long answers, and with one that it may not give: the \
                 control core's longest tick is within its budget of instructions";
    vec![alone(Scenario::new("longest-tick", about, BOCHS), longest_tick)]
}

fn longest_tick(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let guest = Guest::new(1).then("shell");
    let entry = "[management]\nguest = \"a\"\nallow = [\"view\"]\n";
    let mut session = context.boot(&with_entries(server("longest-tick", &[guest]), entry))?;
    session.wait("guest a to be up", seconds(240), |event| match event {
        Event::Console { line, .. } if line.contains("\"do\":\"up\"") => Some(()),
        _ => None,
    })?;
    let find = "for p in /sys/class/virtio-ports/*; do [ $(cat $p/name) = org.sidecore.control ] && P=/dev/${p##*/}; done; \
                [ -c $P ] && echo found";
    session.in_shell("a", find, seconds(60))?;

    for (what, line, least) in ATTACKS {
        let before = taken(&session.counters()?)?;
        session.ask(command(TraceStep::On, false, "histograms"), seconds(20))?;
        session.in_shell("a", line, seconds(120)).with_context(|| format!("the attack by {what}"))?;
        let latency = session.latency()?;
        session.ask(command(TraceStep::Off, false, ""), seconds(20))?;
        let bytes = taken(&session.counters()?)? - before;
        let ticks = latency.rows.iter().find(|row| row.what == "tick" && row.guest.is_none()).context("no ticks")?;
        let figures = &mut context.figures;
        figures.at_least(&format!("bytes that sidecore has taken of {what}"), bytes, least)?;
        figures.at_least(&format!("ticks during {what}"), ticks.count, 100)?;
        figures
            .note(&format!("instructions of a tick during {what}, on average"), ticks.sum as f64 / ticks.count as f64);
        figures.at_most(&format!("instructions of the longest tick during {what}"), ticks.max, TICK_INSTRUCTIONS)?;
    }
    ensure!(session.running()? == 1, "the guest has stopped");
    session.shut_down().map(drop)
}

/// Bytes that sidecore has taken by the channel.
fn taken(counters: &Counters) -> Result<u64> {
    let mut ports =
        counters.guest("a").into_iter().flat_map(|guest| &guest.consoles).flat_map(|console| &console.ports);
    Ok(ports.find(|port| port.name == "org.sidecore.control").context("there is no channel")?.output_bytes)
}
