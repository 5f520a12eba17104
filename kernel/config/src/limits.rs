//! What a configuration may hold at most and at least.

/// vCPUs of a guest, at most.
pub const MAX_VCPUS: u32 = 8;
/// Guests, at most.
pub const MAX_GUESTS: usize = 32;
/// Devices of a guest, at most, whatever their kinds. Its PCI bus has as many functions.
pub const MAX_DEVICES: usize = 8;
/// Network devices of a guest, at most.
pub const MAX_NETS: usize = 8;
/// Entropy devices of a guest, at most. A second one would be of no use to it.
pub const MAX_ENTROPIES: usize = 1;
/// Pairs of queues of a network device.
pub const MAX_PAIRS: u32 = 4;
/// Least memory of a guest in bytes.
pub const MIN_MEMORY: u64 = 64 << 20;
/// Most memory of a guest in bytes.
pub const MAX_MEMORY: u64 = 1 << 40;
/// Guest memory is mapped in pages of this many bytes and comes in multiples of it.
pub const MEMORY_UNIT: u64 = 2 << 20;
/// Greatest weight of a guest.
pub const MAX_WEIGHT: u16 = 16;
/// Longest command line of a guest's kernel in bytes: x86 Linux's `COMMAND_LINE_SIZE` without the final zero.
pub const MAX_CMDLINE: usize = 2047;
/// Engines, at most. One for now; the plan and the types allow for more.
pub const MAX_ENGINES: usize = 1;
/// Least MTU of a network device in bytes: the largest payload of its frames.
pub const MIN_MTU: u16 = 576;
/// Greatest MTU of a network device in bytes.
pub const MAX_MTU: u16 = 9216;
/// MTU of a network device if the file does not say it, in bytes.
pub const DEFAULT_MTU: u16 = 1500;
/// Uplinks, at most.
pub const MAX_UPLINKS: usize = 4;
/// VLANs are numbered from 1 to this (IEEE 802.1Q 9.6).
pub const MAX_VLAN: u16 = 4094;
/// Addresses of the network layer that a port may have, at most.
pub const MAX_ADDRESSES: usize = 16;
/// Addresses of the link layer that may be behind a port besides its own, at most.
pub const MAX_STATIC: usize = 15;
/// Stages of a port in each direction, at most.
pub const MAX_STAGES: usize = 16;
