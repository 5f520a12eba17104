//! Media that boot a server, by BIOS and by UEFI: two Linux guests ping each other after each. `network_boot.rs` has the network.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use control::{Command, Event};

use crate::boot::{Boot, alone};
use crate::guests::{Guest, server};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};
use crate::setup::{Medium, Setup};

/// Pings that have to be answered.
const PINGS: u64 = 100;
/// Where the image is if nothing keeps it from there, and what memory firmware keeps in the scenario `usb-uefi-moved`.
const USUAL_PLACE: u64 = 2 << 20;
const KEPT: std::ops::Range<u64> = USUAL_PLACE..16 << 20;
const MOVED: &str = "the stick, by UEFI that keeps 2 to 16 MiB for itself: GRUB puts the image elsewhere, two Linux guests \
                     ping, and a panic has names in its backtrace";
/// MiB that OVMF keeps for itself, and more.
pub const FIRMWARE_MIB: u32 = 256;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let scenario = |name, about| Scenario::new(name, about, QEMU).taking_turns();
    let same = "each medium is built twice, in two folders and on two dates: the same bytes; a stick is clean for sgdisk and fsck";
    vec![
        alone(scenario("media", same), media),
        alone(
            scenario("usb-bios", "a USB stick, by BIOS, with the image at 2 MiB: two Linux guests ping"),
            |context, ()| medium_boots(context, "usb-bios", Medium::StickBios, None),
        ),
        alone(scenario("usb-uefi", "the same stick, by UEFI: two Linux guests ping"), |context, ()| {
            medium_boots(context, "usb-uefi", Medium::StickUefi, Some("/USB("))
        }),
        alone(scenario("usb-uefi-moved", MOVED), moved),
        alone(scenario("cd-uefi", "a CD, by UEFI: two Linux guests ping"), |context, ()| {
            medium_boots(context, "cd-uefi", Medium::CdUefi, Some("/Sata("))
        }),
        alone(
            scenario(
                "disk-uefi",
                "the stick's image with an EFI system partition (--esp) on a fixed disk, by UEFI: two Linux guests ping",
            ),
            |context, ()| medium_boots(context, "disk-uefi", Medium::DiskUefi, Some("/Sata(")),
        ),
        alone(
            scenario(
                "usb-secure-boot",
                "the stick, by UEFI with Secure Boot: the firmware says why it does not start it",
            ),
            refused,
        ),
    ]
}

/// A server with two Linux guests.
fn setup(name: &str, medium: Medium) -> Setup {
    let guests = [(1, 2), (2, 1)].map(|(number, peer)| Guest::new(number).peer(peer).then("obey"));
    Setup { medium, ..server(name, &guests) }
}

/// Boots a server from its medium. `from`: see [`boots`].
fn medium_boots(context: &mut Context<'_>, name: &str, medium: Medium, from: Option<&str>) -> Result<()> {
    let mut setup = setup(name, medium);
    if from.is_some() {
        setup.memory_mib += FIRMWARE_MIB;
    }
    boots(context, &setup, ["a", "b"], from)
}

/// Boots a server with these guests, of which the first pings the other. `from`: a part of the device path from which UEFI firmware
/// starts GRUB; `None` for BIOS.
pub fn boots(context: &mut Context<'_>, setup: &Setup, guests: [&str; 2], from: Option<&str>) -> Result<()> {
    let mut session = context.boot(setup)?;
    let place = image(&mut session)?;
    if from.is_none() {
        context.figures.exactly("address of the image", place as f64, USUAL_PLACE as f64)?;
    }
    pings(context, &mut session, guests)?;
    let figures = &mut context.figures;
    // OVMF says on COM1 what it starts. BIOS says nothing there.
    let console = session.console()?;
    let starts: Vec<&str> = console.lines().filter(|line| line.contains("BdsDxe: starting Boot")).collect();
    figures.exactly("times that UEFI firmware started something", starts.len(), usize::from(from.is_some()))?;
    if let Some(from) = from {
        let right = starts.iter().filter(|line| line.contains(from)).count();
        figures.exactly(&format!("of these, from a device path with `{from}`"), right, 1)?;
    }
    session.shut_down().map(drop)
}

