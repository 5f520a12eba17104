//! Checks that both virtual CPUs of a guest work.

use anyhow::{Context as _, Result, ensure};
use control::Counters;

use crate::scenario::{Context, seconds};
use crate::session::{Session, number};

/// Makes a guest with two virtual CPUs work on both, take one offline and bring it back. Returns the counters at the
/// end.
pub fn both_at_work(context: &mut Context<'_>, session: &mut Session, guest: &str) -> Result<Counters> {
    session.tell(guest, "smp:2")?;
    for (step, cpus) in [("both", 2), ("offline", 1), ("online", 2)] {
        let smp = session.result(guest, "smp", seconds(240))?;
        ensure!(smp["step"] == step, "expected step {step}, got {smp}");
        context.figures.exactly(&format!("{step}: CPUs"), number(&smp, "cpus")?, cpus)?;
        let ticks = smp["ticks"].as_array().with_context(|| format!("no ticks in {smp}"))?;
        context.figures.exactly(&format!("{step}: CPUs with a count"), ticks.len(), cpus)?;
        let least = ticks.iter().filter_map(serde_json::Value::as_u64).min().unwrap_or(0);
        context.figures.at_least(&format!("{step}: clock ticks of work on the least busy CPU"), least, 20)?;
    }
    session.counters()
}
