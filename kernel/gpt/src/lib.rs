//! Reads GUID partition tables (UEFI 2.10, chapter 5). Nothing is ever written.
//!
//! ```text
//!   block 0            protective MBR                 mbr
//!   block 1            primary header    ┐
//!   ...                primary entries   ┘            copy ──▶ Result<Copy, Fault>
//!   ...                partitions                                        │  read: which of the two is used
//!   ...                backup entries    ┐                               ▼
//!   last block         backup header     ┘            copy ──▶      table::Table ── find ──▶ Partition
//! ```
//!
//! | file | what it does |
//! |---|---|
//! | `disk` | the trait by which blocks are read |
//! | `mbr` | the check of the protective MBR |
//! | `fault` | what is wrong with one of the two copies |
//! | `copy` | reads and checks one copy: header and entries |
//! | `table` | the partitions, and the choice of one by name |
//! | `read` | reads both copies and decides which is used |
//!
//! The disk is not trusted: every field is checked before it is used, and memory is bounded by [`MAX_ARRAY`].

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

extern crate alloc;
// The tests' image names this crate as the fuzz target does.
#[cfg(test)]
extern crate self as gpt;

mod copy;
mod disk;
mod fault;
mod mbr;
mod read;
mod table;

pub use disk::{Blocks, Shape};
pub use fault::Fault;
pub use gpt_disk_types::Guid;
pub use read::{Refusal, read};
pub use table::{Damage, Header, Partition, Table};

/// Most bytes of an array of entries. Usual ones have 16 KiB.
pub const MAX_ARRAY: u32 = 128 << 10;

/// Most bytes of the heap that reading a table takes: two copies of 1,024 entries with names of 36 characters. The host test
/// `tests/fuzz/tests/no_memory.rs` measures it.
pub const HEAP: usize = 1 << 20;

#[cfg(test)]
mod tests;
