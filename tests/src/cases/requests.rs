//! How the engine learns of requests: only by notifications, and adaptively. Also network devices with several queue
//! pairs. `two-guests-ping` shows that polling needs no notification.

use anyhow::Result;
use serde_json::Value;

use crate::boot::{Boot, Check, Shared, Wanted};
use crate::counts::{net, notify_exits};
use crate::guests::{Guest, server};
use crate::platform::{EVERYWHERE, Platform, QEMU};
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};
use crate::tcp;

const PINGS: u64 = 1000;
/// Pings after the load. Each comes after a pause, so that it has to notify an armed queue.
const LATER: u64 = 8;
/// Pings on each pair of queues.
const PINGS_OF_A_PAIR: u64 = 100;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    type Run = fn(&mut Context<'_>, &mut Session) -> Result<()>;
    let check = |name, about, platforms, run: Run| Check::new(Scenario::new(name, about, platforms), run);
    vec![Box::new(Shared {
        name: "requests",
        about: "a and b notify; c and d, with iperf3, are polled or notify; e and f have two virtual CPUs and two pairs of queues",
        start,
        end: |mut session| session.shut_down().map(drop),
        checks: vec![
            check(
                "requests-notify",
                "1,000 pings with `requests = \"notify\"`: each is announced by a notification, none is lost",
                QEMU,
                notify,
            ),
            check(
                "requests-adaptive",
                "`requests = \"adaptive\"`: polled under load, notified after it, and no kick lost on the way",
                EVERYWHERE,
                adaptive,
            ),
            check(
                "multi-queue",
                "two guests with two vCPUs and two pairs of queues: what is sent on a pair is received on that pair",
                QEMU,
                multi_queue,
            ),
        ],
    })]
}

fn start(context: &mut Context<'_>, wanted: &Wanted<'_>) -> Result<Session> {
    let pair = |first: usize| [Guest::new(first).peer(first + 1), Guest::new(first + 1).peer(first)];
    let mut guests: Vec<Guest> = Vec::new();
    if wanted.any(&["requests-notify"]) {
        guests.extend(pair(1).map(|guest| guest.requests("notify")));
    }
    if wanted.any(&["requests-adaptive"]) {
        guests.extend(pair(3).map(|guest| guest.requests("adaptive").full()));
    }
    if wanted.any(&["multi-queue"]) {
        guests.extend(pair(5).map(|guest| guest.vcpus(2).queues(2)));
    }
    let guests: Vec<Guest> = guests.into_iter().map(|guest| guest.then("obey")).collect();
    let mut session = context.boot(&server("requests", &guests))?;
    session.all_obey(guests.iter().map(Guest::name))?;
    Ok(session)
}

fn notify(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    let ping = session.act("a", &format!("ping:{PINGS}"), seconds(240))?;
    context.figures.exactly("pings answered", number(&ping, "received")?, PINGS)?;
    context.figures.note("average round trip, us", number(&ping, "avg_us")?);
    let counters = session.counters()?;
    for name in ["a", "b"] {
        let net = net(&counters, name)?;
        let figures = &mut context.figures;
        // Each ping waits for its reply, so nearly every ping finds its queue armed, unless the host is busy.
        figures.at_least(&format!("kicks of {name}"), net.kicks, PINGS / 2)?;
        figures.at_least(&format!("times a queue of {name} was armed"), net.arms, PINGS / 2)?;
        figures.exactly(&format!("times polling of {name} began"), net.polls, 0)?;
        figures.exactly(&format!("exits of {name} for kicks"), notify_exits(&counters, name), net.kicks)?;
    }
    Ok(())
}

fn adaptive(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    let mib = context.times(64, 16);
    session.act("c", "iperf-server", seconds(60))?;
    let first = session.counters()?;
    let stream = session.act("d", &tcp::action(mib, ""), seconds(240))?;
    let second = session.counters()?;
    let dropped = tcp::dropped(&first, &second, &["c", "d"])?;
    let (boot, before) = (net(&first, "d")?, net(&second, "d")?);
    let mut answered = 0;
    for _ in 0..LATER {
        // The pause is one of the guest's time, which on Bochs is not the host's.
        session.tell("d", "sleep:1")?;
        answered += number(&session.act("d", "ping:1", seconds(60))?, "received")?;
    }
    let after = net(&session.counters()?, "d")?;
    let platform = context.platform();
    let figures = &mut context.figures;
    tcp::arrived_at_once(figures, "of the stream", &stream, mib, dropped)?;
    let (polls, kicks) = ("times polling of d began", "kicks of d, with those that led to polling");
    let kicked = (before.kicks - boot.kicks).max(1);
    let batch = ("packets from d under load for each kick", (before.tx_packets - boot.tx_packets) / kicked);
    if platform == Platform::Qemu {
        // Polling begins at ten kicks within 20 ms. There a millisecond is the host's, and on a busy host there may be
        // no such 20 ms at all.
        figures.note(polls, before.polls);
        figures.note(kicks, before.kicks);
        figures.note(batch.0, batch.1);
    } else {
        figures.at_least(polls, before.polls, 1)?;
        figures.at_least(kicks, before.kicks, 10)?;
        figures.at_least(batch.0, batch.1, 5)?;
    }
    figures.exactly("pings after the load answered", answered, LATER)?;
    figures.at_least("kicks of d after the load", after.kicks - before.kicks, LATER)?;
    figures.at_least("times a queue of d was armed after the load", after.arms - before.arms, LATER)
}

fn interrupts(result: &Value) -> Vec<u64> {
    result["interrupts"].as_array().map(|list| list.iter().filter_map(Value::as_u64).collect()).unwrap_or_default()
}

fn multi_queue(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    session.tell("f", "still")?;
    let mut before = session.act("f", "pairs", seconds(240))?;
    for direction in ["receive", "transmit"] {
        context.figures.exactly(&format!("{direction} queues in use"), number(&before, direction)?, 2)?;
    }
    for cpu in 0..2 {
        session.tell("f", &format!("cpu:{cpu}"))?;
        let ping = session.act("f", &format!("ping:{PINGS_OF_A_PAIR}"), seconds(120))?;
        context.figures.exactly(
            &format!("pings answered to CPU {cpu}"),
            number(&ping, "received")?,
            PINGS_OF_A_PAIR,
        )?;
        let after = session.act("f", "pairs", seconds(60))?;
        let (old, new) = (interrupts(&before), interrupts(&after));
        context.figures.exactly("receive queues with interrupts", new.len(), 2)?;
        let mine = new[cpu] - old[cpu];
        context.figures.at_least(&format!("interrupts of pair {cpu} meanwhile"), mine, PINGS_OF_A_PAIR / 2)?;
        let others = new[1 - cpu] - old[1 - cpu];
        context.figures.at_most("interrupts of the other pair", others, PINGS_OF_A_PAIR / 10)?;
        before = after;
    }
    Ok(())
}
