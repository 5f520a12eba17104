//! The limits of a configuration.

use core::ops::RangeInclusive;

/// Largest configuration file in bytes. 32 guests with eight devices each have a quarter of it.
pub const MAX_FILE: usize = 64 << 10;
/// Most bytes of the heap that reading a configuration file of `len` bytes takes, with the mistakes that are found in it. The
/// parser is a crate that cannot refuse, so there has to be so much memory before it begins. The host test
/// `tests/fuzz/tests/no_memory.rs` measures files of all kinds.
#[must_use]
pub const fn heap(len: usize) -> usize {
    len.saturating_mul(320).saturating_add(64 << 10)
}
/// Largest file that is applied while the machine runs, in bytes. The heap has [`heap`] of it from the boot on.
pub const MAX_APPLIED: usize = 16 << 10;
/// Most bytes of the heap that it takes to apply a file of `len` bytes: to read it, and for what changes of the largest
/// configuration.
#[must_use]
pub const fn apply_heap(len: usize) -> usize {
    heap(len).saturating_add(512 << 10)
}
/// Most memory for modules that come while the machine runs, in bytes.
pub const MAX_PUT: u64 = 1 << 30;
/// Most vCPUs of a guest.
pub const MAX_VCPUS: u32 = 8;
/// Most guests.
pub const MAX_GUESTS: usize = 32;
/// Most devices of a guest, of all kinds together. Its PCI bus has as many functions.
pub const MAX_DEVICES: usize = 8;
/// Most network devices of a guest.
pub const MAX_NETS: usize = 8;
/// Most entropy devices of a guest. A second one would be useless.
pub const MAX_ENTROPIES: usize = 1;
/// Most block devices of a guest.
pub const MAX_BLOCKS: usize = 8;
/// Most queues of a block device.
pub const MAX_BLOCK_QUEUES: u32 = 8;
/// Longest serial number of a block device in bytes (virtio 1.3 5.2.6).
pub const MAX_SERIAL: usize = 20;
/// Bytes of the copy-on-write overlay of a RAM disk if the file does not say it.
pub const DEFAULT_OVERLAY: u64 = 64 << 20;
/// Most console devices of a guest. All its output is one stream for the operator.
pub const MAX_CONSOLES: usize = 1;
/// Most named ports of a console device. With the console itself and the control queues, they need 8 of the 9 queues
/// that a device may have.
pub const MAX_CONSOLE_PORTS: usize = 2;
/// Most pairs of queues of a network device.
pub const MAX_PAIRS: u32 = 4;
/// Least memory of a guest in bytes.
pub const MIN_MEMORY: u64 = 64 << 20;
/// Most memory of a guest in bytes.
pub const MAX_MEMORY: u64 = 1 << 40;
/// Unit of guest memory in bytes. It is the size of the pages that map the memory.
pub const MEMORY_UNIT: u64 = 2 << 20;
/// Greatest weight of a guest.
pub const MAX_WEIGHT: u16 = 16;
/// What `weight` may be.
pub(crate) const WEIGHTS: RangeInclusive<u32> = 1..=MAX_WEIGHT as u32;
/// Longest command line of a guest's kernel in bytes: x86 Linux's `COMMAND_LINE_SIZE` without the final zero.
pub const MAX_CMDLINE: usize = 2047;
/// Most engines. It is one for now. The plan and the types allow more.
pub const MAX_ENGINES: usize = 1;
/// Least MTU of a network device in bytes: the largest payload of its frames.
pub const MIN_MTU: u16 = 576;
/// Greatest MTU of a network device in bytes.
pub const MAX_MTU: u16 = 9216;
/// MTU of a network device if the file does not say it, in bytes.
pub const DEFAULT_MTU: u16 = 1500;
/// Most uplinks.
pub const MAX_UPLINKS: usize = 4;
/// Most addresses of an uplink's gateway.
pub const MAX_GATEWAY: usize = 8;
/// Highest VLAN number. The lowest is 1 (IEEE 802.1Q 9.6).
pub const MAX_VLAN: u16 = 4094;
/// Most IP addresses of a port.
pub const MAX_ADDRESSES: usize = 16;
/// Most MAC addresses behind a port, besides its own.
pub const MAX_STATIC: usize = 15;
/// Most stages of a port in each direction.
pub const MAX_STAGES: usize = 16;
