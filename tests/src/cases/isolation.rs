//! A guest that tries what it must not.

use anyhow::{Context as _, Result, ensure};
use control::{Event, GuestState};
use serde_json::Value;

use super::network::number;
use crate::guests::{Guest, server, with_isolation};
use crate::scenario::{Context, EVERYWHERE, Scenario, seconds};
use crate::session::guest_result;

/// What the hostile guest must have tried, whatever else it tries (the names of guest-drivers/isolation).
const KINDS: [&str; 11] = [
    "memory-above-top",
    "memory-below-1m",
    "host-image",
    "apic-page",
    "ioapic",
    "msr",
    "pci-config",
    "descriptor",
    "msix",
    "icr",
    "port",
];

/// These scenarios.
pub fn list() -> Vec<Scenario> {
    vec![Scenario {
        name: "isolation",
        about: "a hostile guest is refused everything, and its neighbours' ping goes on",
        platforms: EVERYWHERE,
        slow_on_bochs: false,
        run: isolation,
    }]
}

/// The hostile guest's entry in sidecore.toml.
const HOSTILE: &str = "[[guest]]\nname = \"hostile\"\nvcpus = 1\nmemory = \"64M\"\nkernel = \"isolation\"\n\n\
                       [[guest.net]]\nmac = \"52:54:00:00:00:99\"\n";

fn isolation(context: &mut Context<'_>) -> Result<()> {
    let neighbours = [Guest::new(1).peer(2).then("beat:100000"), Guest::new(2).then("wait")];
    let setup = with_isolation(server("isolation", &neighbours), HOSTILE);
    let mut session = context.boot(&setup)?;
    let mut broken = Vec::new();
    let mut allowed = 0_u64;
    let summary = session.wait("the hostile guest's summary", seconds(600), |event| {
        let ("hostile", result) = guest_result(event)? else { return None };
        if !result["broken"].is_null() {
            broken.push(result.to_string());
        }
        allowed += u64::from(!result["allowed"].is_null());
        (result["kinds"].is_object()).then_some(result)
    })?;
    ensure!(broken.is_empty(), "the hostile guest could not do its work: {}", broken.join("; "));
    let figures = &mut context.figures;
    figures.at_least("attempts", number(&summary, "attempts")?, 1_000)?;
    let kinds = summary["kinds"].as_object().context("the summary has no kinds")?;
    for (kind, counts) in kinds {
        figures.at_least(&format!("{kind}: attempts"), number(counts, "attempts")?, 1)?;
        figures.exactly(&format!("{kind}: refused"), number(counts, "refused")?, number(counts, "attempts")?)?;
    }
    for kind in KINDS {
        ensure!(kinds.contains_key(kind), "the hostile guest did not try {kind}: {summary}");
    }
    figures.exactly("attempts shown as allowed", allowed, 0)?;
    figures.exactly("refused", number(&summary, "refused")?, number(&summary, "attempts")?)?;

    let counted = session.counters()?.guest("hostile").map_or(0, control::Guest::total_refusals);
    figures.at_least("refusals that sidecore counted", counted, 100)?;
    // The neighbours were pinging all the while; what they say last must have no hole.
    session.state("hostile", GuestState::Stopped, seconds(60))?;
    let mut beats: Vec<Value> = Vec::new();
    for event in session.unread() {
        if let Event::Console { .. } = event
            && let Some(("a", result)) = guest_result(event)
            && result["do"] == "beat"
        {
            beats.push(result);
        }
    }
    beats.push(session.result("a", "beat", seconds(60))?);
    let most = beats.iter().max_by_key(|beat| beat["sent"].as_u64()).context("the neighbours did not ping")?;
    figures.at_least("pings of the neighbours", number(most, "sent")?, 10)?;
    figures.exactly("answered", number(most, "received")?, number(most, "sent")?)?;
    session.shut_down()?;
    Ok(())
}
