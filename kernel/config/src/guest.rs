//! `[[guest]]` with its devices: `[[guest.net]]`, `[[guest.block]]`, `[[guest.entropy]]` and `[[guest.console]]`.

use alloc::string::String;
use alloc::vec::Vec;

use crate::disk::Block;
use crate::mac::Mac;
use crate::mistake::Place;
use crate::rules::{Identity, Rules};
use crate::share::Share;

/// `[[guest]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    /// 1 to 32 letters, digits, `-`, `_` and `.`. Unique.
    pub name: String,
    /// Number of vCPUs, 1 to [`MAX_VCPUS`](crate::MAX_VCPUS). Each has a separate core.
    pub vcpus: u32,
    /// RAM in bytes.
    pub memory: u64,
    /// Its cores, memory and devices are kept for it, and it does not start. `apply` gives it a kernel.
    pub spare: bool,
    /// Name of the boot module that it starts: a kernel (a bzImage, or an ELF file with a PVH entry), or firmware. Empty if it is
    /// spare.
    pub kernel: String,
    /// Whether that is firmware: `firmware` was given instead of `kernel`.
    pub firmware: bool,
    /// Name of the boot module with the initial RAM disk.
    pub initrd: Option<String>,
    /// The kernel's command line.
    pub cmdline: String,
    /// How I/O is completed.
    pub completion: Completion,
    /// How the engine learns of its requests.
    pub requests: Requests,
    /// What is done about its split and bus locks.
    pub split_lock: SplitLock,
    /// Where its devices have their notification words.
    pub notify_bar: NotifyBar,
    /// Its share of the engine's time, relative to the other guests: 1 to [`MAX_WEIGHT`](crate::MAX_WEIGHT).
    pub weight: u16,
    /// Its share of the cache and of the memory bandwidth.
    pub share: Share,
    /// What happens when the guest resets, powers off or faults.
    pub restart: Restart,
    /// Whether it starts with sidecore.
    pub autostart: bool,
    /// Cores of the vCPUs in their order, as many as `vcpus`. `None` if sidecore chooses.
    pub cores: Option<Vec<u32>>,
    /// Its devices in the order of their function numbers on its bus: `[[guest.net]]`, then `[[guest.block]]`, then
    /// `[[guest.entropy]]`, then `[[guest.console]]`, each in the order of the file. Up to
    /// [`MAX_DEVICES`](crate::MAX_DEVICES).
    pub devices: Vec<GuestDevice>,
    /// Places in the file of values that are checked against the machine.
    pub places: Places,
}

/// A device of a guest. A new kind of device needs a new variant. Code that handles devices of every kind matches on all
/// variants. [`Guest::nets`] and its siblings look for one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuestDevice {
    /// A network device.
    Net(Net),
    /// A block device.
    Block(Block),
    /// An entropy device.
    Entropy(Entropy),
    /// A console device.
    Console(Console),
}

impl GuestDevice {
    /// The kind of a network device.
    pub(crate) const NET: &'static str = "net";

    /// Its kind, as it is named in traces and reports.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Net(_) => Self::NET,
            Self::Block(_) => "block",
            Self::Entropy(_) => "entropy",
            Self::Console(_) => "console",
        }
    }
}

/// `[[guest.entropy]]`: a virtio entropy device, for random bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entropy {
    /// Its place in the file.
    pub place: Place,
}

/// `[[guest.console]]`: a virtio console device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Console {
    /// Names of its ports beside the console: 1 to 32 letters, digits, `-`, `_` and `.`. Up to
    /// [`MAX_CONSOLE_PORTS`](crate::MAX_CONSOLE_PORTS).
    pub ports: Vec<String>,
    /// Its place in the file.
    pub place: Place,
}

/// `[[guest.net]]`: a virtio-net device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Net {
    /// MAC address.
    pub mac: Mac,
    /// The only uplink of its frames, as an index of [`Config::uplinks`](crate::Config::uplinks). With `None`, it is in
    /// each VLAN the first uplink of that VLAN.
    pub uplink: Option<usize>,
    /// Largest payload of a frame in bytes, [`MIN_MTU`](crate::MIN_MTU) to [`MAX_MTU`](crate::MAX_MTU).
    pub mtu: u16,
    /// Queue pairs, 1 to [`MAX_PAIRS`](crate::MAX_PAIRS).
    pub queues: u16,
    /// Offloads that the guest is offered.
    pub offloads: Offloads,
    /// Whether packed rings are offered.
    pub packed: bool,
    /// Its addresses.
    pub identity: Identity,
    /// The rules for its frames.
    pub rules: Rules,
}

/// Offloads that a guest is offered, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offloads {
    /// Checksums and TCP segmentation.
    #[default]
    Segmentation,
    /// Checksums.
    Checksum,
    /// Nothing.
    None,
}

