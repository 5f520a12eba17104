//! Memory, without touching hardware: guest memory as the host may use it, page frames, nested page tables.
//!
//! Guest memory is hostile. A guest writes to it while the host reads it, so no `&T` or `&mut T` to it is ever
//! formed: everything goes through [`GuestMemory`], which checks an address once and then copies, or through what it gives
//! out in [`span`] for ranges that are used many times.

#![cfg_attr(not(test), no_std)]

pub mod copy;
pub mod frames;
pub mod guest;
pub mod span;
pub mod swap;
pub mod tables;

pub use guest::{BadAddress, GuestMemory, Region};
