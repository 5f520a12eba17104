//! What one boot leaves for the next one: which configuration did not come to run, and the log.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use control::Event;
use serde_json::json;

use crate::boot::{Boot, alone};
use crate::guests::{Guest, server};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};
use crate::setup::{Content, Medium, Module, Setup};

use super::media::FIRMWARE_MIB;

/// Times that `sidecore.toml` is tried.
const ATTEMPTS: u64 = 2;
/// The line of the boot before that the report quotes.
const PANIC: &str = "| panic on core 0: selftest=panic-with-guests";

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let store = "sidecore.toml panics twice when its guest has started, previous.toml runs; the firmware's store (ERST) has sidecore's log for Linux's pstore, \
                 and Linux's for sidecore";
    let memory = "by UEFI and without a store: sidecore.toml panics twice, and in another machine hangs twice until the machine's watchdog resets it; \
                  previous.toml runs";
    let byte = "the same where memory is cleared at each reset and there is no store: one byte of the CMOS memory has the count";
    let store_alone = "the same where memory is cleared at each reset: the firmware's store (ERST) has the count, and the log of the boot before";
    let kept = "a sidecore.toml that comes to run is taken again, however often the machine is reset after that";
    let unread =
        "sidecore.toml cannot be read, or is not there, or its management guest has no core: previous.toml runs";
    vec![
        alone(Scenario::new("previous-config", store, QEMU).taking_turns(), panics),
        alone(Scenario::new("previous-config-uefi", memory, QEMU).taking_turns(), by_uefi),
        alone(Scenario::new("previous-config-cmos", byte, QEMU).taking_turns(), panics_and_forgets),
        alone(Scenario::new("previous-config-erst", store_alone, QEMU).taking_turns(), panics_with_a_store),
        alone(Scenario::new("config-kept", kept, QEMU).taking_turns(), comes_to_run),
        alone(Scenario::new("unread-config", unread, QEMU).taking_turns(), unread_or_missing),
    ]
}

/// A server with a guest, and both configurations.
fn setup(name: &str) -> Setup {
    let mut setup = server(name, &[Guest::new(1).then("obey")]);
    let config = setup.modules.iter().find_map(|module| match &module.content {
        Content::Text(text) => Some(text.clone()),
        _ => None,
    });
    setup.modules.push(Module::new("previous.toml", Content::Text(config.unwrap_or_default() + "# The one before.\n")));
    setup
}

/// Waits for the panic of the self-test, for so many seconds.
fn fails(session: &mut Session, limit: u64) -> Result<()> {
    let (message, ..) = session.panicked(seconds(limit))?;
    ensure!(message.contains("selftest=panic-with-guests"), "{message}");
    Ok(())
}

/// Waits for a sentence of the report that has this text.
fn reported(session: &mut Session, text: &str) -> Result<String> {
    session.wait(&format!("a sentence with `{text}`"), seconds(180), |event| match event {
        Event::Report(entry) if entry.text.contains(text) => Some(entry.text.to_string()),
        _ => None,
    })
}

/// The boot that takes `previous.toml`: it says why, and the guest runs.
fn runs_with_previous(context: &mut Context<'_>, session: &mut Session, before: &str) -> Result<()> {
    let number = ATTEMPTS + 1;
    reported(session, &format!("boot {number}; "))?;
    reported(session, before)?;
    took_previous(context, session)
}

/// It says that it takes `previous.toml`, after how many attempts, and the guest runs.
fn took_previous(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    let taken = reported(session, "previous.toml is taken")?;
    let tried = taken.split_whitespace().find_map(|word| word.parse::<u64>().ok());
    context.figures.exactly("attempts that the report counts", tried.unwrap_or_default(), ATTEMPTS)?;
    session.all_obey(["a"])
}

