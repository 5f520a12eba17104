//! A guest that looks at its machine from inside, and its I/O, which is counted exactly.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use control::{Command, Event, GuestState, StopReason};

use super::network::number;
use crate::costs::Costs;
use crate::machine::Platform;
use crate::modes::{self, Completion, Requests};
use crate::probes::{Probe, act, go, ready, server};
use crate::scenario::{Context, EVERYWHERE, Scenario, seconds};
use crate::session::{Session, guest_result};

/// Tests that a probe has at least.
const TESTS: u64 = 50;

/// Tests that an emulator's own local APIC fails, for guests that have it. Hardware does none of this.
const FAULTS: &[(Platform, &str)] = &[
    // IA32_TSC_DEADLINE still holds the deadline when the timer has fired.
    (Platform::Bochs, "timer::tsc_deadline_is_there_where_cpuid_says_so"),
];

/// Single requests: more than 65,536, so that an event index that is not moved on shows.
const REQUESTS: u64 = 100_000;
/// On Bochs, unless it is to be the full number.
const REQUESTS_ON_BOCHS: u64 = 5_000;

/// Times a probe is switched off and on under load.
const LIVES: u64 = 10;
/// Requests in each life before the load, each of which has to be answered.
const REQUESTS_OF_A_LIFE: u64 = 1_000;
const REQUESTS_OF_A_LIFE_ON_BOCHS: u64 = 100;
/// Frames of the load after which it is under way.
const UNDER_WAY: u64 = 1_000;
/// Readings of the counters until then, at most.
const READINGS: u32 = 2_400;
const BETWEEN_READINGS: Duration = Duration::from_millis(50);

/// These scenarios.
pub fn list() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "probe",
            about: "a guest tests its machine from inside, in every mode of completion",
            platforms: EVERYWHERE,
            slow_on_bochs: false,
            run: probe,
        },
        Scenario {
            name: "probe-requests",
            about: "100,000 requests without a timer: each is woken by its own completion, and every interrupt is counted",
            platforms: EVERYWHERE,
            slow_on_bochs: false,
            run: probe_requests,
        },
        Scenario {
            name: "probe-restarts",
            about: "a guest is killed in a stream of frames and started, ten times, in every mode of completion: each life is whole",
            platforms: EVERYWHERE,
            slow_on_bochs: true,
            run: probe_restarts,
        },
    ]
}

/// What failed on a probe, as it said it.
fn failures(session: &mut Session, name: &str) -> Vec<String> {
    let said = session.unread().iter().filter(|event| matches!(event, Event::Console { .. })).filter_map(guest_result);
    said.filter(|(guest, result)| *guest == name && result["do"] == "test" && result["passed"] == false)
        .map(|(_, result)| format!("{}: {}", result["name"], result["why"]))
        .collect()
}

/// Waits for a probe's tests, and for its end: tests passed, and what failed.
fn tested(session: &mut Session, name: &str) -> Result<(u64, Vec<String>)> {
    let tests = session.result(name, "tests", seconds(120))?;
    let failures = failures(session, name);
    let failed = number(&tests, "failed")?;
    ensure!(failed == failures.len() as u64, "{name} says that {failed} tests failed, and named {failures:?}");
    let reason = session.state(name, GuestState::Stopped, seconds(60))?;
    ensure!(reason == Some(StopReason::PowerOff), "{name} stopped for {reason:?}");
    Ok((number(&tests, "passed")?, failures))
}

