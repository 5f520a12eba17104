//! A guest that tests its machine from inside, and whose I/O is counted exactly.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use control::{Command, Event, GuestState, StopReason};

use crate::boot::{Boot, alone};
use crate::costs::Costs;
use crate::counts::{net_of_all, starts};
use crate::modes::{self, Completion, Requests};
use crate::platform::{BOCHS, EVERYWHERE, Platform};
use crate::probes::{Probe, act, go, in_turn, ready};
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, guest_result, number};

/// Least number of a probe's tests.
const TESTS: u64 = 68;

/// Tests that fail for guests that own an emulator's local APIC. Hardware has none of these faults.
const FAULTS: &[(Platform, &str)] = &[
    // IA32_TSC_DEADLINE still holds the deadline after the timer has fired.
    (Platform::Bochs, "timer::tsc_deadline_is_there_where_cpuid_says_so"),
    // HLT does not exit from such a guest. Both emulators halt in spite of the single step.
    (Platform::Qemu, "processor::single_steps_over_sti_and_hlt_end_the_halt"),
    (Platform::Bochs, "processor::single_steps_over_sti_and_hlt_end_the_halt"),
];

/// Single requests. More than 65,536, so that an event index that does not move shows.
const REQUESTS: u64 = 100_000;
/// Single requests on Bochs without `--full`.
const REQUESTS_ON_BOCHS: u64 = 5_000;

/// How often a probe is killed and restarted under load.
const LIVES: u64 = 10;
/// Requests in each life before the load. Each has to be answered.
const REQUESTS_OF_A_LIFE: u64 = 1_000;
const REQUESTS_OF_A_LIFE_ON_BOCHS: u64 = 100;
/// The load is under way after this number of frames.
const UNDER_WAY: u64 = 1_000;
/// Most readings of the counters until then.
const READINGS: u32 = 2_400;
const BETWEEN_READINGS: Duration = Duration::from_millis(50);

/// R15 of a probe in its action `uncached`, as QEMU's monitor prints it (guest-drivers/probe/src/abuse.rs).
const MARKER: &str = "R15=51dec04e0cd00cd0";
/// Bit of CR0.
const CD: u32 = 30;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let inside = "a guest tests its machine from inside, in every mode of completion";
    let requests =
        "100,000 requests without a timer: each is woken by its own completion, and every interrupt is counted";
    let restarts = "a guest is killed in a stream of frames and started, ten times, in every mode of completion: each life is whole";
    vec![
        alone(Scenario::new("probe", inside, EVERYWHERE).checked_on(EVERYWHERE), probe),
        alone(Scenario::new("probe-requests", requests, EVERYWHERE).longer_on(BOCHS).taking_turns(), probe_requests),
        alone(Scenario::new("probe-restarts", restarts, EVERYWHERE).longer_on(BOCHS).taking_turns(), probe_restarts),
    ]
}

/// The failed tests of a probe, in its own words.
fn failures(session: &mut Session, name: &str) -> Vec<String> {
    let said = session.unread().iter().filter(|event| matches!(event, Event::Console { .. })).filter_map(guest_result);
    said.filter(|(guest, result)| *guest == name && result["do"] == "test" && result["passed"] == false)
        .map(|(_, result)| format!("{}: {}", result["name"], result["why"]))
        .collect()
}

/// Waits for a probe's tests and for its end. Returns the number of passed tests, and the failed ones.
fn tested(session: &mut Session, name: &str) -> Result<(u64, Vec<String>)> {
    let tests = session.result(name, "tests", seconds(120))?;
    let failures = failures(session, name);
    let failed = number(&tests, "failed")?;
    ensure!(failed == failures.len() as u64, "{name} says that {failed} tests failed, and named {failures:?}");
    let reason = session.state(name, GuestState::Stopped, seconds(60))?;
    ensure!(reason == Some(StopReason::PowerOff), "{name} stopped for {reason:?}");
    Ok((number(&tests, "passed")?, failures))
}