fn panics(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = setup("previous-config");
    // Nothing may end the emulator.
    (setup.options, setup.store, setup.reboots) = ("selftest=panic-with-guests panic=1", true, true);
    setup.after_reset = Some("pstore,crash");
    let mut session = context.boot(&setup)?;
    let disc = session.monitor("query-block", &json!({}))?;
    let discs = disc.as_array().into_iter().flatten().filter_map(|drive| drive["inserted"]["file"].as_str());
    let disc = discs.into_iter().next().context("the machine has no disc")?.to_owned();
    for _ in 0..ATTEMPTS {
        fails(&mut session, 180)?;
    }
    runs_with_previous(context, &mut session, "boot 2 ended by a failure")?;
    reported(&mut session, PANIC)?;
    session.shut_down_as_machine()?;
    session.off(seconds(120))?;

    // Linux reads what sidecore has left, and leaves something itself.
    let seen = session.reset_into_linux("pstore", seconds(120))?;
    session.monitor("set-action", &json!({ "reboot": "shutdown" }))?;
    context.figures.exactly("logs in the store that Linux's pstore shows", number(&seen, "files")?, 1)?;
    let first = seen["first"].as_str().unwrap_or_default();
    ensure!(first.starts_with("panic on core 0: selftest=panic-with-guests"), "{seen}");
    session.off(seconds(120))?;
    session.monitor("set-action", &json!({ "reboot": "reset" }))?;
    session.monitor("blockdev-change-medium", &json!({ "device": "ide2-cd0", "filename": disc, "format": "raw" }))?;
    session.monitor("system_reset", &json!({}))?;
    session.monitor("cont", &json!({}))?;
    // The fourth boot of sidecore. Its configuration is known to fail, so it is not tried again.
    reported(&mut session, "boot 4; ")?;
    reported(&mut session, "boot 3 ended in order")?;
    reported(&mut session, "has a log of another system")?;
    // The end of the panic, which Linux has compressed.
    reported(&mut session, "entry_SYSCALL_64_after_hwframe+")?;
    reported(&mut session, "previous.toml is taken")?;
    session.all_obey(["a"])?;
    session.shut_down_as_machine()
}

/// A machine whose memory has no record after a reset: each boot's GRUB clears the first words of all places where one may be, as firmware
/// does that clears memory.
fn forgetful(name: &str) -> Setup {
    let grub = records().map(|at| format!("write_dword {at:#x} 0")).collect();
    Setup { reboots: true, grub, ..setup(name) }
}

fn panics_with_a_store(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = forgetful("previous-config-erst");
    (setup.options, setup.store) = ("selftest=panic-with-guests panic=1", true);
    let mut session = context.boot(&setup)?;
    for _ in 0..ATTEMPTS {
        fails(&mut session, 180)?;
    }
    runs_with_previous(context, &mut session, "boot 2 ended by a failure")?;
    reported(&mut session, "the firmware's store (ERST) has a log of sidecore; its last lines are")?;
    reported(&mut session, PANIC)?;
    session.shut_down_as_machine()
}

/// A boot has come to run some time after its guests have started. Without that its third boot would take `previous.toml`.
fn comes_to_run(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = setup("config-kept");
    setup.reboots = true;
    let mut session = context.boot(&setup)?;
    for boot in 1..=ATTEMPTS {
        reported(&mut session, &format!("boot {boot}; "))?;
        session.all_obey(["a"])?;
        thread::sleep(2 * Duration::from_millis(boots::settling::LASTS));
        session.monitor("system_reset", &json!({}))?;
    }
    reported(&mut session, &format!("boot {}; ", ATTEMPTS + 1))?;
    reported(&mut session, &format!("boot {ATTEMPTS} was running when the machine was reset"))?;
    session.all_obey(["a"])?;
    let taken = session.console()?.matches("previous.toml is taken").count();
    context.figures.exactly("boots that took previous.toml", taken as u64, 0)?;
    session.shut_down().map(drop)
}