impl Offloads {
    /// The values with their words.
    pub(crate) const WORDS: [(&'static str, Self); 3] =
        [("tso", Self::Segmentation), ("csum", Self::Checksum), ("none", Self::None)];
}

/// How I/O of a guest is completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Completion {
    /// The best way that the machine has. [`check_completion`](crate::check_completion) replaces it.
    #[default]
    Auto,
    /// The core is kicked and the interrupt injected at the next entry.
    Inject,
    /// The CPU delivers it to the running guest (VT-x with posted interrupts).
    Posted,
    /// The guest owns its cores' local APICs, and the interrupt is sent to the core itself.
    Direct,
    /// As `Direct`, and a shadow of the guest's IDT brings the host's own vectors to the host.
    Eli,
}

impl Completion {
    /// The values with their words.
    pub(crate) const WORDS: [(&'static str, Self); 5] = [
        ("auto", Self::Auto),
        ("inject", Self::Inject),
        ("posted", Self::Posted),
        ("eli", Self::Eli),
        ("direct", Self::Direct),
    ];
}

/// How the engine learns of a guest's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Requests {
    /// The engine always polls each queue. No request costs an exit.
    #[default]
    Poll,
    /// The guest notifies the engine, which costs an exit. Idle queues cost the engine nothing.
    Notify,
    /// A queue is polled while it is busy and notified otherwise.
    Adaptive,
}

impl Requests {
    /// The values with their words.
    pub(crate) const WORDS: [(&'static str, Self); 3] =
        [("poll", Self::Poll), ("notify", Self::Notify), ("adaptive", Self::Adaptive)];
}

/// What is done about a guest's split and bus locks, where the processor notices them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SplitLock {
    /// After each the guest is free to make more for a millisecond.
    #[default]
    Slow,
    /// The guest ends at the first.
    Kill,
    /// They are not noticed.
    Allow,
}

impl SplitLock {
    /// The values with their words.
    pub(crate) const WORDS: [(&'static str, Self); 3] =
        [("slow", Self::Slow), ("kill", Self::Kill), ("allow", Self::Allow)];
}

/// Where the devices of a guest have their notification words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NotifyBar {
    /// In I/O space. A notification costs a cheap exit.
    #[default]
    Io,
    /// In memory, for drivers that do not know I/O space. A notification costs a decoded exit.
    Memory,
}

impl NotifyBar {
    /// The values with their words.
    pub(crate) const WORDS: [(&'static str, Self); 2] = [("io", Self::Io), ("memory", Self::Memory)];
}

/// What happens when a guest has stopped by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Restart {
    /// It stays stopped.
    #[default]
    Never,
    /// It starts again with fresh memory.
    Always,
}

impl Restart {
    /// The values with their words.
    pub(crate) const WORDS: [(&'static str, Self); 2] = [("never", Self::Never), ("always", Self::Always)];
}

/// Places in the file of a guest's values that are checked against the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// `name`, or the head of the table if there is no `name`.
    pub name: Place,
    /// `kernel` or `firmware`.
    pub kernel: Place,
    /// `initrd`.
    pub initrd: Place,
    /// `memory`.
    pub memory: Place,
    /// `cores`, otherwise `vcpus`, otherwise `name`.
    pub cores: Place,
    /// `completion`, or the head of the table.
    pub completion: Place,
}

impl Guest {
    /// Its network devices, in their order.
    pub fn nets(&self) -> impl Iterator<Item = &Net> {
        self.devices.iter().filter_map(|device| match device {
            GuestDevice::Net(net) => Some(net),
            _ => None,
        })
    }

    /// Its block devices, in their order.
    pub fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.devices.iter().filter_map(|device| match device {
            GuestDevice::Block(block) => Some(block),
            _ => None,
        })
    }

    /// Bytes of memory that it takes: its RAM, and its RAM disks.
    #[must_use]
    pub fn memory_with_disks(&self) -> u64 {
        self.blocks().fold(self.memory, |sum, block| sum.saturating_add(block.memory()))
    }

    /// Names of the boot modules that the guest uses.
    pub fn modules(&self) -> impl Iterator<Item = &str> {
        let disks = self.blocks().filter_map(|block| block.module());
        let kernel = Some(&*self.kernel).filter(|_| !self.spare);
        kernel.into_iter().chain(self.initrd.as_deref()).chain(disks)
    }

    /// Its entropy devices, in their order.
    pub fn entropies(&self) -> impl Iterator<Item = &Entropy> {
        self.devices.iter().filter_map(|device| match device {
            GuestDevice::Entropy(entropy) => Some(entropy),
            _ => None,
        })
    }
}

impl Net {
    /// Whether this address is its own or behind it.
    pub(crate) fn has(&self, mac: Mac) -> bool {
        self.mac == mac || self.identity.fixed.contains(&mac)
    }
}
