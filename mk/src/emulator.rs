//! Starts emulators with a disc and connects to COM2.

mod bochs;
mod boot_network;
mod boot_server;
mod disk;
mod disk_file;
mod linux;
mod monitor;
mod nested;
mod nic;
mod nvme;
mod process;
mod qemu;
mod share;
mod shared_line;
pub mod vhost;
mod virtio_disk;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};
use scenarios::boot_server::{BootServer, Served};
use scenarios::launch::{Joined, Judge, Launch};
use scenarios::machine::Machine;
use scenarios::nic::Nic;
use scenarios::platform::Platform;
use scenarios::session::Session;
use scenarios::setup::{Content, Medium, Setup, Uplink};

use crate::{fetch, image, linux_program, media, paths, tools, ui};

use process::{NEXT_DISC, Run, Wire, fresh};
use qemu::kvm_is_usable;
pub use {nested::end as end_nested, process::SocketPath, qemu::command as qemu_command};

/// Starts emulators of one kind.
pub struct Emulator {
    platform: Platform,
    /// COM1 is a socket at the first path instead of a file. COM2 is shared with whoever connects to the second.
    consoles: Option<(PathBuf, PathBuf)>,
    /// First part of the names of log folders; the setup's name follows. Empty if only one emulator runs at a time.
    logs: String,
    /// The hypervisor is the checked one ([`image::checked_kernel`]).
    checked: bool,
}

/// The platform that was asked for. If none was, the best one on this machine.
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
    /// An emulator whose COM1 goes to a file.
    pub fn new(platform: Platform) -> Self {
        Self { platform, consoles: None, logs: String::new(), checked: false }
    }

    /// The same, with logs of this name. No other emulator that runs at the same time may have that name.
    pub fn with_logs(platform: Platform, logs: &str) -> Self {
        Self { logs: logs.to_owned(), ..Self::new(platform) }
    }

    /// The same, with the hypervisor that checks arithmetic and assertions, or with the usual one.
    pub fn checked(self, checked: bool) -> Self {
        Self { checked, ..self }
    }

    /// An emulator for a person: COM1 is the UNIX socket `com1`, on which somebody listens already. COM2 is shared with programs that
    /// connect to the UNIX socket `com2`. QEMU only.
    pub fn with_consoles(platform: Platform, com1: PathBuf, com2: PathBuf) -> Result<Self> {
        if !platform.is_qemu() {
            bail!("there is no interactive run on {platform}: use --platform qemu");
        }
        Ok(Self { consoles: Some((com1, com2)), ..Self::new(platform) })
    }
}

/// Reads metrics in OpenMetrics' form by a strict parser, and prints how many series there are.
const OPEN_METRICS: &str = "import sys\n\
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse\n\
    print(sum(len(family.samples) for family in parse(sys.stdin.read())))";

/// Python with the judges of the management guest.
fn operator_judge() -> Result<Command> {
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", fetch::operator_judges()?.join("usr/lib/python3/dist-packages"));
    Ok(python)
}

impl Launch for Emulator {
    fn platform(&self) -> Platform {
        self.platform
    }

    fn launch(&mut self, setup: &Setup) -> Result<Session> {
        let folder = self.folder(&setup.name)?;
        self.launch_in(&folder, setup, &[], Vec::new())
    }

    fn launch_vhost(
        &mut self,
        name: &str,
        guests: &[scenarios::linux::Setup],
    ) -> Result<(scenarios::vhost::Vhost, Vec<scenarios::linux::Linux<()>>)> {
        vhost::start(self.platform, &self.folder(name)?, guests)
    }

    fn launch_vhost_disks(
        &mut self,
        name: &str,
        guest: &scenarios::linux::Setup,
        disks: &[&str],
    ) -> Result<(scenarios::vhost::Vhost, scenarios::linux::Linux<()>)> {
        vhost::disks(self.platform, &self.folder(name)?, guest, disks)
    }

    fn launch_testpmd(
        &mut self,
        name: &str,
        packed: bool,
    ) -> Result<(scenarios::vhost::Vhost, scenarios::vhost::Testpmd)> {
        vhost::testpmd(&self.folder(name)?, packed)
    }

