//! Plain Linux in QEMU with an 82599, which a process beside it serves by vfio-user (`tests/x520-model`).

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use scenarios::initramfs;
use scenarios::linux::{Linux, Parts, Setup};

use super::qemu::{self, SocketPath, accept};
use super::{Emulator, Process, fresh};
use crate::{image, paths, tools};

/// For the kernel, a file system in memory, and iperf3 at both ends.
const MEMORY: &str = "384M";
const LIMIT: Duration = Duration::from_secs(20);

/// What every machine shares.
struct Files {
    server: PathBuf,
    kernel: PathBuf,
    initrd: PathBuf,
}

/// Builds what the machines need, once.
fn files() -> Result<&'static Files> {
    static FILES: OnceLock<Files> = OnceLock::new();
    if let Some(files) = FILES.get() {
        return Ok(files);
    }
    let target = paths::target();
    let folder = target.display().to_string();
    let build = ["build", "--quiet", "--release", "--package", "x520-model", "--features", "server", "--target-dir"];
    if !tools::cargo(&[&build[..], &[folder.as_str()]].concat(), &[])? {
        bail!("the device's server does not build; the compiler's words are above");
    }
    let initrd = paths::runs().join("parts/initrd-nic");
    let content = initramfs::build(&paths::tree(), &paths::full_kernel(), None, initramfs::Content::Nic)?;
    fs::write(&initrd, content)?;
    let files =
        Files { server: target.join("release/x520-server"), kernel: image::kernel_of(&paths::full_kernel())?, initrd };
    Ok(FILES.get_or_init(|| files))
}

/// Starts machines; the wire of two joins them.
pub fn start(emulator: &Emulator, name: &str, setups: &[Setup]) -> Result<Vec<Linux>> {
    let folder = paths::runs().join(format!("{}-{name}", emulator.platform));
    fresh(&folder)?;
    let wires = [SocketPath::new("wire"), SocketPath::new("wire")];
    let paths = wires.each_ref().map(|wire| wire.0.clone());
    let machine = |(n, (setup, wire)): (usize, (&Setup, SocketPath))| {
        let folder = folder.join(setup.name);
        fs::create_dir_all(&folder)?;
        one(setup, &folder, wire, &paths[1 - n], emulator.platform == scenarios::Platform::Kvm)
    };
    setups.iter().zip(wires).enumerate().map(machine).collect()
}

fn one(setup: &Setup, folder: &Path, wire: SocketPath, peer: &Path, kvm: bool) -> Result<Linux> {
    let files = files()?;
    let socket = SocketPath::new("nic");
    let capture = folder.join("wire.pcap");
    let mac = setup.mac().map(|byte| format!("{byte:02x}")).join(":");
    let mut server = tools::dying_with_us(&files.server);
    server.arg(&socket.0).arg("--wire").args([&wire.0, peer]).args(["--mac", &mac]).arg("--pcap").arg(&capture);
    let complaints = folder.join("complaints");
    let (mut device, commands) = spawn(&mut server, &complaints, &complaints)?;
    wait_for(&socket.0, &mut device)?;
    let path = socket.0.display().to_string();
    device.sockets = vec![socket, wire];

    let console = SocketPath::new("console");
    let listener = UnixListener::bind(&console.0)?;
    let log = folder.join("console");
    let mut command = qemu::command();
    let (accelerator, cpu) = if kvm { ("kvm", "host") } else { ("tcg", "max") };
    command.args(["-M", "q35,memory-backend=mem", "-accel", accelerator, "-cpu", cpu, "-m", MEMORY]);
    command.args(["-object", &format!("memory-backend-memfd,id=mem,size={MEMORY},share=on")]);
    command.args(["-smp", &setup.cpus.to_string(), "-nic", "none", "-display", "none", "-no-reboot", "-nodefaults"]);
    command.arg("-kernel").arg(&files.kernel).arg("-initrd").arg(&files.initrd).args(["-append", &setup.cmdline()]);
    let chardev = format!("socket,id=console,path={},logfile={}", console.0.display(), log.display());
    command.args(["-chardev", &chardev, "-serial", "chardev:console", "-device", "pcie-root-port,id=rp0"]);
    command.args([
        "-device",
        &format!(r#"{{"driver":"vfio-user-pci","bus":"rp0","socket":{{"type":"unix","path":"{path}"}}}}"#),
    ]);
    fs::write(folder.join("command"), format!("{server:?}\n{command:?}\n"))?;
    let words = folder.join("emulator");
    let (mut machine, _) = spawn(&mut command, &words, &log)?;
    let stream: UnixStream = accept(&listener, &mut machine, &words)?;
    let parts = Parts {
        machine: Box::new(machine),
        server: Box::new(device),
        output: Box::new(stream.try_clone()?),
        input: Box::new(stream),
        commands,
        complaints,
        capture,
    };
    Ok(Linux::new(setup.name, parts))
}

/// Starts a process with its words in the file `words`; `console` is where its machine's console is written.
fn spawn(command: &mut Command, words: &Path, console: &Path) -> Result<(Process, Box<dyn Write + Send>)> {
    let file = File::create(words)?;
    command.stdin(Stdio::piped()).stdout(file.try_clone()?).stderr(file);
    let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
    let input = child.stdin.take().context("a process without standard input")?;
    Ok((Process { child, com1: console.to_owned(), record: None, sockets: Vec::new() }, Box::new(input)))
}

/// Waits until the device's server listens.
fn wait_for(socket: &Path, server: &mut Process) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    while !socket.exists() {
        if server.child.try_wait()?.is_some() || Instant::now() > deadline {
            bail!("the device's server did not start:\n{}", fs::read_to_string(&server.com1).unwrap_or_default());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
