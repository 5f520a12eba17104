//! What one boot leaves for the next one: which configuration did not come to run, and the log.

use std::time::Instant;

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

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let store = "sidecore.toml panics twice, previous.toml runs; the firmware's store (ERST) has sidecore's log for Linux's pstore, \
                 and Linux's for sidecore";
    let memory = "sidecore.toml hangs twice and the machine is reset, by UEFI and without a store: previous.toml runs";
    vec![
        alone(Scenario::new("previous-config", store, QEMU).taking_turns(), panics),
        alone(Scenario::new("previous-config-uefi", memory, QEMU).taking_turns(), hangs),
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
    let taken = reported(session, "previous.toml is taken")?;
    let tried = taken.split_whitespace().find_map(|word| word.parse::<u64>().ok());
    context.figures.exactly("attempts that the report counts", tried.unwrap_or_default(), ATTEMPTS)?;
    session.all_obey(["a"])
}

fn panics(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = setup("previous-config");
    // Nothing may end the emulator.
    (setup.options, setup.store, setup.reboots) = ("selftest=panic-at-configuration panic=1", true, true);
    setup.after_reset = Some("pstore,crash");
    let mut session = context.boot(&setup)?;
    let disc = session.monitor("query-block", &json!({}))?;
    let discs = disc.as_array().into_iter().flatten().filter_map(|drive| drive["inserted"]["file"].as_str());
    let disc = discs.into_iter().next().context("the machine has no disc")?.to_owned();
    for _ in 0..ATTEMPTS {
        let (message, ..) = session.panicked(seconds(180))?;
        ensure!(message.contains("selftest=panic-at-configuration"), "{message}");
    }
    runs_with_previous(context, &mut session, "boot 2 ended by a failure")?;
    reported(&mut session, "| panic on core 0: selftest=panic-at-configuration")?;
    session.shut_down_as_machine()?;
    session.off(seconds(120))?;

    // Linux reads what sidecore has left, and leaves something itself.
    let seen = session.reset_into_linux("pstore", seconds(120))?;
    session.monitor("set-action", &json!({ "reboot": "shutdown" }))?;
    context.figures.exactly("logs in the store that Linux's pstore shows", number(&seen, "files")?, 1)?;
    let first = seen["first"].as_str().unwrap_or_default();
    ensure!(first.starts_with("panic on core 0: selftest=panic-at-configuration"), "{seen}");
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

fn hangs(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = setup("previous-config-uefi");
    setup.medium = Medium::StickUefi;
    setup.memory_mib += FIRMWARE_MIB;
    (setup.options, setup.reboots) = ("emulator selftest=stuck-at-configuration", true);
    let mut session = context.boot(&setup)?;
    for boot in 1..=ATTEMPTS {
        let (begun, sentence) = (Instant::now(), format!(" boot {boot}; what it leaves"));
        // What is for COM2 waits in its queue when the boot hangs. COM1 has been written.
        while !session.console()?.contains(&sentence) {
            ensure!(begun.elapsed() < seconds(240), "no boot {boot}\n{}", session.console()?);
            std::thread::sleep(seconds(1) / 10);
        }
        // It hangs from here on, and a watchdog of the machine would reset it. There is none: the monitor does.
        session.monitor("system_reset", &json!({}))?;
    }
    runs_with_previous(context, &mut session, "boot 2 did not come to its control loop")?;
    session.shut_down().map(drop)
}
