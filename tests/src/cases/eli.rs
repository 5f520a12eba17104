//! Guests that own their local APICs while a shadow of their IDT keeps the host's vectors.

use anyhow::{Context as _, Result, ensure};
use control::{Command, Count, Counters, GuestState};

use super::exitless::{self, PINGS};
use super::network::number;
use crate::guests::{Guest, server, with_isolation};
use crate::scenario::{Context, EVERYWHERE, QEMU, Scenario, seconds};
use crate::session::guest_result;

/// What a shadow could make a guest exit for, beside what I/O could.
const SHADOW: [&str; 3] = ["shadow-interrupt", "shadow-write", "descriptor-table"];

/// These scenarios.
pub fn list() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "eli",
            about: "1,000 requests and replies with a shadow IDT: no exit for I/O or timer, and the host's vectors reach it",
            platforms: EVERYWHERE,
            slow_on_bochs: false,
            run: eli,
        },
        Scenario {
            name: "eli-smp",
            about: "two virtual CPUs with one shadow IDT: both at work, one goes offline and comes back by the host's vector",
            platforms: QEMU,
            slow_on_bochs: false,
            run: smp,
        },
        Scenario {
            name: "eli-restarts",
            about: "a guest with a shadow IDT is killed and started ten times under load; its neighbour is unharmed",
            platforms: QEMU,
            slow_on_bochs: false,
            run: restarts,
        },
        Scenario {
            name: "eli-hostile",
            about: "a guest moves, rewrites and uses up its shadowed IDT while interrupts arrive: none is lost, no one is harmed",
            platforms: EVERYWHERE,
            slow_on_bochs: false,
            run: hostile,
        },
    ]
}

/// Something that was counted of a shadow IDT.
fn count(counts: &[Count], kind: &str) -> u64 {
    counts.iter().find(|c| c.kind == kind).map_or(0, |c| c.count)
}

/// What was counted of a guest's.
fn of_guest<'a>(counters: &'a Counters, name: &str) -> &'a [Count] {
    counters.guest(name).map_or(&[], |g| &g.shadow_idt)
}

fn note(context: &mut Context<'_>, name: &str, counts: &[Count]) {
    for c in counts {
        context.figures.note(&format!("{name}: {}", c.kind), c.count);
    }
}

fn eli(context: &mut Context<'_>) -> Result<()> {
    for (name, w) in ["a", "b"].into_iter().zip(exitless::window(context, "eli")?) {
        let of = |what: &str| format!("{what} of {name}");
        let figures = &mut context.figures;
        figures.at_least(&of("packets"), w.costs.packets, 2 * PINGS)?;
        figures.at_least(&of("interrupts"), w.costs.interrupts, PINGS)?;
        figures.note(&of("exits, all"), w.costs.all_exits());
        figures.exactly(&of("exits for I/O, timer and shadow"), w.io_exits() + w.costs.exits_for_any(&SHADOW), 0)?;
        // All of this was said of a guest whose IDT was shadowed, by a shadow that had been tried.
        let before = |kind| count(&w.shadow_before, kind);
        figures.at_least(&of("times the IDT was shadowed before"), before("shadowed"), 1)?;
        figures.at_least(&of("interrupts of the host's through the shadow"), before("host-interrupts"), 1)?;
        for kind in ["idt-written", "idt-moved", "vectors-moved", "injected", "host-interrupts-by-exit"] {
            let meanwhile = count(&w.shadow_after, kind) - before(kind);
            figures.exactly(&of(&format!("{kind}, meanwhile,")), meanwhile, 0)?;
        }
        note(context, name, &w.shadow_after);
    }
    Ok(())
}

fn smp(context: &mut Context<'_>) -> Result<()> {
    let counters = exitless::smp(context, "eli")?;
    let counts = of_guest(&counters, "a");
    context.figures.at_least("virtual CPUs that came to rely on the shadow", count(counts, "shadowed"), 2)?;
    let through = count(counts, "host-interrupts");
    context.figures.at_least("interrupts of the host's through the shadow", through, 2)?;
    note(context, "a", counts);
    Ok(())
}

fn restarts(context: &mut Context<'_>) -> Result<()> {
    let counters = exitless::restarts(context, "eli")?;
    for name in ["a", "b"] {
        let counts = of_guest(&counters, name);
        let through = count(counts, "host-interrupts");
        context.figures.at_least(&format!("interrupts of the host's through {name}'s shadow"), through, 1)?;
        note(context, name, counts);
    }
    Ok(())
}

/// The hostile guest's entry in sidecore.toml.
const HOSTILE: &str = "[[guest]]\nname = \"hostile\"\nvcpus = 1\nmemory = \"64M\"\nkernel = \"isolation\"\n\
                       cmdline = \"only=idt shadowed hold\"\ncompletion = \"eli\"\n";

fn hostile(context: &mut Context<'_>) -> Result<()> {
    let neighbours = [Guest::new(1).peer(2).then("beat:100000"), Guest::new(2).then("wait")];
    let setup = with_isolation(server("eli-hostile", &neighbours.map(|g| g.completion("eli"))), HOSTILE);
    let mut session = context.boot(&setup)?;
    let mut wrong = Vec::new();
    let summary = session.wait("the hostile guest's summary", seconds(240), |event| {
        let ("hostile", result) = guest_result(event)? else { return None };
        if !result["broken"].is_null() || !result["allowed"].is_null() {
            wrong.push(result.to_string());
        }
        (result["kinds"].is_object()).then_some(result)
    })?;
    ensure!(wrong.is_empty(), "not as hardware would have it: {}", wrong.join("; "));
    let figures = &mut context.figures;
    let attempts = number(&summary["kinds"]["idt"], "attempts")?;
    figures.at_least("attempts", attempts, 2_000)?;
    figures.exactly("as hardware would have it", number(&summary["kinds"]["idt"], "refused")?, attempts)?;
    let counters = session.counters()?;
    let counts = of_guest(&counters, "hostile");
    figures.at_least("times the IDT was shadowed", count(counts, "shadowed"), 4)?;
    figures.at_least("times it was handed back for a write", count(counts, "idt-written"), 1)?;
    figures.at_least("times it was moved", count(counts, "idt-moved"), 1)?;
    figures.at_least("times the host left a vector to the guest", count(counts, "vectors-moved"), 1)?;
    figures.at_least("interrupts injected while there was no shadow", count(counts, "injected"), 1)?;
    note(context, "hostile", counts);
    // It spins with interrupts off now, and no vector of the host's gets through: NMI does.
    session.ask(Command::Kill("hostile".into()), seconds(30))?;
    session.state("hostile", GuestState::Stopped, seconds(30))?;
    let beat = session.result("a", "beat", seconds(60)).context("the neighbours' ping")?;
    let figures = &mut context.figures;
    figures.at_least("pings of the neighbours", number(&beat, "sent")?, 10)?;
    figures.exactly("answered", number(&beat, "received")?, number(&beat, "sent")?)?;
    session.shut_down()?;
    Ok(())
}
