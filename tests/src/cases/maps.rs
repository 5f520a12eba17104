//! What each core maps. The hypervisor is built with the feature `read-memory`: a line on COM2 has a core read a byte in host
//! mode, and a page fault is an answer.

use anyhow::{Context as _, Result, ensure};
use control::{Command, Event, GuestState};
use serde_json::Value;

use crate::boot::{Boot, alone};
use crate::guests::{Guest, server};
use crate::platform::EVERYWHERE;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::Session;

/// Where a guest's memory has the first letter of "RSD PTR ", which sidecore writes when it loads the guest.
const RSDP: u64 = 0xe_0000;
const LETTER: u64 = b'R' as u64;
/// The feature.
const READ_MEMORY: &str = "read-memory";
const CONTROL_CORE: u64 = 0;
const ENGINE_CORE: u64 = 1;
/// Most KiB of an idle core, and of a guest's core without its guest: image, heap, stacks.
const MOST_KIB: u64 = 4 << 10;
/// KiB of the ECAM, and a bit for other registers of devices.
const ECAM_KIB: u64 = (256 + 16) << 10;
/// Most KiB of a guest's core besides the guest's memory: the vCPU's pages, the nested tables, the guest's part of the heap.
const MOST_STATE_KIB: u64 = 2 << 10;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "a core of each role reads pages of guests, their machines on the heap, and what only the control core and the \
                 engine need, in host mode: a fault where it does not work for that guest, also before a guest starts and after \
                 it has ended; the report says what each core maps";
    vec![alone(Scenario::new("maps", about, EVERYWHERE).taking_turns(), maps)]
}

/// Has a core read a byte. Returns the byte, or `None` if the read faulted.
fn read(session: &mut Session, core: u64, address: u64) -> Result<Option<u64>> {
    session.write_com2(format!("read {core} {address}\n").as_bytes())?;
    session.wait(&format!("what core {core} reads at {address:#x}"), seconds(20), |event| {
        let Event::Log { text, .. } = event else { return None };
        let answer: Value = serde_json::from_str(text.strip_prefix("read ")?).ok()?;
        let is_it = answer["core"] == core && answer["address"] == address;
        is_it.then(|| answer["byte"].as_u64())
    })
}

/// Where the machine of the guest with this number is, in its present life.
fn machine(session: &mut Session, number: usize) -> Result<u64> {
    let begin = format!("the machine of guest {number} is at ");
    session.wait(&format!("where the machine of guest {number} is"), seconds(20), |event| match event {
        Event::Log { text, .. } => text.strip_prefix(&begin)?.parse().ok(),
        _ => None,
    })
}

/// Where things are that only the control core and engines' cores map (on the heap and in the image), and what every core maps.
struct Places {
    control: Vec<u64>,
    everybody: Vec<u64>,
}

impl Places {
    /// Asks for them.
    fn find(session: &mut Session) -> Result<Self> {
        session.write_com2(b"where\n")?;
        let told = session.wait("where things are", seconds(20), |event| match event {
            Event::Log { text, .. } => serde_json::from_str::<Value>(text.strip_prefix("where ")?).ok(),
            _ => None,
        })?;
        let of = |name: &str| told[name].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
        Ok(Self { control: of("control"), everybody: of("everybody") })
    }
}

/// What the cores read in the guests' memory, or in their parts of the heap.
#[derive(Default)]
struct Reads {
    /// Reads by a core that works for the guest.
    right: u64,
    /// Those that found what is there.
    found: u64,
    /// Reads by another core.
    wrong: u64,
    /// Those that faulted.
    faulted: u64,
}

impl Reads {
    fn right(&mut self, session: &mut Session, core: u64, address: u64) -> Result<()> {
        self.right += 1;
        self.found += u64::from(read(session, core, address)? == Some(LETTER));
        Ok(())
    }

    /// Each of the cores maps the part of the heap that has this address. Any byte may be there.
    fn anything(&mut self, session: &mut Session, cores: &[u64], address: u64) -> Result<()> {
        for &core in cores {
            self.right += 1;
            self.found += u64::from(read(session, core, address)?.is_some());
        }
        Ok(())
    }

    fn wrong(&mut self, session: &mut Session, core: u64, address: u64) -> Result<()> {
        self.wrong += 1;
        self.faulted += u64::from(read(session, core, address)?.is_none());
        Ok(())
    }

    /// None of the cores works for the guest with memory at this address.
    fn nobody(&mut self, session: &mut Session, cores: &[u64], address: u64) -> Result<()> {
        cores.iter().try_for_each(|&core| self.wrong(session, core, address))
    }
}

