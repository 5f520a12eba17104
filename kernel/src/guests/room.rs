//! How much of the heap guests need.

use config::{Config, MAX_APPLIED, apply_heap};
use machine::machine::MAX_HEAP;

/// Most bytes of the heap that a life takes when it begins: the machine, 45 KiB of rings of its console device, and its jobs.
/// A guest's former machine is there too while the new one is made.
pub const LIFE_BYTES: usize = MAX_HEAP + (64 << 10);

/// Bytes of the heap that a guest keeps over all its lives, at most: its devices with their counters, its console, and a
/// histogram for each vCPU.
const KEPT_BYTES: usize = 256 << 10;
/// Bytes of the heap for what commands need while they are carried out. The counters of 64 vCPUs with their line are the most.
const COMMAND_BYTES: usize = 1 << 20;

/// Bytes of a guest's part of the heap: what it keeps, and two lives, because its former machine is there while the new one is
/// made.
pub const PART_BYTES: u64 = (KEPT_BYTES + 2 * LIFE_BYTES) as u64;
/// Most places in a guest's memory that are known to be damaged.
pub const MAX_DAMAGED: usize = 64;
/// Bytes of everybody's part of the heap for the boxes of a guest's cores' jobs, at most.
pub const JOBS_BYTES: usize = 16 << 10;
/// Bytes of the control core's part of the heap for what it knows of a guest, at most.
const KNOWN_BYTES: usize = 32 << 10;

/// Bytes of the control core's part of the heap that the guests and the commands need while guests run. A start of a guest, and a
/// command, is refused if they are not there.
pub fn heap(config: &Config) -> usize {
    let (channel, apply) = match &config.management {
        None => (0, 0),
        Some(management) if management.modules == 0 => (crate::channel::HEAP_BYTES, 0),
        Some(_) => (crate::channel::HEAP_BYTES, apply_heap(MAX_APPLIED)),
    };
    config
        .guests
        .len()
        .saturating_mul(KNOWN_BYTES)
        .saturating_add(COMMAND_BYTES)
        .saturating_add(channel)
        .saturating_add(apply)
}
