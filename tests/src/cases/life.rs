//! How guests live and end.

use anyhow::{Result, ensure};
use control::{Command, GuestState, StopReason};

use super::completions;
use super::network::number;
use crate::guests::{Guest, server};
use crate::scenario::{Context, EVERYWHERE, Scenario, seconds};

/// These scenarios.
pub fn list() -> Vec<Scenario> {
    let scenario = |name, about, run| Scenario { name, about, platforms: EVERYWHERE, slow_on_bochs: false, run };
    // Linux starts in a minute there, and these start it once or more.
    let slow = |name, about, run| Scenario { slow_on_bochs: true, ..scenario(name, about, run) };
    vec![
        scenario("smp-guest", "two virtual CPUs, both at work; one goes offline and comes back", smp_guest),
        slow(
            "guest-triple-fault",
            "a triple fault ends its guest, which is restarted; no other is harmed",
            triple_fault,
        ),
        slow("power-button", "`stop` presses the power button, and the guest powers itself off", power_button),
        slow("guest-reset", "a guest that resets itself ends with that reason, and can be started", guest_reset),
    ]
}

fn smp_guest(context: &mut Context<'_>) -> Result<()> {
    let counters = completions::smp(context, "smp-guest", None)?;
    let exits: Vec<u64> = counters
        .guest("a")
        .map(|guest| guest.vcpus.iter().map(|vcpu| vcpu.exits.iter().map(|exit| exit.count).sum()).collect())
        .unwrap_or_default();
    context.figures.exactly("virtual CPUs counted", exits.len(), 2)?;
    for (vcpu, exits) in exits.into_iter().enumerate() {
        context.figures.at_least(&format!("exits of virtual CPU {vcpu}"), exits, 10)?;
    }
    Ok(())
}

fn triple_fault(context: &mut Context<'_>) -> Result<()> {
    let guests = [
        Guest::new(1).restarted().kernel_option("reboot=t").then("sleep:2").then("triple-fault"),
        Guest::new(2).peer(3).then("beat:100000"),
        Guest::new(3).then("wait"),
    ];
    let mut session = context.boot(&server("guest-triple-fault", &guests))?;
    session.result("a", "up", seconds(120))?;
    session.result("b", "beat", seconds(120))?;
    let reason = session.state("a", GuestState::Stopped, seconds(60))?;
    ensure!(reason == Some(StopReason::TripleFault), "guest a stopped for {reason:?}");
    session.result("a", "up", seconds(120))?;
    let starts = session.counters()?.guest("a").map_or(0, |guest| guest.starts);
    context.figures.at_least("starts of the guest that faults", starts, 2)?;
    // Beats already reported belong to the time before; ten more come from the time after the restart.
    let before = latest_beat(&mut session)?;
    let after = loop {
        let beat = session.result("b", "beat", seconds(60))?;
        if number(&beat, "sent")? >= before + 50 {
            break beat;
        }
    };
    context.figures.at_least("pings of the neighbours", number(&after, "sent")?, 50)?;
    context.figures.exactly("answered", number(&after, "received")?, number(&after, "sent")?)?;
    session.shut_down()?;
    Ok(())
}

/// Pings sent so far by guest b as it last said.
fn latest_beat(session: &mut crate::session::Session) -> Result<u64> {
    let mut latest = number(&session.result("b", "beat", seconds(60))?, "sent")?;
    for event in session.unread() {
        if let Some(("b", result)) = crate::session::guest_result(event)
            && result["do"] == "beat"
        {
            latest = latest.max(number(&result, "sent")?);
        }
    }
    Ok(latest)
}

fn power_button(context: &mut Context<'_>) -> Result<()> {
    let mut session = context.boot(&server("power-button", &[Guest::new(1).then("button")]))?;
    session.result("a", "button", seconds(120))?;
    session.ask(Command::Stop("a".to_owned()), seconds(20))?;
    let pressed = session.result("a", "button", seconds(20))?;
    context.figures.exactly("presses the guest saw", usize::from(pressed["pressed"] == true), 1)?;
    let reason = session.state("a", GuestState::Stopped, seconds(30))?;
    ensure!(reason == Some(StopReason::PowerOff), "guest a stopped for {reason:?}");
    session.shut_down()?;
    Ok(())
}

fn guest_reset(context: &mut Context<'_>) -> Result<()> {
    let mut session = context.boot(&server("guest-reset", &[Guest::new(1).then("reboot")]))?;
    for life in 1..=2 {
        session.result("a", "up", seconds(120))?;
        session.result("a", "reboot", seconds(60))?;
        let reason = session.state("a", GuestState::Stopped, seconds(60))?;
        ensure!(reason == Some(StopReason::Reset), "guest a stopped for {reason:?} in life {life}");
        if life == 1 {
            session.ask(Command::Start("a".to_owned()), seconds(20))?;
        }
    }
    let starts = session.counters()?.guest("a").map_or(0, |guest| guest.starts);
    context.figures.exactly("starts", starts, 2)?;
    session.shut_down()?;
    Ok(())
}
