//! The machine's own watchdogs: those that the firmware has left running, and the one that the control core feeds. GRUB
//! arms them, as firmware does it before it starts an operating system.

use std::thread::sleep;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use control::Event;

use crate::boot::{Boot, alone};
use crate::guests::{Guest, server};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::Session;
use crate::setup::{Content, Medium, Module, Setup, grub_writes};

use super::media::FIRMWARE_MIB;

/// Seconds until an armed watchdog resets the machine. Until sidecore comes some of them are over.
const ARMED: u64 = 60;
/// The port of the TCO's registers where SeaBIOS has put them, and the address of the chipset's register GCS.
const TCO: u16 = 0x660;
const GCS: u32 = 0xfed1_f410;

/// The ports of the management controller's interface: data, and status with commands.
const KCS: [u16; 2] = [0xca2, 0xca3];

/// Where the HPET is.
const HPET: u32 = 0xfed0_0000;

/// Seconds of a hang until the machine is reset (`machine-watchdog=`).
const FED: u64 = 20;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let scenario = |name, about| Scenario::new(name, about, QEMU).taking_turns();
    vec![
        alone(
            scenario(
                "tco-left-on",
                "the firmware left the chipset's TCO watchdog running: sidecore stops it and says so, and the machine outlives \
                 it; with sidecore told to leave it, it resets the machine",
            ),
            tco_left_on,
        ),
        alone(
            scenario(
                "bmc-left-on",
                "the same with the watchdog of a management controller (IPMI), and its interface left with a response \
                 that nobody has read; by UEFI it is found too",
            ),
            bmc_left_on,
        ),
        alone(
            scenario(
                "machine-watchdog",
                "`machine-watchdog=20`: a control core that hangs, in the boot or later, is reset by the TCO watchdog; after \
                 two hangs of the boot previous.toml runs, and its control core feeds the watchdog",
            ),
            fed,
        ),
        alone(
            scenario(
                "wdat-watchdog",
                "the same where nobody can see NO_REBOOT: ACPI's WDAT arms the TCO watchdog, a control core that hangs is \
                 reset, one that does not lives on; a WDAT that names sidecore's memory is refused",
            ),
            by_wdat,
        ),
    ]
}

/// GRUB's commands that arm the TCO watchdog.
fn arm_tco() -> Vec<String> {
    // A tick is 0.6 s, and the machine is reset when the timer is at 0 for the second time.
    let ticks = ARMED * 10 / 12;
    vec![
        format!("write_dword {GCS:#x} 0"),
        format!("outw {:#x} 0x800", TCO + 0x08),
        format!("outw {:#x} {ticks}", TCO + 0x12),
        format!("outw {:#x} 0", TCO + 0x08),
        format!("outw {TCO:#x} 1"),
    ]
}

/// GRUB's commands that have the HPET's first timer interrupt every 0.1 s.
fn arm_hpet() -> Vec<String> {
    // Periodic, with an interrupt, the next write is the time; a tick is 10 ns.
    let writes = [(0x100, 0x4c), (0x108, 10_000_000), (0x108, 10_000_000), (0x10, 1)];
    writes.map(|(offset, value)| format!("write_dword {:#x} {value:#x}", HPET + offset)).into()
}

/// GRUB's commands that have the management controller reset the machine. The response to the last one stays in the
/// interface.
fn arm_bmc() -> Vec<String> {
    let [data, command] = KCS;
    let write = |port: u16, value: u8| format!("outb {port:#x} {value:#x}");
    let request = |bytes: &[u8]| -> Vec<String> {
        let (last, first) = bytes.split_last().expect("a request has bytes");
        let first = first.iter().map(|byte| write(data, *byte));
        [write(command, 0x61)].into_iter().chain(first).chain([write(command, 0x62), write(data, *last)]).collect()
    };
    let [low, high] = (ARMED as u16 * 10).to_le_bytes();
    // Set Watchdog Timer: for OS Load, by a reset. Bit 6 is what QEMU's controller gives back as "runs".
    let set = request(&[0x18, 0x24, 0x43, 0x01, 0, 0, low, high]);
    let read = vec![write(data, 0x68); 3];
    // Reset Watchdog Timer, which starts it.
    [set, read, request(&[0x18, 0x22])].concat()
}

