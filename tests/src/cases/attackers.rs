//! What a guest's neighbours lose while it attacks. The attackers come one after the other, on one machine, beside the same two
//! neighbours. `kernel/net/src/tests/attackers.rs` measures attackers of the engine in virtual time.

use ::trace::Kind;
use anyhow::{Context as _, Result, bail, ensure};
use control::{Command, Counters, GuestState, StopReason, TraceStep};
use serde_json::Value;

use crate::boot::{Boot, alone};
use crate::cases::trace::{self, Read};
use crate::counts::{count, exits, net, shadow, starts, turns};
use crate::guests::{Guest, server, with_entries};
use crate::platform::QEMU;
use crate::probes::{Probe, with_probes};
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};

/// Requests and pings of the neighbours during each attack.
const REQUESTS: u64 = 1000;
const PINGS: u64 = 20;
/// Broadcasts of the attacker. More than the storm limit lets through while the neighbours ask.
const BROADCASTS: u64 = 200_000;
/// The storm limit of the guest that floods broadcasts, in frames a second.
const STORM: u64 = 200;
/// MiB that the attacker sends in small segments, and the bytes of one. Linux asks for no smaller ones.
const MIB: u64 = 8;
const MSS: u64 = 88;
/// The guest that falls: its number, and the milliseconds that its second and third life has to wait for the next one
/// (`kernel/lifecycle/src/backoff.rs`). After the first there is none.
const FALLER: u8 = 5;
const WAITS: [u64; 2] = [1_000, 2_000];
/// How often an attacker is killed and started while the neighbours ask.
const LIVES: usize = 8;

/// The attacks of the probe `p1`, and how much each does at least: instructions and changes, resets, starts and moves, frames,
/// lines. An attack lasts until the neighbours have asked and it has done so much, and it is told to stop. How much it does in
/// the time of the neighbours' requests depends on how fast the emulator is.
const ATTACKS: [(&str, u64); 6] = [
    ("race-decode", 1_000),
    ("race-reset", 50),
    ("race-startup", 64),
    ("chains", 64),
    ("small-mss", 64),
    ("babble", 100),
];
/// Those in which it is killed.
const RACES: [&str; 3] = ["race-decode", "race-reset", "race-startup"];

/// Percent of the requests in a turn that attacks may leave. A single attack may seem to leave half of that: for the same one, runs
/// differ by a factor of two.
const SHARE: u64 = 50;

/// When nobody attacks.
const UNDISTURBED: &str = "without an attack";

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "guests flood broadcasts, small segments, long chains and a console, race their own vCPUs, restart for ever, later each time: their neighbours' requests are all answered, none again";
    vec![alone(Scenario::new("attackers", about, QEMU).taking_turns().checked_on(QEMU), attackers)]
}

/// The neighbours a and b.
#[derive(Default)]
struct Neighbours {
    /// For each attack, and for [`UNDISTURBED`], the requests in a million turns of the engine.
    rates: Vec<(String, u64)>,
}

impl Neighbours {
    /// Has guest a ask guest b. Calls `during` meanwhile. Checks that each request and ping was answered the first time, and that no
    /// frame was dropped at their ports.
    fn ask(
        &mut self,
        context: &mut Context<'_>,
        session: &mut Session,
        when: &str,
        during: impl FnOnce(&mut Session) -> Result<()>,
    ) -> Result<()> {
        let before = session.counters()?;
        session.tell("a", &format!("udp:{REQUESTS}"))?;
        during(session)?;
        let udp = session.result("a", "udp", seconds(240))?;
        let after = session.counters()?;
        let ping = session.act("a", &format!("ping:{PINGS}"), seconds(240))?;
        let figures = &mut context.figures;
        let drops = dropped(&session.counters()?)? - dropped(&before)?;
        figures.note(&format!("{when}: microseconds"), number(&udp, "us")?);
        figures.exactly(&format!("{when}: drops at their ports"), drops, 0)?;
        figures.exactly(&format!("{when}: requests answered"), number(&udp, "transactions")?, REQUESTS)?;
        figures.exactly(&format!("{when}: requests repeated"), number(&udp, "again")?, 0)?;
        figures.exactly(&format!("{when}: pings answered"), number(&ping, "received")?, PINGS)?;
        let rate = REQUESTS * 1_000_000 / (turns(&after) - turns(&before)).max(1);
        figures.note(&format!("{when}: requests in a million turns"), rate);
        self.rates.push((when.to_owned(), rate));
        Ok(())
    }