fn probe(context: &mut Context<'_>) -> Result<()> {
    let modes: Vec<Completion> = modes::completions(context.platform()).collect();
    // Two at a time: more processors than that are slow on Bochs.
    for pair in modes.chunks(2) {
        let faults: Vec<&str> =
            FAULTS.iter().filter(|(platform, _)| *platform == context.platform()).map(|(_, test)| *test).collect();
        let left_out = |mode: &Completion| if mode.owns_apic { faults.as_slice() } else { &[] };
        let probe = |number, mode: &Completion| {
            Probe::new(number, mode.name, "tests").word(&format!("except={}", left_out(mode).join(",")))
        };
        let probes: Vec<_> = (1..).zip(pair).map(|(number, mode)| probe(number, mode)).collect();
        let names: Vec<&str> = pair.iter().map(|mode| mode.name).collect();
        let mut session = context.boot(&server(&format!("probe-{}", names.join("-")), &probes))?;
        for (mode, probe) in pair.iter().zip(&probes) {
            let (passed, failures) = tested(&mut session, &probe.name())?;
            ensure!(failures.is_empty(), "{}: {}", mode.name, failures.join("; "));
            let least = TESTS - left_out(mode).len() as u64;
            context.figures.at_least(&format!("{}: tests passed", mode.name), passed, least)?;
        }
        session.shut_down()?;
    }
    // One that expects what is not so must be seen to fail, or the tests above prove nothing.
    let wrong = Probe::new(1, "inject", "tests").word("self-check").word("only=expects_what");
    let mut session = context.boot(&server("probe-self-check", &[wrong]))?;
    let (passed, failures) = tested(&mut session, "p1")?;
    context.figures.exactly("a test that must fail: passed", passed, 0)?;
    context.figures.exactly("a test that must fail: failed", failures.len(), 1)?;
    session.shut_down()?;
    Ok(())
}

fn probe_requests(context: &mut Context<'_>) -> Result<()> {
    let count = context.times(REQUESTS, REQUESTS_ON_BOCHS);
    let completions: Vec<Completion> = modes::completions(context.platform()).collect();
    for asks in modes::requests() {
        for completes in &completions {
            if asks.exits == Some(false) {
                requests_in(context, asks, *completes, count)?;
            } else if !completes.exits {
                // Here the notifications are what is counted, and far fewer tell as much.
                requests_in(context, asks, *completes, count / 10)?;
            }
        }
    }
    Ok(())
}

/// All that a probe can do, with one way to ask and one to complete.
fn requests_in(context: &mut Context<'_>, asks: Requests, completes: Completion, count: u64) -> Result<()> {
    let pair = format!("{}, {}", asks.name, completes.name);
    let actions = format!("singles:{count},requests:{count},stream:{count}");
    let probes = [Probe::new(1, completes.name, &actions).peer(2), Probe::new(2, completes.name, "serve")];
    let probes = probes.map(|probe| probe.requests(asks.name));
    let mut session = context.boot(&server(&format!("probe-requests-{}-{}", asks.name, completes.name), &probes))?;
    session.result("p2", "serve", seconds(120))?;
    for (action, packets) in [("singles", count), ("requests", 2 * count), ("stream", count)] {
        let (said, counters) = act(&mut session, "p1", action)?;
        let (costs, peer) = (Costs::between(&counters, "p1")?, Costs::between(&counters, "p2")?);
        let of = |what: &str| format!("{pair}: {action}: {what}");
        let figures = &mut context.figures;
        figures.at_least(&of("packets"), costs.packets, packets)?;
        figures.exactly(&of("notifications that the engine counted"), costs.kicks, number(&said, "kicks")?)?;
        match asks.exits {
            Some(false) => figures.exactly(&of("notifications"), costs.kicks, 0)?,
            // An engine that has not yet turned away from the queue needs none, and one that a busy machine held up finds more.
            Some(true) if action == "requests" => figures.at_least(&of("notifications"), costs.kicks, count / 10)?,
            _ => {}
        }
        if action == "stream" {
            // Of two interrupts for one vector that meet in the IRR the guest sees one.
            figures.at_most(&of("interrupts taken"), number(&said, "interrupts")?, costs.interrupts as f64)?;
            let received = number(&said, "received")?;
            figures.at_most(&of("frames that arrived"), received, count as f64)?;
            // A peer without a free buffer loses frames, but none without its being counted.
            let all = count + number(&said, "questions")?;
            figures.exactly(&of("frames and questions given or dropped"), peer.received + peer.dropped, all)?;
        } else {
            figures.exactly(&of("requests woken by their own completion"), number(&said, "woken")?, count)?;
            figures.exactly(&of("interrupts that the engine sent"), costs.interrupts, count)?;
            figures.exactly(&of("interrupts taken"), number(&said, "interrupts")?, costs.interrupts)?;
        }
        if completes.exits {
            figures.at_least(&of("exits for I/O"), costs.io_exits(), if action == "stream" { 1 } else { count })?;
        } else {
            let others = costs.io_exits().abs_diff(costs.kicks);
            figures.exactly(&of("exits for I/O beside notifications"), others, 0)?;
            // Where HLT exits somebody has to wake the vCPU, and it may have woken by itself just before.
            figures.at_most(
                &of("wakes that came late"),
                costs.exits_for("late-wake"),
                costs.exits_for("hlt") as f64,
            )?;
        }
    }
    // It would serve for ever.
    session.ask(Command::Kill("p2".to_owned()), seconds(30))?;
    session.shut_down()?;
    Ok(())
}