fn maps(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let guests = [
        Guest::new(1).peer(2).then("obey"),
        Guest::new(2).peer(1).then("obey"),
        Guest::new(3).started_later().then("obey"),
    ];
    let mut setup = server("maps", &guests);
    setup.feature = Some(READ_MEMORY);
    // One has nothing to do.
    setup.cpus += 1;
    let idle = u64::from(setup.cpus) - 1;
    let mut session = context.boot(&setup)?;
    session.all_obey(["a", "b"])?;
    let mut places = Vec::new();
    for guest in &guests {
        let found = session.guest(guest.name())?;
        let region = found.regions.first().context("a guest has no memory")?;
        places.push((*found.cores.first().context("a guest has no core")?, region.start + RSDP));
    }
    let [(a, of_a), (b, of_b), (c, of_c)] = places[..] else { anyhow::bail!("expected three guests: {places:?}") };
    ensure!([a, b, c].iter().all(|core| (2..idle).contains(core)), "cores {a}, {b}, {c}; the idle one is {idle}");
    let mut reads = Reads::default();

    let all = [CONTROL_CORE, ENGINE_CORE, a, b, c, idle];
    for (core, own, other) in [(a, of_a, of_b), (b, of_b, of_a)] {
        reads.right(&mut session, core, own)?;
        reads.right(&mut session, ENGINE_CORE, own)?;
        reads.nobody(&mut session, &[CONTROL_CORE, core, c, idle], other)?;
    }
    reads.nobody(&mut session, &all, of_c)?;

    let mut machines = Reads::default();
    let (machine_a, machine_b) = (machine(&mut session, 0)?, machine(&mut session, 1)?);
    for (core, own, other) in [(a, machine_a, machine_b), (b, machine_b, machine_a)] {
        machines.anything(&mut session, &[CONTROL_CORE, ENGINE_CORE, core], own)?;
        machines.nobody(&mut session, &[core, c, idle], other)?;
    }

    let mut own = Reads::default();
    let Places { control, everybody } = Places::find(&mut session)?;
    for &address in &control {
        own.anything(&mut session, &[CONTROL_CORE, ENGINE_CORE], address)?;
        own.nobody(&mut session, &[a, b, c, idle], address)?;
    }
    for &address in &everybody {
        own.anything(&mut session, &all, address)?;
    }
    ensure!(!control.is_empty() && !everybody.is_empty(), "nothing was named: {control:?}, {everybody:?}");

    for _ in 0..2 {
        session.ask(Command::Start("c".to_owned()), seconds(20))?;
        session.all_obey(["c"])?;
        let machine_c = machine(&mut session, 2)?;
        machines.anything(&mut session, &[CONTROL_CORE, ENGINE_CORE, c], machine_c)?;
        machines.nobody(&mut session, &[a, b, idle], machine_c)?;
        machines.nobody(&mut session, &[c], machine_a)?;
        reads.right(&mut session, c, of_c)?;
        reads.right(&mut session, ENGINE_CORE, of_c)?;
        reads.nobody(&mut session, &[CONTROL_CORE, a, b, idle], of_c)?;
        reads.nobody(&mut session, &[c], of_a)?;
        session.ask(Command::Kill("c".to_owned()), seconds(20))?;
        session.state("c", GuestState::Stopped, seconds(60))?;
        machines.nobody(&mut session, &[a, b, c, idle], machine_c)?;
        reads.nobody(&mut session, &all, of_c)?;
    }
    context.figures.exactly("reads of a guest's memory by cores that work for it", reads.found, reads.right)?;
    context.figures.exactly("faults where others read it", reads.faulted, reads.wrong)?;
    context.figures.exactly("reads of a guest's machine by cores that need it", machines.found, machines.right)?;
    context.figures.exactly("faults where others read the machine", machines.faulted, machines.wrong)?;

    context.figures.exactly("reads of the hypervisor's own memory by cores that need it", own.found, own.right)?;
    context.figures.exactly("faults where others read the control core's", own.faulted, own.wrong)?;

    session.tell("a", "ping:20")?;
    let pings = session.result("a", "ping", seconds(120))?;
    context.figures.exactly("pings answered afterwards", crate::session::number(&pings, "received")?, 20)?;
    told(context, &mut session, u64::from(setup.memory_mib) << 10, &[a, b, c], idle)?;
    session.shut_down().map(drop)
}

/// The number of KiB behind these words of a sentence.
fn kib(sentence: &str, words: &str) -> Result<u64> {
    let (_, rest) = sentence.split_once(words).with_context(|| format!("no {words:?}: {sentence}"))?;
    let number = rest.split_whitespace().next().unwrap_or_default();
    number.parse().with_context(|| format!("no number behind {words:?}: {sentence}"))
}

/// Checks the report's sentences on what the cores map.
fn told(context: &mut Context<'_>, session: &mut Session, memory: u64, guests: &[u64], idle: u64) -> Result<()> {
    session.ask(Command::Report, seconds(20))?;
    let sentences: Vec<String> = session
        .unread()
        .iter()
        .filter_map(|event| match event {
            Event::Report(entry) => Some(entry.text.to_string()),
            _ => None,
        })
        .collect();
    let of = |core: u64| {
        let begin = [format!("core {core} maps "), format!("core {core}, ")];
        let is_it = |text: &&String| text.contains(" maps ") && begin.iter().any(|begin| text.starts_with(begin));
        sentences.iter().find(is_it).with_context(|| format!("the report has no map of core {core}"))
    };
    let mut memory_of_guests = 0;
    for &core in guests {
        let sentence = of(core)?;
        let own = kib(sentence, " maps ")?;
        context.figures.at_most(&format!("KiB that core {core} maps without its guest"), own, MOST_KIB)?;
        let with = sentence.rsplit_once(" KiB").and_then(|(rest, _)| rest.rsplit_once(' ')).map(|(_, number)| number);
        let guest: u64 = with.and_then(|number| number.parse().ok()).with_context(|| sentence.clone())?;
        let name =
            session.guests()?.into_iter().find(|guest| guest.cores == [core]).context("no guest has the core")?;
        context.figures.at_least(&format!("KiB that core {core} maps for its guest"), guest, name.memory >> 10)?;
        let most = (name.memory >> 10) + MOST_STATE_KIB;
        context.figures.at_most(&format!("KiB that core {core} maps for its guest"), guest, most)?;
        memory_of_guests += name.memory >> 10;
    }
    let own = kib(of(idle)?, " maps ")?;
    context.figures.at_most("KiB that the idle core maps", own, MOST_KIB)?;
    for core in [CONTROL_CORE, ENGINE_CORE] {
        let most = memory - memory_of_guests + ECAM_KIB;
        context.figures.at_most(&format!("KiB that core {core} maps"), kib(of(core)?, " maps ")?, most)?;
    }
    Ok(())
}
