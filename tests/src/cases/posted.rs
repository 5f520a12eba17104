//! Posted interrupts, on the one emulator that has them.

use anyhow::Result;

use super::exitless::{self, PINGS};
use crate::machine::Platform;
use crate::scenario::{Context, Scenario};

const BOCHS: &[Platform] = &[Platform::Bochs];

/// What a request, its completion and its end-of-interrupt could make the guest exit for.
const IO: [&str; 9] = [
    "io-virtio-notify",
    "external-interrupt",
    "interrupt-window",
    "nmi",
    "msr-apic-eoi",
    "virtual-eoi",
    "apic-write",
    "msr-apic-other",
    "cr8",
];

/// These scenarios.
pub fn list() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "posted-exitless",
            about: "1,000 requests and replies with posted interrupts: no exit for I/O, an interrupt for each",
            platforms: BOCHS,
            slow_on_bochs: false,
            run: posted_exitless,
        },
        Scenario {
            name: "posted-smp",
            about: "two virtual CPUs with posted interrupts: both at work, one goes offline and comes back",
            platforms: BOCHS,
            slow_on_bochs: true,
            run: |context| exitless::smp(context, "posted").map(drop),
        },
        Scenario {
            name: "posted-restarts",
            about: "a guest with posted interrupts is killed and started ten times under load; its neighbour is unharmed",
            platforms: BOCHS,
            slow_on_bochs: true,
            run: |context| exitless::restarts(context, "posted").map(drop),
        },
    ]
}

fn posted_exitless(context: &mut Context<'_>) -> Result<()> {
    for (name, window) in ["a", "b"].into_iter().zip(exitless::window(context, "posted")?) {
        let costs = window.costs;
        let of = |what: &str| format!("{what} of {name}");
        let figures = &mut context.figures;
        figures.at_least(&of("packets"), costs.packets, 2 * PINGS)?;
        figures.at_least(&of("interrupts"), costs.interrupts, PINGS)?;
        figures.note(&of("exits, all"), costs.all_exits());
        // A guest that halts exits on Bochs alone, and its timer's deadlines cost one exit to program and one when due.
        figures.note(&of("exits of HLT"), costs.exits_for("hlt"));
        let (programmed, due) = (costs.exits_for("msr-apic-timer"), costs.exits_for("deadline"));
        figures.note(&of("exits of the timer when it is programmed"), programmed);
        figures.at_most(&of("exits of the timer when it is due"), due, programmed + 1)?;
        figures.exactly(&of("exits for I/O"), costs.exits_for_any(&IO), 0)?;
    }
    Ok(())
}
