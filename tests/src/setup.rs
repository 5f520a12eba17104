//! The setup of an emulated server, as a scenario asks for it.

use std::path::PathBuf;

/// The content of a boot module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// This text.
    Text(String),
    /// Debian's cloud kernel.
    GuestKernel,
    /// The same kernel as an ELF file with a PVH entry, taken out of the bzImage.
    GuestVmlinux,
    /// Cloud Hypervisor's EDK2, from Debian or from the file that SIDECORE_CLOUDHV names.
    CloudHv,
    /// rust-hypervisor-firmware: the file that SIDECORE_RHF names.
    Rhf,
    /// A small disk image that firmware boots: Debian's cloud kernel and the small initramfs, with this command line,
    /// and the file `text` with this content.
    BootDisk {
        /// The kernel's command line.
        cmdline: String,
        /// The content of the file.
        text: String,
    },
    /// The management guest's RAM disk.
    Management {
        /// The keys that may log in, as `sidecore-agent keys` reads them.
        keys: String,
        /// The private host key. `None`: one is made at each boot.
        host_key: Option<String>,
    },
    /// An archive (tar) with Debian's package of `sidecore-agent` in it, `sidecore-agent.deb`.
    AgentPackage,
    /// The full initramfs of [`crate::initramfs`].
    Initrd,
    /// The initramfs without iperf3.
    SmallInitrd,
    /// A disk with an ext2 file system: fio, e2fsprogs and blkdiscard, with their libraries.
    Tools,
    /// The hostile guest of guest-drivers/isolation.
    Isolation,
    /// [`packed`], compressed with zstd. The file does not tell its size.
    Packed,
    /// The guest of guest-drivers/probe, which tests its machine from inside.
    Probe,
    /// The same as an ELF file with a PVH entry, which can start as firmware.
    ProbeFirmware,
}

/// The contents of [`Content::Packed`]: text of [`PACKED_BYTES`] bytes.
pub fn packed() -> Vec<u8> {
    let lines = (0_u64..).flat_map(|n| format!("block {n} {}\n", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes());
    lines.take(PACKED_BYTES).collect()
}

/// Bytes of [`packed`]: no whole number of sectors.
pub const PACKED_BYTES: usize = (5 << 20) + 77;

/// A file that GRUB loads beside the hypervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// The name that sidecore.toml uses for it.
    pub name: String,
    /// Its content.
    pub content: Content,
}

impl Module {
    /// A module of that name.
    pub fn new(name: &str, content: Content) -> Self {
        Self { name: name.to_owned(), content }
    }
}

/// The address of the development machine on an uplink: its loopback, in the guests' network.
pub const HOST_ADDRESS: &str = "10.0.0.254";

/// Its address on the second of two uplinks, in another network.
pub const SECOND_HOST_ADDRESS: &str = "10.0.9.254";

/// The uplinks of an emulated server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uplink {
    /// Nothing.
    None,
    /// A virtio network device. The host answers on it at [`HOST_ADDRESS`].
    Virtio,
    /// Two virtio network devices. The host answers at [`HOST_ADDRESS`] on the one at PCI address 00:11.0, and at
    /// [`SECOND_HOST_ADDRESS`] on the one at 00:10.0.
    TwoVirtio,
    /// An 82599 with another machine at the other end of its wire: see [`crate::launch::Launch::launch_joined`].
    X520,
    /// The same with cards for a backplane at both ends.
    X520Backplane,
    /// Two 82599s. The host answers at [`SECOND_HOST_ADDRESS`] on the one at 01:00.0, and at [`HOST_ADDRESS`] on the
    /// one at 02:00.0: see [`crate::launch::Launch::launch_with_two`].
    TwoX520,
    /// QEMU's 82576 in the slot [`IGB_SLOT`], with another machine at the other end of its wire: see
    /// [`crate::launch::Launch::launch_with_peer`]. Beside it a virtio network device, on which the host answers at
    /// [`SECOND_HOST_ADDRESS`], at 00:11.0.
    Igb,
}

/// The UARTs of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uarts {
    /// COM1 and COM2.
    Two,
    /// The UART of COM1's port has what is COM2 for the scenario, and the other way round: people's text comes by COM2's port.
    Swapped,
    /// One at COM1's port, for people and programs: sidecore's options need `json=com1`. The scenario can type on it.
    One,
    /// None. The scenario's COM1 and COM2 stay empty.
    None,
    /// COM2, and in the place of COM1 a UART on PCI.
    Pci,
}

