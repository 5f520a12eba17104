//! Guests whose firmware finds a disk and starts the Linux on it: EDK2 by GRUB, rust-hypervisor-firmware by its own loader.

use anyhow::{Result, bail, ensure};
use control::{Command, Event, GuestState, StopReason};

use crate::boot::{Boot, alone};
use crate::counts::{disk, starts};
use crate::guests::{BASE_CMDLINE, DEBIAN, debian, module_name, with_config};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};
use crate::setup::{Content, Image, Module, Nvme, Setup, VirtioDisk};

/// MiB of each guest.
const MEMORY_MIB: u32 = 192;
/// MiB of the disk.
const DISK_MIB: u32 = 26;
/// MiB of each overlay.
const OVERLAY_MIB: u32 = 1;
/// vCPUs of each guest.
const VCPUS: u32 = 2;
/// Numbers in the file on the disk, one a line.
const NUMBERS: u64 = 10_000;
/// Time for firmware to start Linux. rust-hypervisor-firmware reads a block at a time, and each is an exit.
const START: u64 = 900;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let edk2 = "EDK2 finds a disk and starts GRUB, which starts Linux; `reboot` and `poweroff` from inside; ";
    let rhf =
        "rust-hypervisor-firmware finds a disk and starts Linux by its entry; `reboot` and `poweroff` from inside";
    let [eli, others] =
        ["in `eli`", "in `inject` and in `direct`"].map(|modes| format!("{edk2}{modes}").leak() as &str);
    let beneath =
        "the same over an NVMe disk, over a virtio disk of the machine, and over a read-only RAM disk; in `eli`";
    let whole =
        "`cargo mk run --disk`: EDK2 boots the image of `cargo mk disk` from an NVMe disk to a login, as root a shell";
    vec![
        alone(Scenario::new("firmware-disk", eli, QEMU), |context, ()| {
            in_modes(context, "firmware-disk", &Content::CloudHv, &["eli"])
        }),
        alone(Scenario::new("firmware-disk-modes", others, QEMU).taking_turns(), |context, ()| {
            in_modes(context, "firmware-disk-modes", &Content::CloudHv, &["inject", "direct"])
        }),
        alone(Scenario::new("firmware-disk-kinds", beneath, QEMU).taking_turns(), over_each),
        alone(Scenario::new("firmware-rhf", rhf, QEMU).needing("SIDECORE_RHF"), |context, ()| {
            in_modes(context, "firmware-rhf", &Content::Rhf, &["eli", "inject"])
        }),
        alone(Scenario::new("firmware-debian", whole, QEMU).taking_turns(), login),
    ]
}

/// A guest with firmware and a disk to boot from.
struct Booted<'a> {
    name: &'a str,
    completion: &'a str,
    /// The lines that say what is beneath its disk.
    disk: String,
}

/// What is on the disks, and its name as a boot module.
fn boot_disk() -> (Content, &'static str) {
    let text = (1..=NUMBERS).map(|n| format!("{n}\n")).collect();
    let content = Content::BootDisk { cmdline: format!("{BASE_CMDLINE} sc.do=obey"), text };
    let name = module_name(&content);
    (content, name)
}

/// A guest for each way of completion, one after another, each with an overlay over the same boot module.
fn in_modes(context: &mut Context<'_>, name: &str, firmware: &Content, completions: &[&str]) -> Result<()> {
    let module = boot_disk().1;
    let guest = |completion| {
        let disk = format!("disk = \"ram\"\nmodule = \"{module}\"\noverlay = \"{OVERLAY_MIB}M\"\n");
        Booted { name: completion, completion, disk }
    };
    let guests: Vec<Booted<'_>> = completions.iter().copied().map(guest).collect();
    lives(context, server(name, firmware, &guests), firmware, &guests)
}

/// A guest over each kind of disk that the other scenarios do not have, one after another.
fn over_each(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let (content, module) = boot_disk();
    let guest = |name, disk| Booted { name, completion: "eli", disk };
    let guests = [
        guest("nvme", "disk = \"nvme:image\"\n".to_owned()),
        guest("virtio", "disk = \"vda\"\n".to_owned()),
        guest("fixed", format!("disk = \"ram\"\nmodule = \"{module}\"\nreadonly = true\n")),
    ];
    let mut setup = server("firmware-disk-kinds", &Content::CloudHv, &guests);
    let (mib, block_bytes) = (DISK_MIB.into(), 512);
    setup.nvme = vec![Nvme { serial: "image", mib, block_bytes }];
    setup.virtio_disks = vec![VirtioDisk { name: "virtio-image", mib, block_bytes }];
    setup.contents = vec![("image", content.clone()), ("virtio-image", content)];
    // The memory of two drivers' buffers.
    setup.memory_mib += 2 * 16;
    lives(context, setup, &Content::CloudHv, &guests)
}

/// A server with these guests.
fn server(name: &str, firmware: &Content, guests: &[Booted<'_>]) -> Setup {
    let count = guests.len() as u32;
    let memory = count * (MEMORY_MIB + OVERLAY_MIB) + DISK_MIB + 8 + 160;
    let config: String = guests.iter().map(|guest| entry(guest, firmware)).collect();
    let mut setup = with_config(name, &config, 2 + count * VCPUS, memory);
    for content in [boot_disk().0, firmware.clone()] {
        setup.modules.push(Module::new(module_name(&content), content));
    }
    setup
}

/// Boots it, and lets each guest live, one after another.
fn lives(context: &mut Context<'_>, setup: Setup, firmware: &Content, guests: &[Booted<'_>]) -> Result<()> {
    let mut session = context.boot(&setup)?;
    for guest in guests {
        life(context, &mut session, guest.name, u64::from(*firmware == Content::CloudHv))?;
    }
    session.shut_down().map(drop)
}

