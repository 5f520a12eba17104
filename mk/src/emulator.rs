//! Starts emulators with a disc and connects to COM2.

mod bochs;
mod linux;
mod nic;
mod qemu;
pub mod vhost;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use scenarios::Platform;
use scenarios::machine::{Joined, Launch, Machine, Setup};
use scenarios::nic::Nic;
use scenarios::session::Session;

use crate::{fetch, image, paths, ui};

use qemu::kvm_is_usable;
pub use qemu::{SocketPath, command as qemu_command};

/// Starts emulators of one kind.
pub struct Emulator {
    platform: Platform,
    /// COM1 is a socket at this path instead of a file.
    console_socket: Option<PathBuf>,
    /// Whose runs these are; empty if nobody else runs anything.
    scenario: &'static str,
}

/// The platform asked for; if none is, the best that is here.
pub fn choose(wanted: Option<Platform>) -> Result<Platform> {
    fetch::ensure(false)?;
    match wanted {
        Some(Platform::Kvm) => kvm_is_usable().map(|()| Platform::Kvm),
        Some(platform) => Ok(platform),
        None if kvm_is_usable().is_ok() => Ok(Platform::Kvm),
        None => Ok(Platform::Qemu),
    }
}

impl Emulator {
    /// COM1 goes to a file.
    pub fn new(platform: Platform) -> Self {
        Self { platform, console_socket: None, scenario: "" }
    }

    /// The same for a scenario, whose files no other that runs meanwhile has.
    pub fn of_scenario(platform: Platform, scenario: &'static str) -> Self {
        Self { scenario, ..Self::new(platform) }
    }

    /// For a person: COM1 is the UNIX socket `path`, on which somebody listens already. QEMU only.
    pub fn with_console(platform: Platform, path: PathBuf) -> Result<Self> {
        if !platform.is_qemu() {
            bail!("there is no interactive run on {platform}: use --platform qemu");
        }
        Ok(Self { console_socket: Some(path), ..Self::new(platform) })
    }
}

impl Launch for Emulator {
    fn platform(&self) -> Platform {
        self.platform
    }

    fn launch(&mut self, setup: &Setup) -> Result<Session> {
        let folder = self.folder(setup)?;
        self.launch_in(&folder, setup, &[], Vec::new())
    }

    fn launch_vhost(
        &mut self,
        name: &str,
        guests: &[scenarios::linux::Setup],
    ) -> Result<(scenarios::vhost::Vhost, Vec<scenarios::linux::Linux<()>>)> {
        vhost::start(self, name, guests)
    }

    fn launch_testpmd(
        &mut self,
        name: &str,
        packed: bool,
    ) -> Result<(scenarios::vhost::Vhost, scenarios::vhost::Testpmd)> {
        vhost::testpmd(self, name, packed)
    }

    fn launch_linux(&mut self, name: &str, setups: &[scenarios::linux::Setup]) -> Result<Vec<scenarios::linux::Linux>> {
        linux::start(self, name, setups)
    }

    fn launch_joined(&mut self, setup: &Setup, peer: &scenarios::linux::Setup, capture: bool) -> Result<Joined> {
        let folder = self.folder(setup)?;
        let [ours, theirs] = [SocketPath::new("wire"), SocketPath::new("wire")];
        let (our_path, their_path) = (ours.0.clone(), theirs.0.clone());
        let device = nic::Device { folder: &folder, mac: NIC_ADDRESS, wire: ours, peer: &their_path, capture };
        let (nic, socket) = nic::serve(device)?;
        let peer = linux::one(self, peer, &folder, theirs, &our_path, capture)?;
        let session = self.launch_in(&folder, setup, &[&socket], Vec::new())?;
        Ok(Joined { session, nic, peer })
    }

    fn launch_with_two(&mut self, setup: &Setup) -> Result<(Session, [Nic; 2])> {
        let folder = self.folder(setup)?;
        let [far_first, far_second, first, second] = [(); 4].map(|()| SocketPath::new("wire"));
        let wires = vec![(far_first, first.0.clone()), (far_second, second.0.clone())];
        let serve = |n: usize, wire: SocketPath| {
            let folder = folder.join(format!("nic{n}"));
            fs::create_dir(&folder)?;
            let mac = [0x02, 0x1b, 0x21, 0, 0, 0xf0 + n as u8];
            nic::serve(nic::Device { folder: &folder, mac, wire, peer: &wires[n].0.0, capture: false })
        };
        let ((first, a), (second, b)) = (serve(0, first)?, serve(1, second)?);
        let session = self.launch_in(&folder, setup, &[&a, &b], wires)?;
        Ok((session, [first, second]))
    }
}