fn probe(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let modes: Vec<Completion> = modes::completions(context.platform()).collect();
    let faults: Vec<&str> =
        FAULTS.iter().filter(|(platform, _)| *platform == context.platform()).map(|(_, test)| *test).collect();
    let left_out = |mode: &Completion| if mode.owns_apic { faults.as_slice() } else { &[] };
    let probe = |number, mode: &Completion| {
        Probe::new(number, mode.name, "tests").word(&format!("except={}", left_out(mode).join(",")))
    };
    // Two probes at a time, because Bochs is slow with more processors.
    let pairs = modes.chunks(2).zip((1..).step_by(2));
    let mut groups: Vec<Vec<Probe>> =
        pairs.map(|(pair, first)| (first..).zip(pair).map(|(number, mode)| probe(number, mode)).collect()).collect();
    // QEMU's monitor sees the registers of a guest that runs. On Bochs the guest can only say what it reads.
    let watched = context.platform() == Platform::Qemu;
    groups.push(vec![
        Probe::new(modes.len() + 1, "direct", "uncached"),
        Probe::new(modes.len() + 2, "inject", "uncached"),
    ]);
    // A test with a wrong expectation must fail. Otherwise the tests above prove nothing.
    groups.push(vec![Probe::new(modes.len() + 3, "inject", "tests").word("self-check").word("only=expects_what")]);
    in_turn(context, "probe", &groups, |context, session, group| {
        let Some(pair) = modes.chunks(2).nth(group) else {
            if group + 1 < groups.len() {
                return uncached(context, session, &groups[group], watched);
            }
            let (passed, failures) = tested(session, &groups[group][0].name())?;
            context.figures.exactly("a test that must fail: passed", passed, 0)?;
            return context.figures.exactly("a test that must fail: failed", failures.len(), 1);
        };
        for (mode, probe) in pair.iter().zip(&groups[group]) {
            let (passed, failures) = tested(session, &probe.name())?;
            ensure!(failures.is_empty(), "{}: {}", mode.name, failures.join("; "));
            let least = TESTS - left_out(mode).len() as u64;
            context.figures.at_least(&format!("{}: tests passed", mode.name), passed, least)?;
        }
        Ok(())
    })
}

/// CR0.CD, as the guest sets it and as the processor has it while the guest runs.
fn uncached(context: &mut Context<'_>, session: &mut Session, probes: &[Probe], watched: bool) -> Result<()> {
    for probe in probes {
        let said = session.result(&probe.name(), "uncached", seconds(60))?;
        ensure!(said["written"] == true, "{}: it cannot write CR0: {said}", probe.name());
        let what = format!("{}: CD in CR0 as it reads it", probe.name());
        context.figures.exactly(&what, number(&said, "cr0")? >> CD & 1, 1)?;
    }
    if watched {
        let registers = processors_with_marker(session, probes.len())?;
        context.figures.exactly("processors in a guest that has set CD", registers.len(), probes.len())?;
        let set = registers.iter().filter(|cr0| *cr0 >> CD & 1 != 0).count();
        context.figures.exactly("of these, processors with CD in CR0", set, 0)?;
    }
    Ok(())
}

/// CR0 of each processor that runs a probe in its action `uncached`, as QEMU's monitor has it. The monitor stops a
/// processor somewhere, which may be in the host, so it is asked until it finds `count` of them.
fn processors_with_marker(session: &mut Session, count: usize) -> Result<Vec<u64>> {
    let mut found = Vec::new();
    for _ in 0..READINGS {
        found = marked(&session.monitor_text("info registers -a")?)?;
        if found.len() >= count {
            break;
        }
        thread::sleep(BETWEEN_READINGS);
    }
    Ok(found)
}

/// CR0 of each processor in the monitor's text whose R15 is the probe's marker.
fn marked(text: &str) -> Result<Vec<u64>> {
    text.split("CPU#")
        .filter(|processor| processor.contains(MARKER))
        .map(|processor| {
            let cr0 = processor.split("CR0=").nth(1).and_then(|rest| rest.split_whitespace().next());
            u64::from_str_radix(cr0.context("no CR0")?, 16).context("CR0")
        })
        .collect()
}

/// A mode of requests, a mode of completion, and the number of requests to make with them.
struct Pair {
    asks: Requests,
    completes: Completion,
    count: u64,
}

fn probe_requests(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let count = context.times(REQUESTS, REQUESTS_ON_BOCHS);
    let mut pairs = Vec::new();
    for asks in modes::requests() {
        for completes in modes::completions(context.platform()) {
            if asks.exits == Some(false) {
                pairs.push(Pair { asks, completes, count });
            } else if !completes.exits {
                // These requests are counted by their notifications, and a tenth of them is enough.
                pairs.push(Pair { asks, completes, count: count / 10 });
            }
        }
    }
    let probes = |(first, Pair { asks, completes, count }): (usize, &Pair)| {
        let actions = format!("singles:{count},requests:{count},stream:{count}");
        let probes = [
            Probe::new(first, completes.name, &actions).peer(first + 1),
            Probe::new(first + 1, completes.name, "serve"),
        ];
        probes.map(|probe| probe.requests(asks.name)).to_vec()
    };
    let groups: Vec<Vec<Probe>> = (1..).step_by(2).zip(&pairs).map(probes).collect();
    in_turn(context, "probe-requests", &groups, |context, session, group| {
        let [p, q] = [0, 1].map(|index: usize| groups[group][index].name());
        requests_in(context, session, &pairs[group], [&p, &q])
    })
}

