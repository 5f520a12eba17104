//! What a scenario asks of the emulated server, and what `mk` has to provide.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};

use crate::linux::{self, Linux};
use crate::nic::Nic;
use crate::session::Session;
use crate::vhost::{Testpmd, Vhost};

/// Where sidecore runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Platform {
    /// QEMU with hardware virtualization that nests.
    Kvm,
    /// QEMU's own translator, which has SVM.
    Qemu,
    /// Bochs, which has VT-x.
    Bochs,
}

impl Platform {
    /// How many times longer than on QEMU a scenario may take before it counts as hung.
    pub fn patience(self) -> u32 {
        match self {
            Self::Kvm | Self::Qemu => 1,
            Self::Bochs => 8,
        }
    }

    /// Whether it is one of the two ways to run QEMU.
    pub fn is_qemu(self) -> bool {
        matches!(self, Self::Kvm | Self::Qemu)
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kvm => "kvm",
            Self::Qemu => "qemu",
            Self::Bochs => "bochs",
        })
    }
}

impl FromStr for Platform {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "kvm" => Ok(Self::Kvm),
            "qemu" => Ok(Self::Qemu),
            "bochs" => Ok(Self::Bochs),
            _ => bail!("{text:?} is no platform: kvm, qemu or bochs"),
        }
    }
}

/// What a boot module holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// This text.
    Text(String),
    /// Debian's cloud kernel.
    GuestKernel,
    /// The full initramfs of [`crate::initramfs`].
    Initrd,
    /// The one without iperf3.
    SmallInitrd,
    /// The hostile guest of guest-drivers/isolation.
    Isolation,
    /// The guest of guest-drivers/probe, which tests its machine from inside.
    Probe,
}

/// A file that GRUB loads beside the hypervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// The name that sidecore.toml uses for it.
    pub name: String,
    /// What is in it.
    pub content: Content,
}

impl Module {
    /// A module of that name.
    pub fn new(name: &str, content: Content) -> Self {
        Self { name: name.to_owned(), content }
    }
}

/// Where the development machine answers on an uplink: its loopback, in the guests' network.
pub const HOST_ADDRESS: &str = "10.0.0.254";

/// Where it answers on the second of two, in a network of its own.
pub const SECOND_HOST_ADDRESS: &str = "10.0.9.254";

/// What leads out of an emulated server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uplink {
    /// Nothing.
    None,
    /// A virtio network device, behind which the host answers at [`HOST_ADDRESS`].
    Virtio,
    /// Two virtio network devices: at PCI address 00:11.0 one behind which the host answers at [`HOST_ADDRESS`], and at 00:10.0
    /// one behind which it does so at [`SECOND_HOST_ADDRESS`].
    TwoVirtio,
    /// An 82599 with another machine at the other end of its wire: see [`Launch::launch_joined`].
    X520,
    /// Two 82599s, at 01:00.0 and 02:00.0, behind which the host answers as behind [`Uplink::TwoVirtio`], the second address at
    /// the first device: see [`Launch::launch_with_two`].
    TwoX520,
}

/// One emulated server with sidecore on its disc.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Names the folder of its logs.
    pub name: String,
    /// Logical processors.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Boot modules.
    pub modules: Vec<Module>,
    /// Words on sidecore's own command line. Without `emulator` it ends as on a real machine.
    pub options: &'static str,
    /// Whether the processors have SVM or VT-x at all.
    pub virtualization: bool,
    /// What leads out of it.
    pub uplink: Uplink,
    /// Whether the emulator records the guest exits that it makes itself.
    pub record_exits: bool,
}

/// Starts emulated servers.
pub trait Launch {
    /// Which emulator it is.
    fn platform(&self) -> Platform;

    /// Builds the disc, starts the emulator and connects to COM2.
    fn launch(&mut self, setup: &Setup) -> Result<Session>;

    /// Starts one or two machines of plain Linux, each with an 82599; a wire joins two. `name` names the folder of their
    /// logs.
    fn launch_linux(&mut self, name: &str, setups: &[linux::Setup]) -> Result<Vec<Linux>>;

    /// Starts a server with an 82599 and a machine of plain Linux with another, a wire between them. `capture`: what passes
    /// on it is recorded.
    fn launch_joined(&mut self, setup: &Setup, peer: &linux::Setup, capture: bool) -> Result<Joined>;

    /// Starts a server with two 82599s.
    fn launch_with_two(&mut self, setup: &Setup) -> Result<(Session, [Nic; 2])>;

    /// Starts `sidecore-vhost` and a machine of plain Linux at each of its ports. `name` names the folder of their logs.
    fn launch_vhost(&mut self, name: &str, guests: &[linux::Setup]) -> Result<(Vhost, Vec<Linux<()>>)>;

    /// Starts `sidecore-vhost` and DPDK's testpmd with a virtio-user port at each of its two, on packed rings or split ones.
    /// `name` names the folder of their logs.
    fn launch_testpmd(&mut self, name: &str, packed: bool) -> Result<(Vhost, Testpmd)>;
}

/// A server, and the machine at the other end of its wire.
pub struct Joined {
    /// The server.
    pub session: Session,
    /// Its device.
    pub nic: Nic,
    /// The other machine.
    pub peer: Linux,
}

/// A running emulator.
pub trait Machine {
    /// Whether its process has ended.
    fn ended(&mut self) -> Result<bool>;

    /// Ends it.
    fn kill(&mut self);

    /// What it has written to COM1 so far.
    fn console(&self) -> Result<String>;

    /// The emulator's own count of entries into a guest so far, where it was asked to record them.
    fn recorded_entries(&self) -> Result<Option<u64>>;
}