/// The number of its slot. QEMU's 82576 has virtual functions 16 and 17 slots further, which have to be free.
pub const IGB_SLOT: &str = "08";

/// What CONFIG_ADDRESS gets for a register of a function (PCI 3.0, 3.2.2.3.2). `function`: its bus, device and function number, in 8, 5 and 3
/// bits. `register`: its offset in configuration space, a multiple of 4.
#[must_use]
pub const fn config_address(function: u32, register: u32) -> u32 {
    1 << 31 | function << 8 | register
}

/// GRUB's commands that write to a register of a function: see [`config_address`].
#[must_use]
pub fn grub_writes(function: u32, register: u32, value: u32) -> [String; 2] {
    [format!("outl 0xcf8 {:#x}", config_address(function, register)), format!("outl 0xcfc {value:#x}")]
}

/// What QEMU traces of its 82576: accesses to registers that it does not have, and writes to those that cannot be written; to
/// registers of the PHY likewise. The last is a reset, which shows that the trace is on.
pub const IGB_EVENTS: [&str; 6] = [
    "e1000e_wrn_regs_write_ro",
    "e1000e_wrn_regs_write_unknown",
    "e1000e_wrn_regs_read_unknown",
    "igb_core_mdic_read_unhandled",
    "igb_core_mdic_write_unhandled",
    "e1000e_core_ctrl_sw_reset",
];

/// An NVMe namespace of an emulated server. It holds zeroes at first, unless [`Setup::contents`] has more. Namespaces with the same serial
/// number belong to the same controller, and are numbered from 1 in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nvme {
    /// The serial number of its controller. It is also the name of the first namespace's file in the folder of the
    /// logs; the name of the second has `-2` behind it, and so on.
    pub serial: &'static str,
    /// Its size in MiB.
    pub mib: u64,
    /// Bytes of a block: 512 or 4096.
    pub block_bytes: u32,
}

/// A disk image beneath an NVMe controller with one namespace of 512-byte blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    /// The image that `cargo mk disk` builds. Nothing that is written stays.
    Debian,
    /// The same with OpenSSH's server.
    DebianSsh,
    /// This file. What is written stays.
    File(PathBuf),
}

/// A virtio block device of an emulated server. It holds zeroes at first, unless [`Setup::contents`] has more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtioDisk {
    /// The name of its file in the folder of the logs.
    pub name: &'static str,
    /// Its size in MiB.
    pub mib: u64,
    /// Bytes of a block: 512 or 4096.
    pub block_bytes: u32,
}

/// The partition table of a disk. All other bytes of the disk are [`FILLED`], and a copy of the disk before the start is in
/// the file with `.before` behind its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// The name of the disk's file.
    pub disk: &'static str,
    /// Its partitions in their order: names and MiB. The first begins after 1 MiB.
    pub partitions: &'static [(&'static str, u64)],
    /// What is damaged.
    pub damage: Damage,
}

/// Value of the bytes of a disk with a [`Table`].
pub const FILLED: u8 = 0x5a;

/// Damage of a [`Table`]: a bit of the header's checksum is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Nothing.
    None,
    /// The primary header.
    Primary,
    /// Both headers.
    Both,
}

/// An error that the emulator injects beneath the first namespace of a controller (QEMU's blkdebug).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The serial number of the controller.
    pub serial: &'static str,
    /// What fails.
    pub what: Failing,
    /// The sector of 512 bytes whose requests fail. `None`: all.
    pub sector: Option<u64>,
    /// Only the first request fails.
    pub once: bool,
}

/// Device number of the root port of [`Setup::in_slot`], on bus 0.
pub const SLOT: u8 = 0x1c;

/// Bus of the second host bridge of [`Setup::far`].
pub const FAR_BUS: u8 = 0x80;

/// The requests that a [`Fault`] fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failing {
    /// Reads.
    Reads,
    /// Writes.
    Writes,
    /// Flushes.
    Flushes,
}

