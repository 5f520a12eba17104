//! Guests that own their local APICs while a shadow of their IDT keeps the host's vectors.

use anyhow::{Context as _, Result, ensure};
use control::{Command, Count, GuestState};

use super::completions::{count, shadow};
use super::network::number;
use crate::guests::{Guest, server, with_isolation};
use crate::scenario::{Context, EVERYWHERE, Scenario, seconds};
use crate::session::guest_result;

/// These scenarios.
pub fn list() -> Vec<Scenario> {
    vec![Scenario {
        name: "eli-hostile",
        about: "a guest moves, rewrites and uses up its shadowed IDT while interrupts arrive: none is lost, no one is harmed",
        platforms: EVERYWHERE,
        slow_on_bochs: false,
        run: hostile,
    }]
}

fn note(context: &mut Context<'_>, name: &str, counts: &[Count]) {
    for c in counts {
        context.figures.note(&format!("{name}: {}", c.kind), c.count);
    }
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
    let counts = shadow(&counters, "hostile");
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
