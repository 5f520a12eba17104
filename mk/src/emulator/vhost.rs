//! `sidecore-vhost` with guests of QEMU or DPDK's testpmd at its ports, for the scenarios of the engine as a process.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use scenarios::linux::{Linux, Parts as LinuxParts, Setup};
use scenarios::platform::Platform;
use scenarios::vhost::{Parts, Testpmd, Vhost};

use super::process::{Process, SocketPath};
use super::qemu::{self, accept};
use crate::{fetch, image, paths, tools};

const LIMIT: Duration = Duration::from_secs(60);

/// Builds a program of `tools/`, once.
pub fn build(package: &str) -> Result<PathBuf> {
    let target = paths::target();
    let folder = target.display().to_string();
    if !tools::cargo(&["build", "--quiet", "--release", "--package", package, "--target-dir", &folder], &[])? {
        bail!("{package} does not build; the compiler's words are above");
    }
    Ok(target.join("release").join(package))
}

fn program() -> Result<&'static Path> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    if let Some(program) = PROGRAM.get() {
        return Ok(program);
    }
    let program = build("sidecore-vhost")?;
    Ok(PROGRAM.get_or_init(|| program))
}

/// Starts the program with a port or a disk (`kind`) for each of `keys`, which are its lines in the configuration.
/// Returns their sockets.
fn serve(folder: &Path, kind: &str, keys: &[&str]) -> Result<(Vhost, Vec<PathBuf>)> {
    let sockets: Vec<SocketPath> = keys.iter().map(|_| SocketPath::new("vhost")).collect();
    let places: Vec<PathBuf> = sockets.iter().map(|socket| socket.0.clone()).collect();
    let entries = places.iter().zip(keys).map(|(place, keys)| format!("[[{kind}]]\nsocket = {place:?}\n{keys}\n"));
    let config = folder.join("vhost.toml");
    fs::write(&config, entries.collect::<String>())?;
    Ok((Vhost::new(start_at(&config, &folder.join("vhost"), sockets)?), places))
}

/// Starts the program with a configuration, and waits until it listens.
fn start_at(config: &Path, words: &Path, sockets: Vec<SocketPath>) -> Result<Parts> {
    let mut command = tools::dying_with_us(program()?);
    command.args(["--stats", "--json"]).arg("--config").arg(config);
    let mut parts = spawn(command, words, sockets)?;
    let deadline = Instant::now() + LIMIT;
    // It says so when it listens. Sockets of an earlier process would still be there.
    while !parts.process.console()?.contains("copies with") {
        if parts.process.ended()? || Instant::now() > deadline {
            bail!("sidecore-vhost did not start:\n{}", parts.process.console()?);
        }
        thread::sleep(Duration::from_millis(10));
    }
    let (config, words) = (config.to_owned(), words.with_extension("again"));
    parts.again = Box::new(move || start_at(&config, &words, Vec::new()));
    Ok(parts)
}

/// Starts a process. Its standard error goes to the file `words`, and its command line to a file beside it.
fn spawn(mut command: Command, words: &Path, sockets: Vec<SocketPath>) -> Result<Parts> {
    fs::write(words.with_extension("command"), format!("{command:?}\n"))?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(words)?);
    let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
    let input = child.stdin.take().context("a process without standard input")?;
    let output = child.stdout.take().context("a process without standard output")?;
    let number = i32::try_from(child.id()).context("no such process number")?;
    let process = Process { child, com1: words.to_owned(), record: None, sockets, monitor: None, typed: None };
    let pid = Pid::from_raw(number).context("no such process number")?;
    let terminate = Box::new(move || Ok(kill_process(pid, Signal::TERM)?));
    let again = Box::new(|| bail!("this process cannot be started again"));
    Ok(Parts { process: Box::new(process), output: Box::new(output), input: Box::new(input), terminate, again })
}

/// Starts the switch and a plain guest of QEMU at each of its ports.
pub fn start(platform: Platform, folder: &Path, setups: &[Setup]) -> Result<(Vhost, Vec<Linux<()>>)> {
    let (vhost, sockets) = serve(folder, "port", &vec![""; setups.len()])?;
    let guests = setups.iter().zip(&sockets).map(|(setup, socket)| {
        let mac = setup.mac().map(|byte| format!("{byte:02x}")).join(":");
        let device = [
            format!("-chardev socket,id=net,path={}", socket.display()),
            "-netdev vhost-user,id=net,chardev=net".to_owned(),
            format!("-device virtio-net-pci,netdev=net,mac={mac},disable-legacy=on,romfile="),
        ];
        guest(Plain::new(setup, &device)?, &folder.join(setup.name), platform)
    });
    Ok((vhost, guests.collect::<Result<_>>()?))
}