fn probe_restarts(context: &mut Context<'_>) -> Result<()> {
    let count = context.times(REQUESTS_OF_A_LIFE, REQUESTS_OF_A_LIFE_ON_BOCHS);
    for mode in modes::completions(context.platform()) {
        let mode = mode.name;
        // The stream is far longer than its guest lives.
        let mortal = Probe::new(1, mode, &format!("requests:{count},stream:{}", u32::MAX)).peer(2);
        let probes = [mortal, Probe::new(2, mode, "serve")];
        let mut session = context.boot(&server(&format!("probe-restarts-{mode}"), &probes))?;
        session.result("p2", "serve", seconds(120))?;
        let (mut woken, mut sent, mut taken) = (0, 0, 0);
        for life in 0..=LIVES {
            let (said, counters) = act(&mut session, "p1", "requests")?;
            woken += number(&said, "woken")?;
            taken += number(&said, "interrupts")?;
            sent += Costs::between(&counters, "p1")?.interrupts;
            if life < LIVES {
                kill_in_a_stream(&mut session)?;
            }
        }
        let counters = session.counters()?;
        let starts = |name: &str| counters.guest(name).map_or(0, |guest| guest.starts);
        let of = |what: &str| format!("{mode}: {what}");
        let figures = &mut context.figures;
        figures.exactly(&of("lives"), starts("p1"), LIVES + 1)?;
        figures.exactly(&of("lives of the neighbour"), starts("p2"), 1)?;
        figures.exactly(&of("requests woken by their own completion"), woken, count * (LIVES + 1))?;
        figures.exactly(&of("interrupts that the engine sent for them"), sent, woken)?;
        figures.exactly(&of("interrupts taken"), taken, woken)?;
        let errors: u64 = counters.guests.iter().flat_map(|guest| &guest.ports).map(|port| port.ring_errors).sum();
        figures.exactly(&of("ring errors"), errors, 0)?;
        // One would serve, the other wait, for ever.
        for name in ["p1", "p2"] {
            session.ask(Command::Kill(name.to_owned()), seconds(30))?;
        }
        session.shut_down()?;
    }
    Ok(())
}

/// Has probe 1 begin its stream, kills it with frames and their completions on the way, and waits until it has been
/// started anew.
fn kill_in_a_stream(session: &mut Session) -> Result<()> {
    let before = Costs::of(&ready(session, "p1")?, "p1")?;
    go(session, "p1")?;
    let under_way = (0..READINGS).find_map(|_| {
        thread::sleep(BETWEEN_READINGS);
        let packets = session.counters().and_then(|now| Ok(Costs::of(&now, "p1")?.since(&before).packets));
        packets.map_or_else(|error| Some(Err(error)), |packets| (packets >= UNDER_WAY).then_some(Ok(())))
    });
    under_way.context("p1 does not stream")??;
    session.ask(Command::Restart("p1".to_owned()), seconds(30))?;
    let reason = session.state("p1", GuestState::Stopped, seconds(60))?;
    ensure!(reason == Some(StopReason::Killed), "p1 stopped for {reason:?}");
    session.state("p1", GuestState::Running, seconds(60))?;
    Ok(())
}
