//! Where things are in `block.rs`: the slots of the two devices, and the layout and the first content of the machine's disks.

use crate::orderly::SECTORS;

/// Slot of the hostile guest's device, and its volume of the storage that completes late.
pub const HOSTILE: usize = 0;
/// Slot and volume of the orderly guest.
pub const ORDERLY: usize = 1;
/// Sectors before the part of the orderly guest.
pub const BEFORE: u64 = 64;
/// Sectors behind it.
pub const BEHIND: u64 = 64;
/// Bytes of each disk.
pub const DISK: usize = (BEFORE + SECTORS + BEHIND) as usize * 512;
/// What is in the blocks of nobody.
pub const NOBODYS: u8 = 0x5c;
/// What a discard leaves in the blocks of these disks.
pub const DISCARDED: u8 = 0xde;
