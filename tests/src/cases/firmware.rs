//! Guests that start by the PVH entry: Linux as an ELF file, and firmware.

use anyhow::Result;
use control::{Command, Event};

use crate::boot::{Boot, Check, Shared, Wanted};
use crate::cases::smp;
use crate::counts::{exits, net, notify_exits};
use crate::guests::{Guest, server, with_edk2};
use crate::platform::{EVERYWHERE, QEMU};
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};

/// Pings of the Linux guests.
const PINGS: u64 = 200;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let memory = "`notify_bar = \"memory\"`: a guest notifies by stores, none is lost";
    let edk2_alone = "EDK2 starts, and says on its console that it found nothing to boot";
    vec![Box::new(Shared {
        name: "firmware",
        about: "a is Linux as an ELF file, with two virtual CPUs; b is a bzImage with notification words in memory; e has EDK2",
        start,
        end: |mut session| session.shut_down().map(drop),
        checks: vec![
            Check::new(
                Scenario::new("pvh", "Linux starts by the PVH entry with two virtual CPUs, and pings", EVERYWHERE),
                pvh as fn(&mut Context<'_>, &mut Session) -> Result<()>,
            ),
            Check::new(Scenario::new("notify-memory", memory, EVERYWHERE), notify_memory),
            Check::new(Scenario::new("firmware-edk2", edk2_alone, QEMU).taking_turns(), edk2),
        ],
    })]
}

fn start(context: &mut Context<'_>, wanted: &Wanted<'_>) -> Result<Session> {
    let mut guests = Vec::new();
    if wanted.any(&["pvh", "notify-memory"]) {
        guests.push(Guest::new(1).pvh().vcpus(2).peer(2).then("obey"));
        guests.push(Guest::new(2).notify_bar("memory").requests("notify").peer(1).then("obey"));
    }
    let mut setup = server("firmware", &guests);
    if wanted.any(&["firmware-edk2"]) {
        setup = with_edk2(setup, "e", "autostart = false\n");
    }
    let mut session = context.boot(&setup)?;
    session.all_obey(guests.iter().map(Guest::name))?;
    Ok(session)
}

fn pvh(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    smp::both_at_work(context, session, "a")?;
    let pinged = session.act("a", &format!("ping:{PINGS}"), seconds(120))?;
    context.figures.exactly("pings answered", number(&pinged, "received")?, PINGS)
}

fn notify_memory(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    let before = session.counters()?;
    let pinged = session.act("b", &format!("ping:{PINGS}"), seconds(120))?;
    let after = session.counters()?;
    let stores =
        |counters| -> Result<u64> { Ok(exits(counters, "b")?.get("mmio-virtio-notify").copied().unwrap_or(0)) };
    let figures = &mut context.figures;
    figures.exactly("pings answered", number(&pinged, "received")?, PINGS)?;
    // On a busy host the engine may not have armed the queue again when the next ping comes, which then needs none.
    figures.at_least("notifications by a store", stores(&after)? - stores(&before)?, PINGS / 4)?;
    figures.exactly("of all its notifications, by a store", stores(&after)?, net(&after, "b")?.kicks)?;
    figures.exactly("notifications by a port", notify_exits(&after, "b"), 0)
}

/// EDK2 finds no disk and no network to boot from. Its boot manager says so after it has looked at each device.
fn edk2(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    session.ask(Command::Start("e".to_owned()), seconds(20))?;
    let nothing = session.wait("the last words of EDK2's boot manager", seconds(180), |event| match event {
        Event::Console { guest, line } if guest == "e" && line.contains("BdsDxe: ") => {
            Some(line.contains("No bootable option or device was found"))
        }
        _ => None,
    })?;
    context.figures.exactly("boot managers that found nothing to boot", u64::from(nothing), 1)
}