/// Waits for a sentence of the report that begins so.
fn reported(session: &mut Session, begin: &str) -> Result<String> {
    session.wait(&format!("a sentence that begins with `{begin}`"), seconds(120), |event| match event {
        Event::Report(entry) if entry.text.starts_with(begin) => Some(entry.text.to_string()),
        _ => None,
    })
}

/// Boots a machine whose watchdog runs. Checks that it is stopped, and that the machine is there when it would have
/// been reset. Then the control: sidecore leaves the watchdog alone, and the machine is reset, which ends the emulator.
fn left_on(context: &mut Context<'_>, setup: &Setup, begin: &str) -> Result<()> {
    let mut session = context.boot(setup)?;
    let said = reported(&mut session, begin)?;
    let since = Instant::now();
    let left = said.split_once(" s left").and_then(|(before, _)| before.rsplit(' ').next()?.parse::<u64>().ok());
    context.figures.at_least("seconds that the report says were left", left.unwrap_or_default(), 1)?;
    context.figures.at_most("seconds that the report says were left", left.unwrap_or_default(), ARMED as f64)?;
    ensure!(said.ends_with("; stopped"), "{said}");
    session.all_obey(["a"])?;
    while since.elapsed() < seconds(ARMED + 10) {
        ensure!(!session.ended()?, "the machine was reset\n{}", session.console()?);
        sleep(seconds(1));
    }
    session.act("a", "seen", seconds(60))?;
    session.shut_down()?;

    let mut alone = setup.clone();
    alone.options = "emulator selftest=running-watchdogs";
    let mut session = context.boot(&alone)?;
    session.all_obey(["a"])?;
    // The emulator has -no-reboot: a reset ends it.
    session.wait_end(seconds(4 * ARMED))?;
    let console = session.console()?;
    ensure!(!console.contains("panic on core") && !console.contains("sidecore ends"), "{console}");
    context.figures.exactly("times the report names the watchdog in the control", console.matches(begin).count(), 0)
}

fn tco_left_on(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = server("tco-left-on", &[Guest::new(1).then("obey")]);
    (setup.tco, setup.grub) = (true, arm_tco());
    left_on(context, &setup, "TCO watchdog of Intel's ICH9 was running")?;

    // Another firmware left a timer of the HPET on.
    (setup.options, setup.grub) = ("emulator", arm_hpet());
    let mut session = context.boot(&setup)?;
    reported(&mut session, "HPET at 0xfed00000: the firmware had left 1 of its 3 timers sending interrupts")?;
    session.all_obey(["a"])?;
    let said = session.monitor_text(&format!("xp /1wx {:#x}", HPET + 0x100))?;
    let timer = said.trim().rsplit_once("0x").and_then(|(_, value)| u64::from_str_radix(value, 16).ok());
    let Some(timer) = timer else { bail!("the monitor says of the timer: {said}") };
    context.figures.exactly("the timer's bit that has it send interrupts", timer >> 2 & 1, 0)?;
    context.figures.exactly("its bit for a periodic one, which GRUB has set and nobody clears", timer >> 3 & 1, 1)?;
    session.shut_down().map(drop)
}

fn bmc_left_on(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = server("bmc-left-on", &[Guest::new(1).then("obey")]);
    (setup.bmc, setup.grub) = (true, arm_bmc());
    let begin = "the management controller's watchdog (KCS at port 0xca2, by SMBIOS) was running for OS Load";
    left_on(context, &setup, begin)?;

    // By UEFI SMBIOS is elsewhere. This controller's watchdog does not run.
    (setup.medium, setup.grub) = (Medium::CdUefi, Vec::new());
    setup.memory_mib += FIRMWARE_MIB;
    let mut session = context.boot(&setup)?;
    reported(&mut session, "the management controller's watchdog (KCS at port 0xca2, by SMBIOS) does not run")?;
    session.all_obey(["a"])?;
    session.shut_down().map(drop)
}