/// The address of sidecore's own NIC.
const NIC_ADDRESS: [u8; 6] = [0x02, 0x1b, 0x21, 0, 0, 0xfe];

impl Emulator {
    /// An empty folder for the logs of a run.
    fn folder(&self, setup: &Setup) -> Result<PathBuf> {
        let scenario =
            if setup.name.starts_with(self.scenario) { String::new() } else { format!("{}-", self.scenario) };
        let folder = paths::runs().join(format!("{}-{scenario}{}", self.platform, setup.name));
        fresh(&folder)?;
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// Starts a server with its logs there, and with the 82599s that are served at these sockets; the emulator is at the other ends of
    /// these wires.
    fn launch_in(&self, folder: &Path, setup: &Setup, nics: &[&Path], wires: Vec<Wire>) -> Result<Session> {
        let disc = image::disc(setup, folder)?;
        self.boot(folder, setup, &disc, nics, wires)
    }

    /// Starts the server that `launch` would, from another disc.
    pub fn launch_from(&self, setup: &Setup, disc: impl FnOnce(&Path) -> Result<PathBuf>) -> Result<Session> {
        let folder = self.folder(setup)?;
        let disc = disc(&folder)?;
        self.boot(&folder, setup, &disc, &[], Vec::new())
    }

    fn boot(&self, folder: &Path, setup: &Setup, disc: &Path, nics: &[&Path], wires: Vec<Wire>) -> Result<Session> {
        let run = Run { setup, folder, disc, nics, wires: &wires };
        let (mut machine, input, output): (Process, Box<dyn std::io::Read + Send>, Box<dyn std::io::Write + Send>) =
            match self.platform {
                Platform::Bochs => bochs::start(&run)?,
                Platform::Kvm | Platform::Qemu => {
                    qemu::start(&run, self.platform == Platform::Kvm, self.console_socket.as_deref())?
                }
            };
        machine.sockets.extend(wires.into_iter().map(|(own, _)| own));
        let log = File::create(folder.join("com2"))?;
        Ok(Session::new(Box::new(machine), input, output, Box::new(log), self.platform.patience()))
    }
}

/// Removes what an earlier run has left.
fn fresh(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

/// A wire between the emulator and a device: either end's socket.
type Wire = (SocketPath, PathBuf);

/// What both emulators are told.
struct Run<'a> {
    setup: &'a Setup,
    /// Where logs go.
    folder: &'a Path,
    disc: &'a Path,
    /// Where its 82599s are served.
    nics: &'a [&'a Path],
    /// Wires whose one end is the emulator's.
    wires: &'a [Wire],
}

/// An emulator's process and its files.
struct Process {
    child: Child,
    com1: PathBuf,
    /// The emulator's record of guest entries and the text that marks one.
    record: Option<(PathBuf, &'static str)>,
    /// What others reach it by, for as long as it lives.
    sockets: Vec<SocketPath>,
}

impl Process {
    /// Starts it with its own messages in the file `emulator` of the folder.
    fn start(command: &mut Command, run: &Run<'_>, record: Option<(PathBuf, &'static str)>) -> Result<Self> {
        let words = File::create(run.folder.join("emulator"))?;
        command.stdin(Stdio::null()).stdout(words.try_clone()?).stderr(words);
        fs::write(run.folder.join("command"), format!("{command:?}\n"))?;
        let child = command.spawn().context("cannot start the emulator; `cargo mk fetch --again` brings it")?;
        Ok(Self { child, com1: run.folder.join("com1"), record, sockets: Vec::new() })
    }
}

impl Machine for Process {
    fn ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn console(&self) -> Result<String> {
        match fs::read(&self.com1) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).replace('\r', "")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", self.com1.display())),
        }
    }

    fn recorded_entries(&self) -> Result<Option<u64>> {
        let Some((path, mark)) = &self.record else { return Ok(None) };
        let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let lines = text.split(|byte| *byte == b'\n');
        let mark = mark.as_bytes();
        Ok(Some(lines.filter(|line| line.windows(mark.len()).any(|part| part == mark)).count() as u64))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Says on which platform something is about to run, and why.
pub fn announce(platform: Platform, asked: bool) {
    let why = match (platform, asked) {
        (_, true) => "as asked",
        (Platform::Kvm, false) => "hardware virtualization nests here",
        (_, false) => "no hardware virtualization that nests here: QEMU's translator, with SVM",
    };
    ui::step("platform", &format!("{platform} ({why})"));
}