/// A guest's entry of sidecore.toml.
fn entry(Booted { name, completion, disk }: &Booted<'_>, firmware: &Content) -> String {
    let firmware = module_name(firmware);
    format!(
        "[[guest]]\nname = \"{name}\"\nvcpus = {VCPUS}\nmemory = \"{MEMORY_MIB}M\"\nfirmware = \"{firmware}\"\n\
         completion = \"{completion}\"\nrequests = \"adaptive\"\nrestart = \"always\"\nautostart = false\n\n[[guest.block]]\n\
         {disk}serial = \"boot\"\n\n"
    )
}

/// A guest starts, looks at its machine and its disk, restarts by itself, and powers itself off. `efi`: 1 if Linux is
/// started by UEFI.
fn life(context: &mut Context<'_>, session: &mut Session, name: &str, efi: u64) -> Result<()> {
    session.ask(Command::Start(name.to_owned()), seconds(20))?;
    session.result(name, "obey", seconds(START))?;
    let before = session.act(name, "machine:boot", seconds(60))?;
    let read = session.act(name, "disk-text:boot", seconds(60))?;
    let after = session.act(name, "machine:boot", seconds(60))?;
    let interrupts = number(&after, "interrupts")? - number(&before, "interrupts")?;
    let figures = &mut context.figures;
    figures.exactly(&format!("{name}: started by UEFI"), number(&before, "efi")?, efi)?;
    figures.exactly(
        &format!("{name}: CPUs that Linux found by the MADT"),
        number(&before, "cpus")?,
        u64::from(VCPUS),
    )?;
    figures.exactly(&format!("{name}: PCI spaces that Linux found by the MCFG"), number(&before, "ecam")?, 1)?;
    figures.exactly(&format!("{name}: lines of a file on the disk"), number(&read, "lines")?, NUMBERS)?;
    figures.exactly(&format!("{name}: sum of its numbers"), number(&read, "sum")?, NUMBERS * (NUMBERS + 1) / 2)?;
    figures.at_least(&format!("{name}: interrupts of the disk meanwhile"), interrupts, 1)?;

    session.tell(name, "reboot")?;
    let reason = session.state(name, GuestState::Stopped, seconds(60))?;
    ensure!(reason == Some(StopReason::Reset), "guest {name} stopped for {reason:?} instead of its reset");
    session.result(name, "obey", seconds(START))?;
    let counters = session.counters()?;
    session.tell(name, "poweroff")?;
    let reason = session.state(name, GuestState::Stopped, seconds(60))?;
    ensure!(reason == Some(StopReason::PowerOff), "guest {name} stopped for {reason:?} instead of its switching off");
    // With `restart = "always"` it would start again.
    session.ask(Command::Stop(name.to_owned()), seconds(20))?;
    let (device, figures) = (disk(&counters, name, "boot")?, &mut context.figures);
    figures.exactly(&format!("{name}: starts, one of them after a reset"), starts(&counters, name), 2)?;
    figures.exactly(&format!("{name}: requests that failed"), device.count("errors") + device.ring_errors, 0)
}

/// The whole disk image, from EDK2 to a shell.
fn login(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut session = context.boot(&debian("firmware-debian", Image::Debian))?;
    log_in(&mut session)?;
    // The shell's echo of the command has no result in it.
    session
        .tell(DEBIAN, "echo cpus=$(nproc) efi=$(test -d /sys/firmware/efi; echo $?) root=$(findmnt -no SOURCE /)=")?;
    let found = line(&mut session, "root=/dev/", 300)?;
    let has = |word: &str| u64::from(found.contains(word));
    context.figures.exactly("shells with two CPUs", has("cpus=2 "), 1)?;
    context.figures.exactly("shells started by UEFI", has("efi=0 "), 1)?;
    context.figures.exactly("shells with their root file system on the disk", has("root=/dev/vda2="), 1)?;
    session.tell(DEBIAN, "systemctl poweroff")?;
    let reason = session.state(DEBIAN, GuestState::Stopped, seconds(300))?;
    ensure!(reason == Some(StopReason::PowerOff), "the guest stopped for {reason:?} instead of its switching off");
    session.shut_down().map(drop)
}

/// Waits until Debian has booted, and logs in as root on its console.
pub fn log_in(session: &mut Session) -> Result<()> {
    line(session, "ttyS0", 1800)?;
    typed(session, "", "login:")?;
    session.tell(DEBIAN, "root")?;
    line(session, "login: root", 120)?;
    // The password. When the shell has it, it is no command.
    typed(session, "root", "root: command not found").map(drop)
}

/// Types a line every 10 s until a line with `answer` comes. A prompt ends without a new line, so there is no event of it,
/// and whoever prompts throws away what was typed before.
fn typed(session: &mut Session, text: &str, answer: &str) -> Result<String> {
    for _ in 0..30 {
        session.tell(DEBIAN, text)?;
        if let Ok(found) = line(session, answer, 10) {
            return Ok(found);
        }
    }
    bail!("no line with {answer:?} came in 5 minutes, in which {text:?} was typed")
}

/// Waits for a line with this text on the console of Debian.
fn line(session: &mut Session, text: &str, limit: u64) -> Result<String> {
    session.wait(&format!("a line with {text:?}"), seconds(limit), |event| match event {
        Event::Console { guest, line } if guest == DEBIAN && line.contains(text) => Some(line.clone()),
        _ => None,
    })
}