/// Starts the program with a disk for each of `disks`, which are its lines in the configuration, and a plain guest of
/// QEMU that has all of them. Each disk has a queue for each processor; every second one has packed rings. QEMU connects
/// again if the program is started again.
pub fn disks(platform: Platform, folder: &Path, setup: &Setup, disks: &[&str]) -> Result<(Vhost, Linux<()>)> {
    let (vhost, sockets) = serve(folder, "disk", disks)?;
    let mut devices = Vec::new();
    for (n, socket) in sockets.iter().enumerate() {
        let rings = format!("num-queues={},packed={}", setup.cpus, if n % 2 == 1 { "on" } else { "off" });
        devices.push(format!("-chardev socket,id=disk{n},path={},reconnect-ms=200", socket.display()));
        devices.push(format!("-device vhost-user-blk-pci,chardev=disk{n},{rings},disable-legacy=on"));
    }
    Ok((vhost, guest(Plain::new(setup, &devices)?, &folder.join(setup.name), platform)?))
}

/// A plain guest.
pub struct Plain<'a> {
    /// The machine.
    pub setup: &'a Setup,
    /// Its devices: options of QEMU, each with its value behind a space.
    pub devices: &'a [String],
    /// Its RAM disk.
    pub initrd: &'a Path,
    /// Sockets of its devices, which are removed when it ends.
    pub sockets: Vec<SocketPath>,
}

impl<'a> Plain<'a> {
    /// With the guests' RAM disk.
    fn new(setup: &'a Setup, devices: &'a [String]) -> Result<Self> {
        Ok(Self { setup, devices, initrd: &image::parts()?.initrd, sockets: Vec::new() })
    }
}

/// Starts a plain guest with its logs in `folder`.
pub fn guest(plain: Plain<'_>, folder: &Path, platform: Platform) -> Result<Linux<()>> {
    let Plain { setup, devices, initrd, sockets } = plain;
    let kvm = platform == Platform::Kvm;
    fs::create_dir_all(folder)?;
    let parts = image::parts()?;
    let console = SocketPath::new("console");
    let listener = UnixListener::bind(&console.0)?;
    let log = folder.join("console");
    let mut command = qemu::command();
    let (accelerator, cpu) = if kvm { ("kvm", "host") } else { ("tcg", "max") };
    command.args(["-M", "q35,memory-backend=mem", "-accel", accelerator, "-cpu", cpu]);
    command.args(["-m", &format!("{}M", setup.memory_mib), "-smp", &setup.cpus.to_string()]);
    command.args(["-object", &format!("memory-backend-memfd,id=mem,size={}M,share=on", setup.memory_mib)]);
    command.args(["-nic", "none", "-display", "none", "-no-reboot", "-nodefaults"]);
    command.arg("-kernel").arg(&parts.guest_kernel).arg("-initrd").arg(initrd);
    command.args(["-append", &setup.cmdline()]);
    command.args(["-chardev", &format!("socket,id=console,path={},logfile={}", console.0.display(), log.display())]);
    command.args(["-serial", "chardev:console"]);
    for (option, value) in devices.iter().filter_map(|device| device.split_once(' ')) {
        command.args([option, value]);
    }
    fs::write(folder.join("command"), format!("{command:?}\n"))?;
    let words = folder.join("emulator");
    let file = File::create(&words)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let child = command.spawn().context("cannot start the emulator; `cargo mk fetch --again` brings it")?;
    let mut machine = Process { child, com1: log, record: None, sockets, monitor: None, typed: None };
    let stream: UnixStream = accept(&listener, &mut machine, &words)?;
    let output = Box::new(stream.try_clone()?);
    Ok(Linux::new(setup.name, LinuxParts { machine: Box::new(machine), output, input: Box::new(stream), nic: () }))
}

/// Starts the switch with two ports, and testpmd with a virtio-user port at each of them.
pub fn testpmd(folder: &Path, packed: bool) -> Result<(Vhost, Testpmd)> {
    fetch::ensure_peers()?;
    let (vhost, sockets) = serve(folder, "port", &["", ""])?;
    let mut command = tools::testpmd();
    // Without huge pages and files of its own, any user can run testpmd. One thread forwards and one reads commands, on
    // all processors that this process may use.
    command.args(["--no-huge", "-m", "128", "--no-shconf", "--lcores", &format!("(0,1)@({})", tools::processors()?)]);
    for (n, socket) in sockets.iter().enumerate() {
        let mac = format!("02:00:00:00:00:{:02x}", n + 1);
        let rings = format!("queue_size=1024,packed_vq={}", u8::from(packed));
        command.arg(format!("--vdev=virtio_user{n},path={},mac={mac},{rings}", socket.display()));
    }
    command.args(["--", "-i", "--forward-mode=io", "--total-num-mbufs=16384", "--rxd=1024", "--txd=1024"]);
    command.args(["--eth-peer=0,02:00:00:00:00:02", "--eth-peer=1,02:00:00:00:00:01"]);
    let mut parts = spawn(command, &folder.join("testpmd"), Vec::new())?;
    parts.input.flush()?;
    Ok((vhost, Testpmd::new(parts)))
}
