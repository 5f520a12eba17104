//! Machine checks, made by the emulator's monitor. QEMU resets the machine if a core has them switched off or has not handled the
//! last one, and with `-no-reboot` it ends then. It has no intercept of machine checks in guests: there they go to the guest.

use ::trace::Kind;
use ::trace::record::{ENDS_GUEST, WITHHELD};
use anyhow::{Context as _, Result, ensure};
use control::{Command, Counters, Event, GuestState, MachineChecks, StopReason, TraceStep};

use crate::boot::{Boot, alone};
use crate::cases::trace::{self, Read};
use crate::guests::{Guest, server, with_entries};
use crate::platform::{Platform, QEMU};
use crate::scenario::{Context, Scenario, seconds};
use crate::session::Session;
use crate::setup::Setup;

/// Action required: VAL, UC, EN, MISCV, ADDRV, S, AR, "data load".
const REQUIRED: u64 = 0xbd80_0000_0000_0134;
/// No action required: VAL, UC, EN, MISCV, ADDRV.
const NO_ACTION: u64 = 0xbc00_0000_0000_0134;
/// Corrected: VAL, EN.
const CORRECTED: u64 = 0x9000_0000_0000_0135;
/// MCG_STATUS: MCIP, RIPV.
const GOES_ON: u64 = 5;
/// The further register: a physical address, the lower 6 bits are not valid.
const PHYSICAL: u64 = 0x86;
/// An address without memory.
const NOWHERE: u64 = 0x7f_0000_0000;
/// Bytes between two injected errors.
const APART: u64 = 64 << 10;
/// Pings of the neighbours during each step.
const PINGS: u64 = 20;
const CONTROL_CORE: u64 = 0;
const ENGINE_CORE: u64 = 1;
const CR4_MCE: u64 = 1 << 6;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "uncorrected errors in guests' memory on the control core, the engine's and an idle one, twice in a row: that \
                 guest ends, the others' pings are answered; one in nobody's memory stops the machine";
    let to_all = "uncorrected errors of which all cores are told, as on processors of Intel, three times in a row: the cores meet, one of \
                  them judges; a guest starts after them; one in nobody's memory stops the machine";
    vec![
        alone(Scenario::new("machine-checks", about, QEMU), machine_checks),
        alone(Scenario::new("machine-checks-all", to_all, &[Platform::Qemu]).taking_turns(), machine_checks_all),
    ]
}

/// Gives an error to a core.
fn inject(session: &mut Session, core: u64, status: u64, address: u64) -> Result<()> {
    let global = if status == CORRECTED { 0 } else { GOES_ON };
    // A bank with an error has OVER set by the next one, and then action required is fatal.
    let bank = if status == CORRECTED { 2 } else { 1 };
    monitor(session, &format!("mce {core} {bank} {status:#x} {global:#x} {address:#x} {PHYSICAL:#x}"))
}

/// Gives an error to a core, and one without an address, which needs no action, to all others. QEMU does that only if the
/// processor says that it is Intel's.
fn inject_all(session: &mut Session, core: u64, address: u64) -> Result<()> {
    monitor(session, &format!("mce -b {core} 1 {REQUIRED:#x} {GOES_ON:#x} {address:#x} {PHYSICAL:#x}"))
}

/// Gives the emulator's monitor a line that it answers only if something is wrong.
fn monitor(session: &mut Session, line: &str) -> Result<()> {
    let said = session.monitor_text(line)?;
    let said = said.trim();
    ensure!(said.is_empty(), "{line}: QEMU says {said:?}");
    Ok(())
}

/// An address in a guest's memory.
fn address_in(session: &mut Session, name: &str) -> Result<u64> {
    let region = session.guest(name)?.regions.first().copied().context("it has no memory")?;
    Ok(region.start + region.bytes / 2)
}

/// Waits until a guest has ended because of an error at `address`.
fn ended(session: &mut Session, name: &str, address: u64) -> Result<()> {
    let (reason, detail) = session.wait(&format!("the end of guest {name}"), seconds(60), |event| match event {
        Event::Guest { guest, state: GuestState::Stopped, reason, detail } if guest == name => {
            Some((*reason, detail.clone().unwrap_or_default()))
        }
        _ => None,
    })?;
    ensure!(reason == Some(StopReason::MemoryError), "guest {name} ended by {reason:?}: {detail}");
    ensure!(detail.contains(&format!("{address:#x}")), "guest {name} ended by an error elsewhere: {detail}");
    Ok(())
}

