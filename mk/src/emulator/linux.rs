//! Plain Linux in QEMU with an 82599: one or two machines, with a wire between two, or one at the other end of
//! sidecore's wire.

use std::fs::{self, File};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::Result;
use scenarios::initramfs;
use scenarios::linux::{Linux, Parts, Setup};
use scenarios::platform::Platform;

use super::nic::{self, Device};
use super::process::SocketPath;
use super::qemu::{self, accept};
use crate::{image, linux_program, paths};

/// Files that all machines share.
struct Files {
    kernel: PathBuf,
    initrd: PathBuf,
}

/// Builds what the machines need, once.
fn files() -> Result<&'static Files> {
    static FILES: OnceLock<Files> = OnceLock::new();
    if let Some(files) = FILES.get() {
        return Ok(files);
    }
    let initrd = paths::runs().join("parts/initrd-nic");
    let malformed = linux_program::build("malformed")?;
    let content = initramfs::build(&paths::tree(), &paths::full_kernel(), &[&malformed], initramfs::Content::Nic)?;
    fs::write(&initrd, content)?;
    let files = Files { kernel: image::kernel_of(&paths::full_kernel())?, initrd };
    Ok(FILES.get_or_init(|| files))
}

/// Starts one or two machines. A wire joins two.
pub fn start(platform: Platform, folder: &Path, setups: &[Setup]) -> Result<Vec<Linux>> {
    let wires = [SocketPath::new("wire"), SocketPath::new("wire")];
    let paths = wires.each_ref().map(|wire| wire.0.clone());
    let machine =
        |(n, (setup, wire)): (usize, (&Setup, SocketPath))| one(platform, setup, folder, wire, &paths[1 - n], true);
    setups.iter().zip(wires).enumerate().map(machine).collect()
}

/// Starts a machine with its logs in a folder of its name.
pub fn one(
    platform: Platform,
    setup: &Setup,
    folder: &Path,
    wire: SocketPath,
    peer: &Path,
    capture: bool,
) -> Result<Linux> {
    let files = files()?;
    let folder = folder.join(setup.name);
    fs::create_dir_all(&folder)?;
    let (device, socket) =
        nic::serve(Device { folder: &folder, mac: setup.mac(), wire, peer, capture, backplane: setup.backplane })?;

    let console = SocketPath::new("console");
    let listener = UnixListener::bind(&console.0)?;
    let log = folder.join("console");
    let mut command = qemu::command();
    let kvm = platform == Platform::Kvm;
    let (accelerator, cpu) = if kvm { ("kvm", "host") } else { ("tcg", "max") };
    command.args(["-M", "q35", "-accel", accelerator, "-cpu", cpu, "-m", &format!("{}M", setup.memory_mib)]);
    command.args(["-smp", &setup.cpus.to_string(), "-nic", "none", "-display", "none", "-nodefaults"]);
    command.arg("-kernel").arg(&files.kernel).arg("-initrd").arg(&files.initrd).args(["-append", &setup.cmdline()]);
    let chardev = format!("socket,id=console,path={},logfile={}", console.0.display(), log.display());
    command.args(["-chardev", &chardev, "-serial", "chardev:console"]);
    if !setup.reboots {
        command.arg("-no-reboot");
    }
    nic::connect(&mut command, &[&socket], setup.memory_mib);
    fs::write(folder.join("command"), format!("{command:?}\n"))?;
    let words = folder.join("emulator");
    let file = File::create(&words)?;
    let (mut machine, _, _) = nic::spawn(command.stdout(file.try_clone()?).stderr(file), &log)?;
    let stream: UnixStream = accept(&listener, &mut machine, &words)?;
    let parts = Parts {
        machine: Box::new(machine),
        output: Box::new(stream.try_clone()?),
        input: Box::new(stream),
        nic: device,
    };
    Ok(Linux::new(setup.name, parts))
}