/// What an emulated server boots from, and by which firmware. `mk` builds each the way `cargo mk image` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A CD that boots by BIOS only, which is built fastest.
    Disc,
    /// A USB stick, by BIOS. On QEMU.
    StickBios,
    /// A USB stick, by UEFI. On QEMU.
    StickUefi,
    /// The same, by UEFI that keeps the memory from 2 to 16 MiB for itself (`tests/firmware-memory`). On QEMU.
    StickUefiKeeps,
    /// The stick, by UEFI with Secure Boot and Microsoft's keys. On QEMU.
    StickSecureBoot,
    /// A CD, by UEFI. On QEMU.
    CdUefi,
    /// A stick's image whose FAT partition is an EFI system partition, on a fixed disk (SATA), by UEFI. On QEMU.
    DiskUefi,
    /// The network [`Setup::network`], by BIOS (PXE). On QEMU.
    NetworkBios,
    /// The same, by UEFI (PXE). On QEMU.
    NetworkUefi,
    /// The same, by UEFI with HTTP: the CD's image. On QEMU.
    NetworkHttp,
    /// The same: the program for UEFI with all files in it. On QEMU.
    Program,
}

impl Medium {
    /// Whether UEFI loads it by HTTP.
    #[must_use]
    pub fn is_http(self) -> bool {
        matches!(self, Self::NetworkHttp | Self::Program)
    }

    /// Whether it is the network.
    #[must_use]
    pub fn is_network(self) -> bool {
        matches!(self, Self::NetworkBios | Self::NetworkUefi) || self.is_http()
    }
}

/// The network that a machine boots from. A boot server is on it ([`crate::boot_server`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// The boot server's socket.
    pub socket: PathBuf,
    /// MAC address of the machine's NIC.
    pub mac: &'static str,
    /// UUID of the machine.
    pub uuid: &'static str,
    /// A DHCP server that knows nothing of booting is on the network too: the emulator's own, at 192.168.1.1.
    pub other_dhcp: bool,
}

/// An IOMMU that is on when sidecore starts: `tests/firmware-remapping` runs before it. Uplinks and disks are behind the IOMMU. What the
/// IOMMU does, and each access that it refuses, is among the emulator's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Iommu {
    /// Intel's, with tables that let no device reach any memory, and no interrupt pass.
    IntelNothing,
    /// Intel's, with tables by which each device reaches all memory at its own address; no interrupt passes.
    IntelIdentity,
    /// AMD's, with tables that let no device reach any memory.
    AmdNothing,
}

/// Something that processors have, and that a setup may take away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// SVM, or VT-x.
    Virtualization,
    /// The local APIC's x2APIC mode. QEMU only.
    X2apic,
    /// The 64-bit mode. QEMU only.
    LongMode,
}

