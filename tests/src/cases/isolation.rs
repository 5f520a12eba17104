//! A guest that tries what it must not.

use anyhow::{Context as _, Result, ensure};
use control::{Event, GuestState};
use serde_json::Value;

use super::network::number;
use crate::guests::{Guest, server, with_isolation};
use crate::machine::Platform;
use crate::modes::{self, Completion};
use crate::scenario::{Context, EVERYWHERE, Scenario, seconds};
use crate::session::{Session, guest_result};

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

/// Of these, what depends on how I/O is completed.
const KINDS_OF_MODES: [&str; 6] = ["apic-page", "ioapic", "msr", "msr-value", "msix", "icr"];

/// These scenarios.
pub fn list() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "isolation",
            about: "a hostile guest is refused everything, and its neighbours' ping goes on",
            platforms: EVERYWHERE,
            slow_on_bochs: false,
            run: isolation,
        },
        Scenario {
            name: "isolation-modes",
            about: "a hostile guest in every mode of completion: what a mode could change is refused all the same",
            platforms: EVERYWHERE,
            slow_on_bochs: true,
            run: isolation_modes,
        },
    ]
}

/// The hostile guest's entry in sidecore.toml.
fn hostile(platform: Platform, mode: Completion, cmdline: &str) -> String {
    // In QEMU's local APIC reserved bits are not reserved, and IA32_TSC_DEADLINE is there whatever CPUID says. In Bochs' it is
    // so of the divide configuration's alone.
    let lenient = match platform {
        _ if !mode.owns_apic => "",
        Platform::Bochs => "lenient-divide",
        Platform::Kvm | Platform::Qemu => "lenient-apic",
    };
    format!(
        "[[guest]]\nname = \"hostile\"\nvcpus = 1\nmemory = \"64M\"\nkernel = \"isolation\"\n\
         cmdline = \"{cmdline} {lenient}\"\ncompletion = \"{}\"\n\n[[guest.net]]\nmac = \"52:54:00:00:00:99\"\n",
        mode.name
    )
}

/// In the mode that is the best there.
fn isolation(context: &mut Context<'_>) -> Result<()> {
    let mode = modes::best(context.platform());
    let neighbours = [Guest::new(1).peer(2).then("beat:100000"), Guest::new(2).then("wait")];
    let mut session = refused_everything(context, mode, "", &KINDS, &neighbours)?;
    // The neighbours were pinging all the while; what they say last must have no hole.
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
    context.figures.at_least("pings of the neighbours", number(most, "sent")?, 10)?;
    context.figures.exactly("answered", number(most, "received")?, number(most, "sent")?)?;
    session.shut_down()?;
    Ok(())
}

fn isolation_modes(context: &mut Context<'_>) -> Result<()> {
    for mode in modes::completions(context.platform()) {
        let only = format!("only={}", KINDS_OF_MODES.join(","));
        refused_everything(context, mode, &only, &KINDS_OF_MODES, &[])?.shut_down()?;
    }
    Ok(())
}

/// The hostile guest's whole life.
fn refused_everything(
    context: &mut Context<'_>,
    mode: Completion,
    cmdline: &str,
    wanted: &[&str],
    neighbours: &[Guest],
) -> Result<Session> {
    let setup = with_isolation(server("isolation", neighbours), &hostile(context.platform(), mode, cmdline));
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
    let of = |what: &str| format!("{}: {what}", mode.name);
    figures.at_least(&of("attempts"), number(&summary, "attempts")?, 1_000)?;
    let kinds = summary["kinds"].as_object().context("the summary has no kinds")?;
    for (kind, counts) in kinds {
        figures.at_least(&of(&format!("{kind}: attempts")), number(counts, "attempts")?, 1)?;
        figures.exactly(&of(&format!("{kind}: refused")), number(counts, "refused")?, number(counts, "attempts")?)?;
    }
    for kind in wanted {
        ensure!(kinds.contains_key(*kind), "the hostile guest did not try {kind}: {summary}");
    }
    figures.exactly(&of("attempts shown as allowed"), allowed, 0)?;
    figures.exactly(&of("refused"), number(&summary, "refused")?, number(&summary, "attempts")?)?;

    let counted = session.counters()?.guest("hostile").map_or(0, control::Guest::total_refusals);
    figures.at_least(&of("refusals that sidecore counted"), counted, 100)?;
    session.state("hostile", GuestState::Stopped, seconds(60))?;
    Ok(session)
}
