//! A guest with a driver of its own makes requests to a RAM disk that are counted exactly, in every mode of requests and
//! of completion.

use anyhow::Result;

use crate::boot::{Boot, alone};
use crate::costs::Costs;
use crate::counts::disk;
use crate::modes::{self, Completion, Requests};
use crate::platform::{EVERYWHERE, Platform, QEMU};
use crate::probes::{Probe, act, in_turn};
use crate::scenario::{Context, Scenario};
use crate::session::{Session, number};

/// MiB of a disk.
const MIB: u32 = 4;
/// Serial number of each disk.
const SERIAL: &str = "probe";
/// Requests of an action with `--full`. More than 65,536, so that an event index that does not move shows.
const REQUESTS: u64 = 100_000;
/// The same without `--full`.
const REQUESTS_USUALLY: u64 = 5_000;

/// Most interrupts for a request, with 32 in flight, where a completion does not exit.
const DEEP_INTERRUPTS: f64 = 0.1;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "requests to a disk without a timer, in every mode: each is woken by its own completion; 32 in flight; \
                 with `poll` in `eli`, `direct` and `posted` no exit for I/O";
    vec![alone(Scenario::new("probe-disk", about, EVERYWHERE).longer_on(QEMU).taking_turns(), probe_disk)]
}

/// A mode of requests and one of completion.
#[derive(Clone, Copy)]
struct Pair {
    asks: Requests,
    completes: Completion,
}

impl Pair {
    /// The pairs of a platform. Of those in which a completion exits, the first and the last: polled, and the baseline in
    /// which a request exits too.
    fn all(platform: Platform) -> Vec<Self> {
        let pairs = modes::requests()
            .flat_map(|asks| modes::completions(platform).map(move |completes| Self { asks, completes }));
        pairs.filter(|pair| !pair.completes.exits || pair.asks.exits.is_some()).collect()
    }
}

fn probe_disk(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let count = if context.full { REQUESTS } else { REQUESTS_USUALLY };
    let pairs = Pair::all(context.platform());
    let actions = format!("disk-singles:{count},disk-deep:{count}");
    let probe = |(number, pair): (usize, &Pair)| {
        let disk = format!("serial = \"{SERIAL}\"\n");
        vec![Probe::new(number, pair.completes.name, &actions).requests(pair.asks.name).disk(MIB, &disk)]
    };
    let groups: Vec<Vec<Probe>> = (1..).zip(&pairs).map(probe).collect();
    in_turn(context, "probe-disk", &groups, |context, session, group| {
        for action in ["disk-singles", "disk-deep"] {
            requests(context, session, pairs[group], &groups[group][0].name(), action, count)?;
        }
        Ok(())
    })
}

/// Lets the guest `name` make its requests, and checks what was counted meanwhile.
fn requests(
    context: &mut Context<'_>,
    session: &mut Session,
    Pair { asks, completes }: Pair,
    name: &str,
    action: &str,
    count: u64,
) -> Result<()> {
    let (said, counters) = act(session, name, action)?;
    let costs = Costs::between(&counters, name)?;
    let [before, after] = counters.each_ref().map(|reading| disk(reading, name, SERIAL));
    let (before, after) = (before?, after?);
    let grown = |kind: &str| after.count(kind) - before.count(kind);
    let (kicks, interrupts) = (after.kicks - before.kicks, after.interrupts - before.interrupts);
    let of = |what: &str| format!("{}, {}: {action}: {what}", asks.name, completes.name);
    let figures = &mut context.figures;
    figures.exactly(&of("requests that the device completed"), grown("reads") + grown("writes"), count)?;
    figures.exactly(&of("requests that failed"), grown("errors") + grown("unsupported"), 0)?;
    figures.exactly(&of("notifications that the device counted"), kicks, number(&said, "kicks")?)?;
    if asks.exits == Some(false) {
        figures.exactly(&of("notifications"), kicks, 0)?;
    } else {
        figures.note(&of("notifications"), kicks);
    }
    let taken = number(&said, "interrupts")?;
    if action == "disk-singles" {
        figures.exactly(&of("requests woken by their own completion"), number(&said, "woken")?, count)?;
        figures.exactly(&of("interrupts that the device sent"), interrupts, count)?;
        figures.exactly(&of("interrupts taken"), taken, count)?;
    } else {
        let most = if completes.exits { 1.0 } else { DEEP_INTERRUPTS };
        figures.at_most(&of("interrupts that the device sent"), interrupts, count as f64 * most)?;
        // If two interrupts for one vector meet in the IRR, the guest sees one.
        figures.at_most(&of("interrupts taken"), taken, interrupts as f64)?;
        figures.at_least(&of("interrupts taken"), taken, 1)?;
    }
    if completes.exits {
        let least = if action == "disk-singles" { count } else { 1 };
        figures.at_least(&of("exits for I/O"), costs.io_exits(), least)?;
    } else {
        figures.exactly(&of("exits for I/O beside notifications"), costs.io_exits().abs_diff(kicks), 0)?;
    }
    Ok(())
}
