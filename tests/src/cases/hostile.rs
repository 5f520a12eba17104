//! Guests that abuse their own interrupts, in every mode of completion. They must not harm anybody else.

use anyhow::{Result, ensure};
use control::{Command, GuestState, StopReason};

use crate::boot::{Boot, alone};
use crate::costs::Costs;
use crate::modes;
use crate::platform::{BOCHS, EVERYWHERE, Platform, QEMU};
use crate::probes::{Probe, act, in_turn};
use crate::scenario::{Context, Scenario, seconds};
use crate::session::number;

/// Rounds of each abuse.
const ROUNDS: u64 = 500;
const ROUNDS_ON_BOCHS: u64 = 50;
/// Abuses that end by themselves.
const ABUSES: [&str; 6] = ["icr", "idt-across-pages", "idt-writes", "every-vector", "tpr", "msix-masks"];
/// Requests of the neighbours during the abuse, and again after it.
const REQUESTS: u64 = 2_000;
const REQUESTS_ON_BOCHS: u64 = 300;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let interrupts = "guests flood their ICR, move and rewrite their IDT, mask MSI-X, raise their TPR, loop in #DB: their neighbours lose nothing";
    let alignment_about =
        "a guest loops in #AC with interrupts closed: its neighbours lose nothing, and it can be killed";
    // QEMU's translator does not check alignment.
    let checked = &[Platform::Kvm, Platform::Bochs];
    vec![
        alone(Scenario::new("hostile", interrupts, EVERYWHERE).longer_on(BOCHS).checked_on(QEMU), hostile),
        alone(Scenario::new("hostile-alignment", alignment_about, checked).longer_on(BOCHS), alignment),
    ]
}

/// A group of probes for each mode of completion. Probes are numbered through all groups.
fn groups(modes: &[&str], group: impl Fn(usize, &str) -> Vec<Probe>) -> Vec<Vec<Probe>> {
    (0..).map(|index| 10 * index).zip(modes).map(|(first, mode)| group(first, mode)).collect()
}

fn hostile(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let (rounds, requests) = (context.times(ROUNDS, ROUNDS_ON_BOCHS), context.times(REQUESTS, REQUESTS_ON_BOCHS));
    // QEMU itself fails an assertion if the #DB of a breakpoint exits while the guest delivers a #DB.
    let deep = u8::from(!context.platform().is_qemu());
    let modes: Vec<&str> = modes::completions(context.platform()).map(|mode| mode.name).collect();
    let groups = groups(&modes, |first, mode| {
        vec![
            Probe::new(first + 1, mode, "serve"),
            Probe::new(first + 2, mode, &format!("requests:{requests},requests:{requests}")).peer(first + 1),
            Probe::new(first + 3, mode, &format!("abuse:{rounds},stick:{deep}")),
            Probe::new(first + 4, mode, "fall"),
        ]
    });
    in_turn(context, "hostile", &groups, |context, session, group| {
        let mode = modes[group];
        let [_, client, abuser, faller] = groups[group].as_slice() else { unreachable!("there are four") };
        // The guest has ended by a triple fault of its own. It is started again, and ends again.
        for _ in 0..2 {
            let reason = session.state(&faller.name(), GuestState::Stopped, seconds(60))?;
            ensure!(
                reason == Some(StopReason::TripleFault),
                "{mode}: the IDT of nonsense ended its guest by {reason:?}"
            );
            session.ask(Command::Start(faller.name()), seconds(20))?;
        }
        let (answered, _) = act(session, &client.name(), "requests")?;
        let what = format!("{mode}: neighbour's requests answered");
        context.figures.exactly(&what, number(&answered, "count")?, requests)?;
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
        // While the guest is stuck, its neighbours go on, and it can be killed.
        let (answered, _) = act(session, &client.name(), "requests")?;
        context.figures.exactly(&format!("{mode}: and while it is stuck"), number(&answered, "count")?, requests)?;
        session.ask(Command::Kill(abuser.name()), seconds(20))?;
        let reason = session.state(&abuser.name(), GuestState::Stopped, seconds(60))?;
        ensure!(reason == Some(StopReason::Killed), "{mode}: the stuck guest ended by {reason:?}");
        Ok(())
    })
}

fn alignment(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let requests = context.times(REQUESTS, REQUESTS_ON_BOCHS);
    let modes: Vec<&str> = modes::completions(context.platform()).map(|mode| mode.name).collect();
    let groups = groups(&modes, |first, mode| {
        vec![
            Probe::new(first + 1, mode, "serve"),
            Probe::new(first + 2, mode, &format!("requests:{requests}")).peer(first + 1),
            Probe::new(first + 3, mode, "misaligned"),
        ]
    });
    in_turn(context, "hostile-alignment", &groups, |context, session, group| {
        let mode = modes[group];
        let [_, client, looping] = groups[group].as_slice() else { unreachable!("there are three") };
        session.result(&looping.name(), "stick", seconds(60))?;
        let (answered, counters) = act(session, &client.name(), "requests")?;
        let figures = &mut context.figures;
        figures.exactly(&format!("{mode}: neighbour's requests answered"), number(&answered, "count")?, requests)?;
        // The guest did loop in the meantime, and each round made an exit.
        let costs = Costs::between(&counters, &looping.name())?;
        figures.at_least(&format!("{mode}: exceptions of the guest that loops"), costs.exits_for("exception"), 100)?;
        session.ask(Command::Kill(looping.name()), seconds(20))?;
        let reason = session.state(&looping.name(), GuestState::Stopped, seconds(60))?;
        ensure!(reason == Some(StopReason::Killed), "{mode}: the guest that loops ended by {reason:?}");
        Ok(())
    })
}