    fn judge(&mut self, program: Judge) -> Result<Command> {
        let ssh_tool = |path| fetch::ensure_ssh().map(|()| tools::ssh_tool(path));
        Ok(match program {
            Judge::Ssh => ssh_tool("usr/bin/ssh")?,
            Judge::SshKeygen => ssh_tool("usr/bin/ssh-keygen")?,
            Judge::SshKeyscan => ssh_tool("usr/bin/ssh-keyscan")?,
            Judge::Tshark => fetch::ensure_tshark().map(|()| tools::tshark())?,
            Judge::Perfetto => {
                let mut python = Command::new("python3");
                python
                    .arg(paths::root().join("tools/trace/tests/exports/judge.py"))
                    .env("PYTHONPATH", fetch::perfetto()?);
                python
            }
            // These two need the C library, which is in the tree of all emulators.
            Judge::Prometheus => tools::program(&fetch::prometheus()?.display().to_string()),
            Judge::Promtool => {
                tools::program(&fetch::operator_judges()?.join("usr/bin/promtool").display().to_string())
            }
            Judge::OpenMetrics => {
                let mut python = operator_judge()?;
                python.args(["-c", OPEN_METRICS]);
                python
            }
            Judge::SshAudit => {
                let mut python = operator_judge()?;
                python.args(["-m", "ssh_audit.ssh_audit"]);
                python
            }
        })
    }

    fn tool(&mut self, package: &'static str) -> Result<Command> {
        Ok(Command::new(linux_program::build(package)?))
    }

    fn guest_kernel(&mut self) -> Result<PathBuf> {
        image::kernel_of(&paths::guest_kernel())
    }

    fn launch_disk(&mut self, name: &str) -> Result<scenarios::disk::Disk> {
        disk::start(self.platform, &self.folder(name)?)
    }

    fn build_module(&mut self, content: &Content, name: &str) -> Result<PathBuf> {
        image::file(content, &self.folder(name)?, "module")
    }

    fn launch_boot_server(&mut self, name: &str, served: &Served) -> Result<BootServer> {
        boot_server::start(self.platform, &self.folder(name)?, served)
    }

    fn build_medium(&mut self, setup: &Setup, name: &str, date: &'static str) -> Result<PathBuf> {
        let folder = self.folder(name)?;
        fetch::ensure_faketime()?;
        fetch::ensure_disk_tools()?;
        let place = tools::on_date(date, || image::disc(setup, &folder, self.checked))?;
        if matches!(setup.medium, Medium::StickUefi | Medium::DiskUefi) {
            media::judge(&place, setup.medium == Medium::DiskUefi, &folder)?;
        }
        Ok(place)
    }

    fn launch_linux(&mut self, name: &str, setups: &[scenarios::linux::Setup]) -> Result<Vec<scenarios::linux::Linux>> {
        linux::start(self.platform, &self.folder(name)?, setups)
    }

    fn launch_joined(&mut self, setup: &Setup, peer: &scenarios::linux::Setup, capture: bool) -> Result<Joined> {
        let folder = self.folder(&setup.name)?;
        let [ours, theirs] = [SocketPath::new("wire"), SocketPath::new("wire")];
        let (our_path, their_path) = (ours.0.clone(), theirs.0.clone());
        let backplane = setup.uplink == Uplink::X520Backplane;
        let device =
            nic::Device { folder: &folder, mac: NIC_ADDRESS, wire: ours, peer: &their_path, capture, backplane };
        let (nic, socket) = nic::serve(device)?;
        let peer = linux::one(self.platform, peer, &folder, theirs, &our_path, capture)?;
        let session = self.launch_in(&folder, setup, &[&socket], Vec::new())?;
        Ok(Joined { session, nic, peer })
    }

    fn launch_with_peer(
        &mut self,
        setup: &Setup,
        peer: &scenarios::linux::Setup,
    ) -> Result<(Session, scenarios::linux::Linux)> {
        let folder = self.folder(&setup.name)?;
        let [ours, theirs] = [SocketPath::new("wire"), SocketPath::new("wire")];
        let (our_path, their_path) = (ours.0.clone(), theirs.0.clone());
        let peer = linux::one(self.platform, peer, &folder, theirs, &our_path, true)?;
        let session = self.launch_in(&folder, setup, &[], vec![(ours, their_path)])?;
        Ok((session, peer))
    }

