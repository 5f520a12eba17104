//! Guests that try what a guest must not do, and one that abuses the shadow of its IDT.

use anyhow::{Context as _, Result, ensure};
use control::{Command, Count, Event, GuestState};
use serde_json::Value;

use crate::boot::{Boot, Check, Shared, Wanted};
use crate::counts::{count, shadow};
use crate::guests::{Guest, server, with_isolation};
use crate::modes::{self, Completion};
use crate::platform::{ALSO_NESTED, EVERYWHERE, NESTED, Platform, QEMU};
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, guest_result, number};

/// Kinds of attempts that the hostile guest must have made, among others (the names of guest-drivers/isolation).
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

/// Of these, the kinds that depend on the mode of completion.
const KINDS_OF_MODES: [&str; 6] = ["apic-page", "ioapic", "msr", "msr-value", "msix", "icr"];

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    // Nested KVM runs these only if all is wanted: one takes a quarter of an hour there.
    let nested_too = |name, about| Scenario::new(name, about, ALSO_NESTED).rarely_on(NESTED);
    vec![Box::new(Shared {
        name: "isolation",
        about: "a pings b all the while; hostile guests are started one after another, one in each way of completion",
        start,
        end: |mut session| session.shut_down().map(drop),
        checks: vec![
            Check::new(
                nested_too("isolation", "a hostile guest is refused everything, and its neighbours' ping goes on")
                    .checked_on(QEMU),
                isolation,
            ),
            Check::new(
                nested_too(
                    "isolation-modes",
                    "a hostile guest in every mode of completion: what a mode could change is refused all the same",
                ),
                isolation_modes,
            ),
            Check::new(
                Scenario::new(
                    "eli-hostile",
                    "a guest moves, rewrites and uses up its shadowed IDT while interrupts arrive: none is lost, no one is harmed",
                    EVERYWHERE,
                )
                .checked_on(QEMU),
                eli_hostile,
            ),
        ],
    })]
}

fn start(context: &mut Context<'_>, wanted: &Wanted<'_>) -> Result<Session> {
    let (every, eli) = (wanted.any(&["isolation"]), wanted.any(&["eli-hostile"]));
    let mut setup = server("isolation", &[]);
    if every || eli {
        let neighbours = [Guest::new(1).peer(2).then("beat:100000"), Guest::new(2).then("wait")];
        // If both are wanted, the neighbours get `eli` by default.
        let neighbours = neighbours.map(|guest| if every { guest } else { guest.completion("eli") });
        setup = server("isolation", &neighbours);
    }
    let platform = context.platform();
    if every {
        setup = with_isolation(setup, &hostile("hostile", 0x99, platform, modes::best(platform), ""));
    }
    if wanted.any(&["isolation-modes"]) {
        let only = format!("only={}", KINDS_OF_MODES.join(","));
        for (mac, mode) in (0xa0..).zip(modes::completions(platform)) {
            setup = with_isolation(setup, &hostile(&hostile_in(mode), mac, platform, mode, &only));
        }
    }
    if eli {
        setup = with_isolation(setup, ABUSES_ITS_IDT);
    }
    let mut session = context.boot(&setup)?;
    session.answers()?;
    Ok(session)
}

/// The name of the hostile guest with this mode of completion.
fn hostile_in(mode: Completion) -> String {
    format!("hostile-{}", mode.name)
}

/// The entry of a hostile guest in sidecore.toml.
fn hostile(name: &str, mac: u8, platform: Platform, mode: Completion, cmdline: &str) -> String {
    // QEMU's local APIC accepts reserved bits, and has IA32_TSC_DEADLINE even if CPUID does not. Bochs' local APIC
    // accepts only the reserved bits of the divide configuration.
    let lenient = match platform {
        _ if !mode.owns_apic => "",
        Platform::Bochs => "lenient-divide",
        Platform::Kvm | Platform::Qemu | Platform::Nested => "lenient-apic",
    };
    format!(
        "[[guest]]\nname = \"{name}\"\nvcpus = 1\nmemory = \"64M\"\nkernel = \"isolation\"\nautostart = false\n\
         cmdline = \"{cmdline} {lenient}\"\ncompletion = \"{}\"\n\n[[guest.net]]\nmac = \"52:54:00:00:00:{mac:02x}\"\n\n",
        mode.name
    )
}

/// The entry of the guest that abuses its shadowed IDT.
const ABUSES_ITS_IDT: &str = "[[guest]]\nname = \"hostile-idt\"\nvcpus = 1\nmemory = \"64M\"\nkernel = \"isolation\"\n\
                              autostart = false\ncmdline = \"only=idt shadowed hold\"\ncompletion = \"eli\"\n\n";

fn begin(session: &mut Session, name: &str) -> Result<()> {
    session.ask(Command::Start(name.to_owned()), seconds(20)).map(drop)
}

/// The hostile guest in the platform's best mode.
fn isolation(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    session.result("a", "beat", seconds(240))?;
    refused_everything(context, session, "hostile", modes::best(context.platform()), &KINDS)?;
    // The neighbours pinged all the time. Their last report must have no gap.
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
    context.figures.exactly("answered", number(most, "received")?, number(most, "sent")?)
}

fn isolation_modes(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    for mode in modes::completions(context.platform()) {
        refused_everything(context, session, &hostile_in(mode), mode, &KINDS_OF_MODES)?;
    }
    Ok(())
}

/// Follows the whole life of hostile guest `name`, and checks that everything was refused.
fn refused_everything(
    context: &mut Context<'_>,
    session: &mut Session,
    name: &str,
    mode: Completion,
    wanted: &[&str],
) -> Result<()> {
    begin(session, name)?;
    let mut broken = Vec::new();
    let mut allowed = 0_u64;
    let summary = session.wait("the hostile guest's summary", seconds(600), |event| {
        let (from, result) = guest_result(event)?;
        if from != name {
            return None;
        }
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

    let counted = session.counters()?.guest(name).map_or(0, control::Guest::total_refusals);
    figures.at_least(&of("refusals that sidecore counted"), counted, 100)?;
    session.state(name, GuestState::Stopped, seconds(60)).map(drop)
}

fn note(context: &mut Context<'_>, name: &str, counts: &[Count]) {
    for c in counts {
        context.figures.note(&format!("{name}: {}", c.kind), c.count);
    }
}

fn eli_hostile(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    const NAME: &str = "hostile-idt";
    begin(session, NAME)?;
    let mut wrong = Vec::new();
    let summary = session.wait("the hostile guest's summary", seconds(240), |event| {
        let (NAME, result) = guest_result(event)? else { return None };
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
    let counts = shadow(&counters, NAME);
    figures.at_least("times the IDT was shadowed", count(counts, "shadowed"), 4)?;
    figures.at_least("times it was handed back for a write", count(counts, "idt-written"), 1)?;
    figures.at_least("times it was moved", count(counts, "idt-moved"), 1)?;
    figures.at_least("times the host left a vector to the guest", count(counts, "vectors-moved"), 1)?;
    figures.at_least("interrupts injected while there was no shadow", count(counts, "injected"), 1)?;
    note(context, NAME, counts);
    // The guest now spins with interrupts off. No vector of the host gets through, but an NMI does.
    session.ask(Command::Kill(NAME.into()), seconds(30))?;
    session.state(NAME, GuestState::Stopped, seconds(30))?;
    let beat = session.result("a", "beat", seconds(60)).context("the neighbours' ping")?;
    let figures = &mut context.figures;
    figures.at_least("pings of the neighbours", number(&beat, "sent")?, 10)?;
    figures.exactly("answered", number(&beat, "received")?, number(&beat, "sent")?)
}
