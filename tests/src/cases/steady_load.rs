//! What a steady load costs two Linux guests in exits, held to what their ways of completion promise.

use anyhow::Result;

use crate::costs::Costs;
use crate::counts::{count, notify_exits, shadow};
use crate::modes::{self, Completion};
use crate::scenario::Context;
use crate::session::number;
use crate::steady::{Steady, Window};

/// Exits of a loaded guest in a second of its time, at most: I/O causes none of them.
const EACH_SECOND: f64 = 50.0;
/// An NMI that was to wake a vCPU from a HLT that has exited, and found it awake.
const LATE_WAKE: &str = "late-wake";

/// Requests that are answered one by one, and a stream, between the guests of `load`; the way of completion of the guest that
/// asks, and of the other one.
pub fn cost(context: &mut Context<'_>, load: &mut Steady<'_>, completions: [&str; 2]) -> Result<()> {
    let modes = completions.map(modes::named);
    // A reading of the counters takes a fifth of a second of Bochs's time, and several have to fall into the load.
    let transactions = if modes[0].exits { 2_000 } else { context.times(10_000, 4_000) };
    let tcp_seconds = context.times(5, 2);

    let udp = load.act(&format!("udp:{transactions}"))?;
    let whole = udp.whole(load.asks())?;
    let figures = &mut context.figures;
    // A busy machine may hold an answer back for longer than the guest waits for it.
    figures.note("udp: requests repeated", number(&udp.said, "again")?);
    let asks = load.asks();
    figures.at_least(&format!("udp: interrupts of {asks}"), whole.interrupts, transactions)?;
    figures.exactly("udp: of these in its /proc/interrupts", udp.taken, whole.interrupts)?;
    held(context, "udp", load, &udp, modes, transactions / 2)?;

    let tcp = load.act(&format!("iperf:{tcp_seconds}"))?;
    context.figures.at_least("tcp: bytes", number(&tcp.said, "bytes")?, context.times(2_000_000, 400_000))?;
    held(context, "tcp", load, &tcp, modes, 100)
}

/// Holds each guest under a load to what its mode promises. In what could be looked at of it, each has at least so many packets.
fn held(
    context: &mut Context<'_>,
    load: &str,
    guests: &Steady<'_>,
    window: &Window,
    modes: [Completion; 2],
    packets: u64,
) -> Result<()> {
    for (name, mode) in [guests.asks(), guests.serves()].into_iter().zip(modes) {
        let of = |what: &str| format!("{load}: {what} of {name}");
        let costs = window.steady(name)?;
        let figures = &mut context.figures;
        figures.at_least(&of("packets"), costs.packets, packets)?;
        figures.note(&of("exits, all"), costs.all_exits());
        figures.note(&of("exits for HLT"), costs.exits_for("hlt"));
        if mode.exits {
            // The contrast is what shows that the counts can be anything but 0. A stream is batched.
            if load == "udp" {
                figures.at_least(&of("exits"), costs.all_exits(), costs.packets)?;
                let kicks = notify_exits(&window.steady[1], name) - notify_exits(&window.steady[0], name);
                // An engine that has not yet turned away from the queue needs none.
                figures.at_least(&of("of these for notifications"), kicks, costs.packets / 20)?;
            }
            continue;
        }
        figures.exactly(&of("exits for I/O"), costs.io_exits(), 0)?;
        // Where HLT exits somebody has to wake the vCPU, and it may have woken by itself just before.
        figures.at_most(&of("wakes that came late"), costs.exits_for(LATE_WAKE), costs.exits_for("hlt") as f64)?;
        figures.at_most(
            &of("exits in a second, HLT and timer programmings apart"),
            each_second(&costs),
            EACH_SECOND,
        )?;
        if mode.owns_apic {
            figures.exactly(&of("exits for the timer"), costs.timer_exits(), 0)?;
            figures.exactly(&of("exits for HLT"), costs.exits_for("hlt"), 0)?;
        }
        if mode.name == "eli" {
            // All of this was said of a guest whose IDT was shadowed, by a shadow that had been tried.
            let [before, after] = [0, 1].map(|at| shadow(&window.steady[at], name));
            figures.at_least(&of("times the IDT was shadowed before"), count(before, "shadowed"), 1)?;
            let through = count(before, "host-interrupts");
            figures.at_least(&of("interrupts of the host's through the shadow before"), through, 1)?;
            for kind in ["idt-written", "idt-moved", "vectors-moved", "injected", "host-interrupts-by-exit"] {
                let meanwhile = count(after, kind) - count(before, kind);
                figures.exactly(&of(&format!("{kind}, meanwhile,")), meanwhile, 0)?;
            }
        }
    }
    Ok(())
}

/// Exits in a second of the guest's time. HLT with its wakes and, with posted interrupts, the programming of the timer are
/// apart.
fn each_second(costs: &Costs) -> f64 {
    let apart = costs.exits_for_any(&["hlt", LATE_WAKE, "msr-apic-timer"]);
    costs.all_exits().saturating_sub(apart) as f64 / costs.seconds()
}
