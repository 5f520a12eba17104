//! What a scenario asks of the emulated server.

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
    /// An 82599 with another machine at the other end of its wire: see [`crate::launch::Launch::launch_joined`].
    X520,
    /// Two 82599s, at 01:00.0 and 02:00.0, behind which the host answers as behind [`Uplink::TwoVirtio`], the second address at
    /// the first device: see [`crate::launch::Launch::launch_with_two`].
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
