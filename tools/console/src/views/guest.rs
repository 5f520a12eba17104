//! Guests, and one guest's exits by reason.

use control::{ExitCount, Guest, GuestState};

use super::latency;
use super::nothing::gone;
use crate::clean::{NAME, clean};
use crate::rates::{Pair, by_reason, each, exits, guest_exits, total};
use crate::sheet::{Sheet, Table, Tone, Value, binary, number, words};
use crate::state::State;
use crate::traced::Hot;

/// All guests.
pub fn sheet(state: &State, pair: &Pair<'_>) -> Sheet {
    let mut main = Table::new(
        "guests",
        "Guests (host: time of their vCPUs in the hypervisor, of one core)",
        &[
            words("name", "guest", 0),
            words("state", "state", 0),
            number("vcpus", "vCPUs", 2),
            number("starts", "starts", 3),
            number("exits_per_second", "exits/s", 0),
            number("cycles_per_exit", "cyc/exit", 0),
            number("host_share", "host", 0),
            words("top_reason", "most time", 0),
            number("refusals", "refused", 1),
            number("memory", "memory", 3),
            words("why", "stopped by", 3),
        ],
    );
    for guest in &pair.now.guests {
        let before = pair.guest(guest);
        let ((count, cycles), then) = (guest_exits(guest), before.map(guest_exits));
        let (rate, cycle_rate) = (pair.rate(count, then.map(|t| t.0)), pair.rate(cycles, then.map(|t| t.1)));
        let top = reasons(pair, guest)
            .into_iter()
            .filter(|r| r.rate.is_some_and(|rate| rate > 0.0))
            .max_by(|a, b| a.share.unwrap_or(0.0).total_cmp(&b.share.unwrap_or(0.0)));
        let refused = total(&guest.refusals);
        let tone = match guest.state {
            GuestState::Running if refused > before.map_or(refused, |before| total(&before.refusals)) => Tone::Warning,
            GuestState::Running => Tone::Plain,
            GuestState::Starting | GuestState::Stopping | GuestState::Detaching => Tone::Warning,
            GuestState::Stopped => Tone::Quiet,
        };
        main.row(
            &*guest.name,
            tone,
            vec![
                (*guest.name).into(),
                guest.state.name().into(),
                (guest.vcpus.len() as u64).into(),
                guest.starts.into(),
                rate.into(),
                each(cycle_rate, rate).into(),
                Value::Share(pair.share(cycles, then.map(|t| t.1))),
                top.map_or("-".into(), |top| (*top.exit.reason).into()),
                refused.into(),
                Value::Bytes(guest.memory),
                state.stop_reason(&guest.name).map_or("", |why| why.name()).into(),
            ],
        );
    }
    let facts = match state.hidden {
        0 => Vec::new(),
        more => vec![format!("{more} more guests are not shown.")],
    };
    Sheet { key: "guest", facts, main, more: Vec::new() }
}

