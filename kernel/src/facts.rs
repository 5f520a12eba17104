//! Keeps what the first steps of the boot have found, for everything later.

use crate::{
    firmware::{Module, Platform},
    mem::Stacks,
};
use alloc::vec::Vec;
use findings::machine::Taken;
use spin::Once;

/// What was found at boot.
pub struct Facts {
    /// Files that GRUB loaded.
    pub modules: Vec<Module>,
    /// What ACPI says about the machine.
    pub platform: Platform,
    /// Usable memory: start and end (exclusive) of each range, before anything was taken.
    pub ranges: Vec<(u64, u64)>,
    /// Usable memory in bytes, before anything was taken.
    pub memory: u64,
    /// What was in use of it before the hypervisor took any, but for the modules.
    pub taken: Vec<Taken>,
    /// Bytes of it that were free then.
    pub free: u64,
    /// The boot core's own stacks.
    pub stacks: Stacks,
}

static FACTS: Once<Facts> = Once::new();

/// Stores the facts. Only the first call has an effect.
pub fn set(facts: Facts) {
    FACTS.call_once(|| facts);
}

/// Returns the facts found at boot.
pub fn facts() -> &'static Facts {
    FACTS.get().expect("facts are gathered before anything asks for them")
}
