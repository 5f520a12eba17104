//! What a guest may cost the control core: a flood of its consoles while nobody reads what comes out of COM2, and the
//! zeroing of its memory. And what its output may do to the operator's terminal.

use anyhow::{Context as _, Result, ensure};
use control::{Command, Event, GuestState, StopReason};
use serde_json::json;

use crate::boot::{Boot, Check, Shared, Wanted, alone};
use crate::counts::guest;
use crate::guests::{Guest, server};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::Session;

/// Bytes of a line of the flood.
const LINE_BYTES: u64 = 200;
/// Pings of the neighbour.
const PINGS: u64 = 20;
/// Bytes of nonsense on each port.
const NONSENSE: usize = 64 << 10;
/// What the guest keeps in its memory.
const SECRET: &[u8] = b"a secret that must not stay in memory";
/// MiB of secrets.
const SECRET_MIB: u64 = 4;
/// Memory of the large guest in MiB.
const LARGE_MIB: u32 = 512;
/// Commands that are answered at least while it is zeroed.
const ANSWERS: u64 = 10;
/// Ctrl-], which leaves a guest's console.
const LEAVE: &str = "\x1d";

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "a guest floods its UART and hvc0 and nobody reads COM2: commands on COM1 and COM2 are carried out, a neighbour is killed, started and pings";
    let zero = "a killed guest's memory is zeroes, as the emulator's monitor sees it; a guest of 512 MiB starts, and meanwhile commands are answered";
    let terminal = "a guest writes escape sequences, a prompt and an event: on the operator's terminal they do nothing, unless it is `attach --raw`";
    let shell = "on COM1, as a terminal shows it: TAB completes and lists, a message leaves a typed line whole, `top` under load, the audit";
    vec![
        alone(Scenario::new("console-flood", about, QEMU).taking_turns(), flood),
        Box::new(Shared {
            name: "terminal",
            about: "two small guests, and a scenario that types on COM1",
            start: start_terminal,
            end: |mut session| session.shut_down().map(drop),
            checks: vec![
                Check::new(
                    Scenario::new("terminal", terminal, QEMU),
                    terminals as fn(&mut Context<'_>, &mut Session) -> Result<()>,
                ),
                Check::new(Scenario::new("shell", shell, QEMU).taking_turns(), crate::cases::shell::run),
            ],
        }),
        alone(Scenario::new("guest-memory", zero, QEMU), zeroing),
    ]
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
    // The earlier output that `attach` shows has the former life's readiness in it, so the command may come too early.
    session.type_until(&format!("ping:{PINGS}\r"), "\"do\":\"ping\"", seconds(120))?;
    // The line of the result may still be on its way.
    session.shown(&format!("\"sent\":{PINGS},\"received\":{PINGS},"), begun, seconds(60))?;
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

/// What a terminal would obey, of what the action `escapes` writes.
const OBEYED: [&str; 8] = ["\x1b[2J", "\x1b[H", "\x1b[c", "\x1b[5n", "\x1b]0;", "\x1b[0;7m", "\x1b[?1049h", "\u{9b}2J"];

fn start_terminal(context: &mut Context<'_>, _: &Wanted<'_>) -> Result<Session> {
    let guests = [Guest::new(1).console("unused").then("obey"), Guest::new(2).then("obey")];
    let mut setup = server("terminal", &guests);
    setup.typed = true;
    let mut session = context.boot(&setup)?;
    session.all_obey(guests.iter().map(Guest::name))?;
    Ok(session)
}

fn terminals(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    for (command, obeyed) in [("attach a\r", 0), ("attach --raw a\r", OBEYED.len())] {
        let begun = session.console()?.len();
        session.type_in(command)?;
        session.act("a", "escapes", seconds(60))?;
        session.shown("escapes end", begun, seconds(60))?;
        let shown = session.console()?;
        let shown = shown.get(begun..).unwrap_or_default();
        let (_, shown) = shown.split_once("escapes begin").context("COM1 does not show where it begins")?;
        let found = OBEYED.iter().filter(|sequence| shown.contains(*sequence)).count();
        let of = |what: &str| format!("{}: {what}", command.trim_end());
        context.figures.exactly(&of("sequences that a terminal obeys"), found, obeyed)?;
        // `attach` shows earlier output too.
        context.figures.at_least(&of("times red"), shown.matches("\x1b[31mred").count(), 1)?;
        session.type_until(LEAVE, "left a", seconds(20))?;
    }
    // What the guest wrote as an event was none: guest b runs.
    let is_faked =
        |event: &&Event| matches!(event, Event::Guest { guest, state: GuestState::Stopped, .. } if guest == "b");
    let faked = session.unread().iter().filter(is_faked).count();
    context.figures.exactly("events that say that b has stopped", faked, 0)?;
    context.figures.exactly("guests that run", session.running()?, 2)
}

/// The memory of guest `name`, read by the emulator's monitor.
fn memory_of(session: &mut Session, name: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for region in session.guest(name)?.regions {
        let file = std::env::temp_dir().join(format!("sidecore-{}-memory", std::process::id()));
        session.monitor("pmemsave", &json!({ "val": region.start, "size": region.bytes, "filename": file }))?;
        bytes.append(&mut std::fs::read(&file)?);
        std::fs::remove_file(&file)?;
    }
    Ok(bytes)
}

fn zeroing(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let guests = [Guest::new(1).then("obey"), Guest::new(2).memory_mib(LARGE_MIB).started_later().then("obey")];
    let mut session = context.boot(&server("guest-memory", &guests))?;
    session.all_obey(["a"])?;
    session.act("a", &format!("secret:{SECRET_MIB}"), seconds(60))?;
    let before = memory_of(&mut session, "a")?;
    let secrets = before.windows(SECRET.len()).filter(|&part| part == SECRET).count();
    session.ask(Command::Kill("a".to_owned()), seconds(20))?;
    session.state("a", GuestState::Stopped, seconds(60))?;
    let after = memory_of(&mut session, "a")?;
    let figures = &mut context.figures;
    // A page may begin in the middle of one.
    figures.at_least(
        "secrets in the running guest's memory",
        secrets,
        (SECRET_MIB << 20) as usize / SECRET.len() * 9 / 10,
    )?;
    figures.exactly("bytes of the stopped guest's memory", after.len(), before.len())?;
    figures.exactly("bytes of it that are not zero", after.iter().filter(|&&byte| byte != 0).count(), 0)?;

    // Each command is sent when the one before is answered. While the control core zeroes, it answers none.
    session.ask(Command::Start("b".to_owned()), seconds(60))?;
    let mut answers = 0;
    while session.guest("b")?.state == GuestState::Starting {
        answers += 1;
    }
    context.figures.at_least("commands answered while guest b starts", answers, ANSWERS)?;
    session.all_obey(["b"])?;
    // The first life has used it. The second finds nothing of it.
    session.ask(Command::Start("a".to_owned()), seconds(20))?;
    session.all_obey(["a"])?;
    session.shut_down().map(drop)
}
