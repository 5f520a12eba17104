//! `top` on COM1 with seven guests of one engine, while two of them move a stream: a line of 115,200 baud can bear it.

use anyhow::{Result, ensure};
use control::{Command, GuestState};

use crate::boot::{Boot, alone};
use crate::counts::net;
use crate::guests::{Guest, server};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::terminal::{TOP_BYTES, bytes_of_top, com1, leave_top, screen, wait, wait_for_exits};

/// Most bytes that `top` sends in a second in which no guest does anything.
const QUIET_BYTES: u64 = 300;
/// Bytes that the stream has moved at least while `top` was watched.
const STREAM_BYTES: u64 = 1 << 20;

/// This scenario.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "`top` with seven guests of one engine, of which two move a TCP stream: at most 4,000 bytes a second, and 300 when all \
                 are down; the shell and COM2 answer meanwhile";
    vec![alone(Scenario::new("top-seven", about, QEMU).taking_turns(), top_seven)]
}

fn top_seven(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    // Guest a sends to b.
    let guest = |n: usize| {
        let guest = Guest::new(n);
        let guest = if n <= 2 { guest.full().peer(3 - n) } else { guest };
        guest.then("obey")
    };
    let guests: Vec<Guest> = (1..=7).map(guest).collect();
    let names: Vec<&str> = guests.iter().map(Guest::name).collect();
    let mut setup = server("top-seven", &guests);
    setup.typed = true;
    let mut session = context.boot(&setup)?;
    session.all_obey(names.iter().copied())?;
    session.act("b", "iperf-server", seconds(60))?;

    let from = com1(&session)?.len();
    session.type_until("\x15\r", "sidecore>", seconds(20))?;
    session.type_in("top\r")?;
    // It runs until the server is gone.
    session.tell("a", "iperf:600")?;
    wait_for_exits(&mut session, from, "a")?;
    let before = net(&session.counters()?, "a")?.tx_bytes;
    let busy = bytes_of_top(&mut session, from)?;
    let moved = net(&session.counters()?, "a")?.tx_bytes - before;
    let shown = screen(&session, from)?;
    let in_picture =
        names.iter().filter(|name| shown.lines().any(|line| line.starts_with(&format!("{name} ")))).count();
    leave_top(&mut session, from)?;
    ensure!(session.running()? == names.len(), "`list` on COM2 shows other guests");

    for name in &names {
        session.ask(Command::Kill((*name).to_owned()), seconds(60))?;
        session.state(name, GuestState::Stopped, seconds(60))?;
    }
    session.type_in("\x15top\r")?;
    wait(&mut session, from, "the picture without a guest that runs", |text| {
        text.contains("0 of 7 guests run").then_some(())
    })?;
    let quiet = bytes_of_top(&mut session, from)?;
    leave_top(&mut session, from)?;
    session.type_until("\x15list\r", "stopped", seconds(20))?;

    let figures = &mut context.figures;
    figures.exactly("guests in the picture", in_picture, names.len())?;
    figures.at_least("bytes that guest a has sent meanwhile", moved, STREAM_BYTES)?;
    figures.at_most("bytes a second of `top` with the stream", busy, TOP_BYTES)?;
    figures.at_most("bytes a second of `top` when all guests are down", quiet, QUIET_BYTES)?;
    session.shut_down().map(drop)
}
