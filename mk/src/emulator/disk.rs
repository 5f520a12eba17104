//! A machine of plain QEMU with OVMF that boots a copy of a disk image.

use std::fs::{self, File};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use scenarios::disk::{Disk, Parts};
use scenarios::platform::Platform;

use super::process::{Process, SocketPath};
use super::qemu::{self, accept};
use crate::{disk, tools};

/// Starts the machine. The copy stays in `folder` for whoever wants to look at it.
pub fn start(platform: Platform, folder: &Path) -> Result<Disk> {
    let image = disk::image(&[])?;
    let copy = folder.join("disk.img");
    let mut cp = Command::new("cp");
    cp.args(["--sparse=always", "--reflink=auto", "--"]).arg(&image).arg(&copy);
    tools::quietly(&mut cp, "cp")?;

    let console = SocketPath::new("console");
    let listener = UnixListener::bind(&console.0)?;
    let log = folder.join("console");
    let mut command = qemu::command();
    let (accelerator, cpu) = if platform == Platform::Kvm { ("kvm", "host") } else { ("tcg", "max") };
    command.args(["-M", "q35", "-accel", accelerator, "-cpu", cpu, "-m", "1024M", "-smp", "2"]);
    command.args(["-nic", "none", "-display", "none", "-no-reboot", "-nodefaults"]);
    qemu::uefi(&mut command, folder, "")?;
    command.args(["-drive", &format!("if=none,id=disk,format=raw,file={}", copy.display())]);
    command.args(["-device", "virtio-blk-pci,drive=disk,disable-legacy=on"]);
    command.args(["-chardev", &format!("socket,id=console,path={},logfile={}", console.0.display(), log.display())]);
    command.args(["-serial", "chardev:console"]);
    let virtio = format!("file,id=virtio,path={}", folder.join("virtio-console").display());
    command.args(["-device", "virtio-serial-pci", "-chardev", &virtio, "-device", "virtconsole,chardev=virtio"]);
    fs::write(folder.join("command"), format!("{command:?}\n"))?;
    let words = folder.join("emulator");
    let file = File::create(&words)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let child = command.spawn().context("cannot start the emulator; `cargo mk fetch --again` brings it")?;
    let mut machine = Process { child, com1: log, record: None, sockets: Vec::new(), monitor: None, typed: None };
    let stream: UnixStream = accept(&listener, &mut machine, &words)?;
    let (output, place) = (Box::new(stream.try_clone()?), folder.to_owned());
    let judge = Box::new(move || disk::judge(&copy, &place));
    Ok(Disk::new(Parts { machine: Box::new(machine), output, input: Box::new(stream), judge }))
}