/// One guest: its exits by reason, where they come from and how long they take, its vCPUs, and what it was refused.
pub fn detail(state: &State, pair: &Pair<'_>, id: &str) -> Sheet {
    let Some(guest) = pair.now.guest(id) else { return gone("guest") };
    let before = pair.guest(guest);
    let mut main = Table::new(
        "exits",
        format!("Exits of {} by reason (share: of its time in the hypervisor)", clean(id, NAME)),
        &[
            words("reason", "reason", 0),
            number("count", "count", 0),
            number("per_second", "exits/s", 0),
            number("cycles_per_exit", "cyc/exit", 1),
            number("cycles_per_exit_ever", "cyc/ever", 3),
            number("share", "share", 0),
            words("bar", "", 2),
        ],
    );
    for reason in reasons(pair, guest) {
        let ExitCount { reason: name, count, cycles } = &reason.exit;
        let ever = (*count > 0).then(|| *cycles as f64 / *count as f64);
        let tone = if reason.rate.is_some_and(|rate| rate > 0.0) { Tone::Plain } else { Tone::Quiet };
        main.row(
            &**name,
            tone,
            vec![
                (**name).into(),
                (*count).into(),
                reason.rate.into(),
                reason.each.into(),
                ever.into(),
                Value::Share(reason.share),
                Value::Bar(reason.share),
            ],
        );
    }
    // The reasons with most of the time first.
    main.sort(SHARE, false);
    let mut vcpus = Table::new(
        "vcpus",
        "vCPUs",
        &[
            number("vcpu", "vCPU", 0),
            number("core", "core", 0),
            number("exits", "exits", 0),
            number("exits_per_second", "exits/s", 0),
            number("host_share", "host", 0),
            words("bar", "", 1),
        ],
    );
    for (n, vcpu) in guest.vcpus.iter().enumerate() {
        let (count, cycles) = exits(vcpu);
        let then = before.and_then(|before| before.vcpus.get(n)).map(exits);
        let share = pair.share(cycles, then.map(|t| t.1));
        vcpus.row(
            n.to_string(),
            Tone::Plain,
            vec![
                (n as u64).into(),
                vcpu.core.into(),
                count.into(),
                pair.rate(count, then.map(|t| t.0)).into(),
                Value::Share(share),
                Value::Bar(share),
            ],
        );
    }
    let mut refused = Table::new("refusals", "Refused", &[words("kind", "what", 0), number("count", "count", 0)]);
    for count in guest.refusals.iter().chain(&guest.shadow_idt) {
        refused.row(&*count.kind, Tone::Plain, vec![(*count.kind).into(), count.count.into()]);
    }
    let why = state.stop_reason(id).map_or(String::new(), |why| format!(", stopped by {}", why.name()));
    let mut facts = vec![
        format!(
            "{}{why}; starts: {}; memory {}, and {} beside it",
            guest.state.name(),
            guest.starts,
            binary(guest.memory),
            binary(guest.kept)
        ),
        format!(
            "console: {} bytes and {} lines of output dropped, {} bytes of input dropped",
            guest.console_dropped, guest.lines_dropped, guest.input_dropped
        ),
    ];
    let (addresses, times) = (addresses(state, id), latency::exits(state, id));
    if !addresses.rows.is_empty() {
        let (exits, lost) = state.traced.totals();
        facts.push(format!("trace: {exits} exits of all guests have arrived, {lost} records were lost"));
    }
    Sheet { key: "guest", facts, main, more: vec![addresses, times, vcpus, refused] }
}

/// Where the guest's exits come from, as far as they were traced.
fn addresses(state: &State, id: &str) -> Table {
    let mut table = Table::new(
        "addresses",
        "Where exits come from (share: of the reason's)",
        &[
            words("reason", "reason", 0),
            words("address", "address", 0),
            number("exits", "exits", 0),
            number("share", "share", 1),
            words("function", "function", 0),
        ],
    );
    for Hot { reason, address, exits, of, function } in state.traced.hottest(id) {
        let function = function.map_or(String::new(), |(name, distance)| format!("{name}+{distance:#x}"));
        table.row(
            format!("{reason} {address:#x}"),
            Tone::Plain,
            vec![
                (*reason).into(),
                (*format!("{address:#x}")).into(),
                exits.into(),
                Value::Share((of > 0).then(|| exits as f64 / of as f64)),
                (*function).into(),
            ],
        );
    }
    table
}

/// The column of the table of exits by which it is sorted at first.
const SHARE: usize = 5;

/// Exits of a guest for one reason.
struct Reason {
    exit: ExitCount,
    /// Exits in a second.
    rate: Option<f64>,
    /// Cycles of each, since the reading before.
    each: Option<f64>,
    /// Part of the guest's time in the hypervisor, since the reading before. The parts of all reasons are 1 together.
    share: Option<f64>,
}

fn reasons(pair: &Pair<'_>, guest: &Guest) -> Vec<Reason> {
    let before = pair.guest(guest).map(by_reason);
    let then = |reason: &str| {
        // A reason that was not there yet had no exits.
        before.as_ref().map(|before| before.iter().find(|b| b.reason == reason).map_or((0, 0), |b| (b.count, b.cycles)))
    };
    let now = by_reason(guest);
    let cycles = |exit: &ExitCount| pair.rate(exit.cycles, then(&exit.reason).map(|t| t.1));
    let all: f64 = now.iter().filter_map(cycles).sum();
    now.into_iter()
        .map(|exit| {
            let rate = pair.rate(exit.count, then(&exit.reason).map(|t| t.0));
            let cycles = cycles(&exit);
            let share = cycles.filter(|_| all > 0.0).map(|cycles| cycles / all);
            Reason { each: each(cycles, rate), rate, share, exit }
        })
        .collect()
}