    fn launch_with_two(&mut self, setup: &Setup) -> Result<(Session, [Nic; 2])> {
        let folder = self.folder(&setup.name)?;
        let [far_first, far_second, first, second] = [(); 4].map(|()| SocketPath::new("wire"));
        let wires = vec![(far_first, first.0.clone()), (far_second, second.0.clone())];
        let serve = |n: usize, wire: SocketPath| {
            let folder = folder.join(format!("nic{n}"));
            fs::create_dir(&folder)?;
            let mac = [0x02, 0x1b, 0x21, 0, 0, 0xf0 + n as u8];
            nic::serve(nic::Device {
                folder: &folder,
                mac,
                wire,
                peer: &wires[n].0.0,
                capture: false,
                backplane: false,
            })
        };
        let ((first, a), (second, b)) = (serve(0, first)?, serve(1, second)?);
        let session = self.launch_in(&folder, setup, &[&a, &b], wires)?;
        Ok((session, [first, second]))
    }
}

/// The address of sidecore's own NIC.
const NIC_ADDRESS: [u8; 6] = [0x02, 0x1b, 0x21, 0, 0, 0xfe];

impl Emulator {
    /// Makes an empty folder for the logs of a run with this name.
    fn folder(&self, name: &str) -> Result<PathBuf> {
        let before = if name.starts_with(&self.logs) { String::new() } else { format!("{}-", self.logs) };
        let checked = if self.checked { "checked-" } else { "" };
        let folder = paths::runs().join(format!("{}-{checked}{before}{name}", self.platform));
        fresh(&folder)?;
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// Starts a server with its logs in `folder`. `nics`: the sockets of its 82599s' servers. `wires`: wires whose
    /// other ends are the emulator's.
    fn launch_in(&self, folder: &Path, setup: &Setup, nics: &[&Path], wires: Vec<Wire>) -> Result<Session> {
        if let Some(actions) = setup.after_reset {
            fs::rename(image::linux_disc(actions, folder)?, folder.join(NEXT_DISC))?;
        }
        // The files of a network are on the boot server.
        let disc = if setup.network.is_some() { PathBuf::new() } else { image::disc(setup, folder, self.checked)? };
        self.boot(folder, setup, &disc, nics, wires)
    }

    /// Starts the server that `launch` would, from another disc.
    pub fn launch_from(&self, setup: &Setup, disc: impl FnOnce(&Path) -> Result<PathBuf>) -> Result<Session> {
        let folder = self.folder(&setup.name)?;
        let disc = disc(&folder)?;
        self.boot(&folder, setup, &disc, &[], Vec::new())
    }

    fn boot(&self, folder: &Path, setup: &Setup, disc: &Path, nics: &[&Path], wires: Vec<Wire>) -> Result<Session> {
        let run = Run { setup, folder, disc, nics, wires: &wires };
        let (machine, input, output): Started = match self.platform {
            Platform::Nested => boxed(nested::start(&run)?),
            Platform::Bochs => boxed(bochs::start(&run)?),
            Platform::Kvm | Platform::Qemu => {
                let com1 = self.consoles.as_ref().map(|(com1, _)| com1.as_path());
                let (mut process, input, output) = qemu::start(&run, self.platform == Platform::Kvm, com1)?;
                process.sockets.extend(wires.into_iter().map(|(own, _)| own));
                boxed((process, input, output))
            }
        };
        let shared = self.consoles.as_ref().map(|(_, com2)| com2).or(setup.shared_com2.as_ref());
        let (input, output) = match shared {
            Some(com2) => share::share(com2, (input, output))?,
            None => (input, output),
        };
        let log = File::create(folder.join("com2"))?;
        Ok(Session::new(machine, input, output, Box::new(log), self.platform.patience()))
    }
}

/// A running machine, and both directions of its COM2.
type Started = (Box<dyn Machine>, Box<dyn Read + Send>, Box<dyn Write + Send>);

fn boxed<M: Machine + 'static>((machine, input, output): (M, Box<dyn Read + Send>, Box<dyn Write + Send>)) -> Started {
    (Box::new(machine), input, output)
}

/// Prints on which platform something will run, and why.
pub fn announce(platform: Platform, asked: bool) {
    let why = match (platform, asked) {
        (_, true) => "as asked".to_owned(),
        (Platform::Kvm, false) => "hardware virtualization nests here".to_owned(),
        (_, false) => {
            let lacks = kvm_is_usable().err().map_or(String::new(), |error| format!(": {error}"));
            format!("no hardware virtualization that nests here{lacks}; QEMU's translator, with SVM")
        }
    };
    ui::step("platform", &format!("{platform} ({why})"));
}