/// Has the first of two guests ping the other.
fn pings(context: &mut Context<'_>, session: &mut Session, guests: [&str; 2]) -> Result<()> {
    session.all_obey(guests)?;
    let ping = session.act(guests[0], &format!("ping:{PINGS}"), seconds(120))?;
    context.figures.exactly("pings sent", number(&ping, "sent")?, PINGS)?;
    context.figures.exactly("pings answered", number(&ping, "received")?, PINGS)
}

/// The address of sidecore's image, from its report.
fn image(session: &mut Session) -> Result<u64> {
    let text = session.wait("the image's address", seconds(120), |event| match event {
        Event::Report(entry) => {
            let (address, _) = entry.text.strip_prefix("sidecore's image at 0x")?.split_once(',')?;
            Some(address.to_owned())
        }
        _ => None,
    })?;
    u64::from_str_radix(&text, 16).with_context(|| format!("{text} is no address"))
}

/// The firmware keeps the memory where the image is otherwise.
fn moved(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = setup("usb-uefi-moved", Medium::StickUefiKeeps);
    setup.memory_mib += FIRMWARE_MIB;
    setup.options = "emulator selftest=panic-at-shutdown";
    let mut session = context.boot(&setup)?;
    let place = image(&mut session)?;
    pings(context, &mut session, ["a", "b"])?;
    let console = session.console()?;
    let kept = console.split_once("firmware keeps ").and_then(|(_, rest)| rest.split_once(" KiB from 2 to 16 MiB"));
    let kept: u64 = kept.context("the firmware does not say what it keeps")?.0.parse()?;
    context.figures.at_least("KiB from 2 to 16 MiB that the firmware keeps", kept, 6 << 10)?;
    context.figures.at_least("address of the image", place, KEPT.end)?;
    session.send(Command::Shutdown)?;
    let (message, _, backtrace) = session.panicked(seconds(60))?;
    ensure!(message.contains("selftest"), "it panicked for another reason: {message}");
    let named = backtrace.iter().filter(|entry| entry.contains("::")).count();
    context.figures.at_least("named entries of the backtrace", named, 2)
}

/// Secure Boot with Microsoft's keys is on, and GRUB on the stick is signed by nobody.
fn refused(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = setup("usb-secure-boot", Medium::StickSecureBoot);
    setup.memory_mib += FIRMWARE_MIB;
    let session = context.boot(&setup)?;
    let (begun, limit) = (Instant::now(), seconds(120));
    let console = loop {
        let console = session.console()?;
        if console.contains("Access Denied") || begun.elapsed() > limit {
            break console;
        }
        thread::sleep(seconds(1));
    };
    let lines = |text: &str| console.lines().filter(|line| line.contains(text)).count();
    let figures = &mut context.figures;
    figures.at_least(
        "times that the firmware refused a USB stick by the words `Access Denied`",
        lines("Access Denied"),
        1,
    )?;
    figures.exactly("lines of GRUB or sidecore", lines("GRUB") + lines("sidecore"), 0)
}

/// Builds each medium twice.
fn media(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    for (short, what, medium) in [
        ("stick", "stick", Medium::StickUefi),
        ("esp", "stick with an EFI system partition", Medium::DiskUefi),
        ("cd", "CD", Medium::CdUefi),
        ("network", "folder for the network", Medium::NetworkUefi),
        ("program", "program for UEFI", Medium::Program),
    ] {
        let name = format!("media-{short}");
        let setup = setup(&name, medium);
        // Times on FAT are in steps of two seconds, and some are dates only.
        let first = context.build_medium(&setup, &format!("{name}-first"), "2026-03-04 05:06:07")?;
        let second = context.build_medium(&setup, &format!("{name}-second"), "2031-08-09 10:11:13")?;
        let (files, others) = (files(&first)?, files(&second)?);
        ensure!(files == others, "a second {what} has {others:?}, the first {files:?}");
        let (mut length, mut different) = (0, 0);
        for path in &files {
            let (bytes, differ) = compare(&file(&first, path), &file(&second, path))?;
            (length, different) = (length + bytes, different + differ);
        }
        context.figures.at_least(&format!("bytes of the {what}"), length, 16 << 20)?;
        context.figures.exactly(&format!("bytes of a second {what} that differ"), different, 0)?;
    }
    Ok(())
}