/// Gives a core two errors in a guest's memory, while the neighbours' pings go on.
fn hit(context: &mut Context<'_>, session: &mut Session, core: u64, victim: &str) -> Result<()> {
    let address = address_in(session, victim)?;
    session.tell("b", &format!("ping:{PINGS}"))?;
    inject(session, core, REQUIRED, address)?;
    ended(session, victim, address)?;
    inject(session, core, REQUIRED, address + APART)?;
    all_answered(context, session, &format!("errors on core {core}"))
}

fn all_answered(context: &mut Context<'_>, session: &mut Session, during: &str) -> Result<()> {
    let pings = session.result("b", "ping", seconds(120))?;
    context.figures.exactly(&format!("{during}: pings answered"), crate::session::number(&pings, "received")?, PINGS)
}

/// Reads the counters until they are as wanted.
fn counted(session: &mut Session, what: &str, wanted: impl Fn(&MachineChecks) -> bool) -> Result<Counters> {
    for _ in 0..100 {
        let counters = session.counters()?;
        if wanted(&counters.hypervisor.machine_checks) {
            return Ok(counters);
        }
        std::thread::sleep(seconds(1) / 10);
    }
    let seen = session.counters()?.hypervisor.machine_checks;
    anyhow::bail!("{what} was not counted: {seen:?}")
}

/// CR4 of every processor, as the monitor has it.
fn control_registers(session: &mut Session) -> Result<Vec<u64>> {
    let text = session.monitor_text("info registers -a")?;
    let values = text.split("CR4=").skip(1).map(|rest| {
        let digits = rest.split_whitespace().next().unwrap_or_default();
        u64::from_str_radix(digits, 16).with_context(|| format!("CR4={digits}"))
    });
    values.collect()
}

/// Checks that the trace has a record of each error, with guest and address.
fn traced(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    let addresses = [address_in(session, "a")?, address_in(session, "c")?];
    let arrived = trace::collect(session);
    session.ask(trace::command(TraceStep::Off, false, ""), seconds(20))?;
    session.ask(trace::command(TraceStep::Save, false, ""), seconds(20))?;
    let bytes = trace::ended(session, &arrived)?;
    let read = Read::new(&bytes)?;
    let errors: Vec<_> = read.records(Kind::MachineCheck).map(|(_, record)| record).collect();
    let of = |guest, code| errors.iter().filter(|record| (record.guest, record.code) == (guest, code)).count() as u64;
    let figures = &mut context.figures;
    figures.exactly("records of errors that end a", of(0, ENDS_GUEST), 2)?;
    figures.exactly("records of errors that need no action", of(0, WITHHELD), 1)?;
    figures.exactly("records of errors that end c", of(2, ENDS_GUEST), 4)?;
    figures.exactly("records of machine checks", errors.len() as u64, 7)?;
    for record in &errors {
        let address = addresses[usize::from(record.guest == 2)];
        ensure!((address..address + 4 * APART).contains(&record.a), "{record:?}: no error was made at that address");
    }
    Ok(())
}

/// Starts a guest whose memory has an error, and checks that it is refused for that.
fn refused(session: &mut Session, name: &str) -> Result<()> {
    let address = address_in(session, name)?;
    session.ask(Command::Start(name.to_owned()), seconds(20))?;
    let said = session.wait("the refusal of its start", seconds(60), |event| match event {
        Event::Guest { guest, state: GuestState::Stopped, reason: Some(StopReason::NotStarted), detail }
            if guest == name =>
        {
            detail.clone()
        }
        _ => None,
    })?;
    let named = said.contains(&format!("{:#x}", address & !0xfff)) && said.contains("restart the machine");
    ensure!(named, "{name} is refused, but not because of its memory: {said}");
    Ok(())
}

/// Checks that the machine stops by an error in nobody's memory, and says so.
fn stops(session: &mut Session, core: u64) -> Result<()> {
    let (message, ..) = session.panicked(seconds(60))?;
    let on = format!("machine check on core {core}:");
    for part in [&on, "bank 1", "0xbd80000000000134", "0x7f00000000", "no memory of anybody's"] {
        ensure!(message.contains(part), "the last words have no {part:?}: {message}");
    }
    session.wait_end(seconds(60))
}

