//! What was found at boot, for all that comes later.

use crate::{
    firmware::{Module, Platform},
    mem::Stacks,
};
use alloc::vec::Vec;
use spin::Once;

/// What the later steps need of the earlier ones.
pub struct Facts {
    /// Files that GRUB loaded.
    pub modules: Vec<Module>,
    /// What ACPI says.
    pub platform: Platform,
    /// Usable memory in bytes, before anything was taken.
    pub memory: u64,
    /// The boot core's own stacks.
    pub stacks: Stacks,
}

static FACTS: Once<Facts> = Once::new();

/// Keeps them, once.
pub fn set(facts: Facts) {
    FACTS.call_once(|| facts);
}

/// Facts found at boot.
pub fn facts() -> &'static Facts {
    FACTS.get().expect("facts are gathered before anything asks for them")
}
