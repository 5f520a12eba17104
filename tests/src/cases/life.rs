//! The life of guests: resets, faults, the power button, restarts; the entropy device over two lives; and the console
//! device.

use anyhow::{Result, ensure};
use control::{Command, Counters, Event, GuestState, StopReason};

use crate::boot::{Boot, Check, Shared, Wanted};
use crate::costs::Costs;
use crate::counts::{console as console_of, entropy, guest, io_exits, starts};
use crate::guests::{Guest, server};
use crate::platform::{ALSO_NESTED, EVERYWHERE, NESTED};
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, guest_result, number};

/// Random bytes that the guest reads in each of two lives.
const RANDOM_BYTES: u64 = 64 << 10;

/// Lines of 64 bytes that the guest writes to its console device: 100 KiB.
const LINES: u64 = 1600;
/// Lines that it writes to its UART.
const UART_LINES: u64 = 16;
/// Bytes of such a line.
const LINE_BYTES: u64 = 64;
/// The named port of the guest's console device.
const PORT: &str = "echo";

/// These scenarios. `guest-triple-fault` comes last, because its guests go on without end.
pub fn list() -> Vec<Box<dyn Boot>> {
    let check = |name, about, run| Check::new(Scenario::new(name, about, EVERYWHERE), run);
    vec![Box::new(Shared {
        name: "lives",
        about: "four small guests: one that faults and is restarted, two neighbours, one with an entropy and a console device that ends when told to",
        start,
        end: |mut session| session.shut_down().map(drop),
        checks: vec![
            check(
                "entropy",
                "Linux reads 64 KiB of random bytes from its entropy device, in each of two lives",
                random_bytes as fn(&mut Context<'_>, &mut Session) -> Result<()>,
            ),
            check(
                "console",
                "100 KiB by hvc0 arrive whole and without an exit; a line typed into it; a named port, both ways",
                console,
            ),
            check("guest-reset", "a guest that resets itself ends with that reason, and can be started", guest_reset),
            check("power-button", "`stop` presses the power button, and the guest powers itself off", power_button),
            Check::new(
                Scenario::new(
                    "guest-triple-fault",
                    "a triple fault ends its guest, which is restarted; no other is harmed",
                    ALSO_NESTED,
                )
                .rarely_on(NESTED),
                triple_fault,
            ),
        ],
    })]
}

fn start(context: &mut Context<'_>, wanted: &Wanted<'_>) -> Result<Session> {
    let mut guests = Vec::new();
    if wanted.any(&["guest-triple-fault"]) {
        guests.push(Guest::new(1).restarted().kernel_option("reboot=t").then("obey"));
        guests.push(Guest::new(2).peer(3).then("obey"));
        guests.push(Guest::new(3).then("obey"));
    }
    if wanted.any(&["entropy", "console", "guest-reset", "power-button"]) {
        guests.push(Guest::new(4).entropy().console(PORT).then("obey"));
    }
    let mut session = context.boot(&server("lives", &guests))?;
    session.all_obey(guests.iter().map(Guest::name))?;
    Ok(session)
}

fn triple_fault(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    session.tell("b", "beat:100000")?;
    session.result("b", "beat", seconds(120))?;
    session.tell("a", "triple-fault")?;
    let (reason, detail) = session.wait("guest a to stop", seconds(60), |event| match event {
        Event::Guest { guest, state: GuestState::Stopped, reason, detail } if guest == "a" => {
            Some((*reason, detail.clone().unwrap_or_default()))
        }
        _ => None,
    })?;
    ensure!(reason == Some(StopReason::TripleFault), "guest a stopped for {reason:?}");
    // Linux loads an empty IDT and raises an exception.
    ensure!(
        detail.starts_with("at RIP 0xffffffff") && detail.ends_with("IDT 0x0 limit 0x0"),
        "guest a stopped {detail:?}"
    );
    session.result("a", "obey", seconds(120))?;
    context.figures.at_least("starts of the guest that faults", starts(&session.counters()?, "a"), 2)?;
    // Beats that were reported already belong to the time before the restart. At least 50 more pings must be sent after it.
    let before = latest_beat(session)?;
    let after = loop {
        let beat = session.result("b", "beat", seconds(60))?;
        if number(&beat, "sent")? >= before + 50 {
            break beat;
        }
    };
    context.figures.at_least("pings of the neighbours", number(&after, "sent")?, 50)?;
    context.figures.exactly("answered", number(&after, "received")?, number(&after, "sent")?)
}

/// The number of pings that guest b has sent so far, by its last report.
fn latest_beat(session: &mut Session) -> Result<u64> {
    let mut latest = number(&session.result("b", "beat", seconds(60))?, "sent")?;
    for event in session.unread() {
        if let Some(("b", result)) = guest_result(event)
            && result["do"] == "beat"
        {
            latest = latest.max(number(&result, "sent")?);
        }
    }
    Ok(latest)
}

/// Reads from the entropy device of guest d, has the guest reset, and reads again.
fn random_bytes(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    for life in 1..=2 {
        if life == 2 {
            session.act("d", "reboot", seconds(60))?;
            session.state("d", GuestState::Stopped, seconds(60))?;
            session.ask(Command::Start("d".to_owned()), seconds(20))?;
            session.result("d", "obey", seconds(120))?;
        }
        let before = entropy(&session.counters()?, "d")?;
        let read = session.act("d", &format!("random:{RANDOM_BYTES}"), seconds(240))?;
        ensure!(read["source"] == "virtio_rng.0", "guest d reads from {}", read["source"]);
        let after = entropy(&session.counters()?, "d")?;
        let figures = &mut context.figures;
        figures.exactly(&format!("bytes read in life {life}"), number(&read, "bytes")?, RANDOM_BYTES)?;
        // Random bytes cannot be compressed.
        figures.at_least("bytes of these when compressed", number(&read, "compressed")?, RANDOM_BYTES)?;
        let given = after.bytes - before.bytes;
        figures.at_least("random bytes that sidecore gave", given, RANDOM_BYTES)?;
        // Linux asks for 64 bytes at a time, and no request gets more.
        figures.at_least("requests", after.requests - before.requests, given / 64)?;
        figures.at_least("notifications", after.kicks - before.kicks, 1)?;
        figures.exactly("rules that the driver broke", after.ring_errors, 0)?;
    }
    Ok(())
}

/// The notifications of guest d's devices, its console device left out.
fn kicks_of_others(counters: &Counters) -> Result<u64> {
    let nets: u64 = guest(counters, "d")?.ports.iter().map(|port| port.kicks).sum();
    Ok(nets + entropy(counters, "d")?.kicks)
}

/// Has guest d write lines that begin with `word`, and waits for its report. Returns how many arrived, each
/// once and in order, the exits for I/O ports meanwhile, and those of all kinds but for HLT and the timer.
///
/// The notifications of its other devices are left out: the guest's kernel asks for random bytes, and sets multicast
/// filters, when it likes.
fn lines(session: &mut Session, word: &str, action: &str) -> Result<(u64, u64, u64)> {
    session.act("d", action, seconds(60))?;
    let before = session.counters()?;
    session.tell("d", "go")?;
    let mut next = 0;
    session.wait("the lines of guest d", seconds(120), |event| {
        let Event::Console { guest, line } = event else { return None };
        if guest == "d" && *line == format!("{word} {next:06} {next:051}") {
            next += 1;
        }
        guest_result(event).is_some_and(|(from, result)| from == "d" && result["bytes"].is_u64()).then_some(())
    })?;
    let after = session.counters()?;
    let costs = Costs::of(&after, "d")?.since(&Costs::of(&before, "d")?);
    let exits = costs.all_exits() - costs.timer_exits() - costs.exits_for("hlt");
    let other = |counters| Ok::<_, anyhow::Error>(io_exits(counters, "d")? - kicks_of_others(counters)?);
    Ok((next, other(&after)? - other(&before)?, exits))
}

/// Uses the console device of guest d: its console, and its named port.
fn console(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    session.act("d", "hvc", seconds(60))?;
    // What is typed goes to the console device from now on.
    session.act("d", "typed", seconds(60))?;
    session.tell("d", "Seneca 2")?;
    session.wait("the echo", seconds(20), |event| {
        matches!(event, Event::Console { guest, line } if guest == "d" && line == "Seneca 2").then_some(())
    })?;
    let typed = session.result("d", "typed", seconds(20))?;
    ensure!(typed["line"] == "Seneca 2", "guest d has read {}", typed["line"]);

    let before = console_of(&session.counters()?, "d")?;
    let (arrived, io_exits, exits) = lines(session, "hvc0", &format!("lines:{LINES}:hvc0"))?;
    let after = console_of(&session.counters()?, "d")?;
    let figures = &mut context.figures;
    figures.exactly("lines by hvc0 that arrived in order", arrived, LINES)?;
    figures.at_least(
        "bytes that sidecore got",
        after.ports[0].output_bytes - before.ports[0].output_bytes,
        LINES * LINE_BYTES,
    )?;
    figures.exactly("bytes dropped", after.ports[0].output_dropped, 0)?;
    figures.exactly("notifications for them", after.kicks - before.kicks, 0)?;
    figures.exactly("exits for I/O ports", io_exits, 0)?;
    figures.at_most("exits but for HLT and the timer, per KiB", exits / (LINES * LINE_BYTES / 1024), 1)?;
    let (arrived, io_exits, _) = lines(session, "uart", &format!("lines:{UART_LINES}:uart:/dev/ttyS0"))?;
    let figures = &mut context.figures;
    figures.exactly("lines by the UART", arrived, UART_LINES)?;
    figures.at_least("exits for I/O ports for these, one a byte at least", io_exits, UART_LINES * LINE_BYTES)?;

    let port = |open| Command::Port { guest: "d".to_owned(), port: PORT.to_owned(), open };
    session.ask(port(true), seconds(20))?;
    session.act("d", &format!("port:{PORT}"), seconds(20))?;
    let text: String = (0..=255).step_by(5).map(char::from).collect();
    let input = Command::PortInput { guest: "d".to_owned(), port: PORT.to_owned(), text: text.clone() };
    session.ask(input, seconds(20))?;
    let mut echo = String::new();
    session.wait("what the named port sends back", seconds(60), |event| {
        if let Event::Port { guest, port, text } = event
            && (guest.as_str(), port.as_str()) == ("d", PORT)
        {
            echo.push_str(text);
        }
        (echo.len() >= text.len()).then_some(())
    })?;
    let figures = &mut context.figures;
    figures.exactly("bytes back from the named port", u64::from(echo == text), 1)?;
    session.ask(port(false), seconds(20))?;
    let last = console_of(&session.counters()?, "d")?;
    let figures = &mut context.figures;
    figures.exactly("control messages refused", last.refused, 0)?;
    figures.exactly("rules that the driver broke", last.ring_errors, 0)
}

fn guest_reset(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    let before = starts(&session.counters()?, "d");
    for life in 1..=2 {
        session.act("d", "reboot", seconds(60))?;
        let reason = session.state("d", GuestState::Stopped, seconds(60))?;
        ensure!(reason == Some(StopReason::Reset), "guest d stopped for {reason:?} in life {life}");
        session.ask(Command::Start("d".to_owned()), seconds(20))?;
        session.result("d", "obey", seconds(120))?;
    }
    context.figures.exactly("starts after a reset", starts(&session.counters()?, "d") - before, 2)
}

fn power_button(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    session.act("d", "button", seconds(120))?;
    session.ask(Command::Stop("d".to_owned()), seconds(20))?;
    let pressed = session.result("d", "button", seconds(20))?;
    context.figures.exactly("presses the guest saw", usize::from(pressed["pressed"] == true), 1)?;
    let reason = session.state("d", GuestState::Stopped, seconds(30))?;
    ensure!(reason == Some(StopReason::PowerOff), "guest d stopped for {reason:?}");
    Ok(())
}