    /// Checks that the engine served at least half as many requests in a turn during attacks as without one. How many turns an
    /// emulated engine makes meanwhile depends on when the host runs it. So the least of the times without an attack counts.
    fn kept_their_share(&self, context: &mut Context<'_>) -> Result<()> {
        let (undisturbed, attacked): (Vec<_>, Vec<_>) = self.rates.iter().partition(|(when, _)| when == UNDISTURBED);
        let least = undisturbed.iter().map(|(_, rate)| *rate).min().context("they have not asked undisturbed")?;
        let mut percents = Vec::new();
        for (when, rate) in attacked {
            let percent = rate * 100 / least.max(1);
            let what = format!("{when}: percent of the requests in a turn without an attack");
            context.figures.at_least(&what, percent, SHARE / 2)?;
            percents.push(percent);
        }
        percents.sort_unstable();
        let median = percents.get(percents.len() / 2).copied().context("nobody attacked")?;
        context.figures.at_least("the same, median of all attacks", median, SHARE)
    }
}

/// Frames to and from the neighbours that were dropped at their ports.
fn dropped(counters: &Counters) -> Result<u64> {
    Ok(net(counters, "a")?.all_dropped() + net(counters, "b")?.all_dropped())
}

/// Checks that an attack of `p1` took place, in the amount of [`ATTACKS`], and what it says of itself.
fn took_place(
    context: &mut Context<'_>,
    counters: [&Counters; 2],
    (attack, least): (&str, u64),
    said: &Value,
) -> Result<()> {
    let figures = &mut context.figures;
    let [before, after] = counters;
    let more = |reason: &str| -> Result<u64> {
        let of = |counters| Ok::<_, anyhow::Error>(exits(counters, "p1")?.get(reason).copied().unwrap_or_default());
        Ok(of(after)? - of(before)?)
    };
    let of = |what: &str| format!("{attack}: {what}");
    match attack {
        "race-decode" => {
            figures.at_least(&of("instructions executed"), number(said, "executed")?, least)?;
            figures.at_least(&of("changes by the other vCPU"), number(said, "rewritten")?, least)?;
            figures.at_least(&of("accesses to a device"), more("mmio-pci")?, least)?;
            figures.note(&of("faults"), number(said, "faults")?);
            figures.note(&of("the last value that no instruction makes"), number(said, "seen")?);
            figures.exactly(&of("values that no instruction makes"), number(said, "strange")?, 0)?;
            figures.exactly(&of("instructions that began inside another one"), number(said, "inside")?, 0)?;
            figures.exactly(&of("words changed elsewhere"), number(said, "stray")?, 0)
        }
        "race-reset" => {
            figures.at_least(&of("resets"), number(said, "resets")?, least)?;
            figures.exactly(&of("words changed after a reset"), number(said, "late")?, 0)?;
            ensure!(said["alive"] == true, "a device does not work after the race: {said}");
            Ok(())
        }
        "race-startup" => {
            figures.at_least(&of("starts"), number(said, "starts")?, least)?;
            figures.exactly(&of("starts that were asked for"), number(said, "rounds")?, number(said, "starts")?)?;
            figures.at_least(&of("moves of the IDT"), number(said, "shaken")?, least)?;
            figures.at_least(&of("shadows that were rewritten"), count(shadow(after, "p1"), "idt-written"), 1)?;
            figures.at_least(&of("shadows that were moved"), count(shadow(after, "p1"), "idt-moved"), 1)
        }
        "chains" => {
            figures.at_least(&of("frames of 256 buffers"), number(said, "frames")?, least)?;
            figures.at_least(&of("chains of 1,000 buffers that were refused"), number(said, "refused")?, 1)
        }
        "small-mss" => {
            let small = net(after, "p1")?.dropped("tx_small_mss") - net(before, "p1")?.dropped("tx_small_mss");
            figures.at_least(&of("frames"), number(said, "frames")?, least)?;
            figures.exactly(&of("of them dropped for their MSS"), small, number(said, "frames")?)
        }
        _ => {
            figures.at_least(&of("lines"), number(said, "lines")?, least)?;
            figures.at_least(&of("accesses to the UART"), more("io-uart")?, 10 * least)
        }
    }
}

