//! A network device with several pairs of queues, each on a vCPU of its own.

use anyhow::Result;
use serde_json::Value;

use crate::cases::network::number;
use crate::guests::{Guest, server};
use crate::scenario::{Context, QEMU, Scenario, seconds};

const PINGS: u64 = 100;

/// These scenarios.
pub fn list() -> Vec<Scenario> {
    vec![Scenario {
        name: "multi-queue",
        about: "two guests with two vCPUs and two pairs of queues: what is sent on a pair is received on that pair",
        platforms: QEMU,
        slow_on_bochs: false,
        run: multi_queue,
    }]
}

fn interrupts(result: &Value) -> Vec<u64> {
    result["interrupts"].as_array().map(|list| list.iter().filter_map(Value::as_u64).collect()).unwrap_or_default()
}

fn multi_queue(context: &mut Context<'_>) -> Result<()> {
    let guest = |number| Guest::new(number).vcpus(2).queues(2);
    let pings = format!("ping:{PINGS}");
    let b = guest(2).peer(1).then("still").then("pairs");
    let b = [0, 1].iter().fold(b, |b, cpu| b.then(format!("cpu:{cpu}")).then(&*pings).then("pairs"));
    let mut session = context.boot(&server("multi-queue", &[guest(1).then("wait"), b.then("wait")]))?;
    let mut before = session.result("b", "pairs", seconds(240))?;
    for direction in ["receive", "transmit"] {
        context.figures.exactly(&format!("{direction} queues in use"), number(&before, direction)?, 2)?;
    }
    for cpu in 0..2 {
        let ping = session.result("b", "ping", seconds(120))?;
        context.figures.exactly(&format!("pings answered to CPU {cpu}"), number(&ping, "received")?, PINGS)?;
        let after = session.result("b", "pairs", seconds(60))?;
        let (old, new) = (interrupts(&before), interrupts(&after));
        context.figures.exactly("receive queues with interrupts", new.len(), 2)?;
        let mine = new[cpu] - old[cpu];
        context.figures.at_least(&format!("interrupts of pair {cpu} meanwhile"), mine, PINGS / 2)?;
        let others = new[1 - cpu] - old[1 - cpu];
        context.figures.at_most("interrupts of the other pair", others, PINGS / 10)?;
        before = after;
    }
    session.shut_down()?;
    Ok(())
}