/// Runs all actions of a probe with one mode of requests and one of completion. `p` asks, `q` serves.
fn requests_in(context: &mut Context<'_>, session: &mut Session, pair: &Pair, [p, q]: [&str; 2]) -> Result<()> {
    let Pair { asks, completes, count } = *pair;
    let pair = format!("{}, {}", asks.name, completes.name);
    session.result(q, "serve", seconds(120))?;
    for (action, packets) in [("singles", count), ("requests", 2 * count), ("stream", count)] {
        let (said, counters) = act(session, p, action)?;
        let (costs, peer) = (Costs::between(&counters, p)?, Costs::between(&counters, q)?);
        let of = |what: &str| format!("{pair}: {action}: {what}");
        let figures = &mut context.figures;
        figures.at_least(&of("packets"), costs.packets, packets)?;
        figures.exactly(&of("notifications that the engine counted"), costs.kicks, number(&said, "kicks")?)?;
        match asks.exits {
            Some(false) => figures.exactly(&of("notifications"), costs.kicks, 0)?,
            // While the engine still looks at the queue, a request needs no notification. On a busy machine that
            // happens often.
            Some(true) if action == "requests" => figures.at_least(&of("notifications"), costs.kicks, count / 10)?,
            _ => {}
        }
        if action == "stream" {
            // If two interrupts for one vector meet in the IRR, the guest sees one.
            figures.at_most(&of("interrupts taken"), number(&said, "interrupts")?, costs.interrupts as f64)?;
            let received = number(&said, "received")?;
            figures.at_most(&of("frames that arrived"), received, count as f64)?;
            // A peer without a free buffer loses frames, but each of them is counted.
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
            // If HLT exits, somebody has to wake the vCPU, which may have woken by itself just before.
            figures.at_most(
                &of("wakes that came late"),
                costs.exits_for("late-wake"),
                costs.exits_for("hlt") as f64,
            )?;
        }
    }
    Ok(())
}

fn probe_restarts(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let count = context.times(REQUESTS_OF_A_LIFE, REQUESTS_OF_A_LIFE_ON_BOCHS);
    let modes: Vec<&str> = modes::completions(context.platform()).map(|mode| mode.name).collect();
    // The stream is so long that the guest is always killed within it.
    let actions = format!("requests:{count},stream:{}", u32::MAX);
    let probes = |(first, mode): (usize, &&str)| {
        vec![Probe::new(first, mode, &actions).peer(first + 1), Probe::new(first + 1, mode, "serve")]
    };
    let groups: Vec<Vec<Probe>> = (1..).step_by(2).zip(&modes).map(probes).collect();
    in_turn(context, "probe-restarts", &groups, |context, session, group| {
        let mode = modes[group];
        let [p, q] = [0, 1].map(|index: usize| groups[group][index].name());
        session.result(&q, "serve", seconds(120))?;
        let before = session.counters()?;
        let (mut woken, mut sent, mut taken) = (0, 0, 0);
        for life in 0..=LIVES {
            let (said, counters) = act(session, &p, "requests")?;
            woken += number(&said, "woken")?;
            taken += number(&said, "interrupts")?;
            sent += Costs::between(&counters, &p)?.interrupts;
            if life < LIVES {
                kill_in_a_stream(session, &p)?;
            }
        }
        let counters = session.counters()?;
        let of = |what: &str| format!("{mode}: {what}");
        let figures = &mut context.figures;
        figures.exactly(&of("lives"), starts(&counters, &p), LIVES + 1)?;
        figures.exactly(&of("lives of the neighbour"), starts(&counters, &q), 1)?;
        figures.exactly(&of("requests woken by their own completion"), woken, count * (LIVES + 1))?;
        figures.exactly(&of("interrupts that the engine sent for them"), sent, woken)?;
        figures.exactly(&of("interrupts taken"), taken, woken)?;
        let errors = net_of_all(&counters).ring_errors - net_of_all(&before).ring_errors;
        figures.exactly(&of("ring errors"), errors, 0)
    })
}

/// Lets probe `name` begin its stream, kills it while frames and completions are on their way, and waits until it has
/// started again.
fn kill_in_a_stream(session: &mut Session, name: &str) -> Result<()> {
    let before = Costs::of(&ready(session, name)?, name)?;
    go(session, name)?;
    let under_way = (0..READINGS).find_map(|_| {
        thread::sleep(BETWEEN_READINGS);
        let packets = session.counters().and_then(|now| Ok(Costs::of(&now, name)?.since(&before).packets));
        packets.map_or_else(|error| Some(Err(error)), |packets| (packets >= UNDER_WAY).then_some(Ok(())))
    });
    under_way.context("it does not stream")??;
    session.ask(Command::Restart(name.to_owned()), seconds(30))?;
    let reason = session.state(name, GuestState::Stopped, seconds(60))?;
    ensure!(reason == Some(StopReason::Killed), "{name} stopped for {reason:?}");
    session.state(name, GuestState::Running, seconds(60))?;
    Ok(())
}