/// Times that the TCO's timer was at 0, as QEMU tells them.
fn expired(session: &Session) -> Result<usize> {
    Ok(String::from_utf8_lossy(&session.file("emulator")?).matches("tco_timer_expired").count())
}

/// Waits until sidecore has begun to boot so often, as COM1 shows it: what is for COM2 waits in its queue when the
/// control core hangs.
fn begun(session: &mut Session, boots: usize) -> Result<()> {
    let since = Instant::now();
    while session.console()?.matches("what this machine has:").count() < boots {
        ensure!(since.elapsed() < seconds(240) && !session.ended()?, "no boot {boots}\n{}", session.console()?);
        sleep(seconds(1) / 10);
    }
    Ok(())
}

fn fed(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let armed = format!("the TCO watchdog resets the machine if the control core hangs for {FED} s");

    // The control core hangs in its loop. sidecore's own watchdog is off.
    let mut setup = server("machine-watchdog", &[Guest::new(1).then("wait")]);
    (setup.tco, setup.reboots) = (true, true);
    setup.options = "emulator machine-watchdog=20 watchdog=0 selftest=stuck-control";
    let mut session = context.boot(&setup)?;
    begun(&mut session, 2)?;
    context.figures.at_least("times the timer was at 0, of a hang in the loop", expired(&session)? as u64, 2)?;
    context.figures.at_least("times it was armed", session.console()?.matches(&armed).count() as u64, 1)?;
    drop(session);

    // The control core hangs in the boot.
    let mut setup = server("machine-watchdog", &[Guest::new(1).then("obey")]);
    let config = setup.modules.iter().find_map(|module| match &module.content {
        Content::Text(text) => Some(text.clone()),
        _ => None,
    });
    setup.modules.push(Module::new("previous.toml", Content::Text(config.unwrap_or_default() + "# The one before.\n")));
    (setup.tco, setup.reboots) = (true, true);
    setup.options = "emulator machine-watchdog=20 selftest=stuck-at-configuration";
    let mut session = context.boot(&setup)?;
    begun(&mut session, 3)?;
    context.figures.exactly("times the timer was at 0, of two hangs in the boot", expired(&session)?, 4)?;
    session.all_obey(["a"])?;
    ensure!(session.console()?.contains("previous.toml is taken"), "{}", session.console()?);
    // Its control core does not hang: the machine is there when the watchdog would have reset it twice.
    let since = Instant::now();
    while since.elapsed() < seconds(2 * FED) {
        session.act("a", "seen", seconds(60))?;
        sleep(seconds(1));
    }
    context.figures.exactly("of these times since it runs", expired(&session)? - 4, 0)?;
    session.shut_down()?;
    context.figures.exactly("boots", session.console()?.matches("what this machine has:").count(), 3)
}

/// Programs of a WDAT: an action, an instruction (its highest bit: what is not in the mask stays), the port of a register of
/// 16 bits, the lowest bit of a field, a value, a mask.
type Line = (u8, u8, u16, u8, u32, u32);

