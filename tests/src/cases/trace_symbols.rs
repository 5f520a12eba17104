//! Names of the code that guests exit from: what `sidecore-trace` says from the guest's bzImage is what the guest itself says.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use control::TraceStep;
use sidecore_trace::model::{Event, Trace};
use sidecore_trace::read;
use sidecore_trace::resolve::Resolver;
use sidecore_trace::symbols::Choice;
use trace::Kind;

use super::trace::{collect, command, ended};
use crate::boot::{Boot, alone};
use crate::guests::{Guest, server, with_entries};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::Session;

/// Addresses that are compared for each guest.
const HOTTEST: usize = 10;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "a guest whose kernel KASLR has moved, one with nokaslr, and one that is started again while it is traced: the \
                 functions that most exits come from, by the kernel's bzImage, are those of the guest's own /proc/kallsyms";
    vec![alone(Scenario::new("trace-symbols", about, QEMU).taking_turns(), symbols)]
}

fn symbols(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let moved = |number| Guest::new(number).then("obey");
    let guests =
        [moved(1).completion("inject").peer(2), moved(2).kernel_option("nokaslr").peer(1), moved(3).vcpus(2).peer(1)];
    let names = ["a", "b", "c"];
    let setup = with_entries(server("trace-symbols", &guests), "[trace]\nmemory = \"8M\"\non = [\"exits\"]\n");
    let mut session = context.boot(&with_room(setup))?;
    let arrived = collect(&mut session);
    session.ask(command(TraceStep::Save, false, ""), seconds(20))?;
    session.all_obey(names)?;
    // A second life of c, at another place.
    super::trace::kill(&mut session, "c")?;
    session.ask(control::Command::Start("c".into()), seconds(60))?;
    session.all_obey(["c"])?;
    for name in names {
        session.act(name, "ping:100", seconds(120))?;
    }
    session.ask(command(TraceStep::Off, false, ""), seconds(20))?;
    let trace = read::bytes_of(&ended(&mut session, &arrived)?).context("no trace")?;

    let file = context.guest_kernel()?;
    let choices = names.map(|guest| Choice { guest: guest.to_owned(), file: file.clone(), offset: None });
    let resolver = Resolver::new(&choices, &trace)?;
    let figures = &mut context.figures;
    for (number, note) in (0_u8..).zip(resolver.notes()) {
        ensure!(note.checked && note.raw.is_empty(), "guest {}: {note:?}", note.guest);
        let last = begin_of_last_life(&trace, number);
        let same = compare(&mut session, &trace, &resolver, number, last)?;
        figures.at_least(&format!("guest {}: addresses with the guest's own names", note.guest), same, 8)?;
        let offsets: Vec<u64> = note.offsets.iter().map(|offset| offset >> 20).collect();
        if note.guest == "b" {
            ensure!(offsets == [0], "nokaslr, and moved by {offsets:?} MiB");
        }
        figures.at_most(&format!("guest {}: places of its kernel", note.guest), offsets.len() as u64, 2)?;
        figures
            .note(&format!("guest {}: offset in MiB", note.guest), offsets.last().copied().unwrap_or_default() as f64);
    }
    session.shut_down().map(drop)
}

/// The rings hold 8 MiB each, one for each core.
fn with_room(mut setup: crate::setup::Setup) -> crate::setup::Setup {
    setup.memory_mib += setup.cpus * 9;
    setup.typed = true;
    setup
}

/// TSC at which the guest's last life has begun. What it says of itself is of that one.
fn begin_of_last_life(trace: &Trace, guest: u8) -> u64 {
    trace.kernels.iter().filter(|kernel| kernel.guest == u32::from(guest)).map(|kernel| kernel.since).max().unwrap_or(0)
}

/// Asks the guest in which functions its hottest addresses are. Returns how many there are. All must be the same by the trace.
fn compare(session: &mut Session, trace: &Trace, resolver: &Resolver, guest: u8, since: u64) -> Result<u64> {
    let mut hot: BTreeMap<u64, (u64, Event)> = BTreeMap::new();
    let exits = trace.events.iter().filter(|event| event.record.known_kind() == Some(Kind::Exit));
    for event in exits.filter(|event| event.record.guest == guest && event.record.tsc >= since) {
        hot.entry(event.record.a).or_insert((0, *event)).0 += 1;
    }
    // User space and what runs before the kernel has moved itself have no names by either.
    let mut hot: Vec<(u64, (u64, Event))> = hot.into_iter().filter(|(address, _)| address >> 63 == 1).collect();
    hot.sort_by_key(|(address, (exits, _))| (std::cmp::Reverse(*exits), *address));
    hot.truncate(HOTTEST);
    let addresses: Vec<String> = hot.iter().map(|(address, _)| format!("{address:016x}")).collect();
    let name = trace.names.guest(guest);
    let answer = session.act(&name, &format!("functions:{}", addresses.join(":")), seconds(240))?;
    let own = answer["names"].as_array().context("the guest has no names")?;
    ensure!(own.len() == hot.len(), "{} names for {} addresses", own.len(), hot.len());
    let (mut same, mut different) = (0, Vec::new());
    for ((address, (exits, event)), own) in hot.iter().zip(own) {
        let own = own.as_str().unwrap_or_default();
        let found = resolver.function(event).map(|(name, _)| name);
        // The bzImage does not have modules.
        let wanted = (!own.is_empty() && !own.ends_with(']')).then_some(own);
        if found == wanted {
            same += 1;
        } else {
            different.push(format!("{address:#x}, {exits} exits: {found:?}, and by the guest `{own}`"));
        }
    }
    ensure!(different.is_empty(), "guest {name}: {}", different.join("; "));
    Ok(same)
}