fn panics_and_forgets(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = forgetful("previous-config-cmos");
    setup.options = "selftest=panic-with-guests panic=1 attempts-cmos=0x4a";
    let mut session = context.boot(&setup)?;
    for failed in 0..ATTEMPTS {
        reported(&mut session, "nothing is known of the boot before")?;
        let count = match failed {
            0 => "gets the count of attempts".to_owned(),
            failed => format!("has the count: sidecore.toml has failed {failed} times"),
        };
        reported(&mut session, &format!("byte 0x4a of the CMOS memory {count}"))?;
        fails(&mut session, 180)?;
    }
    reported(&mut session, "boot 1; ")?;
    took_previous(context, &mut session)?;
    session.shut_down_as_machine()
}

/// Where the kernel may keep a record: two in each area, of which the third is at a multiple of 4 MiB behind the modules.
fn records() -> impl Iterator<Item = u64> {
    let ends = [32, 64].map(|mib: u64| (mib << 20) - boots::area::AREA as u64);
    let areas = ends.into_iter().chain((2..=64).map(|number| number * (4 << 20)));
    areas.flat_map(|area| [area, area + boots::area::SLOT as u64])
}

/// Boots with `setup`, whose `sidecore.toml` is of no use.
fn takes_previous(context: &mut Context<'_>, setup: &Setup, why: &str) -> Result<()> {
    let mut session = context.boot(setup)?;
    reported(&mut session, why)?;
    session.all_obey(["a"])?;
    let running = session.running()?;
    context.figures.exactly(&format!("guests that run when {why}"), running, 1)?;
    session.shut_down().map(drop)
}

fn unread_or_missing(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = setup("unread-config");
    let is_it = |module: &Module| module.name == "sidecore.toml";
    for module in setup.modules.iter_mut().filter(|module| is_it(module)) {
        module.content = Content::Text("[[guest\nname = \"a\"\n".to_owned());
    }
    takes_previous(context, &setup, "sidecore.toml cannot be read: previous.toml is taken")?;
    setup.modules.retain(|module| !is_it(module));
    takes_previous(context, &setup, "there is no boot module sidecore.toml: previous.toml is taken")?;
    out_of_reach(context)
}

/// A guest manages the machine, and there is no such core as its own. That is seen only when the machine is known, so this boot ends, and the
/// next one takes `previous.toml`.
fn out_of_reach(context: &mut Context<'_>) -> Result<()> {
    let mut setup = setup("unread-config");
    setup.reboots = true;
    for module in setup.modules.iter_mut().filter(|module| module.name == "sidecore.toml") {
        let Content::Text(text) = &mut module.content else { continue };
        *text = text.replacen("[[guest]]\n", "[management]\nguest = \"a\"\n\n[[guest]]\ncores = [99]\n", 1);
    }
    let mut session = context.boot(&setup)?;
    reported(&mut session, "the management guest of sidecore.toml does not start, so nobody would reach")?;
    reported(&mut session, "previous.toml is taken")?;
    session.all_obey(["a"])?;
    context.figures.exactly("guests that run when the management guest would not", session.running()?, 1)?;
    session.shut_down().map(drop)
}

fn by_uefi(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = setup("previous-config-uefi");
    (setup.medium, setup.reboots) = (Medium::StickUefi, true);
    setup.memory_mib += FIRMWARE_MIB;
    setup.options = "selftest=panic-with-guests panic=1";
    let mut session = context.boot(&setup)?;
    for _ in 0..ATTEMPTS {
        fails(&mut session, 240)?;
    }
    runs_with_previous(context, &mut session, "boot 2 ended by a failure")?;
    reported(&mut session, PANIC)?;
    session.shut_down_as_machine()?;

    (setup.options, setup.tco) = ("emulator machine-watchdog=20 selftest=stuck-at-configuration", true);
    let mut session = context.boot(&setup)?;
    // What is for COM2 waits in its queue when the boot hangs. COM1 has been written.
    session.shown(&format!(" boot {}; what it leaves", ATTEMPTS + 1), 0, seconds(600))?;
    runs_with_previous(context, &mut session, "boot 2 did not come to its control loop")?;
    // What the boot that hung has written last.
    reported(&mut session, "| step ")?;
    session.shut_down().map(drop)
}