/// A WDAT for the TCO watchdog, as chipsets have it. The timer's period is 0.6 s. `feed`: where the register is that feeds
/// it: an address space, and an address there.
fn wdat(feed: (u8, u64)) -> Vec<u8> {
    const PORTS: u8 = 1;
    let (compare, read, write, write_input, preserve) = (0, 1, 2, 3, 0x80);
    let (rld, control, timer) = (TCO, TCO + 0x08, TCO + 0x12);
    let lines: [Line; 6] = [
        (0x01, write, rld, 0, 1, 0x3ff),
        (0x04, read, rld, 0, 0, 0x3ff),
        (0x06, write_input | preserve, timer, 0, 0, 0x3ff),
        (0x08, compare, control, 11, 0, 1),
        (0x09, write | preserve, control, 11, 0, 1),
        (0x0b, write | preserve, control, 11, 1, 1),
    ];
    let mut table = vec![0; 68];
    let mut put = |at: usize, bytes: &[u8]| table[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"WDAT");
    put(4, &(68 + 24 * lines.len() as u32).to_le_bytes());
    put(8, &[1]);
    put(10, b"SIDECOTESTWDAT\0\0");
    put(36, &[32, 0, 0, 0, 0xff, 0, 0xff, 0xff, 0xff]);
    for (at, value) in [(48, 600), (52, 0x3ff), (56, 4), (64, lines.len() as u32)] {
        put(at, &u32::to_le_bytes(value));
    }
    put(60, &[1]);
    for (action, instruction, port, bit, value, mask) in lines {
        let (space, address) = if action == 0x01 { feed } else { (PORTS, port.into()) };
        table.extend([action, instruction, 0, 0, space, 16, bit, 2]);
        table.extend(address.to_le_bytes());
        table.extend([value, mask].map(u32::to_le_bytes).concat());
    }
    table
}

/// GRUB's commands that make NO_REBOOT 0 and then hide it, as it is on chipsets from the 100 series on: RCBA, by which it is
/// reached, is off.
fn hide_no_reboot() -> Vec<String> {
    const LPC: u32 = 0x1f << 3;
    const RCBA: u32 = 0xf0;
    let mut commands = vec![format!("write_dword {GCS:#x} 0")];
    commands.extend(grub_writes(LPC, RCBA, 0xfed1_c000));
    commands
}

fn by_wdat(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = server("wdat-watchdog", &[Guest::new(1).then("obey")]);
    (setup.tco, setup.reboots, setup.grub) = (true, true, hide_no_reboot());
    setup.acpi_table = Some(wdat((1, TCO.into())));
    let armed = format!("the watchdog of ACPI's WDAT resets the machine if the control core hangs for {FED} s");

    // The control core hangs in its loop.
    let mut hangs = setup.clone();
    hangs.options = "emulator machine-watchdog=20 watchdog=0 selftest=stuck-control";
    let mut session = context.boot(&hangs)?;
    begun(&mut session, 2)?;
    context.figures.at_least("times the timer was at 0, of a hang in the loop", expired(&session)? as u64, 2)?;
    context.figures.at_least("times it was armed", session.console()?.matches(&armed).count() as u64, 1)?;
    drop(session);

    // It does not hang: the machine is there when the watchdog would have reset it twice.
    setup.options = "emulator machine-watchdog=20";
    let mut session = context.boot(&setup)?;
    reported(&mut session, "ACPI's WDAT is for the same TCO watchdog")?;
    session.all_obey(["a"])?;
    let since = Instant::now();
    while since.elapsed() < seconds(3 * FED) {
        session.act("a", "seen", seconds(60))?;
        sleep(seconds(1));
    }
    session.shut_down()?;
    let console = session.console()?;
    context.figures.exactly(
        "boots with a control core that feeds it",
        console.matches("what this machine has:").count(),
        1,
    )?;
    context.figures.exactly("times the timer was at 0", expired(&session)?, 0)?;

    // The register that feeds it is in memory: that of the image.
    setup.acpi_table = Some(wdat((0, 0x20_0000)));
    let mut session = context.boot(&setup)?;
    let said = reported(&mut session, "ACPI's WDAT is not used: ")?;
    ensure!(said.contains("its program for RESET names memory 0x200000, 2 bytes"), "{said}");
    reported(&mut session, "`machine-watchdog=20` has no effect: ")?;
    session.all_obey(["a"])?;
    session.shut_down().map(drop)
}