fn machine_checks(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let guests = [Guest::new(1).then("obey"), Guest::new(2).peer(3).then("obey"), Guest::new(3).peer(2).then("obey")];
    let setup = with_entries(server("machine-checks", &guests), "[trace]\non = [\"life\"]\n");
    let mut session = context.boot(&setup)?;
    session.all_obey(guests.iter().map(Guest::name))?;
    let idle = *session.guest("a")?.cores.first().context("guest a has no core")?;
    let without = control_registers(&mut session)?.iter().filter(|&cr4| cr4 & CR4_MCE == 0).count();
    context.figures.exactly("processors with machine checks off, in guests or not", without, 0)?;

    hit(context, &mut session, CONTROL_CORE, "a")?;

    let before = counted(&mut session, "two machine checks", |seen| seen.interrupts == 2)?.hypervisor.machine_checks;
    context.figures.exactly("errors because of which a guest ends", before.ended, 2)?;
    let address = address_in(&mut session, "a")?;
    inject(&mut session, CONTROL_CORE, NO_ACTION, address + 2 * APART)?;
    let after = counted(&mut session, "one more", |seen| seen.interrupts == 3)?.hypervisor.machine_checks;
    context.figures.exactly("errors that need no action", after.deferred - before.deferred, 1)?;

    // Nothing interrupts a core for these. The control core reads its banks, and so do the engine's core, and one that has nothing to do.
    inject(&mut session, CONTROL_CORE, CORRECTED, 0)?;
    counted(&mut session, "a corrected error on the control core", |seen| seen.corrected == 1)?;
    inject(&mut session, ENGINE_CORE, CORRECTED, 0)?;
    counted(&mut session, "one on the engine's core", |seen| seen.corrected == 2)?;
    inject(&mut session, idle, CORRECTED, 0)?;
    let seen = counted(&mut session, "one on an idle core", |seen| seen.corrected == 3)?;
    let interrupts = seen.hypervisor.machine_checks.interrupts - after.interrupts;
    context.figures.exactly("machine checks by a corrected error", interrupts, 0)?;

    let address = address_in(&mut session, "c")?;
    inject(&mut session, ENGINE_CORE, REQUIRED, address)?;
    ended(&mut session, "c", address)?;
    inject(&mut session, ENGINE_CORE, REQUIRED, address + APART)?;
    for n in 2..4 {
        let wanted = after.interrupts + n;
        counted(&mut session, "one after the other", |seen| seen.interrupts == wanted)?;
        inject(&mut session, idle, REQUIRED, address + n * APART)?;
    }
    // The control core carries out the verdict in its next tick.
    let seen = counted(&mut session, "the last one's verdict", |seen| seen.ended == 6)?.hypervisor.machine_checks;
    context.figures.exactly("machine checks, in all", seen.interrupts, after.interrupts + 4)?;
    session.act("b", "seen", seconds(60)).map(drop)?;

    refused(&mut session, "a")?;
    ensure!(session.guest("b")?.state == GuestState::Running, "guest b does not run");

    traced(context, &mut session)?;

    inject(&mut session, ENGINE_CORE, REQUIRED, NOWHERE)?;
    stops(&mut session, ENGINE_CORE)
}

/// QEMU gives a core in a guest its machine check by the guest's own IDT. So no guest runs while all cores get one.
fn machine_checks_all(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let guests = [Guest::new(1).started_later(), Guest::new(2).started_later().then("obey")];
    let setup = Setup { says_intel: true, ..server("machine-checks-all", &guests) };
    let mut session = context.boot(&setup)?;
    session.booted(seconds(240))?;
    let address = address_in(&mut session, "a")?;
    let idle = *session.guest("a")?.cores.first().context("guest a has no core")?;
    let cores = u64::from(setup.cpus);
    for (n, core) in (1..).zip([CONTROL_CORE, ENGINE_CORE, idle]) {
        inject_all(&mut session, core, address)?;
        let what = format!("a machine check on all {cores} cores");
        counted(&mut session, &what, |seen| seen.interrupts == n * cores && seen.judged >= n)?;
    }
    let told = session.counters()?.hypervisor.machine_checks;
    context.figures.exactly("machine checks, of all cores together", told.interrupts, 3 * cores)?;
    context.figures.exactly("times that one core judged them all", told.judged, 3)?;
    context.figures.exactly("errors in a guest's memory", told.ended, 3)?;
    context.figures.exactly("errors that need no action", told.deferred, 3 * (cores - 1))?;
    refused(&mut session, "a")?;
    session.ask(Command::Start("b".to_owned()), seconds(20))?;
    session.all_obey(["b"])?;
    session.ask(Command::Kill("b".to_owned()), seconds(20))?;
    session.state("b", GuestState::Stopped, seconds(60))?;
    inject_all(&mut session, CONTROL_CORE, NOWHERE)?;
    stops(&mut session, CONTROL_CORE)
}
