//! Guest memory as the host may use it, page frames, nested page tables. Nothing here touches hardware.
//!
//! Guest memory is hostile: a guest writes to it while the host reads it. So no `&T` or `&mut T` to it is ever formed.
//! [`GuestMemory`] checks an address once and then copies. For ranges that are used many times it gives out the checked
//! types of [`span`] and [`ring`]. There is no other way to guest memory.

#![cfg_attr(not(test), no_std)]

pub mod copy;
pub mod frames;
pub mod guest;
pub mod host;
pub mod maps;
pub mod reader;
pub mod ring;
pub mod span;
pub mod split;
pub mod swap;
pub mod tables;

pub use guest::{BadAddress, GuestMemory, Region};
