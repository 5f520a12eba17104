//! Checks the exits of two Linux guests under a steady load against the promises of their modes of completion.

use anyhow::Result;

use crate::costs::Costs;
use crate::counts::{count, shadow};
use crate::modes::{self, Completion};
use crate::platform::Platform;
use crate::scenario::Context;
use crate::session::number;
use crate::steady::{Steady, Window};
use crate::tcp;

/// Most exits of a loaded guest in a second of its time. I/O causes none of them.
const EACH_SECOND: f64 = 50.0;
/// Reason of exits by an NMI that should wake a vCPU from a HLT exit, and found it awake.
const LATE_WAKE: &str = "late-wake";

/// Runs requests that are answered one by one, then a stream, between the guests of `load`. `completions`: the modes of
/// the guest that asks, and of the other one.
pub fn cost(context: &mut Context<'_>, load: &mut Steady<'_>, completions: [&str; 2]) -> Result<()> {
    let modes = completions.map(modes::named);
    // A reading of the counters takes a fifth of a second of Bochs' time, and the load has to last for several
    // readings.
    let transactions = if modes[0].exits { 2_000 } else { context.times(10_000, 4_000) };
    // In nested KVM a reading takes seconds.
    let tcp_seconds = if context.platform() == Platform::Nested { 20 } else { context.times(5, 2) };

    let udp = load.act(&format!("udp:{transactions}"))?;
    let whole = udp.whole(load.asks())?;
    let figures = &mut context.figures;
    // On a busy machine an answer may come later than the guest waits for it.
    figures.note("udp: requests repeated", number(&udp.said, "again")?);
    let asks = load.asks();
    figures.at_least(&format!("udp: interrupts of {asks}"), whole.interrupts, transactions)?;
    figures.exactly("udp: of these in its /proc/interrupts", udp.taken, whole.interrupts)?;
    held(context, "udp", load, &udp, modes, transactions / 2)?;

    let stream = load.act(&format!("iperf:{tcp_seconds}"))?;
    let [before, after] = &stream.whole;
    let dropped = tcp::dropped(before, after, &[load.asks(), load.serves()])?;
    let least = context.times(2_000_000, 400_000);
    tcp::lasted(&mut context.figures, "of the stream", &stream.said, least, dropped)?;
    held(context, "tcp", load, &stream, modes, 100)
}

/// Checks each guest under a load against the promises of its mode. In the window that was counted, each guest must
/// have a least number of packets.
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
            // The contrast shows that the counts can differ from 0. A stream is batched, so it is left out.
            if load == "udp" {
                figures.at_least(&of("exits"), costs.all_exits(), costs.packets)?;
                let kicks = costs.exits_for("io-virtio-notify");
                // While the engine still looks at the queue, a request needs no notification.
                figures.at_least(&of("of these for notifications"), kicks, costs.packets / 20)?;
            }
            continue;
        }
        figures.exactly(&of("exits for I/O"), costs.io_exits(), 0)?;
        // If HLT exits, somebody has to wake the vCPU, which may have woken by itself just before.
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
            // The checks above are only valid if the guest's IDT was shadowed, and the shadow was in use.
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

/// Exits in a second of the guest's time. Left out are HLT and its wakes and, with posted interrupts, the programming
/// of the timer.
fn each_second(costs: &Costs) -> f64 {
    let apart = costs.exits_for_any(&["hlt", LATE_WAKE, "msr-apic-timer"]);
    costs.all_exits().saturating_sub(apart) as f64 / costs.seconds()
}
