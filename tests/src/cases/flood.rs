//! A guest that floods its consoles while nobody reads what comes out of COM2. The operator and the neighbours notice
//! nothing.

use anyhow::{Result, ensure};
use control::{Command, Event, GuestState, StopReason};

use crate::boot::{Boot, alone};
use crate::counts::guest;
use crate::guests::{Guest, server};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};

/// Bytes of a line of the flood.
const LINE_BYTES: u64 = 200;
/// Pings of the neighbour.
const PINGS: u64 = 20;
/// Bytes of nonsense on each port.
const NONSENSE: usize = 64 << 10;
/// Ctrl-], which leaves a guest's console.
const LEAVE: &str = "\x1d";

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "a guest floods its UART and hvc0 and nobody reads COM2: commands on COM1 and COM2 are carried out, a neighbour is killed, started and pings";
    vec![alone(Scenario::new("console-flood", about, QEMU), flood)]
}

fn flood(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let guests =
        [Guest::new(1).console("unused").then("obey"), Guest::new(2).peer(3).then("obey"), Guest::new(3).then("obey")];
    let mut setup = server("console-flood", &guests);
    setup.typed = true;
    let mut session = context.boot(&setup)?;
    session.all_obey(guests.iter().map(Guest::name))?;
    session.act("a", &format!("console-flood:{LINE_BYTES}"), seconds(30))?;
    session.set_deaf(true);

    // Lines are dropped only when COM2 has taken nothing for a while. From here on it is stuck.
    session.type_until("show memory\r", "lines of a's console were lost", seconds(60))?;
    session.type_until("kill b\r", "guest b: stopped: killed", seconds(20))?;
    let begun = session.console()?.len();
    session.type_until("start b\r", "guest b: running", seconds(20))?;
    session.type_in("attach b\r")?;
    session.shown("\"do\":\"obey\"", begun, seconds(120))?;
    session.type_in(&format!("ping:{PINGS}\r"))?;
    let ping = session.shown("\"do\":\"ping\"", begun, seconds(60))?;
    ensure!(
        ping.contains(&format!("\"sent\":{PINGS},\"received\":{PINGS},")),
        "the neighbour's pings were not answered: {ping}"
    );
    session.type_in(LEAVE)?;
    session.shown("left b", begun, seconds(20))?;
    // The answer cannot be read, but the command is carried out.
    session.send(Command::Kill("c".to_owned()))?;
    session.shown("guest c: stopped: killed", begun, seconds(20))?;
    let nonsense = format!("{}\n", "x".repeat(99)).repeat(NONSENSE / 100);
    session.type_in(&nonsense)?;
    session.write_com2(nonsense.as_bytes())?;
    session.type_until("version\r", "sidecore 0.", seconds(60))?;

    session.set_deaf(false);
    session.wait("the event that tells what was dropped", seconds(60), |event| {
        matches!(event, Event::Dropped { guest: Some(guest), messages: 1.., .. } if guest == "a").then_some(())
    })?;
    session.ask(Command::Kill("a".to_owned()), seconds(60))?;
    let reason = session.state("a", GuestState::Stopped, seconds(60))?;
    ensure!(reason == Some(StopReason::Killed), "the flooding guest ended by {reason:?}");
    let counters = session.counters()?;
    context.figures.at_least("lines of the flood that were dropped", guest(&counters, "a")?.lines_dropped, 1)?;
    context.figures.exactly("lines of the others that were dropped", guest(&counters, "c")?.lines_dropped, 0)?;
    session.shut_down().map(drop)
}
