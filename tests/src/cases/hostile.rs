//! Guests that abuse their own interrupts, in every mode of completion: they harm themselves, and nobody else.

use anyhow::{Result, ensure};
use control::{Command, GuestState, StopReason};

use super::network::number;
use crate::costs::Costs;
use crate::machine::Platform;
use crate::modes;
use crate::probes::{Probe, act, server};
use crate::scenario::{Context, EVERYWHERE, Scenario, seconds};

/// Rounds of each abuse.
const ROUNDS: u64 = 500;
const ROUNDS_ON_BOCHS: u64 = 50;
/// Abuses that end by themselves.
const ABUSES: [&str; 6] = ["icr", "idt-across-pages", "idt-writes", "every-vector", "tpr", "msix-masks"];
/// Requests of the neighbours meanwhile, and again after it.
const REQUESTS: u64 = 2_000;
const REQUESTS_ON_BOCHS: u64 = 300;

/// These scenarios.
pub fn list() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "hostile",
            about: "guests flood their ICR, move and rewrite their IDT, mask MSI-X, raise their TPR, loop in #DB: their neighbours lose nothing",
            platforms: EVERYWHERE,
            slow_on_bochs: true,
            run: hostile,
        },
        Scenario {
            name: "hostile-alignment",
            about: "a guest loops in #AC with interrupts closed: its neighbours lose nothing, and it can be killed",
            // QEMU's translator does not check alignment.
            platforms: &[Platform::Kvm, Platform::Bochs],
            slow_on_bochs: true,
            run: alignment,
        },
    ]
}

fn hostile(context: &mut Context<'_>) -> Result<()> {
    let (rounds, requests) = (context.times(ROUNDS, ROUNDS_ON_BOCHS), context.times(REQUESTS, REQUESTS_ON_BOCHS));
    for mode in modes::completions(context.platform()) {
        let mode = mode.name;
        let neighbours = [
            Probe::new(1, mode, "serve"),
            Probe::new(2, mode, &format!("requests:{requests},requests:{requests}")).peer(1),
        ];
        let [server_probe, client] = &neighbours;
        // QEMU itself ends at an assertion when a breakpoint's #DB leaves its guest while it delivers a #DB.
        let deep = u8::from(!context.platform().is_qemu());
        let abuser = Probe::new(3, mode, &format!("abuse:{rounds},stick:{deep}"));
        let faller = Probe::new(4, mode, "fall");
        let probes = [server_probe.clone(), client.clone(), abuser.clone(), faller.clone()];
        let mut session = context.boot(&server("hostile", &probes))?;

        // It has fallen by itself; what is left of it is started again, and falls again.
        for _ in 0..2 {
            let reason = session.state(&faller.name(), GuestState::Stopped, seconds(60))?;
            ensure!(
                reason == Some(StopReason::TripleFault),
                "{mode}: the IDT of nonsense ended its guest by {reason:?}"
            );
            session.ask(Command::Start(faller.name()), seconds(20))?;
        }
        let (answered, _) = act(&mut session, &client.name(), "requests")?;
        context.figures.exactly(
            &format!("{mode}: neighbour's requests answered"),
            number(&answered, "count")?,
            requests,
        )?;
        for what in ABUSES {
            let said = session.result(&abuser.name(), "abused", seconds(120))?;
            ensure!(said["what"] == what, "{mode}: expected {what}, got {said}");
            context.figures.exactly(
                &format!("{mode}: interrupts of the guest that does {what}"),
                number(&said, "arrived")?,
                number(&said, "rounds")?,
            )?;
        }
        session.result(&abuser.name(), "stick", seconds(60))?;
        // While it is stuck the neighbours go on, and it can be killed.
        let (answered, _) = act(&mut session, &client.name(), "requests")?;
        context.figures.exactly(&format!("{mode}: and while it is stuck"), number(&answered, "count")?, requests)?;
        session.ask(Command::Kill(abuser.name()), seconds(20))?;
        let reason = session.state(&abuser.name(), GuestState::Stopped, seconds(60))?;
        ensure!(reason == Some(StopReason::Killed), "{mode}: the stuck guest ended by {reason:?}");
        session.shut_down()?;
    }
    Ok(())
}

fn alignment(context: &mut Context<'_>) -> Result<()> {
    let requests = context.times(REQUESTS, REQUESTS_ON_BOCHS);
    for mode in modes::completions(context.platform()) {
        let mode = mode.name;
        let looping = Probe::new(3, mode, "misaligned");
        let client = Probe::new(2, mode, &format!("requests:{requests}")).peer(1);
        let probes = [Probe::new(1, mode, "serve"), client.clone(), looping.clone()];
        let mut session = context.boot(&server("hostile-alignment", &probes))?;
        session.result(&looping.name(), "stick", seconds(60))?;
        let (answered, counters) = act(&mut session, &client.name(), "requests")?;
        let figures = &mut context.figures;
        figures.exactly(&format!("{mode}: neighbour's requests answered"), number(&answered, "count")?, requests)?;
        // It did loop meanwhile, and each round exited.
        let costs = Costs::between(&counters, &looping.name())?;
        figures.at_least(&format!("{mode}: exceptions of the guest that loops"), costs.exits_for("exception"), 100)?;
        session.ask(Command::Kill(looping.name()), seconds(20))?;
        let reason = session.state(&looping.name(), GuestState::Stopped, seconds(60))?;
        ensure!(reason == Some(StopReason::Killed), "{mode}: the guest that loops ended by {reason:?}");
        session.shut_down()?;
    }
    Ok(())
}
