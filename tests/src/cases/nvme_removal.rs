//! An NVMe disk in a slot is taken out while a guest uses it, and put in again. The scenario is the slot: it writes the root
//! port's Slot Control register (PCIe 4.0, 7.5.3.10) as the hardware would switch the power. sidecore drives no slots.

use anyhow::{Result, ensure};
use control::Event;
use serde_json::json;

use super::block::checksum;
use crate::boot::{Boot, alone};
use crate::counts::disk;
use crate::guests::{Guest, server};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};
use crate::setup::{Nvme, SLOT, config_address};

/// The disk in the slot.
const DISK: Nvme = Nvme { serial: "slot", mib: 8, block_bytes: 512 };
/// A disk that stays.
const OTHER: Nvme = Nvme { serial: "stays", mib: 8, block_bytes: 512 };
/// Offset of Slot Control in QEMU's root port.
const SLOT_CONTROL: u32 = 0x54 + 0x18;
/// Values of Slot Control: power and its indicator off, and on. The attention indicator is off.
const POWER_OFF: u16 = 0x7c0;
const POWER_ON: u16 = 0x1c0;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "an NVMe disk is taken out of its slot while a guest writes: each request gets an answer, one report, another disk \
                 goes on; a disk with another serial number in its place is refused; put in again, it works";
    vec![alone(Scenario::new("block-nvme-removal", about, QEMU).taking_turns(), removal)]
}

fn removal(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let guests = [(1, DISK.serial), (2, OTHER.serial)].map(|(number, serial)| {
        Guest::new(number).machine_disk(&format!("disk = \"nvme:{serial}\"\nserial = \"data\"\n")).then("obey")
    });
    let mut setup = server("block-nvme-removal", &guests);
    setup.nvme = vec![DISK, OTHER];
    setup.in_slot = Some(DISK.serial);
    // The memory of the driver's queues.
    setup.memory_mib += 32;
    let mut session = context.boot(&setup)?;
    session.all_obey(["a", "b"])?;
    let filled = session.act("a", "disk-fill:data", seconds(240))?;
    ensure!(filled["written"] == filled["read"], "before: {filled}");

    // Writes are under way.
    let writes = |session: &mut Session| disk(&session.counters()?, "a", "data").map(|d| d.count("writes"));
    let before = writes(&mut session)?;
    session.tell("a", "disk-write:data:0:8192")?;
    let begun = std::time::Instant::now();
    while writes(&mut session)? == before {
        ensure!(begun.elapsed() < seconds(120), "the guest does not write");
    }
    take_out(&mut session)?;
    let said = session.result("a", "disk-write", seconds(240))?;
    context.figures.exactly("writes that failed when the disk was taken out", number(&said, "failed")?, 1)?;
    wait_log(&mut session, "the controller was given up: it does not answer")?;
    let once = |session: &mut Session, what: &str| -> Result<u64> {
        number(&session.act("a", &format!("disk-once:data:{what}"), seconds(60))?, "failed")
    };
    let figures = &mut context.figures;
    figures.exactly("reads that fail without the disk", once(&mut session, "read:0")?, 1)?;
    let other = session.act("b", "disk-fill:data", seconds(240))?;
    ensure!(other["written"] == other["read"], "the other disk meanwhile: {other}");

    put_in(&mut session, "other")?;
    wait_log(&mut session, "it has another serial number than before")?;
    let figures = &mut context.figures;
    figures.exactly("reads that fail with another disk in its place", once(&mut session, "read:0")?, 1)?;
    take_out(&mut session)?;

    put_in(&mut session, DISK.serial)?;
    let begun = std::time::Instant::now();
    while once(&mut session, "read:0")? != 0 {
        ensure!(begun.elapsed() < seconds(240), "the disk does not work again\n{}", session.console()?);
    }
    let figures = &mut context.figures;
    // What the disk had in its cache when it was taken out is lost, and nobody knows what that was.
    figures.exactly("flushes that fail then", once(&mut session, "write:0:sync")?, 1)?;
    figures.exactly("writes that fail then", once(&mut session, "write:64")?, 0)?;
    // The guest's restart ends that.
    session.ask(control::Command::Kill("a".to_owned()), seconds(30))?;
    session.state("a", control::GuestState::Stopped, seconds(60))?;
    session.ask(control::Command::Start("a".to_owned()), seconds(240))?;
    session.result("a", "obey", seconds(120))?;
    let again = session.act("a", "disk-fill:data", seconds(240))?;
    ensure!(again["written"] == again["read"], "afterwards: {again}");
    let given_up = session.unread().iter().filter(|event| says(event, "the controller was given up")).count();
    context.figures.exactly("further reports that it was given up", given_up, 0)?;
    session.shut_down()?;
    for (serial, said) in [(DISK.serial, &again), (OTHER.serial, &other)] {
        let found = checksum(&session.file(serial)?);
        ensure!(said["written"] == found.as_str(), "the file of {serial} has {found}; the guest wrote {said}");
    }
    Ok(())
}

/// Takes the controller out, without a word to the hypervisor.
fn take_out(session: &mut Session) -> Result<()> {
    switch(session, POWER_OFF)
}

/// Puts a controller with this serial number in.
fn put_in(session: &mut Session, serial: &str) -> Result<()> {
    let block = DISK.block_bytes;
    let device = json!({
        "driver": "nvme", "id": format!("c-{serial}"), "serial": serial, "drive": DISK.serial, "bus": "bay",
        "logical_block_size": block, "physical_block_size": block,
    });
    let begun = std::time::Instant::now();
    // QEMU lets go of the disk's contents some time after the former controller is out.
    while let Err(error) = session.monitor("device_add", &device) {
        ensure!(begun.elapsed() < seconds(60), "the controller is not put in: {error:#}");
    }
    switch(session, POWER_ON)
}

/// Switches the slot's power. The hypervisor uses configuration space by memory, so the ports are free.
fn switch(session: &mut Session, value: u16) -> Result<()> {
    let select = config_address(u32::from(SLOT) << 3, SLOT_CONTROL & !3);
    for line in [format!("o/w 0xcf8 {select:#x}"), format!("o/h 0xcfc {value:#x}")] {
        let said = session.monitor_text(&line)?;
        ensure!(said.is_empty(), "QEMU says to {line}: {said}");
    }
    Ok(())
}

fn says(event: &Event, words: &str) -> bool {
    matches!(event, Event::Log { text, .. } if text.contains(words))
}

fn wait_log(session: &mut Session, words: &str) -> Result<()> {
    session.wait(&format!("the report {words:?}"), seconds(120), |event| says(event, words).then_some(()))
}