/// The files in a folder and in those below, by their paths there. A file has an empty path.
fn files(place: &Path) -> Result<BTreeSet<PathBuf>> {
    if place.is_file() {
        return Ok(BTreeSet::from([PathBuf::new()]));
    }
    let mut all = BTreeSet::new();
    for entry in fs::read_dir(place).with_context(|| format!("cannot read {}", place.display()))? {
        let entry = entry?;
        let name = PathBuf::from(entry.file_name());
        for below in files(&entry.path())? {
            // An empty path behind the name would be a slash.
            all.insert(if below.as_os_str().is_empty() { name.clone() } else { name.join(below) });
        }
    }
    Ok(all)
}

/// `place` and a path of [`files`].
fn file(place: &Path, path: &Path) -> PathBuf {
    if path.as_os_str().is_empty() { place.to_owned() } else { place.join(path) }
}

/// Compares two files. Returns the length of the first, and the number of bytes that differ or that only one of them has.
fn compare(first: &Path, second: &Path) -> Result<(u64, u64)> {
    const PIECE: u64 = 1 << 20;
    let open = |path: &Path| File::open(path).with_context(|| format!("cannot open {}", path.display()));
    let (mut one, mut other) = (BufReader::new(open(first)?), BufReader::new(open(second)?));
    let (mut length, mut different) = (0, 0);
    loop {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        (&mut one).take(PIECE).read_to_end(&mut a)?;
        (&mut other).take(PIECE).read_to_end(&mut b)?;
        if a.is_empty() && b.is_empty() {
            return Ok((length, different));
        }
        length += a.len() as u64;
        if a != b {
            different += a.len().abs_diff(b.len()) as u64;
            different += a.iter().zip(&b).filter(|(a, b)| a != b).count() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;

    #[test]
    fn a_folder_is_its_files_and_a_file_is_itself() {
        let place = env::temp_dir().join(format!("scenarios-media-{}-folder", std::process::id()));
        fs::create_dir_all(place.join("below/empty")).unwrap();
        for path in ["a", "below/b"] {
            fs::write(place.join(path), path).unwrap();
        }
        let found: Vec<PathBuf> = files(&place).unwrap().into_iter().collect();
        assert_eq!(found, [PathBuf::from("a"), PathBuf::from("below/b")]);
        for path in &found {
            assert!(file(&place, path).is_file());
        }
        let itself = files(&place.join("a")).unwrap();
        assert_eq!(itself.iter().map(|path| file(&place.join("a"), path)).collect::<Vec<_>>(), [place.join("a")]);
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn files_of_different_bytes_or_lengths_differ() {
        let file = |name: &str, content: &[u8]| {
            let path = env::temp_dir().join(format!("scenarios-media-{}-{name}", std::process::id()));
            fs::write(&path, content).unwrap();
            path
        };
        let mut long = vec![1; (1 << 20) + 3];
        let a = file("a", &long);
        long[7] = 2;
        let b = file("b", &long);
        let c = file("c", &long[..1 << 20]);
        assert_eq!(compare(&a, &a).unwrap(), ((1 << 20) + 3, 0));
        assert_eq!(compare(&a, &b).unwrap(), ((1 << 20) + 3, 1));
        assert_eq!(compare(&a, &c).unwrap(), ((1 << 20) + 3, 4));
        assert_eq!(compare(&c, &a).unwrap(), (1 << 20, 4));
        for path in [a, b, c] {
            fs::remove_file(path).unwrap();
        }
    }
}