/// Waits until the shadow of `p1`'s IDT was rewritten and moved. In most of its starts there is none yet when the IDT moves.
fn the_shadow_has_followed(session: &mut Session) -> Result<()> {
    let of = |counters: &Counters, what| count(shadow(counters, "p1"), what) != 0;
    let followed = |counters: &Counters| of(counters, "idt-written") && of(counters, "idt-moved");
    session.counters_when("the shadow of p1's IDT was rewritten and moved", followed).map(drop)
}

/// Has `p1` begin an action that lasts until it is told to stop.
fn begin(session: &mut Session, action: &str) -> Result<()> {
    session.tell("p1", action)?;
    session.result("p1", "begins", seconds(60)).map(drop)
}

/// Ends that action. Returns what `p1` says of it.
fn end(session: &mut Session, action: &str) -> Result<Value> {
    session.tell("p1", "stop")?;
    session.result("p1", action, seconds(60))
}

/// Kills a guest that is running.
fn kill(session: &mut Session, name: &str) -> Result<()> {
    session.ask(Command::Kill(name.to_owned()), seconds(20))?;
    let reason = session.state(name, GuestState::Stopped, seconds(60))?;
    ensure!(reason == Some(StopReason::Killed), "guest {name} ended by {reason:?}");
    Ok(())
}

/// Checks that the guest that falls waits longer from life to life, by the trace's stamps of the machine's own clock. From the
/// beginning of a life to that of the next one it is at least the wait between them, however slow the host is.
fn waits_grow(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    let lives = WAITS.len() as u64 + 2;
    let counters = session.counters_when("the guest that falls has a fourth life", |c| starts(c, "p2") >= lives)?;
    let arrived = trace::collect(session);
    session.ask(trace::command(TraceStep::Off, false, ""), seconds(20))?;
    session.ask(trace::command(TraceStep::Save, false, ""), seconds(20))?;
    let bytes = trace::ended(session, &arrived)?;
    let begun: Vec<u64> = Read::new(&bytes)?
        .records(Kind::Life)
        .map(|(_, record)| record)
        .filter(|record| record.guest == FALLER && record.code == GuestState::Running as u8)
        .map(|record| record.tsc)
        .collect();
    context.figures.at_least("lives of the guest that falls in the trace", begun.len() as u64, lives)?;
    let ticks = (counters.tsc_hz / 1000).max(1);
    for ((life, wait), pair) in (2..).zip(WAITS).zip(begun.windows(2).skip(1)) {
        let between = (pair[1] - pair[0]) / ticks;
        // Milliseconds are cut off on both sides.
        let what = format!("milliseconds between the beginnings of lives {life} and {}", life + 1);
        context.figures.at_least(&what, between, wait - 1)?;
    }
    Ok(())
}