/// One emulated server with sidecore on its disc.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The name of the folder of its logs.
    pub name: String,
    /// Logical processors.
    pub cpus: u32,
    /// Logical processors of a physical core. QEMU only.
    pub threads: u32,
    /// Packages with the same number of physical cores. QEMU only.
    pub sockets: u32,
    /// Logical processors that the firmware lists and does not enable. QEMU only.
    pub offline: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Memory of each NUMA node in MiB, together all of it; the first has all processors. None: there are no nodes. On QEMU.
    pub nodes: &'static [u32],
    /// What it boots from.
    pub medium: Medium,
    /// The network that it boots from, if that is its medium.
    pub network: Option<Network>,
    /// An IOMMU that the firmware has left on. On QEMU, by BIOS from the CD.
    pub iommu: Option<Iommu>,
    /// GRUB's commands before it loads sidecore: what firmware would have done. GRUB on the CD for BIOS has `inb`,
    /// `outw`, `write_dword` and the like.
    pub grub: Vec<String>,
    /// Nothing keeps the TCO watchdog of the chipset from resetting the machine. QEMU writes among its messages when
    /// its timer is at 0.
    pub tco: bool,
    /// The machine has a management controller (BMC), whose interface is a KCS at port 0xca2. On QEMU.
    pub bmc: bool,
    /// Boot modules.
    pub modules: Vec<Module>,
    /// Words on sidecore's own command line. Without the word `emulator`, sidecore ends as on a real machine.
    pub options: &'static str,
    /// What the processors lack.
    pub lacks: Option<Feature>,
    /// The processors say that they are Intel's, though they have SVM. QEMU's translator only, which otherwise says AMD.
    pub says_intel: bool,
    /// Its uplinks.
    pub uplink: Uplink,
    /// Ports of a guest behind an uplink [`Uplink::Virtio`] that are on the development machine's loopback: the port there, the
    /// guest's address, and its port.
    pub forwards: Vec<(u16, String, u16)>,
    /// Its NVMe disks.
    pub nvme: Vec<Nvme>,
    /// Its virtio disks: `vda` is the first.
    pub virtio_disks: Vec<VirtioDisk>,
    /// What NVMe and virtio disks hold at first, by the names of their files. It may be shorter than its disk.
    pub contents: Vec<(&'static str, Content)>,
    /// Partition tables of the NVMe disks.
    pub tables: Vec<Table>,
    /// A disk image, as one more NVMe disk.
    pub image: Option<Image>,
    /// Errors beneath NVMe disks.
    pub faults: Vec<Fault>,
    /// NVMe controllers by serial number. All writes to the first namespace of each are logged into the file `SERIAL.log` in
    /// the folder of the logs; see [`crate::write_log`].
    pub logged: Vec<&'static str>,
    /// NVMe controllers by serial number. The first namespace of each is beneath a throttle group `/objects/slow-SERIAL`, which
    /// has no limits at first.
    pub throttled: Vec<&'static str>,
    /// An NVMe controller with one namespace in a slot, behind the root port at [`SLOT`]. Its device is `c-SERIAL`, the port
    /// `bay`, and its contents the block node SERIAL.
    pub in_slot: Option<&'static str>,
    /// An NVMe controller, by its serial number, that is behind three bridges beneath a second host bridge, whose bus is [`FAR_BUS`].
    pub far: Option<&'static str>,
    /// Three USB controllers, xHCI with a keyboard, EHCI at PCI address 00:16.0 and UHCI at 00:17.0, which the firmware starts and nobody else drives. On QEMU.
    pub idle_usb: bool,
    /// One more ACPI table, with its header. QEMU makes its checksum.
    pub acpi_table: Option<Vec<u8>>,
    /// Its UARTs. Other than two on QEMU.
    pub uarts: Uarts,
    /// It has no graphics card. On QEMU.
    pub no_screen: bool,
    /// GRUB sets this graphics mode for sidecore (`800x600x24`). By BIOS from the CD. `None`: VGA's text.
    pub graphics: Option<&'static str>,
    /// The firmware has a store of error records (ACPI's ERST), in the file `store` in the folder of the logs. On QEMU.
    pub store: bool,
    /// What is written to port 0x80 is in the file `post`. On QEMU.
    pub post_codes: bool,
    /// The emulator writes into its messages which admin commands NVMe controllers get.
    pub traces_admin: bool,
    /// The feature of the package `sidecore` that the hypervisor is built with, if it is a test build.
    pub feature: Option<&'static str>,
    /// The machine stays when it switches itself off, and can be reset. It boots Debian's kernel then, whose first process
    /// is `guest/init` with these actions; nvme-cli, `sidecore-doctor` and the actions of `guest/plain` are there.
    pub after_reset: Option<&'static str>,
    /// The machine boots again after a reset. Otherwise the emulator ends. On QEMU.
    pub reboots: bool,
    /// The scenario types on COM1.
    pub typed: bool,
    /// A UNIX socket at which programs of the operator share COM2 with the scenario.
    pub shared_com2: Option<PathBuf>,
    /// Whether the emulator records its guest exits.
    pub record_exits: bool,
    /// Whether the emulator can log each instruction of the hypervisor (`log exec,nochain` to its monitor), into the file
    /// `executed`. On QEMU.
    pub logs_instructions: bool,
}

impl Setup {
    /// A server with virtualization, with the option `emulator`, and without modules, disks and uplinks.
    #[must_use]
    pub fn new(name: &str, cpus: u32, memory_mib: u32) -> Self {
        Self {
            name: name.to_owned(),
            cpus,
            threads: 1,
            sockets: 1,
            offline: 0,
            memory_mib,
            nodes: &[],
            medium: Medium::Disc,
            network: None,
            iommu: None,
            grub: Vec::new(),
            tco: false,
            bmc: false,
            modules: Vec::new(),
            options: "emulator",
            lacks: None,
            says_intel: false,
            uplink: Uplink::None,
            forwards: Vec::new(),
            nvme: Vec::new(),
            virtio_disks: Vec::new(),
            contents: Vec::new(),
            tables: Vec::new(),
            image: None,
            faults: Vec::new(),
            logged: Vec::new(),
            throttled: Vec::new(),
            in_slot: None,
            far: None,
            idle_usb: false,
            acpi_table: None,
            uarts: Uarts::Two,
            no_screen: false,
            graphics: None,
            store: false,
            post_codes: false,
            traces_admin: false,
            feature: None,
            after_reset: None,
            reboots: false,
            typed: false,
            shared_com2: None,
            record_exits: false,
            logs_instructions: false,
        }
    }
}
