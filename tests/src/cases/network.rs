//! Seven guests on one engine. Each talks to all others.

use anyhow::Result;

use crate::boot::{Boot, alone};
use crate::guests::{Guest, address, scheduling, server};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::number;
use crate::setup::Setup;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let per = "seven guests on one engine with `scheduling = \"per-device\"`, each reaches all others";
    vec![
        alone(Scenario::new("per-device", per, QEMU).taking_turns(), per_device),
        alone(
            Scenario::new("seven-guests", "seven guests on one engine, each reaches all others", QEMU).taking_turns(),
            seven_guests,
        ),
    ]
}

fn seven_guests(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    among_seven(context, |guests| server("seven-guests", guests))
}

fn per_device(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    among_seven(context, |guests| scheduling(server("per-device", guests), "per-device"))
}

fn among_seven(context: &mut Context<'_>, setup: fn(&[Guest]) -> Setup) -> Result<()> {
    const PINGS: u64 = 10;
    let guest = |number: usize| {
        let others = (1..=7).filter(|other| *other != number);
        let guest = Guest::new(number);
        others.fold(guest, |guest, other| guest.then(format!("ping:{PINGS}:{}", address(other)))).then("wait")
    };
    let guests: Vec<Guest> = (1..=7).map(guest).collect();
    let mut session = context.boot(&setup(&guests))?;
    let (mut pairs, mut answered) = (0_u64, 0);
    for guest in &guests {
        for _ in 1..guests.len() {
            let ping = session.result(guest.name(), "ping", seconds(300))?;
            answered += number(&ping, "received")?;
            pairs += u64::from(number(&ping, "received")? == PINGS);
        }
    }
    context.figures.exactly("pings answered", answered, 42 * PINGS)?;
    context.figures.exactly("pairs that reach each other", pairs, 42)?;
    let counters = session.counters()?;
    context.figures.exactly("engines", counters.engines.len(), 1)?;
    context.figures.exactly("guests", counters.guests.len(), 7)?;
    session.shut_down()?;
    Ok(())
}