fn attackers(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let still = |n| Guest::new(n).kernel_option("ipv6.disable=1");
    let guests = [
        still(1).full().peer(2).then("obey"),
        still(2).full().then("udp-server").then("obey"),
        // An emulated guest cannot take as many broadcasts a second as the default limit lets through.
        still(3).full().net(&format!("storm = {STORM}")).peer(4).then("obey"),
        // It takes no segments, so the engine cuts them for it. It gets the frames of p1 too.
        still(4).full().net("offloads = \"none\"").then("iperf-server").then("obey"),
    ];
    let attacker = Probe::new(1, "eli", "obey").vcpus(2).word("peer=52:54:00:00:00:04").disk(4, "").started_later();
    let faller = Probe::new(2, "eli", "fall").restarted().started_later();
    let setup = with_entries(server("attackers", &guests), "[trace]\non = [\"life\"]\n");
    let mut session = context.boot(&with_probes(setup, &[attacker, faller]))?;
    session.all_obey(["a", "b", "c", "d"])?;
    let mut neighbours = Neighbours::default();
    session.ask(Command::Start("p1".to_owned()), seconds(20))?;
    session.all_obey(["p1"])?;
    // Two virtual CPUs are busy without I/O, because emulated processors take time from each other.
    begin(&mut session, "busy")?;
    neighbours.ask(context, &mut session, UNDISTURBED, |_| Ok(()))?;
    end(&mut session, "busy")?;

    for (attack, least) in ATTACKS {
        let before = session.counters()?;
        begin(&mut session, &format!("{attack}:{least}"))?;
        neighbours.ask(context, &mut session, attack, |_| Ok(()))?;
        session.result("p1", "enough", seconds(240))?;
        if attack == "race-startup" {
            the_shadow_has_followed(&mut session)?;
        }
        let said = end(&mut session, attack)?;
        took_place(context, [&before, &session.counters()?], (attack, least), &said)?;
    }

    neighbours.ask(context, &mut session, "killed in a race", |session| {
        for life in 0..LIVES {
            begin(session, RACES[life % RACES.len()])?;
            kill(session, "p1")?;
            session.ask(Command::Start("p1".to_owned()), seconds(20))?;
            session.all_obey(["p1"])?;
        }
        Ok(())
    })?;
    begin(&mut session, "busy")?;
    neighbours.ask(context, &mut session, UNDISTURBED, |_| Ok(()))?;
    session.tell("c", &format!("shower:{BROADCASTS}"))?;
    neighbours.ask(context, &mut session, "broadcasts", |_| Ok(()))?;
    session.result("c", "shower", seconds(240))?;
    // The guest has sent the last ones, and the engine may not have taken them yet.
    let taken = |counters: &Counters| net(counters, "c").is_ok_and(|c| c.tx_packets >= BROADCASTS);
    let counters = match session.counters_when("the engine has taken the broadcasts", taken) {
        Ok(counters) => counters,
        // It has failed once, with one of them missing for minutes. Linux's own counts tell whose fault that was.
        Err(why) => bail!("{why:#}\nLinux: {}", session.act("c", "handed", seconds(60))?),
    };
    let c = net(&counters, "c")?;
    context.figures.at_least("broadcasts above the storm limit", c.dropped("tx_storm"), 1)?;
    context.figures.at_least("broadcasts that the engine took", c.tx_packets, BROADCASTS)?;

    session.tell("c", &format!("iperf:{MIB}M:::{MSS}"))?;
    neighbours.ask(context, &mut session, "small segments", |_| Ok(()))?;
    let tcp = session.result("c", "iperf", seconds(240))?;
    // iperf3 counts what the other side has got when it ends.
    context.figures.at_least("bytes in small segments", number(&tcp, "bytes")?, (MIB << 20) / 4 * 3)?;
    let segments = net(&session.counters()?, "d")?.rx_packets;
    context.figures.at_least("segments for d", segments, (MIB << 20) / 4 * 3 / MSS)?;

    neighbours.ask(context, &mut session, UNDISTURBED, |_| Ok(()))?;
    session.ask(Command::Start("p2".to_owned()), seconds(20))?;
    neighbours.ask(context, &mut session, "a guest that falls", |session| {
        let reason = session.state("p2", GuestState::Stopped, seconds(60))?;
        ensure!(reason == Some(StopReason::TripleFault), "the guest that falls ended by {reason:?}");
        Ok(())
    })?;
    waits_grow(context, &mut session)?;
    end(&mut session, "busy")?;
    context.figures.at_least("lives of the attacker", starts(&session.counters()?, "p1"), LIVES as u64 + 1)?;
    // It knows no power button.
    kill(&mut session, "p1")?;
    neighbours.kept_their_share(context)?;
    session.shut_down().map(drop)
}
