//! `[[guest.block]]`: a virtio block device and the disk beneath it.

use alloc::string::String;

use crate::disk_name::DiskName;
use crate::mistake::Place;

/// `[[guest.block]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// What is beneath it.
    pub disk: Disk,
    /// The partition of that disk. `None`: all of it.
    pub partition: Option<Partition>,
    /// The guest finds blocks of 512 bytes, also on a disk with blocks of 4,096.
    pub emulate: bool,
    /// Its contents are cleared when sidecore starts.
    pub wipe: bool,
    /// The guest cannot write to it.
    pub read_only: bool,
    /// Serial number, which the guest can read: up to [`MAX_SERIAL`](crate::MAX_SERIAL) printable ASCII characters.
    pub serial: String,
    /// The cache mode that the guest finds.
    pub cache: Cache,
    /// Queues, 1 to [`MAX_BLOCK_QUEUES`](crate::MAX_BLOCK_QUEUES).
    pub queues: u16,
    /// Whether packed rings are offered.
    pub packed: bool,
    /// Place in the file of `module` or `size`, or of `disk` if it names a disk of the machine.
    pub place: Place,
}

/// A partition as the file names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its label or its unique GUID.
    pub name: String,
    /// Place in the file of `partition`.
    pub place: Place,
}

/// What is beneath a block device. A new kind of storage needs a new variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disk {
    /// Empty memory of so many bytes.
    Ram {
        /// Size in bytes.
        bytes: u64,
    },
    /// A boot module. What the guest writes is in a copy-on-write overlay.
    Module {
        /// Name of the boot module.
        name: String,
        /// Most bytes of the overlay; 0 if the device is read-only.
        overlay: u64,
        /// Bytes of the disk, if `size` was given: for a compressed module only.
        size: Option<u64>,
        /// A compressed module, after [`check_packed`](crate::check_packed).
        unpacked: Option<Unpacked>,
    },
    /// A disk of the machine: a namespace of an NVMe controller, or a virtio disk.
    Machine(DiskName),
}

/// The contents of a compressed module in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unpacked {
    /// Bytes of the disk. The contents may be shorter; the rest is zeroes.
    pub bytes: u64,
    /// An earlier device has the same contents, which are in memory once.
    pub shared: bool,
}

/// The cache mode of a block device. The guest's driver can change it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// A completed write may be lost with power until a flush.
    #[default]
    WriteBack,
    /// A completed write survives a loss of power.
    WriteThrough,
}

impl Cache {
    /// The values with their words.
    pub(crate) const WORDS: [(&'static str, Self); 2] =
        [("writeback", Self::WriteBack), ("writethrough", Self::WriteThrough)];
}

impl Block {
    /// Bytes of memory that its disk takes.
    #[must_use]
    pub const fn memory(&self) -> u64 {
        match self.disk {
            Disk::Ram { bytes } => bytes,
            Disk::Module { overlay, unpacked, .. } => match unpacked {
                Some(Unpacked { bytes, shared: false }) => overlay.saturating_add(bytes),
                _ => overlay,
            },
            Disk::Machine(_) => 0,
        }
    }

    /// The boot module that it names.
    #[must_use]
    pub fn module(&self) -> Option<&str> {
        match &self.disk {
            Disk::Ram { .. } | Disk::Machine(_) => None,
            Disk::Module { name, .. } => Some(name),
        }
    }
}
